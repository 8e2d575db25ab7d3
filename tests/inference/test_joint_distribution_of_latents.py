"""Geweke's joint test of Gibbs sampling of labels and heads: what is known and what is not, drawn in turn, keep their joint distribution.

The joint distribution of one small sentence is a table that loops over scalars fill, so that the marginal-conditional simulator draws
from it exactly. The successive-conditional one starts there, too; then `inference.gibbs` draws all that is not known given what is, and
what is known is drawn anew from its exact conditional given the rest, a slice of the table. Geweke 2004, *Getting it right*.
"""

import itertools

import oracles_crf
import pytest
import torch
from scipy import stats
from strategies import crf_lists, crf_problem, generator
from tolerances import FALSE_ALARM_RATE

from probtx_pyro import inference
from probtx_pyro.ops._label_sweeps import _Walk

Latents = type(crf_problem(generator(0)).latents(()))
WORDS, LABELS, ROOT, CHAINS, TURNS = 3, 3, 2, 1000, 8
# what is known in turn: words whose label is, and words whose head is
KNOWN = (((0,), ()), ((), (0, 2)), ((), (1,)), ((1, 2), (0,)))


def table(crf):
    """log φ of all states: labels of the words, their heads as slots, the root's label; an axis each."""
    p, found = crf_lists(crf), torch.full((*[LABELS] * WORDS, *[WORDS + 1] * WORDS, ROOT), -torch.inf)
    slots = [of for _, _, of in oracles_crf.choices(p)]
    for labels in itertools.product(range(LABELS), repeat=WORDS):
        for heads in itertools.product(*slots):
            for root in range(ROOT):
                found[(*labels, *heads, root)] = oracles_crf.log_joint(p, labels, heads, root)
    return found


def drawn(logs, seed):
    """One state for each row of log weights (row, ...), as indices (row, axis)."""
    flat = torch.multinomial(logs.flatten(1).softmax(-1), 1, generator=generator(seed)).squeeze(-1)
    return torch.stack(torch.unravel_index(flat, logs.shape[1:]), -1)


def redrawn(logs, state, axes, seed):
    """The state with some axes drawn from their exact conditional given the others."""
    if not axes:
        return state
    rest = [a for a in range(state.shape[1]) if a not in axes]
    rows = logs.permute(*rest, *axes)[tuple(state[:, rest].T)]
    state = state.clone()
    state[:, axes] = drawn(rows, seed)
    return state


def functions(state, logs):
    """What is compared, (chain, function): every label, head and root, and how they depend on each other."""
    labels, heads, root = state.split((WORDS, WORDS, 1), -1)
    one_hot = torch.nn.functional.one_hot
    agree = [labels[:, i] == labels[:, j] for i, j in itertools.combinations(range(WORDS), 2)]
    padded = torch.cat((root + LABELS, labels), -1)  # the label of each slot
    of_head = padded.gather(-1, heads)
    parts = [
        one_hot(labels, LABELS)[..., 1:], one_hot(heads, WORDS + 1)[..., 1:], root.unsqueeze(-1),
        torch.stack(agree, -1).unsqueeze(-1), (of_head == labels).unsqueeze(-1), (of_head == LABELS).unsqueeze(-1),
    ]  # fmt: skip
    return torch.cat([x.flatten(1).double() for x in (*parts, logs[tuple(state.T)].unsqueeze(-1))], -1)


def scores(crf, seed):
    """z of each function: mean of the turns against exact draws; every chain is a batch, independent of the others."""
    logs = table(crf)
    every = logs.expand(CHAINS, *logs.shape)
    state, fresh, means = drawn(every, seed), drawn(every, seed + 1), 0.0
    many = crf.replace(unary=crf.unary.expand(CHAINS, -1, -1))
    for turn in range(TURNS):
        of_labels, of_heads = KNOWN[turn % len(KNOWN)]
        observed = torch.zeros(WORDS, dtype=torch.bool)
        observed[list(of_labels)] = True
        known = torch.full((CHAINS, 1, WORDS), -1)
        known[:, 0, list(of_heads)] = state[:, [WORDS + i for i in of_heads]]
        start = {"label": state[:, :WORDS], "root_label": state[:, -1]}
        draws = inference.gibbs(
            many, state[:, :WORDS], known, observed, num_samples=1, num_chains=1, num_warmup=1, start=start,
            seed=1000 * seed + turn, progress=False,
        )  # fmt: skip
        label, head, root = (draws.samples[name][0, 0] for name in ("label", "head", "root_label"))
        state = torch.cat((label, head[:, 0], root.unsqueeze(-1)), -1)
        means = means + functions(state, logs) / TURNS
        axes = [*of_labels, *(WORDS + i for i in of_heads)]
        state = redrawn(logs, state, axes, 1000 * seed + TURNS + turn)
    exact = functions(fresh, logs)
    moving = exact.var(0) > 0  # the slot of a word itself is never taken
    error = ((exact.var(0) + means.var(0)) / CHAINS).sqrt()
    return ((means.mean(0) - exact.mean(0)) / error)[moving]


def bound(z):
    """The largest of so many standard Normal numbers, but for a false alarm in 100,000 runs (Bonferroni)."""
    return float(stats.norm.isf(FALSE_ALARM_RATE / 2 / len(z)))


def problem(seed):
    """Arcs that matter more than words and root, so that no state has more than a few per cent."""
    crf = crf_problem(generator(seed), words=WORDS, labels=LABELS, channels=1, distances=(2,), root=ROOT)
    return crf.replace(unary=0.3 * crf.unary, ternary=1.5 * crf.ternary, root_ternary=0.5 * crf.root_ternary - 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_known_and_unknown_drawn_in_turn_keep_their_joint_distribution(seed):
    z = scores(problem(seed), seed)
    assert len(z) == 23 and z.abs().max() < bound(z), z.tolist()


def without_incoming_arcs(self, word, plain=_Walk.logits):
    """The conditional of a label without the words that may have it as their head."""
    _, alone = plain(self, word)
    outward = self.shared.outward[word] + self.labels.unsqueeze(-2)
    told = self.tables.of_head[outward].sum(-2) + alone
    return self._log_product(told) + self.tables.own[:, word], alone


def deaf_to_heads(self, state, generator, plain=Latents.sweep, **options):
    """Labels drawn as if no head were known."""
    return plain(Latents(self.potentials._replace(heads=None), self.batch), state, generator, **options)


def of_other_labels(self, state, generator, plain=Latents.complete):
    """Heads drawn given the labels of another chain."""
    found = plain(self, state, generator)
    other = plain(self, {name: x.roll(1, -2 if name == "label" else -1) for name, x in state.items()}, generator)
    known = self.potentials.heads.reshape(other["head"].shape[1:])
    return found | {"head": torch.where(known >= 0, found["head"], other["head"])}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (_Walk, "logits", without_incoming_arcs),
        (Latents, "sweep", deaf_to_heads),
        (Latents, "complete", of_other_labels),
    ],
)
def test_a_sampler_that_is_wrong_is_caught(monkeypatch, owner, name, wrong):
    monkeypatch.setattr(owner, name, wrong)
    z = scores(problem(0), 0)
    assert z.abs().max() > bound(z), z.tolist()

"""From the dependency CRF to a transformer: both ends against the library, every rung against loops, angles, tables, killed runs."""

import itertools
import json
import math
import re
from dataclasses import asdict

import numpy as np
import pytest
import torch
from tolerances import assert_equal
from torch.nn import functional as F

from benchmarks import staircase, tasks
from benchmarks.staircase_encoder import Edits, StaircaseEncoder, climb, energy, objective, plain
from benchmarks.verdicts import Items
from probtx_pyro import nn, train
from probtx_pyro.data import Text
from probtx_pyro.ops import dependency_crf as ops

WIDTH, HEADS, OFFSETS = 8, 2, 3
ALL = Edits._fields


def sentences(length=7, batch=2):
    """Scores, and a mask under which the second sentence has two words less."""
    torch.manual_seed(1)
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[1:, max(1, length - 2) :] = True
    return torch.randn(batch, length, WIDTH), padding


def encoder_of(edits, seed=0, **options):
    """An encoder with these edits, and none of its parameters at zero."""
    torch.manual_seed(seed)
    made = StaircaseEncoder(
        WIDTH, edits, **{"num_heads": HEADS, "max_offset": OFFSETS, "rank": 3, "nodes": 2, **options}
    ).eval()
    with torch.no_grad():
        for x in made.parameters():
            x.add_(0.3 * torch.randn_like(x))
    return made


def crf_ends(nodes=0, dropout=0.0):
    """The library's CRF encoder, and ours with its weights."""
    torch.manual_seed(0)
    options = {"distances": (2, 3), "rank": 3, "nodes": {"number": nodes}, "dropout": dropout}
    theirs, own = (
        nn.DependencyCRFEncoder(WIDTH, HEADS, num_steps=3, **options),
        encoder_of((), nodes=nodes, dropout=dropout),
    )
    (layer,) = own.layers
    groups = [5, 4, 3, 0, 1, 2]  # of the library, in the order of the offsets -3, -2, -1, 1, 2, 3
    with torch.no_grad():
        layer.query.copy_(theirs.left[:, groups])
        layer.key.copy_(theirs.right[:, groups])
        if nodes:
            layer.memory.copy_(theirs.memory)
    return theirs, own


def transformer_ends(dropout=0.0):
    """The library's transformer with relative positions, no parameter at zero, and ours with its weights."""
    torch.manual_seed(0)
    theirs = nn.TransformerEncoder(WIDTH, context=9, num_heads=HEADS, num_layers=2, max_offset=OFFSETS, dropout=dropout)
    own, columns = encoder_of(ALL, dropout=dropout), WIDTH // HEADS

    def by_head(weight):
        return weight.view(HEADS, 1, columns, WIDTH).mT

    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.6 * torch.randn_like(p))
        own.offset_bias.copy_(theirs.offset_bias)
        own.last_norm.load_state_dict(theirs.norm.state_dict())
        for layer, block in zip(own.layers, theirs.layers, strict=True):
            attention = block.self_attn
            for name, weight, bias in zip(("query", "key", "value"), attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True):  # fmt: skip
                getattr(layer, name).copy_(by_head(weight))
                getattr(layer, f"{name}_bias").copy_(bias.view(HEADS, columns))
            layer.output.copy_(by_head(attention.out_proj.weight.T))
            layer.output_bias.copy_(attention.out_proj.bias)
            for name, module in {"norm": block.norm1, "feed_norm": block.norm2, "widen": block.linear1, "narrow": block.linear2}.items():  # fmt: skip
                getattr(layer, name).load_state_dict(module.state_dict())
    return theirs, own


ENDS = {
    "CRF": crf_ends,
    "CRF with global nodes": lambda **options: crf_ends(5, **options),
    "transformer": transformer_ends,
}


@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize("end", ENDS)
def test_the_ends_are_the_library_s_encoders(end, length):
    theirs, own = ENDS[end]()
    theirs.eval()
    x, padding = sentences(length)
    for mask in (None, padding):
        real = torch.ones_like(padding) if mask is None else ~mask
        assert_equal(own(x, mask)[real], theirs(x, mask)[real], 10 * x)
    assert sum(p.numel() for p in own.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("end", ["CRF", "transformer"])
def test_dropout_falls_where_the_library_has_it(end):
    """Means and variances of 4,000 passes: of 96 numbers each, none is further apart than 5.5 standard errors (false alarm 7e-6)."""
    theirs, own = ENDS[end](dropout=0.2)
    x = sentences(6)[0][:1].expand(4_000, -1, -1)
    with torch.no_grad():
        pairs = [model.train()(x).flatten(1) for model in (own, theirs)]
    for moment in (1, 2):
        means = [y.mean(0) for y in pairs]
        values = [y if moment == 1 else (y - mean) ** 2 for y, mean in zip(pairs, means, strict=True)]
        apart = (values[0].mean(0) - values[1].mean(0)).abs()
        errors = ((values[0].var(0) + values[1].var(0)) / len(x)).sqrt()
        assert (apart < 5.5 * errors).all() and errors.min() > 0


def by_loops(encoder, unary):
    """One sentence (N, L), word by word, from the definition of the edits."""
    on, states, depth = encoder.edits, list(unary), 2 if encoder.edits.unshared else 3
    for step in range(depth):
        layer = encoder.layers[step if on.unshared else 0]

        def read(x, norm):
            if on.layer_norm:
                return (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt() * norm.weight + norm.bias
            return x.exp() / x.exp().sum()

        h = [read(x, layer.norm) for x in states]
        heard = [torch.zeros(WIDTH) for _ in h]
        for c in range(HEADS):

            def times(i, name, offset, c=c, layer=layer, h=h, biased=True):
                factor = getattr(layer, name)[c]
                group = 0 if on.plain_heads else layer.offsets.index(max(-OFFSETS, min(OFFSETS, offset)))
                bias = getattr(layer, f"{name}_bias")[c] if on.plain_heads and biased else 0.0
                return h[i] @ factor[group] + bias, factor[group]

            for i in range(len(h)):
                scores = {}
                for j in range(len(h)):
                    if i != j or on.own_head:
                        score = layer.scale * (times(i, "query", j - i)[0] @ times(j, "key", j - i)[0])
                        offset = max(-OFFSETS, min(OFFSETS, j - i)) + OFFSETS
                        scores[j] = score + (encoder.offset_bias[c, offset] if on.plain_heads else 0.0)
                nodes = [] if on.feed_forward else range(2)
                scores |= {("node", m): layer.scale * (h[i] @ layer.memory[c, m]) for m in nodes}
                total = sum(math.exp(s) for s in scores.values())
                for j, score in scores.items():
                    p = math.exp(score) / total
                    if isinstance(j, tuple):
                        heard[i] = heard[i] + p * (layer.memory_values if on.untied_values else layer.memory)[c, j[1]]
                        continue
                    (back, out), (told, back_out) = times(i, "query", j - i), times(j, "key", j - i)
                    if on.untied_values:
                        told, back_out = times(j, "value", j - i)
                        back, out = times(i, "output", j - i, biased=False)
                    heard[i] = heard[i] + p * (out @ told)
                    if not on.heads_only:
                        heard[j] = heard[j] + p * (back_out @ back)
        for i, x in enumerate(list(states)):
            extra = layer.output_bias if on.untied_values and on.plain_heads else 0.0
            new = (x if on.residual else unary[i]) + heard[i] + extra
            if on.feed_forward:
                wide = layer.widen.weight @ read(new, layer.feed_norm) + layer.widen.bias
                new = (
                    new + layer.narrow.weight @ (0.5 * wide * (1 + torch.erf(wide / math.sqrt(2)))) + layer.narrow.bias
                )
            states[i] = new
    found = torch.stack(states)
    if on.layer_norm:
        spread = (found.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        found = (found - found.mean(-1, keepdim=True)) / spread * encoder.last_norm.weight + encoder.last_norm.bias
    return found


@pytest.mark.parametrize(
    "edits", [*(ALL[:k] for k in range(9)), *(ALL[k:] for k in range(1, 8)), ALL[::2], ALL[1::2]], ids="-".join
)
def test_every_rung_is_what_its_edits_say(edits):
    own, (x, _) = encoder_of(edits), sentences()
    with torch.no_grad():
        assert_equal(own(x)[0], by_loops(own, x[0]), 10 * x)
        padded, mask = F.pad(x[:1], (0, 0, 0, 2)), torch.arange(9)[None] >= 7
        padded[:, 7:] = torch.randn(2, WIDTH)
        assert_equal(own(padded, mask)[:, :7], own(x[:1]), 10 * x)  # padding says nothing


# -- objectives and angles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [0, 3])
def test_mean_field_goes_where_the_gradient_of_the_elbo_points(nodes):
    """In natural parameters the update of all labels is the gradient with respect to marginals; the angle is 0 but for rounding.

    Rounding of an angle is that of its sine, some hundred operations; a state of rows that nearly have one label shortens
    directions in the metric by less than 1e-3.
    """
    own, (x, padding) = encoder_of((), nodes=nodes), sentences()
    assert climb(own, x, padding).angle.max() < math.degrees(1e3 * 100 * torch.finfo(x.dtype).eps)
    for edits in (("heads_only",), ("untied_values",), ("feed_forward",)):
        assert climb(encoder_of(edits, nodes=nodes), x, padding).angle.min() > 1.0, edits
    # of the first sweep a residual makes no difference: the state is the unary scores
    first, second, third = climb(encoder_of(("residual",), nodes=nodes), x, padding).angle.unbind(-1)
    assert first.max() < 1e-8 and min(second.min(), third.min()) > 1.0


def test_the_objective_is_the_elbo_of_the_library():
    own, (unary, padding) = encoder_of((), nodes=0), sentences()
    words, bias = own.pairs(unary, padding)
    groups = [own.layers[0].offsets.index(offset) for offset in (1, 2, 3, -1, -2, -3)]
    factors = own.layers[0].query[:, groups], own.layers[0].key[:, groups]
    given = ops.Potentials(unary, words, factors, (2, 3))
    for x in own.states(unary, padding):
        labels = torch.softmax(x, -1) * words.unsqueeze(-1)
        head = ops.Rule(1 / WIDTH)
        logits, heads = ops.new_heads(
            head, ops.head_scores(given, labels), x, x, given.choices(), given.parts, full=True
        )
        wanted = ops.objective(given, ops.PLAIN, head, {"labels": labels, "heads": heads, "head_logits": logits})
        assert_equal(objective(own.layers[0], x, unary, words, bias), wanted, 10 * wanted)


@pytest.mark.parametrize("edits", [(), ("own_head",), ALL[:4], ALL, ALL[1:], ALL[3:], ALL[4:], ALL[6:]], ids="-".join)
def test_angles_are_those_of_the_definition(edits):
    """``cos = ∇·u / sqrt(∇' J⁺ ∇ · u' J u)``, ∇ the gradient of the objective with respect to the state, J dense."""
    own, (unary, _) = encoder_of(edits), sentences(batch=1)
    states, (words, bias) = own.states(unary), own.pairs(unary, None)
    found = climb(own, unary)
    for k, (x, after) in enumerate(itertools.pairwise(states)):
        layer = own.layers[k % len(own.layers)]
        x = x.detach().requires_grad_()
        value = objective(layer, x, unary, words, bias)
        (slope,) = torch.autograd.grad(value.sum(), x)
        u, across, up, along = (after - x).detach(), 0.0, 0.0, 0.0
        for i in range(x.shape[1]):
            jacobian = torch.autograd.functional.jacobian(lambda v, own=layer: plain(own, v), x[0, i].detach())
            up += slope[0, i] @ torch.linalg.pinv(jacobian, rtol=1e-9, hermitian=True) @ slope[0, i]
            along += u[0, i] @ jacobian @ u[0, i]
            across += slope[0, i] @ u[0, i]
        angle = torch.rad2deg(torch.arccos((across / (up * along).sqrt()).clamp(max=1.0)))
        # an arccos loses half the digits at 0; a norm's epsilon makes its radial direction visible, by 1e-5
        assert float(found.angle[0, k]) == pytest.approx(float(angle), abs=1e-2)
        rose = objective(layer, after, unary, words, bias) - value
        assert_equal(found.rose[0, k], rose.detach()[0], 10 * value.detach())


@pytest.mark.parametrize(("edits", "gradient"), [((), True), (("own_head",), True), (("plain_heads",), True), (ALL[4:], True),
    (("heads_only",), False), (("untied_values",), False), (ALL, False)], ids=str)  # fmt: skip
def test_a_message_is_a_gradient_where_an_objective_is_named(edits, gradient):
    """The Jacobian of a gradient is symmetric. Feed-forward stands outside of the message."""
    own, (x, _) = encoder_of(edits), sentences(length=4, batch=1)
    words, bias = own.pairs(x, None)
    h = plain(own.layers[0], x).detach()
    jacobian = torch.autograd.functional.jacobian(lambda h: own.layers[0].message(h, words, bias), h).reshape(
        h.numel(), -1
    )
    apart = (jacobian - jacobian.T).abs().max() / jacobian.abs().max()
    assert (apart < 1e-12) if gradient else (apart > 0.05)
    assert Edits.of(set(edits) - {"feed_forward"}).objective.startswith("none") is not gradient
    if gradient:
        z = h.requires_grad_()
        (slope,) = torch.autograd.grad(energy(own.layers[0], z, torch.zeros_like(x), words, bias).sum(), z)
        gain = own.layers[0].norm.weight if own.edits.layer_norm else 1.0
        read = h * gain + own.layers[0].norm.bias if own.edits.layer_norm else h
        assert_equal(slope, own.layers[0].message(read, words, bias) * gain, 10 * slope)


# -- rungs, tables, runs ---------------------------------------------------------------------------------------------------


def test_each_step_is_one_edit():
    assert len(staircase.RUNGS) == 17 and len({rung.name for rung in staircase.RUNGS}) == 17
    assert len(staircase.STEPS) == 1 + 2 * 8
    for step in staircase.STEPS[1:]:
        assert len(set(step.edited.edits) ^ set(step.before.edits)) == 1 and set(step.before.edits) < set(
            step.edited.edits
        )
    for order in ("added", "taken"):
        assert [step.label for step in staircase.STEPS[1:] if step.order == order] == [f"({k}) {staircase.LABELS[x]}" for k, x in enumerate(ALL, 1)]  # fmt: skip
    files = [staircase.file_of(part, rung, end, 3000) for part in staircase.PARTS for rung in staircase.RUNGS for end in ("seed 0", "rate 0.01")]  # fmt: skip
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("part", staircase.PARTS)
def test_the_ends_have_the_settings_of_the_published_runs(part):
    """But for steps, rates and batches of the quick setting; and what they build has as many parameters."""
    of = staircase.PARTS[part]
    for rung, encoder in staircase.PUBLISHED.items():
        own = staircase.settings_of(part, rung, 0, 0.1)
        theirs = tasks.settings_of(of.task, encoder, 0, lr=0.1)
        differ = {name for name, value in asdict(theirs).items() if asdict(own)[name] != value}
        assert differ <= {"encoder", "options", "num_steps", "validate_every", *of.changes}
        assert tasks.RECIPES[own.encoder].start == tasks.RECIPES[theirs.encoder].start
        how = {"context": own.context, "dropout": own.dropout, "root": False}
        sizes = [sum(p.numel() for p in tasks.RECIPES[x.encoder].build(x.width, **how, **x.options).parameters()) for x in (own, theirs)]  # fmt: skip
        assert sizes[0] == sizes[1]
    if part == staircase.ENDS:
        for rung, encoder in staircase.PUBLISHED.items():
            found = json.loads(
                next(tasks.FOLDER.glob(f"masked-sentences-{encoder}-12000-steps-seed-0.json")).read_text()
            )
            assert (found["settings"]["lr"], found["settings"]["num_steps"]) == (of.rates[rung], of.steps)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Runs of every rung, five seeds of twenty sentences: each edit on the side of the CRF is worth 2 nats of a hundred, feed-forward 20."""
    monkeypatch.setattr(staircase, "FOLDER", tmp_path)
    draw = np.random.default_rng(0)
    for seed, rung in itertools.product(range(5), staircase.RUNGS):
        nats = 500 - 2 * len(rung.edits) - 20 * ("feed_forward" in rung.edits) + draw.normal(scale=0.1, size=(20, 1))
        items = Items("perplexity", np.concatenate([nats, np.full((20, 1), 100.0)], 1).astype(np.float32))
        value = float(np.exp(items.each[:, 0].sum() / 2000))
        made = {"metrics": {"test": {"perplexity": value}}, "items": items.packed(), "validation": [[8, 9.0], [10, 9.0]], "parameters": 7, "seconds": 1.0}  # fmt: skip
        made |= {"settings": {"lr": 0.01}, "climb": {"angle": [0.0, 30.0], "rose": [1.0, 0.5]}}
        staircase.file_of(staircase.MAIN, rung, f"seed {seed}", 3000).write_text(json.dumps(made))
    return tmp_path


def test_tables_and_verdicts_of_what_is_there(kept):
    lines = staircase.steps_table(staircase.MAIN)
    _, added, change, taken, lost = lines[5].strip("| ").split(" | ")
    near = 0.15  # five standard errors of the nats of twenty sentences and five seeds, and two roundings
    assert float(added.split()[0]) == pytest.approx(math.exp(4.98), abs=near)
    assert float(change) == pytest.approx(math.exp(4.98) - math.exp(5), abs=near)
    assert float(taken.split()[0]) == pytest.approx(math.exp(4.66), abs=near)
    assert float(lost) == pytest.approx(math.exp(4.66) - math.exp(4.64), abs=near)
    assert {(x.label, x.order) for x in staircase.largest()} == {("(6) feed-forward for global nodes", order) for order in ("added", "taken")}  # fmt: skip
    sides = {"with 1 to 6", "with 1 to 5", "without 1 to 5", "without 1 to 6"}
    assert {rung.name for rung in staircase.rungs_of(staircase.COGS)} == {"crf without nodes", "transformer", *sides}
    claims = staircase.claims_table()[2:]
    assert len(claims) == 17 + 4 + 1 + 2
    assert [line.split(" | ")[3].strip() for line in claims[1:17]] == ["holds"] * 16
    assert "open" in claims[0] and all("not run yet" in line for line in claims[17:])
    assert "| 15.0 ± 0.0 | 30.0 | 75% |" in staircase.objective_table(staircase.MAIN)[2]


def test_without_runs_the_tables_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(staircase, "FOLDER", tmp_path)
    assert staircase.largest() == [] and staircase.rungs_of(staircase.COGS) == [staircase.BARE, staircase.TRANSFORMER]
    tables = staircase.report_tables()
    assert all("not run yet" in line for line in [*tables["claims"][2:], *tables["ends"][2:]])
    assert all(len(line.split("|")) == 7 and not re.search(r"\d\.\d", line) for line in tables["steps"][2:])


def test_trials_of_half_the_length_go_on_beyond_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(staircase, "FOLDER", tmp_path)
    asked = []

    def made(path, task, settings, tuning, run):
        asked.append((settings.lr, settings.num_steps, settings.seed, tuning))
        return {"perplexity": math.exp(abs(math.log(settings.lr / 0.002)))}

    monkeypatch.setattr(tasks, "read_or_run", made)
    assert staircase.best_rate(staircase.MAIN, staircase.CRF) == 0.002
    assert asked == [(rate, 1500, tasks.TUNING_SEED, True) for rate in (5e-3, 1e-2, 2e-2, 2e-3, 1e-3)]
    assert staircase.best_rate(staircase.ENDS, staircase.BARE) == 0.01 and len(asked) == 5


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_and_ends_alike(tmp_path, monkeypatch):
    """Of a text of a few words, so that it needs no data."""
    words = "the cat sleeps . a dog sees the cat . the dog and the cat sleep .".split()
    text = Text(*("\n".join(" ".join(words[i : i + 5]) for i in range(9)) for _ in range(3)))
    monkeypatch.setattr(staircase, "masked_text", lambda repeats: text)
    monkeypatch.setattr(tasks, "CACHE", tmp_path / "cache")
    part = staircase.PARTS[staircase.MAIN]
    small = part._replace(steps=6, changes={"batch": 4, "rarest": 1, "validate_every": 3}, rates={staircase.CRF: 0.01})
    monkeypatch.setitem(staircase.PARTS, staircase.MAIN, small)
    monkeypatch.setattr(staircase, "FOLDER", tmp_path / "whole")
    whole = staircase.run(staircase.MAIN, staircase.CRF, 0)
    monkeypatch.setattr(staircase, "FOLDER", tmp_path / "stopped")
    path = staircase.file_of(staircase.MAIN, staircase.CRF, "seed 0", 6)
    out = tasks.CACHE / f"{path.parent.name}-{path.stem}"
    settings = staircase.settings_of(staircase.MAIN, staircase.CRF, 0, 0.01)
    train.train_masked_language_model(settings, text, out, stop_after=4)  # the checkpoint that a kill leaves
    stopped = staircase.run(staircase.MAIN, staircase.CRF, 0)
    assert not out.exists()
    for same in ("settings", "validation", "metrics", "items", "climb"):
        assert stopped[same] == whole[same]
    assert max(whole["climb"]["angle"]) < 1e-3  # degrees; of single-precision weights, computed with in double
    monkeypatch.setattr(tasks, "TASKS", {})  # what is there is read
    monkeypatch.setattr(staircase, "settings_of", lambda *args: settings)
    assert staircase.run(staircase.MAIN, staircase.CRF, 0) == json.loads(path.read_text())

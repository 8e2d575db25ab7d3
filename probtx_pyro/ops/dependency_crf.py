"""Mean field for the dependency CRF as it stands in the paper: three contractions, two updates, three schedules,
one objective.

Every word i = 1..N has a label ``Z_i`` and, in each channel c, a head ``H^c_i``; their unnormalised log density is

    log φ(Z, H) = Σ_i S_i(Z_i) + Σ_c Σ_i T^{(c,g(i,h))}(Z_i, Z_h)   with h = H^c_i

Mean field approximates ``p(Z, H) ∝ φ(Z, H)`` by independent marginals, ``Q = Π Q(Z_i) Π Q(H^c_i)``, which it updates in
turn:

    F^c_i(j)       = Σ_ab Q_i(a) T^{(c,g(i,j))}_ab Q_j(b)                                               `head_scores`
    Q(H^c_i = j)   ∝ exp(F^c_i(j) / λ_H)                     j ≠ i                                      `new_heads`
    G_i(a)         = Σ_c Σ_j Σ_b [Q^c_i(j) T^{(c,g(i,j))}_ab + Q^c_j(i) T^{(c,g(j,i))}_ba] Q_j(b)       `label_messages`
    Q(Z_i = a)     ∝ exp((S_i(a) + G_i(a)) / λ_Z)                                                       `new_labels`

Each update of the heads, and each of a single label, maximises `objective`,
``E_Q[log φ] + λ_Z Σ H(Q(Z_i)) + λ_H Σ H(Q(H^c_i))``: at ``λ_Z = λ_H = 1`` the evidence lower bound. ``Q(H^c)`` is an
attention matrix with a zero diagonal, ``Q(Z)`` the words in context.

======== ============ =================== =====================================================================
symbol   name         shape               meaning
======== ============ =================== =====================================================================
S        ``unary``    (B, N, L)           score of every label of every word, in B sentences
T        ``ternary``  (C, G, L, L)        score of an arc: channel, distance group, label of word, label of head
d        `membership` (G, N, N)           1 where the pair of words (i, j) is in distance group g, else 0
R        ``root``     (C, L, K)           score of the root as a head: label of word, label of root (optional)
A        ``memory``   (C', M, L)          score of a global node as a head, in the first C' channels (optional)
Q(Z)     ``labels``   (B, N, L)           rows on the simplex; 0 for padding
Q(H)     ``heads``    (B, C, N, S)        rows on the simplex; 0 for padding and where there is no head to choose
Q(root)  ``root``     (B, K)              the label of the root, which is updated with those of the words
======== ============ =================== =====================================================================

The head of a word is one of S *slots*, in this order: the root (if there is one), the N words, the M global nodes. The
letters of the einsums are those of the formulas, besides z for sentences, g for distance groups, m for global nodes and
k for labels of the root.

This module is written to be read and to be tested against. `probtx_pyro.models.DependencyCRF.mean_field` computes the
same by a kernel that makes nothing of the size of all groups times all pairs of words, and gives the same marginals
many times faster; both share what stands here, except for the contractions and the order in which channels are visited.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from probtx_pyro.ops._crf_potentials import (
    PLAIN,
    Choices,
    Labels,
    Potentials,
    Rule,
    group_of,
    membership,
    relu_normalized,
)

Heads = Float[Tensor, "sentence channel word slot"]
RootLabel = Float[Tensor, "sentence root_label"]
PerSentence = Float[Tensor, " sentence"]
State = Mapping[str, Tensor]
"""Tensors by name: labels, heads, label_logits, head_logits, and with a root: root, root_logits."""


def head_scores(potentials: Potentials, labels: Labels, root: RootLabel | None = None) -> Heads:
    """Return ``F^c_i(j) = Σ_ab Q_i(a) T^{(c,g(i,j))}_ab Q_j(b)`` for every slot j,
    the root and the global nodes included.

    Parameters
    ----------
    potentials
        The CRF.
    labels
        Q(Z), (B, N, L).
    root
        Q(root), (B, K), where the CRF has one.

    Returns
    -------
    scores
        F, (B, C, N, S); 0 for a word and itself.
    """
    ternary, memory = potentials.full_ternary(), potentials.all_memory()
    slots = [einsum("zia,cgab,zjb,gij->zcij", labels, ternary, labels, membership(potentials))]
    if potentials.root is not None:
        slots.insert(0, einsum("zia,cak,zk->zci", labels, potentials.root, root).unsqueeze(-1))
    if memory is not None:
        slots.append(einsum("zia,cma->zcim", labels, memory))
    return torch.cat(slots, -1)


def label_messages(potentials: Potentials, labels: Labels, heads: Heads, root: RootLabel | None = None) -> Labels:
    """Return ``G_i(a)``: the messages to each word from its heads and from its dependents.

    Parameters
    ----------
    potentials
        The CRF.
    labels
        Q(Z), (B, N, L).
    heads
        Q(H), (B, C, N, S).
    root
        Q(root), (B, K), where the CRF has one.

    Returns
    -------
    messages
        G, (B, N, L).
    """
    first, length = int(potentials.root is not None), labels.shape[-2]
    words = heads[..., first : first + length]
    member, ternary, memory = membership(potentials), potentials.full_ternary(), potentials.all_memory()
    total = einsum("zcij,gij,zjb,cgab->zia", words, member, labels, ternary)
    total = total + einsum("zcji,gji,zjb,cgba->zia", words, member, labels, ternary)
    if potentials.root is not None:
        total = total + einsum("zci,cak,zk->zia", heads[..., 0], potentials.root, root)
    if memory is not None:
        total = total + einsum("zcim,cma->zia", heads[..., first + length :], memory)
    return total


def root_messages(potentials: Potentials, labels: Labels, heads: Heads) -> RootLabel:
    """Return ``Σ_c Σ_i Σ_a Q^c_i(root) Q_i(a) R^c_ak``: what the words tell the root.

    Parameters
    ----------
    potentials
        The CRF, which has a root.
    labels
        Q(Z), (B, N, L).
    heads
        Q(H), (B, C, N, S).

    Returns
    -------
    messages
        (B, K).
    """
    return einsum("zci,zia,cak->zk", heads[..., 0], labels, potentials.root)


def start(potentials: Potentials, label: Rule, head: Rule, choices: Choices | None = None) -> dict[str, Tensor]:
    """Return the state before the first sweep: ``Q(Z) ∝ exp(S)``, and heads uniform over the allowed slots.

    The logits of heads start at 1, so that `relu_normalized` makes them uniform, too.

    Parameters
    ----------
    potentials
        The CRF.
    label, head
        The rules of labels and of heads.
    choices
        Those of the CRF, where they are known; None makes them.

    Returns
    -------
    state
        A dictionary with the keys that `State` names.
    """
    choices = potentials.choices() if choices is None else choices
    unary = potentials.unary_scores()
    logits = unary.new_ones(()).expand(len(unary), potentials.channels, *choices.bias.shape[2:])
    state = {
        "label_logits": unary,
        "labels": label.normalized(unary, potentials.label_choices()),
        "head_logits": logits,
        "heads": head.normalized(logits, choices, potentials.parts),
    }
    if potentials.root is not None:
        state["root_logits"] = unary.new_zeros(len(unary), potentials.root.shape[-1])
        state["root"] = torch.softmax(state["root_logits"], -1)
    return state


def new_heads(
    head: Rule, scores: Heads, logits: Heads, heads: Heads, choices: Choices, parts: Sequence[int], full: bool = False
) -> tuple[Heads, Heads]:
    """Return new logits and marginals, ``Q(H^c_i = j) ∝ exp(F^c_i(j) / λ_H)`` over the allowed slots.

    Parameters
    ----------
    head
        The rule of heads.
    scores
        F, (B, C, N, S), from `head_scores`.
    logits, heads
        Those before, (B, C, N, S).
    choices, parts
        The allowed slots, and the sizes of each choice; of `Potentials`.
    full
        Take a full step whatever ``head.step`` is.

    Returns
    -------
    logits, heads
        (B, C, N, S) each.
    """
    logits = head.logits(scores, logits)
    return logits, head.marginals(logits, heads, choices, parts, full)


def new_labels(potentials: Potentials, label: Rule, state: State, messages: Labels) -> dict[str, Tensor]:
    """Return new ``label_logits`` and ``labels``, ``Q(Z_i = a) ∝ exp((S_i(a) + G_i(a)) / λ_Z)``.

    Parameters
    ----------
    potentials
        The CRF.
    label
        The rule of labels.
    state
        The state before.
    messages
        G, (B, N, L), from `label_messages`.

    Returns
    -------
    new
        The two entries of the state, (B, N, L) each.
    """
    words = potentials.words.unsqueeze(-1)
    scores = (potentials.unary + messages).masked_fill(~words, 0.0)
    logits = label.dropped(label.logits(scores, state["label_logits"]))
    return {"label_logits": logits, "labels": label.marginals(logits, state["labels"], potentials.label_choices())}


def new_root(label: Rule, state: State, messages: RootLabel) -> dict[str, Tensor]:
    """Return new ``root_logits`` and ``root``, ``Q(root = k)`` from what the words tell the root,
    by the rule of labels.

    Parameters
    ----------
    label
        The rule of labels.
    state
        The state before.
    messages
        (B, K), from `root_messages`.

    Returns
    -------
    new
        The two entries of the state, (B, K) each.
    """
    logits = label.logits(messages, state["root_logits"])
    every = Choices(logits.new_zeros(()), logits.new_ones(()), torch.inf)  # few enough to keep the smallest
    return {"root_logits": logits, "root": label.marginals(logits, state["root"], every)}


def _heads_of(potentials: Potentials, head: Rule, state: State, full: bool = False) -> dict[str, Tensor]:
    """Heads given the labels in ``state``."""
    scores = head_scores(potentials, state["labels"], state.get("root"))
    before = state["head_logits"], state["heads"]
    logits, heads = new_heads(head, scores, *before, potentials.choices(), potentials.parts, full)
    return {"head_logits": logits, "heads": heads}


def _labels_of(potentials: Potentials, label: Rule, state: State, sent: Heads) -> dict[str, Tensor]:
    """Labels, all at once, given the labels in ``state`` and the head marginals ``sent``."""
    return new_labels(potentials, label, state, label_messages(potentials, state["labels"], sent, state.get("root")))


def _root_of(potentials: Potentials, label: Rule, state: State, sent: Heads) -> dict[str, Tensor]:
    """The root given the labels in ``state`` and the head marginals ``sent``; nothing where there is no root."""
    return {} if potentials.root is None else new_root(label, state, root_messages(potentials, state["labels"], sent))


def asynchronous(potentials: Potentials, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
    """One sweep: all heads, then all labels, which hear from these heads. The first head update is a full step.

    Parameters
    ----------
    potentials
        The CRF.
    label, head
        The rules of labels and of heads.
    state
        The state before.
    first
        Whether this is the first sweep.

    Returns
    -------
    state
        The state after the sweep.
    """
    new = _heads_of(potentials, head, state, full=first)
    sent = head.dropped(new["heads"])
    return {**new, **_labels_of(potentials, label, state, sent), **_root_of(potentials, label, state, sent)}


def synchronous(potentials: Potentials, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
    """One sweep: heads and labels at once, so that labels hear from the heads
    before. Arguments are those of `asynchronous`.
    """
    new, sent = _heads_of(potentials, head, state), head.dropped(state["heads"])
    return {**new, **_labels_of(potentials, label, state, sent), **_root_of(potentials, label, state, sent)}


def sequential(potentials: Potentials, label: Rule, head: Rule, state: State, first: bool) -> dict[str, Tensor]:
    """One sweep: all heads, then the labels of one word after the other,
    then the root. Arguments are those of `asynchronous`.

    This is coordinate ascent: the objective never falls.
    """
    new = {**state, **_heads_of(potentials, head, state, full=first)}
    sent = head.dropped(new["heads"])
    for i in range(new["labels"].shape[-2]):
        moved = _labels_of(potentials, label, new, sent)
        here = (torch.arange(new["labels"].shape[-2], device=sent.device) == i).unsqueeze(-1)
        new |= {name: torch.where(here, x, new[name]) for name, x in moved.items()}
    return {**new, **_root_of(potentials, label, new, sent)}


Schedule = Callable[[Potentials, Rule, Rule, State, bool], State]
"""A schedule: takes the potentials, the rules of labels and of heads, a state,
and whether the sweep is the first; gives the next state."""
SCHEDULES: dict[str, Schedule] = {x.__name__: x for x in (asynchronous, synchronous, sequential)}
"""The schedules of mean field by name: asynchronous, synchronous, sequential."""


def mean_field(
    potentials: Potentials, num_steps: int, schedule: Schedule = asynchronous, label: Rule = PLAIN, head: Rule = PLAIN
) -> State:
    """Return the state after ``num_steps`` sweeps from `start`.

    Parameters
    ----------
    potentials
        The CRF.
    num_steps
        Number of sweeps.
    schedule
        `asynchronous`, `synchronous`, `sequential`, or a function with their arguments.
    label, head
        The rules of labels and of heads; `PLAIN` is softmax at temperature 1 in full steps.

    Returns
    -------
    state
        A dictionary with the keys that `State` names.

    Examples
    --------
    Labels that want to be equal, and a second word that knows its own:

    >>> unary, words = torch.tensor([[[0.0, 0.0], [2.0, 0.0]]]), torch.ones(1, 2, dtype=torch.bool)
    >>> state = mean_field(Potentials(unary, words, torch.eye(2).expand(1, 2, 2, 2)), num_steps=5)
    >>> state["heads"].tolist(), state["labels"][0, 0].argmax().item()
    ([[[[0.0, 1.0], [1.0, 0.0]]]], 0)
    """
    state: State = start(potentials, label, head)
    for k in range(num_steps):
        state = schedule(potentials, label, head, state, k == 0)
    return state


def objective(
    potentials: Potentials, label: Rule, head: Rule, state: State, scores: Heads | None = None
) -> PerSentence:
    """Return ``E_Q[log φ] + λ_Z Σ H(Q(Z)) + λ_H Σ H(Q(H))``: the ELBO where both temperatures are 1.

    Parameters
    ----------
    potentials
        The CRF.
    label, head
        The rules of labels and of heads, whose temperatures count.
    state
        The marginals: labels, heads, and root where there is one.
    scores
        F, (B, C, N, S), where they are known; None computes them by `head_scores`.

    Returns
    -------
    objective
        (B,).
    """
    labels, heads, root = state["labels"], state["heads"], state.get("root")
    scores = head_scores(potentials, labels, root) if scores is None else scores
    unary = potentials.unary_scores()
    expected = (labels * unary).sum((-2, -1)) + (heads * scores).sum((-3, -2, -1))
    uncertainty = _entropy(labels).sum(-1) + (0.0 if root is None else _entropy(root))
    return expected + label.temperature * uncertainty + head.temperature * _entropy(heads).sum((-2, -1))


def _entropy(p: Tensor) -> Tensor:
    """Entropy over the last axis; 0 log 0 is 0, with a finite gradient."""
    return -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)


__all__ = ["PLAIN", "SCHEDULES", "Choices", "Potentials", "Rule", "Schedule", "State", "group_of", "membership"]
__all__ += ["asynchronous", "sequential", "synchronous", "head_scores", "label_messages", "root_messages"]
__all__ += ["mean_field", "new_heads", "new_labels", "new_root", "objective", "relu_normalized", "start"]

"""Every option of the authors' encoders (whyNLP/Probabilistic-Transformer) has an equivalent in the encoder or in ``mean_field``.

Their names on the left: n_iter, async_update, damping_H/Z, stepsize_H/Z, regularize_H/Z (``head_temperature = regularize_H / L``),
norm, dists, use_td (``rank``, ``shared``), n_global and mode (``GlobalNodes``), use_td_global and use_root_td (memory and
root potentials of low rank are values), d_root, a root that shares the words' potentials (a word in front, with or without a head
of its own), output_prob, output_root, and padding. What cannot be theirs:

- ``block_msg`` drops what a head hears from its dependents, so that no objective has those updates; it has no equivalent.
- The oldest encoder leaves the diagonal and the padding in the softmax and zeroes them afterwards (erratum 24). For one sentence that
  is a global node of score 0 for each of them; a batch with padding of different lengths has none.
- Synchronous updates report heads that are normalised with the diagonal, too; the labels are compared here.
- With ReLU their root starts at 0 / 0 = 0 and stays there; here it starts uniform, on the simplex.
- Their dropout enters the marginals that the next step mixes in; here it is on the messages only.
"""

import numpy as np
import oracles_published_crf as published
import pytest
import torch
from oracles_published_crf import Options
from tolerances import assert_equal

from probtx_pyro import models
from probtx_pyro.nn import DependencyCRFEncoder
from probtx_pyro.ops import dependency_crf as formulas

pytestmark = pytest.mark.usefixtures("device")

L, C, N = 4, 3, 6
STEPS = {"label_step": 0.6, "head_step": 0.7}
THEIR_STEPS = {"stepsize_z": 0.6, "stepsize_h": 0.7}
DAMPING = {"label_damping": 0.3, "head_damping": 0.4}
THEIR_DAMPING = {"damping_z": 0.3, "damping_h": 0.4}
SPLIT = {"number": 3, "split": True}
CASES = {  # ours, theirs
    "default": ({}, {}),
    "n_iter": ({"num_steps": 7}, {"n_iter": 7}),
    "sync": ({"mean_field": {"schedule": "synchronous"}}, {"async_update": False}),
    "sync, everything": (
        {"num_steps": 5, "mean_field": {"schedule": "synchronous", **STEPS, **DAMPING}},
        {"async_update": False, "n_iter": 5, **THEIR_STEPS, **THEIR_DAMPING},
    ),
    "damping": ({"mean_field": DAMPING}, THEIR_DAMPING),
    "stepsize": ({"mean_field": STEPS}, THEIR_STEPS),
    "damping and stepsize": ({"mean_field": {**STEPS, **DAMPING}}, {**THEIR_STEPS, **THEIR_DAMPING}),
    "regularize": ({"mean_field": {"head_temperature": 2.5 / L, "label_temperature": 1.5}}, {"regularize_h": 2.5, "regularize_z": 1.5}),
    "relu": ({"mean_field": {"normalizer": "relu"}}, {"norm": published.relu}),
    "relu, damped": ({"mean_field": {"normalizer": "relu", **DAMPING, **STEPS}}, {"norm": published.relu, **THEIR_DAMPING, **THEIR_STEPS}),
    "dists": ({"distances": (2, 4)}, {}),
    "uv": ({"rank": 2, "distances": (3,)}, {}),
    "uvw": ({"rank": 2, "shared": True, "distances": (3,)}, {}),
    "all-attn": ({"nodes": {"number": 3}}, {}),
    "all-attn, relu": ({"nodes": {"number": 3}, "mean_field": {"normalizer": "relu", **DAMPING}}, {"norm": published.relu, **THEIR_DAMPING}),
    "attn-split": ({"nodes": SPLIT}, {"mode": "attn-split"}),
    "attn-split, stepped": ({"nodes": SPLIT, "mean_field": STEPS}, {"mode": "attn-split", **THEIR_STEPS}),
    "single-channel": ({"nodes": {**SPLIT, "channels": 1}}, {"mode": "single-channel"}),
    "2-channel": ({"nodes": {**SPLIT, "channels": 2}}, {"mode": "2-channel"}),
    "root": ({"root_labels": L}, {}),
    "d_root": ({"root_labels": 2, "distances": (2,), "mean_field": {**DAMPING, **STEPS}}, {**THEIR_DAMPING, **THEIR_STEPS}),
}  # fmt: skip


def array(x):
    return x.detach().cpu().numpy()


def their_ternary(encoder):
    if encoder.rank == "full":
        return array(encoder.ternary.permute(1, 2, 3, 0))
    if encoder.shared:
        return published.from_factors(*map(array, (encoder.left, encoder.right, encoder.channels)))
    return published.from_factors(*(array(x.permute(1, 2, 3, 0)) for x in (encoder.left, encoder.right)))


def assert_encoded(field, n, found, words, heads=True):
    """The real words of a sentence; potentials of order L and seven sweeps amplify rounding, so by logits squared."""
    keep = torch.as_tensor(words)
    scale = torch.as_tensor(np.abs(found.logits[words]).max() ** 2)
    assert_equal(field.label_logits[n][keep], torch.as_tensor(found.logits[words]), scale)
    assert_equal(field.label_marginals[n], torch.as_tensor(found.probabilities), scale)
    if heads:
        assert_equal(field.head_marginals[n][:, keep], torch.as_tensor(found.heads[:, words]), scale)
    if found.root is not None:
        assert_equal(field.root_logits[n], torch.as_tensor(found.root), scale)


@pytest.mark.parametrize("case", CASES)
def test_every_option_of_theirs_has_an_equivalent(case):
    ours, theirs = CASES[case]
    torch.manual_seed(len(case))
    encoder = DependencyCRFEncoder(L, C, **ours)
    x, lengths = torch.randn(3, N, L), (6, 4, 1)
    padding = torch.arange(N) >= torch.tensor(lengths)[:, None]
    with torch.no_grad():
        field = encoder.field(x, padding)
        assert_equal(encoder(x, padding), field.label_logits)
    root = None if encoder.root_ternary is None else array(encoder.root_ternary.permute(1, 2, 0))
    nodes = None if encoder.memory is None else array(encoder.memory.permute(1, 2, 0))
    for n in range(3):
        words = array(~padding[n])
        found = published.encode(
            array(x[n]), words, their_ternary(encoder), encoder.distances, Options(**theirs), root, nodes
        )
        assert_encoded(field, n, found, words, heads=theirs.get("async_update", True) and lengths[n] > 1)


@pytest.mark.parametrize("kind", ["uv", "norm"])
def test_use_td_global_and_use_root_td_are_tensors_of_the_model(kind):
    torch.manual_seed(1)
    x, ternary = torch.randn(N, L), torch.randn(C, 2, L, L)
    u, v, root = torch.randn(5, 2, C), torch.randn(L, 2, C), torch.einsum("adc,bdc->abc", *torch.randn(2, L, 2, C))
    nodes = torch.einsum("mrc,arc->mac", u.softmax(1) if kind == "norm" else u, v)
    crf = models.DependencyCRF(x, ternary, memory=nodes.permute(2, 0, 1), root_ternary=root.permute(2, 0, 1))
    field = crf.mean_field(4, head_temperature=1 / L)
    words = np.ones(N, dtype=bool)
    found = published.encode(
        array(x), words, array(ternary.permute(1, 2, 3, 0)), (), Options(), array(root), array(nodes)
    )
    assert_equal(field.label_logits, torch.as_tensor(found.logits), torch.as_tensor(found.logits**2))


@pytest.mark.pairs
@pytest.mark.parametrize("head_root", [True, False])
@pytest.mark.parametrize("schedule", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("embedded", [True, False])
def test_a_root_that_shares_the_potentials_is_a_word_in_front(head_root, schedule, embedded):
    torch.manual_seed(2)
    x, ternary = torch.randn(N, L), torch.randn(C, 4, L, L)
    x[0] = x[0] if embedded else 0.0

    def rootless(heads):
        return heads * (torch.arange(N) > 0).unsqueeze(-1)

    def update(potentials, label, head, state, first):
        return formulas.SCHEDULES[schedule](
            potentials, label, head._replace(dropout=None if head_root else rootless), state, first
        )

    field = models.DependencyCRF(x, ternary, distances=(2,)).mean_field(4, update, head_temperature=1 / L, **STEPS)
    options = Options(async_update=schedule == "asynchronous", head_root=head_root, **THEIR_STEPS)
    found = published.encode(array(x), np.ones(N, dtype=bool), array(ternary.permute(1, 2, 3, 0)), (2,), options)
    assert_equal(field.label_logits, torch.as_tensor(found.logits), torch.as_tensor(found.logits**2))


@pytest.mark.pairs
@pytest.mark.parametrize("schedule", ["asynchronous", "synchronous"])
@pytest.mark.parametrize("length", [N, 4])
@pytest.mark.parametrize("normalizer", ["softmax", "relu"])
def test_the_oldest_encoder_has_a_node_of_score_zero_for_the_diagonal(schedule, length, normalizer):
    """And one for each padded word: what is normalised and zeroed afterwards is attended to and says nothing."""
    torch.manual_seed(3)
    x, ternary, words = torch.randn(N, L), torch.randn(C, 2, L, L), np.arange(N) < length
    norm = {"softmax": (torch.softmax, published.softmax), "relu": (formulas.relu_normalized, published.relu)}[
        normalizer
    ]
    crf = models.DependencyCRF(x, L * ternary, torch.as_tensor(words), memory=torch.zeros(C, 1 + N - length, L))

    def update(potentials, label, head, state, first):  # theirs mixes in the uniform heads of the start, too
        return formulas.SCHEDULES[schedule](potentials, label, head, state, False)

    field = crf.mean_field(
        4, update, head_temperature=1.7, label_temperature=1.7 * L, normalizer=norm[0], **STEPS, **DAMPING
    )
    options = Options(
        async_update=schedule == "asynchronous", norm=norm[1], regularize_h=1.7, regularize_z=1.7, **THEIR_STEPS, **THEIR_DAMPING
    )  # fmt: skip
    found = published.encode_oldest(array(x), words, array(ternary.permute(1, 2, 3, 0)), (), options)
    scale = torch.as_tensor(found.logits**2)
    assert_equal(field.label_logits[:length], torch.as_tensor(found.logits[:length]), scale)
    assert_equal(field.label_marginals, torch.as_tensor(found.probabilities), scale)
    if schedule == "asynchronous":
        assert_equal(field.head_marginals[..., :N], torch.as_tensor(found.heads), scale)


def test_blocked_messages_give_other_labels():
    """What a head hears from its dependents is half of the derivative; without it other labels come out."""
    torch.manual_seed(4)
    x, ternary, words = torch.randn(N, L), torch.randn(C, 2, L, L), np.ones(N, dtype=bool)
    theirs = array(ternary.permute(1, 2, 3, 0))
    both, half = (published.encode_oldest(array(x), words, theirs, (), Options(block_msg=b)) for b in (False, True))
    assert np.abs(both.probabilities - half.probabilities).max() > 0.05

"""The encoder of the dependency CRF: its model's mean field, unrolled, with what a torch module must do."""

import math
import subprocess
import sys

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.autograd import forward_ad

from benchmarks.timing import Largest
from probtx_pyro.nn import DependencyCRFEncoder
from probtx_pyro.ops.dependency_crf import head_scores, relu_normalized

L, C, N = 6, 3, 7
KINDS = {
    "plain": {},
    "synchronous": {"mean_field": {"schedule": "synchronous", "label_damping": 0.3, "head_damping": 0.2}},
    "sequential": {"num_steps": 2, "mean_field": {"schedule": "sequential", "label_step": 0.7, "head_step": 0.6}},
    "distances": {"distances": (2, 4)},
    "low rank": {"rank": 2, "distances": (3,)},
    "shared": {"rank": 2, "shared": True, "mean_field": {"label_temperature": 1.5, "head_temperature": 0.5}},
    "symmetric": {"rank": "full", "symmetric": True, "distances": (2,)},
    "symmetric, low rank": {"rank": 2, "symmetric": True, "distances": (2, 3)},
    "symmetric, shared": {"rank": 2, "shared": True, "symmetric": True, "distances": (2,)},
    "root": {"root_labels": 2},
    "nodes": {"nodes": {"number": 3}, "mean_field": {"normalizer": "relu"}},
    "nodes apart": {"nodes": {"number": 3, "channels": 1, "split": True}, "root_labels": 3},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def draw(kind, dtype=torch.float64, **options):
    torch.manual_seed(1)
    encoder = DependencyCRFEncoder(L, C, dtype=dtype, **{**KINDS[kind], **options})
    x = torch.randn(3, N, L, generator=generator(2), dtype=dtype)
    return encoder, x, torch.arange(N) >= torch.tensor([[N], [4], [1]])


@kinds
def test_encoder_is_the_mean_field_of_its_model(kind):
    encoder, x, padding = draw(kind)
    given = {"head_temperature": 1 / L, **KINDS[kind].get("mean_field", {})}
    if given.get("normalizer") == "relu":
        given["normalizer"] = relu_normalized
    field = encoder.crf(x, padding).mean_field(encoder.num_steps, **given)
    scale = field.label_logits.square()
    assert_equal(encoder.eval()(x, padding), field.label_logits, scale)
    found = encoder.field(x, padding)
    assert_equal(found.head_marginals, field.head_marginals, scale)
    assert_equal(found.elbo, field.elbo, scale)
    assert found.label_temperature == field.label_temperature and found.head_temperature == field.head_temperature
    assert found.num_steps.tolist() == [encoder.num_steps] * 3 and not found.converged.any()


@kinds
def test_state_goes_to_another_encoder(kind):
    encoder, x, padding = draw(kind)
    other = draw(kind)[0]
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert (other(x) - encoder(x)).abs().max() > 0.01
    other.load_state_dict(encoder.state_dict())
    assert torch.equal(other(x, padding), encoder(x, padding))


@kinds
def test_padding_is_absent_words_and_its_numbers_are_ignored(kind):
    encoder, x, padding = draw(kind)
    x = x.masked_fill(padding.unsqueeze(-1), math.nan).requires_grad_()
    encoded = encoder(x, padding)
    scale = encoded.detach().square()
    for n, length in enumerate((N, 4, 1)):
        assert_equal(encoded[n, :length], encoder(x[n : n + 1, :length])[0], scale)
        assert (encoded[n, length:] == 0).all()
    encoded.square().sum().backward()
    assert torch.isfinite(x.grad).all() and (x.grad[padding] == 0).all()
    for p in encoder.parameters():
        assert torch.isfinite(p.grad).all() and p.grad.abs().max() > 0


def test_a_sentence_of_padding_gives_zeros():
    encoder, x, _ = draw("plain")
    x.requires_grad_()
    encoded = encoder(x, torch.tensor([[True], [False], [False]]).expand(3, N))
    assert (encoded[0] == 0).all() and (encoded[1:] != 0).any()
    encoded.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_published_scale_of_the_heads_is_the_default():
    encoder, x, _ = draw("plain")
    assert torch.equal(encoder(x), draw("plain", mean_field={"head_temperature": 1 / L})[0](x))
    assert not torch.equal(encoder(x), draw("plain", mean_field={"head_temperature": 1.0})[0](x))


def test_dropout_only_in_training():
    encoder, x, padding = draw("plain", dropout=0.3)
    quiet = draw("plain")[0]
    noisy = [encoder(x, padding) for _ in range(2)]
    assert not torch.equal(*noisy)
    assert (noisy[0][~padding] == 0).double().mean() == pytest.approx(
        0.3, abs=0.2
    )  # 72 coins: five of their errors of 0.054 are less
    assert torch.equal(encoder.eval()(x, padding), quiet(x, padding))
    assert torch.equal(encoder(x, padding), encoder(x, padding))


def test_dropout_of_heads_is_on_the_messages_not_on_the_attention():
    encoder, x, _ = draw("plain", dropout=0.5, num_steps=1)
    attention = encoder.field(x).head_marginals
    assert_equal(attention, encoder.eval().field(x).head_marginals)
    assert_equal(attention.sum(-1), torch.ones_like(attention[..., 0]))


@kinds
def test_autocast_is_close(kind, device):
    encoder, x, padding = draw(kind, torch.float32)
    with torch.no_grad():
        exact = encoder(x, padding)
        with torch.autocast(device, torch.bfloat16):
            rough = encoder(x, padding)
    # bfloat16 has 8 bits: 0.4 % of the largest logit in each product, in up to four sweeps that amplify it
    assert (rough - exact).abs().mean() < 0.05 * exact.abs().max()
    assert rough.dtype == torch.float32


@pytest.mark.parametrize("kind", ["plain", "low rank"])
def test_backward_under_autocast(kind, device):
    encoder, x, padding = draw(kind, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        loss = encoder(x, padding).float().square().mean()
    loss.backward()
    for p in encoder.parameters():
        assert p.grad.dtype == torch.float32 and torch.isfinite(p.grad).all() and p.grad.abs().max() > 0


CHANNELS_COMPILED = """
import copy, sys, torch
from probtx_pyro.nn import DependencyCRFEncoder
torch.set_num_threads(1)
torch.manual_seed(0)
encoder = DependencyCRFEncoder(4, 2, **eval(sys.argv[2])).double()
compiled = copy.deepcopy(encoder)
lengths = eval(sys.argv[3])
compiled.compile(fullgraph=True, dynamic=len(lengths) > 1, backend=sys.argv[1])
for length in lengths:
    x, padding = torch.randn(2, length, 4, dtype=torch.float64), torch.arange(length) > torch.tensor([[4], [2]])
    outputs = [call(x, padding) for call in (encoder, compiled)]
    gradients = [torch.autograd.grad(y.square().sum(), list(e.parameters())) for y, e in zip(outputs, (encoder, compiled))]
    for a, b in zip((outputs[0], *gradients[0]), (outputs[1], *gradients[1])):
        # float64: another order of sums, measured 1e-15 on a Zen 3, which other kernels and sweeps may multiply; a compiler that
        # mistakes a layout, as one did, is wrong by a thousandth and more
        assert (a - b).abs().max() < 1e-11 * a.abs().max().clamp(min=1.0)
    with torch.no_grad():
        assert (compiled(x, padding) - outputs[0]).abs().max() < 1e-11 * outputs[0].abs().max()
assert copy.deepcopy(compiled).update == encoder.update
assert (compiled.update == encoder.update) == ("sequential" in sys.argv[2])  # which is compiled as a whole
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "backend", "lengths"),
    [
        ({"distances": (2, 3)}, "aot_eager", (5,)),
        ({"distances": (2, 3)}, "inductor", (5, 7)),
        ({"rank": 2, "distances": (2,), "root_labels": 2}, "inductor", (5,)),
        ({"nodes": {"number": 2, "split": True}, "mean_field": {"schedule": "synchronous"}}, "inductor", (5,)),
        ({"nodes": {"number": 1}, "mean_field": {"head_step": 0.5, "head_damping": 0.3}}, "inductor", (5,)),
        ({"num_steps": 1, "mean_field": {"schedule": "sequential"}}, "aot_eager", (5,)),
    ],
    ids=str,
)
def test_compiled_in_place_is_equal(kind, backend, lengths):
    """In a process of its own, as in test_drop_in."""
    command = [sys.executable, "-W", "ignore", "-c", CHANNELS_COMPILED, backend, repr(kind), repr(lengths)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


COMPILED = """
import sys, torch
from probtx_pyro.nn import DependencyCRFEncoder
torch.set_num_threads(1)
torch.manual_seed(0)
encoder = DependencyCRFEncoder(4, 2, **eval(sys.argv[2]))
x, padding = torch.randn(2, 5, 4), torch.arange(5) > torch.tensor([[4], [2]])
compiled = torch.compile(encoder, fullgraph=True, backend=sys.argv[1])
outputs = [call(x, padding) for call in (encoder, compiled)]
gradients = [torch.autograd.grad(output.square().sum(), list(encoder.parameters())) for output in outputs]
for a, b in zip((outputs[0], *gradients[0]), (outputs[1], *gradients[1])):
    # float32: the compiler sums in another order, and every sweep multiplies that rounding by potentials of order 1
    assert (a - b).abs().max() < 1e-4 * a.abs().max().clamp(min=1.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        ({"num_steps": 1}, "aot_eager"),
        ({"rank": 2, "distances": (2,), "root_labels": 2}, "aot_eager"),
        ({"nodes": {"number": 2, "split": True}, "mean_field": {"schedule": "synchronous"}}, "aot_eager"),
        ({"num_steps": 2}, "inductor"),
    ],
    ids=str,
)
def test_compiles_in_one_graph_and_is_equal(kind, backend):
    """In a process of its own, as in test_drop_in. Float32: the compiler sums in another order, and the sweeps amplify that."""
    command = [sys.executable, "-W", "ignore", "-c", COMPILED, backend, repr(kind)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def largest(words, labels, **options):
    torch.manual_seed(0)
    encoder = DependencyCRFEncoder(labels, 2, num_steps=2, **options)
    x = torch.randn(1, words, labels, requires_grad=True)
    with Largest() as made:
        encoder(x).sum().backward()
    return made.numbers


@pytest.mark.slow
@pytest.mark.parametrize("rank", [None, 2], ids=["full", "low rank"])
@pytest.mark.parametrize(("schedule", "words"), [("asynchronous", 192), ("synchronous", 192), ("sequential", 64)])
def test_no_tensor_of_groups_times_pairs(rank, schedule, words):
    """The largest tensors are the scores (C, N, N), or what the words have for each group, (C N, groups, L or twice the rank)."""
    for labels, distances in ((4, ()), (4, tuple(range(2, 12))), (8, (2, 3))):
        reach = len(distances)  # so many groups have a single offset: room for words that are not there, at both ends
        pairs = 2 * words * (words + 2 * reach)
        groups = 2 * (len(distances) + 1)
        of_words = (
            2 * rank * groups * 2 * words + 2 * max(reach, 8) if rank else (2 * words + 2 * reach) * groups * labels
        )
        found = largest(words, labels, rank=rank or "full", mean_field={"schedule": schedule}, distances=distances)
        assert found == max(pairs, of_words)


@kinds
def test_forward_mode_is_reverse_mode_turned_round(kind):
    encoder, x, padding = draw(kind)
    v, weights = torch.randn(2, *x.shape, generator=generator(3), dtype=x.dtype)
    with forward_ad.dual_level():
        ahead = forward_ad.unpack_dual(encoder(forward_ad.make_dual(x, v), padding)).tangent
    (back,) = torch.autograd.grad((weights * encoder(x.requires_grad_(), padding)).sum(), x)
    assert_equal((weights * ahead).sum(), (back * v).sum(), back * v, weights * ahead)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean_field": {"normalizer": "sparsemax"}}, r"normalizer must be one of softmax, relu, not 'sparsemax'"),
        (
            {"mean_field": {"schedule": "async"}},
            r"schedule must be one of asynchronous, synchronous, sequential, not 'async'",
        ),
        ({"shared": True}, r"shared is given with full potentials; give the rank"),
        ({"rank": "half"}, r"rank must be a positive whole number, 'full' or None, not 'half'"),
        ({"rank": 0}, r"rank must be a positive whole number, 'full' or None, not 0"),
        ({"nodes": {"channels": 1}}, r"channels is given without nodes; give their number"),
        ({"nodes": {"split": True}}, r"memory_split is given without memory; give global nodes"),
        ({"nodes": {"number": 2, "channels": 9}}, r"memory has shape \(9, 2, 6\) but must be \(C', M, 6\)"),
        ({"distances": (1,)}, r"distances must be integers of 2 or more that rise"),
        ({"num_steps": 0}, r"num_steps must be 1 or more and tol positive, not num_steps=0"),
        ({"mean_field": {"head_temperature": 0.0}}, r"head_temperature must be positive, not 0.0"),
        ({"mean_field": {"label_step": 1.5}}, r"label_step must be more than 0 and at most 1, not 1.5"),
        ({"mean_field": {"head_damping": 1.0}}, r"head_damping must be at least 0 and less than 1, not 1.0"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DependencyCRFEncoder(L, C, **options)


@pytest.mark.parametrize("shape", [(3, N, L + 1), (N, L), (0, N, L), (3, 0, L)])
def test_inputs_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"unary scores must have shape \(B, N, 6\), of one sentence"):
        draw("plain")[0](torch.zeros(shape))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("symmetric")])
def test_symmetric_potentials_score_an_arc_alike_in_both_directions(kind):
    """By the scores of the readable form, of labels that are not symmetric in any other way."""
    encoder, x, _ = draw(kind)
    scores = head_scores(encoder.crf(x).potentials(), x.softmax(-1))
    assert_equal(scores, scores.mT)
    plain = draw(kind, symmetric=False)[0]
    assert sum(map(torch.numel, plain.parameters())) == 2 * sum(map(torch.numel, encoder.parameters()))
    scores = head_scores(plain.crf(x).potentials(), x.softmax(-1))
    assert not torch.allclose(scores, scores.mT)


@pytest.mark.parametrize(("width", "rank", "shape"), [(32, None, (32, 32)), (64, None, (64, 8)), (64, "full", (64, 64)), (32, 5, (32, 5))])  # fmt: skip
def test_default_rank_is_an_eighth_of_the_width(width, rank, shape):
    found = DependencyCRFEncoder(width, 2, rank=rank)
    (potential, *_) = found.parameters()
    assert potential.shape[-2:] == shape and found.rank == (shape[1] if shape[1] < width else "full")

"""Our layers in the place of ``torch.nn.MultiheadAttention``: same arguments, same state, and where they contain it the same numbers."""

import copy
import itertools
import subprocess
import sys

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import nn

B, L, S, E, H = 3, 5, 7, 8, 2
EXACT = {
    "softmax": (nn.SoftmaxAttention, {}),
    "gaussian mixture": (nn.GaussianMixtureAttention, {}),
    "one linked key": (nn.GaussianKeysAttention, {"num_components": 1, "linked": True}),
    "equal linked keys": (nn.GaussianKeysAttention, {"linked": True, "share": "shift"}),
    "hopfield": (nn.HopfieldAttention, {"learn_beta": True}),
}
ALL = EXACT | {
    "distances": (nn.GaussianMixtureAttention, {"linked": False}),
    "keys": (nn.GaussianKeysAttention, {}),
    "shifted keys": (nn.GaussianKeysAttention, {"share": "shift", "num_components": 3}),
    "hard keys": (nn.GaussianKeysAttention, {"assignment": "hard"}),
    "linear keys": (nn.LinearKeysAttention, {}),
    "adapted": (nn.GaussianMixtureAttention, {"adapt": nn.Adapt()}),
    "hopfield steps": (nn.HopfieldAttention, {"num_steps": 3, "beta": 2.0, "learn_beta": True}),
    "hopfield to tolerance": (nn.HopfieldAttention, {"num_steps": 20, "tol": 1e-10, "beta": 0.5}),
    "sparse hopfield": (nn.HopfieldAttention, {"transformation": "entmax15", "learn_beta": True}),
    "sparse hopfield steps": (nn.HopfieldAttention, {"transformation": "sparsemax", "num_steps": 3, "beta": 2.0}),
}
exact = pytest.mark.parametrize("kind", EXACT.values(), ids=EXACT.keys())
every = pytest.mark.parametrize("kind", ALL.values(), ids=ALL.keys())


def pair(kind, **options):
    """A MultiheadAttention with random weights and biases, and our layer with its state."""
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(E, H, **options)
    for name, parameter in theirs.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter)
    cls, own = kind
    ours = cls(E, H, **options, **own)
    if own.get("share") == "shift" and own.get("linked"):
        torch.nn.init.zeros_(ours.components.shifts)
    assert ours.load_state_dict(theirs.state_dict(), strict=False).unexpected_keys == []
    return theirs, ours


def masks(name, float_masks=False):
    causal = torch.ones(L, S, dtype=torch.bool).triu(1)
    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[1, 4:] = padding[2, :1] = True
    each = torch.rand(B * H, L, S, generator=generator(1)) < 0.3
    each[..., 1] = False
    found = {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": causal},
        "hint": {"attn_mask": causal, "is_causal": True},
        "each head": {"attn_mask": each},
        "both": {"attn_mask": each, "key_padding_mask": padding & ~padding[:, 1:2]},
    }[name]
    if float_masks:
        return {
            k: torch.randn(v.shape, generator=generator(2)).masked_fill(v, -torch.inf) if torch.is_tensor(v) else v
            for k, v in found.items()
        }
    return found


@pytest.mark.pairs
@exact
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "hint", "each head", "both"])
def test_equal_under_every_mask(kind, mask, need_weights):
    theirs, ours = pair(kind, batch_first=True)
    query, key, value = (torch.randn(B, n, E, generator=generator(n)) for n in (L, S, S))
    for float_masks in (False, True):
        if float_masks and mask == "hint":
            continue  # a mask with other numbers than 0 is not the causal one: the hint would be wrong
        options = {"need_weights": need_weights, **masks(mask, float_masks)}
        expected, weights = theirs(query, key, value, **options)
        output, own_weights = ours(query, key, value, **options)
        assert_equal(output, expected)
        if need_weights:
            assert_equal(own_weights, weights)
        else:
            assert own_weights is None


@pytest.mark.pairs
@exact
@pytest.mark.parametrize(("add_bias_kv", "add_zero_attn"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "vdim": 4}])
@pytest.mark.parametrize("bias", [False, True])
def test_equal_under_every_constructor_option(kind, add_bias_kv, add_zero_attn, widths, bias):
    options = {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn, "bias": bias, **widths}
    theirs, ours = pair(kind, **options)
    g = generator(3)
    query, key, value = (
        torch.randn(n, B, w, generator=g) for n, w in ((L, E), (S, widths.get("kdim", E)), (S, widths.get("vdim", E)))
    )
    for average, mask in ((True, "padding"), (False, "causal")):
        expected = theirs(query, key, value, average_attn_weights=average, **masks(mask))
        output = ours(query, key, value, average_attn_weights=average, **masks(mask))
        for mine, other in zip(output, expected, strict=True):
            assert mine.shape == other.shape
            assert_equal(mine, other)
        assert_equal(ours(query, key, value, need_weights=False, **masks(mask))[0], expected[0])


@exact
def test_equal_unbatched(kind):
    theirs, ours = pair(kind)
    query, key, value = (torch.randn(n, E, generator=generator(4)) for n in (L, S, S))
    padding = torch.arange(S) > 4
    for mine, other in zip(ours(query, key, value, padding), theirs(query, key, value, padding), strict=True):
        assert mine.shape == other.shape
        assert_equal(mine, other)


@pytest.mark.parametrize("extra", ["add_bias_kv", "add_zero_attn"])
@pytest.mark.parametrize(
    "name", sorted(ALL.keys() - {"adapted"})
)  # which refuses what such a mask hides from some queries only
def test_causal_without_a_mask_leaves_the_extra_units_to_every_query(name, extra):
    _, ours = pair(ALL[name], batch_first=True, **{extra: True})
    x = torch.randn(B, L, E, generator=generator(5))
    square = torch.ones(L, L, dtype=torch.bool).triu(1)
    for asked, masked in zip(ours(x, x, x, is_causal=True), ours(x, x, x, attn_mask=square), strict=True):
        assert_equal(asked, masked)


@every
def test_causal_without_a_mask_is_the_causal_mask(kind):
    _, ours = pair(kind, batch_first=True)
    x = torch.randn(B, L, E, generator=generator(5))
    square = torch.ones(L, L, dtype=torch.bool).triu(1)
    assert_equal(ours(x, x, x, is_causal=True)[0], ours(x, x, x, attn_mask=square, is_causal=True)[0])
    changed = x.clone()
    changed[:, -1] += 3.0
    for need_weights in (True, False):
        before, after = (ours(y, y, y, is_causal=True, need_weights=need_weights)[0] for y in (x, changed))
        assert_equal(after[:, :-1], before[:, :-1])  # the common shift of keys and queries is rounding
        assert (before[:, -1] - after[:, -1]).abs().max() > 1e-3


def calls(model):
    """How often each attention layer's ``forward`` ran, counted by hooks."""
    counts = []
    for module in model.modules():
        if isinstance(module, nn.Attention):
            module.register_forward_hook(lambda *_: counts.append(1))
    return counts


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")  # torch's own encoder
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_in_a_transformer_encoder(by_hand, train, grad, mask, norm_first):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(
        E, H, 16, 0.0, batch_first=True, norm_first=norm_first, dtype=torch.float32
    )
    theirs = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    ours = copy.deepcopy(theirs)
    if by_hand:
        for block in ours.layers:
            replacement = nn.GaussianMixtureAttention(E, H, batch_first=True, dtype=torch.float32)
            replacement.load_state_dict(block.self_attn.state_dict(), strict=False)
            block.self_attn = replacement
    else:
        nn.swap_attention(ours, nn.GaussianMixtureAttention)
    counts = calls(ours)
    x = torch.randn(B, S, E, generator=generator(6), dtype=torch.float32)
    padding = torch.arange(S) >= torch.tensor([[S], [4], [6]])
    options = {
        "none": {},
        "padding": {"src_key_padding_mask": padding},
        "causal": {"mask": torch.nn.Transformer.generate_square_subsequent_mask(S, dtype=torch.float32)},
    }[mask]
    with torch.set_grad_enabled(grad):
        expected, output = theirs.train(train)(x, **options), ours.train(train)(x, **options)
    kept = ~padding if mask == "padding" else torch.ones_like(padding)
    assert (output - expected)[kept].abs().max() <= 1e-5
    assert len(counts) == 2


@exact
def test_in_a_transformer_decoder(kind):
    torch.manual_seed(2)
    theirs = torch.nn.TransformerDecoderLayer(E, H, 16, 0.0, batch_first=True)
    ours = copy.deepcopy(theirs)
    nn.swap_attention(ours, kind[0], **kind[1])
    for module in ours.modules():
        if hasattr(module, "shifts"):
            torch.nn.init.zeros_(module.shifts)
    target, memory = (torch.randn(B, n, E, generator=generator(7)) for n in (L, S))
    causal = torch.nn.Transformer.generate_square_subsequent_mask(L)
    options = {
        "tgt_mask": causal,
        "tgt_is_causal": True,
        **{"memory_key_padding_mask": masks("padding")["key_padding_mask"]},
    }
    options["memory_key_padding_mask"] = torch.zeros(B, S).masked_fill(options["memory_key_padding_mask"], -torch.inf)
    assert_equal(ours(target, memory, **options), theirs(target, memory, **options))


@every
@pytest.mark.parametrize("need_weights", [True, False])
def test_nobody_to_attend_to_is_zero_and_padding_may_be_anything(kind, need_weights):
    _, ours = pair(kind, batch_first=True)
    x = torch.randn(B, L, E, generator=generator(8))
    padding = torch.zeros(B, L, dtype=torch.bool)
    padding[0] = padding[1, 3:] = True
    padding[2, :2] = True  # causal: the first two see nobody
    garbage = x.clone()
    garbage[padding] = 1e3
    for causal in (False, True):
        options = {"key_padding_mask": padding, "need_weights": need_weights, "is_causal": causal}
        output, weights = ours(x, x, x, **options)
        nobody = padding.cumsum(-1) == torch.arange(1, L + 1) if causal else padding.all(-1, keepdim=True).expand(B, L)
        assert (output[nobody] == 0).all() and (output[~nobody] != 0).any()
        if need_weights:
            assert (weights[nobody] == 0).all()
            assert_equal(weights[~nobody].sum(-1), torch.ones(int((~nobody).sum())))
        assert_equal(ours(garbage, garbage, garbage, **options)[0][~padding], output[~padding])
        gradients = torch.autograd.grad(output.square().sum(), list(ours.parameters()), allow_unused=True)
        assert all(torch.isfinite(g).all() for g in gradients if g is not None)


@every
def test_every_parameter_learns_and_the_state_goes_round(kind):
    _, ours = pair(kind, batch_first=True)
    x = torch.randn(B, L, E, generator=generator(9))
    with torch.no_grad():
        for parameter in ours.parameters():  # equal components would have nothing to learn from each other
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator(13))
    output = ours(x, x, x, need_weights=False)[0]
    gradients = torch.autograd.grad(output.square().sum(), list(ours.parameters()))
    assert all(g.abs().max() > 0 for g in gradients)
    again = kind[0](E, H, batch_first=True, **kind[1])
    again.load_state_dict(ours.state_dict())
    assert_equal(again(x, x, x)[0], ours(x, x, x)[0])


@every
def test_dropout_keeps_the_mean(kind):
    _, ours = pair(kind, batch_first=True, dropout=0.3)
    x = torch.randn(1, L, E, generator=generator(10))
    many = x.expand(2000, L, E)  # each example of the batch is dropped by itself
    with torch.no_grad():
        calm = ours.eval()(x, x, x, need_weights=False)[0]
        assert_equal(ours(x, x, x, need_weights=False)[0], calm)
        ours.train()
        for need_weights in (False, True):
            draws = ours(many, many, many, need_weights=need_weights)[0]
            error = draws.std(0) / 2000**0.5
            assert (error > 0).all()
            # 40 means of 2000 draws each: five standard errors are passed by chance once in 4e4 times
            assert ((draws.mean(0) - calm[0]).abs() <= 5 * error).all()


COMPILED = """
import torch
from probtx_pyro import nn
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(3, 5, 8)
for cls, options in (
    (nn.SoftmaxAttention, {}),
    (nn.GaussianMixtureAttention, {}),
    (nn.GaussianMixtureAttention, {"linked": False}),
    (nn.GaussianKeysAttention, {}),
    (nn.GaussianKeysAttention, {"share": "shift"}),
    (nn.LinearKeysAttention, {}),
    (nn.HopfieldAttention, {"num_steps": 3, "learn_beta": True}),
    (nn.HopfieldAttention, {"num_steps": 3, "transformation": "entmax15"}),
):
    torch._dynamo.reset()
    layer = cls(8, 2, batch_first=True, **options)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    mask = torch.arange(5) > torch.tensor([[4], [2], [3]])
    outputs = [f(x, x, x, mask, need_weights=False, is_causal=True)[0] for f in (layer, compiled)]
    gradients = [torch.autograd.grad(output.square().sum(), list(layer.parameters())) for output in outputs]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-5, options
    assert all((a - b).abs().max() < 1e-4 for a, b in zip(*gradients)), options
layer = nn.HopfieldRetrieval(2, 0.5, num_steps=3, learn_beta=True, batch_first=True)
compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
assert (layer(x, x + 1, None, mask) - compiled(x, x + 1, None, mask)).abs().max() < 1e-5
"""


@pytest.mark.slow
def test_compiles_in_one_graph():
    """In a process of its own: the shape checks of the tests would stand in the compiler's way. Float32, numbers of order 1."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@every
def test_autocast_is_close_to_float32(kind):
    cls, own = kind
    torch.manual_seed(3)
    ours = cls(E, H, batch_first=True, dtype=torch.float32, **own)
    x = torch.randn(B, L, E, generator=generator(12), dtype=torch.float32)
    expected = ours(x, x, x, need_weights=False, is_causal=True)[0]
    with torch.autocast("cpu", torch.bfloat16):
        output = ours(x, x, x, need_weights=False, is_causal=True)[0]
        explicit = ours(x, x, x, is_causal=True)[0]
    # eight roundings to 8 bits in a row (projections, logits, weights, output) on numbers of order 1
    bound = 8 * 2**-8 * max(1.0, float(expected.detach().abs().max()))
    assert output.dtype == torch.bfloat16
    assert (output.float() - expected).abs().max() <= bound and (explicit.float() - expected).abs().max() <= bound
    output.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in ours.parameters())


@pytest.mark.parametrize("kind", [*ALL.values(), (nn.GaussianMixtureAttention, {"map_steps": 2})])
def test_weights_in_half_precision(kind):
    cls, own = kind
    torch.manual_seed(4)
    half = cls(E, H, batch_first=True, dtype=torch.float32, **own).to(torch.bfloat16)
    full = copy.deepcopy(half).to(torch.float64)  # the same rounded weights
    x = torch.randn(B, L, E, generator=generator(14)).to(torch.bfloat16)
    expected = full(*[x.double()] * 3, is_causal=True)[0].detach()
    # eight roundings to 8 bits in a row (projections, logits, weights, output) on numbers of order 1
    bound = 8 * 2**-8 * max(1.0, float(expected.abs().max()))
    for need_weights in (False, True):
        output = half(x, x, x, is_causal=True, need_weights=need_weights)[0]
        assert output.dtype == torch.bfloat16
        assert (output.detach().double() - expected).abs().max() <= bound
    if isinstance(half, nn.GaussianMixtureAttention | nn.GaussianKeysAttention):
        model, queries = half.posterior_model(x, x, x)
        assert torch.isfinite(model.log_evidence(queries)).all()


X = torch.zeros(B, L, E, dtype=torch.float64)
BAD = {
    "width": (lambda: nn.SoftmaxAttention(7, 2), r"embed_dim 7 must be positive and divisible by num_heads 2; or give head_dim"),
    "dropout": (lambda: nn.SoftmaxAttention(8, 2, dropout=1.0), r"dropout must be at least 0 and less than 1"),
    "share": (lambda: nn.GaussianKeysAttention(8, 2, share="all"), r"share must be one of 'shift', None"),
    "assignment": (lambda: nn.GaussianKeysAttention(8, 2, assignment="warm"), r"assignment must be one of soft, hard"),
    "components": (lambda: nn.GaussianKeysAttention(8, 2, num_components=0), r"num_components must be 1 or more"),
    "adapted": (lambda: nn.GaussianMixtureAttention(8, 2, adapt=nn.Adapt(1, ("kees",))), r"adapt: no parameter 'kees'; choose from keys"),
    "steps": (lambda: nn.HopfieldAttention(8, 2, num_steps=0), r"num_steps must be 1 or more, not 0"),
    "beta": (lambda: nn.HopfieldAttention(8, 2, beta=-1.0), r"beta must be positive and finite, not -1.0"),
    "transformation": (lambda: nn.HopfieldAttention(8, 2, transformation="hardmax"), r"transformation must be one of softmax, entmax15, sparsemax, not 'hardmax'"),
    "features": (lambda: nn.SoftmaxAttention(4, 2, batch_first=True)(X, X, X), r"query has shape \(3, 5, 8\).*4 features"),
    "lengths": (lambda: nn.SoftmaxAttention(8, 2, batch_first=True)(X, X, X[:, :2]), r"disagree on batch or length"),
    "mask shape": (lambda: nn.SoftmaxAttention(8, 2, batch_first=True)(X, X, X, attn_mask=torch.zeros(4, 4)), r"attn_mask has shape \(4, 4\) but must have shape \(5, 5\) or \(6, 5, 5\)"),
    "padding shape": (lambda: nn.SoftmaxAttention(8, 2, batch_first=True)(X, X, X, torch.zeros(5, 3)), r"key_padding_mask has shape \(5, 3\) but must have shape \(3, 5\)"),
    "mask type": (lambda: nn.SoftmaxAttention(8, 2, batch_first=True)(X, X, X, attn_mask=torch.zeros(5, 5, dtype=torch.long)), r"attn_mask must be boolean \(True forbids\) or floating"),
    "adaptation under a mask": (lambda: nn.GaussianMixtureAttention(8, 2, batch_first=True, adapt=nn.Adapt())(X, X, X, attn_mask=torch.ones(5, 5).triu(1).bool()), r"every query moves the units; use is_causal=True"),
    "prior on nothing": (lambda: nn.log_prior_density(nn.SoftmaxAttention(8, 2, priors={"keys": torch.distributions.Normal(0.0, 1.0)})), r"priors: SoftmaxAttention has no 'keys'; it has none"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_error_of_bad_input_names_the_argument(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)

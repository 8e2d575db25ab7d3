"""Where there is no example, no query, no unit or nobody to attend to; and masks of every dtype, per example and exported."""

import copy
import itertools
import subprocess
import sys

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.func import functional_call, grad, vmap

from probtx_pyro import inspection, models, nn, ops
from probtx_pyro.ops.attention import _half_factor, key_factor

E, H = 8, 2
LAYERS = {
    "softmax": (nn.SoftmaxAttention, {}),
    "gaussian": (nn.GaussianMixtureAttention, {}),
    "distances": (nn.GaussianMixtureAttention, {"linked": False}),
    "metric": (nn.GaussianMixtureAttention, {"metric": "full", "shift": True}),
    "keys": (nn.GaussianKeysAttention, {}),
    "hard keys": (nn.GaussianKeysAttention, {"assignment": "hard"}),
    "linear": (nn.LinearKeysAttention, {}),
    "hopfield": (nn.HopfieldAttention, {"num_steps": 3, "beta": 1.0, "learn_beta": True}),
    "hopfield to tolerance": (nn.HopfieldAttention, {"num_steps": 3, "tol": 1e-4}),
    "sparse hopfield": (nn.HopfieldAttention, {"num_steps": 2, "transformation": "entmax15"}),
    "map": (nn.GaussianMixtureAttention, {"map_steps": 1}),
    "adapted": (nn.GaussianMixtureAttention, {"adapt": nn.Adapt()}),
}
layers = pytest.mark.parametrize("name", LAYERS)
PLAIN = sorted(LAYERS.keys() - {"adapted", "map"})  # without a model that looks at numbers


def make(name, **options):
    torch.manual_seed(0)
    kind, own = LAYERS[name]
    layer = kind(E, H, batch_first=True, **options, **own)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def masks_of(batch, length, units):
    """Masks that hide nothing, by kind."""
    pad, rows = torch.zeros(batch, units), torch.zeros(length, units)
    return {
        "none": {}, "causal": {"is_causal": True}, "boolean padding": {"key_padding_mask": pad.bool()}, "padding": {"key_padding_mask": pad},
        "boolean rows": {"attn_mask": rows.bool()}, "rows": {"attn_mask": rows}, "rows of heads": {"attn_mask": rows.expand(batch * H, -1, -1)},
    }  # fmt: skip


SHAPES = [*itertools.product((0, 2), repeat=3), (1, 1, 1)]


@pytest.mark.parametrize(("name", "shape"), [(name, x) for name in LAYERS for x in SHAPES if 0 in x or name in PLAIN], ids=str)  # fmt: skip
def test_a_size_of_zero_is_a_size_like_any_other(name, shape):
    batch, length, units = shape
    for need_weights in (False, True):
        layer = make(name, dropout=0.1)
        for number, how in enumerate(masks_of(*shape).values()):
            if (number + need_weights + sum(shape) // 2) % 2:  # every mask at every shape, with weights or without
                continue
            layer.train((number // 2) % 2 == 0)
            query, memory = (torch.randn(batch, n, E, requires_grad=True) for n in (length, units))
            output, weights = layer(query, memory, memory, need_weights=need_weights, **how)
            assert output.shape == (batch, length, E) and output.isfinite().all()
            assert units or (output == 0).all()
            assert weights is None if not need_weights else weights.shape == (batch, length, units)
            output.square().sum().backward()
            learned = dict(layer.named_parameters())
            assert all(x.grad.isfinite().all() for x in (query, memory))
            assert all(x.grad is None or x.grad.isfinite().all() for x in learned.values())


@pytest.mark.parametrize("need_weights", [False, True])
def test_shapes_of_an_empty_batch_are_those_of_torch(need_weights):
    theirs, x = torch.nn.MultiheadAttention(E, H, batch_first=True), torch.zeros(0, 5, E)
    expected = theirs(x, x, x, need_weights=need_weights)
    for name in LAYERS:
        for mine, other in zip(make(name)(x, x, x, need_weights=need_weights), expected, strict=True):
            assert mine is other is None or mine.shape == other.shape


@pytest.mark.parametrize("extra", [{"add_bias_kv": True}, {"add_zero_attn": True}])
@layers
def test_an_extra_unit_answers_where_there_is_no_other(name, extra):
    layer, query, memory = make(name, **extra), torch.randn(2, 3, E), torch.randn(2, 0, E)
    hidden = torch.ones(2, 4, dtype=torch.bool)
    for need_weights in (False, True):
        output = layer(query, memory, memory, need_weights=need_weights)[0]
        assert_equal(output, layer(query, *[torch.randn(2, 4, E)] * 2, hidden, need_weights)[0])
        assert (output != 0).all()


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)], ids=str)
def test_retrieval_without_states_or_patterns(sizes):
    batch, states, patterns = sizes
    for how in ({}, {"num_steps": 3}, {"transformation": "sparsemax"}):
        layer = nn.HopfieldRetrieval(2, 0.5, batch_first=True, learn_beta=True, **how)
        found = layer(torch.randn(batch, states, 6), torch.randn(batch, patterns, 6), torch.randn(batch, patterns, 4))
        assert found.shape == (batch, states, 4) and (patterns > 0 or (found == 0).all())
        found.sum().backward()


@pytest.mark.parametrize("name", ["softmax", "keys", "linear"])
def test_a_decoder_reads_a_source_without_words(name):
    layer, query = make(name), torch.randn(2, 3, E)
    assert (layer.recall(query, layer.remember(torch.randn(2, 0, E))) == 0).all()


@pytest.mark.parametrize(("components", "gradients"), [(1, True), (2, False)])
@pytest.mark.parametrize("sizes", [x for x in itertools.product((0, 2), repeat=5) if 0 in x], ids=str)
def test_fused_attention_of_nothing(sizes, components, gradients):
    batch, queries, units, width, answers = sizes
    q, k, v = (
        torch.randn(batch, *shape, requires_grad=gradients)
        for shape in ((queries, width), (units * components, width), (units, answers))
    )
    for several, causal, rows in itertools.product((1, units * components), (False, True), (None, 1, queries)):
        factor = key_factor(q, k, torch.ones(batch, several))
        prior = None if rows is None else torch.zeros(rows, units)
        output = ops.attend(factor, v, prior, components=components, causal=causal)
        assert output.shape == (batch, queries, answers)
        assert output.isfinite().all() and (units > 0 or (output == 0).all())
        if gradients:
            assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), (q, k, v)))
    assert ops.gaussian_attention(q, k, v, torch.tensor(1.0), components=components).shape == output.shape


@pytest.mark.parametrize("sizes", [(0, 3), (2, 0), (0, 0)], ids=str)
def test_a_mixture_of_keys_is_asked_nothing(sizes):
    batch, queries = sizes
    keys, values = torch.randn(batch, 4, 2, 5, requires_grad=True), torch.randn(batch, 4, 3)
    found = models.GaussianKeys(keys, values).expected_outputs(torch.randn(batch, queries, 5))
    assert found.shape == (batch, queries, 3)
    found.sum().backward()


MASKS = [(torch.bool, False), (torch.bool, True), (torch.float16, False), (torch.bfloat16, True), (torch.float32, False), (torch.float64, True)]  # fmt: skip


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no batching rule for its fused kernel
@pytest.mark.parametrize(("dtype", "need_weights"), MASKS, ids=str)
@pytest.mark.parametrize("mask", ["key_padding_mask", "attn_mask"])
@pytest.mark.parametrize("name", PLAIN)
def test_gradients_of_each_example_under_masks_of_every_dtype(name, mask, dtype, need_weights):
    layer, x = make(name), torch.randn(3, 4, E, generator=generator(1))
    hidden = torch.rand((3, 4, 4) if mask == "attn_mask" else (3, 4), generator=generator(2)) < 0.4
    hidden[..., 0] = False
    given = hidden if dtype == torch.bool else torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
    parameters = {name: x.detach() for name, x in layer.named_parameters()}

    def loss(parameters, x, given):
        own = given if mask == "attn_mask" else given.unsqueeze(0)
        inputs = x.unsqueeze(0)
        how = {mask: own, "need_weights": need_weights}
        return functional_call(layer, parameters, (inputs, inputs, inputs), how)[0].square().sum()

    # sums over 4 queries of 4 units in 2 heads, and their projections, whose terms are as large as gradients get; each of the
    # two further steps of a Hopfield layer multiplies an error by up to a quarter of its largest logit, 45 here
    operations = 1024 * (11**2 if name.startswith("hopfield") else 1)
    each = vmap(grad(loss), (None, 0, 0))(parameters, x, given)
    for i in range(3):
        every = grad(loss)(parameters, x[i], given[i])
        for key, one in every.items():
            assert_equal(each[key][i], one, *every.values(), operations=operations)


@pytest.mark.pairs
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", ["attn_mask", "key_padding_mask"])
@pytest.mark.parametrize("name", PLAIN)
def test_nan_in_a_mask_is_nan_in_the_whole_row_and_in_no_other(name, mask, need_weights):
    layer, x = make(name), torch.randn(1, 4, E)
    given = torch.zeros((4, 4) if mask == "attn_mask" else (1, 4))
    given[0, 2] = torch.nan
    output, weights = layer(x, x, x, need_weights=need_weights, **{mask: given})
    touched = torch.arange(4) < (1 if mask == "attn_mask" else 4)
    assert output[0, touched].isnan().all() and output[0, ~touched].isfinite().all()
    if need_weights:
        assert weights[0, touched].isnan().all() and weights[0, ~touched].isfinite().all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@layers
def test_a_nested_tensor_keeps_its_layout(name, layout):
    layer = make(name)
    rows = [torch.randn(n, E, generator=generator(n)) for n in (3, 1, 5)]
    nested = torch.nested.nested_tensor(rows, layout=layout)
    output = layer(nested, nested, nested, need_weights=False)[0]
    assert output.layout == layout
    for row, one, added in zip(rows, output.unbind(), (nested + output).unbind(), strict=True):
        assert_equal(one, layer(*[row.unsqueeze(0)] * 3, need_weights=False)[0][0], operations=1024)
        assert_equal(added, row + one)


OPTIONS = {
    "metric": (nn.HopfieldAttention, "HopfieldAttention has no option 'metric'; GaussianMixtureAttention has$"),
    "num_components": (nn.GaussianMixtureAttention, "GaussianMixtureAttention has no option 'num_components'; GaussianKeysAttention and LinearKeysAttention have$"),
    "beta": (nn.SoftmaxAttention, "SoftmaxAttention has no option 'beta'; HopfieldAttention has$"),
    "heads": (nn.SoftmaxAttention, "SoftmaxAttention has no option 'heads'; it has head_dim, priors$"),
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_is_not_there_is_refused_with_the_layer_that_has_it(option):
    kind, message = OPTIONS[option]
    with pytest.raises(TypeError, match=message):
        kind(E, H, **{option: 3})
    with pytest.raises(TypeError, match=message):
        nn.swap_attention(torch.nn.TransformerEncoderLayer(E, H), kind, **{option: 3})


def test_an_option_of_a_layer_of_your_own_is_its_own():
    class Mine(nn.SoftmaxAttention):
        def __init__(self, *args, colour="red", **rest):
            super().__init__(*args, **rest)

    assert isinstance(copy.deepcopy(Mine(E, H, colour="blue")), Mine)


class Eager(torch.nn.Module):
    """A model that writes its attention out, and can be told not to, as those of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.how = "eager"

    def set_attn_implementation(self, how):
        self.how = how

    def forward(self, x):
        q = x.unsqueeze(1)
        if self.how == "sdpa":
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return (q @ q.mT).softmax(-1) @ q


def test_a_model_that_attends_eagerly_is_refused_with_its_switch():
    model, x = Eager(), torch.randn(1, 3, E)
    with pytest.raises(ValueError, match=r'call model.set_attn_implementation\("sdpa"\) first'):
        inspection.capture(torch.nn.Sequential(model), x)
    model.set_attn_implementation("sdpa")
    assert len(inspection.capture(torch.nn.Sequential(model), x)) == 1


def error_in_half(build, scale, autocast, need_weights, seeds=12):
    """Root mean square error of bfloat16 against the same layer in float64, in units of the root mean square of its output."""
    wrong = size = 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        layer, x = build().float().eval(), scale * torch.randn(3, 10, 16, dtype=torch.float32)
        if not autocast:
            layer, x = layer.bfloat16(), x.bfloat16()
        exact = copy.deepcopy(layer).double()(*[x.double()] * 3, need_weights=need_weights)[0]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = layer(x, x, x, need_weights=need_weights)[0]
        wrong, size = wrong + (output.double() - exact).square().sum(), size + exact.square().sum()
    return float((wrong / size).sqrt())


def unequal_precisions():
    layer = nn.GaussianKeysAttention(16, 2, batch_first=True)
    torch.nn.init.normal_(layer.log_key_precision, -1.5, 0.5)
    return layer


HALVES = {
    "softmax": lambda: nn.SoftmaxAttention(16, 2, batch_first=True),
    "gaussian": lambda: nn.GaussianMixtureAttention(16, 2, batch_first=True),
    "keys": lambda: nn.GaussianKeysAttention(16, 2, batch_first=True),
    "unequal keys": unequal_precisions,
    "hard keys": lambda: nn.GaussianKeysAttention(16, 2, batch_first=True, assignment="hard"),
    "hopfield": lambda: nn.HopfieldAttention(16, 2, batch_first=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("scale", [1, 5, 20, 60])
def test_bfloat16_is_as_exact_as_torchs_own_attention(scale, autocast):
    """Of the root mean square error that torch has, at most 1.41 x 1.41 x 1.5.

    - Logits ``-α|q-k|²/2`` move by ``α (q-k)·dk`` where dot products move by ``α q·dk``, and by ``α (k-k')·dq`` as those do. With
      ``|q-k|² = 2|q|²`` these are variances 2 + 2 for 1 + 2; ``αq`` is rounded once more, where torch scales afterwards, 2 + 4 in all: 1.41.
    - Twice the keys let twice as many tie, so that twice as many choices turn: 1.41.
    - Large logits choose one unit, and an error is a choice that turned. The errors of twelve draws are known to a factor of 1.5.
    """
    with torch.no_grad():
        theirs = error_in_half(
            lambda: torch.nn.MultiheadAttention(16, 2, batch_first=True), scale, autocast, need_weights=False
        )
        for name, build in HALVES.items():
            for need_weights in (False, True):
                assert error_in_half(build, scale, autocast, need_weights) < 1.41 * 1.41 * 1.5 * theirs, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.1, 1, 20])
def test_unequal_precisions_in_half_are_squares_of_keys_off_by_their_last_bit(scale, dtype):
    """Every column is held in ``dtype``, and the logit is ``-½ α_j |q - k'_j|²`` with ``α_j k'_j`` rounded once, in exact float64.

    ``α`` and ``½|q|²`` are sums of two columns each, so off by 2^-2b of b bits; what the product leaves out, the second times the
    second, is as small. The bias has 24 bits. Four such parts, twice for the sums.
    """
    g = generator(9)
    queries, keys = ((scale * torch.randn(n, 8, generator=g)).to(dtype) for n in (7, 5))
    precision = (0.1 + torch.rand(5, generator=g)).to(torch.float32)
    factor = _half_factor(queries, keys, precision)
    columns = [x.to(dtype).double() for x in (factor.statistics, factor.parameters)]
    found = columns[0] @ columns[1].mT + factor.bias.double()
    own = (precision.unsqueeze(-1) * keys.float()).to(dtype).double() / precision.double().unsqueeze(-1)
    away = (queries.double().unsqueeze(-2) - own).square().sum(-1)
    exact = 4 * precision.double().log() - 0.5 * precision.double() * away
    sizes = 0.5 * precision.double() * (queries.double().square().sum(-1, keepdim=True) + own.square().sum(-1))
    bits = {torch.bfloat16: 8, torch.float16: 11}[dtype]
    assert ((found - exact).abs() <= 8 * (sizes * 2.0 ** (-2 * bits) + (sizes + 4) * 2.0**-24)).all()


EXPORTED = """
import sys
import torch
from torch.export import Dim, export
from probtx_pyro import nn
torch.set_num_threads(1)
torch.manual_seed(0)
layer = getattr(nn, sys.argv[1])(8, 2, batch_first=True, **eval(sys.argv[2])).eval()
class Model(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.layer, self.how = layer, how
    def forward(self, x, padding=None, rows=None):
        return self.layer(x, x, x, padding, attn_mask=rows, **self.how)
b, t = Dim("b"), Dim("t")
def inputs(batch, length, masks):
    padding = torch.arange(length) >= torch.randint(1, length, (batch, 1))
    given = {"x": torch.randn(batch, length, 8), "padding": padding, "rows": torch.rand(length, length) < 0.3}
    return {name: given[name] for name in ("x", *masks)}
lengths = {"x": {0: b, 1: t}, "padding": {0: b, 1: t}, "rows": {0: t, 1: t}}
for strict, masks, how in (
    (True, (), {"need_weights": True}), (False, (), {"need_weights": False, "is_causal": True}), (True, ("padding", "rows"), {"need_weights": False}),
):
    model, given = Model(how), inputs(3, 10, masks)
    shapes = {name: lengths[name] for name in given}
    program = export(model, (), given, dynamic_shapes=shapes, strict=strict == (sys.argv[3] == "True")).module()
    for size in ((3, 10), (5, 7), (2, 300), (2, 2100)):
        given = inputs(*size, masks)
        for mine, other in zip(program(**given), model(**given)):
            assert mine is other is None or (mine - other).abs().max() < 1e-5, (masks, how, size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_export_with_dynamic_batch_and_length(name):
    """In a process of its own: the shape checks of the tests would stand in the way. Float32, numbers of order 1.

    Of two layers one is exported strictly where the other is not, so that every mask is met by both ways.
    """
    kind, options = LAYERS[name]
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        EXPORTED,
        kind.__name__,
        repr(options),
        str(PLAIN.index(name) % 2 == 0),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

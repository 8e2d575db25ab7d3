"""The contract that every formulation keeps: its closed forms. A new formulation is one more row of `formulations.ROWS`.

The closed form is the oracle; attention is the gradient of the log normaliser; a batch is the stack of its singles; a masked unit is
an absent unit; permuting units permutes attention; the invariance that the row names; float32 is close to float64; gradcheck;
fused = explicit; the named special case is scaled dot-product attention. Programs and verbs have files of their own.
"""

import inspect
import math

import pytest
import torch
from formulations import MEMORIES, ROWS, chosen, single
from strategies import generator
from tolerances import assert_equal
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro import models

pytestmark = pytest.mark.usefixtures("device")

METHODS = ("expected_outputs", "attention")
PARTS = {0: "no data", 1: "queries", 2: "answers", 3: "some answers"}


def rows(where=lambda row: True):
    """The rows that have a capability."""
    kept = {name: row for name, row in ROWS.items() if where(row)}
    return pytest.mark.parametrize("row", kept.values(), ids=kept)


def rows_and_data(where=lambda row: True):
    """The same with each number of data that makes a problem."""
    kept = [(row, n, f"{PARTS[n]}-{name}") for name, row in ROWS.items() if where(row) for n in row.parts]
    return pytest.mark.parametrize(("row", "parts"), [pytest.param(row, n, id=name) for row, n, name in kept])


def has_units(row):
    return row.given is not None


@rows_and_data(has_units)
def test_closed_form_is_the_oracle(row, parts, device):
    formulation, *everything = row.draw(generator(1))
    args = everything[:parts]
    truth, moved, asked = row.truth(formulation, *args), formulation.to(device), [x.to(device) for x in args]
    if row.dense(parts):
        assert_equal(moved.log_evidence(*asked).cpu(), torch.tensor(truth.evidence))
    else:
        assert_equal(row.evidence(formulation, *args), torch.tensor(truth.evidence).sum(), operations=256)
    assert_equal(moved.attention(*asked).cpu(), torch.tensor(truth.attention))
    assert_equal(moved.expected_outputs(asked[0]).cpu(), torch.tensor(truth.outputs))


@rows(lambda row: row.density)
def test_attention_is_the_gradient_of_the_log_normaliser(row):
    formulation, *args = row.draw(generator(5))
    args = args[: max(row.parts)]
    logits = formulation.log_joint(*args).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(logits.flatten(1).logsumexp(-1).sum(), logits)
    attention = formulation.attention(*args)
    assert_equal(attention, gradient.reshape(*attention.shape, -1).sum(-1))  # of the components of a unit, their sum


@rows_and_data()
def test_batch_is_the_stack_of_its_singles(row, parts, device):
    formulation, *everything = row.draw(generator(6), batch=(2, 3))
    formulation, args = formulation.to(device), [x.to(device) for x in everything[:parts]]
    assert formulation.batch_shape == (2, 3)
    for index in ((0, 0), (1, 2)):
        alone, own = single(formulation, index), [x[index] for x in args]
        assert alone.batch_shape == ()
        assert_equal(formulation.attention(*args)[index], alone.attention(*own))
        assert_equal(formulation.expected_outputs(*args[:1])[index], alone.expected_outputs(*own[:1]))
        if row.dense(parts):
            assert_equal(formulation.log_evidence(*args)[index], alone.log_evidence(*own))


@rows(lambda row: row.masked)
def test_masked_unit_is_an_absent_unit(row, device):
    formulation, *args = row.draw(generator(7))
    args, keep = args[: max(row.parts)], [0, 1, 3]
    masked, absent = row.masked(formulation, 2), chosen(formulation, keep)
    assert_equal(masked.attention(*args)[..., keep], absent.attention(*args))
    assert (masked.attention(*args)[..., 2] == 0).all()
    found = masked.to(device).expected_outputs(args[0].to(device)).cpu()
    assert_equal(found, absent.expected_outputs(args[0]))
    if row.density:
        assert_equal(masked.log_evidence(*args), absent.log_evidence(*args))


def test_masked_word_is_an_absent_word():
    (crf,) = ROWS["dependency CRF"].draw(generator(7), queries=4)
    masked = crf.replace(mask=torch.tensor([True, True, True, False]))
    absent = crf.replace(unary=crf.unary[:3])
    assert_equal(masked.attention()[:, :3, :3], absent.attention(), operations=256)
    assert_equal(masked.expected_outputs()[:3], absent.expected_outputs(), operations=256)
    assert (masked.attention()[:, 3] == 0).all() and (masked.attention()[..., 3] == 0).all()
    assert_equal(masked.log_partition(), absent.log_partition())


@rows(has_units)
def test_permuting_units_permutes_attention(row):
    formulation, *args = row.draw(generator(8))
    args, order = args[: max(row.parts)], [2, 0, 3, 1]
    permuted = chosen(formulation, order)
    assert_equal(permuted.attention(*args), formulation.attention(*args)[..., order])
    assert_equal(permuted.expected_outputs(args[0]), formulation.expected_outputs(args[0]))


def test_permuting_labels_permutes_the_words_in_context():
    (crf,) = ROWS["dependency CRF"].draw(generator(8), units=3)
    order = torch.tensor([2, 0, 1])
    permuted = crf.replace(unary=crf.unary[:, order], ternary=crf.ternary[:, :, order][:, :, :, order])
    assert_equal(permuted.attention(), crf.attention(), operations=256)
    assert_equal(permuted.expected_outputs(), crf.expected_outputs()[:, order], operations=256)
    assert_equal(permuted.log_partition(), crf.log_partition())


@rows(lambda row: row.components)
def test_permuting_components_changes_nothing(row):
    mixture, *args = row.draw(generator(8), components=3)
    order = torch.tensor([2, 0, 1])
    weights = mixture.component_log_weights().exp()[..., order]
    precision = mixture.key_precision.expand(mixture.unit_shape)[..., order]
    permuted = mixture.replace(keys=mixture.keys[:, order], key_precision=precision, component_weights=weights)
    assert_equal(permuted.attention(*args), mixture.attention(*args))
    assert_equal(permuted.log_evidence(*args), mixture.log_evidence(*args))
    assert_equal(permuted.responsibilities(*args), mixture.responsibilities(*args)[..., order])


@rows(lambda row: row.invariance)
def test_the_named_invariance_leaves_attention_as_it_is(row):
    formulation, *args = row.draw(generator(9))
    args = args[: max(row.parts)]
    moved, *moved_args = row.invariance(formulation, *args)
    # the inputs themselves lose digits at 1000: eps * 1000 each, squared distances of order 10 lose 20 times that
    scale = torch.tensor(row.scale)
    assert_equal(moved.attention(*moved_args), formulation.attention(*args), scale)
    if formulation.axes("expected_outputs")[-1] != "feature":  # features move with their queries
        assert_equal(moved.expected_outputs(*moved_args[:1]), formulation.expected_outputs(*args[:1]), scale)


FAR = [pytest.param(row, far, id=f"{'far' if far else 'near'}-{name}") for name, row in ROWS.items() for far in (False, True)
       if not far or row.scale > 1000]  # fmt: skip


@pytest.mark.parametrize(("row", "far"), FAR)
def test_float32_is_close_to_float64(row, far, device):
    formulation, *args = row.draw(generator(10))
    args = args[: max(row.parts)][:1]
    formulation, *args = row.invariance(formulation, *args) if far else (formulation, *args)
    low, asked = formulation.to(device, torch.float32), [x.to(device, torch.float32) for x in args]
    # the same float32 inputs: what is measured is our arithmetic, not the inputs' rounding
    high, same = low.to(torch.float64), [x.double() for x in asked]
    middle = 1000.0 if far and formulation.axes("expected_outputs")[-1] == "feature" else 1.0
    assert (low.expected_outputs(*asked).double() - high.expected_outputs(*same)).abs().max() < 1e-4 * middle
    assert (low.attention(*asked).double() - high.attention(*same)).abs().max() < 1e-4


@pytest.mark.slow
@rows()
def test_gradients_are_finite_differences(row):
    formulation, *everything = row.draw(generator(11))
    args = everything[: max(row.parts)]
    kinds = {row.field or name: row.support for name, row in formulation.PARAMETERS.items()}
    constrained = (torch.distributions.constraints.simplex, torch.distributions.constraints.positive_definite)
    labels = getattr(formulation, "answer_probs", None) is not None
    names = [name for name, x in vars(formulation).items() if isinstance(x, torch.Tensor) and name in kinds]
    names = [name for name in names if not any(kinds[name] is c for c in constrained) and name != "variance"]
    names = [name for name in names if name != "value_precision" or not labels]
    inputs = [getattr(formulation, name).clone().requires_grad_() for name in names]
    queries = [x.clone().requires_grad_() for x in args[:1]]
    few = {} if row.given else {"num_steps": 3, "tol": None}
    options = {m: few if "num_steps" in inspect.signature(getattr(formulation, m)).parameters else {} for m in METHODS}

    def of(method, data, **named):
        def function(*tensors):
            made = formulation.with_parameters(dict(zip(names, tensors, strict=False)))
            return getattr(made, method)(*tensors[len(names) :], *data, **named)

        return function

    both = (*inputs, *queries)
    assert torch.autograd.gradcheck(
        of("expected_outputs", (), **options["expected_outputs"]), both, check_undefined_grad=False
    )
    assert torch.autograd.gradcheck(of("attention", args[1:], **options["attention"]), both, check_undefined_grad=False)
    if hasattr(formulation, "explicit_outputs"):

        def explicit(*tensors):
            return of("explicit_outputs", ())(*tensors)[0]

        assert torch.autograd.gradgradcheck(explicit, both)
    if row.density:
        assert torch.autograd.gradcheck(of("log_evidence", args[1:]), both, check_undefined_grad=False)


@rows(lambda row: row.answers)
@pytest.mark.parametrize("train", [False, True])
def test_fused_is_explicit(row, train, device):
    formulation, queries, *_ = row.draw(generator(12), batch=(2, 3), features=4, answers=7)
    formulation, queries = formulation.to(device), queries.to(device).requires_grad_(train)
    weights = formulation.attention(queries)
    output = weights @ row.answers(formulation)
    assert_equal(formulation.expected_outputs(queries), output)
    assert_equal(weights.sum(-1), torch.ones_like(weights[..., 0]))
    if hasattr(formulation, "explicit_outputs"):
        explicit, own, lse = formulation.explicit_outputs(queries)
        assert_equal(explicit, output)
        assert_equal(own, weights)
        assert_equal(lse, formulation.log_evidence(queries))


@pytest.mark.pairs
@pytest.mark.parametrize("mask", [None, "causal", "padding", "both"])
@pytest.mark.parametrize(
    ("dtype", "size", "bound"),
    [(torch.float64, (64, 700), 1e-12), (torch.float32, (8, 50), 1e-6), (torch.float32, (64, 700), 4e-6)],
)
@pytest.mark.parametrize("train", [False, True])
def test_linked_limit_is_scaled_dot_product_attention(mask, dtype, size, bound, train, device):
    features, units = size
    g = generator(13)
    queries, keys, values = (torch.randn(2, 3, units, features, generator=g, dtype=dtype).to(device) for _ in range(3))
    allowed = torch.ones(units, units, dtype=torch.bool)
    if mask in ("causal", "both"):
        allowed = allowed.tril()
    if mask in ("padding", "both"):
        allowed = allowed & (torch.arange(units) < units - units // 3)
    weights = (
        None if mask is None else torch.zeros(units, units, dtype=dtype).masked_fill(~allowed, -math.inf).to(device)
    )
    mixture = models.GaussianMixture.linked(keys.requires_grad_(train), values, features**-0.5, 0.0, log_prior=weights)
    reference = scaled_dot_product_attention(
        queries, keys, values, attn_mask=None if mask is None else allowed.to(device)
    )
    assert (mixture.expected_outputs(queries) - reference).abs().max() <= bound
    assert (mixture.map_outputs(queries) - reference).abs().max() <= bound


@pytest.mark.parametrize("train", [False, True])
def test_one_key_of_unit_norm_is_scaled_dot_product_attention(train, device):
    """MGK eq. 2: R = 1, unit-norm queries and keys, one σ²: softmax attention with scale 1/σ²."""
    g = generator(14)
    queries, keys, values = (torch.randn(2, 3, 40, 16, generator=g).to(device) for _ in range(3))
    queries, keys = (torch.nn.functional.normalize(x, dim=-1) for x in (queries, keys))
    model = models.GaussianKeys(keys.unsqueeze(-2).requires_grad_(train), values, key_precision=1 / 0.3)
    reference = scaled_dot_product_attention(queries, keys, values, scale=1 / 0.3)
    assert_equal(model.expected_outputs(queries), reference)
    assert_equal(model.expected_outputs(queries, "hard"), reference)
    assert_equal(model.attention(queries), (queries @ keys.mT / 0.3).softmax(-1))


@pytest.mark.parametrize("causal", [False, True])
def test_linked_with_one_key_is_scaled_dot_product_attention(causal, device):
    queries, keys, values = (torch.randn(2, 3, 30, 8, generator=generator(15 + i)).to(device) for i in range(3))
    allowed = torch.ones(30, 30, dtype=torch.bool).tril()
    mask = torch.zeros(30, 30).masked_fill(~allowed, -math.inf).to(device) if causal else None
    model = models.GaussianKeys.linked(keys.unsqueeze(-2), values, 8**-0.5, log_prior=mask)
    assert_equal(model.expected_outputs(queries), scaled_dot_product_attention(queries, keys, values, is_causal=causal))


SHARP = ("key_precision", "value_precision", "beta", "gamma", "scale")  # what multiplies squares or products


@pytest.mark.pairs
@pytest.mark.parametrize("sharp", [1.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (1e4, 1e10)), 1e14])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@rows(lambda row: row.density)
def test_a_tensor_with_leading_axes_of_its_own_makes_a_stack_of_problems(row, dtype, sharp, device):
    """As in chains, which differ in what has a prior alone; at every scale, where other ways to compute begin."""
    drawn, *data = row.draw(generator(17))
    data = [x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in data[: max(row.parts)]]
    formulation = drawn.to(device, dtype)
    tensors = {field: x for field, x in vars(formulation).items() if isinstance(x, torch.Tensor)}
    formulation = formulation.with_parameters({field: sharp * tensors[field] for field in SHARP if field in tensors})
    ranks = {of.field or name: len(formulation.axes(name)) for name, of in formulation.PARAMETERS.items()}
    observations = formulation.observations(formulation.bind(*data))
    for field in tensors:
        x = getattr(formulation, field)
        both = [x, 1.5 * x if x.is_floating_point() else x]
        stack = torch.stack(both).reshape(2, *(1,) * (ranks.get(field, x.dim()) - x.dim()), *x.shape)
        for way in (
            lambda f: f.log_density(*observations),
            lambda f: f.attention(*data),
            lambda f: f.expected_outputs(data[0]),
        ):
            singles = torch.stack([way(formulation.with_parameters({field: y})) for y in both])
            found = way(formulation.with_parameters({field: stack}))
            assert_equal(found.expand(singles.shape), singles, operations=256)


@rows(lambda row: row.density)
def test_gradients_by_torch_func_where_queries_come_in_pieces(row, monkeypatch):
    """Inside ``torch.func.grad`` no piece can be made again in the backward pass."""
    monkeypatch.setattr("probtx_pyro.ops._chunks.CHUNK_ELEMENTS", 8)
    formulation, *data = row.draw(generator(17))
    observations = formulation.observations(formulation.bind(*data[: max(row.parts)]))
    for field, x in vars(formulation).items():
        if isinstance(x, torch.Tensor) and x.is_floating_point() and field in formulation.parameters():

            def total(x, field=field):
                return formulation.with_parameters({field: x}).log_density(*observations).sum()

            point = x.detach().clone().requires_grad_()
            if (density := total(point)).requires_grad:  # some say nothing of these data
                (expected,) = torch.autograd.grad(density, point)
                assert_equal(torch.func.grad(total)(x), expected, density, operations=1024)


DRAWS = {name: row.draw for name, row in ROWS.items()} | MEMORIES
NO_TENSOR = {"lists": torch.Tensor.tolist, "arrays": torch.Tensor.numpy, "a text": lambda x: "1"}


@pytest.mark.parametrize("given", NO_TENSOR.values(), ids=NO_TENSOR)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_is_no_tensor_is_taken_for_its_numbers_or_refused_by_name(draw, given):
    formulation, *data = draw(generator(16))
    for field in inspect.signature(type(formulation)).parameters:
        if isinstance(x := getattr(formulation, field, None), torch.Tensor):
            try:
                found = getattr(formulation.replace(**{field: given(x)}), field)
            except ValueError as error:
                assert str(error).startswith(f"{field} must be ")
            else:
                assert torch.equal(found, x)
    dense = formulation.offers("log_evidence")
    data = data if dense else data[:1]
    for place, name in enumerate(list(formulation.DATA)[: len(data)]):
        asked = [given(x) if i == place else x for i, x in enumerate(data)]
        with pytest.raises(ValueError, match=f"^{name} must be "):
            (formulation.log_evidence if dense else formulation.attention)(*asked)

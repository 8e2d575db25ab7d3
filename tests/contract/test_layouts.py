"""Numbers do not depend on how tensors lie in memory: with columns next to each other, or with others between them."""

import copy

import pytest
import torch
from formulations import MEMORIES, ROWS
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import models, nn
from probtx_pyro.ops._fused import fused_attention


def transposed(x):
    return x.mT.contiguous().mT if x.dim() > 1 else every_other(x)


def every_other(x):
    return torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(-2)[..., ::2]


LAYOUTS = {"transposed": transposed, "every other number": every_other}
layouts = pytest.mark.parametrize("laid", LAYOUTS.values(), ids=LAYOUTS)
SIZES = {"wide answers": {"features": 3, "answers": 9}, "wide features": {"features": 9, "answers": 2}}
FORMS = {
    "attention": lambda f, *data: f.attention(*data),
    "outputs": lambda f, *data: f.expected_outputs(*data[:1]),
    "evidence": lambda f, *data: f.log_evidence(*data),
    "normalizer": lambda f, *data: f.log_normalizer(*data[:1]),
    "partition": lambda f, *data: f.log_partition(),
    "mean field": lambda f, *data: f.mean_field(3).label_marginals,
    "energy": lambda f, *data: f.energy(*data),
    "answers": lambda f, *data: f.predictive(*data).mean,
}
DRAWS = {name: (row.draw, max(row.parts)) for name, row in ROWS.items()} | {
    n: (draw, 2) for n, draw in MEMORIES.items()
}


def lie(formulation, laid):
    """The formulation with tensors of another layout."""
    other = copy.copy(formulation)
    for name, x in vars(formulation).items():
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim():
            object.__setattr__(other, name, laid(x))
    return other


@layouts
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", DRAWS)
def test_of_formulations(name, sizes, laid):
    draw, parts = DRAWS[name]
    formulation, *data = draw(generator(3), batch=(2,), **sizes)
    data, seen = data[:parts], 0
    other, moved = lie(formulation, laid), [laid(x) if x.is_floating_point() else x for x in data]
    for form_name, form in FORMS.items():
        if name in MEMORIES and form_name == "attention":  # which takes queries in the place of values
            continue
        try:
            expected = form(formulation, *data)
        except (AttributeError, NotImplementedError):  # no form of this formulation
            continue
        if isinstance(expected, torch.Tensor):
            assert_equal(form(other, *moved), expected)
            seen += 1
    assert seen >= 2


@layouts
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("which", ["queries", "keys", "values", "mask"])
def test_of_fused_attention(which, components, causal, laid):
    if which == "mask" and causal:
        pytest.skip("a causal call has no mask")
    sizes = {"queries": (2, 5, 8), "keys": (2, 5 * components, 8), "values": (2, 5, 8), "mask": (2, 5, 5)}
    given = {name: torch.randn(*shape, generator=generator(i)) for i, (name, shape) in enumerate(sizes.items())}
    given["mask"] = None if causal else given["mask"]
    results = []
    for one in (given, {**given, which: laid(given[which])}):
        leaves = [x.requires_grad_() for name, x in one.items() if name != "mask"]
        output = fused_attention(**one, components=components, causal=causal, dropout=0.0)
        results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for found, expected in zip(*results, strict=True):
        assert_equal(found, expected)


@layouts
@pytest.mark.parametrize("schedule", ["asynchronous", "synchronous", "sequential"])
@pytest.mark.parametrize("rank", [None, 2])
def test_of_the_dependency_crf(rank, schedule, laid):
    g = generator(4)
    unary, ternary = torch.randn(2, 5, 4, generator=g), torch.randn(2, 4, 4, 4, generator=g)
    low = [torch.randn(2, 4, 4, 2, generator=g) for _ in range(2)]
    given = ternary if rank is None else models.LowRank(*low)
    moved = laid(ternary) if rank is None else models.LowRank(*map(laid, low))
    one, other = (models.DependencyCRF(u, t, distances=(2,)) for u, t in ((unary, given), (laid(unary), moved)))
    found, expected = (x.mean_field(3, schedule=schedule) for x in (other, one))
    assert_equal(found.label_marginals, expected.label_marginals)
    assert_equal(found.head_marginals, expected.head_marginals)


@layouts
@pytest.mark.parametrize("kind", nn.ATTENTIONS)
def test_of_layers(kind, laid):
    layer, x = nn.ATTENTIONS[kind](8, 2, batch_first=True), torch.randn(2, 5, 8, generator=generator(5))
    for weights in (True, False):
        expected, found = (layer(y, y, y, need_weights=weights, is_causal=True)[0] for y in (x, laid(x)))
        assert_equal(found, expected)

"""Parts of what was captured, by the names of axes, against the whole."""

import numpy as np
import pytest
import torch
from tolerances import assert_equal
from torch import nn

from probtx_pyro import inspection
from probtx_pyro import nn as layers

pytestmark = pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # of few queries: these are small

BATCH, HEADS, QUERIES, UNITS, WIDTH = 4, 3, 9, 6, 2


def found(mask="each"):
    """Softmax with a mask for each text, one for all, or none."""
    hidden = torch.rand(BATCH, 1, QUERIES, UNITS) < 0.3
    hidden[..., 0] = False
    added = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
    given = {"each": added, "one": added[0, 0], "none": None}[mask]
    queries, keys = torch.randn(BATCH, HEADS, QUERIES, WIDTH), torch.randn(BATCH, HEADS, UNITS, WIDTH)
    padded = torch.zeros(BATCH, 1, QUERIES, dtype=torch.bool)
    padded[1, :, -2:] = True
    coords = {"head": list("abc"), "query": list(range(QUERIES))}
    scale = torch.tensor([[0.5], [1.0], [2.0]])
    return inspection.captured(queries, keys, torch.randn(keys.shape), given, scale, padded=padded, coords=coords)


WAYS = {
    "a text": ({"batch": 1}, lambda x: x[1]),
    "a head": ({"head": -1}, lambda x: x[:, 2]),
    "by label": ({"head": "b"}, lambda x: x[:, 1]),
    "labels": ({"head": ["c", "a"]}, lambda x: x[:, [2, 0]]),
    "texts": ({"batch": slice(1, 3)}, lambda x: x[1:3]),
    "both": ({"batch": slice(0, 4, 2), "head": 2}, lambda x: x[::2, 2]),
    "one text as a batch": ({"batch": [3]}, lambda x: x[[3]]),
    "one number each": ({"head": np.int64(0), "batch": torch.tensor(2)}, lambda x: x[2, 0]),
    "arrays": ({"head": np.array([0, 1]), "batch": torch.tensor([2, 2])}, lambda x: x[[2, 2]][:, [0, 1]]),
    "nothing": ({}, lambda x: x),
}


@pytest.mark.parametrize("mask", ["each", "one", "none"])
@pytest.mark.parametrize("way", WAYS)
def test_a_part_is_that_part_of_everything(way, mask):
    indexers, taken = WAYS[way]
    one = found(mask)
    raw, part = one.raw, one.select(**indexers)
    for name in ("queries", "keys", "values", "present"):
        assert torch.equal(getattr(part, name), taken(getattr(one, name)))
    for ask in (inspection.Captured.attention, inspection.Captured.entropy):
        assert_equal(ask(part), taken(ask(one)))
    assert_equal(raw.select(**indexers).log_evidence(), taken(raw.log_evidence()))
    assert_equal(part.raw.log_evidence(), taken(raw.log_evidence()))
    assert part.mask.dim() == len(part.dims) + 2
    assert part.dims == tuple(name for name in one.dims if not isinstance(indexers.get(name, []), int | str | np.int64 | torch.Tensor) or way == "arrays")  # fmt: skip
    again = inspection.captured(part.queries, part.keys, None, part.mask, part.scale, dims=part.dims)
    assert_equal(again.attention(), part.attention())


def test_labels_follow():
    one = found()
    assert one.select(head=["c", "a"]).coords == {"head": ["c", "a"], "query": list(range(QUERIES))}
    assert "head" not in one.select(head="c").coords
    assert one.select(head=slice(1, None)).select(head="b").dims == ("batch",)


def test_the_best_equivalent_of_all_is_that_of_a_part():
    """A part has the mixture that all queries have found, and is no best equivalent of its own."""
    one = found()
    best = inspection.best_equivalent(one)
    part = best.select(batch=slice(0, 2), head=1)
    assert type(part) is inspection.Captured and part.chosen is not None
    assert_equal(part.log_evidence(), best.log_evidence()[:2, 1])
    assert_equal(part.attention(), best.attention()[:2, 1])
    fresh = one.select(batch=slice(0, 2), head=1)
    assert fresh.log_evidence()[fresh.present].sum() > part.log_evidence()[fresh.present].sum()  # found from it alone
    assert_equal(one.select(head=1).log_evidence(), best.log_evidence()[:, 1])  # heads do not share b and P
    check = inspection.query_check(part, num_draws=3, seed=0)
    assert check.observed.shape == (5,)


def test_layers_by_name_and_place():
    several = {f"layers.{i}": found("one") for i in range(3)}
    stacked = inspection.stack_layers(several)
    for taken in (stacked.select(layer="layers.2"), stacked.select(layer=2), stacked.select(layer=-1)):
        assert taken.dims == ("batch", "head") and "layer" not in taken.coords
        assert_equal(taken.attention(), several["layers.2"].attention())
        assert_equal(taken.log_evidence(), several["layers.2"].log_evidence())
    two = stacked.select(layer=["layers.2", "layers.0"], batch=[1])
    assert two.coords["layer"] == ["layers.2", "layers.0"] and two.present.shape == (2, 1, HEADS, QUERIES)
    assert_equal(two.attention()[0], several["layers.2"].attention()[[1]])
    assert inspection.capture_data(two)["captured"]["attention"].sizes["layer"] == 2


OTHERS = {
    "keys": (layers.GaussianKeysAttention, {}),
    "adapting": (layers.GaussianMixtureAttention, {"adapt": layers.Adapt(2, ("keys", "key_precision"))}),
    "linear": (layers.LinearKeysAttention, {}),
    "sparsemax": (layers.HopfieldAttention, {"transformation": "sparsemax"}),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("masks", [{}, {"is_causal": True}, {"key_padding_mask": torch.arange(6) >= torch.tensor([[6], [4], [2]])}], ids=str)  # fmt: skip
def test_parts_of_other_layers(name, masks):
    """Their formulations have other axes, and where they adapt a query may have units of its own."""
    kind, options = OTHERS[name]
    layer, x = kind(8, 2, batch_first=True, **options).double(), torch.randn(3, 6, 8)
    one = inspection.capture(layer, x, x, x, **masks)[kind.__name__]
    part, text = one.select(batch=[2, 0], head=1), one.select(batch=1)
    assert_equal(part.attention(), one.attention()[[2, 0], 1])
    assert_equal(text.attention(), one.attention()[1])
    if one.has_density:
        raw = one.raw.log_evidence()
        assert_equal(part.raw.log_evidence(), raw[[2, 0], 1])
        assert_equal(one.raw.select(batch=1).log_evidence(), raw[1])


def test_layers_of_torch_and_of_ours_stack():
    x = torch.randn(3, 6, 8)
    both = (nn.MultiheadAttention(8, 2, batch_first=True), layers.HopfieldAttention(8, 2, batch_first=True))
    every = {type(layer).__name__: inspection.capture(layer, x, x, x)[type(layer).__name__] for layer in both}
    stacked = inspection.stack_layers(every)
    for name, one in every.items():
        assert_equal(stacked.select(layer=name).attention(), one.attention())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"text": 0}, "select: no axis 'text'; there are batch, head"),
        ({"head": 3}, "select: head has positions 0 to 2, not 3"),
        ({"head": [0, -4]}, "select: head has positions 0 to 2, not -4"),
        ({"head": "d"}, "select: head has no label 'd'; labels are a, b, c"),
        ({"batch": "a"}, "select: batch has no label 'a'; it has no labels"),
        ({"batch": slice(9, 12)}, r"select: slice\(9, 12, None\) takes nothing of batch, which has positions 0 to 3"),
        ({"batch": []}, r"select: \[\] takes nothing of batch"),
        ({"batch": 1.0}, "select: batch takes a position, a slice or a list of positions, not 1.0"),
        ({"batch": [True, False, True, True]}, "select: batch takes .* not True"),
    ],
)
def test_errors_name_the_axes(asked, message):
    with pytest.raises(ValueError, match=message) as caught:
        found().select(**asked)
    assert "\n" not in str(caught.value)

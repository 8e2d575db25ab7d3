"""Densities of queries that are compared: fair beside one Gaussian, and counted with their errors."""

import numpy as np
import torch

from benchmarks.real_transformers import BEATEN, densities, density_tables, without_key
from probtx_pyro import inspection


def read(units, seed):
    """Four texts of two heads with the same keys."""
    of_model, of_text = (torch.Generator().manual_seed(x) for x in (0, seed))
    turn, keys = (torch.randn(*shape, 3, generator=of_model) for shape in ((3,), (1, 2, units)))
    queries = torch.randn(4, 2, 20, 3, generator=of_text) @ turn + 1
    return inspection.captured(queries, keys.expand(4, -1, -1, -1))


def test_a_mixture_of_one_unit_is_one_gaussian_of_the_same_metric():
    """So that what a mixture has over a Gaussian is that of its units, not of its prior; with more units they differ."""
    for units, same in ((1, True), (5, False)):
        found = {name: np.array(x) for name, x in densities(read(units, 1), read(units, 2)).items()}
        for name, other in (*BEATEN[:3], ("keys of the next text", "one Gaussian, isotropic")):
            assert found[name].shape == (2, 4)
            assert np.allclose(found[name], found[other], atol=1e-4) == same  # four digits are kept


def test_heads_that_are_ahead_are_counted_without_each_text():
    """Two heads, of which one is ahead by the last text alone."""
    names = {name for pair in BEATEN for name in pair}
    more = [[1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, 5.0]]
    rows = {"0": {name: more if name == "P a number" else [[0.0] * 4] * 2 for name in names}}
    line = density_tables({"model": rows})["beaten"][2]
    assert line == "| P a number | one Gaussian, isotropic | +0.75 ± 0.75 | 2 ± 0.8 |"


def test_hidden_is_hidden_from_later_queries_only():
    one = inspection.captured(
        torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), mask=torch.full((5, 5), -torch.inf).triu(1)
    )
    attention = without_key(one).attention()
    assert bool((attention[..., 1:, 0] == 0).all()) and bool((attention[..., 0, 0] == 1).all())
    rest = one.attention()[..., 1:, 1:]
    torch.testing.assert_close(attention[..., 1:, 1:], rest / rest.sum(-1, keepdim=True))

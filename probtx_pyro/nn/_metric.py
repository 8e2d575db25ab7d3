"""Metrics that heads learn, by name: positive definite, of determinant 1, and the identity where the coordinates are 0.

Precision and metric share one scale, `models.GaussianMixture`. The determinant leaves it to the precision.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from probtx_pyro.models._metric import Metric
from probtx_pyro.models._positive_definite import CholeskyCoordinates


class Coordinates(NamedTuple):
    """Parametrisation of a learned metric. count: how many coordinates, from D. root: its root, from coordinates (..., count)."""

    count: Callable[[int], int]
    root: Callable[[Tensor], Metric]


def _diagonal(x: Tensor) -> Metric:
    """Take the logarithms of the root's diagonal, less their mean."""
    return Metric((x - x.mean(-1, keepdim=True)).exp(), True)


def _full(x: Tensor) -> Metric:
    """Take the lower triangle of the root by rows, its diagonal in logarithms, less their mean."""
    triangle = CholeskyCoordinates().root(x)
    diagonal = _diagonal(triangle.diagonal(dim1=-2, dim2=-1).log()).root
    return Metric(triangle.tril(-1) + diagonal.diag_embed(), False)


METRICS: Mapping[str, Coordinates] = MappingProxyType({
    "diagonal": Coordinates(lambda features: features, _diagonal),
    "full": Coordinates(lambda features: features * (features + 1) // 2, _full),
})  # fmt: skip

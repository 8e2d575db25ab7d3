"""Sets in which parameters and priors lie: which lies inside which, what each is called, its coordinates in R^n,
and a family of priors that fits.
"""

import math
from typing import Any

import torch
from pyro.distributions import TransformedDistribution, constraints
from torch import Tensor
from torch.distributions import Transform, biject_to
from torch.distributions.constraints import Constraint

Bounds = tuple[Tensor | float, Tensor | float]
NAMED = {  # by type of the constraint: in words, and a family that lies there
    type(constraints.simplex): ("the simplex", "Dirichlet"),
    type(constraints.positive_definite): ("positive definite matrices", "Wishart"),
    type(constraints.corr_cholesky): ("Cholesky factors of correlation matrices", "LKJCholesky"),
}
# least entry of vectors that lie anywhere in R^n but for their order
ORDERED = {type(constraints.ordered_vector): -math.inf, type(constraints.positive_ordered_vector): 0.0}


class CholeskyCoordinates(Transform):
    """R^(D(D+1)/2) onto positive definite D x D matrices ``L L'``: the lower triangle of L by rows,
    with the log of its diagonal.

    Shapes: x (..., D(D+1)/2), y (..., D, D). References: Stan Reference Manual, "Covariance matrices"; Muirhead 1982,
    *Aspects of Multivariate Statistical Theory*, theorem 2.1.9.
    """

    domain = constraints.real_vector
    codomain = constraints.positive_definite
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CholeskyCoordinates)

    def _call(self, x: Tensor) -> Tensor:
        root = self.root(x)
        return root @ root.mT

    def root(self, x: Tensor) -> Tensor:
        """Return L, lower triangular (..., D, D)."""
        size = _side(x.shape[-1])
        rows, columns = torch.tril_indices(size, size, device=x.device)
        entries = torch.where(rows == columns, x.exp(), x)
        root = x.new_zeros(*x.shape[:-1], size * size)
        return root.index_copy(-1, rows * size + columns, entries).unflatten(-1, (size, size))

    def _inverse(self, y: Tensor) -> Tensor:
        rows, columns = torch.tril_indices(*y.shape[-2:], device=y.device)
        entries = torch.linalg.cholesky(y)[..., rows, columns]
        diagonal = rows == columns
        return torch.where(diagonal, torch.where(diagonal, entries, 1.0).log(), entries)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """``D log 2 + Σ_i (D - i + 2) log L_ii``, i from 1: that of L to LL',
        and one more for each logarithm. Shape (...).
        """
        size = y.shape[-1]
        place = torch.arange(size, device=x.device)
        logs = x[..., place * (place + 3) // 2]
        powers = size + 1 - place.to(x.dtype)
        return size * math.log(2.0) + (powers * logs).sum(-1)

    def forward_shape(self, shape):
        """(..., D(D+1)/2) to (..., D, D)."""
        return torch.Size((*shape[:-1], _side(shape[-1]), _side(shape[-1])))

    def inverse_shape(self, shape):
        """(..., D, D) to (..., D(D+1)/2)."""
        return torch.Size((*shape[:-2], shape[-1] * (shape[-1] + 1) // 2))


def lies_on(support: Constraint, x: Tensor) -> Tensor:
    """True where values (..., *event) lie on a support, (...); of a matrix known to be symmetric, and without a look at its
    numbers, which torch's own check takes.
    """
    if isinstance(support, type(constraints.positive_definite)):
        return torch.linalg.cholesky_ex(x).info == 0
    return support.check(x)


def _side(count: int) -> int:
    """D, from D(D+1)/2."""
    return (math.isqrt(8 * count + 1) - 1) // 2


@biject_to.register(constraints.MixtureSameFamilyConstraint)
def _coordinates_of_a_mixture(support: Any) -> Any:
    """A mixture of one family is unconstrained as its components are."""
    return biject_to(support.base_constraint)


@biject_to.register(constraints.positive_definite)
def _coordinates_of_a_matrix(support: Constraint) -> CholeskyCoordinates:
    """Coordinates of a positive definite matrix, which torch can make but not take apart."""
    return CholeskyCoordinates()


def inner(support: Constraint) -> Constraint:
    """Return what a support asks of one event, without the axes that ``to_event`` and mixtures add."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def bounds(support: Constraint) -> Bounds | None:
    """Return the interval in which each number lies on its own; None of a set of another kind, and of whole numbers."""
    support = inner(support)
    if support.is_discrete:
        return None
    if isinstance(support, type(constraints.real)):
        return -math.inf, math.inf
    if type(support) in ORDERED:
        return ORDERED[type(support)], math.inf
    found = (getattr(support, "lower_bound", None), getattr(support, "upper_bound", None))
    if found == (None, None):
        return None
    low, high = found
    return (-math.inf if low is None else low), (math.inf if high is None else high)


def lies_inside(support: Constraint, outer: Constraint) -> bool:
    """Return True if every point of a support lies in another one; a bound that is not a number is none."""
    if inner(support).is_discrete:
        return False
    own, wide = bounds(support), bounds(outer)
    if own is None or wide is None:
        return own is wide and isinstance(inner(support), type(inner(outer)))
    return _at_most(wide[0], own[0]) and _at_most(own[1], wide[1])


def _at_most(x: Tensor | float, y: Tensor | float) -> bool:
    """Compare bounds; a number in the dtype of the tensor beside it, to which the same number was rounded."""
    kinds = [bound.dtype for bound in (x, y) if isinstance(bound, torch.Tensor) and bound.is_floating_point()]
    dtype = min(kinds, key=lambda kind: torch.finfo(kind).bits) if kinds else torch.float64
    first, second = (torch.as_tensor(bound).to(dtype) for bound in (x, y))
    return bool((first <= second.to(first.device)).all())


def is_declared(prior: Any) -> bool:
    """Return False if the support that a chain of transforms declares is wider than where its density is:
    a Gamma that is shifted.
    """
    if type(prior) is not TransformedDistribution or not prior.transforms:
        return True
    begun, domain = bounds(prior.base_dist.support), prior.transforms[0].domain
    return begun is None or bounds(domain) is None or lies_inside(domain, prior.base_dist.support)


def is_proper_when_flat(support: Constraint) -> bool:
    """Return True if the set is bounded, so that a constant density on it is a distribution."""
    limits = bounds(support)
    if limits is None:
        return isinstance(inner(support), type(constraints.simplex))
    return all(bool(torch.isfinite(torch.as_tensor(x)).all()) for x in limits)


def described(support: Constraint) -> tuple[str, str]:
    """Return the set in words, and the name of a family of priors on it."""
    for kind, words in NAMED.items():
        if isinstance(inner(support), kind):
            return words
    limits = bounds(support)
    if limits is None:
        return str(support), ""
    if any(isinstance(x, torch.Tensor) and x.numel() > 1 for x in limits):
        return f"numbers inside {inner(support)}", "Uniform of these bounds"
    low, high = (float(x) for x in limits)
    if (low, high) == (-math.inf, math.inf):
        return "real vectors", "Normal"
    if (low, high) == (0.0, math.inf):
        return "positive numbers", "Gamma"
    if (low, high) == (0.0, 1.0):
        return "numbers between 0 and 1", "Beta"
    if math.inf in (-low, high):
        return f"numbers {f'from {low:g}' if high == math.inf else f'up to {high:g}'}", ""
    return f"numbers between {low:g} and {high:g}", f"Uniform({low:g}, {high:g})"

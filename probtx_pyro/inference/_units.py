"""Units for the coordinates in which gradients move: keys in seconds are found as those of order one are.

A step size, a learning rate, a jitter, a first scale of a guide and the tolerance of a climb all say "one" and mean a
size that suits the problem. What is positive, in an interval or on a simplex has coordinates without a unit; a real
number has one. Here it is a power of 1000, and 1 wherever that lies between the size of the posterior, by how its slope
changes over a short move, and that of the prior, or of what one observation says where that is less.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution, Transform, biject_to, constraints, transform_to
from torch.distributions.constraints import Constraint

from probtx_pyro.models._supports import ORDERED, inner
from probtx_pyro.models.priors import Site
from probtx_pyro.ops._numerics import enable_grad

UNIT, UNIT_OF = 1000.0, "unit_of_"  # and the name of a guide's buffer that keeps a unit, before that of the site
ROUNDS, PROBES, TRIES = 8, 2, 60
FIRST = 0.1  # of a move
CURVED = 1e-3, 10.0  # nats of curvature that a move should have: more than rounding, and not far more than the core has
SETTLED = 0.5  # powers of ten by which the last round may have changed a size
FAR = 1e3  # between two tries where no number says how long a move should be


class InUnits(Constraint):
    """A support whose coordinates are those of ``base_constraint``, in units (their shape)."""

    def __init__(self, base_constraint: Constraint, unit: Tensor):
        self.base_constraint, self.unit, self.event_dim = base_constraint, unit, base_constraint.event_dim
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        """Return whether a value lies in the support."""
        return self.base_constraint.check(value)


class FromUnits(Transform):
    """Coordinates in units to values: ``base(unit x)``."""

    bijective = True

    def __init__(self, base: Any, unit: Tensor):
        super().__init__()
        self.base, self.unit, self.domain, self.codomain = base, unit, base.domain, base.codomain

    def _call(self, x: Tensor) -> Tensor:
        return self.base(x * self.unit)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base.inv(y) / self.unit

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """That of the map behind, and the units'."""
        logs = self.unit.log().expand(x.shape)
        rank = self.domain.event_dim
        return self.volume(x, y) + (logs.flatten(-rank).sum(-1) if rank else logs)

    def volume(self, x: Tensor, y: Tensor) -> Tensor:
        """The log volume that the map behind gives to a coordinate, whatever its unit."""
        return self.base.log_abs_det_jacobian(x * self.unit, y)

    def forward_shape(self, shape: Any) -> Any:
        """That of the map behind."""
        return self.base.forward_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        """That of the map behind."""
        return self.base.inverse_shape(shape)


@biject_to.register(InUnits)
@transform_to.register(InUnits)  # which a guide of points asks for
def _coordinates_in_units(support: InUnits) -> FromUnits:
    return FromUnits(biject_to(support.base_constraint), support.unit)


def volume(to_value: Any, x: Tensor, y: Tensor) -> Tensor:
    """Return the log volume of coordinates as they are without units: a log density over them says the same in any."""
    return to_value.volume(x, y) if isinstance(to_value, FromUnits) else to_value.log_abs_det_jacobian(x, y)


def measured(distribution: Any, unit: Tensor) -> Any:
    """Return the distribution with the coordinates of its support in units."""
    kind, found = type(distribution), copy.copy(distribution)
    own = {"support": InUnits(distribution.support, unit), "__reduce__": lambda self: (measured, (distribution, unit))}
    found.__class__ = type(kind.__name__, (kind,), own)
    return found


def unit_of(distribution: Distribution) -> Tensor | None:
    """Return the units in which a distribution is `measured`; None where they are 1."""
    support = distribution.support
    return support.unit if isinstance(support, InUnits) else None


def measured_sites(sites: Mapping[str, Site], units: Mapping[str, Tensor]) -> dict[str, Site]:
    """Return the sites, those measured that have units."""
    return {
        name: Site(measured(site.distribution, units[name]), site.initial) if name in units else site
        for name, site in sites.items()
    }


class MeasuredSites(Messenger):
    """Measures the sites of a program, for guides that take coordinates from their supports."""

    def __init__(self, units: Mapping[str, Tensor]):
        super().__init__()
        self.units = units

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.units and not msg["is_observed"]:
            msg["fn"] = measured(msg["fn"], self.units[msg["name"]])


def units_of(
    potential: Callable[[Mapping[str, Tensor]], Tensor],
    free: Mapping[str, Tensor],
    sites: Mapping[str, Site],
    count: float,
) -> dict[str, Tensor]:
    """Return the units of coordinates that have others than 1, by name.

    Parameters
    ----------
    potential
        Minus the log density, of coordinates by name.
    free
        Coordinates to begin at.
    sites
        Priors of the same names.
    count
        How many observations the density is of.
    """
    real = {name: _real(sites[name].distribution.support, x) for name, x in free.items()}
    if not any(bool(x.any()) for x in real.values()):
        return {}
    lengths = [x.numel() for x in free.values()]

    def slope(row: Tensor) -> Tensor:
        parts = zip(free.items(), row.split(lengths), strict=True)
        with enable_grad():
            point = {name: part.reshape(x.shape).to(x).detach().requires_grad_() for (name, x), part in parts}
            value = potential(point) + sum(0.0 * x.sum() for x in point.values())  # which has a slope in each
            slopes = torch.autograd.grad(value, [*point.values()])
        return torch.cat([x.flatten().to(row) for x in slopes])

    sizes = posterior_sizes(slope, torch.cat([x.detach().flatten() for x in free.values()]))
    found = {}
    for (name, x), own in zip(free.items(), sizes.split(lengths), strict=True):
        least = own.reshape(x.shape)
        most = torch.minimum(_prior_size(sites[name].distribution, x), least * count**0.5)
        suits = torch.ones_like(x).clamp(least, torch.maximum(least, most))
        unit = torch.where(real[name], UNIT ** (suits.log10() / math.log10(UNIT)).round(), 1.0)
        if bool((unit != 1).any()):
            found[name] = unit
    return found


def _real(support: Any, x: Tensor) -> Tensor:
    """True for coordinates that are real numbers as they are, no logarithms or logits; at the shape of ``x``."""
    kind = type(inner(support))
    if kind is type(constraints.positive_definite):  # the roots' entries off the diagonal
        size = math.isqrt(2 * x.shape[-1])
        rows, columns = torch.tril_indices(size, size, device=x.device)
        return (rows != columns).expand(x.shape)
    if ORDERED.get(kind) == -math.inf:  # the first of them
        return (torch.arange(x.shape[-1], device=x.device) == 0).expand(x.shape)
    return torch.full_like(x, kind is type(constraints.real), dtype=torch.bool)


def _prior_size(distribution: Any, x: Tensor) -> Tensor:
    """Standard deviations of a prior on real numbers; infinity where they are not known."""
    unknown = torch.full_like(x, math.inf)
    if not isinstance(inner(distribution.support), type(constraints.real)):
        return unknown
    try:
        found = distribution.stddev.detach().to(x).expand(x.shape)
    except NotImplementedError:
        return unknown
    return torch.where(found > 0, found, math.inf)


@torch.no_grad()
def posterior_sizes(slope: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return the size of a density along each coordinate, (n,), by how its slope changes over short moves from a start.

    Where a coordinate has the size s, a move by d changes the slope by d / s². Moves go along all coordinates at once,
    by the sizes found so far, in either direction; after some rounds none hides another. 1 where the slope is no
    function of the place (of a program that takes part of its data at random).
    """
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (ROUNDS, PROBES, len(start)))
    size, length = torch.ones_like(start), FIRST
    with pyro.validation_enabled(False):
        here = slope(start)
        if not torch.isfinite(here).all() or not torch.equal(here, slope(start)):
            return size
        for sign in torch.from_numpy(signs).to(start):
            for _ in range(TRIES):
                moves = length * size * sign
                turned = torch.stack([_slope(slope, start + move) for move in moves]) - here
                curved = float((moves * turned).sum(-1).abs().max())
                if CURVED[0] <= curved <= CURVED[1]:
                    break
                length *= (0.3 / curved) ** 0.5 if 0 < curved < math.inf else FAR if curved == 0 else 1 / FAR
                if not 1e-30 < length < 1e30:
                    return torch.ones_like(start)
            rise = turned.square().sum(0)
            found = (moves.square().sum(0) / rise) ** 0.25
            before, size = size, torch.where((rise > 0) & torch.isfinite(found) & (found > 0), found, size)
            if bool(((size / before).log10().abs() < SETTLED).all()):
                break
    return size


def _slope(slope: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """A slope, NaN where there is none: where a matrix has no decomposition, or a program refuses its parameters."""
    try:
        return slope(point)
    except (torch.linalg.LinAlgError, ValueError):
        return torch.full_like(point, math.nan)

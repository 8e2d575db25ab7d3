"""The conditional posterior of each parameter, given what an E-step leaves behind: ECM takes its mode, Gibbs a draw from it.

Location, then precision with the new location, then weights: PT eq. 29, 30, 35, 37, 38 (errata 2, 3, 8, 15) are the modes of

    location  ~ Normal((θ m + α Σwx) / (θ + α Σw), 1 / (θ + α Σw))         prior Normal(m, 1/θ)
    precision ~ Gamma(a + ½ D Σw, b + ½ Σw|x - location|²)                 prior Gamma(shape a, rate b)
    weights   ~ Dirichlet(c + Σw)                                          prior Dirichlet(c)

with the sums over all that shares a parameter. Where w are expectations the "posterior" is that of the M-step's bound.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from pyro.distributions import ImproperUniform, Normal
from torch import Tensor

from probtx_pyro.models import GaussianKeys, GaussianMixture
from probtx_pyro.models.priors import Site, bare
from probtx_pyro.ops import Statistics, safe_ratio, safe_softmax
from probtx_pyro.ops._numerics import center_of, sum_to

ANSWERS = {"values", "value_precision", "answer_probs"}


class Take(NamedTuple):
    """What to take of a conditional posterior; each also gets the old value.

    normal: of Normal with this precision and precision times mean. gamma: of Gamma with this shape and rate.
    dirichlet: of Dirichlet with this concentration on the face of the coordinates allowed.
    """

    normal: Callable[[Tensor, Tensor, Tensor], Tensor]
    gamma: Callable[[Tensor, Tensor, Tensor], Tensor]
    dirichlet: Callable[[Tensor, Tensor, Tensor], Tensor]


def _normal_mode(precision: Tensor, pull: Tensor, old: Tensor) -> Tensor:
    return safe_ratio(pull, precision, old)


def _gamma_mode(shape: Tensor, rate: Tensor, old: Tensor) -> Tensor:
    return torch.where(shape > 1, safe_ratio(shape - 1, rate, old), old)


def _dirichlet_mode(concentration: Tensor, allowed: Tensor, old: Tensor) -> Tensor:
    mass = torch.where(allowed, concentration - 1, 0.0)
    return safe_ratio(mass, mass.sum(-1, keepdim=True), old)


MODE = Take(
    _normal_mode, _gamma_mode, _dirichlet_mode
)  # where nobody informs a parameter and its prior is flat: the old value


def draw(generator: torch.Generator) -> Take:
    """Draws from the conditional posteriors, which must be proper."""

    def normal(precision: Tensor, pull: Tensor, old: Tensor) -> Tensor:
        noise = torch.randn(old.shape, generator=generator, dtype=old.dtype, device=old.device)
        return pull / precision + noise * precision.rsqrt()

    def gamma(shape: Tensor, rate: Tensor, old: Tensor) -> Tensor:
        drawn = torch._standard_gamma(shape.expand(old.shape).contiguous(), generator=generator) / rate
        return drawn.clamp_min(torch.finfo(drawn.dtype).tiny)

    def dirichlet(concentration: Tensor, allowed: Tensor, old: Tensor) -> Tensor:
        """In logarithms, ``Gamma(c) = Gamma(c + 1) U^(1/c)``: a concentration far below 1 does not underflow everywhere."""
        shape = concentration.expand(old.shape).contiguous()
        uniform = 1 - torch.rand(old.shape, generator=generator, dtype=old.dtype, device=old.device)
        logs = torch._standard_gamma(shape + 1, generator=generator).log() + uniform.log() / shape
        return safe_softmax(logs.masked_fill(~allowed, -torch.inf))[0]

    return Take(normal, gamma, dirichlet)


def centers(mixture: GaussianMixture | GaussianKeys) -> dict[str, Tensor]:
    """What is subtracted from keys and values, one for each unit axis, before anything is summed."""
    own = {"keys": center_of(mixture.keys, len(mixture.unit_shape))}
    return own if mixture.values is None else own | {"values": center_of(mixture.values)}


class Observed(NamedTuple):
    """What the parameters are updated from.

    statistics: of the E-step, points centred on ``centers``. assigned: w_ij (..., Q, units), asked for if weights differ between
    queries. answers: "none" are known, "some" (a statistic counts them), or "all".
    """

    statistics: Statistics
    centers: Mapping[str, Tensor]
    assigned: Callable[[], Tensor]
    answers: str


def update(
    sites: Mapping[str, Site],
    mixture: GaussianMixture | GaussianKeys,
    state: Mapping[str, Tensor],
    seen: Observed,
    take: Take,
) -> dict[str, Tensor]:
    """The state with every parameter of ``sites`` taken anew; ``mixture`` is the one with the state's parameters."""
    new, features = dict(state), mixture.keys.shape[-1]
    held = seen.statistics.counts.unflatten(-1, mixture.unit_shape)
    sums = seen.statistics.sums[..., : features + 1].unflatten(-2, mixture.unit_shape)
    blocks = [("keys", "key_precision", held, sums)]
    if isinstance(mixture, GaussianMixture) and ANSWERS & sites.keys():
        width = mixture.unit_answers().shape[-1]
        rest, answered = seen.statistics.sums[..., features + 1 :], seen.statistics.counts
        if seen.answers == "none":  # the prior alone decides
            answered = torch.zeros_like(answered)
            rest = answered.unsqueeze(-1).expand(*answered.shape, width + 1)
        elif seen.answers == "some":
            answered = rest[..., -1]
        if mixture.answer_probs is None:
            blocks.append(("values", "value_precision", answered, rest[..., : width + 1]))
        elif "answer_probs" in new:
            new["answer_probs"] = _simplex(sites["answer_probs"], new["answer_probs"], rest[..., :width], take)
    for location, precision, counts, sums in blocks:
        old, alpha, center = getattr(mixture, location), getattr(mixture, precision), seen.centers[location]
        if location in new:
            new[location] = _location(sites[location], old, alpha, counts, sums, center, take)
        if precision in new:
            at = (new[location] if location in new else old) - center
            new[precision] = _precision(sites[precision], new[precision], at, counts, sums, take)
    if "weights" in new:
        shared = new["weights"].shape[-2] == 1
        of_units = held if len(mixture.unit_shape) == 1 else held.sum(-1)
        counts = of_units.unsqueeze(-2) if shared else seen.assigned()
        new["weights"] = _simplex(sites["weights"], new["weights"], counts, take)
    if "component_weights" in new:
        new["component_weights"] = _simplex(sites["component_weights"], new["component_weights"], held, take)
    return new


def _location(
    site: Site, old: Tensor, alpha: Tensor, counts: Tensor, sums: Tensor, center: Tensor, take: Take
) -> Tensor:
    mean, strength = _normal(site)
    first, pull = sums[..., :-1], alpha.unsqueeze(-1) if alpha.dim() else alpha
    total = strength * (mean - center) + sum_to(pull * first, old.shape)
    precision = strength + sum_to((alpha * counts).unsqueeze(-1).expand_as(first), old.shape)
    return take.normal(precision, total, old - center) + center


def _precision(site: Site, old: Tensor, at: Tensor, counts: Tensor, sums: Tensor, take: Take) -> Tensor:
    """From Σw, Σwx and -Σw|x|²/2 of centred points, around the location ``at``."""
    first, second, prior = sums[..., :-1], -2 * sums[..., -1], bare(site.distribution)
    scatter = (second - 2 * (at * first).sum(-1) + counts * at.square().sum(-1)).clamp_min(0)
    wide = torch.broadcast_shapes(scatter.shape, old.shape)
    shape = prior.concentration + 0.5 * first.shape[-1] * sum_to(counts.expand(wide), old.shape)
    return take.gamma(shape, prior.rate + 0.5 * sum_to(scatter.expand(wide), old.shape), old)


def _simplex(site: Site, old: Tensor, counts: Tensor, take: Take) -> Tensor:
    prior = bare(site.distribution)
    wide = torch.broadcast_shapes(counts.shape, old.shape)
    allowed = getattr(prior, "allowed", old.new_ones((), dtype=torch.bool))
    return take.dirichlet(prior.concentration + sum_to(counts.expand(wide), old.shape), allowed, old)


def _normal(site: Site) -> tuple[Tensor, Tensor]:
    """Mean and precision of a Normal prior, 0 and 0 of a flat one."""
    prior = bare(site.distribution)
    if isinstance(prior, ImproperUniform):
        return torch.zeros_like(site.initial), torch.zeros_like(site.initial)
    assert isinstance(prior, Normal)
    return prior.loc, prior.scale.reciprocal().square()


__all__ = ["ANSWERS", "MODE", "Observed", "Take", "centers", "draw", "update"]

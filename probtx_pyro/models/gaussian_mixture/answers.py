"""The answer given a query, ``p(v | q)``: a mixture of the units' answers weighted by attention.

Its mean is attention's output for every value precision; its modes are found by EM on v (mean shift). The MAP answer tends
to the mean only as a common value precision falls to 0.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from pyro.distributions import Categorical
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._distributions import IsotropicMixture
from probtx_pyro.ops import attend, fixed_point, gaussian_factor, isotropic_factor, joint, safe_softmax
from probtx_pyro.ops._numerics import center_of
from probtx_pyro.ops.attention import gaussian_statistics, isotropic_statistics, key_factor

if TYPE_CHECKING:
    from probtx_pyro.models.gaussian_mixture.mixture import GaussianMixture


class OutputModes(NamedTuple):
    """Stationary points of ``p(v_i | q_i)`` reached by EM, one for each start (every unit, then the posterior mean).

    locations: the points, shape (..., Q, U + 1, M).
    log_density: log p(v | q) there, shape (..., Q, U + 1).
    is_mode: True at the first of each set of equal points that are local maxima; ``is_mode.sum(-1)`` counts the modes found.
    """

    locations: Tensor
    log_density: Tensor
    is_mode: Tensor


def map_outputs(
    mixture: "GaussianMixture",
    queries: Tensor,
    init: Tensor | None = None,
    num_steps: int = 10,
    tol: float | None = None,
) -> Tensor:
    """Most probable answer by EM on v: ``v <- Σ_j w_j β_j μ_j / Σ_j w_j β_j``, ``w = p(unit | q, v)``, the normalisers kept.

    PT eq. 14-15 with erratum 1 mended, so that ``log p(v | q)`` never falls.

    Parameters
    ----------
    queries
        (..., Q, D).
    init
        First answer (..., Q, M); None starts at the posterior mean.
    num_steps, tol
        At most so many steps; with ``tol`` each query stops by itself.

    Returns
    -------
    Tensor
        Answers (..., Q, M). With value precision 0 the posterior mean, which is then the limit of the MAP answer.

    Notes
    -----
    Each step is one fused attention: with unequal β its bias carries ``log β_j`` more, so that it returns the M-step itself.
    A start on a ridge between modes can be a saddle that EM never leaves (the mean of two symmetric units). Where the first
    step stands still and the Hessian has a rising direction, the answer is nudged along it.
    """
    if mixture.values is None:
        raise ValueError(
            "map_outputs needs real-valued answers, but values is None; for labels take expected_outputs(queries).argmax(-1)"
        )
    _check_num_steps(num_steps)
    if init is None or not mixture.answer_density:
        start = mixture.expected_outputs(queries)
    else:
        check.finite(init=init)
        shape = (queries.shape[-2], mixture.values.shape[-1])
        if init.shape[-2:] != shape:
            raise ValueError(
                f"init has shape {tuple(init.shape)} but the answers end in {shape}; give one start for each query"
            )
        start = init.expand(torch.broadcast_shapes(init.shape[:-2], queries.shape[:-2], mixture.batch_shape) + shape)
    if not mixture.answer_density:
        return start
    if num_steps == 0:
        return start
    first = _ascend(mixture, queries, start, 1, None)
    nudge = _nudge(mixture, queries, start, first)
    return _ascend(mixture, queries, first if nudge is None else first + nudge, num_steps - 1, tol)


def _check_num_steps(num_steps: int) -> None:
    """Refuse a negative number of steps."""
    if num_steps < 0:
        raise ValueError(f"num_steps must be 0 or more, not {num_steps}; it is the number of EM steps")


def _ascend(mixture: "GaussianMixture", queries: Tensor, start: Tensor, num_steps: int, tol: float | None) -> Tensor:
    keys = key_factor(queries, mixture.keys, mixture.key_precision)
    precision = mixture.value_precision
    shared = precision.dim() == 0 or precision.shape[-1] == 1
    answer_factor = isotropic_factor if shared else gaussian_factor
    answer_statistics = isotropic_statistics if shared else gaussian_statistics
    center = center_of(mixture.values)
    if not shared:  # attention weights proportional to w_j β_j
        keys = keys._replace(bias=keys.bias + precision.log())

    factor = joint(keys, answer_factor(start - center, mixture.values - center, precision))
    fixed = factor.statistics[..., : keys.statistics.shape[-1]]

    def step(state):  # only the answers' columns change
        moving = answer_statistics(state["outputs"] - center, precision)
        updated = factor._replace(statistics=torch.cat([fixed, moving], -1))
        return {"outputs": attend(updated, mixture.values, mixture.log_prior)}, None

    return fixed_point(
        step, {"outputs": start}, problems=start.shape[:-1], num_steps=num_steps, tol=tol, progress=False
    ).state["outputs"]


def _curvature(mixture: "GaussianMixture", queries: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient (..., Q, M) and Hessian (..., Q, M, M) of ``log p(v | q)`` at the outputs, and its value's attention-weighted β."""
    attention = mixture.attention(queries, outputs)
    precision = mixture.value_precision.expand(
        torch.broadcast_shapes(mixture.value_precision.shape, (mixture.num_units,))
    )
    pull = precision.unsqueeze(-1).unsqueeze(-3) * (mixture.values.unsqueeze(-3) - outputs.unsqueeze(-2))
    gradient = (attention.unsqueeze(-1) * pull).sum(-2)
    pull = pull - gradient.unsqueeze(-2)
    spread = (attention.unsqueeze(-1) * pull).transpose(-1, -2) @ pull
    mean_precision = (attention * precision.unsqueeze(-2)).sum(-1)
    identity = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
    return gradient, spread - mean_precision[..., None, None] * identity, mean_precision


@torch.no_grad()
def _nudge(mixture: "GaussianMixture", queries: Tensor, start: Tensor, first: Tensor) -> Tensor | None:
    """A small step along the rising direction for the answers that stand still on a saddle; None where there are none."""
    eps = torch.finfo(start.dtype).eps
    spread = (mixture.values - center_of(mixture.values)).norm(dim=-1).amax()
    suspect = (first - start).norm(dim=-1) <= 64 * eps * spread
    if not suspect.any():
        return None
    nudges = torch.zeros_like(start)
    size = max(1, 2**20 // (mixture.num_units * start.shape[-1]))
    for rows in torch.arange(queries.shape[-2], device=queries.device).split(size):
        if suspect[..., rows].any():
            _, hessian, mean_precision = _curvature(
                _for_queries(mixture, rows), queries[..., rows, :], start[..., rows, :]
            )
            height, direction = torch.linalg.eigh(hessian)
            rising = suspect[..., rows] & (height[..., -1] > eps**0.5 * mean_precision)
            nudges[..., rows, :] = torch.where(rising.unsqueeze(-1), 1e-2 * spread * direction[..., -1], 0.0)
    return nudges if (nudges != 0).any() else None


def _for_queries(mixture: "GaussianMixture", rows: Tensor) -> "GaussianMixture":
    """The mixture with the rows of its prior that belong to some of the queries."""
    if mixture.log_prior is None or mixture.log_prior.shape[-2] == 1:
        return mixture
    return mixture.with_parameters({"log_prior": mixture.log_prior[..., rows, :]})


def output_modes(mixture: "GaussianMixture", queries: Tensor, num_steps: int = 1000, tol: float = 1e-8) -> OutputModes:
    """EM from every unit's value and from the posterior mean; the modes *found*, which may be more than there are units.

    Needs a positive value precision. Points closer than ``sqrt(tol)`` times the spread of the values count as one.
    """
    if mixture.values is None or not mixture.answer_density:
        raise ValueError(
            "output_modes needs values with value_precision > 0; without a density there are no modes, only expected_outputs(queries)"
        )
    mean = mixture.expected_outputs(queries)
    each = mixture.with_parameters({})  # every start is its own query: (..., Q, D) -> (..., Q, S, D)
    for name, rank in (("keys", 2), ("values", 2), ("key_precision", 1), ("value_precision", 1)):
        x = getattr(each, name)
        object.__setattr__(each, name, x.unsqueeze(-1 - rank) if x.dim() >= rank else x)
    object.__setattr__(each, "log_prior", None if mixture.log_prior is None else mixture.log_prior.unsqueeze(-2))
    values = mixture.values.unsqueeze(-3).expand(*mean.shape[:-1], *mixture.values.shape[-2:])
    starts = torch.cat([values, mean.unsqueeze(-2)], -2)
    asked = queries.unsqueeze(-2).expand(*queries.shape[:-1], starts.shape[-2], queries.shape[-1])
    points = map_outputs(each, asked, starts, num_steps, tol)
    _, hessian, _ = _curvature(each, asked, points)
    maxima = torch.linalg.eigvalsh(hessian)[..., -1] < 0
    spread = (mixture.values - center_of(mixture.values)).norm(dim=-1).amax()
    equal = torch.cdist(points, points) <= max(tol, torch.finfo(points.dtype).eps) ** 0.5 * spread
    earlier = (equal & maxima.unsqueeze(-2)).tril(-1).any(-1)
    density = each.log_evidence(asked, points) - each.log_evidence(asked)
    return OutputModes(points, density, maxima & ~earlier)


def output_covariance(mixture: "GaussianMixture", queries: Tensor) -> Tensor:
    """``Σ_j p_j (I/β_j + μ_j μ_j') - E E'``, shape (..., Q, M, M); for labels the covariance of their one-hot vector.

    Raises
    ------
    ValueError
        At value precision 0: the covariance is infinite there.
    """
    if not mixture.answer_density:
        raise ValueError(
            "output_covariance is infinite at value_precision 0 and undefined without values; give value_precision > 0"
        )
    mean = mixture.expected_outputs(queries)
    if mixture.answer_probs is not None:
        return torch.diag_embed(mean) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    size, center = mixture.values.shape[-1], center_of(mixture.values)
    centered = mixture.values - center
    second = (centered.unsqueeze(-1) * centered.unsqueeze(-2)).flatten(-2)
    variance = mixture.value_precision.reciprocal().expand(
        torch.broadcast_shapes(mixture.value_precision.shape, (mixture.num_units,))
    )
    shape = torch.broadcast_shapes(second.shape[:-1], variance.shape)
    moments = torch.cat([second.expand(*shape, -1), variance.expand(shape).unsqueeze(-1)], -1)
    expected = attend(key_factor(queries, mixture.keys, mixture.key_precision), moments, mixture.log_prior)
    offset = mean - center
    identity = torch.eye(size, dtype=mean.dtype, device=mean.device)
    return (
        expected[..., :-1].unflatten(-1, (size, size))
        - offset.unsqueeze(-1) * offset.unsqueeze(-2)
        + expected[..., -1:].unsqueeze(-1) * identity
    )


def output_distribution(mixture: "GaussianMixture", queries: Tensor) -> IsotropicMixture | Categorical:
    """``p(v_i | q_i)``: an `IsotropicMixture` over values, or a Categorical over labels, batch shape (..., Q)."""
    if not mixture.answer_density:
        raise ValueError(
            "output_distribution needs answers with a density; give value_precision > 0 or use GaussianMixture.categorical"
        )
    if mixture.answer_probs is not None:
        return Categorical(probs=mixture.expected_outputs(queries))
    return answer_mixture(mixture, mixture.log_joint(queries))


def answer_mixture(mixture: "GaussianMixture", log_joint: Tensor) -> IsotropicMixture:
    """The posterior mixture over values under the attention that ``log_joint`` (..., Q, U) defines."""
    _, evidence = safe_softmax(log_joint)
    log_attention = log_joint - evidence.masked_fill(evidence == -math.inf, 0.0).unsqueeze(-1)
    return IsotropicMixture(log_attention, mixture.values, mixture.value_precision, log_joint.shape[-2])


__all__ = ["OutputModes", "answer_mixture", "map_outputs", "output_covariance", "output_distribution", "output_modes"]

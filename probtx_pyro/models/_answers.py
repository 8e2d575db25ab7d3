"""Answers of Gaussian units: the most probable answer by EM on v, the modes of ``p(v | q)`` and its covariance.

The answer given a query is a mixture of the units' answers weighted by attention. Its mean is attention's output for every value
precision; its modes are found by EM on v (mean shift). The MAP answer tends to the mean only as a common value precision falls to 0.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._gaussian_units import GaussianUnits
from probtx_pyro.ops import attend, fixed_point, joint, safe_softmax
from probtx_pyro.ops._chunks import by_scores
from probtx_pyro.ops._gaussian_attention import key_factor
from probtx_pyro.ops._numerics import HALF, center_of, common_shape, exporting, known, transformed
from probtx_pyro.ops.attention import require_reached


class OutputModes(NamedTuple):
    """Stationary points of ``p(v_i | q_i)`` reached by EM, one for each start (every unit, then the posterior mean).

    locations: the points, shape (..., Q, U + 1, M).
    log_density: log p(v | q) there, shape (..., Q, U + 1).
    is_mode: True at the first of each set of equal points that are local maxima; ``is_mode.sum(-1)`` counts the modes found.
    """

    locations: Tensor
    log_density: Tensor
    is_mode: Tensor


class GaussianAnswers(GaussianUnits):
    """Gaussian units whose answers are real, ``v_i | u_i=j ~ N(values_j, I/value_precision_j)``, or labels."""

    @property
    def locations(self) -> Tensor:
        """``ξ_j + δ``, the means of the units, (..., U, D)."""
        return self.keys if self.shift is None else self.keys + self.shift.unsqueeze(-2)

    def map_outputs(
        self,
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
        if self.values is None:
            raise ValueError(
                "map_outputs needs real-valued answers, but values is None; for labels take expected_outputs(queries).argmax(-1)"
            )
        _check_num_steps(num_steps)
        if init is None or not self.answer_density:
            start = self.expected_outputs(queries)
        else:
            check.finite(init=init)
            shape = (queries.shape[-2], self.values.shape[-1])
            if init.shape[-2:] != shape:
                raise ValueError(
                    f"init has shape {tuple(init.shape)} but the answers end in {shape}; give one start for each query"
                )
            start = init.expand(common_shape(init.shape[:-2], queries.shape[:-2], self.batch_shape) + shape)
        if not self.answer_density:
            return start
        if num_steps == 0:
            return start
        first = self._ascend(queries, start, 1, None)
        nudge = self._nudge(queries, start, first)
        return self._ascend(queries, first if nudge is None else first + nudge, num_steps - 1, tol)

    def _ascend(self, queries: Tensor, start: Tensor, num_steps: int, tol: float | None) -> Tensor:
        keys = key_factor(queries, self.locations, self.key_precision, self.wide_root())
        precision, values = self.value_precision, self.unit_answers()
        if precision.dim() and precision.shape[-1] > 1:  # attention weights proportional to w_j β_j
            keys = keys._replace(bias=keys.bias + precision.log())

        def step(state):
            factor = joint(keys, key_factor(state["outputs"], values, precision))
            return {"outputs": attend(factor, values, self.log_prior)}, None

        return fixed_point(
            step, {"outputs": start}, problems=start.shape[:-1], num_steps=num_steps, tol=tol, progress=False
        ).state["outputs"]

    def _curvature(self, queries: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient (..., Q, M) and Hessian (..., Q, M, M) of ``log p(v | q)`` at the outputs, and its value's attention-weighted β."""
        attention = self.attention(queries, outputs)
        precision = self.value_precision.expand(common_shape(self.value_precision.shape, (self.num_units,)))
        pull = precision.unsqueeze(-1).unsqueeze(-3) * (self.unit_answers().unsqueeze(-3) - outputs.unsqueeze(-2))
        gradient = (attention.unsqueeze(-1) * pull).sum(-2)
        pull = pull - gradient.unsqueeze(-2)
        spread = (attention.unsqueeze(-1) * pull).transpose(-1, -2) @ pull
        mean_precision = (attention * precision.unsqueeze(-2)).sum(-1)
        identity = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
        return gradient, spread - mean_precision[..., None, None] * identity, mean_precision

    @torch.no_grad()
    def _nudge(self, queries: Tensor, start: Tensor, first: Tensor) -> Tensor | None:
        """A small step along the rising direction for the answers that stand still on a saddle; None where there are none."""
        eps = torch.finfo(start.dtype).eps
        values = self.unit_answers()
        spread = (values - center_of(values)).norm(dim=-1).amax()
        # half precision, which rounds a step to its own bits, cannot tell smaller ones from none
        suspect = (first - start).norm(dim=-1) <= (2 if start.dtype in HALF else 64) * eps * spread
        if not known(suspect.any(), otherwise=True):
            return None
        nudges = torch.zeros_like(start)
        size = max(1, 2**20 // (self.num_units * start.shape[-1]))
        some = torch.arange(queries.shape[-2], device=queries.device)
        if not transformed() and not exporting():
            some = some[suspect.reshape(-1, len(some)).any(0)]
        for rows in some.split(size):
            _, hessian, mean_precision = self._for_queries(rows)._curvature(queries[..., rows, :], start[..., rows, :])
            height, direction = torch.linalg.eigh(hessian)
            rising = suspect[..., rows] & (height[..., -1] > eps**0.5 * mean_precision)
            nudge = torch.where(rising.unsqueeze(-1), 1e-2 * spread * direction[..., -1], 0.0)
            nudges[..., rows, :] = nudge.to(nudges.dtype)
        return nudges if known((nudges != 0).any(), otherwise=True) else None

    def _for_queries(self, rows: Tensor) -> Self:
        """The mixture with the rows of its prior that belong to some of the queries."""
        if self.log_prior is None or self.log_prior.shape[-2] == 1:
            return self
        return self.with_parameters({"log_prior": self.log_prior[..., rows, :]})

    def output_modes(self, queries: Tensor, num_steps: int = 1000, tol: float = 1e-8) -> OutputModes:
        """EM from every unit's value and from the posterior mean; the modes *found*, which may be more than there are units.

        Needs a positive value precision. Points closer than ``sqrt(tol)`` times the spread of the values count as one.
        """
        if self.values is None or not self.answer_density:
            raise ValueError(
                "output_modes needs values with value_precision > 0; without a density there are no modes, only expected_outputs(queries)"
            )
        mean = self.expected_outputs(queries)
        each = self.with_parameters({})  # every start is its own query: (..., Q, D) -> (..., Q, S, D)
        for name in ("keys", "values", "key_precision", "value_precision", "metric", "shift"):
            x, rank = self.held(name), len(self.axes(name))
            object.__setattr__(each, name, x.unsqueeze(-1 - rank) if x is not None and x.dim() >= rank else x)
        object.__setattr__(each, "log_prior", None if self.log_prior is None else self.log_prior.unsqueeze(-2))
        values = self.values.unsqueeze(-3).expand(*mean.shape[:-1], *self.values.shape[-2:])
        starts = torch.cat([values, mean.unsqueeze(-2)], -2)
        asked = queries.unsqueeze(-2).expand(*queries.shape[:-1], starts.shape[-2], queries.shape[-1])
        points = each.map_outputs(asked, starts, num_steps, tol)
        _, hessian, _ = each._curvature(asked, points)
        maxima = torch.linalg.eigvalsh(hessian)[..., -1] < 0
        spread = (self.values - center_of(self.values)).norm(dim=-1).amax()
        apart = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
        equal = apart <= max(tol, torch.finfo(points.dtype).eps) ** 0.5 * spread
        earlier = (equal & maxima.unsqueeze(-2)).tril(-1).any(-1)
        density = each.log_evidence(asked, points) - each.log_evidence(asked)
        return OutputModes(points, density, maxima & ~earlier)

    def output_covariance(self, queries: Tensor) -> Tensor:
        """``Σ_j p_j (I/β_j + μ_j μ_j') - E E'``, shape (..., Q, M, M); for labels the covariance of their one-hot vector.

        Raises
        ------
        ValueError
            At value precision 0: the covariance is infinite there.
        """
        if not self.answer_density:
            raise ValueError(
                "output_covariance is infinite at value_precision 0 and undefined without values; give value_precision > 0"
            )
        if self.answer_probs is not None:
            mean = self.expected_outputs(queries)
            return torch.diag_embed(mean) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        self.check_data(queries)
        values = self.unit_answers()
        size = values.shape[-1]
        variance = self.value_precision.reciprocal().expand(common_shape(self.value_precision.shape, (self.num_units,)))

        def covariance(scores: Tensor, values: Tensor, variance: Tensor) -> Tensor:
            """About each query's own mean, so that values may lie far from 0 and from each other."""
            weights, evidence = safe_softmax(scores)
            away = values.unsqueeze(-3) - (weights @ values).unsqueeze(-2)
            spread = away.mT @ (weights.unsqueeze(-1) * away)
            spread = spread + (weights @ variance).unsqueeze(-1) * torch.eye(
                size, dtype=spread.dtype, device=spread.device
            )
            return torch.cat([spread.flatten(-2), evidence.unsqueeze(-1)], -1)

        factor = key_factor(queries, self.locations, self.key_precision, self.wide_root())
        shared = values - center_of(values), variance.unsqueeze(-1)
        found = by_scores(covariance, factor, self.log_prior, *shared, width=size)
        require_reached(found[..., -1].detach())
        return found[..., :-1].unflatten(-1, (size, size))


def _check_num_steps(num_steps: int) -> None:
    """Refuse a negative number of steps."""
    if num_steps < 0:
        raise ValueError(f"num_steps must be 0 or more, not {num_steps}; it is the number of EM steps")

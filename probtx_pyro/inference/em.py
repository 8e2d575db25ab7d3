"""ECM: keys, precisions, answers and weights of a mixture adapt to queries and to annotated answers under Pyro priors.

One step is one E-step, then the locations, then the precisions (with the *new* locations), then the weights (PT eq. 29, 30,
35, 37, 38 with errata 2, 3, 8, 15). Every conditional maximisation is exact, so that the objective, the log joint of the Pyro
program ``models.bayesian(mixture, priors)``, never falls. All sums come from one pass of `ops.expected_statistics`.
"""

import warnings
from typing import NamedTuple

import torch
from pyro.distributions import ImproperUniform, Normal
from torch import Tensor

from probtx_pyro.inference.causal import prefix_problem, prefix_result
from probtx_pyro.inference.variational import gradient_map
from probtx_pyro.models import GaussianMixture, MixturePriors
from probtx_pyro.models import validation as check
from probtx_pyro.models.gaussian_mixture.program import problem_shape
from probtx_pyro.models.priors import EVENT_DIMS, Site, bare, require_modes
from probtx_pyro.ops import expected_statistics, fixed_point, safe_ratio
from probtx_pyro.ops.numerics import center_of, sum_to


class Adaptation(NamedTuple):
    """A mixture adapted to data.

    mixture: the adapted mixture; parameters without a prior are those of the mixture given.
    objective: ``log p(parameters) + Σ_i log p(q_i, v_i | parameters)`` at the start and after every step, shape
        (num_steps + 1, *problems); the leading axes along which a parameter is shared count as one problem.
    converged: which problems met ``tol``, boolean (*problems,).
    num_steps: steps that each problem took, integer (*problems,).
    method: "ECM", or "gradient MAP" where a prior has no closed-form update.
    """

    mixture: GaussianMixture
    objective: Tensor
    converged: Tensor
    num_steps: Tensor
    method: str


class Data(NamedTuple):
    """What the mixture adapts to: queries (..., Q, D), outputs and where they are observed, weights of the queries (..., Q)."""

    queries: Tensor
    outputs: Tensor | None = None
    observed: Tensor | None = None
    query_weights: Tensor | None = None


def adapt(
    mixture: GaussianMixture,
    queries: Tensor,
    priors: MixturePriors,
    outputs: Tensor | None = None,
    observed: Tensor | None = None,
    num_steps: int = 10,
    tol: float | None = None,
    *,
    query_weights: Tensor | None = None,
    implicit: bool = False,
    progress: bool | None = None,
    causal: bool = False,
) -> Adaptation:
    """MAP of every parameter that has a prior, given queries and any annotated answers.

    Parameters
    ----------
    mixture
        Where the adaptation starts. A parameter that lacks a leading axis is shared along it and its statistics are summed
        over it; ``log_prior=None`` stands for uniform weights of each problem.
    queries
        (..., Q, D).
    priors
        Distributions over the parameters to adapt; `MixturePriors.flat` is maximum likelihood.
    outputs, observed
        Answers (..., Q, M) or labels (..., Q), and a boolean (..., Q) that says which of them are known (all if None).
    num_steps, tol
        At most so many ECM steps (L-BFGS iterations for gradient MAP). With ``tol``, a problem stops when no parameter moves
        by more than ``tol`` times the largest magnitude in its tensor.
    query_weights
        (..., Q), non-negative multiplicities; 0 is an absent query (ragged batches).
    implicit
        Gradients of the result by the implicit function theorem at the fixed point, instead of through the steps.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.
    causal
        Query i uses the statistics of queries 1..i only, each prefix adapting its own copy: parameters gain a query axis,
        keys become (..., Q, U, D), to be asked with queries (..., Q, 1, D). Costs O(Q² U) a step.

    Returns
    -------
    Adaptation

    Raises
    ------
    ValueError
        Bad shapes or values; a prior without a mode or on a parameter that the mixture lacks.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> mixture = GaussianMixture(torch.tensor([[-1.0], [1.0]]), key_precision=10.0)
    >>> queries = torch.tensor([[-2.0], [-2.2], [2.0]])
    >>> fit = adapt(mixture, queries, MixturePriors(keys=Normal(mixture.keys, 1.0)))
    >>> [round(float(key), 3) for key in fit.mixture.keys]
    [-2.048, 1.909]

    References
    ----------
    Movellan & Gabbur 2020, eq. 26-38; Meng & Rubin 1993 for ECM.
    """
    if num_steps < 0 or (tol is not None and not tol > 0):
        raise ValueError(f"num_steps must be 0 or more and tol positive, not num_steps={num_steps}, tol={tol}")
    if not priors.given():
        raise ValueError(
            "priors are empty, so nothing would adapt; give a prior, or MixturePriors.flat(name) for maximum likelihood"
        )
    _check_weights(queries, query_weights)
    data = Data(queries, outputs, observed, query_weights)
    if causal:
        if not priors.conjugate():
            raise ValueError(
                "causal adaptation needs closed-form updates; choose conjugate priors, or adapt each prefix by itself"
            )
        wide, wide_priors, prefixes = prefix_problem(mixture, data, priors)
        fit = adapt(wide, prefixes.queries, wide_priors, prefixes.outputs, prefixes.observed, num_steps, tol,
                    query_weights=prefixes.query_weights, implicit=implicit, progress=progress)  # fmt: skip
        return fit._replace(mixture=prefix_result(fit.mixture))
    posterior = _Posterior(mixture, priors, data)
    require_modes(posterior.sites)
    if priors.conjugate():
        found = fixed_point(posterior.step, posterior.start, problems=posterior.problems, num_steps=num_steps, tol=tol,
                            objective=posterior.objective, implicit=implicit, progress=progress, label="ECM")  # fmt: skip
        method = "ECM"
    else:
        if implicit:
            raise ValueError(
                "implicit differentiation needs closed-form updates; choose conjugate priors or implicit=False"
            )
        others = ", ".join(f"{name} ~ {type(bare(prior)).__name__}" for name, prior in priors.given().items())
        warnings.warn(
            f"no closed-form update for all of {others}: gradient MAP (L-BFGS) climbs the same objective", stacklevel=2
        )
        found = gradient_map(
            posterior.objective,
            posterior.start,
            posterior.sites,
            problems=posterior.problems,
            num_steps=num_steps,
            tol=tol,
            progress=progress,
        )
        method = "gradient MAP"
    adapted = {name: x.reshape(posterior.sites[name].initial.shape) for name, x in found.state.items()}
    assert found.objective is not None
    return Adaptation(mixture.with_parameters(adapted), found.objective, found.converged, found.num_steps, method)


def _check_weights(queries: Tensor, query_weights: Tensor | None) -> None:
    if query_weights is None:
        return
    if query_weights.shape[-1:] != queries.shape[-2:-1] or not query_weights.is_floating_point():
        raise ValueError(
            f"query_weights must be a floating point tensor (..., {queries.shape[-2]}), one weight for each query, not {query_weights.dtype} {tuple(query_weights.shape)}"
        )
    check.finite(query_weights=query_weights)
    if check.is_validation_enabled() and (query_weights < 0).any():
        raise ValueError("query_weights must be non-negative; 0 leaves a query out")


class _Posterior:
    """The log joint of parameters and data, its E-step statistics and the conditional maximisations."""

    def __init__(self, mixture: GaussianMixture, priors: MixturePriors, data: Data):
        self.mixture, self.data = mixture, data
        answered = (
            None
            if data.outputs is None
            else (data.outputs if mixture.answer_probs is not None else data.outputs[..., 0])
        )
        batch = problem_shape(
            mixture, data.queries, outputs=answered, observed=data.observed, query_weights=data.query_weights
        )
        if "value_precision" in priors.given() and not mixture.answer_density:
            raise ValueError(
                "priors: there is a prior on value_precision, but value_precision is 0 (answers without a density); start from a positive one"
            )
        self.sites = priors.sites(mixture, batch, data.queries.shape[-2])
        leading = {name: _leading(name, site) for name, site in self.sites.items()}
        batch = torch.broadcast_shapes(batch, *leading.values())
        padded = {name: (1,) * (len(batch) - len(shape)) + tuple(shape) for name, shape in leading.items()}
        self.problems = torch.Size(
            n if all(shape[i] == n for shape in padded.values()) else 1 for i, n in enumerate(batch)
        )
        self.start = {name: site.initial.reshape(padded[name] + _own(name, site)) for name, site in self.sites.items()}

    def log_prior(self, state) -> Tensor:
        """Log density of the parameters under their priors, shape (*problems,)."""
        total = self.data.queries.new_zeros(self.problems)
        for name, (distribution, _) in self.sites.items():
            density = distribution.log_prob(state[name]).sum(-1)
            total = total + sum_to(density, (1,) * (density.dim() - len(self.problems)) + self.problems).reshape(
                self.problems
            )
        return total

    def _log_joint(self, state, evidence: Tensor) -> Tensor:
        weights = self.data.query_weights
        total = (evidence if weights is None else _weighted(evidence, weights)).sum(-1)
        total = total.expand(torch.broadcast_shapes(total.shape, self.problems))
        return sum_to(total, self.problems) + self.log_prior(state)

    def objective(self, state) -> Tensor:
        """``log p(parameters) + Σ_i log p(q_i, v_i | parameters)``, shape (*problems,)."""
        mixture = self.mixture.with_parameters(state)
        return self._log_joint(state, mixture.log_evidence(self.data.queries, self.data.outputs, self.data.observed))

    def step(self, state) -> tuple[dict[str, Tensor], Tensor]:
        """One ECM step; the objective returned is that of the state given."""
        data, mixture, new = self.data, self.mixture.with_parameters(state), dict(state)
        factor = mixture.factor(data.queries, data.outputs, data.observed)
        statistics = expected_statistics(factor, mixture.log_weights(), data.query_weights)
        features = data.queries.shape[-1]
        blocks = [("keys", "key_precision", statistics.counts, statistics.sums[..., : features + 1])]
        if data.outputs is not None:
            rest = statistics.sums[..., features + 1 :]
            answered = statistics.counts if data.observed is None else rest[..., -1]
            if mixture.answer_probs is None:
                blocks.append(("values", "value_precision", answered, rest[..., : data.outputs.shape[-1] + 1]))
            elif "answer_probs" in new:
                new["answer_probs"] = self._simplex("answer_probs", state, rest[..., : mixture.answer_probs.shape[-1]])
        for location, precision, counts, sums in blocks:
            self._gaussian(new, mixture, location, precision, counts, sums)
        if "weights" in new:
            new["weights"] = self._weights(state, mixture, statistics.counts)
        return new, self._log_joint(state, statistics.log_evidence)

    def _gaussian(
        self,
        new: dict[str, Tensor],
        mixture: GaussianMixture,
        location: str,
        precision: str,
        counts: Tensor,
        sums: Tensor,
    ) -> None:
        """Location, then precision with the new location, from Σw, Σwx and -Σw|x|²/2 of centred points (PT 29/35, then 30/37)."""
        old, alpha = getattr(mixture, location), getattr(mixture, precision)
        center = center_of(old)
        first, second = sums[..., :-1], -2 * sums[..., -1]
        if location in new:
            mean, strength = _normal(self.sites[location])
            pull = alpha.unsqueeze(-1) if alpha.dim() else alpha
            numerator = strength * (mean - center) + sum_to(pull * first, old.shape)
            weight = strength + sum_to((alpha * counts).unsqueeze(-1).expand_as(first), old.shape)
            new[location] = safe_ratio(numerator, weight, old - center) + center
        if precision in new:
            at = (new[location] if location in new else old) - center
            scatter = (second - 2 * (at * first).sum(-1) + counts * at.square().sum(-1)).clamp_min(0)
            prior = bare(self.sites[precision].distribution)
            shape = new[precision].shape
            wide = torch.broadcast_shapes(scatter.shape, shape)
            numerator = prior.concentration - 1 + 0.5 * first.shape[-1] * sum_to(counts.expand(wide), shape)
            updated = safe_ratio(numerator, prior.rate + 0.5 * sum_to(scatter.expand(wide), shape), new[precision])
            new[precision] = torch.where(numerator > 0, updated, new[precision])

    def _simplex(self, name: str, state, counts: Tensor) -> Tensor:
        """Mode of the Dirichlet posterior, ``∝ counts + concentration - 1``; a row that nobody informs keeps its value."""
        old = state[name]
        distribution = bare(self.sites[name].distribution)
        mass = sum_to(counts.expand(torch.broadcast_shapes(counts.shape, old.shape)), old.shape) + (
            distribution.concentration - 1
        )
        mass = torch.where(getattr(distribution, "allowed", old.new_ones((), dtype=torch.bool)), mass, 0.0)
        return safe_ratio(mass, mass.sum(-1, keepdim=True), old)

    def _weights(self, state, mixture: GaussianMixture, counts: Tensor) -> Tensor:
        if state["weights"].shape[-2] == 1:
            return self._simplex("weights", state, counts.unsqueeze(-2))
        attention = mixture.attention(self.data.queries, self.data.outputs, self.data.observed)
        weights = self.data.query_weights
        return self._simplex("weights", state, attention if weights is None else attention * weights.unsqueeze(-1))


def _weighted(evidence: Tensor, weights: Tensor) -> Tensor:
    return torch.where(weights > 0, weights * torch.where(weights > 0, evidence, 0.0), 0.0)


def _normal(site: Site) -> tuple[Tensor, Tensor]:
    """Mean and precision of a Normal prior, 0 and 0 of a flat one."""
    prior = bare(site.distribution)
    if isinstance(prior, ImproperUniform):
        return torch.zeros_like(site.initial), torch.zeros_like(site.initial)
    assert isinstance(prior, Normal)
    return prior.loc, prior.scale.reciprocal().square()


def _own(name: str, site: Site) -> tuple[int, ...]:
    """The parameter's shape without its problem axes."""
    rank = 1 + EVENT_DIMS[name]
    return (1,) * (rank - site.initial.dim()) + tuple(site.initial.shape[max(0, site.initial.dim() - rank) :])


def _leading(name: str, site: Site) -> torch.Size:
    return site.initial.shape[: max(0, site.initial.dim() - 1 - EVENT_DIMS[name])]


__all__ = ["Adaptation", "Data", "adapt"]

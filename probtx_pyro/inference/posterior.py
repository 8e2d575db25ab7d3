"""The log joint of a mixture's parameters and data, and the exact maximisation of each parameter given the others.

What ECM climbs one parameter at a time and gradient MAP all at once: ``log p(parameters) + Σ_i log p(q_i, v_i | parameters)``,
the log density of the Pyro program ``models.bayesian(mixture, priors)`` (PT eq. 26, 33).
"""

from typing import Any, NamedTuple

import torch
from pyro.distributions import ImproperUniform, Normal
from torch import Tensor

from probtx_pyro.inference.distributed import Together
from probtx_pyro.models import GaussianKeys, GaussianMixture, MixturePriors
from probtx_pyro.models.priors import Site, bare, event_dim
from probtx_pyro.ops import expected_statistics, safe_ratio
from probtx_pyro.ops.numerics import center_of, sum_to

ANSWERS = {"values", "value_precision", "answer_probs"}


class Data(NamedTuple):
    """What the mixture adapts to: queries (..., Q, D), outputs and where they are observed, weights of the queries (..., Q)."""

    queries: Tensor
    outputs: Tensor | None = None
    observed: Tensor | None = None
    query_weights: Tensor | None = None

    def observations(self) -> tuple[Any, ...]:
        """What the closed forms of the model take: the queries, and the answers where there are any."""
        return self[:1] if self.outputs is None else self[:3]


class Posterior:
    """The log joint of parameters and data, its E-step statistics and the conditional maximisations."""

    def __init__(
        self,
        mixture: GaussianMixture | GaussianKeys,
        priors: MixturePriors,
        data: Data,
        together: Together | None = None,
    ):
        self.mixture, self.data, self.together = mixture, data, together or Together()
        batch = mixture.plates(*data).batch
        self.sites = priors.sites(mixture, batch, data.queries.shape[-2])
        if "value_precision" in self.sites and isinstance(mixture, GaussianMixture) and not mixture.answer_density:
            raise ValueError(
                "priors: there is a prior on value_precision, but value_precision is 0 (answers without a density); start from a positive one"
            )
        ranks = {name: 1 + event_dim(mixture, name) for name in self.sites}
        leading = {name: _leading(site, ranks[name]) for name, site in self.sites.items()}
        batch = torch.broadcast_shapes(batch, *leading.values())
        padded = {name: (1,) * (len(batch) - len(shape)) + tuple(shape) for name, shape in leading.items()}
        self.problems = torch.Size(
            n if all(shape[i] == n for shape in padded.values()) else 1 for i, n in enumerate(batch)
        )
        self.start = {
            name: site.initial.reshape(padded[name] + _own(site, ranks[name])) for name, site in self.sites.items()
        }

    def log_prior(self, state, local: bool | None = None) -> Tensor:
        """Log density of the parameters under their priors, shape (*problems,); only of local (shared) ones, if said."""
        total = self.data.queries.new_zeros(self.problems)
        for name, (distribution, _) in self.sites.items():
            if local in (None, self._is_local(name)):
                density = distribution.log_prob(state[name]).sum(-1)
                total = total + sum_to(density, (1,) * (density.dim() - len(self.problems)) + self.problems).reshape(
                    self.problems
                )
        return total

    def _is_local(self, name: str) -> bool:
        """Whether the parameter belongs to this process's queries: weights with a row for each of them."""
        return name == "weights" and self.sites[name].initial.shape[-2] > 1

    def require_agreement(self, **options: object) -> None:
        """Refuse a process group whose processes differ in what they must share: mixture, priors, options, kinds of data."""
        shared = {f"mixture's {name}": x for name, x in vars(self.mixture).items() if isinstance(x, Tensor)}
        if self.mixture.log_prior is not None and self.mixture.log_prior.shape[-2] == self.data.queries.shape[-2]:
            del shared["mixture's log_prior"]  # rows of its own queries
        hyper = {
            f"prior on {name}": {
                key: getattr(bare(site.distribution), key) for key in bare(site.distribution).arg_constraints
            }
            for name, site in self.sites.items()
            if not self._is_local(name)
        }
        kinds = {
            "adapted parameters": [(name, self._is_local(name)) for name in self.sites],
            "problems": tuple(self.problems),
        }
        differentiable = [x is not None and x.requires_grad for x in (*self.data, self.mixture.log_prior)]
        self.together.agree(
            **shared,
            **hyper,
            **kinds,
            outputs=self.data.outputs is not None,
            gradients=(torch.is_grad_enabled(), differentiable),
            **options,
        )

    def _log_joint(self, state, evidence: Tensor) -> Tensor:
        weights = self.data.query_weights
        total = (evidence if weights is None else _weighted(evidence, weights)).sum(-1)
        total = total.expand(torch.broadcast_shapes(total.shape, self.problems))
        (total,) = self.together.sum(sum_to(total, self.problems) + self.log_prior(state, local=True))
        return total + self.log_prior(state, local=False)

    def objective(self, state) -> Tensor:
        """``log p(parameters) + Σ_i log p(q_i, v_i | parameters)``, shape (*problems,)."""
        mixture = self.mixture.with_parameters(state)
        return self._log_joint(state, mixture.log_evidence(*self.data.observations()))

    def step(self, state) -> tuple[dict[str, Tensor], Tensor]:
        """One ECM step; the objective returned is that of the state given."""
        data, mixture, new = self.data, self.mixture.with_parameters(state), dict(state)
        statistics = expected_statistics(*mixture.lowered(*data.observations()), data.query_weights)
        counts, sums = self.together.sum(statistics.counts, statistics.sums)
        statistics = statistics._replace(counts=counts, sums=sums)
        features = data.queries.shape[-1]
        held = statistics.counts.unflatten(-1, mixture.unit_shape)
        sums = statistics.sums[..., : features + 1].unflatten(-2, mixture.unit_shape)
        blocks = [("keys", "key_precision", held, sums)]
        if isinstance(mixture, GaussianMixture) and ANSWERS & self.sites.keys():
            answers = mixture.unit_answers()
            rest = statistics.sums[..., features + 1 :]
            if data.outputs is None:  # nobody has answered: the prior alone decides
                answered = torch.zeros_like(statistics.counts)
                rest = answered.unsqueeze(-1).expand(*answered.shape, answers.shape[-1] + 1)
            else:
                answered = statistics.counts if data.observed is None else rest[..., -1]
            if mixture.answer_probs is None:
                blocks.append(("values", "value_precision", answered, rest[..., : answers.shape[-1] + 1]))
            elif "answer_probs" in new:
                new["answer_probs"] = self._simplex("answer_probs", state, rest[..., : answers.shape[-1]])
        for location, precision, counts, sums in blocks:
            self._gaussian(new, mixture, location, precision, counts, sums)
        if "weights" in new:
            new["weights"] = self._weights(state, mixture, held if len(mixture.unit_shape) == 1 else held.sum(-1))
        if "component_weights" in new:
            new["component_weights"] = self._simplex("component_weights", state, held)
        return new, self._log_joint(state, statistics.log_evidence)

    def _gaussian(
        self,
        new: dict[str, Tensor],
        mixture: GaussianMixture | GaussianKeys,
        location: str,
        precision: str,
        counts: Tensor,
        sums: Tensor,
    ) -> None:
        """Location, then precision with the new location, from Σw, Σwx and -Σw|x|²/2 of centred points (PT 29/35, then 30/37)."""
        old, alpha = getattr(mixture, location), getattr(mixture, precision)
        center = center_of(old, len(mixture.unit_shape))  # as the statistics were
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

    def _weights(self, state, mixture: GaussianMixture | GaussianKeys, counts: Tensor) -> Tensor:
        if state["weights"].shape[-2] == 1:
            return self._simplex("weights", state, counts.unsqueeze(-2))
        attention = mixture.attention(*self.data.observations())
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


def _own(site: Site, rank: int) -> tuple[int, ...]:
    """The parameter's shape without its problem axes."""
    return (1,) * (rank - site.initial.dim()) + tuple(site.initial.shape[max(0, site.initial.dim() - rank) :])


def _leading(site: Site, rank: int) -> torch.Size:
    return site.initial.shape[: max(0, site.initial.dim() - rank)]


__all__ = ["Data", "Posterior"]

"""The log joint of a mixture's parameters and data, and one step of ECM on it.

What ECM climbs one parameter at a time and gradient MAP all at once: ``log p(parameters) + Σ_i log p(q_i, v_i | parameters)``,
the log density of the Pyro program ``models.bayesian(mixture, priors)`` (PT eq. 26, 33).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.inference._conditionals import MODE, Observed, centers, update
from probtx_pyro.inference.distributed import Together
from probtx_pyro.models import GaussianKeys, GaussianMixture, MixturePriors
from probtx_pyro.models.priors import Site, bare, event_dim
from probtx_pyro.ops import Statistics, expected_statistics
from probtx_pyro.ops._numerics import sum_to


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
    """The log joint of parameters and data, and where they start, each parameter with the axes of its problems."""

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
        self.batch = batch = torch.broadcast_shapes(batch, *leading.values())
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
        data, mixture = self.data, self.mixture.with_parameters(state)
        statistics = expected_statistics(*mixture.lowered(*data.observations()), data.query_weights)
        counts, sums = self.together.sum(statistics.counts, statistics.sums)
        seen = self.seen(
            statistics._replace(counts=counts, sums=sums), centers(mixture), lambda: self._attention(mixture)
        )
        return update(self.sites, mixture, state, seen, MODE), self._log_joint(state, statistics.log_evidence)

    def seen(self, statistics: Statistics, centers: Mapping[str, Tensor], assigned: Callable[[], Tensor]) -> Observed:
        """What parameters are updated from, with what is known of the answers."""
        known = "none" if self.data.outputs is None else "all" if self.data.observed is None else "some"
        return Observed(statistics, centers, assigned, known)

    def _attention(self, mixture: GaussianMixture | GaussianKeys) -> Tensor:
        attention, weights = mixture.attention(*self.data.observations()), self.data.query_weights
        return attention if weights is None else attention * weights.unsqueeze(-1)


def _weighted(evidence: Tensor, weights: Tensor) -> Tensor:
    return torch.where(weights > 0, weights * torch.where(weights > 0, evidence, 0.0), 0.0)


def _own(site: Site, rank: int) -> tuple[int, ...]:
    """The parameter's shape without its problem axes."""
    return (1,) * (rank - site.initial.dim()) + tuple(site.initial.shape[max(0, site.initial.dim() - rank) :])


def _leading(site: Site, rank: int) -> torch.Size:
    return site.initial.shape[: max(0, site.initial.dim() - rank)]


__all__ = ["Data", "Posterior"]

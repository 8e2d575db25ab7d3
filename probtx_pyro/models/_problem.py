"""One problem: a formulation with priors and data, checked once, and what every verb of inference asks of it.

The log joint ``log p(parameters) + Σ_i log p(x_i | parameters)`` is the log density of the Pyro program
``models.bayesian(formulation, ...)`` (PT eq. 26, 33). ECM climbs it one parameter at a time, gradient MAP all at once;
Gibbs sampling and NUTS draw from it.
"""

from collections.abc import Callable, Mapping
from copy import copy

import torch
from torch import Tensor

from probtx_pyro.models._conditionals import MODE, draw, update
from probtx_pyro.models._plates import Plates
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.models.priors import Site
from probtx_pyro.ops._numerics import common_shape, known, sum_to

Total = Callable[..., tuple[Tensor, ...]]
State = Mapping[str, Tensor]


class Problem:
    """A formulation, priors laid out on its parameters, and data. Made by `Bayesian.problem`,
    where all three are checked.

    formulation, data: as given, the data in the order of the table. plates: of the Pyro program. sites: distribution
    and present value of each parameter that has a prior. closed: whether all their conditionals are closed forms.
    total: adds tensors up over the processes that share the observations; None is one process.
    """

    def __init__(
        self,
        formulation: Formulation,
        data: Data,
        plates: Plates,
        sites: Mapping[str, Site],
        closed: bool,
        total: Total | None = None,
    ):
        self.formulation, self.data, self.plates = formulation, data, plates
        self.sites, self.closed, self.total = dict(sites), closed, total
        self.start: dict[str, Tensor] = {}
        for name, (_, initial) in self.sites.items():
            rank = len(self.batch) + len(formulation.axes(name))
            self.start[name] = initial.reshape((1,) * (rank - initial.dim()) + initial.shape)
        self.problems = torch.Size(
            n if all(x.shape[i] == n for x in self.start.values()) else 1 for i, n in enumerate(self.batch)
        )

    def with_data(self, data: Data) -> "Problem":
        """The same with other data of the same shapes, not checked."""
        other = copy(self)
        other.data = data
        return other

    def over(self, total: Total | None) -> "Problem":
        """The same with sums over processes."""
        other = copy(self)
        other.total = total
        return other

    def adapted(self, state: State) -> Formulation:
        """The formulation with the parameters of a state without further leading axes."""
        return self.formulation.with_parameters(
            {name: x.reshape(self.sites[name].initial.shape) for name, x in state.items()}
        )

    @property
    def batch(self) -> torch.Size:
        """The leading axes of the problem, those that only priors have among them."""
        return self.plates.batch

    @property
    def observations(self) -> Data:
        """The arguments of the closed forms."""
        return self.formulation.observations(self.data)

    @property
    def weights(self) -> Tensor | None:
        """Weights of the observations, 0 for an absent one; None is 1."""
        return self.formulation.datum(self.data, "weights")

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the data, or of the parameters where the data are whole numbers."""
        given = (*self.data, *self.start.values())
        return next(x for x in given if isinstance(x, Tensor) and x.is_floating_point())

    def leading(self, name: str) -> int:
        """Number of axes of a site's value that are those of the problems."""
        return max(0, self.sites[name].initial.dim() - len(self.formulation.axes(name)))

    def shape(self, state: Mapping[str, Tensor]) -> torch.Size:
        """Shape of the log joint: leading axes that ``state`` has in front of those of `start`, such as chains,
        then the problems.
        """
        name, x = next(iter(state.items()))
        return x.shape[: x.dim() - self.start[name].dim()] + self.problems

    def log_prior_density(self, state: Mapping[str, Tensor], local: bool | None = None) -> Tensor:
        """Log density of the parameters under their priors, (..., *problems); ``local``:
        True only those of a process, False only shared ones.
        """
        shape = self.shape(state)
        total = next(iter(state.values())).new_zeros(shape)
        for name, (distribution, _) in self.sites.items():
            if local in (None, self.is_local(name)):
                density = distribution.log_prob(state[name])
                total = total + sum_to(_count(density, len(shape)), shape)
        return total

    def log_priors(self, samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Log density of parameters (chain, draw, *shape) under their priors, by name, (chain, draw) each."""
        return {
            name: self.sites[name].distribution.log_prob(x).reshape(*x.shape[:2], -1).sum(2)
            for name, x in samples.items()
        }

    def is_local(self, name: str) -> bool:
        """True for a parameter that belongs to this process's observations: weights with a row for each of them."""
        axes = self.formulation.axes(name)
        own = self.sites[name].initial.shape
        return axes[:1] == self.formulation.axes("log_evidence") and own[len(own) - len(axes)] > 1

    def of_evidence(self, state: Mapping[str, Tensor], evidence: Tensor) -> Tensor:
        """The log joint (..., *problems), given the log evidence of each observation under ``state``."""
        shape = self.shape(state)
        total = (evidence if self.weights is None else _weighted(evidence, self.weights)).sum(-1)
        total = total.expand(common_shape(total.shape, shape))
        total = sum_to(total, shape) + self.log_prior_density(state, local=True)
        return (total if self.total is None else self.total(total)[0]) + self.log_prior_density(state, local=False)

    def ecm_step(self, state: State) -> tuple[dict[str, Tensor], Tensor]:
        """Take one step of ECM: an E-step, then the mode of each parameter's
        conditional given the new values of those before it.

        Returns the new state, and the log joint (*problems,) of the state given, which the E-step computes on its way.
        """
        formulation = self.formulation.with_parameters(state)
        statistics = formulation.expect(self.data)
        statistics = statistics if self.total is None else statistics.reduced(self.total)
        new = update(self.sites, formulation, state, statistics, MODE)
        return new, self.of_evidence(state, statistics.log_evidence)

    def gibbs_step(
        self, state: State, origins: Mapping[str, Tensor], generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Draw latents from their posterior, then each parameter from its conditional, for every chain,
        the leading axis of ``state``.

        ``origins``: what statistics are centred on, the same in all sweeps and chains, so that the sums are comparable,
        too. Returns the new state, and the log evidence of the data in the state given, (chain,).
        """
        formulation, chains = self.formulation.with_parameters(state), next(iter(state.values())).shape[:1]
        statistics = formulation.draw_latents(self.data, (*chains, *self.batch), generator, origins)
        evidence = statistics.log_evidence
        evidence = evidence if self.weights is None else torch.where(self.weights > 0, evidence, 0.0)
        return update(self.sites, formulation, state, statistics, draw(generator)), evidence.flatten(1).sum(1)

    def require_numbers(self, verb: str, state: Mapping[str, Tensor], density: Tensor) -> None:
        """Refuse a state, or its log joint ``density`` (..., *problems), that is not finite: what is wrong,
        where first, and the repair.

        Nothing is asked where torch compiles, and inside ``torch.func.vmap``.
        """
        wrong = {name: ~torch.isfinite(x.detach()) for name, x in state.items()}
        bad = ~torch.isfinite(density.detach())
        any_wrong = torch.stack([x.any() for x in (bad, *wrong.values())]).any()
        if torch.compiler.is_compiling() or not known(any_wrong, otherwise=False):
            return
        names = [name for name, where in wrong.items() if where.any()]
        if names:
            raise ValueError(
                f"{verb}: {' and '.join(names)}{self._place(wrong[names[0]], len(self.formulation.axes(names[0])))} came to be NaN or infinite; the numbers left the range of {self.like.dtype}: bring the data to order one, or give stronger priors"
            )
        for name, (distribution, _) in self.sites.items():
            found = sum_to(_count(distribution.log_prob(state[name]), bad.dim()), bad.shape)
            if not torch.isfinite(found).all():
                raise ValueError(
                    f"{verb}: the log density of {name}{self._place(~torch.isfinite(found), 0)} under its prior is {float(found[~torch.isfinite(found)][0])}; start the formulation, or the chains, inside the prior's support and off its bounds"
                )
        evidence = self.formulation.with_parameters(state).log_density(*self.observations)
        lost = ~torch.isfinite(evidence if self.weights is None else torch.where(self.weights > 0, evidence, 0.0))
        first = f", first at observation {int(lost.nonzero()[0][-1])}{self._place(lost, 1)}" if lost.any() else ""
        raise ValueError(
            f"{verb}: the log density of the data is {float(density[bad][0])}{first}; mend or leave out such data, bring them to order one, or start the formulation where it has a density of them"
        )

    def _place(self, wrong: Tensor, own: int) -> str:
        """Problem and chain of the first entry that is True, in words, the last ``own`` axes left out;
        nothing where there is one.
        """
        leading = wrong.shape[: wrong.dim() - own]
        index = [int(i) for i in wrong.nonzero()[0]][: len(leading)]
        chains = len(leading) - len(self.batch)
        said = [f" of problem {tuple(index[chains:])}"] if any(n > 1 for n in leading[chains:]) else []
        return "".join([*said, *(f" of chain {i + 1}" for i in index[:chains])])

    def objective(self, state: Mapping[str, Tensor]) -> Tensor:
        """``log p(parameters) + Σ_i log p(x_i | parameters)``, shape (..., *problems),
        leading axes those of ``state``.
        """
        return self.of_evidence(state, self.formulation.with_parameters(state).log_density(*self.observations))


def _count(x: Tensor, leading: int) -> Tensor:
    """Sums over all but the leading axes."""
    x = x.to(torch.float32) if x.dtype == torch.bool else x
    return x.flatten(leading).sum(-1) if x.dim() > leading else x


def _weighted(evidence: Tensor, weights: Tensor) -> Tensor:
    return torch.where(weights > 0, weights * torch.where(weights > 0, evidence, 0.0), 0.0)

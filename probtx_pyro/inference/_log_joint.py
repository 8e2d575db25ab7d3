"""The log joint of a formulation's parameters and data: what ECM climbs one parameter at a time and gradient MAP all at once.

``log p(parameters) + Σ_i log p(x_i | parameters)``, the log density of the Pyro program ``models.bayesian(formulation, ...)``
(PT eq. 26, 33).
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.inference.distributed import Together
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models._supports import bounds, inner
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.models.priors import Site, bare
from probtx_pyro.ops._numerics import common_shape, known, sum_to


class LogJoint:
    """The log joint of parameters and data, and where they start, each parameter with the axes of its problems."""

    def __init__(self, posterior: Bayesian, data: Data, together: Together | None = None):
        self.formulation: Formulation = posterior.formulation
        self.together = together or Together()
        self.sites = posterior.sites(data)
        self.batch = batch = posterior.plates(data).batch
        self.observe(data)
        self.start = {}
        for name, (_, initial) in self.sites.items():
            rank = len(batch) + len(self.formulation.axes(name))
            self.start[name] = initial.reshape((1,) * (rank - initial.dim()) + initial.shape)
        self.problems = torch.Size(
            n if all(x.shape[i] == n for x in self.start.values()) else 1 for i, n in enumerate(batch)
        )

    def observe(self, data: Data) -> None:
        """Take other data of the same shapes."""
        self.data, self.observations = data, self.formulation.observations(data)
        self.weights: Tensor | None = self.formulation.datum(data, "weights")

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the data, or of the parameters where the data are whole numbers."""
        given = (*self.data, *self.start.values())
        return next(x for x in given if isinstance(x, Tensor) and x.is_floating_point())

    @cached_property
    def observed_shape(self) -> torch.Size:
        """Shape of the log evidence: the problems, then the observations of each."""
        sizes = self.formulation.sizes(*self.data)
        return torch.Size((*self.batch, *(sizes[axis] for axis in self.formulation.axes("log_evidence"))))

    def leading(self, name: str) -> int:
        """Number of axes of a site's value that are those of the problems."""
        return max(0, self.sites[name].initial.dim() - len(self.formulation.axes(name)))

    def shape(self, state: Mapping[str, Tensor]) -> torch.Size:
        """Shape of the log joint: leading axes that ``state`` has in front of those of `start`, such as chains, then the problems."""
        name, x = next(iter(state.items()))
        return x.shape[: x.dim() - self.start[name].dim()] + self.problems

    def log_prior_density(self, state: Mapping[str, Tensor], local: bool | None = None) -> Tensor:
        """Log density of the parameters under their priors, shape (..., *problems); only of local (shared) ones, if said."""
        shape = self.shape(state)
        total = next(iter(state.values())).new_zeros(shape)
        for name, (distribution, _) in self.sites.items():
            if local in (None, self._is_local(name)):
                density = distribution.log_prob(state[name])
                total = total + sum_to(_count(density, len(shape)), shape)
        return total

    def _is_local(self, name: str) -> bool:
        """True for a parameter that belongs to this process's observations: weights with a row for each of them."""
        axes = self.formulation.axes(name)
        own = self.sites[name].initial.shape
        return axes[:1] == self.formulation.axes("log_evidence") and own[len(own) - len(axes)] > 1

    def require_agreement(self, **options: object) -> None:
        """Refuse a process group whose processes differ in what they must share: formulation, priors, options, kinds of data."""
        rows = {row.field or name: row.names for name, row in self.formulation.PARAMETERS.items()}
        own = self.formulation.axes("log_evidence")
        shared: dict[str, Any] = {}
        for field, x in vars(self.formulation).items():
            local = rows.get(field, ())[:1] == own and x is not None and x.shape[-2] > 1
            if isinstance(x, Tensor) and not local:
                shared[f"formulation's {field}"] = x
        for name, site in self.sites.items():
            prior = bare(site.distribution)
            if not self._is_local(name):
                shared[f"prior on {name}"] = {key: getattr(prior, key) for key in prior.arg_constraints}
        kinds = {
            "adapted parameters": [(name, self._is_local(name)) for name in self.sites],
            "problems": tuple(self.problems),
            "data": [name for name, x in zip(self.formulation.DATA, self.data, strict=True) if x is not None],
        }
        tensors = [x for x in (*self.data, *vars(self.formulation).values()) if isinstance(x, Tensor)]
        differentiable = (torch.is_grad_enabled(), [x.requires_grad for x in tensors])
        self.together.agree(**shared, **kinds, gradients=differentiable, **options)

    def of_evidence(self, state: Mapping[str, Tensor], evidence: Tensor) -> Tensor:
        """The log joint (..., *problems), given the log evidence of each observation under ``state``."""
        shape = self.shape(state)
        total = (evidence if self.weights is None else _weighted(evidence, self.weights)).sum(-1)
        total = total.expand(common_shape(total.shape, shape))
        (total,) = self.together.sum(sum_to(total, shape) + self.log_prior_density(state, local=True))
        return total + self.log_prior_density(state, local=False)

    def require_numbers(self, verb: str, state: Mapping[str, Tensor], density: Tensor) -> None:
        """Refuse a state, or its log joint ``density`` (..., *problems), that is not finite: what is wrong, where first, and the repair.

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
        evidence = self.formulation.with_parameters(state).log_evidence(*self.observations)
        lost = ~torch.isfinite(evidence if self.weights is None else torch.where(self.weights > 0, evidence, 0.0))
        first = f", first at observation {int(lost.nonzero()[0][-1])}{self._place(lost, 1)}" if lost.any() else ""
        raise ValueError(
            f"{verb}: the log density of the data is {float(density[bad][0])}{first}; mend or leave out such data, bring them to order one, or start the formulation where it has a density of them"
        )

    def _place(self, wrong: Tensor, own: int) -> str:
        """Problem and chain of the first entry that is True, in words, the last ``own`` axes left out; nothing where there is one."""
        leading = wrong.shape[: wrong.dim() - own]
        index = [int(i) for i in wrong.nonzero()[0]][: len(leading)]
        chains = len(leading) - len(self.batch)
        said = [f" of problem {tuple(index[chains:])}"] if any(n > 1 for n in leading[chains:]) else []
        return "".join([*said, *(f" of chain {i + 1}" for i in index[:chains])])

    def objective(self, state: Mapping[str, Tensor]) -> Tensor:
        """``log p(parameters) + Σ_i log p(x_i | parameters)``, shape (..., *problems), leading axes those of ``state``."""
        return self.of_evidence(state, self.formulation.with_parameters(state).log_evidence(*self.observations))


def _count(x: Tensor, leading: int) -> Tensor:
    """Sums over all but the leading axes."""
    x = x.to(torch.float32) if x.dtype == torch.bool else x
    return x.flatten(leading).sum(-1) if x.dim() > leading else x


def require_finite(verb: str, formulation: Formulation, density: Tensor) -> None:
    """Refuse log densities of latent choices that are not finite, naming the parameters that make them so."""
    if bool(torch.isfinite(density).all()):
        return
    numbers = {name: x for name, x in formulation.parameters().items() if isinstance(x, Tensor)}
    wrong = [name for name, x in numbers.items() if not bool((x < torch.inf).all())]
    largest = {name: float(x[torch.isfinite(x)].abs().amax()) for name, x in numbers.items() if torch.isfinite(x).any()}
    said = f"{' and '.join(wrong)} hold NaN or infinity; mend them" if wrong else (
        "their parameters reach " + ", ".join(f"{x:.3g} ({name})" for name, x in largest.items()) + "; scale them down"
    )  # fmt: skip
    first = density[~torch.isfinite(density)][0]
    raise ValueError(f"{verb}: the log density of the latent choices is {float(first)}: {said}")


def require_inside(sites: Mapping[str, Site]) -> None:
    """Refuse present values that have no density under their priors, or lie on a bound where no gradient brings them back.

    Every verb that begins at the formulation's own parameters asks this; rows on the simplex are brought there by each.
    """
    for name, (distribution, x) in sites.items():
        support: Any = distribution.support
        if not is_simplex(distribution) and not bool(support.check(x).all()):
            raise ValueError(f"{name} starts outside the support of its prior, {support}; {_repair(name)}")
        if _on_a_bound(x, support):
            raise ValueError(
                f"{name} starts on a bound of the support of its prior, where gradients vanish; {_repair(name)}"
            )


def is_simplex(distribution: Any) -> bool:
    """True if the rows are on the simplex, or on a face of it."""
    return isinstance(inner(distribution.support), type(constraints.simplex)) or hasattr(distribution, "allowed")


def _repair(name: str) -> str:
    return f"start the formulation inside it, formulation.replace({name}=...), or where there are chains at start='prior' or values of your own"


def _on_a_bound(x: Tensor, support: Any) -> bool:
    """True if an entry is not known to be so far from the bounds of its support that gradients bring it back."""
    limits = bounds(support)
    if limits is None:
        return False
    inside = torch.minimum(x - limits[0], limits[1] - x) > torch.finfo(x.dtype).eps ** 0.5 * x.abs()
    return not bool(inside.all())


def log_priors(sites: Mapping[str, Site], samples: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Log density of parameters (chain, draw, *shape) under their priors, by name, (chain, draw) each."""
    return {name: sites[name].distribution.log_prob(x).reshape(*x.shape[:2], -1).sum(2) for name, x in samples.items()}


def _weighted(evidence: Tensor, weights: Tensor) -> Tensor:
    return torch.where(weights > 0, weights * torch.where(weights > 0, evidence, 0.0), 0.0)

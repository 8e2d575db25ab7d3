"""One problem: a formulation with priors and data, checked once, and what every verb of inference asks of it.

The log joint ``log p(parameters) + Σ_i log p(x_i | parameters)`` is the log density of the Pyro program
``models.bayesian(formulation, ...)`` (PT eq. 26, 33). ECM climbs it one parameter at a time, gradient MAP all at once;
Gibbs sampling and NUTS draw from it.

A formulation gives the likelihood of a parameter, given the others and what an E-step leaves, as terms of a conjugate
family (`models.NormalTerms` and the like); the prior is added here. ECM takes the mode of what comes out, Gibbs a draw:

    NormalTerms(p, b)       prior Normal(m, 1/θ)    ->  Normal((θ m + b) / (θ + p), 1 / (θ + p))
    CorrelatedTerms(P, b)   the same                ->  Normal((θI + P)⁻¹ (θ m + b), (θI + P)⁻¹)
    GammaTerms(a', b')      prior Gamma(a, b)       ->  Gamma(a + a', b + b')
    WishartTerms(n, R)      prior Wishart(ν, V)     ->  Wishart(ν + n, (V⁻¹ + R)⁻¹)
    DirichletTerms(n)       prior Dirichlet(c)      ->  Dirichlet(c + n)
    BetaTerms(s, f)         prior Beta(a, b)        ->  Beta(a + s, b + f)

with the terms summed over all that shares the parameter. Where the terms are expectations the "posterior" is that of
the M-step's bound, and its modes are PT eq. 29, 30, 35, 37, 38 (errata 2, 3, 8, 15).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from pyro.distributions import ImproperUniform
from torch import Tensor

from probtx_pyro.models._plates import Plates
from probtx_pyro.models.formulation import (
    CONJUGATE,
    BetaTerms,
    CorrelatedTerms,
    Data,
    DirichletTerms,
    Formulation,
    GammaTerms,
    NormalTerms,
    WishartTerms,
)
from probtx_pyro.models.priors import Site, bare, unchecked
from probtx_pyro.ops import safe_ratio, safe_softmax
from probtx_pyro.ops._numerics import common_shape, known, sum_to


class Take(NamedTuple):
    """Ways to take a value of a conditional posterior; each function also gets the old value.

    normal: of Normal with this precision and precision times mean; correlated: the same with a matrix of precisions.
    gamma: of Gamma with this shape and rate. wishart: of Wishart with these degrees of freedom and scale
    ``root root'``.
    dirichlet: of Dirichlet with this concentration on the face of the coordinates allowed. beta: of Beta with these
    concentrations.
    """

    normal: Callable[[Tensor, Tensor, Tensor], Tensor]
    correlated: Callable[[Tensor, Tensor, Tensor], Tensor]
    gamma: Callable[[Tensor, Tensor, Tensor], Tensor]
    wishart: Callable[[Tensor, Tensor, Tensor], Tensor]
    dirichlet: Callable[[Tensor, Tensor, Tensor], Tensor]
    beta: Callable[[Tensor, Tensor, Tensor], Tensor]


def _normal_mode(precision: Tensor, pull: Tensor, old: Tensor) -> Tensor:
    return safe_ratio(pull, precision, old)


def _correlated_mode(precision: Tensor, pull: Tensor, old: Tensor) -> Tensor:
    solved, failed = torch.linalg.solve_ex(precision, pull.unsqueeze(-1))
    return torch.where((failed > 0).unsqueeze(-1), old, solved.squeeze(-1))


def _wishart_mode(degrees: Tensor, root: Tensor, old: Tensor) -> Tensor:
    surplus = (degrees - root.shape[-1] - 1)[..., None, None]
    return torch.where(surplus > 0, surplus * (root @ root.mT), old)


def _gamma_mode(shape: Tensor, rate: Tensor, old: Tensor) -> Tensor:
    return torch.where(shape > 1, safe_ratio(shape - 1, rate, old), old)


def _dirichlet_mode(concentration: Tensor, allowed: Tensor, old: Tensor) -> Tensor:
    mass = torch.where(allowed, concentration - 1, 0.0)
    return safe_ratio(mass, mass.sum(-1, keepdim=True), old)


def _beta_mode(one: Tensor, zero: Tensor, old: Tensor) -> Tensor:
    return _within(safe_ratio(one - 1, one + zero - 2, old))


def _within(x: Tensor) -> Tensor:
    """Numbers inside (0, 1): at its ends a likelihood of logarithms is infinite."""
    numbers = torch.finfo(x.dtype)
    return x.clamp(numbers.tiny, 1 - numbers.eps)


# where nobody informs a parameter and its prior is flat: the old value
MODE = Take(_normal_mode, _correlated_mode, _gamma_mode, _wishart_mode, _dirichlet_mode, _beta_mode)


def draw(generator: torch.Generator) -> Take:
    """Return draws from the conditional posteriors, which must be proper."""

    def normal(precision: Tensor, pull: Tensor, old: Tensor) -> Tensor:
        noise = torch.randn(old.shape, generator=generator, dtype=old.dtype, device=old.device)
        return pull / precision + noise * precision.rsqrt()

    def correlated(precision: Tensor, pull: Tensor, old: Tensor) -> Tensor:
        noise = torch.randn(old.shape, generator=generator, dtype=old.dtype, device=old.device).unsqueeze(-1)
        root = _root(precision).expand(*old.shape, -1)
        half = torch.linalg.solve_triangular(root, pull.unsqueeze(-1), upper=False)
        return torch.linalg.solve_triangular(root.mT, half + noise, upper=True).squeeze(-1)

    def wishart(degrees: Tensor, root: Tensor, old: Tensor) -> Tensor:
        """Bartlett's: a lower triangle of normal numbers, with roots of chi-squared ones on the diagonal."""
        noise = torch.randn(old.shape, generator=generator, dtype=old.dtype, device=old.device).tril(-1)
        fewer = torch.arange(old.shape[-1], dtype=old.dtype, device=old.device)
        half = 0.5 * (degrees.unsqueeze(-1) - fewer).expand(old.shape[:-1])
        chi = (2 * torch._standard_gamma(half.contiguous(), generator=generator)).sqrt()
        factor = root @ (noise + torch.diag_embed(chi))
        return factor @ factor.mT

    def gamma(shape: Tensor, rate: Tensor, old: Tensor) -> Tensor:
        drawn = torch._standard_gamma(shape.expand(old.shape).contiguous(), generator=generator) / rate
        return drawn.clamp_min(torch.finfo(drawn.dtype).tiny)

    def dirichlet(concentration: Tensor, allowed: Tensor, old: Tensor) -> Tensor:
        """Draw in logarithms, ``Gamma(c) = Gamma(c + 1) U^(1/c)``:
        a concentration far below 1 does not underflow everywhere.
        """
        shape = concentration.expand(old.shape).contiguous()
        uniform = 1 - torch.rand(old.shape, generator=generator, dtype=old.dtype, device=old.device)
        logs = torch._standard_gamma(shape + 1, generator=generator).log() + uniform.log() / shape
        return safe_softmax(logs.masked_fill(~allowed, -torch.inf))[0]

    def beta(one: Tensor, zero: Tensor, old: Tensor) -> Tensor:
        both = torch.stack([one.expand(old.shape), zero.expand(old.shape)], -1)
        return _within(dirichlet(both, old.new_ones((), dtype=torch.bool), both)[..., 0])

    return Take(normal, correlated, gamma, wishart, dirichlet, beta)


def update(
    sites: Mapping[str, Site], formulation: Formulation, state: Mapping[str, Tensor], statistics: object, take: Take
) -> dict[str, Tensor]:
    """Return the state with every parameter of ``sites`` taken anew, each given the new values of those before it.

    ``formulation`` is the one with the state's parameters; ``statistics`` are what its `expect` or `draw_latents` left.

    Raises
    ------
    ValueError
        A `conditional` of a formulation of one's own that returns terms of another family than its table says.
    """
    new = dict(state)
    for name, site in sites.items():
        terms = formulation.conditional(name, statistics)
        family: Any = formulation.row(name).conjugate
        if type(terms) not in CONJUGATE.get(family, ()):
            wanted = " or ".join(kind.__name__ for kind in CONJUGATE.get(family, ()))
            raise ValueError(
                f"conditional: a {type(formulation).__name__} returns {type(terms).__name__} for {name}, whose conjugate family is {getattr(family, '__name__', None)}; return models.{wanted}"
            )
        new[name] = TAKEN[type(terms)](site, terms, new[name], take)
        formulation = formulation.with_parameters({name: new[name]})
    return new


def _normal(site: Site, terms: NormalTerms, old: Tensor, take: Take) -> Tensor:
    prior: Any = bare(site.distribution)
    precision, pull = (_shared(x, terms[:2], old) for x in terms[:2])
    if not isinstance(prior, ImproperUniform):
        strength = prior.scale.reciprocal().square()
        precision, pull = strength + precision, strength * (prior.loc - terms.center) + pull
    return take.normal(precision, pull, old - terms.center) + terms.center


def _correlated(site: Site, terms: CorrelatedTerms, old: Tensor, take: Take) -> Tensor:
    prior: Any = bare(site.distribution)
    square = (*old.shape, old.shape[-1])
    precision = sum_to(terms.precision.expand(common_shape(terms.precision.shape, square)), square)
    pull = _shared(terms.pull, (terms.pull,), old)
    if not isinstance(prior, ImproperUniform):
        strength = prior.scale.reciprocal().square()
        precision, pull = precision + torch.diag_embed(strength), strength * (prior.loc - terms.center) + pull
    return take.correlated(precision, pull, old - terms.center) + terms.center


def _wishart(site: Site, terms: WishartTerms, old: Tensor, take: Take) -> Tensor:
    """Take a value in the coordinates of the root L of the old one, ``(V⁻¹ + R)⁻¹ = L (L'V⁻¹L + L'RL)⁻¹ L'``:
    no root is inverted.
    """
    prior: Any = bare(site.distribution)
    wide = common_shape(terms.degrees.shape, terms.scatter.shape[:-2], old.shape[:-2])
    degrees = prior.df + sum_to(terms.degrees.expand(wide), old.shape[:-2])
    scatter = sum_to(terms.scatter.expand(*wide, *old.shape[-2:]), old.shape)
    inner = terms.root.mT @ prior.precision_matrix @ terms.root + 0.5 * (scatter + scatter.mT)
    lower = _root(inner)
    return take.wishart(degrees, torch.linalg.solve_triangular(lower, terms.root.mT, upper=False).mT, old)


def _gamma(site: Site, terms: GammaTerms, old: Tensor, take: Take) -> Tensor:
    prior: Any = bare(site.distribution)
    shape, rate = (_shared(x, terms, old) for x in terms)
    return take.gamma(prior.concentration + shape, prior.rate + rate, old)


def _dirichlet(site: Site, terms: DirichletTerms, old: Tensor, take: Take) -> Tensor:
    prior: Any = bare(site.distribution)
    allowed = getattr(prior, "allowed", old.new_ones((), dtype=torch.bool))
    return take.dirichlet(prior.concentration + _shared(terms.counts, terms, old), allowed, old)


def _beta(site: Site, terms: BetaTerms, old: Tensor, take: Take) -> Tensor:
    prior: Any = bare(site.distribution)
    successes, failures = (_shared(x, terms, old) for x in terms)
    return take.beta(prior.concentration1 + successes, prior.concentration0 + failures, old)


def _root(matrix: Tensor) -> Tensor:
    """Cholesky root (..., D, D); NaN where there is none, which inference reports by name."""
    lower, failed = torch.linalg.cholesky_ex(matrix)
    return lower.masked_fill((failed > 0)[..., None, None], torch.nan)


def _shared(x: Tensor, terms: Sequence[object], old: Tensor) -> Tensor:
    """A term summed over the axes along which the parameter is shared."""
    wide = common_shape(old.shape, *(term.shape for term in terms if isinstance(term, Tensor)))
    return sum_to(x.expand(wide), old.shape)


TAKEN: Mapping[type, Callable[[Site, Any, Tensor, Take], Tensor]] = {
    NormalTerms: _normal,
    CorrelatedTerms: _correlated,
    GammaTerms: _gamma,
    WishartTerms: _wishart,
    DirichletTerms: _dirichlet,
    BetaTerms: _beta,
}


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

    def unchecked(self) -> "Problem":
        """The same, whose priors do not look whether numbers are on their supports."""
        other = copy(self)
        other.sites = {
            name: site._replace(distribution=unchecked(site.distribution)) for name, site in self.sites.items()
        }
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
    def count(self) -> float:
        """The number of observations of each problem, those of other processes among them."""
        own = self.like.new_tensor(math.prod(self.plates.last.values()))
        return float(own if self.total is None else self.total(own)[0])

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
        total = sum_to(total, shape)
        if any(map(self.is_local, self.sites)):
            total = total + self.log_prior_density(state, local=True)
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

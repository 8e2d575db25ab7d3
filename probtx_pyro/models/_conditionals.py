"""The conditional posterior of each parameter, given the others and what an E-step leaves: ECM takes its mode,
Gibbs a draw.

A formulation gives the likelihood as terms of a conjugate family (`models.NormalTerms` and the like); the prior is
added here:

    NormalTerms(p, b)       prior Normal(m, 1/θ)    ->  Normal((θ m + b) / (θ + p), 1 / (θ + p))
    CorrelatedTerms(P, b)   the same                ->  Normal((θI + P)⁻¹ (θ m + b), (θI + P)⁻¹)
    GammaTerms(a', b')      prior Gamma(a, b)       ->  Gamma(a + a', b + b')
    WishartTerms(n, R)      prior Wishart(ν, V)     ->  Wishart(ν + n, (V⁻¹ + R)⁻¹)
    DirichletTerms(n)       prior Dirichlet(c)      ->  Dirichlet(c + n)
    BetaTerms(s, f)         prior Beta(a, b)        ->  Beta(a + s, b + f)

with the terms summed over all that shares the parameter. Where the terms are expectations the "posterior" is that of
the M-step's bound, and its modes are PT eq. 29, 30, 35, 37, 38 (errata 2, 3, 8, 15).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from pyro.distributions import ImproperUniform
from torch import Tensor

from probtx_pyro.models.formulation import (
    CONJUGATE,
    BetaTerms,
    CorrelatedTerms,
    DirichletTerms,
    Formulation,
    GammaTerms,
    NormalTerms,
    WishartTerms,
)
from probtx_pyro.models.priors import Site, bare
from probtx_pyro.ops import safe_ratio, safe_softmax
from probtx_pyro.ops._numerics import common_shape, sum_to


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
    sites: Mapping[str, Site], formulation: Formulation, state: Mapping[str, Tensor], statistics: Any, take: Take
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


def _shared(x: Tensor, terms: Sequence[Any], old: Tensor) -> Tensor:
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

"""Guides that learn: one network for every query, or for every set of queries, in the place of one number for each.

``q_φ(unit | x_i)``, a network from a query to its attention, against the exact E-step; ``q_φ(parameters | {x_i})``, a
network from a set of queries to a normal in unconstrained coordinates (Kingma & Welling 2014; Zaheer et al. 2017 for
sets).
"""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from pyro import poutine
from pyro.distributions import Normal, TransformedDistribution
from torch import Tensor, nn
from torch.distributions import biject_to

from probtx_pyro.inference._program import of_problem
from probtx_pyro.inference._units import UNIT_OF, FromUnits
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Data
from probtx_pyro.ops import safe_softmax
from probtx_pyro.ops._numerics import safe_ratio

Encoder = Callable[..., Tensor]
FIRST_SCALE = 0.1  # in unconstrained coordinates, in units, as of Pyro's automatic guides


class AttentionGuide(nn.Module):
    """A guide of the latent assignment: attention by a network, or a free matrix of logits.

    It cannot beat the exact E-step, ``formulation.guide`` without ``attention``; `results.gap` says by how much it
    falls short.

    Parameters
    ----------
    posterior
        `models.bayesian` of a mixture, ``collapsed=False``: the program whose site ``unit`` it draws.
    encoder
        A module or function from the observations, as ``formulation.attention`` takes them (``queries`` alone, or
        ``queries, outputs``), to logits (..., Q, U); or a floating point tensor (..., Q, U), the logits at first, of a
        free matrix that belongs to its own queries. Logits of units that the mixture masks are not read.

    Raises
    ------
    ValueError
        A collapsed program, or an encoder that is neither. When called: logits of another shape or dtype.
    NotImplementedError
        A formulation whose guide takes no attention.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import inference, models, results
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]))
    >>> posterior = models.bayesian(mixture, collapsed=False)
    >>> queries = torch.tensor([[-2.0], [0.0], [0.5]])
    >>> guide = inference.AttentionGuide(posterior, torch.nn.Linear(1, 2))  # the log joint of units of one width is linear
    >>> fit = inference.variational(posterior, queries, guide=guide, num_steps=200, learning_rate=0.1, num_samples=1, seed=0)
    >>> bool((results.gap(fit.applied(torch.tensor([[-1.0], [1.5]]), num_samples=1, seed=0), seed=0).assignments < 0.01).all())
    True
    """

    def __init__(self, posterior: Bayesian, encoder: Encoder | Tensor):
        super().__init__()
        if posterior.collapsed:
            raise ValueError("posterior: a collapsed program has no assignments; give models.bayesian collapsed=False")
        if not posterior.formulation.GUIDED_BY_ATTENTION:
            raise NotImplementedError(
                f"AttentionGuide: the guide of a {type(posterior.formulation).__name__} takes no attention; "
                "write your own"
            )
        if isinstance(encoder, Tensor) and not encoder.is_floating_point():
            raise ValueError(f"encoder: logits must be floating point, not {encoder.dtype}")
        if not callable(encoder) and not isinstance(encoder, Tensor):
            raise ValueError(f"encoder must be a module, a function or a tensor, not {type(encoder).__name__}")
        self.posterior = posterior
        self.encoder = nn.Parameter(encoder.detach().clone()) if isinstance(encoder, Tensor) else encoder

    def forward(self, *data: Tensor | None) -> None:
        """Sample ``unit`` in the plates of the problem."""
        formulation: Any = self.posterior.formulation
        given = formulation.bind(*data)
        sites = self.posterior.problem(*given).sites
        formulation = formulation.with_parameters({name: site.initial for name, site in sites.items()})
        unread = [name for name, x in zip(formulation.DATA, given, strict=True) if x is None]
        with poutine.block(hide=unread):  # answers that nobody gave are predictions, no part of the posterior
            attention = self.attention(*given)
            formulation.guide(**dict(zip(formulation.DATA, given, strict=True)), attention=attention)

    def attention(self, *data: Tensor | None) -> Tensor:
        """Return the attention of the guide, (..., Q, U), to be compared with ``formulation.attention``."""
        formulation = self.posterior.formulation
        given = formulation.bind(*data)
        encoder: Any = self.encoder
        own = isinstance(encoder, Tensor)
        logits: Tensor = encoder if own else _encoded(encoder, formulation.observations(given))
        units = formulation.sizes(*given)["unit"]
        if logits.shape[-2:] != (given[0].shape[-2], units):
            raise ValueError(
                f"encoder: logits have shape {tuple(logits.shape)} but must end in "
                f"{(given[0].shape[-2], units)}, queries by units"
                + ("; a free matrix belongs to its own queries, take a network for others" if own else "")
            )
        allowed = formulation.allowed("weights")
        return safe_softmax(logits if allowed is None else logits.masked_fill(~allowed, -torch.inf))[0]


class ParameterGuide(nn.Module):
    """A guide of the parameters: a network from a set of queries to independent normals in unconstrained coordinates.

    Each query is encoded, the codes are averaged (so that neither the order nor the number of queries is fixed; weights
    count, and the logarithm of the number goes along), and two layers turn the average into mean and log scale of every
    coordinate. It begins as a normal of scale 0.1 about the formulation's own parameters, whatever the queries.

    Parameters
    ----------
    posterior
        `models.bayesian` of one problem. Train the guide on many:
        ``variational(posterior.copies(count, *data), *many, guide=guide)`` with data ``many`` (count, Q, D) and so on,
        drawn from the priors or your own.
    data, named
        The data of some problem; their numbers do not matter.
    encoder
        A module or function from the observations, as ``formulation.attention`` takes them, to codes (..., Q, H).

    Raises
    ------
    ValueError
        A program without priors, or of many problems; weights with a row for each query; codes of another shape or
        dtype.
    NotImplementedError
        Priors with hyperparameters.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import inference, models
    >>> mixture = models.GaussianMixture(torch.tensor([[-2.0], [2.0]]))
    >>> posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    >>> queries = torch.randn(8, 5, 1)  # 8 problems of 5 queries
    >>> guide = inference.ParameterGuide(posterior, queries[0], encoder=torch.nn.Linear(1, 4))
    >>> fit = inference.variational(posterior.copies(8, queries[0]), queries, guide=guide, num_steps=5, num_samples=3, seed=0)
    >>> fit.draws.samples["keys"].shape
    torch.Size([1, 3, 8, 2, 1])
    >>> fit.applied(torch.randn(7, 1), posterior=posterior, num_samples=3, seed=0).draws.samples["keys"].shape
    torch.Size([1, 3, 2, 1])
    """

    def __init__(self, posterior: Bayesian, *data: Tensor | None, encoder: Encoder, **named: Tensor | None):
        super().__init__()
        posterior.require_plain("amortised guide")
        if not posterior.priors:
            raise ValueError("posterior has no priors, so no parameters to guide; give models.bayesian a prior")
        self.posterior, self.encoder = posterior, encoder
        formulation, given = posterior.formulation, posterior.bind(*data, **named)
        problem = posterior.problem(*given)
        sites, batch = problem.sites, problem.batch
        if batch or any(site.initial.dim() > len(formulation.axes(name)) for name, site in sites.items()):
            raise ValueError(
                f"posterior and data must be of one problem, not of {tuple(batch)}; "
                "train the guide on posterior.copies(count, ...)"
            )
        for name, site in sites.items():
            if formulation.axes(name)[:1] == formulation.axes("log_evidence")[:1] and len(site.initial) > 1:
                raise ValueError(
                    f"posterior: {name} have a row for each query, which no guide of a set of queries can give; "
                    "share them"
                )
        with torch.no_grad():
            width = self._summary(given).shape[-1]
            found = of_problem(posterior, problem).in_units()
            first = {
                name: biject_to(cast(Any, site.distribution.support)).inv(site.initial)
                for name, site in found.sites.items()
            }
        for name, unit in found.units.items():
            self.register_buffer(UNIT_OF + name, unit)
        self.shapes = {name: x.shape for name, x in first.items()}
        center = torch.cat([x.flatten() for x in first.values()])
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * len(center))).to(center)
        last: Any = self.head[-1]
        nn.init.zeros_(last.weight)
        with torch.no_grad():
            last.bias.copy_(torch.cat([center, torch.full_like(center, math.log(FIRST_SCALE))]))

    def forward(self, *data: Tensor | None) -> None:
        """Sample the parameters in the plates of the problems that the data are of."""
        given = self.posterior.bind(*data)
        problem = self.posterior.problem(*given)
        plates, sites = problem.plates, problem.sites
        codes = self._summary(given)
        center, log_scale = self.head(codes.expand(*plates.batch, codes.shape[-1])).chunk(2, -1)
        sizes, distributions = [shape.numel() for shape in self.shapes.values()], {}
        means, scales = center.split(sizes, -1), log_scale.exp().split(sizes, -1)
        for (name, shape), mean, scale in zip(self.shapes.items(), means, scales, strict=True):
            rank = len(self.posterior.formulation.axes(name)) if plates.batch else 0
            full = (*plates.batch, *(1,) * (rank - sites[name].initial.dim()), *shape)
            normal = Normal(mean.reshape(full), scale.reshape(full))
            to_value, unit = biject_to(cast(Any, sites[name].distribution.support)), getattr(self, UNIT_OF + name, None)
            to_value = to_value if unit is None else FromUnits(to_value, unit)
            distribution = TransformedDistribution(normal, [to_value])
            distributions[name] = distribution.to_event(sites[name].distribution.event_dim - distribution.event_dim)
        self.posterior.sample_sites(plates, distributions)

    def _summary(self, given: Data) -> Tensor:
        """The mean code and the logarithm of 1 + n, (..., H + 1)."""
        formulation = self.posterior.formulation
        codes = _encoded(self.encoder, formulation.observations(given))
        weights: Tensor | None = formulation.datum(given, "weights")
        queries: Tensor = given[0]
        weights = queries.new_ones(queries.shape[:-1]) if weights is None else weights
        if codes.shape[-2] != queries.shape[-2]:
            raise ValueError(f"encoder gave {tuple(codes.shape)} for {queries.shape[-2]} queries; return (..., Q, H)")
        count = weights.sum(-1, keepdim=True)
        mean = safe_ratio((weights.unsqueeze(-1) * codes).sum(-2), count, torch.zeros_like(count))
        return torch.cat([mean, count.log1p().expand(*mean.shape[:-1], 1)], -1)


def _encoded(encoder: Any, observations: Data) -> Tensor:
    """The encoder's numbers, of the dtype of the data."""
    weights = next(iter(encoder.parameters()), None) if isinstance(encoder, nn.Module) else None
    if weights is not None and weights.dtype != observations[0].dtype:
        raise ValueError(
            f"encoder is {weights.dtype} but the data are {observations[0].dtype}; "
            f"convert it with encoder.to({observations[0].dtype})"
        )
    return encoder(*observations)

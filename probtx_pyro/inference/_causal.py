"""Causal adaptation as an ordinary one: every prefix of the queries is a problem of its own, along one more batch axis.

So it has an objective (prefix by prefix), needs no algorithm of its own, and no later query can move an earlier answer. The
running sums of published code do neither (erratum 16): their attention is stale.
"""

from typing import TYPE_CHECKING, TypeVar

import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from torch import Tensor

from probtx_pyro.models import GaussianKeys, GaussianMixture, MixturePriors
from probtx_pyro.models.priors import FLAT, bare, event_dim

if TYPE_CHECKING:
    from probtx_pyro.inference._log_joint import Data

M = TypeVar("M", GaussianMixture, GaussianKeys)
_ARGUMENTS = {Normal: ("loc", "scale"), Gamma: ("concentration", "rate"), Dirichlet: ("concentration",)}


def prefix_problem(mixture: M, data: "Data", priors: MixturePriors) -> "tuple[M, MixturePriors, Data]":
    """The mixture, priors and data with an axis of Q prefixes before the queries' (and units') own axis."""
    num = data.queries.shape[-2]
    wide = _with_prefixes(mixture)
    ranks = {name: 1 + event_dim(mixture, name) for name in priors.given()}
    adapted = {"log_prior" if name == "weights" else name: rank for name, rank in ranks.items()}
    copies = {name: _grown(x, num, rank) for name, rank in adapted.items() if (x := getattr(wide, name)) is not None}
    wide = wide.with_parameters(copies)
    inside = torch.ones(num, num, dtype=data.queries.dtype, device=data.queries.device).tril()
    weights = inside if data.query_weights is None else inside * data.query_weights.unsqueeze(-2)
    labels = isinstance(mixture, GaussianMixture) and mixture.answer_probs is not None
    answers = None if data.outputs is None else _insert(data.outputs, 1 if labels else 2)
    observed = None if data.observed is None else data.observed.unsqueeze(-2)
    return (
        wide,
        _wide_priors(priors, ranks),
        data._replace(queries=data.queries.unsqueeze(-3), outputs=answers, observed=observed, query_weights=weights),
    )


def prefix_result(adapted: M) -> M:
    """The adapted mixture, to be asked with queries (..., Q, 1, D): query i meets the parameters of its own prefix."""
    log_prior = adapted.log_prior
    if log_prior is None:
        return adapted
    if log_prior.shape[-2] != 1:  # a row for each query, (..., prefix or 1, Q, U): query i's row in prefix i
        several = log_prior.shape[-3] != 1
        own = torch.diagonal(log_prior, dim1=-3, dim2=-2).transpose(-1, -2) if several else log_prior.squeeze(-3)
        log_prior = own.unsqueeze(-2)
    return adapted.with_parameters({"log_prior": log_prior})


def _insert(x: Tensor, rank: int) -> Tensor:
    """A prefix axis of size 1 before the last ``rank`` axes; a scalar stays a scalar."""
    return x.unsqueeze(-1 - rank) if x.dim() >= rank else x


def _grown(x: Tensor, num: int, rank: int) -> Tensor:
    """The axis of prefixes at its full size: each prefix adapts its own copy."""
    if x.dim() == 0:
        return x.expand(num, *(1,) * rank)
    return x.expand(*x.shape[: x.dim() - rank - 1], num, *x.shape[x.dim() - rank :])


def _with_prefixes(mixture: M) -> M:
    return mixture.with_parameters(
        {name: _insert(x, rank) for name, rank in mixture.axes.items() if (x := getattr(mixture, name)) is not None}
    )


def _wide_priors(priors: MixturePriors, ranks: dict[str, int]) -> MixturePriors:
    changed = {}
    for name, prior in priors.given().items():
        prior, rank = bare(prior), ranks[name]
        if prior is not FLAT:
            family = next(kind for kind in _ARGUMENTS if isinstance(prior, kind))
            prior = family(
                **{key: _widened(getattr(prior, key), rank) for key in _ARGUMENTS[family]}, validate_args=False
            )
        changed[name] = prior
    return MixturePriors(**changed)


def _widened(x: Tensor, rank: int) -> Tensor:
    return x.unsqueeze(-1 - rank) if x.dim() > rank else x

"""Causal adaptation as an ordinary one: every prefix of the queries is a problem of its own, along one more batch axis.

So it has an objective (prefix by prefix), needs no algorithm of its own, and no later query can move an earlier answer. The
running sums of published code do neither (erratum 16): their attention is stale.
"""

from typing import Any

import torch
from torch import Tensor

from probtx_pyro.models._bayesian import Bayesian, F
from probtx_pyro.models.formulation import Data
from probtx_pyro.models.priors import FLAT, arguments_of, as_pyro, bare

AXIS = "query"  # along which prefixes are taken


def prefix_problem(posterior: Bayesian[F], data: Data) -> tuple[Bayesian[F], Data]:
    """The posterior and data with an axis of Q prefixes before the own axes of every parameter and datum."""
    formulation = posterior.formulation
    if formulation.axes("log_evidence") != (AXIS,) or all(row.role != "weights" for row in formulation.DATA.values()):
        raise NotImplementedError(
            f"causal adaptation goes query by query, which a {type(formulation).__name__} does not have; use causal=False"
        )
    queries = data[0]
    num = queries.shape[-2]
    inside = torch.ones(num, num, dtype=queries.dtype, device=queries.device).tril()
    prefixes: list[Any] = []
    for (name, datum), x in zip(formulation.DATA.items(), data, strict=True):
        if datum.role == "weights":
            prefixes.append(inside if x is None else inside * x.unsqueeze(-2))
        else:
            prefixes.append(None if x is None else _insert(x, len(formulation.axes(name))))
    changes = {}
    for name in formulation.PARAMETERS:
        row = formulation.row(name)
        if (x := formulation.held(name)) is not None:
            rank = len(formulation.axes(name))
            changes[row.field or name] = (
                _grown(_insert(x, rank), num, rank) if name in posterior.priors else _insert(x, rank)
            )
    wide = formulation.with_parameters(changes)
    priors = {name: _wide(prior, len(formulation.axes(name))) for name, prior in posterior.priors.items()}
    return Bayesian(wide, priors, posterior.collapsed), tuple(prefixes)


def prefix_result(adapted: F) -> F:
    """The adapted formulation, to be asked with queries (..., Q, 1, D): query i meets the parameters of its own prefix."""
    changes = {}
    for name, row in adapted.PARAMETERS.items():
        x = adapted.held(name)
        if x is not None and row.names[:1] == (AXIS,) and x.shape[-2] != 1:  # query i's row in prefix i
            several = x.shape[-3] != 1  # (..., prefix or 1, Q, U)
            own = torch.diagonal(x, dim1=-3, dim2=-2).transpose(-1, -2) if several else x.squeeze(-3)
            changes[row.field or name] = own.unsqueeze(-2)
    return adapted.with_parameters(changes)


def _insert(x: Tensor, rank: int) -> Tensor:
    """A prefix axis of size 1 before the last ``rank`` axes; a scalar stays a scalar."""
    return x.unsqueeze(-1 - rank) if x.dim() >= rank else x


def _grown(x: Tensor, num: int, rank: int) -> Tensor:
    """The axis of prefixes at its full size: each prefix adapts its own copy."""
    if x.dim() == 0:
        return x.expand(num, *(1,) * rank)
    return x.expand(*x.shape[: x.dim() - rank - 1], num, *x.shape[x.dim() - rank :])


def _wide(prior: Any, rank: int) -> Any:
    """A conjugate prior with the prefix axis."""
    if prior is FLAT:
        return prior
    prior = bare(as_pyro(prior))
    own = rank - prior.event_dim  # axes of the parameter that are no event
    arguments = arguments_of(prior)
    ranks = {key: own + prior.arg_constraints[key].event_dim for key in arguments}
    wide = {key: x.unsqueeze(-1 - ranks[key]) if x.dim() > ranks[key] else x for key, x in arguments.items()}
    return type(prior)(**wide, validate_args=False)

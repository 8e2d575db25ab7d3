"""The mixture of Gaussian keys as Pyro programs: enumerated, collapsed, and the guide.

Plates: ``query`` at dim -1 and, left of it, the leading axes of the problem: ``batch``, ``head``.
"""

from typing import TYPE_CHECKING

import pyro
from pyro.distributions import Categorical
from pyro.ops.indexing import Vindex
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._distributions import IsotropicMixture
from probtx_pyro.models._plates import PARALLEL, Plates, given_unit, isotropic, weighted_queries
from probtx_pyro.models.gaussian_keys import checks
from probtx_pyro.models.gaussian_mixture import checks as mixture_checks
from probtx_pyro.ops import safe_log

if TYPE_CHECKING:
    from probtx_pyro.models.gaussian_keys.keys import GaussianKeys

Maybe = Tensor | None  # an argument that may be left out


def plates(
    keys: "GaussianKeys", queries: Tensor, outputs: Maybe = None, observed: Maybe = None, query_weights: Maybe = None
) -> Plates:
    """The plates of the problem that model and queries make, both checked; answers, without a density here, are refused."""
    checks.no_answers(outputs, observed)
    mixture_checks.data(keys, queries)
    weights = {} if query_weights is None else {"query_weights": query_weights.shape[:-1]}
    batch = check.broadcastable(queries=queries.shape[:-2], model=keys.batch_shape, **weights)
    return Plates(batch, query=queries.shape[-2], units=keys.num_units)


def model(keys: "GaussianKeys", queries: Tensor, *, query_weights: Maybe = None) -> None:
    """``unit ~ Categorical(π)``, ``component | unit ~ Categorical(π_unit)``, ``queries | unit, component`` (MGK eq. 1, 3).

    A query of weight 0 is absent; other weights multiply its log density.
    """
    enumerated(keys, plates(keys, queries, query_weights=query_weights), queries, query_weights=query_weights)


def enumerated(
    keys: "GaussianKeys",
    plates: Plates,
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    query_weights: Maybe = None,
) -> None:
    """`model` within plates that are already there."""
    flat = keys.mixture
    with weighted_queries(plates, query_weights):
        unit = pyro.sample("unit", Categorical(logits=keys.log_weights()), infer=PARALLEL)
        of_unit = given_unit(keys.component_log_weights(), unit, 1)
        component = pyro.sample("component", Categorical(logits=of_unit), infer=PARALLEL)
        index = unit * keys.num_components + component
        pyro.sample(
            "queries",
            isotropic(given_unit(flat.keys, index, 1), given_unit(flat.key_precision, index, 0)),
            obs=queries,
        )


def collapsed(keys: "GaussianKeys", queries: Tensor, *, query_weights: Maybe = None) -> None:
    """The same density of the queries with ``unit`` and ``component`` summed out."""
    marginal(keys, plates(keys, queries, query_weights=query_weights), queries, query_weights=query_weights)


def marginal(
    keys: "GaussianKeys",
    plates: Plates,
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    query_weights: Maybe = None,
) -> None:
    """`collapsed` within plates that are already there."""
    flat = keys.mixture
    with weighted_queries(plates, query_weights):
        density = IsotropicMixture(flat.log_weights(), flat.keys, flat.key_precision, queries.shape[-2])
        pyro.sample("queries", density, obs=queries)


def guide(keys: "GaussianKeys", queries: Tensor, attention: Maybe = None, *, query_weights: Maybe = None) -> None:
    """``unit ~ Categorical(attention)``, ``component | unit`` from its exact posterior.

    With the exact attention ELBO = log evidence; with another row-stochastic matrix A it falls short by ``Σ_i KL(A_i || W_i)``.
    """
    if attention is None:
        attention = keys.attention(queries)
    else:
        checks.attention_of_guide(keys, queries, attention)
    within = keys.component_attention(queries)
    with weighted_queries(plates(keys, queries, query_weights=query_weights), query_weights):
        unit = pyro.sample("unit", Categorical(logits=safe_log(attention)), infer=PARALLEL)
        pyro.sample("component", Categorical(logits=safe_log(Vindex(within)[..., unit, :])), infer=PARALLEL)


__all__ = ["collapsed", "enumerated", "guide", "marginal", "model", "plates"]

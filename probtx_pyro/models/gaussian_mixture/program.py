"""The Gaussian mixture as Pyro programs: enumerated (teaching, tests), collapsed (size), and the guide.

Plates: ``query`` at dim -1 and, left of it, the leading axes of the problem: ``batch``, ``head``.
"""

from typing import TYPE_CHECKING

import pyro
import torch
from pyro.distributions import Categorical
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._distributions import IsotropicMixture
from probtx_pyro.models._plates import PARALLEL, Plates, given_unit, isotropic, weighted_queries
from probtx_pyro.models.gaussian_mixture import answers, checks
from probtx_pyro.ops import safe_log

if TYPE_CHECKING:
    from probtx_pyro.models.gaussian_mixture.mixture import GaussianMixture

Maybe = Tensor | None  # an argument that may be left out


def problem_shape(mixture: "GaussianMixture", queries: Tensor, **others: Maybe) -> torch.Size:
    """The leading axes that data and parameters broadcast to; ``others`` come with one axis after them."""
    shapes = {name: x.shape[:-1] for name, x in others.items() if x is not None}
    return check.broadcastable(queries=queries.shape[:-2], mixture=mixture.batch_shape, **shapes)


def plates(
    mixture: "GaussianMixture",
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    query_weights: Maybe = None,
) -> Plates:
    """The plates of the problem that mixture and data make, both checked."""
    checks.data(mixture, queries, outputs, observed)
    answered = None if outputs is None else (outputs if mixture.answer_probs is not None else outputs[..., 0])
    batch = problem_shape(mixture, queries, outputs=answered, observed=observed, query_weights=query_weights)
    return Plates(batch, query=queries.shape[-2], units=mixture.num_units)


def _emission(mixture: "GaussianMixture", unit: Tensor):
    if mixture.answer_probs is not None:
        return Categorical(probs=given_unit(mixture.answer_probs, unit, 1))
    return isotropic(given_unit(mixture.values, unit, 1), given_unit(mixture.value_precision, unit, 0))


def _answer(mixture: "GaussianMixture", distribution, outputs: Maybe, observed: Maybe) -> None:
    if outputs is None or observed is None:
        pyro.sample("outputs", distribution, obs=outputs)
        return
    marked = observed if mixture.answer_probs is not None else observed.unsqueeze(-1)
    pyro.sample("outputs", distribution.mask(observed), obs=torch.where(marked, outputs, torch.zeros_like(outputs)))


def model(
    mixture: "GaussianMixture",
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    *,
    query_weights: Maybe = None,
) -> None:
    """``unit ~ Categorical(π)``, ``queries | unit``, ``outputs | unit``: three sites in the plates of the problem (PT eq. 1-11).

    ``outputs`` is a latent site where answers have a density and none are given, absent where they have none; ``observed``
    marks the answers that count. A query of weight 0 is absent; other weights multiply its log density.
    """
    enumerated(
        mixture, plates(mixture, queries, outputs, observed, query_weights), queries, outputs, observed, query_weights
    )


def enumerated(
    mixture: "GaussianMixture", plates: Plates, queries: Tensor, outputs: Maybe, observed: Maybe, query_weights: Maybe
) -> None:
    """`model` within plates that are already there."""
    with weighted_queries(plates, query_weights):
        unit = pyro.sample("unit", Categorical(logits=mixture.log_weights()), infer=PARALLEL)
        pyro.sample(
            "queries",
            isotropic(given_unit(mixture.keys, unit, 1), given_unit(mixture.key_precision, unit, 0)),
            obs=queries,
        )
        if mixture.answer_density:
            _answer(mixture, _emission(mixture, unit), outputs, observed)


def collapsed(
    mixture: "GaussianMixture",
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    *,
    query_weights: Maybe = None,
) -> None:
    """The same joint density of queries and outputs with ``unit`` summed out: ``p(q)``, then ``p(v | q)``."""
    marginal(
        mixture, plates(mixture, queries, outputs, observed, query_weights), queries, outputs, observed, query_weights
    )


def marginal(
    mixture: "GaussianMixture", plates: Plates, queries: Tensor, outputs: Maybe, observed: Maybe, query_weights: Maybe
) -> None:
    """`collapsed` within plates that are already there."""
    with weighted_queries(plates, query_weights):
        asked = pyro.sample(
            "queries",
            IsotropicMixture(mixture.log_weights(), mixture.keys, mixture.key_precision, queries.shape[-2]),
            obs=queries,
        )
        if mixture.answer_density:
            if mixture.answer_probs is not None:
                answer = Categorical(probs=mixture.expected_outputs(asked))
            else:
                answer = answers.answer_mixture(mixture, mixture.log_joint(asked))
            _answer(mixture, answer, outputs, observed)


def guide(
    mixture: "GaussianMixture",
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    attention: Maybe = None,
    *,
    query_weights: Maybe = None,
) -> None:
    """``unit ~ Categorical(attention)``: with the exact E-step ELBO = log evidence, else it falls short by ``Σ_i KL(A_i || W_i)``.

    Answers that the model leaves latent are drawn from the unit's emission, their exact posterior given the unit.
    """
    if attention is None:
        attention = mixture.attention(queries, outputs, observed)
    else:
        expected = (queries.shape[-2], mixture.num_units)
        if attention.shape[-2:] != expected:
            raise ValueError(
                f"attention has shape {tuple(attention.shape)} but must end in {expected}: queries by units"
            )
        check.simplex("attention", attention)
    with weighted_queries(plates(mixture, queries, outputs, observed, query_weights), query_weights):
        unit = pyro.sample("unit", Categorical(logits=safe_log(attention)), infer=PARALLEL)
        if outputs is None and mixture.answer_density:
            pyro.sample("outputs", _emission(mixture, unit))


__all__ = ["collapsed", "enumerated", "guide", "marginal", "model", "plates", "problem_shape"]

"""ECM: keys, precisions, answers and weights of a mixture adapt to queries and to annotated answers under Pyro priors.

One step is one E-step, then the locations, then the precisions (with the *new* locations), then the weights (PT eq. 29, 30,
35, 37, 38 with errata 2, 3, 8, 15). Every conditional maximisation is exact, so that the objective, the log joint of the Pyro
program ``models.bayesian(mixture, priors)``, never falls. All sums come from one pass of `ops.expected_statistics`.
"""

import warnings
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from torch import Tensor

from probtx_pyro.inference._causal import prefix_problem, prefix_result
from probtx_pyro.inference._gradient_map import gradient_map
from probtx_pyro.inference._log_joint import Data, Posterior
from probtx_pyro.inference.distributed import Together
from probtx_pyro.models import GaussianKeys, GaussianMixture, MixturePriors
from probtx_pyro.models import _validation as check
from probtx_pyro.models.priors import bare, require_modes
from probtx_pyro.ops import fixed_point

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

M = TypeVar("M", GaussianMixture, GaussianKeys)


class Adaptation(NamedTuple, Generic[M]):
    """A mixture adapted to data.

    mixture: the adapted mixture; parameters without a prior are those of the mixture given.
    objective: ``log p(parameters) + Σ_i log p(q_i, v_i | parameters)`` at the start and after every step, shape
        (num_steps + 1, *problems); the leading axes along which a parameter is shared count as one problem.
    converged: which problems met ``tol``, boolean (*problems,).
    num_steps: steps that each problem took, integer (*problems,).
    method: "ECM", or "gradient MAP" where a prior has no closed-form update.
    """

    mixture: M
    objective: Tensor
    converged: Tensor
    num_steps: Tensor
    method: str


def adapt(
    mixture: M,
    queries: Tensor,
    priors: MixturePriors,
    outputs: Tensor | None = None,
    observed: Tensor | None = None,
    num_steps: int = 10,
    tol: float | None = None,
    *,
    query_weights: Tensor | None = None,
    implicit: bool = False,
    progress: bool | None = None,
    causal: bool = False,
    process_group: "ProcessGroup | None" = None,
) -> Adaptation[M]:
    """MAP of every parameter that has a prior, given queries and any annotated answers.

    Parameters
    ----------
    mixture
        Where the adaptation starts: a `GaussianMixture`, or a `GaussianKeys` (MGK's E-step and M-step, errata 10 and 11
        mended). A parameter that lacks a leading axis is shared along it and its statistics are summed over it; weights
        that are None stand for uniform ones of each problem.
    queries
        (..., Q, D).
    priors
        Distributions over the parameters to adapt; `MixturePriors.flat` is maximum likelihood.
    outputs, observed
        Answers (..., Q, M) or labels (..., Q), and a boolean (..., Q) that says which of them are known (all if None).
    num_steps, tol
        At most so many ECM steps (L-BFGS iterations for gradient MAP). With ``tol``, a problem stops when no parameter moves
        by more than ``tol`` times the largest magnitude in its tensor.
    query_weights
        (..., Q), non-negative multiplicities; 0 is an absent query (ragged batches).
    implicit
        Gradients of the result by the implicit function theorem at the fixed point, instead of through the steps.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.
    causal
        Query i uses the statistics of queries 1..i only, each prefix adapting its own copy: parameters gain a query axis,
        keys become (..., Q, U, D), to be asked with queries (..., Q, 1, D). Costs O(Q² U) a step.
    process_group
        Each process of this ``torch.distributed`` group calls with the same mixture, priors and options, and with its own
        share of the queries (at least one; shares may differ in size) and of what goes with them; all get the result of one
        process with all the queries, weights with a row for each query the rows of theirs. Gradients through the
        steps: `inference.distributed`. Not with ``causal``, ``implicit`` or priors without closed-form updates.

    Returns
    -------
    Adaptation

    Raises
    ------
    ValueError
        Bad shapes or values; a prior without a mode or on a parameter that the mixture lacks.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> mixture = GaussianMixture(torch.tensor([[-1.0], [1.0]]), key_precision=10.0)
    >>> queries = torch.tensor([[-2.0], [-2.2], [2.0]])
    >>> fit = adapt(mixture, queries, MixturePriors(keys=Normal(mixture.keys, 1.0)))
    >>> [round(float(key), 3) for key in fit.mixture.keys]
    [-2.048, 1.909]

    References
    ----------
    Movellan & Gabbur 2020, eq. 26-38; Nguyen et al. 2022, E-step and M-step; Meng & Rubin 1993 for ECM.
    """
    if num_steps < 0 or (tol is not None and not tol > 0):
        raise ValueError(f"num_steps must be 0 or more and tol positive, not num_steps={num_steps}, tol={tol}")
    if not priors.given():
        raise ValueError(
            "priors are empty, so nothing would adapt; give a prior, or MixturePriors.flat(name) for maximum likelihood"
        )
    _check_weights(queries, query_weights)
    together = Together(process_group)
    if process_group is not None and (causal or implicit or not priors.conjugate()):
        raise ValueError(
            "process_group needs ECM unrolled over all queries; choose conjugate priors, causal=False and implicit=False"
        )
    data = Data(queries, outputs, observed, query_weights)
    if causal:
        if not priors.conjugate():
            raise ValueError(
                "causal adaptation needs closed-form updates; choose conjugate priors, or adapt each prefix by itself"
            )
        wide, wide_priors, prefixes = prefix_problem(mixture, data, priors)
        fit = adapt(wide, prefixes.queries, wide_priors, prefixes.outputs, prefixes.observed, num_steps, tol,
                    query_weights=prefixes.query_weights, implicit=implicit, progress=progress)  # fmt: skip
        return fit._replace(mixture=prefix_result(fit.mixture))
    posterior = Posterior(mixture, priors, data, together)
    require_modes(posterior.sites)
    posterior.require_agreement(num_steps=num_steps, tol=tol)
    if priors.conjugate():
        found = fixed_point(posterior.step, posterior.start, problems=posterior.problems, num_steps=num_steps, tol=tol,
                            objective=posterior.objective, implicit=implicit, progress=progress, label="ECM",
                            together=together.largest)  # fmt: skip
        method = "ECM"
    else:
        if implicit:
            raise ValueError(
                "implicit differentiation needs closed-form updates; choose conjugate priors or implicit=False"
            )
        others = ", ".join(f"{name} ~ {type(bare(prior)).__name__}" for name, prior in priors.given().items())
        warnings.warn(
            f"no closed-form update for all of {others}: gradient MAP (L-BFGS) climbs the same objective", stacklevel=2
        )
        found = gradient_map(
            posterior.objective,
            posterior.start,
            posterior.sites,
            problems=posterior.problems,
            num_steps=num_steps,
            tol=tol,
            progress=progress,
        )
        method = "gradient MAP"
    adapted = {name: x.reshape(posterior.sites[name].initial.shape) for name, x in found.state.items()}
    assert found.objective is not None
    return Adaptation(mixture.with_parameters(adapted), found.objective, found.converged, found.num_steps, method)


def _check_weights(queries: Tensor, query_weights: Tensor | None) -> None:
    if query_weights is None:
        return
    if query_weights.shape[-1:] != queries.shape[-2:-1] or not query_weights.is_floating_point():
        raise ValueError(
            f"query_weights must be a floating point tensor (..., {queries.shape[-2]}), one weight for each query, not {query_weights.dtype} {tuple(query_weights.shape)}"
        )
    check.finite(query_weights=query_weights)
    if check.is_validation_enabled() and (query_weights < 0).any():
        raise ValueError("query_weights must be non-negative; 0 leaves a query out")


__all__ = ["Adaptation", "adapt"]

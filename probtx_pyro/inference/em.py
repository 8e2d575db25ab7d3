"""ECM: the parameters of a formulation adapt to data under Pyro priors; of a mixture keys, precisions, answers and weights.

One step is one E-step, then the locations, then the precisions (with the *new* locations), then the weights (PT eq. 29, 30,
35, 37, 38 with errata 2, 3, 8, 15). Every conditional maximisation is exact, so that the objective, the log joint of the Pyro
program ``models.bayesian(formulation, ...)``, never falls.
"""

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, cast

import torch
from torch import Tensor

from probtx_pyro.inference._causal import prefix_problem, prefix_result
from probtx_pyro.inference._gradient_map import gradient_map
from probtx_pyro.inference.distributed import Together
from probtx_pyro.models._bayesian import Bayesian, F
from probtx_pyro.models._problem import Problem
from probtx_pyro.models._validation import violated
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.models.priors import in_dtype, require_modes
from probtx_pyro.ops import fixed_point

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Adaptation(NamedTuple, Generic[F]):
    """A formulation adapted to data.

    formulation: the adapted one; parameters without a prior are those of the formulation given.
    objective: ``log p(parameters) + Σ_i log p(x_i | parameters)`` at the start and after every step, shape
        (num_steps + 1, *problems); the leading axes along which a parameter is shared count as one problem.
    converged: which problems met ``tol``, boolean (*problems,); without ``tol``, those that the last step moved by no more than
        the square root of the precision of their numbers.
    num_steps: steps that each problem took, integer (*problems,).
    method: "ECM", or "gradient MAP" where a prior has no closed-form update.
    """

    formulation: F
    objective: Tensor
    converged: Tensor
    num_steps: Tensor
    method: str

    def summary(self) -> str:
        """Return the run in a line: method, steps, objective, and how many problems converged."""
        done, of = int(self.converged.sum()), self.converged.numel()
        kind = self.formulation.evidence_kind
        said = "" if kind == "posterior" else f", {kind}"
        return (
            f"{self.method} of a {type(self.formulation).__name__}{said}: {int(self.num_steps.max())} steps, objective "
            f"{float(self.objective[0].sum()):.6g} to {float(self.objective[-1].sum()):.6g}, {done} of {of} problems converged"
        )

    def __repr__(self) -> str:
        return self.summary()


def adapt(
    posterior: Bayesian[F],
    *data: Any,
    num_steps: int = 10,
    tol: float | None = None,
    implicit: bool = False,
    progress: bool | None = None,
    causal: bool = False,
    process_group: "ProcessGroup | None" = None,
    **named: Any,
) -> Adaptation[F]:
    """Find the MAP of every parameter that has a prior, given data.

    Parameters
    ----------
    posterior
        `models.bayesian`; the adaptation starts at its formulation. A parameter that lacks a leading axis is shared along it and
        its statistics are summed over it; weights that are None stand for uniform ones of each problem.
    data, named
        The data of the formulation, by place or by name. Of a mixture: queries (..., Q, D); outputs, answers (..., Q, M) or labels
        (..., Q); observed, a boolean (..., Q) that says which of them are known (all if None); query_weights (..., Q),
        non-negative multiplicities, 0 for an absent query (ragged batches).
    num_steps, tol
        At most so many ECM steps (L-BFGS iterations for gradient MAP). With ``tol``, a problem stops when no parameter moves
        by more than ``tol`` times the largest magnitude in its tensor, for keys and values from their mean at the start.
    implicit
        Gradients of the result by the implicit function theorem at the fixed point, instead of through the steps.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.
    causal
        Query i uses the statistics of queries 1..i only, each prefix adapting its own copy: parameters gain a query axis,
        keys become (..., Q, U, D), to be asked with queries (..., Q, 1, D). Costs O(Q² U) a step.
    process_group
        Each process of this ``torch.distributed`` group calls with the same posterior and options, and with its own
        share of the queries (at least one; shares may differ in size) and of what goes with them; all get the result of one
        process with all the queries, weights with a row for each query the rows of theirs. Gradients through the
        steps: `inference.distributed`. Not with ``causal``, ``implicit`` or priors without closed-form updates.

    Returns
    -------
    Adaptation

    Raises
    ------
    ValueError
        Bad shapes or values; a prior without a mode or on a parameter that the formulation lacks; parameters or an objective that come
        to be NaN or infinite, naming the problem and the parameter.
    NotImplementedError
        A prior with hyperparameters, whose MAP is no summary of the posterior.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]), key_precision=10.0)
    >>> queries = torch.tensor([[-2.0], [-2.2], [2.0]])
    >>> fit = adapt(models.bayesian(mixture, keys=Normal(mixture.keys, 1.0)), queries)
    >>> [round(float(key), 3) for key in fit.formulation.keys]
    [-2.048, 1.909]

    References
    ----------
    Movellan & Gabbur 2020, eq. 26-38; Nguyen et al. 2022, E-step and M-step; Meng & Rubin 1993 for ECM.
    """
    require_posterior(posterior, "inference.adapt")
    if num_steps < 0 or (tol is not None and not tol > 0):
        raise ValueError(f"num_steps must be 0 or more and tol positive, not num_steps={num_steps}, tol={tol}")
    if not posterior.priors:
        raise ValueError(
            "priors are empty, so nothing would adapt; give models.bayesian a prior, or models.FLAT for maximum likelihood"
        )
    posterior.require_plain("MAP estimate that summarises the posterior")
    problem, together = posterior.problem(*data, **named), Together(process_group)
    if process_group is not None and (causal or implicit or not problem.closed):
        raise ValueError(
            "process_group needs ECM unrolled over all queries; choose conjugate priors, causal=False and implicit=False"
        )
    if causal and not problem.closed:
        raise ValueError(
            "causal adaptation needs closed-form updates; choose conjugate priors, or adapt each prefix by itself"
        )
    if implicit and not problem.closed:
        raise ValueError(
            "implicit differentiation needs closed-form updates; choose conjugate priors or implicit=False"
        )
    return climbed(posterior, problem, num_steps, tol, implicit, progress, causal, together)


def climbed(
    posterior: Bayesian[F],
    problem: Problem,
    num_steps: int,
    tol: float | None,
    implicit: bool = False,
    progress: bool | None = None,
    causal: bool = False,
    together: Together | None = None,
) -> Adaptation[F]:
    """Return `adapt` of a problem that the posterior made of data; what its other arguments ask for is there."""
    how: dict[str, Any] = {"implicit": implicit, "progress": progress}
    if (half := _half(posterior.formulation)) is not None:
        priors = {name: in_dtype(prior, torch.float32) for name, prior in posterior.priors.items()}
        low = Bayesian(posterior.formulation.to(torch.float32), priors, posterior.collapsed)
        wide = low.problem(*_cast(problem.data, torch.float32))
        fit = climbed(low, wide, num_steps, tol, causal=causal, together=together, **how)
        rounded = fit.formulation.to(half)
        for name in priors:
            if violated(~torch.isfinite(cast(Tensor, rounded.parameter(name)).detach())):
                raise ValueError(
                    f"inference.adapt: {name} came to numbers beyond the range of {half}; adapt formulation.to(torch.float32)"
                )
        return fit._replace(formulation=rounded)
    if causal:
        prefixes, data = prefix_problem(posterior, problem.data)
        fit = climbed(prefixes, prefixes.problem(*data), num_steps, tol, **how)
        return fit._replace(formulation=prefix_result(fit.formulation))
    require_modes(problem.sites)
    together = together or Together()
    if together.group is not None:
        problem = problem.over(together.sum)
        together.agree_on(problem, num_steps=num_steps, tol=tol)
    options: dict[str, Any] = {"num_steps": num_steps, "tol": tol, "progress": progress, "problems": problem.problems}
    found: Any
    if problem.closed:
        found = fixed_point(problem.ecm_step, problem.start, objective=problem.objective, implicit=implicit,
                            label="ECM", together=together.largest, origins=problem.formulation.origins(), **options)  # fmt: skip
    else:
        warnings.warn(
            f"no closed-form update for all of {posterior.described()}: gradient MAP (L-BFGS) climbs the same objective",
            stacklevel=3,
        )
        require = partial(problem.require_numbers, "inference.adapt")
        found = gradient_map(problem.objective, problem.start, problem.sites, require=require, **options)
    problem.require_numbers("inference.adapt", found.state, _worst(found.objective))
    formulation, method = cast(F, problem.adapted(found.state)), "ECM" if problem.closed else "gradient MAP"
    return Adaptation(formulation, found.objective, found.converged, found.num_steps, method)


def _worst(objective: Tensor) -> Tensor:
    """The last objective of each problem, NaN where one before it was NaN or +infinity; a start may have no density."""
    return torch.where((objective < torch.inf).all(0), objective[-1], torch.nan)


def require_posterior(posterior: Any, verb: str) -> None:
    """Refuse what is not made by `models.bayesian`."""
    if not isinstance(posterior, Bayesian):
        if isinstance(posterior, Formulation) and not posterior.offers("log_evidence"):
            posterior.refuse("log_evidence")
        raise ValueError(
            f"{verb} takes models.bayesian(formulation, ...), not a {type(posterior).__name__}; put priors on its parameters first"
        )


def _half(formulation: Formulation) -> torch.dtype | None:
    """The dtype of a formulation in half precision, in which sums would be lost; None of others."""
    kind = next(iter(formulation.parameters().values())).dtype
    return kind if kind in (torch.float16, torch.bfloat16) else None


def _cast(data: Data, dtype: torch.dtype) -> Data:
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in data)

"""The gap from a fitted guide to the exact posterior: the log evidence less the ELBO, in nats, by query and by problem.

With θ the parameters and u the assignments, the gap is ``KL(q(θ) || p(θ|x)) + E_q(θ) Σ_i KL(q(u_i) || p(u_i|x_i, θ))``,
equation (0.2) of docs/mathematics.md. The second term is summed exactly at every θ; the first is estimated from draws
of the guide.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.infer import config_enumerate
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from probtx_pyro.inference import Approximation
from probtx_pyro.inference._program import Parameters, parameters, untouched
from probtx_pyro.inference._start import seeds
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.priors import bare
from probtx_pyro.results._arviz import pareto_smoothed


class Gap(NamedTuple):
    """The log evidence less the ELBO of a guide, in nats.

    assignments: ``KL(q(u_i) || p(u_i | x_i, θ))`` of each query times its weight, averaged over the guide's θ, (...,
        Q); None where the guide leaves assignments to be summed out, which costs nothing.
    parameters: ``KL(q(θ) || p(θ | x))`` of each problem, (...), estimated; None where there are no parameters.
    assignments_error, parameters_error: Monte Carlo standard errors of both; without parameters there is nothing to
        sample, and the error of the assignments is 0.
    pareto_k: shape of the tail of the importance weights ``p(θ, x) / q(θ)`` of each problem, (...). Above 0.7 the guide
        misses posterior mass, and ``parameters`` is too small (Vehtari et al. 2024).
    kind: "posterior", or what else the guide is held against, as "pseudo-posterior".
    """

    assignments: Tensor | None
    parameters: Tensor | None
    assignments_error: Tensor | None
    parameters_error: Tensor | None
    pareto_k: Tensor | None
    kind: str = "posterior"

    def __repr__(self) -> str:
        rows = []
        if self.assignments is not None:
            x = self.assignments
            rows.append(f"assignments {float(x.mean()):.4g} nats per query, at most {float(x.max()):.4g}")
        if self.parameters is not None and self.parameters_error is not None and self.pareto_k is not None:
            error = float(self.parameters_error.square().mean().sqrt()) / math.sqrt(self.parameters.numel())
            rows.append(
                f"parameters {float(self.parameters.mean()):.4g} ± {error:.2g} nats per problem, Pareto k at most "
                f"{float(self.pareto_k.max()):.2f}"
            )
        return f"Gap to the exact {self.kind}: {'; '.join(rows)}"


def gap(fit: Approximation, *, num_samples: int = 1000, seed: int) -> Gap:
    """Say how far a guide is from the exact posterior of the data that its draws are of.

    Parameters
    ----------
    fit
        Of `inference.variational`, or ``fit.applied(*other_data)``, for queries that the guide was not trained on.
    num_samples
        Draws of the parameters, where there are some.
    seed
        Fixes these draws.

    Returns
    -------
    Gap

    Raises
    ------
    ValueError
        A guide that puts all on a point, whose gap is infinite; one whose density is of all problems at once; a program
        that is not made by `models.bayesian`.
    NotImplementedError
        Priors with hyperparameters.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import inference, models
    >>> mixture = models.GaussianMixture(torch.zeros(1, 1))  # one unit: the posterior is normal
    >>> posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    >>> fit = inference.variational(posterior, torch.tensor([[0.3], [0.9]]), num_steps=500, learning_rate=0.1, seed=0)
    >>> found = gap(fit, seed=0)
    >>> bool(found.parameters.abs() < 0.01), found.assignments
    (True, None)
    """
    if num_samples < 2:
        raise ValueError(f"num_samples must be 2 or more, for a standard error, not {num_samples}")
    if not isinstance(fit, Approximation):
        raise ValueError(f"fit must be what inference.variational returned, not {type(fit).__name__}, without a guide")
    posterior, arguments = fit.draws.program, fit.draws.arguments
    if not isinstance(posterior, Bayesian):
        raise ValueError("gap: the evidence of each problem is known of programs made by models.bayesian alone")
    posterior.require_plain("gap")
    (own,) = seeds(seed, 1, "variational")
    with untouched(), torch.no_grad(), pyro.validation_enabled(False):
        found = parameters(posterior, arguments, assignments=True)
        torch.manual_seed(own)
        rows = [_row(found, fit.guide) for _ in range(num_samples if found.sites else 1)]
    each = [x for x, _ in rows if x is not None]
    assignments = errors = None
    if each:
        values = torch.stack(each)
        assignments = values.mean(0)
        errors = torch.zeros_like(assignments) if not found.sites else values.std(0) / num_samples**0.5
    weights = [x for _, x in rows if x is not None]
    if not weights:
        return Gap(assignments, None, errors, None, None, posterior.formulation.evidence_kind)
    parts, part_errors, tails = _divergence(torch.stack(weights))
    return Gap(assignments, parts, errors, part_errors, tails, posterior.formulation.evidence_kind)


def _row(found: Parameters, guide: Any) -> tuple[Tensor | None, Tensor | None]:
    """At one draw of the guide: the divergence of each query's assignment, and ``log p(θ,
    x) - log q(θ)`` of each problem.
    """
    with poutine.enum(first_available_dim=-1 - found.plate_depth):
        trace = poutine.trace(config_enumerate(guide)).get_trace(*found.arguments)
    nodes = _nodes(trace)
    drawn = {name: nodes[name]["value"] for name in found.sites}
    problem, log_weights = found.problem, None
    assert problem is not None
    if drawn:
        log_joint = problem.objective({name: x.reshape(problem.start[name].shape) for name, x in drawn.items()})
        free = {name: node for name, node in nodes.items() if name not in found.discrete}
        log_weights = log_joint - _log_density(free, drawn, log_joint.shape)
    left = [name for name in found.discrete if name not in nodes]
    if len(left) == len(found.discrete):
        return None, log_weights
    if left:
        raise ValueError(
            f"gap: the guide draws {', '.join(set(found.discrete) - set(left))} but not {left[0]}; let it draw all"
        )
    trace.compute_log_prob()
    program = poutine.trace(poutine.replay(found.program, trace=trace)).get_trace(*found.arguments)
    program.compute_log_prob()
    own = sum(nodes[name]["unscaled_log_prob"] for name in found.discrete)
    joints = sum(node["unscaled_log_prob"] for name, node in _nodes(program).items() if name not in drawn)
    own, joints = torch.broadcast_tensors(own, joints)
    terms = torch.where(own > -torch.inf, own.exp() * (own - joints), 0.0)
    short = terms.flatten(0, terms.dim() - 1 - found.plate_depth).sum(0)
    short = short + problem.formulation.with_parameters(drawn).log_density(*problem.observations)
    counts = problem.weights
    return short if counts is None else torch.where(counts > 0, counts * short, 0.0), log_weights


def _nodes(trace: Any) -> dict[str, Any]:
    """The sample sites of a trace."""
    return {
        name: node for name, node in trace.nodes.items() if node["type"] == "sample" and not site_is_subsample(node)
    }


def _log_density(sites: Mapping[str, Any], drawn: Collection[str], problems: torch.Size) -> Tensor:
    """``log q(θ)`` of each problem, from the sites of a guide, auxiliary ones among them."""
    if all(name in drawn for name in sites) and any(isinstance(bare(node["fn"]), Delta) for node in sites.values()):
        raise ValueError("gap: the guide puts a parameter on a point, so that its gap is infinite; take another guide")
    total: Any = 0.0
    for name, node in sites.items():
        x = bare(node["fn"]).log_prob(node["value"])
        if problems.numel() > 1 and x.shape[: len(problems)] != problems:
            raise ValueError(
                f"gap: the guide's site {name!r} has one density for all problems, of shape {tuple(problems)}; "
                "take a guide with one for each, or one problem at a time"
            )
        total = total + (x.reshape(*problems, -1).sum(-1) if problems.numel() > 1 else x.sum())
    return total


def _divergence(log_weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``log E[w] - E[log w]`` over the draws (draw, ...), its standard error by the delta method,
    and the tail's shape.
    """
    draws = len(log_weights)
    log_mean = log_weights.logsumexp(0) - math.log(draws)
    mean = log_weights.mean(0)
    influence = (log_weights - log_mean).exp() - (log_weights - mean)
    tails = [_tail(column) for column in log_weights.reshape(draws, -1).double().cpu().numpy().T]
    return log_mean - mean, influence.std(0) / draws**0.5, torch.tensor(tails).reshape(mean.shape)


def _tail(log_weights: np.ndarray) -> float:
    """Pareto's k of the weights; minus infinity where they are all the same, to rounding: the guide is exact."""
    scale = np.abs(log_weights).max()
    if np.ptp(log_weights) <= 1e-9 * max(1.0, scale):
        return -math.inf
    return pareto_smoothed(log_weights, 1.0)[1]

"""Importance sampling of the log normaliser of a formulation's latent choices, and a bound of it,
from draws of a simpler distribution.

With ``log w = log φ(Z) - log Q(Z)`` of draws Z from Q, what is summed out of φ summed out exactly,

    E_Q[log w] = E_Q[log φ(Z)] + H(Q)  <=  log Z = log E_Q[w]

The left side is unbiased and a bound; that it lies above the ELBO of a Q that has more factors is Jensen's inequality.
"""

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from probtx_pyro.inference._program import require_counts, require_finite
from probtx_pyro.inference._start import seeds
from probtx_pyro.models.formulation import Formulation, Latents

CHUNK = 64  # draws whose densities are computed at once, as many as annealing has chains


@runtime_checkable
class Proposal(Protocol):
    """A distribution of latent choices that can be drawn from, such as a mean field."""

    def draw(self, num_draws: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Independent states (draw, *problems, ...), as `probtx_pyro.models.Latents` takes them."""

    def log_prob(self, state: dict[str, Tensor]) -> Tensor:
        """Their log probabilities, normalised, (draw, *problems)."""


class ImportanceLogPartition(NamedTuple):
    """A bound and an estimate of log Z, for each problem.

    bound, bound_error: ``E_Q[log φ] + H(Q)``, by the mean over draws, and its standard error, (...).
    log_partition, standard_error: log of the mean weight, low in expectation, and its standard error, (...), which is
    too small where few draws hold the weight: ``results.pareto_k(log_weights)`` above 0.7 says so.
    effective_draws: ``(Σ w)² / Σ w²``, (...). log_weights: (draw, ...).
    """

    bound: Tensor
    bound_error: Tensor
    log_partition: Tensor
    standard_error: Tensor
    effective_draws: Tensor
    log_weights: Tensor

    def __repr__(self) -> str:
        return f"ImportanceLogPartition {tuple(self.bound.shape)}: {len(self.log_weights)} draws"


def importance_log_partition(
    formulation: Formulation,
    *data: Any,
    proposal: Proposal,
    num_draws: int = 4096,
    seed: int,
    **named: Any,
) -> ImportanceLogPartition:
    """Bound and estimate ``log Z = log Σ φ`` by draws from a proposal, which this judges, too.

    Parameters
    ----------
    formulation
        One whose latent choices can be drawn, such as a dependency CRF.
    data, named
        What is known of them, by place or by name. The proposal must be made with the same.
    proposal
        Draws and log probabilities of the choices that are not summed out (`Proposal`): ``crf.mean_field(...)``. What
        it gives no probability does not count, so that the estimate is low by it.
    num_draws
        Independent draws; the errors fall with their root.
    seed
        A non-negative integer, which fixes the result to the bit on one device.

    Returns
    -------
    ImportanceLogPartition

    Raises
    ------
    ValueError
        A proposal that cannot be drawn from, or that draws what is known not to be; log densities that are not finite.
    NotImplementedError
        A formulation without latent choices to draw.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import models
    >>> _ = torch.manual_seed(0)
    >>> crf = models.DependencyCRF(torch.randn(4, 3), torch.randn(2, 2, 3, 3))
    >>> field = crf.mean_field(50)
    >>> found = importance_log_partition(crf, proposal=field, seed=0)
    >>> bool(field.elbo < found.bound), bool(found.bound < crf.log_partition())
    (True, True)

    References
    ----------
    Saul & Jordan 1995, *Exploiting tractable substructures in intractable networks*; Yao, Vehtari, Simpson & Gelman
    2018, *Yes, but did it work?: Evaluating variational inference*.
    """
    require_counts(num_draws=num_draws)
    if num_draws < 2:
        raise ValueError("num_draws must be 2 or more, because the standard errors are those of their weights")
    if not isinstance(proposal, Proposal):
        raise ValueError(f"proposal must have draw and log_prob, not be a {type(proposal).__name__}; give a mean field")
    latents, like = latents_of(formulation, *data, **named)
    (own,) = seeds(seed, 1, "importance")
    generator, weights = torch.Generator(like.device).manual_seed(own), []
    with torch.no_grad():
        for begun in range(0, num_draws, CHUNK):
            state = proposal.draw(min(CHUNK, num_draws - begun), generator)
            weights.append(latents.log_density(state, 1.0)[0] - proposal.log_prob(state))
        log_weights = torch.cat(weights)
        if (log_weights == -math.inf).any():
            raise ValueError("proposal draws choices that differ from what is known; make it with the same data")
        require_finite("importance_log_partition", formulation, log_weights)
        return ImportanceLogPartition(
            log_weights.mean(0), log_weights.std(0) / num_draws**0.5, *log_mean(log_weights), log_weights
        )


def latents_of(formulation: Formulation, *data: Any, **named: Any) -> tuple[Latents, Tensor]:
    """Latent choices given the data, and a tensor of their device and dtype; refused where ``formulation`` is none."""
    if not isinstance(formulation, Formulation):
        raise ValueError(f"formulation must be a value of models, not a {type(formulation).__name__}")
    like = next(iter(formulation.parameters().values()))
    return formulation.latents(formulation.bind(*data, **named)), like


def log_mean(log_weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log of the mean over axis 0, its standard error, and the effective number of weights.

    The error is the relative one of the mean, as the delta method has it.
    """
    number = len(log_weights)
    mean = log_weights.logsumexp(0) - math.log(number)
    relative = (log_weights - mean).exp()
    return mean, (relative.var(0) / number).sqrt(), number / relative.square().mean(0)

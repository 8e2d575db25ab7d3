"""Annealed importance sampling of the log normaliser of a formulation's latent choices (Neal 2001).

Chains go from β = 0, where the choices can be drawn exactly, to β = 1, a sweep at each temperature, and are weighted by

    log w = Σ_t [log φ_{β_t}(Z_{t-1}) - log φ_{β_{t-1}}(Z_{t-1})],      log Z = log Z_0 + log E[w]

so that the estimate of Z is unbiased, and that of log Z is low in expectation. From an exact draw of the posterior the
same chains go from 1 to 0, and 1 / E[w] is unbiased of 1 / Z: that estimate of log Z is high in expectation (Grosse,
Ghahramani & Adams 2015).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.inference._gibbs import begin
from probtx_pyro.inference._importance import latents_of, log_mean
from probtx_pyro.inference._program import require_counts, require_finite
from probtx_pyro.inference._start import seeds
from probtx_pyro.models.formulation import Formulation, Latents
from probtx_pyro.ops._progress import progress_bar

PILOT = 20  # temperatures of the run that places the others
UNIFORM = 0.1  # share of the temperatures that lie evenly, wherever the pilot sees no change


class AnnealedLogPartition(NamedTuple):
    """An estimate of log Z, for each problem.

    log_partition: (...). standard_error: of it, (...), by the spread of the weights. effective_chains: how many equal
    weights say as much, ``(Σ w)² / Σ w²``, (...); where they are few, the standard error is too small, too.
    log_weights: of every chain, (chain, ...). temperatures: the β, from 0 to 1, or from 1 to 0 where ``reverse``.
    """

    log_partition: Tensor
    standard_error: Tensor
    effective_chains: Tensor
    log_weights: Tensor
    temperatures: Tensor
    reverse: bool

    def __repr__(self) -> str:
        kind = "high in expectation if its draws were exact" if self.reverse else "low in expectation"
        return f"AnnealedLogPartition {tuple(self.log_partition.shape)}: {len(self.log_weights)} chains, {len(self.temperatures)} temperatures, {kind}"


def annealed_log_partition(
    formulation: Formulation,
    *data: Tensor | None,
    num_temperatures: int = 100,
    num_chains: int = 64,
    seed: int,
    temperatures: Sequence[float] | Tensor | None = None,
    exact: Mapping[str, Tensor] | None = None,
    progress: bool | None = None,
    **named: Tensor | None,
) -> AnnealedLogPartition:
    """Estimate ``log Z = log Σ φ`` over latent choices of any number by annealed importance sampling.

    Parameters
    ----------
    formulation
        One whose latent choices can be drawn, such as a dependency CRF.
    data, named
        What is known of them, by place or by name: the estimate is then of the sum over the others, and less log Z
        without data the log probability of what is known.
    num_temperatures, num_chains
        Sweeps of each chain, and chains, all one batch. Twice the temperatures about halve the variance of the log
        weights.
    seed
        A non-negative integer, which fixes the result to the bit on one device.
    temperatures
        β from 0 to 1, rising. None places them by a short run of other chains, so that the log weights vary alike from
        each to the next; the estimate stays unbiased.
    exact
        Exact independent draws from the posterior, as `inference.gibbs` names its samples without those it sums out,
        (chain, ...), or one for all chains, (...): the chains go from there to β = 0, and the estimate is high in
        expectation. Of a sum that can be enumerated they are at hand, as where all labels but a few are known. Draws of
        long chains are nearly exact: from those the estimate is a check of the one upwards, and bounds nothing.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.

    Returns
    -------
    AnnealedLogPartition

    Raises
    ------
    ValueError
        Temperatures that do not rise from 0 to 1, draws that do not fit, data as the formulation refuses them, or log
        densities that are not finite.
    NotImplementedError
        A formulation without latent choices to draw.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import models
    >>> _ = torch.manual_seed(0)
    >>> crf = models.DependencyCRF(torch.randn(4, 3), torch.randn(2, 2, 3, 3))
    >>> estimate = annealed_log_partition(crf, seed=0)
    >>> bool((estimate.log_partition - crf.log_partition()).abs() < 4 * estimate.standard_error)
    True

    References
    ----------
    Neal 2001, *Annealed importance sampling*; Gelman & Meng 1998, *Simulating normalizing constants* (where to place
    temperatures); Grosse, Ghahramani & Adams 2015, *Sandwiching the marginal likelihood using bidirectional Monte
    Carlo*.
    """
    require_counts(num_temperatures=num_temperatures, num_chains=num_chains)
    if num_chains < 2:
        raise ValueError("num_chains must be 2 or more, because the standard error is that of their weights")
    latents, like = latents_of(formulation, *data, **named)
    pilot, own = (torch.Generator(like.device).manual_seed(s) for s in seeds(seed, 2, "annealing"))
    with torch.no_grad():
        if temperatures is None:
            betas = _placed(formulation, latents, num_temperatures, num_chains, pilot)
        else:
            betas = _rising(temperatures)
        state = begin(latents, num_chains, exact, own, "exact")
        if exact is not None:
            betas = betas[::-1]
        steps = _weights(latents, state, betas, own, progress)
        log_weights = torch.stack(steps).sum(0)
        require_finite("annealed_log_partition", formulation, log_weights)
        return _estimate(latents.log_partition(), log_weights, betas, exact is not None)


def _weights(
    latents: Latents, state: Mapping[str, Tensor], betas: list[float], generator: torch.Generator, progress: bool | None
) -> list[Tensor]:
    """Log weights of every chain from each temperature to the next, (chain, ...) each."""
    found = []
    pairs = list(pairwise(betas))
    for before, after in progress_bar(pairs, label="annealing", progress=progress):
        at, new = latents.log_density(state, before, after)
        found.append(new - at)
        state = latents.sweep(state, generator, after)
    return found


def _placed(
    formulation: Formulation, latents: Latents, number: int, num_chains: int, generator: torch.Generator
) -> list[float]:
    """Temperatures between which the log weights have equal standard deviations,
    as a run of a few even ones finds them.
    """
    grid = torch.linspace(0, 1, PILOT + 1, dtype=torch.float64, device="cpu")
    steps = _weights(latents, latents.start(num_chains, generator), grid.tolist(), generator, False)
    require_finite("annealed_log_partition", formulation, torch.stack(steps))
    lengths = torch.stack([x.var(0).sum().sqrt() for x in steps]).double().cpu()  # of all problems together
    if float(lengths.sum()) > 0:
        lengths = (1 - UNIFORM) * lengths / lengths.sum() + UNIFORM / PILOT
    else:
        lengths = torch.full_like(lengths, 1 / PILOT)
    ends = torch.cat([grid.new_zeros(1), lengths.cumsum(0)])
    at = torch.linspace(0, 1, number + 1, dtype=torch.float64, device="cpu") * ends[-1]
    place = torch.searchsorted(ends, at[1:-1], right=True).clamp(1, PILOT) - 1
    inner = (place + (at[1:-1] - ends[place]) / lengths[place]) / PILOT
    return [0.0, *inner.tolist(), 1.0]


def _rising(temperatures: Sequence[float] | Tensor) -> list[float]:
    betas = [float(beta) for beta in temperatures]
    if len(betas) < 2 or betas[0] != 0 or betas[-1] != 1 or any(not a < b for a, b in pairwise(betas)):
        raise ValueError(
            f"temperatures must rise from 0 to 1, not {betas if len(betas) < 8 else f'{betas[:3]} ... {betas[-3:]}'}; "
            "give torch.linspace(0, 1, n), or None"
        )
    return betas


def _estimate(base: Tensor, log_weights: Tensor, betas: list[float], reverse: bool) -> AnnealedLogPartition:
    """Log of the mean weight on the base, and how sure it is."""
    mean, error, effective = log_mean(log_weights)
    found = base - mean if reverse else base + mean
    temperatures = torch.tensor(betas, dtype=torch.float64)
    return AnnealedLogPartition(found, error, effective, log_weights, temperatures, reverse)

"""Losses of approximations of an exact model on a stream: nats, calibration and means, one row for each."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Independent, MixtureSameFamily, Normal

LEVEL = 0.9  # of the bands
DRAWS = 1000  # by which they are found


class Candidate(Protocol):
    """A model of a stream that predicts each value before it is seen."""

    def predictive(self, *data: Any, **options: Any) -> TorchDistribution:
        """The distribution of each value given what came before it, batch shape (..., T), event (M,)."""


class Loss(NamedTuple):
    """Losses of a candidate against the exact model, over the problems of a batch.

    nats: log density of the exact model over the candidate's, summed over the stream, (...). state: the divergence of
    its last state from the posterior, (...), None where it has none. coverage: share of numbers within the central
    band of 90 %, (...). distance: mean squared distance of its predictive means from the exact ones, (...). density: of
    the candidate, by name.
    """

    nats: Tensor
    state: Tensor | None
    coverage: Tensor
    distance: Tensor
    density: str


class NatsLost(dict[str, Loss]):
    """Losses by name of the candidate; printed as a table of means and standard errors over the problems."""

    def __repr__(self) -> str:
        rows = [f"{'':24}{'nats lost':>20}{'of its state':>20}{'in the 90 % band':>18}{'distance':>10}  density"]
        for name, loss in self.items():
            state = "" if loss.state is None else _told(loss.state)
            numbers = f"{float(loss.coverage.mean()):>18.1%}{float(loss.distance.mean()):>10.3g}"
            rows.append(f"{name:24}{_told(loss.nats):>20}{state:>20}{numbers}  {loss.density}")
        return "\n".join(rows)


def nats_lost(
    exact: Any, candidates: Mapping[str, Candidate], *data: Tensor, fitted_on: Any = None, seed: int = 0
) -> NatsLost:
    """Score candidates on a stream against the exact model, value by value before each is seen.

    Parameters
    ----------
    exact
        A formulation with ``predictive``, such as a regression memory.
    candidates
        By name: other formulations with ``predictive``, or published layers.
    data
        Of ``exact``: keys (..., T, D) and values (..., T, M).
    fitted_on
        Other data of the same kind. Candidates that can be given one variance then have that which fits these data
        best, the density called "constant"; None leaves each the density that it implies.
    seed
        Of the draws by which bands are found that are neither normal nor mixtures of normals.

    Returns
    -------
    NatsLost
        A mapping by name. The choice of density is part of a loss, and is printed.

    Raises
    ------
    ValueError
        A candidate that implies no density, where there is nothing to fit one on.

    Examples
    --------
    >>> from probtx_pyro import models
    >>> _ = torch.manual_seed(0)
    >>> keys = torch.nn.functional.normalize(torch.randn(64, 4), dim=-1)
    >>> values = keys @ torch.randn(4, 2) + 0.2 * torch.randn(64, 2)
    >>> found = nats_lost(models.RegressionMemory(1.0, 25.0), {"delta": models.layers.delta(0.7)}, keys, values)
    >>> bool(found["delta"].nats > 0)
    True
    """
    values = data[1].double()
    best = exact.predictive(*data)
    found = NatsLost()
    for name, candidate in candidates.items():
        options: dict[str, Any] = {}
        if fitted_on is not None and hasattr(candidate, "fitted_variance"):
            options = {"density": "constant", "variance": candidate.fitted_variance(*fitted_on).mean()}
        said = candidate.predictive(*data, **options)
        divergence = getattr(candidate, "divergence", None)
        density = options.get("density", "implied" if divergence else "exact")
        nats = (best.log_prob(data[1]).double() - said.log_prob(values.to(said.mean.dtype)).double()).sum(-1)
        below = _below(said, values, seed)
        found[name] = Loss(
            nats,
            None if divergence is None else divergence(exact, *data),
            (2 * (below - 0.5).abs() < LEVEL).double().mean((-2, -1)),
            (said.mean.double() - best.mean.double()).square().mean((-2, -1)),
            density,
        )
    return found


def _below(said: Any, values: Tensor, seed: int) -> Tensor:
    """The probability of a smaller number than each of the values, (..., T, M): of normals and their mixtures exactly,
    of other distributions by draws.
    """
    if isinstance(said, Independent):
        return _below(said.base_dist, values, seed)
    if isinstance(said, Normal):
        return said.cdf(values)
    if isinstance(said, MixtureSameFamily):
        each = _below(said.component_distribution, values.unsqueeze(-2), seed)  # (..., T, unit, M)
        return (said.mixture_distribution.probs.unsqueeze(-1) * each).sum(-2)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return (said.sample(torch.Size((DRAWS,))) < values).double().mean(0)


def _told(x: Tensor) -> str:
    """Mean and standard error over problems."""
    flat = x.flatten()
    error = f" ({float(flat.std() / len(flat) ** 0.5):.2g})" if len(flat) > 1 else ""
    return f"{float(flat.mean()):.4g}{error}"

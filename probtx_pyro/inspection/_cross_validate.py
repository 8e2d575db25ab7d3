"""Which formulation predicts real queries best: softmax's own mixture, or one whose precisions or keys adapt to queries.

K-fold cross validation over queries: every formulation adapts to the queries of the training folds and is scored by the log
density of those held out. Vehtari & Ojanen 2012, *A survey of Bayesian predictive methods for model assessment*.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pyro.distributions import Gamma, Normal
from torch import Tensor

from probtx_pyro.inference import adapt
from probtx_pyro.inference.em import M
from probtx_pyro.models import GaussianKeys, MixturePriors
from probtx_pyro.ops._progress import progress_bar

Array = NDArray[np.floating[Any]]


def _precision(mixture: Any, units: int) -> MixturePriors:
    """A Gamma whose mode is the present precision and whose weight is that of two coordinates, for each problem."""
    mode = mixture.key_precision.expand(*mixture.batch_shape, units)
    return MixturePriors(key_precision=Gamma(torch.full_like(mode, 2.0), mode.reciprocal()))


def _keys(mixture: Any) -> MixturePriors:
    """A Normal around the present keys that weighs as much as one query."""
    precision = mixture.key_precision.unsqueeze(-1) if mixture.key_precision.dim() else mixture.key_precision
    return MixturePriors(keys=Normal(mixture.keys, precision.rsqrt().expand(mixture.keys.shape)))


FORMULATIONS: Mapping[str, Callable[[Any], MixturePriors | None]] = MappingProxyType({
    "softmax": lambda mixture: None,
    "shared precision": lambda mixture: _precision(mixture, 1),
    "precision of each unit": lambda mixture: _precision(mixture, mixture.num_units),
    "adapted keys": _keys,
})  # fmt: skip


class CrossValidation(NamedTuple):
    """How well formulations predict queries that they have not adapted to; F formulations, nats.

    names: of the formulations, F.
    elpd: expected log predictive density, the sum over queries, (F, ...).
    standard_error: of the elpd, ``sqrt(n var)`` over queries, (F, ...).
    difference: elpd less that of the best formulation of the problem, 0 for the best, (F, ...).
    difference_error: its standard error, from the paired differences, (F, ...).
    pointwise: log density of each held-out query, NaN for a query that does not count, (F, ..., Q).
    """

    names: tuple[str, ...]
    elpd: Array
    standard_error: Array
    difference: Array
    difference_error: Array
    pointwise: Array


def cross_validate(
    mixture: M,
    queries: Tensor,
    formulations: Mapping[str, MixturePriors | None] | None = None,
    *,
    seed: int,
    folds: int = 10,
    present: Tensor | None = None,
    num_steps: int = 50,
    tol: float | None = 1e-4,
    progress: bool | None = None,
) -> CrossValidation:
    """Cross-validate formulations on queries, each problem of the leading axes by itself.

    Parameters
    ----------
    mixture
        Where every adaptation starts, such as ``captured.mixture``. Its prior over units stays as it is, with the row of each
        query (causal masks), unless a formulation adapts ``weights``.
    queries
        (..., Q, D).
    formulations
        Priors by name; None as priors is the mixture itself. None are those of `FORMULATIONS`: softmax's mixture, one precision
        for all units, one for each, and adapted keys, each at its mode; they need a `GaussianMixture` whose units share their precision.
    seed
        Of the folds, which all problems and formulations share.
    folds
        Between 2 and Q; Q is leave-one-out.
    present
        Boolean (..., Q): queries that count, such as ``captured.present``; all if None.
    num_steps, tol, progress
        As in `inference.adapt`; the bar counts folds.

    Returns
    -------
    CrossValidation

    Raises
    ------
    ValueError
        ``folds`` out of range, no formulation, fewer than two queries that count; priors that `inference.adapt` refuses.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.zeros(1, 2))
    >>> table = cross_validate(mixture, 5 + torch.randn(40, 2), seed=0)
    >>> table.names[int(table.elpd.argmax())]
    'adapted keys'
    """
    if formulations is None:
        if isinstance(mixture, GaussianKeys) or (mixture.key_precision.dim() and mixture.key_precision.shape[-1] > 1):
            raise ValueError(
                "formulations are needed for this mixture; those by default start from one key and one precision for all units, as softmax has"
            )
        formulations = {name: priors(mixture) for name, priors in FORMULATIONS.items()}
    num_queries = queries.shape[-2]
    if not 2 <= folds <= num_queries or not formulations:
        raise ValueError(
            f"folds must be between 2 and the number of queries, {num_queries}, and formulations not empty, not {folds} and {len(formulations)}"
        )
    batch: torch.Size = mixture.plates(queries).batch
    counts = torch.ones(1, dtype=torch.bool, device=queries.device) if present is None else present
    counts = counts.expand(*batch, num_queries)
    if bool((counts.sum(-1) < 2).any()):
        raise ValueError("present must leave at least two queries in every problem; drop the problems that have fewer")
    fold_of = np.random.default_rng(seed).permutation(num_queries) % folds
    pointwise = np.full((len(formulations), *batch, num_queries), np.nan)
    for fold in progress_bar(range(folds), label="folds", progress=progress):
        held_out = torch.as_tensor(fold_of == fold, device=queries.device)
        training = (counts & ~held_out).to(queries.dtype)
        for row, priors in zip(pointwise, formulations.values(), strict=True):
            fitted = mixture
            if priors is not None:
                fitted = adapt(
                    mixture, queries, priors, num_steps=num_steps, tol=tol, query_weights=training, progress=False
                ).mixture
            with torch.no_grad():
                evidence = fitted.log_evidence(queries).expand(*batch, num_queries)
            row[...] = np.where((held_out & counts).cpu().numpy(), evidence.cpu().numpy(), row)
    elpd = np.nansum(pointwise, -1)
    best = np.take_along_axis(pointwise, elpd.argmax(0)[None, ..., None], 0)
    number = counts.sum(-1).cpu().numpy()
    return CrossValidation(
        tuple(formulations),
        elpd,
        _error(pointwise, number),
        elpd - elpd.max(0),
        _error(pointwise - best, number),
        pointwise,
    )


def _error(pointwise: Array, number: Any) -> Array:
    return np.sqrt(number * np.nanvar(pointwise, -1, ddof=1))


__all__ = ["FORMULATIONS", "CrossValidation", "cross_validate"]

"""Which formulation predicts real queries best: softmax's own mixture,
or one whose precisions or keys adapt to queries.

K-fold cross validation over queries: every formulation adapts to the queries of the training folds and is scored by the
log density of those held out. Vehtari & Ojanen 2012, *A survey of Bayesian predictive methods for model assessment*.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from pyro.distributions import Gamma, Normal
from torch import Tensor

from probtx_pyro._brief import in_brief
from probtx_pyro.inference import adapt
from probtx_pyro.inspection._captured import Captured
from probtx_pyro.inspection.redundancy import Array
from probtx_pyro.models import Bayesian, Formulation, GaussianMixture, bayesian
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.ops._progress import progress_bar


def softmax_alternatives(mixture: GaussianMixture) -> dict[str, GaussianMixture | Bayesian]:
    """Return softmax's own mixture, and posteriors in which one precision, one for each unit,
    or the keys adapt to queries.

    Each prior has its mode at the mixture's own values, and weighs as two coordinates (precisions) or one query (keys).

    Raises
    ------
    ValueError
        A mixture whose units do not share their precision: softmax's do.
    """
    if not isinstance(mixture, GaussianMixture) or torch.atleast_1d(mixture.key_precision).shape[-1] > 1:
        raise ValueError("candidates by default share one precision, as softmax does; give a mapping of formulations")
    precision = torch.atleast_1d(mixture.key_precision).unsqueeze(-1)
    if mixture.metric is not None:
        metric = mixture.metric if mixture.diagonal_metric else mixture.metric.diagonal(dim1=-2, dim2=-1)
        precision = precision * metric.unsqueeze(-2)

    def around(units: int) -> Bayesian:
        mode = mixture.key_precision.expand(*mixture.batch_shape, units)
        return bayesian(mixture, key_precision=Gamma(torch.full_like(mode, 2.0), mode.reciprocal()))

    return {
        "softmax": mixture,
        "shared precision": around(1),
        "precision of each unit": around(mixture.num_units),
        "adapted keys": bayesian(mixture, keys=Normal(mixture.keys, precision.rsqrt().expand(mixture.keys.shape))),
    }


class CrossValidation(NamedTuple):
    """Scores of formulations on queries that they have not adapted to; F formulations, nats.

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

    def __repr__(self) -> str:
        return in_brief(self)


def cross_validate(
    candidates: Captured | GaussianMixture | Mapping[str, Formulation | Bayesian],
    queries: Tensor | None = None,
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
    candidates
        By name: a formulation as it is, or a posterior (`models.bayesian`) whose MAP the training folds find. A mixture
        stands for its `softmax_alternatives`. What was captured of a head stands for those of its best equivalent
        (`best_equivalent`, scalar metric), found anew from each training fold, and brings its queries;
        ``captured.raw``, a `BestEquivalent` and ``captured.equivalent(...)`` for those of the mixture that they have. A
        prior over units stays as it is, with the row of each query (causal masks), unless ``weights`` adapt.
    queries
        (..., Q, D); None for what was captured.
    seed
        Of the folds, which all problems and candidates share.
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
        ``folds`` out of range, no candidate, fewer than two queries that count; priors that `inference.adapt` refuses.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> table = cross_validate(GaussianMixture(torch.zeros(1, 2)), 5 + torch.randn(40, 2), seed=0)
    >>> table.names[int(table.elpd.argmax())]
    'adapted keys'
    """
    one = candidates if isinstance(candidates, Captured) else None
    if (queries is None) != (one is not None):
        raise ValueError("queries must be given, unless the candidate was captured, which brings its own")
    if one is not None:
        queries, present = one.queries, one.present if present is None else present & one.present
    assert queries is not None

    def of_fold(training: Tensor) -> Mapping[str, Formulation | Bayesian]:
        if isinstance(candidates, Captured):
            return softmax_alternatives(replace(candidates, present=training).mixture)
        return candidates if isinstance(candidates, Mapping) else softmax_alternatives(candidates)

    num_queries = queries.shape[-2]
    counted = torch.ones(queries.shape[:-1], dtype=torch.bool, device=queries.device) if present is None else present
    named = of_fold(counted)
    if not 2 <= folds <= num_queries or not named:
        raise ValueError(f"folds must be from 2 to {num_queries}, the queries, not {folds}, and candidates not empty")
    given = [x if isinstance(x, Formulation) else x.formulation for x in named.values()]
    batch = common_shape(*(formulation.plates(queries).batch for formulation in given))
    counts = counted.expand(*batch, num_queries)
    if bool((counts.sum(-1) < 2).any()):
        raise ValueError("present must leave at least two queries in every problem; drop the problems that have fewer")
    fold_of = np.random.default_rng(seed).permutation(num_queries) % folds
    pointwise = np.full((len(named), *batch, num_queries), np.nan)
    for fold in progress_bar(range(folds), label="folds", progress=progress):
        held_out = torch.as_tensor(fold_of == fold, device=queries.device)
        training = (counts & ~held_out).to(queries.dtype)
        for row, candidate in zip(pointwise, of_fold(counted & ~held_out).values(), strict=True):
            fitted = candidate.formulation if isinstance(candidate, Bayesian) else candidate
            if isinstance(candidate, Bayesian):
                found = adapt(candidate, queries, query_weights=training, num_steps=num_steps, tol=tol, progress=False)
                fitted = found.formulation
            with torch.no_grad():
                evidence = fitted.log_evidence(queries).expand(*batch, num_queries)
            row[...] = np.where((held_out & counts).cpu().numpy(), evidence.cpu().numpy(), row)
    elpd = np.nansum(pointwise, -1)
    best = np.take_along_axis(pointwise, elpd.argmax(0)[None, ..., None], 0)
    number = counts.sum(-1).cpu().numpy()
    error, difference_error = (np.sqrt(number * np.nanvar(x, -1, ddof=1)) for x in (pointwise, pointwise - best))
    return CrossValidation(tuple(named), elpd, error, elpd - elpd.max(0), difference_error, pointwise)

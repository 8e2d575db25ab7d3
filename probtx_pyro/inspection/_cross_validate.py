"""Which formulation predicts real queries best: softmax's own mixture,
or one whose precisions or keys adapt to queries.

K-fold cross validation over queries: every formulation adapts to the queries of the training folds and is scored by the
log density of those held out. Vehtari & Ojanen 2012, *A survey of Bayesian predictive methods for model assessment*.
Queries of one text depend on their neighbours, so that folds of a text are runs of neighbours: Roberts et al. 2017,
*Cross-validation strategies for data with temporal, spatial, hierarchical, or phylogenetic structure*.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from pyro.distributions import Gamma, Normal
from torch import Tensor

from probtx_pyro._brief import in_brief
from probtx_pyro.inference import adapt
from probtx_pyro.inspection._captured import Captured, stack_layers
from probtx_pyro.inspection._controls import controls
from probtx_pyro.inspection.redundancy import Array
from probtx_pyro.models import Bayesian, Formulation, GaussianMixture, bayesian
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.ops._progress import progress_bar

HELD_OUT = ("blocks", "texts", "queries")


def softmax_alternatives(mixture: GaussianMixture) -> dict[str, GaussianMixture | Bayesian]:
    """Return softmax's own mixture, and posteriors in which one precision, one for each unit,
    or the keys adapt to queries.

    Each prior has its mode at the mixture's own values, and weighs as two coordinates (precisions) or one query (keys).
    A trained head that is replaced by one of them attends otherwise, and nothing that it was trained for asks for that:
    see `cross_validate`.

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

    ``print(table)`` writes a line for each formulation, the problems together.
    """

    names: tuple[str, ...]
    elpd: Array
    standard_error: Array
    difference: Array
    difference_error: Array
    pointwise: Array

    def __repr__(self) -> str:
        return in_brief(self)

    def __str__(self) -> str:
        """Nats a held-out query over all problems, and in how many problems a formulation is the best."""
        width, problems = max(map(len, self.names)), self.elpd[0].size
        lines = [f"{'held out':{width}s}  nats a query  best in, of {problems}"]
        for name, points, behind in zip(self.names, self.pointwise, self.difference, strict=True):
            lines.append(
                f"{name:{width}s}  {np.nanmean(points):12.2f}  {(behind == 0).sum():{13 + len(str(problems))}d}"
            )
        return "\n".join(lines)


def cross_validate(
    candidates: Captured | GaussianMixture | Mapping[str, Formulation | Bayesian],
    queries: Tensor | None = None,
    *,
    seed: int,
    folds: int | None = None,
    held_out: str | None = None,
    other: Captured | Mapping[str, Captured] | None = None,
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
        ``captured.raw``, a `BestEquivalent` and ``captured.equivalent(...)`` for those of the mixture that they have.
        Beside them stand `controls`, fitted to each training fold: ``"one Gaussian, isotropic"``, ``"one Gaussian,
        full"`` and, where there is another text, ``"keys of another text"``. A prior over units stays as it is, with
        the row of each query (causal masks), unless ``weights`` adapt.
    queries
        (..., Q, D); None for what was captured.
    seed
        Of folds that are drawn, "queries" and "texts", which all problems and candidates share.
    folds
        Between 2 and Q, or the number of texts; None is 10, or as many as there are if these are fewer.
    held_out
        What is held out together. ``"blocks"``: runs of neighbours, in every text as many queries as divide it evenly.
        ``"texts"``: whole examples of the axes named ``batch`` of what was captured; keys and precisions that adapt
        are those of one text, so that alternatives stay what they were and only b, P and controls are compared.
        ``"queries"``: each by itself, at random; of Q folds, leave-one-out. None is "blocks" for what was captured and
        "queries" for others.
    other
        Another text for the control "keys of another text", where one alone was captured: as in `controls`.
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
        ``folds`` out of range, no candidate, fewer than two queries that count, ``held_out`` that is not known or
        "texts" of a single one, ``other`` without anything captured; priors that `inference.adapt` refuses.

    Warns
    -----
    UserWarning
        A head has fewer than five queries for each number of the best equivalent (`best_equivalent`).

    Notes
    -----
    Held-out queries of a text share its words with the others, and resemble their neighbours most: with single queries
    held out, keys that adapt learn where the neighbours are, and gain nats that are gone on the next text. Blocks leave
    neighbours at their edges only.

    That adapted keys predict held-out queries better does not say that a trained head should have them: they change its
    attention, which was trained to predict words and not queries. In layer 20 of SmolLM2-135M, keys adapted under
    priors worth 100, 16 and 1 queries raised the log density of held-out queries and the loss of the model, from 3.278
    nats a token to 3.312, 3.454 and 3.605.

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
    if other is not None and one is None:
        raise ValueError("other is the text of a control of what was captured; give what was captured, or drop it")
    if one is not None:
        queries, present = one.queries, one.present if present is None else present & one.present
        other = stack_layers(other) if isinstance(other, Mapping) else other
    assert queries is not None

    def of_fold(training: Tensor) -> Mapping[str, Formulation | Bayesian]:
        if isinstance(candidates, Captured):
            seen = replace(candidates._plain(), present=training)
            mixture = seen.equivalent(*seen.gauge("scalar")[:2]).mixture if seen.chosen is None else seen.mixture
            return {**softmax_alternatives(mixture), **controls(seen, other)}
        return candidates if isinstance(candidates, Mapping) else softmax_alternatives(candidates)

    counted = torch.ones(queries.shape[:-1], dtype=torch.bool, device=queries.device) if present is None else present
    named = of_fold(counted)
    if one is not None and one.chosen is None:
        one._warn_if_few("scalar")
    held_out = ("queries" if one is None else "blocks") if held_out is None else held_out
    fold_of, folds = _folds(held_out, folds, counted, one, seed)
    if not named:
        raise ValueError("candidates must not be empty; name a formulation")
    num_queries = queries.shape[-2]
    given = [x if isinstance(x, Formulation) else x.formulation for x in named.values()]
    batch = common_shape(*(formulation.plates(queries).batch for formulation in given))
    counts = counted.expand(*batch, num_queries)
    if bool((counts.sum(-1) < 2).any()):
        raise ValueError("present must leave at least two queries in every problem; drop the problems that have fewer")
    pointwise = np.full((len(named), *batch, num_queries), np.nan)
    for fold in progress_bar(range(folds), label="folds", progress=progress):
        out = fold_of == fold
        training = (counts & ~out).to(queries.dtype)
        for row, candidate in zip(pointwise, of_fold(counted & ~out).values(), strict=True):
            fitted = candidate.formulation if isinstance(candidate, Bayesian) else candidate
            if isinstance(candidate, Bayesian):
                found = adapt(candidate, queries, query_weights=training, num_steps=num_steps, tol=tol, progress=False)
                fitted = found.formulation
            with torch.no_grad():
                evidence = fitted.log_evidence(queries).expand(*batch, num_queries)
            row[...] = np.where((out & counts).cpu().numpy(), evidence.cpu().numpy(), row)
    elpd = np.nansum(pointwise, -1)
    best = np.take_along_axis(pointwise, elpd.argmax(0)[None, ..., None], 0)
    number = counts.sum(-1).cpu().numpy()
    error, difference_error = (np.sqrt(number * np.nanvar(x, -1, ddof=1)) for x in (pointwise, pointwise - best))
    return CrossValidation(tuple(named), elpd, error, elpd - elpd.max(0), difference_error, pointwise)


def _folds(held_out: str, folds: int | None, counted: Tensor, one: Captured | None, seed: int) -> tuple[Tensor, int]:
    """The fold of each query, (..., Q) or what broadcasts to it, and the number of folds."""
    if held_out not in HELD_OUT:
        raise ValueError(f"held_out must be one of {', '.join(HELD_OUT)}, not {held_out!r}")
    num_queries = counted.shape[-1]
    shape = [
        n if name.startswith("batch") else 1 for name, n in zip(one.dims if one else (), counted.shape, strict=False)
    ]
    most = math.prod(shape) if held_out == "texts" else num_queries
    folds = min(10, most) if folds is None else folds
    if not 2 <= folds <= most:
        kind = "texts" if held_out == "texts" else "queries"
        raise ValueError(f"folds must be from 2 to {most}, the {kind}, not {folds}")
    if held_out == "blocks":
        order, number = counted.cumsum(-1) - 1, counted.sum(-1, keepdim=True)
        return (order * folds // number.clamp_min(1)).clamp_min(0), folds
    drawn = np.random.default_rng(seed).permutation(most) % folds
    return torch.as_tensor(drawn, device=counted.device).reshape((*shape, 1) if held_out == "texts" else (-1,)), folds

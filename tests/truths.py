"""Oracles of the rows of `formulations`: attention, log evidence and answers of one problem, by loops."""

import math
from typing import NamedTuple

import oracles
import oracles_crf
import torch
from scipy.stats import multivariate_normal, norm
from strategies import crf_lists


class Truth(NamedTuple):
    attention: list
    evidence: list
    outputs: list


def of_lists(make, formulation, *data):
    """A mixture by `oracles`."""
    p = make(formulation, *data)
    return Truth(oracles.attention(p), oracles.evidence(p), oracles.posterior_mean(p))


def linked(keys, values, precision, stored=None):
    """Lists of the mixture whose prior is ``exp(precision |key|² / 2)``, normalised."""
    weights = [0.5 * precision * sum(a * a for a in key) for key in keys]
    weights = [w if stored is None or stored[j] else -math.inf for j, w in enumerate(weights)]
    total = oracles.logsumexp(weights)
    return plain(keys, values, precision) | {"log_prior": [[w - total for w in weights]]}


def plain(keys, values, precision):
    """Lists of the mixture with one precision and equal weights."""
    return {
        "keys": keys,
        "values": values,
        "key_precision": [precision] * len(keys),
        "log_prior": [[-math.log(len(keys))] * len(keys)],
        "outputs": None,
    }


def hopfield_lists(memory, queries):
    patterns = memory.patterns.tolist()
    values = patterns if memory.values is None else memory.values.tolist()
    stored = None if memory.mask is None else memory.mask.tolist()
    return {"queries": queries.tolist(), **linked(patterns, values, float(memory.beta), stored)}


def kmeans_lists(clusters, queries):
    centers = clusters.centers.tolist()
    return {"queries": queries.tolist(), **plain(centers, centers, 2 * float(clusters.gamma))}


def table_lists(table, queries):
    return {"queries": queries.tolist(), **linked(table.keys.tolist(), table.values.tolist(), float(table.scale))}


def tilted(base, eta, points=None):
    """log Z by its definition: each location's weight times the integral of its Gaussian against exp(x'η).

    With points the weights of a location given x, and ``log h(x) + x'η - log Z(η)``, by SciPy's densities.
    """
    number, features = base.locations.shape
    if base.base_covariance is not None:
        matrices = base.base_covariance.expand(number, features, features).tolist()
    elif base.variance is not None:
        matrices = torch.diag_embed(base.variance.expand(number, features)).tolist()
    else:
        matrices = [[[0.0] * features] * features] * number
    weights, evidence, means = [], [], []
    for e in eta.tolist():
        moved = [
            [a + sum(s * b for s, b in zip(line, e, strict=True)) for a, line in zip(x, matrix, strict=True)]
            for x, matrix in zip(base.locations.tolist(), matrices, strict=True)
        ]
        rows = [
            w + sum(0.5 * (a + b) * c for a, b, c in zip(x, m, e, strict=True))
            for w, x, m in zip(base.log_weights.tolist(), base.locations.tolist(), moved, strict=True)
        ]
        evidence.append(oracles.logsumexp(rows))
        weights.append([math.exp(r - evidence[-1]) for r in rows])
        means.append([sum(w * m[d] for w, m in zip(weights[-1], moved, strict=True)) for d in range(features)])
    if points is None:
        return Truth(weights, evidence, means)
    total = [*evidence]
    for i, (e, x) in enumerate(zip(eta.tolist(), points.tolist(), strict=True)):
        rows = [
            w + multivariate_normal(m, c).logpdf(x)
            for w, m, c in zip(base.log_weights.tolist(), base.locations.tolist(), matrices, strict=True)
        ]
        log_h = oracles.logsumexp(rows)
        weights[i] = [math.exp(r - log_h) for r in rows]
        evidence[i] = log_h + sum(a * b for a, b in zip(x, e, strict=True)) - total[i]
    return Truth(weights, evidence, means)


def assigned(memory, queries, answers=None):
    """Linear keys, one assignment to a unit, a component and a feature at a time; the program's first choices are normalised.

    With answers the weights of a unit given them, and their log density, one coordinate at a time.
    """

    def phi(x):
        return [math.exp(a) if a < 0 else a + 1 for a in x]

    keys, values, mixing, weights = (
        x.tolist() for x in (memory.keys, memory.values, memory.component_weights, memory.unit_weights)
    )
    attention, evidence, outputs = [], [], []
    for q in queries.tolist():
        asked = [a / sum(phi(q)) for a in phi(q)]
        row = [
            w / sum(weights) * sum(p * sum(a * b for a, b in zip(asked, phi(k), strict=True)) for p, k in zip(ps, ks, strict=True))
            for w, ps, ks in zip(weights, mixing, keys, strict=True)
        ]  # fmt: skip
        evidence.append(math.log(sum(row)))
        attention.append([w / sum(row) for w in row])
        outputs.append(
            [sum(w * v[m] for w, v in zip(attention[-1], values, strict=True)) for m in range(len(values[0]))]
        )
    if answers is None:
        return Truth(attention, evidence, outputs)
    for i, answer in enumerate(answers.tolist()):
        row = [
            math.log(w) + sum(norm.logpdf(a, b, p**-0.5) for a, b in zip(answer, v, strict=True))
            for w, v, p in zip(attention[i], values, memory.value_precision.tolist(), strict=True)
        ]
        evidence[i] = oracles.logsumexp(row)
        attention[i] = [math.exp(r - evidence[i]) for r in row]
    return Truth(attention, evidence, outputs)


def enumerated(formulation):
    """The log partition of a CRF, by loops; its attention is a mean field, which no enumeration gives."""
    return Truth([], oracles_crf.enumerate_all(crf_lists(formulation))["log_partition"], [])

"""The formulas of docs/mathematics.md, written the dumb way: loops over scalars, no torch, nothing of the package."""

import functools
import itertools
import math


def normal(x, mean, precision):
    """log N(x; mean, I/precision) of two lists."""
    return sum(
        0.5 * math.log(precision / (2 * math.pi)) - 0.5 * precision * (a - b) ** 2 for a, b in zip(x, mean, strict=True)
    )


def determinant(matrix):
    """Of nested lists, by expansion along the first row."""
    if len(matrix) == 1:
        return matrix[0][0]
    minors = ([row[:d] + row[d + 1 :] for row in matrix[1:]] for d in range(len(matrix)))
    return sum((-1) ** d * matrix[0][d] * determinant(minor) for d, minor in enumerate(minors))


def placed(p, i, state):
    """log N(query i; key of the state + shift, (precision metric)^-1), equation (2.20) of docs/mathematics.md."""
    precision, mean = p["key_precision"], p["keys"]
    for index in state:
        precision, mean = pick(precision, index), mean[index]
    mean = mean if p.get("shift") is None else [a + b for a, b in zip(mean, p["shift"], strict=True)]
    if p.get("metric") is None:
        return normal(p["queries"][i], mean, precision)
    away = [a - b for a, b in zip(p["queries"][i], mean, strict=True)]
    form = sum(a * x * b for a, row in zip(away, p["metric"], strict=True) for x, b in zip(row, away, strict=True))
    constant = 0.5 * len(away) * math.log(precision / (2 * math.pi)) + 0.5 * math.log(determinant(p["metric"]))
    return constant - 0.5 * precision * form


def logsumexp(xs):
    top = max(xs)
    return top if top == -math.inf else top + math.log(sum(math.exp(x - top) for x in xs))


def pick(x, j):
    return x[j] if isinstance(x, list) else x


def states(p):
    """The values of the latent: units j, or pairs (j, r) of a unit and its component."""
    if p.get("component_weights") is None:
        return [(j,) for j in range(len(p["keys"]))]
    return [(j, r) for j in range(len(p["keys"])) for r in range(len(p["keys"][j]))]


def log_complete(p, i, state):
    """log p(query i, its answer where it is known, latent = state), PT eq. 10 or MGK eq. 3."""
    j, row = state[0], p["log_prior"][i if len(p["log_prior"]) > 1 else 0]
    factors = [p["component_weights"][j][state[1]]] if len(state) > 1 else []
    total = row[j] + placed(p, i, state)
    if p.get("outputs") is not None and (p.get("observed") is None or p["observed"][i]):
        if p.get("answer_probs") is not None:
            factors.append(p["answer_probs"][j][p["outputs"][i]])
        else:
            total += normal(p["outputs"][i], p["values"][j], pick(p["value_precision"], j))
    return -math.inf if 0 in factors else total + sum(math.log(x) for x in factors)


def log_joint(p, i, j):
    """Equation (2.1) of docs/mathematics.md for query i and unit j, summed over components where there are any.

    ``p`` is a dict of nested lists.
    """
    every = [log_complete(p, i, state) for state in states(p) if state[0] == j]
    return every[0] if len(every) == 1 else logsumexp(every)


def attention(p):
    rows = []
    for i in range(len(p["queries"])):
        logs = [log_joint(p, i, j) for j in range(len(p["keys"]))]
        z = logsumexp(logs)
        rows.append([math.exp(x - z) for x in logs])
    return rows


def evidence(p):
    return [logsumexp([log_joint(p, i, j) for j in range(len(p["keys"]))]) for i in range(len(p["queries"]))]


def evidence_by_enumeration(p):
    """log p(all queries and outputs) summed over every joint assignment of units (and components): U^Q (or (UR)^Q) terms."""
    table = [[log_complete(p, i, state) for state in states(p)] for i in range(len(p["queries"]))]
    return logsumexp([sum(terms) for terms in itertools.product(*table)])


def hard_attention(p):
    """MGK's hard E-step by loops, the normalisers kept: the largest component of each unit, normalised over units; and its objective."""
    rows, objective = [], []
    for i in range(len(p["queries"])):
        best = [max(log_complete(p, i, s) for s in states(p) if s[0] == j) for j in range(len(p["keys"]))]
        objective.append(logsumexp(best))
        rows.append([math.exp(x - objective[-1]) for x in best])
    return rows, objective


def keys_ecm_step(p, prior):
    """One ECM step on a mixture of Gaussian keys, one (unit, component) at a time; ``prior`` as in `ecm_step`."""
    n, dims = range(len(p["queries"])), range(len(p["queries"][0]))
    total = evidence(p)
    new = {**p, "keys": [list(rows) for rows in p["keys"]], "key_precision": [list(row) for row in p["key_precision"]]}
    held = [[0.0] * len(rows) for rows in p["keys"]]
    for j, r in states(p):
        gamma = [math.exp(log_complete(p, i, (j, r)) - total[i]) for i in n]
        held[j][r] = mass = sum(gamma)
        alpha = p["key_precision"][j][r]
        if prior.get("keys"):
            mean, theta = prior["keys"]
            pulled = [sum(gamma[i] * p["queries"][i][d] for i in n) for d in dims]
            new["keys"][j][r] = [(theta * mean[j][r][d] + alpha * pulled[d]) / (theta + alpha * mass) for d in dims]
        if prior.get("key_precision"):
            shape, rate = prior["key_precision"]
            at = new["keys"][j][r]
            scatter = sum(gamma[i] * sum((p["queries"][i][d] - at[d]) ** 2 for d in dims) for i in n)
            new["key_precision"][j][r] = (shape - 1 + 0.5 * len(dims) * mass) / (rate + 0.5 * scatter)
    if prior.get("component_weights"):
        c = prior["component_weights"]
        rows = [[m + c[r] - 1 for r, m in enumerate(row)] for row in held]
        new["component_weights"] = [[m / sum(row) for m in row] for row in rows]
    if prior.get("weights"):
        mass = [sum(row) + prior["weights"][j] - 1 for j, row in enumerate(held)]
        new["log_prior"] = [[math.log(m / sum(mass)) for m in mass]]
    return new


def posterior_mean(p):
    w = attention({**p, "outputs": None})
    answers = p["values"] if p.get("answer_probs") is None else p["answer_probs"]
    return [
        [sum(w[i][j] * answers[j][m] for j in range(len(answers))) for m in range(len(answers[0]))]
        for i in range(len(w))
    ]


def posterior_covariance(p):
    w, mean = attention({**p, "outputs": None}), posterior_mean(p)
    size = range(len(mean[0]))
    out = []
    for i, row in enumerate(w):
        total = [[0.0 for _ in size] for _ in size]
        for j, weight in enumerate(row):
            for a in size:
                for b in size:
                    own = 1 / pick(p["value_precision"], j) if a == b else 0.0
                    total[a][b] += weight * (own + (p["values"][j][a] - mean[i][a]) * (p["values"][j][b] - mean[i][b]))
        out.append(total)
    return out


def em_on_outputs(p, start, steps):
    """Value inference: v <- Σ w β μ / Σ w β with w ∝ the full log joint."""
    v = [list(row) for row in start]
    for _ in range(steps):
        w = attention({**p, "outputs": v, "observed": None})
        for i, row in enumerate(w):
            mass = [row[j] * pick(p["value_precision"], j) for j in range(len(row))]
            v[i] = [sum(m * p["values"][j][d] for j, m in enumerate(mass)) / sum(mass) for d in range(len(v[i]))]
    return v


def gamma_log(x, shape, rate):
    return shape * math.log(rate) - math.lgamma(shape) + (shape - 1) * math.log(x) - rate * x


def dirichlet_log(x, concentration):
    pairs = [(a, c) for a, c in zip(x, concentration, strict=True) if c is not None]
    total = math.lgamma(sum(c for _, c in pairs)) - sum(math.lgamma(c) for _, c in pairs)
    return total + sum((c - 1) * math.log(a) for a, c in pairs)


def ecm_step(p, prior):
    """One E-step, then locations, precisions with the new locations, weights: errata 2, 3 applied, one unit at a time.

    ``prior``: keys (mean lists, θ), key_precision (shape, rate), values, value_precision, weights (concentration list),
    answer_probs (concentration rows). Precisions are lists (one for each unit).
    """
    w = attention(p)
    n, units = range(len(w)), range(len(p["keys"]))
    new = {**p}
    answered = [i for i in n if p.get("outputs") is not None and (p.get("observed") is None or p["observed"][i])]
    for place, precision, rows, points in (
        ("keys", "key_precision", list(n), p["queries"]),
        ("values", "value_precision", answered, p.get("outputs")),
    ):
        if p.get(place) is None:
            continue
        if prior.get(place):
            mean, theta = prior[place]
            moved = []
            for k in units:
                mass = sum(w[i][k] for i in rows)
                bottom = theta + p[precision][k] * mass
                moved.append([
                    (theta * mean[k][d] + p[precision][k] * sum(w[i][k] * points[i][d] for i in rows)) / bottom
                    for d in range(len(mean[k]))
                ])  # fmt: skip
            new[place] = moved
        if prior.get(precision):
            shape, rate = prior[precision]
            size = len(p[place][0])
            new[precision] = [
                (shape - 1 + 0.5 * size * sum(w[i][k] for i in rows))
                / (
                    rate
                    + 0.5
                    * sum(w[i][k] * sum((points[i][d] - new[place][k][d]) ** 2 for d in range(size)) for i in rows)
                )
                for k in units
            ]
    if prior.get("weights"):
        mass = [sum(w[i][k] for i in n) + prior["weights"][k] - 1 for k in units]
        new["log_prior"] = [[math.log(m / sum(mass)) for m in mass]]
    if prior.get("answer_probs"):
        rows = []
        for k in units:
            mass = [
                sum(w[i][k] for i in answered if p["outputs"][i] == c) + prior["answer_probs"][k][c] - 1
                for c in range(len(prior["answer_probs"][k]))
            ]
            rows.append([m / sum(mass) for m in mass])
        new["answer_probs"] = rows
    return new


def ancestors(heads, word):
    """The heads above a word, up to the root 0, or up to where they repeat."""
    found = []
    while word and word not in found:
        found.append(word)
        word = heads[word - 1]
    return [*found[1:], word]


@functools.cache
def dependency_trees(words, single_root):
    """Every tuple of heads in which every word reaches the root."""
    every = itertools.product(range(words + 1), repeat=words)
    rooted = (heads for heads in every if heads.count(0) == 1 or not single_root)
    return [heads for heads in rooted if all(ancestors(heads, word)[-1] == 0 for word in range(1, words + 1))]


def is_projective(heads):
    """Whether all words between a word and its head come from that head."""
    return all(
        head in ancestors(heads, between)
        for word, head in enumerate(heads, 1)
        for between in range(min(word, head) + 1, max(word, head))
    )


def tree_score(arcs, heads):
    return sum(row[head] for row, head in zip(arcs, heads, strict=True))


def arc_probabilities(arcs, trees):
    """Log-normaliser of the trees, and how often each arc is in a tree."""
    scores = [tree_score(arcs, heads) for heads in trees]
    total = logsumexp(scores)
    found = [[0.0] * len(row) for row in arcs]
    for score, heads in zip(scores, trees, strict=True):
        for word, head in enumerate(heads):
            found[word][head] += math.exp(score - total)
    return total, found

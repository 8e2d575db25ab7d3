"""Cases for views 1 to 5, 7 and 10 to 13 of the explorer, computed by the library in float64: ``python site/explorer/cases.py``.

A case names a function of ``src/math``, its arguments, and what the library says that it returns; `tests/explorer` runs them.
"""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pyro.infer import TraceEnum_ELBO
from sklearn.metrics import roc_auc_score, roc_curve

from probtx_pyro import models
from probtx_pyro.apps import MemoryClassifier
from probtx_pyro.ops import entmax

FILE = Path(__file__).with_name("cases.json")
KIND = torch.float64


def plain(x):
    """Tensors and arrays as lists."""
    if isinstance(x, torch.Tensor | np.ndarray):
        return x.tolist()
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [plain(value) for value in x]
    return x.item() if isinstance(x, np.generic) else x


def case(module, function, name, expected, *arguments):
    """Return one case; ``expected`` may have fewer entries than what the function returns."""
    found = {"module": module, "function": function, "name": name}
    return {**found, "arguments": plain(arguments), "expected": plain(expected)}


def drawing(seed):
    """Return a function that draws normal numbers of a shape."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=KIND)


# -- views 1 and 5: a mixture that answers ------------------------------------------------------------------------------------


def mixture_of(seed):
    """A mixture in the library and in ``mixture.js``, and a query; every third has a metric, every second its own precisions."""
    draw = drawing(seed)
    units, answers = 2 + seed % 6, 1 + seed % 2
    keys, values, log_prior = draw(units, 2), 2 * draw(units, answers), draw(units).log_softmax(-1)
    own = seed % 2 == 1
    precision = draw(units).exp() if own else draw().exp()
    value_precision = 2 * draw(units).mul(0.3).exp() if own else 2 * draw().mul(0.3).exp()
    root = draw(2, 2)
    metric = root @ root.T + 0.1 * torch.eye(2, dtype=KIND) if seed % 3 == 0 else None
    given = models.GaussianMixture(keys, values, precision, value_precision, log_prior[None], metric=metric)
    page = {
        "keys": keys, "precision": precision, "logPrior": log_prior, "values": values, "valuePrecision": value_precision,
        "metric": metric, "logRoot": 0.0 if metric is None else 0.5 * torch.logdet(metric),
    }  # fmt: skip
    return given, page, draw(1, 2), 2 * draw(1, answers)


def answer_of(given, query):
    """The answer given a query, as ``mixture.js`` has it."""
    return {"weights": given.attention(query)[0], "values": given.values, "precision": given.value_precision}


def mixtures():
    """Cases of ``mixture.js``."""
    for seed in range(12):
        given, page, query, answer = mixture_of(seed)
        name, q, v = f"mixture {seed}", query[0], answer[0]
        yield case("mixture", "attention", name, given.attention(query)[0], page, q)
        yield case("mixture", "logEvidence", name, given.log_evidence(query).item(), page, q)
        yield case("mixture", "expectedOutput", name, given.expected_outputs(query)[0], page, q)
        both = f"{name}, answer seen"
        yield case("mixture", "attention", both, given.attention(query, answer)[0], page, q, v)
        yield case("mixture", "logEvidence", both, given.log_evidence(query, answer).item(), page, q, v)
        field = given.log_evidence(query).exp().item()
        yield case("mixture", "evidenceField", name, field, page, 0.0) | {"then": [plain(q)]}
        reply = answer_of(given, query)
        density = (given.log_evidence(query, answer) - given.log_evidence(query)).item()
        yield case("mixture", "logDensity", name, density, reply, v)
        yield case("mixture", "emStep", name, given.map_outputs(query, answer, num_steps=1)[0], reply, v)
        path = [v] + [given.map_outputs(query, answer, num_steps=steps)[0] for steps in (1, 2, 3, 4)]
        yield case("mixture", "emPath", name, path, reply, v, 4)
        gradient, hessian, _ = given._curvature(query, answer)
        yield case("mixture", "curvature", name, {"gradient": gradient[0], "hessian": hessian[0]}, reply, v)
        variance = given.output_covariance(query)[0].diagonal()
        yield case("mixture", "answerVariance", name, variance, reply)
        yield case("mixture", "modes", name, modes_of(given, query), reply)


def modes_of(given, query):
    """The modes found, the most probable first. EM until it moves by less than 1e-14; what is left of its way is less than 1e-12."""
    found = given.output_modes(query, num_steps=20000, tol=1e-14)
    at, density = found.locations[0][found.is_mode[0]], found.log_density[0][found.is_mode[0]]
    order = density.argsort(descending=True)
    return [{"at": at[i], "logDensity": density[i]} for i in order]


def triangle():
    """Three equal units: three modes, four, one; and EM that climbs to them."""
    turns = math.pi / 2 + 2 * math.pi / 3 * torch.arange(3, dtype=KIND)
    corners, query = torch.stack([turns.cos(), turns.sin()], -1), torch.zeros(1, 1, dtype=KIND)
    for sd in (0.6, 0.72, 0.8):
        given = models.GaussianMixture(torch.zeros(3, 1, dtype=KIND), corners, 1.0, sd**-2)
        found = given.output_modes(query, num_steps=200000, tol=1e-15)
        # equal densities have no order, so the case holds those alone: [{logDensity}], ascending differences are rounding
        density = found.log_density[0][found.is_mode[0]].sort(descending=True).values
        yield case("mixture", "modes", f"triangle {sd}", [{"logDensity": x} for x in density], answer_of(given, query))


def priors():
    """The linked prior and the background."""
    for seed in range(8):
        draw = drawing(100 + seed)
        keys, values, precision, log_weights = draw(4, 2), draw(4, 1), draw().exp(), draw(4)
        linked = models.GaussianMixture.linked(keys, values, precision, log_prior=log_weights[None])
        yield case("mixture", "linkedPrior", f"linked {seed}", linked.log_prior[0], keys, precision, log_weights)
        weight, own = float(draw().sigmoid()), float(draw().exp())
        wide = linked.replace(value_precision=torch.tensor(3.0, dtype=KIND)).with_background(weight, key_precision=own)
        page = {
            "keys": keys, "values": values, "precision": precision, "logPrior": linked.log_prior[0], "valuePrecision": 3.0,
        }  # fmt: skip
        expected = {
            "keys": wide.keys,
            "values": wide.values,
            "precision": wide.key_precision,
            "logPrior": wide.log_prior[0],
        }
        yield case("mixture", "withBackground", f"background {seed}", expected, page, weight, own)


# -- view 2: the same attention, another model -----------------------------------------------------------------------------------


def gauges():
    """Cases of ``gauge.js``: mixtures with a metric and the linked prior, and the linked mixture of the keys as given."""
    for seed in range(12):
        draw = drawing(200 + seed)
        keys, queries, precision, origin = draw(4, 2), draw(5, 2), draw().mul(0.5).exp(), draw(2)
        along, across, degrees = draw().mul(0.5).exp(), draw().mul(0.5).exp(), 180 * draw().sigmoid().item()
        turn = math.radians(degrees)
        axes = torch.tensor([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]], dtype=KIND)
        metric = axes @ torch.diag(torch.stack([along, across])) @ axes.T
        moved = precision * (keys - origin) @ torch.linalg.inv(metric)
        log_prior = (0.5 * ((moved @ metric) * moved).sum(-1)).log_softmax(-1)
        given = models.GaussianMixture(moved, None, 1.0, 0.0, log_prior[None], metric=metric)
        linked = models.GaussianMixture.linked(keys, None, precision)
        state = {
            "keys": keys, "queries": queries, "precision": precision, "origin": origin,
            "along": along, "across": across, "degrees": degrees,
        }  # fmt: skip
        expected = {
            "attention": given.attention(queries), "attentionAsGiven": linked.attention(queries),
            "evidence": given.log_evidence(queries).sum(), "evidenceAsGiven": linked.log_evidence(queries).sum(),
            "expectedQuery": given.log_weights()[0].exp() @ given.keys,
        }  # fmt: skip
        yield case("gauge", "compared", f"gauge {seed}", expected, state)
        model = {
            "keys": moved,
            "precision": 1.0,
            "logPrior": log_prior,
            "metric": metric,
            "logRoot": 0.5 * torch.logdet(metric),
        }
        total = given.log_evidence(queries).sum()
        yield case("gauge", "totalEvidence", f"gauge {seed}", total, model, queries)


# -- view 3: the bound ----------------------------------------------------------------------------------------------------------


def bounds():
    """Cases of ``bound.js``, by Pyro's enumerated ELBO."""
    for seed in range(10):
        given, _, query, _ = mixture_of(seed)
        draw = drawing(300 + seed)
        guide = draw(1, given.num_units).softmax(-1)
        if seed % 3 == 2:  # a guide that leaves a unit out
            guide = torch.cat([guide[:, :-2], guide[:, -2:-1] + guide[:, -1:], torch.zeros(1, 1, dtype=KIND)], -1)
        elbo = -TraceEnum_ELBO(max_plate_nesting=1).loss(given.model, partial(given.guide, attention=guide), query)
        yield case("bound", "elbo", f"bound {seed}", elbo, given.log_joint(query)[0], guide[0])
        gap = given.log_evidence(query).item() - elbo
        yield case(
            "bound", "divergence", f"bound {seed}", gap, guide[0], given.log_joint(query)[0] - given.log_evidence(query)
        )


# -- view 4: soft k-means -----------------------------------------------------------------------------------------------------------


def clusters():
    """Cases of ``kmeans.js``."""
    for seed in range(7):
        draw = drawing(400 + seed)
        points, centers, gamma = draw(20, 2), draw(2 + seed, 2), draw().exp()
        given, one = models.SoftKMeans(centers, gamma), points[:1]
        name, x = f"clusters {seed}", points[0]
        yield case("kmeans", "assign", name, given.assign(one)[0], centers, gamma, x)
        yield case("kmeans", "reconstruct", name, given.reconstruct(one)[0], centers, gamma, x)
        yield case("kmeans", "freeEnergy", name, given.free_energy(one).item(), centers, gamma, x)
        yield case("kmeans", "distortion", name, given.distortion(one).item(), centers, gamma, x)
        after = [given.em(points, num_steps=steps, tol=None, progress=False).model.centers for steps in (1, 12)]
        yield case("kmeans", "emStep", name, after[0], centers, gamma, points)
        yield case("kmeans", "em", name, after[1], centers, gamma, points, 12, -1)
        spread = torch.linalg.eigvalsh(torch.cov(points.T, correction=0))
        yield case("kmeans", "criticalGamma", name, 1 / (2 * spread[-1]), points)
        sums = torch.special.entr(given.assign(points)).sum(-1).mean()
        yield case("kmeans", "meanEntropy", name, sums, centers, gamma, points)


# -- view 7: a memory ----------------------------------------------------------------------------------------------------------------


def memories():
    """Cases of ``memory.js``, for each map onto the simplex."""
    for seed in range(4):
        draw = drawing(500 + seed)
        patterns, state, beta = 1.5 * draw(3 + seed, 2), draw(1, 2), 0.6 * draw().mul(0.4).exp()
        scores = beta * (state @ patterns.T)
        for name in ("sparsemax", "entmax15"):
            yield case("memory", name, f"scores {seed}", entmax.ENTMAX[name].function(scores)[0], scores[0])
        for transformation in ("softmax", "entmax15", "sparsemax"):
            given = models.Hopfield(patterns, beta, transformation=transformation)
            name, own = f"{transformation} {seed}", (patterns, beta, transformation, state[0])
            yield case("memory", "shares", name, given.attention(state)[0], *own)
            yield case("memory", "step", name, given.retrieve(state)[0], *own)
            yield case("memory", "energy", name, given.energy(state).item(), *own)
            yield case("memory", "effectivePatterns", name, given.effective_patterns(state).item(), *own)
            path = [state[0], *(given.retrieve(state, num_steps=steps)[0] for steps in (1, 2, 3))]
            yield case("memory", "path", name, path, *own, 3, -1)


# -- view 10: a memory is a regression -------------------------------------------------------------------------------------------------


def shown(state):
    """All numbers of the view, by the memory and the layers themselves."""
    read, prior, noise, gamma = (state[name] for name in ("read", "prior", "noise", "forgetting"))
    drift = {"static": models.Static(), "discount": models.Discount(gamma), "pullback": models.PullBack(gamma)}[
        state["drift"]
    ]
    decay, exact = 1.0 if state["drift"] == "static" else gamma, models.RegressionMemory(prior, noise, drift)
    approximate = {
        "linear": models.layers.linear(noise / (prior + noise), decay, noise),
        "delta": models.layers.delta(state["step"], decay, noise),
        "kalman": models.layers.kalman(prior, noise, decay, diagonal=state["kalman"] == "diagonal"),
    }
    keys, values, query = state["keys"][:read], state["values"][:read, None], state["query"][None]
    unseen = torch.zeros(1, 1, dtype=KIND)
    stream = torch.cat([keys, query]), torch.cat([values, unseen])
    after, said = exact.filter(keys, values), exact.predictive(*stream)
    found = {"exact": {"mean": said.mean[-1, 0], "sd": said.stddev[-1, 0], "memory": after.mean[0]}}
    evidence = {"exact": after.log_evidence.sum()}
    for name, layer in approximate.items():
        moments = layer.moments(*stream)
        dense = moments.variance is not None
        memory = layer.moments(keys, values).mean[0] if read else torch.zeros(2)
        sd = moments.variance[-1].sqrt() if dense else None
        found[name] = {"mean": moments.predicted[-1, 0], "sd": sd, "memory": memory}
        evidence[name] = layer.log_evidence(*stream)[:read].sum() if dense else None
    linear = approximate["linear"]
    return {
        "memory": after.mean[0], "covariance": after.covariance, "determinant": torch.linalg.det(after.precision),
        "layers": found, "evidence": evidence, "before": exact.predictive(query, unseen).stddev[0, 0],
        "attention": exact.attention(query, keys, causal=False)[0],
        "linearAttention": linear.attention(query.expand(read, 2), keys)[-1] if read else [],
    }  # fmt: skip


def regressions():
    """Cases of ``regression.js``: every drift and both Kalman networks, no pair and eight, parallel keys, steps without a density."""
    for seed in range(24):
        draw = drawing(600 + seed)
        pairs, kind = (0, 1, 2, 3, 5, 8)[seed % 6], ("static", "discount", "pullback")[(seed + seed // 6) % 3]
        keys = draw(pairs, 2)
        if seed % 4 == 1:  # nearly parallel
            keys = draw(2) + 1e-3 * keys
        state = {
            "keys": keys, "values": 2 * draw(pairs), "query": draw(2), "prior": draw().exp().item(), "noise": 3 * draw().exp().item(),
            "drift": kind, "forgetting": 0.5 + 0.5 * draw().sigmoid().item(), "kalman": ("diagonal", "isotropic")[seed // 3 % 2],
            "step": (0.1, 0.05, 0.9)[seed // 2 % 3], "read": pairs if seed % 5 else pairs // 2,
        }  # fmt: skip
        yield case("regression", "summary", f"{kind}, {state['read']} of {pairs} pairs, {seed}", shown(state), state)


# -- view 11: two keys a unit ------------------------------------------------------------------------------------------------------


def pieces_of(mine):
    """In how many pieces the marked places are, neighbours being left, right, above and below."""
    left, pieces = {tuple(place) for place in mine.nonzero().tolist()}, 0
    while left:
        pieces, open_places = pieces + 1, [left.pop()]
        while open_places:
            row, column = open_places.pop()
            near = {(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)} & left
            left -= near
            open_places += near
    return pieces


def keys_of_units():
    """Cases of ``keys.js``: soft and hard, one key or two, a key of weight 0, and what the first unit owns."""
    for seed in range(20):
        draw = drawing(700 + seed)
        units, count = 2 + seed % 3, 1 + (seed > 2)
        keys, precision, query = 1.5 * draw(units, count, 2), draw().exp(), draw(1, 2)
        weights = draw(units, count).softmax(-1)
        if seed % 4 == 3:
            weights[0] = torch.tensor([1.0, 0.0])
        model = models.GaussianKeys(keys, key_precision=precision, component_weights=weights)
        for assignment in ("soft", "hard"):
            page = {"keys": keys, "weights": weights, "precision": precision, "hard": assignment == "hard"}
            expected = {
                "attention": model.attention(query, assignment=assignment)[0],
                "responsibilities": model.responsibilities(query)[0],
                "logEvidence": model.log_evidence(query).item(),
                "hardEvidence": model.log_evidence(query, assignment="hard").item(),
            }
            yield case("keys", "explainByKeys", f"{assignment} {seed}", expected, page, query[0])
            across, up = torch.linspace(-3, 3, 17, dtype=KIND), torch.linspace(-2, 2, 13, dtype=KIND)
            places = torch.cartesian_prod(up, across).flip(-1)
            mine = (model.attention(places, assignment=assignment).argmax(-1) == 0).view(13, 17)
            own = mine[::2, ::2].nonzero()
            first, second = torch.triu_indices(len(own), len(own), 1)
            row, column = (own[first] + own[second]).T
            lost = (~mine[row, column]).double().mean().item() if len(own) > 1 else 0.0
            expected = {"share": mine.double().mean().item(), "pieces": pieces_of(mine), "lost": lost}
            yield case("keys", "territory", f"{assignment} {seed}", expected, page, [-3, 3], [-2, 2], 17, 13)


# -- view 12: together, or each on its own --------------------------------------------------------------------------------------------


def gaussian_of(state, units):
    """The density of all queries of one assignment, and of the keys with them: dense, one coordinate of both that are alike."""
    own, many = torch.eye(len(state["keys"]), dtype=KIND)[units], len(units)
    moves = state["sigma"] ** 2 * torch.eye(len(state["keys"]), dtype=KIND) + state["tau"] ** 2  # of the keys
    noise = torch.eye(many, dtype=KIND) / state["precision"]
    covariance = own @ moves @ own.T + noise
    return own, moves, torch.distributions.MultivariateNormal(torch.zeros(many, dtype=KIND), covariance)


def hierarchy(state):
    """All of the view, summed over assignments; the attention of one more query by assigning it, too."""
    keys, queries, query = state["keys"], state["queries"], state["query"]
    count, total = len(keys), len(queries)
    logs, means, seconds, numbers, last = [], [], [], [], []
    for units in torch.cartesian_prod(*[torch.arange(count)] * total).view(-1, total):
        own, moves, seen = gaussian_of(state, units)
        away = queries - keys[units]
        logs.append(seen.log_prob(away.T).sum())
        gain = torch.linalg.solve(seen.covariance_matrix, own @ moves).T  # dense conditioning
        mean, left = gain @ away, moves - gain @ own @ moves
        means.append(mean)
        seconds.append(mean[:, :, None] * mean[:, None] + left.diagonal()[:, None, None] * torch.eye(2, dtype=KIND))
        numbers.append(own.sum(0))
        one_more = [
            (torch.cat([units, torch.tensor([j])]), torch.cat([away, (query - keys[j])[None]])) for j in range(count)
        ]
        last.append(torch.stack([gaussian_of(state, to)[2].log_prob(rest.T).sum() for to, rest in one_more]))
    logs = torch.stack(logs)
    p = logs.softmax(0)
    mean = (p[:, None, None] * torch.stack(means)).sum(0)
    second = (p[:, None, None, None] * torch.stack(seconds)).sum(0)
    return {
        "logEvidence": logs.logsumexp(0) - total * math.log(count), "counts": p @ torch.stack(numbers), "keys": keys + mean,
        "covariance": second - mean[:, :, None] * mean[:, None], "attention": torch.stack(last).logsumexp(0).softmax(-1),
    }  # fmt: skip


def hierarchies():
    """Cases of ``together.js``: one to four queries, none of the moves and one of them 0."""
    for seed in range(16):
        draw = drawing(800 + seed)
        units, total = (5, 4, 3, 5)[seed % 4], (1, 2, 3, 3)[seed // 4]
        state = {
            "keys": 1.5 * draw(units, 2), "queries": 1.5 * draw(total, 2), "query": draw(2), "precision": 2 * draw().exp().item(),
            "tau": 0.0 if seed == 5 else 0.6 * draw().exp().item(), "sigma": 0.0 if seed == 10 else 0.4 * draw().exp().item(),
        }  # fmt: skip
        yield case("together", "summary", f"{total} queries of {units} keys, {seed}", hierarchy(state), state)


# -- view 13: what was never taught -------------------------------------------------------------------------------------------------


def novelties():
    """Cases of ``novelty.js``: the scores of a `MemoryClassifier` whose units are the points that it was taught.

    Classes overlap: a probability that rounds to 1 has ties that the page's odds have not.
    """
    for seed in range(20):
        draw, count = drawing(900 + seed), 2 + seed % 3
        middles = 1.5 * draw(count, 1, 2)
        taught, known = ((middles + 0.9 * draw(count, each, 2)).flatten(0, 1).numpy() for each in (8, 5))
        others, query, alarms = (
            (1.2 * draw(2) + 0.5 * draw(12, 2)).numpy(),
            1.5 * draw(1, 2).numpy(),
            (0.05, 0.0, 0.2, 0.37)[seed % 4],
        )
        classes = np.repeat(np.arange(count), 8)
        fitted = MemoryClassifier("all", metric="scalar", cv=None).fit(taught, classes)
        memory, points = fitted.memory_, np.concatenate([known, others])
        belongs, shares = np.arange(len(points)) < len(known), fitted.predict_proba(query)[0]
        expected = {}
        for name, score in (("odds", fitted.predict_proba(points).max(1)), ("evidence", fitted.score_samples(points))):
            refused, found, _ = roc_curve(belongs, score, drop_intermediate=False)
            threshold = np.sort(score[belongs])[int(alarms * len(known) + 1e-9)]
            expected[name] = {
                "auroc": roc_auc_score(belongs, score), "passed95": refused[found >= 0.95][0], "passed": (score[~belongs] >= threshold).mean(),
            }  # fmt: skip
        expected["evidence"] |= {"known": score[belongs], "others": score[~belongs], "threshold": threshold}
        top = shares.max()
        expected["query"] = {
            "surest": int(shares.argmax()),
            "evidence": fitted.score_samples(query)[0],
            "odds": math.log(top / np.delete(shares, shares.argmax()).sum()),
        }
        page = {
            "keys": memory.keys, "classes": classes, "precision": float(memory.key_precision), "known": known, "others": others,
            "query": query[0], "alarms": alarms,
        }  # fmt: skip
        yield case("novelty", "summary", f"{count} classes, {seed}", expected, page)


def cases():
    """Return all cases."""
    parts = (
        mixtures,
        triangle,
        priors,
        gauges,
        bounds,
        clusters,
        memories,
        regressions,
        keys_of_units,
        hierarchies,
        novelties,
    )
    return [one for part in parts for one in part()]


if __name__ == "__main__":
    found = cases()
    FILE.write_text("[\n" + ",\n".join(json.dumps(one) for one in found) + "\n]\n")
    print(f"{FILE}: {len(found)} cases, {FILE.stat().st_size / 1024:.0f} KiB")

"""Random small problems, and the same problem as nested lists for the oracles."""

import numpy as np
import oracles_crf
import torch

from probtx_pyro import models


def problem(
    generator,
    *,
    batch=(),
    queries=5,
    units=4,
    features=3,
    answers=2,
    precision="unit",
    rows=1,
    masked=False,
    answer="gaussian",
    dtype=torch.float64,
    scale=1.0,
    metric=None,
):
    """A random mixture with queries, outputs and a partial annotation; every number from ``generator``.

    ``metric``: None, "full" or "diagonal", which come with a shift.
    """

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=dtype)

    def positive(*shape):
        return (0.5 * torch.randn(*batch, *shape, generator=generator, dtype=dtype)).exp()

    log_prior = normal(rows, units)
    if masked:
        hidden = torch.rand(*batch, rows, units, generator=generator) < 0.4
        hidden[..., 0] = False
        log_prior = log_prior.masked_fill(hidden, -torch.inf)
    per_unit = precision == "unit"
    alpha = positive(units) / scale**2 if per_unit else positive(1) / scale**2
    shared = {"key_precision": alpha, "log_prior": log_prior.log_softmax(-1)}
    if metric is not None:
        shared |= metric_and_shift(normal, features, metric)
    observed = torch.rand(*batch, queries, generator=generator) < 0.6
    observed[..., :1] = True
    if answer == "categorical":
        mixture = models.GaussianMixture.categorical(
            scale * normal(units, features), positive(units, answers + 1).pow(2).softmax(-1), **shared
        )
        outputs = torch.randint(0, answers + 1, (*batch, queries), generator=generator)
    else:
        beta = positive(units) if per_unit else positive(1)
        mixture = models.GaussianMixture(
            scale * normal(units, features), normal(units, answers), value_precision=beta, **shared
        )
        outputs = normal(queries, answers)
    return mixture, scale * normal(queries, features), outputs, observed


def metric_and_shift(normal, features, kind):
    """A metric, "full" or "diagonal", and a shift, of what draws normal numbers of a shape."""
    root = normal(features, features + 2)
    full = root @ root.mT / features
    own = full if kind == "full" else full.diagonal(dim1=-2, dim2=-1)
    return {"metric": own, "shift": normal(features), "diagonal_metric": kind == "diagonal"}


def keys_problem(
    generator,
    *,
    batch=(),
    queries=5,
    units=4,
    components=2,
    features=3,
    answers=2,
    precision="component",
    weights="unit",
    rows=1,
    masked=False,
    dtype=torch.float64,
    scale=1.0,
    answer=None,
    metric=None,
):
    """A random mixture of Gaussian keys with queries; with ``masked``, some units and some components are absent.

    ``answer``: "gaussian" or "categorical", which come with outputs and a partial annotation; ``metric`` as in `problem`.
    """

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=dtype)

    alpha = (0.5 * normal(*{"component": (units, components), "unit": (units, 1), "shared": (1, 1)}[precision])).exp()
    log_prior, log_weights = normal(rows, units), normal(units if weights == "unit" else 1, components)
    if masked:
        hidden = torch.rand(*batch, rows, units, generator=generator) < 0.4
        hidden[..., 0] = False
        log_prior = log_prior.masked_fill(hidden, -torch.inf)
        hidden = torch.rand(log_weights.shape, generator=generator) < 0.3
        hidden[..., 0] = False
        log_weights = log_weights.masked_fill(hidden, -torch.inf)
    values, options = normal(units, answers), {}
    if answer == "gaussian":
        options["value_precision"] = (0.5 * normal(1 if precision == "shared" else units)).exp()
    elif answer == "categorical":
        values, options["answer_probs"] = None, normal(units, answers + 1).softmax(-1)
    if metric is not None:
        options |= metric_and_shift(normal, features, metric)
    model = models.GaussianKeys(
        scale * normal(units, components, features),
        values,
        alpha / scale**2,
        None if weights is None else log_weights.softmax(-1),
        log_prior.log_softmax(-1),
        **options,
    )
    asked = scale * normal(queries, features)
    if answer is None:
        return model, asked
    observed = torch.rand(*batch, queries, generator=generator) < 0.6
    observed[..., :1] = True
    if answer == "categorical":
        return model, asked, torch.randint(0, answers + 1, (*batch, queries), generator=generator), observed
    return model, asked, normal(queries, answers), observed


def hopfield_problem(seed=0, count=6, features=4, states=5, batch=(), **options):
    """A random memory and states near nothing in particular."""
    g = generator(seed)
    patterns = torch.randn(*batch, count, features, generator=g)
    beta = float(torch.rand((), generator=g)) * 4 + 0.2
    return models.Hopfield(patterns, beta, **options), torch.randn(*batch, states, features, generator=g)


def lists(mixture, queries, outputs=None, observed=None):
    """An unbatched problem as nested lists; of a mixture of Gaussian keys with a level more, of components."""
    several = isinstance(mixture, models.GaussianKeys)

    def precision(x, shape):
        return x.expand(shape).tolist()

    metric = mixture.metric
    if metric is not None and mixture.diagonal_metric:
        metric = torch.diag(metric)
    return {
        "queries": queries.tolist(),
        "keys": mixture.keys.tolist(),
        "metric": None if metric is None else metric.tolist(),
        "shift": None if mixture.shift is None else mixture.shift.tolist(),
        "values": None if mixture.values is None else mixture.values.tolist(),
        "answer_probs": None if mixture.answer_probs is None else mixture.answer_probs.tolist(),
        "key_precision": precision(mixture.key_precision, mixture.unit_shape),
        "value_precision": precision(mixture.value_precision, mixture.num_units),
        "component_weights": mixture.component_log_weights().exp().tolist() if several else None,
        "log_prior": mixture.log_weights().tolist(),
        "outputs": None if outputs is None else outputs.tolist(),
        "observed": None if observed is None else observed.tolist(),
    }


def generator(seed):
    return torch.Generator(device=torch.get_default_device()).manual_seed(seed)


def crf_problem(
    generator, *, batch=(), words=4, labels=3, channels=2, distances=(), rank=None, root=0, nodes=0, node_channels=None,
    split=False, masked=False, scale=1.0, dtype=torch.float64,
):  # fmt: skip
    """A random dependency CRF; ``masked`` hides one word at least and about half of them, wherever they stand, but not all."""

    def normal(*shape):
        return scale * torch.randn(*shape, generator=generator, dtype=dtype)

    groups = 2 * (len(distances) + 1)
    ternary = normal(channels, groups, labels, labels)
    if rank is not None:
        ternary = models.LowRank(*(normal(channels, groups, labels, rank) * (scale * rank) ** -0.5 for _ in range(2)))
    mask = None
    if masked:
        mask = torch.rand(*batch, words, generator=generator) < 0.67
        mask.scatter_(-1, torch.randint(words, (*batch, 1), generator=generator), False)
        mask[..., -1:] |= ~mask.any(-1, keepdim=True)
    return models.DependencyCRF(
        normal(*batch, words, labels), ternary, mask, distances,
        normal(channels, labels, root) if root else None,
        normal(node_channels or channels, nodes, labels) if nodes else None, split,
    )  # fmt: skip


def crf_lists(crf):
    """One sentence as the nested lists of `oracles_crf`."""
    return {
        "unary": crf.unary.tolist(),
        "words": (torch.ones_like(crf.unary[:, 0]) > 0 if crf.mask is None else crf.mask).tolist(),
        "ternary": crf.full_ternary().tolist(),
        "distances": crf.distances,
        "root": None if crf.root_ternary is None else crf.root_ternary.tolist(),
        "memory": None if crf.memory is None else crf.memory.tolist(),
        "split": crf.memory_split,
    }


def crf_sentence(crf, *index):
    """One sentence of a batch."""
    return crf.replace(unary=crf.unary[index], mask=None if crf.mask is None else crf.mask[index])


def crf_with_evidence(seed):
    """A CRF of at most 5 words, 4 labels and 3 channels, with root, nodes, masks, low rank, and known labels and heads, or without."""
    g, dice = generator(seed), np.random.default_rng(seed)
    words, labels = int(dice.integers(1, 6)), int(dice.integers(2, 5))
    nodes = int(dice.integers(0, 3))
    crf = crf_problem(
        g, words=words, labels=labels, channels=int(dice.integers(1, 4)), distances=((), (2,), (2, 3))[dice.integers(3)],
        rank=(None, 2)[dice.integers(2)], root=int(dice.integers(0, 3)), nodes=nodes, node_channels=1 if nodes and dice.integers(2) else None,
        split=bool(nodes and dice.integers(2)), masked=bool(words > 1 and dice.integers(2)), scale=float(dice.uniform(0.3, 2.0)),
    )  # fmt: skip
    given = {}
    if dice.integers(2):
        given["labels"] = torch.randint(labels, (words,), generator=g)
        given["observed"] = torch.rand(words, generator=g) < 0.4
    if dice.integers(2):
        p, heads = crf_lists(crf), torch.full((len(crf.full_ternary()), words), -1)
        for c, i, slots in oracles_crf.choices(p):
            if dice.random() < 0.3 and (not crf.memory_split or slots[0] < oracles_crf.first(p) + words):
                heads[c, i] = int(dice.choice(slots))
        given["heads"] = heads
    return crf, given


def known_heads(crf, g, share=0.5):
    """Some heads of one sentence that may be chosen, (C, N), -1 elsewhere."""
    p = crf_lists(crf)
    nodes = oracles_crf.first(p) + len(p["unary"]) if p["split"] else np.inf
    heads = torch.full((len(p["ternary"]), len(p["unary"])), -1)
    for c, i, slots in oracles_crf.choices(p):
        if torch.rand((), generator=g) < share and slots[0] < nodes:
            heads[c, i] = slots[int(torch.randint(len(slots), (), generator=g))]
    return heads


def labelled_sentences(seed=0, batch=(6,), **options):
    """A CRF with root, split nodes and holes, unless ``options`` say otherwise; labels with padding -1, and some heads."""
    known = {
        "words": 4,
        "labels": 2,
        "channels": 2,
        "distances": (2,),
        "root": 2,
        "nodes": 2,
        "node_channels": 1,
        "split": True,
    }
    crf, g = crf_problem(generator(seed), batch=batch, **{**known, "masked": True, **options}), generator(seed + 100)
    words = torch.ones(crf.unary.shape[:-1], dtype=torch.bool) if crf.mask is None else crf.mask
    labels = torch.randint(crf.unary.shape[-1], words.shape, generator=g).masked_fill(~words, -1)
    heads = [known_heads(crf.replace(unary=u, mask=m), g) for u, m in zip(crf.unary, words, strict=True)]
    return crf, labels, torch.stack(heads)

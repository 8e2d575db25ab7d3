"""Chapter 6: a digit is written in several ways; a unit with several keys holds them all."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot
from pyro.distributions import Dirichlet, Gamma, Normal
from torch import Tensor

from probtx_pyro import data, inference, inspection, models, nn, plots
from probtx_pyro.data import text_transformer
from probtx_pyro.plots._style import finished
from probtx_pyro.tour._chapter import Chapter, Context, Picture, picture, principal, units_in_the_plane

HAND = 1.0  # standard deviation of the prior of a key, ink a pixel: wide


def chapter(context: Context) -> Chapter:
    """One to many keys a digit, fitted under priors: accuracy and evidence on unseen digits, hard against soft; a trained head."""
    images, digits = data.load_digits()
    flat = images.reshape(len(images), -1)
    known, unseen = context.parts(len(flat), (1200, 300), (597, 100))
    counts = [1, 2, 3, 4, 6, 8, 12] if not context.smoke else [1, 2]
    pictures, labels = context.tensor(flat), torch.as_tensor(digits, device=context.device)
    fits = [fit(context, pictures[known], labels[known], count) for count in counts]
    scores = {count: _score(keys, pictures[unseen], labels[unseen]) for count, keys in zip(counts, fits, strict=True)}
    return Chapter(
        "Several keys a unit",
        "What do two keys buy?",
        [
            "Ten units, one for each digit. A query is the picture of a digit, attention the posterior over the digits, and the largest "
            "attention names it. With one key a unit must be one picture of its digit; with several it is a mixture of Gaussian keys "
            "(Nguyen et al. 2022), and attention sums over them. Keys, precision and weights of the components are fitted by "
            f"inference.adapt to {len(known)} labelled queries under Normal, Gamma and Dirichlet priors, all ten digits as one batch.",
            "A second key of a unit is a second place where the unit is found. One key, with one width for all, owns a convex region of "
            "the pictures; several keys own a union of such regions. The hard assignment takes the best key of a digit in the "
            "place of the sum; its evidence is a lower bound, short by at most the log of the number of keys.",
            "With one key and the linked prior all of this is dot-product attention: the weights of a trained transformer load into "
            "nn.GaussianMixtureAttention, which gives the same attention, now as the posterior of a Pyro program.",
        ],
        [_plane(context, flat, labels, known, unseen), _scores(scores, len(unseen)), _heads(context)],
    )


def fit(context: Context, queries: Tensor, labels: Tensor, count: int) -> models.GaussianKeys:
    """``count`` keys for each label, each label's fitted to its own queries: one problem a label, told apart by query weights."""
    rng, names = context.rng(), labels.unique()
    rows = [rng.choice(np.flatnonzero((labels == name).cpu()), count, replace=False) for name in names]
    own = (labels == names.unsqueeze(-1)).to(queries.dtype)
    middle = (own @ queries / own.sum(-1, keepdim=True))[:, None, None]
    weights = queries.new_ones(len(names), 1, count) / count
    keys, precision = queries[np.stack(rows)].unsqueeze(1), queries.new_tensor(10.0)
    start = models.GaussianKeys(keys, key_precision=precision, component_weights=weights)
    prior, narrow = Normal(middle.expand_as(keys), HAND), Gamma(queries.new_tensor(2.0), queries.new_tensor(0.1))
    even = Dirichlet(torch.full_like(weights, 2.0))
    posterior = models.bayesian(start, keys=prior, key_precision=narrow, component_weights=even)
    steps = context.size(40, 5)
    fitted = inference.adapt(posterior, queries, num_steps=steps, tol=1e-5, query_weights=own, progress=False)
    found = fitted.formulation
    assert found.component_weights is not None
    return models.GaussianKeys(found.keys[:, 0], None, found.key_precision, found.component_weights[:, 0])


def _score(keys: models.GaussianKeys, queries: Tensor, labels: Tensor) -> list[float]:
    """Share named rightly, soft and hard; mean log evidence of a query, and how far the hard one falls below it."""
    soft, hard = (keys.attention(queries, assignment=how).argmax(-1) == labels for how in ("soft", "hard"))
    evidence, bound = (keys.log_evidence(queries, assignment=how) for how in ("soft", "hard"))
    return [float(x.double().mean()) for x in (soft, hard, evidence, evidence - bound)]


def _scores(scores: Mapping[int, list[float]], unseen: int) -> Picture:
    counts, (soft, hard, evidence, shortfall) = list(scores), np.array(list(scores.values())).T
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
    hollow = {"markersize": 9, "markerfacecolor": "none", "color": plots.UNIT_COLORS[0]}
    left.plot(counts, soft, "o-", **hollow, label="sum over the keys (soft)")
    left.plot(counts, hard, "s", markersize=3.5, color=plots.UNIT_COLORS[5], label="largest key (hard)")
    left.legend(frameon=False)
    right.plot(counts, evidence, "o-", color=plots.UNIT_COLORS[2])
    for ax, title in ((left, "share named rightly"), (right, "log evidence a query, nats")):
        ax.set_xscale("log", base=2)
        ax.set_xticks(counts, [str(count) for count in counts])
        ax.minorticks_off()
        finished(ax, "keys a digit", title)
    how, best, most = f"{unseen} digits that no key was fitted to", evidence.argmax(), counts[-1]
    return picture(
        "number_of_keys",
        figure,
        "Unseen digits. Left: named rightly by the largest attention. Right: how well the memory expects them.",
        *((f"accuracy, {_keys(count)}", share, how) for count, share in zip(counts, soft, strict=True)),
        ("log evidence a query, 1 key, nats", evidence[0], "keys.log_evidence, mean over the same digits"),
        ("highest log evidence a query, nats", evidence[best], f"with {counts[best]} keys a digit"),
        ("hard evidence below the soft one, nats", shortfall[-1], f"mean, {most} keys a digit; at most log {most} = {np.log(most):.3f}"),
        ("largest change of accuracy by hard assignment", np.abs(soft - hard).max(), "over the numbers of keys"),
    )  # fmt: skip


def _keys(count: int) -> str:
    return f"{count} {'key' if count == 1 else 'keys'} a digit"


def _plane(context: Context, flat: np.ndarray, labels: Tensor, known: np.ndarray, unseen: np.ndarray) -> Picture:
    """One key and two for each of four digits, on two principal components of their pictures."""
    some = torch.tensor([0, 1, 5, 9], device=labels.device)
    kept, asked = (rows[torch.isin(labels[rows], some).numpy(force=True)] for rows in (known, unseen))
    plane = context.tensor(principal(flat[kept])(flat))
    queries, names = plane[asked], some.tolist()
    grid = plots.query_grid(queries, num=context.size(120, 30), margin=0.05)
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    numbers = []
    for ax, count in zip(panels, (1, 3), strict=True):
        keys, title = fit(context, plane[kept], labels[kept], count), _keys(count)
        units_in_the_plane(ax, title, grid, keys, names, queries)
        share = (some[keys.attention(queries).argmax(-1)] == labels[asked]).double().mean()
        numbers += [
            (f"accuracy in the plane, {title}", share, f"{len(asked)} unseen digits of these four"),
            (f"log evidence in the plane, {title}, nats", keys.log_evidence(queries).mean(), "mean over the same"),
        ]
    caption = f"Digits {', '.join(map(str, names))} on two principal components. Colour: which digit is responsible; circles: one standard deviation of each key; dots: unseen digits."
    return picture("keys_in_the_plane", figure, caption, *numbers)


def _heads(context: Context) -> Picture:
    """A trained layer as `nn.GaussianMixtureAttention`: the same attention; and how far its heads are from one another."""
    transformer: Any = text_transformer.load().double()
    text = "The class statement makes a new class. A class definition is an executable statement."
    text = text[: context.size(85, 24)]
    heads = transformer.heads(text)
    source = transformer.characters(transformer.encode(text)[None]) + transformer.positions.weight[: len(text)]
    largest = []
    for own, block in zip(heads.attention, transformer.blocks, strict=True):
        layer = nn.GaussianMixtureAttention(64, 4, batch_first=True, dtype=source.dtype)
        trained = {"in_proj_weight": block.projection.weight, "in_proj_bias": block.projection.bias}
        layer.load_state_dict(trained, strict=False)
        x = block.attention_norm(source)
        attention = layer(x, x, x, is_causal=True, average_attn_weights=False)[1][0]
        largest.append((attention.detach() - own).abs().max())
        source = block(source)
    every = heads.attention.flatten(0, 1).numpy(force=True)
    distances = inspection.head_distances(every, lambda p, q: 0.5 * np.abs(p - q).sum(-1))
    names = [f"{layer}.{head}" for layer in range(2) for head in range(4)]
    figure, ax = pyplot.subplots(figsize=(5.2, 4), layout="constrained")
    plots.attention_map(distances, names, names, ax)
    figure.axes[-1].set_ylabel("share of attention placed differently")  # of the colour bar
    ax.set(xlabel="layer.head", ylabel="layer.head")
    apart = distances[np.triu_indices(8, 1)]
    return picture(
        "heads",
        figure,
        "How far the eight heads of the trained text transformer are from one another: the share of attention that they place differently, mean over the characters. Two near heads say nearly the same twice.",
        ("largest difference, layer 0", largest[0], "attention of nn.GaussianMixtureAttention with the trained weights against the transformer's own, float64"),
        ("largest difference, layer 1", largest[1], "the same"),
        ("smallest distance of two heads", apart.min(), "half the sum of |difference| over the units, mean over the queries"),
        ("median distance of two heads", np.median(apart), "over the 28 pairs"),
    )  # fmt: skip

"""Chapter 4: digits arrive changed, without labels, and the keys follow them under their prior."""

from collections.abc import Callable

import numpy as np
import torch
from matplotlib import pyplot
from pyro.distributions import Gamma, Normal
from scipy.ndimage import rotate
from torch import Tensor

from probtx_pyro import data, inference, models, plots, results
from probtx_pyro.tour._chapter import Chapter, Context, Number, Picture

SHIFTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as before": lambda images: images,
    "turned by 25°": lambda images: rotate(images, 25, axes=(1, 2), reshape=False, order=1),
    "faded to half": lambda images: 0.5 + 0.5 * images,
}
CHANGED = "turned by 25°"


def chapter(context: Context) -> Chapter:
    """Accuracy and evidence out of sample, before and after `inference.adapt`, over the strength of the keys' prior."""
    digits, rng = data.load_digits(), context.rng()
    order = rng.permutation(len(digits.labels))
    sizes = context.size(600, 200), context.size(500, 60), context.size(100, 20), context.size(597, 60)
    memory, stream, choosing, unseen = np.split(order[: sum(sizes)], np.cumsum(sizes[:-1]))
    mixture = _memory(context, digits, memory)
    strengths = np.geomspace(0.1, 1e6, context.size(15, 3))
    changed = {name: context.tensor(change(digits.images).reshape(len(order), -1)) for name, change in SHIFTS.items()}
    fits = {name: _adapt(mixture, images[stream], strengths, context) for name, images in changed.items()}
    table = {}
    for name, images in changed.items():
        memories = (mixture, fits[name].formulation)
        before, after = (_score(x, images[unseen], digits.labels[unseen]) for x in memories)
        table[name] = np.concatenate([before[None], after])
    fit = fits[CHANGED]
    best = int(fit.formulation.log_evidence(changed[CHANGED][choosing]).mean(-1).argmax())
    names = [f"{digit}{'abc'[i]}" for digit in range(10) for i in range(3)]
    return Chapter(
        "Keys that adapt",
        "Can a memory follow its queries without a single label?",
        [
            f"A memory of {mixture.num_units} units, three for each digit, names unseen digits. Then the digits arrive changed: "
            "turned by 25 degrees, or faded. Nobody says which digit is which. The queries themselves are data about the keys: "
            "inference.adapt finds the most probable keys given the queries, under a Normal prior around the old keys.",
            "The strength θ of that prior says how far the keys may go: a large θ freezes them, a small one is maximum likelihood. "
            "All strengths are one batch of independent problems; the objective of each, the log joint of the Pyro program "
            "models.bayesian, never falls.",
            "The evidence of unseen queries can be watched without labels. It is not accuracy: at middle strengths keys are pulled "
            "half way, one digit's unit can take the queries of another, and the names go wrong while the evidence improves.",
        ],
        [
            _plane(context, digits, memory, stream),
            _sweep(strengths, table, best, len(unseen)),
            _traces(fit.objective, strengths),
            _pictures(mixture.keys, fit.formulation.keys[best]),
        ],
        {"tour": results.to_inference_data(fit, changed[CHANGED][stream], coords={"unit": names, "batch": strengths})},
    )


def _memory(context: Context, digits: data.Digits, rows: np.ndarray) -> models.GaussianMixture:
    """Three keys a digit by maximum likelihood, from labelled pictures; each unit says its digit with probability 0.99."""
    images, keys = context.tensor(digits.images.reshape(len(digits.labels), -1)), []
    for digit in range(10):
        same = images[rows[digits.labels[rows] == digit]]
        start = models.GaussianMixture(same[:3], key_precision=20.0)
        free = dict(keys=models.FLAT)
        keys.append(
            inference.adapt(models.bayesian(start, **free), same, num_steps=30, progress=False).formulation.keys
        )
    says = torch.full((30, 10), 0.01 / 9, dtype=images.dtype, device=images.device)
    says[torch.arange(30), torch.arange(30) // 3] = 0.99
    mixture = models.GaussianMixture.categorical(torch.cat(keys), says, key_precision=20.0)
    prior = dict(key_precision=Gamma(context.tensor(2.0), context.tensor(0.01)))
    return inference.adapt(models.bayesian(mixture, **prior), images[rows], num_steps=30, progress=False).formulation


def _adapt(
    mixture: models.GaussianMixture, queries: Tensor, strengths: np.ndarray, context: Context
) -> inference.Adaptation:
    """One problem for each strength, all as one batch: keys (strength, unit, feature)."""
    keys = mixture.keys.expand(len(strengths), *mixture.keys.shape)
    priors = dict(keys=Normal(keys, context.tensor(strengths**-0.5)[:, None, None]))
    num_steps = context.size(40, 5)
    return inference.adapt(
        models.bayesian(mixture.replace(keys=keys), **priors), queries, num_steps=num_steps, progress=False
    )


def _score(mixture: models.GaussianMixture, queries: Tensor, labels: np.ndarray) -> np.ndarray:
    """Share named rightly and mean log evidence of a query, shape (..., 2)."""
    named = mixture.expected_outputs(queries).argmax(-1).numpy(force=True)
    return np.stack([(named == labels).mean(-1), mixture.log_evidence(queries).mean(-1).numpy(force=True)], -1)


def _sweep(strengths: np.ndarray, table: dict[str, np.ndarray], best: int, unseen: int) -> Picture:
    figure, panels = pyplot.subplots(1, 2, figsize=(9.5, 3.5), layout="constrained")
    numbers = []
    for i, (name, rows) in enumerate(table.items()):
        color = plots.UNIT_COLORS[(2, 0, 5)[i]]
        for column, ax in enumerate(panels):
            ax.semilogx(strengths, rows[1:, column], "o-", color=color, markersize=3.5, label=name)
            ax.axhline(rows[0, column], color=color, linestyle=":", linewidth=1.2)
        numbers += [
            Number(f"accuracy before, digits {name}", rows[0, 0], f"{unseen} unseen digits"),
            Number(f"accuracy after, digits {name}", rows[1 + best, 0], f"the same digits, keys adapted to others with θ = {strengths[best]:.3g}"),
            Number(f"log evidence before, digits {name}, nats", rows[0, 1], "mean over unseen queries"),
            Number(f"log evidence after, digits {name}, nats", rows[1 + best, 1], "the same"),
        ]  # fmt: skip
    for ax, title in zip(panels, ("share named rightly", "log evidence a query, nats"), strict=True):
        ax.set(xlabel="strength θ of the keys' prior", ylabel=title)
        ax.spines[["top", "right"]].set_visible(False)
    panels[1].legend(frameon=False, fontsize=8, title="digits (dotted: not adapted)", title_fontsize=8)
    caption = "Out of sample: unseen digits, keys adapted to other digits without labels. Dotted, the memory as it was."
    numbers.append(
        Number(
            "θ of highest evidence",
            strengths[best],
            f"of the {len(strengths)} strengths, on a third set of digits {CHANGED}; no labels",
        )
    )
    numbers.append(
        Number(
            "lowest accuracy in the sweep, digits " + CHANGED,
            table[CHANGED][1:, 0].min(),
            f"at θ = {strengths[table[CHANGED][1:, 0].argmin()]:.3g}",
        )
    )
    return Picture("prior_strength", figure, caption, numbers)


def _traces(objectives: Tensor, strengths: np.ndarray) -> Picture:
    shown = list(range(0, len(strengths), max(1, (len(strengths) + 1) // 4)))
    per_start = (objectives - objectives[:1]).numpy(force=True)
    figure, ax = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    plots.objective_trace(per_start[:, shown], [f"θ = {strengths[i]:,.6g}" for i in shown], ax)
    ax.set_ylabel("rise of the log joint, nats")
    steps = objectives.diff(dim=0)
    return Picture(
        "objective",
        figure,
        f"The objective of every adaptation to digits {CHANGED} rises at every step (a few of the {len(strengths)} strengths).",
        [
            Number("smallest rise in a step, nats", float(steps.min()), "over all strengths and steps; negative only by rounding of the objective"),
            Number("rounding of the objective, nats", float(objectives.abs().max()) * float(torch.finfo(objectives.dtype).eps), "its largest magnitude times the machine precision"),
            Number("steps", float(len(steps)), "of inference.adapt"),
        ],
    )  # fmt: skip


def _plane(context: Context, digits: data.Digits, memory: np.ndarray, stream: np.ndarray) -> Picture:
    """The same in two dimensions, where units can be drawn: one for each of five digits, keys and precisions adapt."""
    images = {name: SHIFTS[name](digits.images).reshape(len(digits.labels), -1) for name in ("as before", CHANGED)}
    some = np.array([0, 1, 4, 6, 7])
    kept = [rows[np.isin(digits.labels[rows], some)] for rows in (memory, stream)]
    center = images["as before"][kept[0]].mean(0)
    components = np.linalg.svd(images["as before"][kept[0]] - center, full_matrices=False)[2][:2].T
    first, second = ((images[name][rows] - center) @ components for name, rows in zip(images, kept, strict=True))
    keys = np.stack([first[digits.labels[kept[0]] == digit].mean(0) for digit in some])
    before = models.GaussianMixture(
        context.tensor(keys), key_precision=torch.full((5,), 6.0, dtype=torch.float64, device=context.device)
    )
    queries = context.tensor(second)
    posterior = models.bayesian(before, keys=Normal(before.keys, context.tensor(0.5)), key_precision=Gamma(7.0, 1.0))
    fit = inference.adapt(posterior, queries, num_steps=100, tol=1e-6, progress=False)
    grid = plots.query_grid(np.concatenate([first, second]), num=context.size(120, 30), margin=0.05)
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    for ax, mixture, title in zip(
        panels, (before, fit.formulation), ("old keys, turned digits", "keys adapted to them"), strict=True
    ):
        weights = mixture.attention(context.tensor(grid.reshape(-1, 2))).reshape(*grid.shape[:2], -1)
        precision = torch.as_tensor(mixture.key_precision).numpy(force=True)
        plots.responsibilities(
            grid,
            weights.numpy(force=True),
            mixture.keys.numpy(force=True),
            precision,
            some.tolist(),
            ax,
            queries=second,
        )
        ax.set(title=title, xlabel="first component", ylabel="second component")
    moved = (fit.formulation.keys - before.keys).norm(dim=-1)
    gain = fit.formulation.log_evidence(queries).mean() - before.log_evidence(queries).mean()
    return Picture(
        "keys_in_the_plane",
        figure,
        "Five digits on the first two principal components of the memory. Colour: which unit is responsible; circles: one standard deviation; dots: queries, turned by 25°.",
        [
            Number("largest way of a key", float(moved.max()), "distance in the plane between old and adapted key"),
            Number("gain of log evidence a query, nats", float(gain), "mean over the queries that the keys adapted to"),
            Number("steps to convergence", float(fit.num_steps.max()), "of inference.adapt, tol = 1e-6, at most 100"),
        ],
    )  # fmt: skip


def _pictures(before: Tensor, after: Tensor) -> Picture:
    figure, panels = pyplot.subplots(2, 10, figsize=(8.5, 2.1), layout="constrained")
    for row, (name, keys) in enumerate((("old", before), ("adapted", after))):
        for digit, ax in enumerate(panels[row]):
            ax.imshow(keys[3 * digit].reshape(8, 8).numpy(force=True), cmap="Greys", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
        panels[row, 0].set_ylabel(name)
    moved = (after - before).square().mean(-1).sqrt()
    return Picture(
        "keys_as_pictures",
        figure,
        f"One key of each digit before and after adapting to digits {CHANGED}; they follow the digits without having been told.",
        [
            Number(
                "mean way of a key, ink a pixel",
                float(moved.mean()),
                "root mean square over the pixels, mean over the units",
            )
        ],
    )


__all__ = ["chapter"]

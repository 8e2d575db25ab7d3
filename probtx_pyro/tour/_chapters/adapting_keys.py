"""Chapter 4: digits arrive changed, without labels, and the keys follow them under their prior."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch
from matplotlib import pyplot
from pyro.distributions import Gamma, Normal
from scipy.ndimage import rotate
from torch import Tensor

from probtx_pyro import data, inference, models, plots, results
from probtx_pyro.plots._style import finished
from probtx_pyro.tour._chapter import Chapter, Context, Picture, digit_rows, picture, principal, units_in_the_plane

CHANGED = "turned by 25°"
Scores: TypeAlias = Mapping[str, np.ndarray]  # share named rightly and mean log evidence, (..., 2), by the change


def chapter(context: Context) -> Chapter:
    """Accuracy and evidence out of sample, before and after `inference.adapt`, over the strength of the keys' prior."""
    images, labels = data.load_digits()
    memory, stream, choosing, unseen = context.parts(len(images), (600, 200), (500, 60), (100, 20), (597, 60))
    turned = rotate(images, 25, axes=(1, 2), reshape=False, order=1)
    seen = {"as before": images, CHANGED: turned, "faded to half": 0.5 + 0.5 * images}
    flat = {name: x.reshape(len(images), -1) for name, x in seen.items()}
    changed = {name: context.tensor(x) for name, x in flat.items()}
    mixture = _memory(changed["as before"][memory], labels[memory])
    strengths = np.geomspace(0.1, 1e6, context.size(15, 3))
    fits = {name: _adapt(mixture, x[stream], strengths, context) for name, x in changed.items()}
    before = {name: _score(mixture, x[unseen], labels[unseen]) for name, x in changed.items()}
    after = {name: _score(fits[name].formulation, x[unseen], labels[unseen]) for name, x in changed.items()}
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
            _plane(context, flat, labels, memory, stream),
            _sweep(strengths, before, after, best, len(unseen)),
            _traces(fit.objective, strengths),
            _pictures(mixture.keys, fit.formulation.keys[best]),
        ],
        {"tour": results.to_inference_data(fit, changed[CHANGED][stream], coords={"unit": names, "batch": strengths})},
    )


def _memory(images: Tensor, labels: np.ndarray) -> models.GaussianMixture:
    """Three keys a digit by maximum likelihood, from labelled pictures; each unit says its digit with probability 0.99."""
    keys = []
    for digit in range(10):
        same = images[labels == digit]
        free = models.bayesian(models.GaussianMixture(same[:3], key_precision=20.0), keys=models.FLAT)
        keys.append(inference.adapt(free, same, num_steps=30, progress=False).formulation.keys)
    says = torch.full((30, 10), 0.01 / 9, dtype=images.dtype, device=images.device)
    says[torch.arange(30), torch.arange(30) // 3] = 0.99
    mixture = models.GaussianMixture.categorical(torch.cat(keys), says, key_precision=20.0)
    posterior = models.bayesian(mixture, key_precision=Gamma(images.new_tensor(2.0), images.new_tensor(0.01)))
    return inference.adapt(posterior, images, num_steps=30, progress=False).formulation


def _adapt(
    mixture: models.GaussianMixture, queries: Tensor, strengths: np.ndarray, context: Context
) -> inference.Adaptation:
    """One problem for each strength, all as one batch: keys (strength, unit, feature)."""
    keys = mixture.keys.expand(len(strengths), *mixture.keys.shape)
    prior = Normal(keys, context.tensor(strengths**-0.5)[:, None, None])
    posterior = models.bayesian(mixture.replace(keys=keys), keys=prior)
    return inference.adapt(posterior, queries, num_steps=context.size(40, 5), progress=False)


def _score(mixture: models.GaussianMixture, queries: Tensor, labels: np.ndarray) -> np.ndarray:
    """Share named rightly and mean log evidence of a query, shape (..., 2)."""
    named = mixture.expected_outputs(queries).argmax(-1).numpy(force=True)
    return np.stack([(named == labels).mean(-1), mixture.log_evidence(queries).mean(-1).numpy(force=True)], -1)


def _sweep(strengths: np.ndarray, before: Scores, after: Scores, best: int, unseen: int) -> Picture:
    figure, panels = pyplot.subplots(1, 2, figsize=(9.5, 3.5), layout="constrained")
    numbers = []
    for name, unit in zip(before, (2, 0, 5), strict=True):
        color = plots.UNIT_COLORS[unit]
        for ax, old, new in zip(panels, before[name], after[name].T, strict=True):
            ax.semilogx(strengths, new, "o-", color=color, markersize=3.5, label=name)
            ax.axhline(old, color=color, linestyle=":", linewidth=1.2)
        numbers += [
            (f"accuracy before, digits {name}", before[name][0], f"{unseen} unseen digits"),
            (f"accuracy after, digits {name}", after[name][best, 0], f"the same digits, keys adapted to others with θ = {strengths[best]:.3g}"),
            (f"log evidence before, digits {name}, nats", before[name][1], "mean over unseen queries"),
            (f"log evidence after, digits {name}, nats", after[name][best, 1], "the same"),
        ]  # fmt: skip
    for ax, title in zip(panels, ("share named rightly", "log evidence a query, nats"), strict=True):
        finished(ax, "strength θ of the keys' prior", title)
    panels[1].legend(frameon=False, fontsize=8, title="digits (dotted: not adapted)", title_fontsize=8)
    changed = after[CHANGED][:, 0]
    third = f"of the {len(strengths)} strengths, on a third set of digits {CHANGED}; no labels"
    return picture(
        "prior_strength",
        figure,
        "Out of sample: unseen digits, keys adapted to other digits without labels. Dotted, the memory as it was.",
        *numbers,
        ("θ of highest evidence", strengths[best], third),
        (f"lowest accuracy in the sweep, digits {CHANGED}", changed.min(), f"at θ = {strengths[changed.argmin()]:.3g}"),
    )


def _traces(objectives: Tensor, strengths: np.ndarray) -> Picture:
    shown = list(range(0, len(strengths), max(1, (len(strengths) + 1) // 4)))
    figure, ax = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    rise = objectives - objectives[:1]
    plots.objective_trace(rise[:, shown], [f"θ = {strengths[i]:,.6g}" for i in shown], ax)
    ax.set_ylabel("rise of the log joint, nats")
    steps = objectives.diff(dim=0)
    rounding = float(objectives.abs().max()) * float(torch.finfo(objectives.dtype).eps)
    return picture(
        "objective",
        figure,
        f"The objective of every adaptation to digits {CHANGED} rises at every step (a few of the {len(strengths)} strengths).",
        ("smallest rise in a step, nats", steps.min(), "over all strengths and steps; negative only by rounding of the objective"),
        ("rounding of the objective, nats", rounding, "its largest magnitude times the machine precision"),
        ("steps", len(steps), "of inference.adapt"),
    )  # fmt: skip


def _plane(
    context: Context, flat: Mapping[str, np.ndarray], labels: np.ndarray, memory: np.ndarray, stream: np.ndarray
) -> Picture:
    """The same in two dimensions, where units can be drawn: one for each of five digits, keys and precisions adapt."""
    some = [0, 1, 4, 6, 7]
    memory, stream = (rows[np.isin(labels[rows], some)] for rows in (memory, stream))
    project = principal(flat["as before"][memory])
    first, second = project(flat["as before"][memory]), project(flat[CHANGED][stream])
    keys = context.tensor(np.stack([first[labels[memory] == digit].mean(0) for digit in some]))
    before, queries = models.GaussianMixture(keys, key_precision=keys.new_full((5,), 6.0)), context.tensor(second)
    posterior = models.bayesian(before, keys=Normal(keys, context.tensor(0.5)), key_precision=Gamma(7.0, 1.0))
    fit = inference.adapt(posterior, queries, num_steps=100, tol=1e-6, progress=False)
    after, grid = fit.formulation, plots.query_grid([*first, *second], num=context.size(120, 30), margin=0.05)
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    units_in_the_plane(panels[0], "old keys, turned digits", grid, before, some, second)
    units_in_the_plane(panels[1], "keys adapted to them", grid, after, some, second)
    gain = after.log_evidence(queries).mean() - before.log_evidence(queries).mean()
    return picture(
        "keys_in_the_plane",
        figure,
        "Five digits on the first two principal components of the memory. Colour: which unit is responsible; circles: one standard deviation; dots: queries, turned by 25°.",
        ("largest way of a key", (after.keys - keys).norm(dim=-1).max(), "distance in the plane between old and adapted key"),
        ("gain of log evidence a query, nats", gain, "mean over the queries that the keys adapted to"),
        ("steps to convergence", fit.num_steps.max(), "of inference.adapt, tol = 1e-6, at most 100"),
    )  # fmt: skip


def _pictures(before: Tensor, after: Tensor) -> Picture:
    figure, _ = digit_rows({"old": before[::3], "adapted": after[::3]}, height=2.1)
    moved = (after - before).square().mean(-1).sqrt()
    how = "root mean square over the pixels, mean over the units"
    caption = f"One key of each digit before and after adapting to digits {CHANGED}; they follow the digits without having been told."
    return picture("keys_as_pictures", figure, caption, ("mean way of a key, ink a pixel", moved.mean(), how))

"""Chapter 8: digits are stored in a Hopfield memory, half of each is erased, and one step of attention brings it back."""

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib import pyplot
from torch import Tensor

from probtx_pyro import data, models, plots
from probtx_pyro.plots._style import finished
from probtx_pyro.tour._chapter import Chapter, Context, Picture, Row, picture

SHARP, VAGUE = 1000.0, 15.0  # inverse temperatures: each picture for itself, and averages of similar ones
RIGHT = 0.01  # a picture is retrieved if no pixel is off by more
ERASED = ("random half", "lower half")
COLUMNS = 10


def chapter(context: Context) -> Chapter:
    """Retrieval from erased pictures, the energy on the way, and the share retrieved over the inverse temperature."""
    (images, labels), rng = data.load_digits(), context.rng()
    drawn = rng.permutation(len(images))[: context.size(100, 20)]
    first = np.unique(labels[drawn], return_index=True)[1]  # one of each digit, to be shown
    chosen = images[np.concatenate([drawn[first], np.delete(drawn, first)])]
    flat = 2 * chosen.reshape(len(chosen), -1) - 1
    stored = context.tensor(flat / np.linalg.norm(flat, axis=-1, keepdims=True))
    pixels = stored.shape[-1]
    kept = np.stack([rng.permutation(pixels) < pixels // 2 for _ in chosen]), np.arange(pixels) < pixels // 2
    shown = {name: stored * context.tensor(keep) for name, keep in zip(ERASED, kept, strict=True)}
    return Chapter(
        "What is remembered",
        "How much of a picture is enough to know the rest?",
        [
            "Attention is the slope of a log normaliser: with log Z(η) = log Σ exp(x·η) over stored patterns x, the gradient is the "
            "attention of the query η over the patterns, and the second derivative is the covariance of the pattern under it: how "
            "sure the answer is, pixel by pixel, for nothing (models.LogNormalizer).",
            f"Turned over, ½|s|² − log Z(βs)/β is the energy of a modern Hopfield network (models.Hopfield), and a step down its slope "
            f"is attention, too. It never rises. {len(stored)} digits are stored, their pixels between −1 and 1 and each picture of length "
            "one; then half of the pixels of each are set to 0, and the memory is asked.",
            "The inverse temperature β says how far patterns must lie apart to be told apart. Where it is small the memory returns "
            "averages of similar digits, resting places that were never stored. Where it is large it returns the pattern with the "
            "largest dot product, in one step; what is wrong then stays wrong.",
        ],
        [_images(stored, shown), _energy(context, stored, shown), _accuracy(context, stored, shown)],
    )


def _right(found: Tensor, stored: Tensor) -> float:
    """Share of pictures that are retrieved."""
    return float(((found - stored).abs().amax(-1) < RIGHT).double().mean())


def _images(stored: Tensor, shown: Mapping[str, Tensor]) -> Picture:
    """Pictures as stored, as erased, and as they come back at two temperatures."""
    asked, tilted = shown[ERASED[0]], models.LogNormalizer(stored)  # the tilted distribution at η = βs retrieves
    answers = {beta: models.Hopfield(stored, beta).retrieve(asked) for beta in (VAGUE, SHARP)}
    eta = (VAGUE * asked[:COLUMNS]).requires_grad_()
    (slope,) = torch.autograd.grad(tilted.log_normalizer(eta).sum(), eta)
    variances = {beta: tilted.covariance(beta * asked[:COLUMNS]).diagonal(dim1=-2, dim2=-1) for beta in answers}
    doubt = {beta: variance.clamp_min(0.0).sqrt() for beta, variance in variances.items()}
    rows = {
        "stored": stored,
        "half erased": asked,
        f"one step, β = {VAGUE:g}": answers[VAGUE],
        "its standard deviation": doubt[VAGUE],
        f"one step, β = {SHARP:g}": answers[SHARP],
    }
    figure, ax = pyplot.subplots(figsize=(8.8, 4.0), layout="constrained")
    pictures = {title: x[:COLUMNS].unflatten(-1, (8, 8)) for title, x in rows.items()}
    plots.image_rows(pictures, ax=ax, own_scale=["its standard deviation"])
    return picture(
        "retrieved",
        figure,
        "Digits from a random half of their pixels. Grey is 0: erased. Colour: what the curvature of the log normaliser says about the row above it.",
        ("largest |attention − slope of log Z|", (slope - answers[VAGUE][:COLUMNS]).abs().max(), "retrieve against automatic differentiation of LogNormalizer.log_normalizer"),
        (f"share retrieved, β = {SHARP:g}", _right(answers[SHARP], stored), f"{len(stored)} digits, one step, no pixel off by more than {RIGHT:g}"),
        (f"share retrieved, β = {VAGUE:g}", _right(answers[VAGUE], stored), "the same"),
        (f"mean standard deviation of a pixel, β = {VAGUE:g}", doubt[VAGUE].mean(), f"LogNormalizer.covariance, the {COLUMNS} digits shown"),
        (f"mean standard deviation of a pixel, β = {SHARP:g}", doubt[SHARP].mean(), "the same"),
    )  # fmt: skip


def _energy(context: Context, stored: Tensor, shown: Mapping[str, Tensor]) -> Picture:
    """The energy of every step at a middle temperature, and how many resting places there are over the temperature."""
    asked, middle, betas = shown[ERASED[0]], 30.0, np.geomspace(3, 300, context.size(13, 3))
    steps = context.size(12, 4)
    energy = models.Hopfield(stored, middle).settle(asked, steps, tol=None).energy
    ends = [models.Hopfield(stored, beta).settle(asked, context.size(300, 20), tol=1e-6).state for beta in betas]
    places = [float((1 / (torch.cdist(x, x) < RIGHT).double().sum(-1)).sum()) for x in ends]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
    plots.objective_trace(energy[:, :8], ax=left)
    left.set(xlabel="step", ylabel=f"energy, β = {middle:g}")
    right.semilogx(betas, places, "o-", color=plots.UNIT_COLORS[0])
    right.axhline(len(stored), color="#999999", linewidth=1)
    finished(right, "β", "resting places", ylim=(0, None))
    return picture(
        "energy",
        figure,
        f"Left: the energy of 8 half-erased digits on their way. Right: how many different states {len(stored)} of them end in; the line is the number of patterns.",
        ("largest rise of the energy in a step", energy.diff(dim=0).max(), f"{len(stored)} states, {steps} steps; above 0 by rounding only"),
        ("resting places, smallest β", places[0], f"Hopfield.settle at β = {betas[0]:g}; states within {RIGHT:g} count as one"),
        ("resting places, largest β", places[-1], f"the same at β = {betas[-1]:g}"),
    )  # fmt: skip


def _accuracy(context: Context, stored: Tensor, shown: Mapping[str, Tensor]) -> Picture:
    """Share retrieved in one step over β, for what was erased and for softmax beside sparsemax."""
    betas = np.geomspace(3, 3000, context.size(19, 4))
    figure, ax = pyplot.subplots(figsize=(7, 3.8), layout="constrained")
    numbers: list[Row] = []
    for name, color in zip(ERASED, plots.UNIT_COLORS, strict=False):
        nearest = (shown[name] @ stored.mT).argmax(-1) == torch.arange(len(stored), device=stored.device)
        for transformation, dash in (("softmax", "o-"), ("sparsemax", "^--")):
            memories = [models.Hopfield(stored, beta, transformation=transformation) for beta in betas]
            shares = [_right(memory.retrieve(shown[name]), stored) for memory in memories]
            ax.semilogx(betas, shares, dash, color=color, markersize=4, label=f"{name} erased, {transformation}")
            best = int(np.argmax(shares))
            how = f"one step at the best β of the curve, {betas[best]:.0f}"
            numbers.append((f"share retrieved, {name}, {transformation}", shares[best], how))
        how = "where β is very large the memory can do no better"
        numbers.append((f"largest dot product is right, {name}", nearest.double().mean(), how))
    finished(ax, "β", "share retrieved in one step", True, ylim=(-0.03, 1.03))
    caption = f"{len(stored)} stored digits, asked once each. Sparsemax gives most patterns the weight 0 and needs a smaller β."
    return picture("over_beta", figure, caption, *numbers)

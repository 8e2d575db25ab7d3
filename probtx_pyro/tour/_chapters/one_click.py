"""Chapter 5: clicks on a photograph; the answer of every pixel is a posterior that each click moves."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot
from scipy.special import entr

from probtx_pyro import data, plots
from probtx_pyro.apps import segmentation
from probtx_pyro.apps.segmentation import ClickGame, Segmentation
from probtx_pyro.plots._style import finished
from probtx_pyro.tour._chapter import Chapter, Context, Picture, picture

BACKGROUND, OBJECT = 1, 2


def chapter(context: Context) -> Chapter:
    """The game of clicks on scikit-learn's photograph of a pagoda, scored against a mask drawn by hand."""
    image, mask = data.load_pagoda()
    thinning = context.size(1, 4)
    image, truth = image[::thinning, ::thinning], np.where(mask[::thinning, ::thinning], OBJECT, BACKGROUND)
    segmenter = segmentation.InteractiveSegmenter.from_image(image)
    answers: list[Segmentation] = []

    def segment(given: list[segmentation.Click]) -> np.ndarray:
        answers.append(segmenter.segment(segmentation.marks_from_clicks(truth.shape, given)))
        return answers[-1].mask

    game = segmentation.play_clicks(segment, truth, num_clicks=context.size(10, 4))
    gained = np.diff([(answer.mask == truth).sum() for answer in answers]).tolist()
    return Chapter(
        "One click corrects every pixel",
        "How far does one click reach?",
        [
            f"A photograph of {truth.shape[0]} by {truth.shape[1]} pixels, and two classes: the pagoda and the rest. Pixels are "
            "queries; units with a colour and a place are their keys. A click says the class of one pixel. It is an observed "
            "answer: it updates the answers of the units that explain that pixel, and with them the posterior of every pixel "
            "that attends to such units.",
            "A program plays the user: one click in the middle of each class, then, again and again, one in the middle of the "
            "largest wrong piece. The reference mask was drawn by hand for this project; it places the clicks and scores the "
            "answers. A click can also mislead: one class reaches further than it should, until a later click says so.",
        ],
        [_masks(image, truth, answers, gained, game), _scores(truth, gained, game)],
    )


def _masks(
    image: np.ndarray, truth: np.ndarray, answers: Sequence[Segmentation], gained: Sequence[int], game: ClickGame
) -> Picture:
    """Probability of the object at the start, before and after the best click, and at the end; the reference; uncertainty."""
    first = game.counts[0]
    best = first + 1 + int(np.argmax(gained))
    shown = dict.fromkeys((first, best - 1, best, first + len(answers) - 1))
    figure, panels = pyplot.subplots(2, 3, figsize=(10.5, 5.4), layout="constrained")
    *some, reference, doubt = panels.flat
    numbers, entropy = [], np.zeros(truth.shape)
    how = "entropy of the class probabilities of segmentation.InteractiveSegmenter.segment, mean over the pixels"
    for ax, count in zip(some, shown, strict=False):
        answer, given = answers[count - first], game.clicks[:count]
        probability = answer.probabilities[..., int(np.flatnonzero(answer.classes == OBJECT)[0])]
        marks = np.array([(y, x, label == OBJECT) for y, x, label in given], dtype=float)
        plots.segmentation_overlay(image, probability.clip(0, 1), marks, ax)
        ax.set_title(f"after {count} clicks" + (f": click {count} set most right" if count == best else ""))
        entropy = entr(answer.probabilities.astype(float)).sum(-1) / np.log(2)
        numbers.append((f"uncertainty after {count} clicks, bits a pixel", entropy.mean(), how))
    for ax in some[len(shown) :]:
        ax.set_visible(False)
    plots.segmentation_overlay(image, truth == OBJECT, None, reference)
    reference.set_title("reference, drawn by hand")
    drawn = doubt.imshow(entropy, cmap="cividis", vmin=0, vmax=1)
    figure.colorbar(drawn, ax=doubt, label="bits", shrink=0.7)
    doubt.set(title="uncertainty at the end", xticks=[], yticks=[])
    caption = "Colour where the pagoda is probable, grey where it is not, the line at one half; clicks are numbered, + on the pagoda, − off it. Photograph: danielbuechele, CC BY 2.0."
    return picture("clicks", figure, caption, *numbers)


def _scores(truth: np.ndarray, gained: Sequence[int], game: ClickGame) -> Picture:
    """Intersection over union against clicks, and how many pixels each click set right."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
    left.plot(game.counts, game.scores[:, 1], "o-", color=plots.UNIT_COLORS[1], label="pagoda")
    left.plot(game.counts, game.scores.mean(-1), "s--", color=plots.UNIT_COLORS[0], label="mean of both classes")
    finished(left, "clicks", "intersection over union", ylim=(min(0.5, float(game.scores.min())), 1))
    left.legend(frameon=False, loc="lower right")
    right.bar(range(game.counts[0] + 1, game.counts[0] + 1 + len(gained)), gained, color=plots.UNIT_COLORS[2])
    right.axhline(0, color="#222222", linewidth=0.8)
    finished(right, "click", "pixels set right")
    rows = sorted({0, 1, len(game.counts) // 2, len(game.counts) - 1})
    how = "intersection over union with the mask drawn by hand, apps.segmentation.play_clicks"
    return picture(
        "intersection_over_union",
        figure,
        "Left: agreement with the reference. Right: what each click set right, less what it set wrong.",
        *((f"IoU of the pagoda, {game.counts[i]} clicks", game.scores[i, 1], how) for i in rows),
        ("pixels set right by the best click", max(gained), "right after it less right before it"),
        ("pixels set right by the worst click", min(gained), "negative where it misled more pixels than it corrected"),
        ("pixels of the photograph", truth.size, "height times width"),
    )

"""The next click: where `apps.segmentation.suggest_click` sends it, beside the least sure pixel and any pixel.

    PROBTX_DATA=... python -m benchmarks.next_click

Protocol. One click in each class: in its middle, as in `benchmarks.segmentation`, or at any of its pixels (3 seeds); then every further click goes where a rule sends
it, which sees the answer and the marks and no truth, and has the true label there. Where the truth is not scored (the border of the pet), the
click goes to the nearest pixel that is: a person would not click on an edge. Marks are given all at once, or each answer is the
prior of the next, as on the page of ``probtx segment``. Score: intersection over union, mean of the two classes,
mean over pictures, after 2 to 10 clicks. From the middles ``any pixel`` draws with 5 seeds; the others have no chance in them. The
last rule, clicks in the middle of the largest error, sees the truth: it is the click protocol, no rule but what a rule may hope for.

Least sure is the belief before calibration. The rule of `suggest_click` was chosen among seventeen on eight of these photographs, with the
layers of then and all marks at once, and has not been changed since.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence

import numpy as np
from scipy import ndimage

from benchmarks.reports import Tables, rows_kept, rows_of, short, write_tables
from benchmarks.segmentation import photographs
from benchmarks.timing import write
from probtx_pyro.apps import segmentation
from probtx_pyro.metrics import intersection_over_union

COUNTS = tuple(range(2, 11))
# clicks that start a game, and its seeds: middles of the classes, any of their pixels
STARTS = {"middles": range(5), "any": range(3)}
Rule = Callable[[segmentation.Segmentation, np.ndarray, np.ndarray], tuple[int, int] | None]


def suggested(answer: segmentation.Segmentation, marks: np.ndarray, truth: np.ndarray) -> tuple[int, int] | None:
    return segmentation.suggest_click(answer, marks)


def least_sure(answer: segmentation.Segmentation, marks: np.ndarray, truth: np.ndarray) -> tuple[int, int]:
    assert answer.belief is not None
    doubt = np.where(marks == 0, 1 - answer.belief.max(-1), -1)
    y, x = np.unravel_index(np.argmax(doubt), doubt.shape)
    return int(y), int(x)


def any_pixel(seed: int) -> Rule:
    random = np.random.default_rng(seed)

    def rule(answer: segmentation.Segmentation, marks: np.ndarray, truth: np.ndarray) -> tuple[int, int]:
        y, x = np.unravel_index(random.choice(np.flatnonzero(marks == 0)), marks.shape)
        return int(y), int(x)

    return rule


def largest_error(answer: segmentation.Segmentation, marks: np.ndarray, truth: np.ndarray) -> tuple[int, int] | None:
    click = segmentation.next_click(truth, answer.mask)
    return None if click is None else click[:2]


RULES: dict[str, Callable[[int], Rule]] = {
    "suggest_click": lambda _: suggested,
    "least sure pixel": lambda _: least_sure,
    "any pixel": any_pixel,
    "largest error (sees the truth)": lambda _: largest_error,
}


def any_clicks(truth: np.ndarray, seed: int) -> list[segmentation.Click]:
    """One click at any pixel of each class."""
    random, clicks = np.random.default_rng(seed), []
    for label in np.unique(truth[truth > 0]):
        y, x = np.unravel_index(random.choice(np.flatnonzero(truth == label)), truth.shape)
        clicks.append((int(y), int(x), int(label)))
    return clicks


def game(
    picture: segmentation.InteractiveSegmenter,
    truth: np.ndarray,
    rule: Rule,
    clicks: list[segmentation.Click],
    in_turn: bool,
) -> list[float]:
    """Scores after each of `COUNTS`."""
    nearest = ndimage.distance_transform_edt(truth == 0, return_distances=False, return_indices=True)
    scores: list[float] = []
    answer = None
    for count in COUNTS:
        marks = segmentation.marks_from_clicks(picture.shape, clicks)
        answer = picture.segment(marks, previous=answer if in_turn else None)
        scores.append(float(np.mean(intersection_over_union(truth, answer.mask))))
        if count < COUNTS[-1] and (place := rule(answer, marks, truth)) is not None:
            y, x = (int(index[place]) for index in nearest)
            clicks.append((y, x, int(truth[y, x])))
    return scores


def report_tables() -> Tables:
    """The table of ``docs/reports/segmentation.md``: IoU after each click, by the start, the marks and the rule."""
    lines = [
        [
            row["start"] if row["start"] == "middles" else f"any pixel, {row['seeds']} seeds",
            "with previous" if row["with_previous"] else "all at once", row["rule"], *map(short, row["iou"]),
        ]
        for row in rows_kept("next_click")
    ]  # fmt: skip
    return {"next click": rows_of(["first clicks", "marks", "rule", *map(str, COUNTS)], *lines)}


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print, write."""
    parser = argparse.ArgumentParser(prog="benchmarks.next_click", description="rules for the next click")
    parser.parse_args(argv)
    try:
        data = photographs()
    except ValueError as error:
        print(f"benchmarks.next_click: error: {error}", file=sys.stderr)
        return 2
    prepared = [(segmentation.InteractiveSegmenter.from_image(x.image), x.truth) for x in data]
    rows: list[dict[str, object]] = []
    print(f"{'mean IoU after':56}" + "".join(f"{count:>7}" for count in COUNTS))
    for start, in_turn, name in itertools.product(STARTS, (False, True), RULES):
        seeds = STARTS[start] if start == "any" or name == "any pixel" else STARTS[start][:1]
        games = []
        for seed in seeds:
            rule = RULES[name](seed)
            games.append([
                game(picture, truth, rule, segmentation.first_clicks(truth) if start == "middles" else any_clicks(truth, seed), in_turn)
                for picture, truth in prepared
            ])  # fmt: skip
        table = np.array(games)  # (seed, picture, count)
        means = table.mean(1)
        spread = means.std(0, ddof=1).round(4).tolist() if len(seeds) > 1 else None
        rows.append({"start": start, "with_previous": in_turn, "rule": name, "seeds": len(seeds),
                     "clicks": list(COUNTS), "iou": means.mean(0).round(4).tolist(), "sd_over_seeds": spread,
                     "iou_of_each_picture": table.mean(0).round(4).tolist()})  # fmt: skip
        given = f"{start}, {'with previous' if in_turn else 'all at once'}, {name}"
        print(f"{given:56}" + "".join(f"{value:7.3f}" for value in means.mean(0)), flush=True)
    print(write("next_click", rows))
    write_tables("segmentation.md", report_tables())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Calibration of the segmentation: two constants fitted, and the reliability curve before and after, by three kinds of bins.

    PROBTX_DATA=... python -m benchmarks.segmentation_calibration [--judge]

Protocol, written before any held-out number of a calibrated answer was seen (those of the answers before were known: docs/reports/segmentation.md).

**Estimand.** The share of pixels that are pet among those said to be pet with probability p, over pictures, for p of `segment`: after 3, 5
and 10 clicks with previous, and after scribbles. The mask never changes: the calibration keeps the most probable class.

**Fitted** are ε (``region_error``) and κ (``review_gain``) of `SegmentationSettings`, by the least log loss of the label of
the mask (right or wrong), on the tuning half alone: its 8 photographs and five altered crops of each (`altered`: 55 to 90 % of a side, contrast
times .5 to 1.3, brightness ± 25, noise of up to 12 grey values, every second one mirrored). Games of 10 clicks with previous and
all at once, scribbles few and more (five seeds; two on crops); each of these three kinds, each photograph and each answer to it counts alike. Crops
count like the photographs, since all other settings were chosen on the photographs, whose masks are better for it than a new one's.
**Chosen among** (by log loss leaving one photograph out, its crops with it; settled on the tuning half): a temperature, also by the
number of marks; ε; both; each with odds exp(κ r) for r reviews survived, r counted per pixel or per answer, or its logarithm; evidence of
contested pixels set to zero, weakened or kept; the distance from the nearest mark. That comparison is not in this file. Its last part took the
first 120 sampled pixels of each answer, mostly of the tops of pictures; there a temperature by the number of marks had the lower log loss
(.262 against .278), and ε with κ was kept as the form that says what it assumes.

**Looked at once** (``--judge``): the held-out half with ε and κ of the tuning half, (i) ten bins of equal width, (ii) ten of equal mass; then (iii) all
16 photographs pooled, ε and κ fitted each time without the photograph that is scored (on the other 15 and the crops of those in the tuning half).
Standard errors: pictures drawn again, 2,000 times. The goal: every bin within .05. What ships are the constants of the tuning half, rounded to two digits.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from benchmarks.reports import Tables, rows_kept, rows_of, short, write_tables
from benchmarks.scribbles import scribbles
from benchmarks.segmentation import SEEDS, STROKES, Photograph, photographs
from benchmarks.timing import write
from probtx_pyro.apps import InteractiveSegmenter, Segmentation, SegmentationSettings, segmentation

CROPS, CROP_SEEDS = 5, 2
_GRID = 0.05  # log odds are rounded to this for the fit


class Answer(NamedTuple):
    """Scored and unmarked pixels of an answer."""

    kind: str
    clicks: int
    belief: np.ndarray  # of the pet
    contested: np.ndarray
    stood: np.ndarray
    pet: np.ndarray


def altered(photograph: Photograph, number: int) -> Photograph:
    """Return a crop with other contrast, brightness and noise; odd numbers are mirrored."""
    random = np.random.default_rng([number, *photograph.name.encode()])
    size = np.array(photograph.truth.shape)
    while True:
        height, width = (size * random.uniform(0.55, 0.9, 2)).astype(int)
        y, x = random.integers(size - (height, width) + 1)
        truth = photograph.truth[y : y + height, x : x + width]
        if min((truth == 1).mean(), (truth == 2).mean()) > 0.08:
            break
    image = photograph.image[y : y + height, x : x + width].astype(float)
    contrast, brighter, noise = random.uniform(0.5, 1.3), random.uniform(-25, 25), random.uniform(0, 12)
    image = (image - image.mean()) * contrast + image.mean() + brighter + random.normal(0, noise, image.shape)
    step = -1 if number % 2 else 1
    pixels = image.round().clip(0, 255).astype(np.uint8)[:, ::step]
    return Photograph(photograph.name, np.ascontiguousarray(pixels), np.ascontiguousarray(truth[:, ::step]))


def answers(photograph: Photograph, seeds: Sequence[int], at_once: bool) -> Iterator[Answer]:
    """Play and scribble."""
    picture, truth = InteractiveSegmenter.from_image(photograph.image), photograph.truth

    def kept(kind: str, clicks: int, marks: np.ndarray, answer: Segmentation) -> Answer:
        assert answer.belief is not None and answer.stood is not None
        scored = (truth > 0) & (marks == 0)
        contested = np.zeros_like(scored)
        if answer.stood.any():
            contested = (picture.segment(marks).mask != answer.mask) & (answer.stood > 0)
        parts = (answer.belief[..., 1], contested, answer.stood, truth == 2)
        return Answer(kind, clicks, *(part[scored] for part in parts))

    for kind in ("with previous", "all at once") if at_once else ("with previous",):
        given: list[tuple[int, np.ndarray, Segmentation]] = []

        def play(clicks: list[segmentation.Click], kind: str = kind, given: list[Any] = given) -> np.ndarray:
            marks = segmentation.marks_from_clicks(truth.shape, clicks)
            before = given[-1][-1] if given and kind == "with previous" else None
            given.append((len(clicks), marks, picture.segment(marks, previous=before)))
            return given[-1][-1].mask

        segmentation.play_clicks(play, truth, 10)
        yield from (kept(kind, *parts) for parts in given)
    for number in STROKES.values():
        for seed in seeds:
            marks = scribbles(truth, number, seed)
            yield kept("scribbles", 0, marks, picture.segment(marks))


def odds(evidence: np.ndarray, stood: np.ndarray, error: float, gain: float) -> np.ndarray:
    """Log odds of the mask's label, of log odds by the belief (0 where contested), two classes."""
    return logit((1 - error) * expit(evidence) + error / 2) + gain * stood


def table(found: Sequence[Answer]) -> np.ndarray:
    """Rows (log odds, reviews, right, weight) of one photograph; each kind has the weight 1."""
    rows = []
    for kind in {answer.kind for answer in found}:
        own = [answer for answer in found if answer.kind == kind]
        for answer in own:
            sure = np.maximum(answer.belief, 1 - answer.belief).astype(float).clip(0.5, 1 - 1e-7)
            steps = np.where(answer.contested, 0, (logit(sure) / _GRID).round()).astype(int)
            right = (answer.belief > 0.5) == answer.pet
            counts = np.bincount((steps * 32 + answer.stood) * 2 + right)
            cells = np.flatnonzero(counts)
            rows.append(
                np.stack([cells // 64 * _GRID, cells // 2 % 32, cells % 2, counts[cells] / len(sure) / len(own)])
            )
    return np.hstack(rows)


def fit(tables: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return ε and κ of the least log loss."""
    evidence, stood, right, weight = np.hstack(tables)
    sign = np.where(right > 0, -1, 1)

    def loss(free: np.ndarray) -> float:
        return float(weight @ np.logaddexp(0, sign * odds(evidence, stood, expit(free[0]), np.exp(free[1]))))

    free = minimize(loss, [-2.0, -1.0], method="Nelder-Mead").x
    return float(expit(free[0])), float(np.exp(free[1]))


def said(answer: Answer, error: float, gain: float) -> np.ndarray:
    """Calibrated probability of the pet."""
    sure = np.maximum(answer.belief, 1 - answer.belief).astype(float).clip(0.5, 1 - 1e-7)
    own = expit(odds(np.where(answer.contested, 0, logit(sure)), answer.stood, error, gain))
    return np.where(answer.belief > 0.5, own, 1 - own)


def curve(predicted: Sequence[np.ndarray], pet: Sequence[np.ndarray], equal_mass: bool) -> dict[str, Any]:
    """Ten bins of the pixels of all pictures, with the standard errors of their gaps by drawing pictures again."""
    inner = np.quantile(np.concatenate(predicted), np.arange(1, 10) / 10) if equal_mass else np.arange(1, 10) / 10
    bins = [np.searchsorted(inner, some, side="right") for some in predicted]
    sums = np.array([
        [np.bincount(own, weights, 10) for weights in (np.ones(len(own)), some, true)]
        for own, some, true in zip(bins, predicted, pet, strict=True)
    ])  # fmt: skip

    def gaps(some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count, mean, share = some.sum(0)
        return count, np.where(count > 0, (mean - share) / count.clip(1), np.nan)

    count, gap = gaps(sums)
    again = np.random.default_rng(0).integers(len(sums), size=(2000, len(sums)))
    with np.errstate(invalid="ignore"):
        error = np.nanstd([gaps(sums[some])[1] for some in again], 0)
    return {
        "pixels": count.astype(int).tolist(),
        "predicted": (sums.sum(0)[1] / count.clip(1)).round(4).tolist(),
        "gap": [None if np.isnan(value) else round(float(value), 4) for value in gap],
        "standard_error": [None if np.isnan(value) else round(float(value), 4) for value in error],
        "largest_gap": round(float(np.nanmax(np.abs(gap))), 4),
        "mean_gap": round(float(np.nansum(np.abs(gap) * count) / count.sum()), 4),
    }


Shown = Callable[[Answer], bool]
CONDITIONS: dict[str, Shown] = {
    **{f"{n} clicks": lambda a, n=n: a.kind == "with previous" and a.clicks == n for n in (3, 5, 10)},
    "scribbles": lambda a: a.kind == "scribbles",
}  # fmt: skip


def judge(
    games: dict[str, list[Answer]], constants: dict[str, tuple[float, float]], which: str
) -> list[dict[str, Any]]:
    """Score each photograph by its constants, before calibration, too."""
    rows = []
    for name, shown in CONDITIONS.items():
        found = {}
        for photograph, own in games.items():
            # a game that ends early keeps its last answer
            played = max(a.clicks for a in own if a.kind == "with previous")
            some = [a for a in own if shown(a)] or [a for a in own if a.kind == "with previous" and a.clicks == played]
            found[photograph] = some
        pet = [np.concatenate([a.pet for a in some]) for some in found.values()]
        before = [np.concatenate([a.belief for a in some]) for some in found.values()]
        after = [np.concatenate([said(a, *constants[key]) for a in some]) for key, some in found.items()]
        for stage, predicted in (("before", before), ("calibrated", after)):
            brier, nll = (
                float(np.mean(x))
                for x in zip(*(scores(p, t) for p, t in zip(predicted, pet, strict=True)), strict=True)
            )
            for equal_mass in (False, True):
                row = curve(predicted, pet, equal_mass)
                bins = "equal mass" if equal_mass else "equal width"
                rows.append(
                    {
                        "pictures": which,
                        "marks": name,
                        "stage": stage,
                        "bins": bins,
                        "brier": round(brier, 4),
                        "log_loss": round(nll, 4),
                        **row,
                    }
                )
                print(
                    which,
                    name,
                    stage,
                    bins,
                    {key: row[key] for key in ("largest_gap", "mean_gap", "gap", "standard_error")},
                    round(brier, 4),
                    round(nll, 4),
                    flush=True,
                )
    return rows  # fmt: skip


def scores(predicted: np.ndarray, pet: np.ndarray) -> tuple[float, float]:
    """Brier score and log loss of a picture."""
    p = predicted.astype(float).clip(1e-7, 1 - 1e-7)
    return float(((p - pet) ** 2).mean()), float(-np.log(np.where(pet, p, 1 - p)).mean())


def calibration_table(rows: list[dict[str, Any]], pictures: str) -> list[str]:
    """Gaps of the bins, log loss and Brier score, before and after calibration."""
    lines = []
    for marks in CONDITIONS:
        by = {
            (row["stage"], row["bins"]): row for row in rows if (row["pictures"], row.get("marks")) == (pictures, marks)
        }
        cells = [
            " → ".join(short(by[stage, bins][score]) for stage in ("before", "calibrated"))
            for bins, score in (
                ("equal width", "largest_gap"), ("equal width", "mean_gap"), ("equal mass", "largest_gap"), ("equal mass", "mean_gap"),
                ("equal mass", "log_loss"), ("equal mass", "brier"),
            )
        ]  # fmt: skip
        error = max(x or 0.0 for x in by["calibrated", "equal width"]["standard_error"][1:-1])
        cells.append(short(error, 2))
        lines.append([f"{marks}, {'all at once' if marks == 'scribbles' else 'with previous'}", *cells])
    head = ["", "largest gap, ten equal-width bins", "mean gap", "largest gap, ten equal-mass bins", "mean gap", "log loss", "Brier", "largest standard error of an equal-width gap, but for the ends"]  # fmt: skip
    return rows_of(head, *lines)


def report_tables() -> Tables:
    """Tables of calibration in ``docs/reports/segmentation.md``."""
    rows = rows_kept("segmentation_calibration")
    return {
        "calibration, held out": calibration_table(rows, "held out"),
        "calibration, all": calibration_table(rows, "all, one left out"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Fit on the tuning half; with ``--judge`` score the other half and all."""
    parser = argparse.ArgumentParser(prog="benchmarks.segmentation_calibration", description=(__doc__ or "").splitlines()[0])  # fmt: skip
    parser.add_argument("--judge", action="store_true", help="look at the held-out half")
    arguments = parser.parse_args(argv)
    try:
        tuning = photographs("even")
    except ValueError as error:
        print(f"benchmarks.segmentation_calibration: error: {error}", file=sys.stderr)
        return 2
    games = {photograph.name: list(answers(photograph, SEEDS, True)) for photograph in tuning}
    crops = {
        photograph.name: [
            answer
            for number in range(1, CROPS + 1)
            for answer in answers(altered(photograph, number), range(CROP_SEEDS), True)
        ]
        for photograph in tuning
    }
    tables = {name: table([*games[name], *crops[name]]) for name in games}
    fitted = fit(list(tables.values()))
    settings = SegmentationSettings()
    print("epsilon, kappa:", fitted, "in the settings:", (settings.region_error, settings.review_gain))
    without = {name: fit([other for key, other in tables.items() if key != name]) for name in tables}
    print("leaving one photograph out:", without)
    rows = judge(games, without, "tuning half, one left out")
    rows.append({"pictures": "tuning half", "epsilon": fitted[0], "kappa": fitted[1]})
    if arguments.judge:
        shipped = (round(fitted[0], 2), round(fitted[1], 2))
        held_out = {photograph.name: list(answers(photograph, SEEDS, True)) for photograph in photographs("odd")}
        rows += judge(held_out, dict.fromkeys(held_out, shipped), "held out")
        tables |= {name: table(found) for name, found in held_out.items()}
        without = {name: fit([other for key, other in tables.items() if key != name]) for name in tables}
        print("all, leaving one out:", without)
        rows += judge(games | held_out, without, "all, one left out")
        rows += [{"pictures": "all but " + name, "epsilon": e, "kappa": k} for name, (e, k) in without.items()]
        print(write("segmentation_calibration", rows))
        write_tables("segmentation.md", report_tables())
    return 0


if __name__ == "__main__":
    sys.exit(main())

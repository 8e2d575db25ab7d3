"""Segmentation by clicks and scribbles: additions to the paper's model, other methods, harm by a right click, reliability, seconds.

    PROBTX_DATA=... python -m benchmarks.segmentation [--half even|odd|both] [--only PART ...] [--methods NAME ...] [--again]

Reads ``$PROBTX_DATA/segmentation/{images,masks}/*.png`` (masks: 0 background, 1 pet, 255 not scored). Of the files in order of
their names the 1st, 3rd, ... are the tuning half ("even", counted from 0) and the others the held-out half ("odd"). All settings,
ours and those of the others, were chosen on the tuning half.

**clicks.** `probtx_pyro.apps.segmentation.play_clicks`: one click in the middle of each class, then, again and again, one in the
middle of the largest wrong piece; no random numbers. The row "with previous" is given its answer before each click; no other row is.
**scribbles.** `benchmarks.scribbles`: one ("few") and three ("more") strokes a class, seeds 0 to 4, all strokes at once.
Score of both: intersection over union of the pet, the mean over pictures (and seeds; the spread is that of the means of the seeds).
**drops.** How far that score falls by each click, over 20 clicks on every picture and on the pagoda of `data.load_pagoda`; all at
once and with previous. **reliability.** Pixels of all pictures of a half in ten even bins of the predicted probability of the pet:
mean prediction and share of pet, after 3, 5 and 10 clicks (with previous) and after scribbles (few and more, all seeds).
**seconds.** From the start of ``probtx segment`` to its end, one thread, and of a further `segment`, on a picture of 500 x 375.
Rows that the results file holds are kept and not run again; ``--again`` runs them. The figure: docs/figures/segmentation.png.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.reports import Tables, rows_kept, rows_of, short, write_tables
from benchmarks.scribbles import scribbles
from benchmarks.segmentation_peers import PEERS, Method
from benchmarks.timing import RESULTS, write
from probtx_pyro.apps import InteractiveSegmenter, Segmentation, SegmentationSettings, segmentation
from probtx_pyro.metrics import intersection_over_union

SHOWN = (2, 3, 5, 10)
SEEDS = range(5)
STROKES = {"few": 1, "more": 3}
FILE = RESULTS / "segmentation.json"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "segmentation.png"

# The paper's model (PT 31 to 38), then each addition to what stands above it; the last is the default.
_PATHS: dict[str, Any] = {"colour_rounds": 0, "frame_cost": 1e3, "learned_hop": 0.0, "path_temperature": 5.0}
ADDITIONS: dict[str, dict[str, Any]] = {
    "the paper's model alone": {"num_units": 60, "window": 10, "paths": False},
    "+ 700 units and paths between them": _PATHS,
    "+ a background unit outside the frame": _PATHS | {"frame_cost": 0.6},
    "+ class colours, blurred to about one unit a class": {"colour_rounds": 1, "learned_hop": 0.0, "path_temperature": 5.0, "colour_precision": 0.003},
    "+ several colour units a class": {"colour_rounds": 1, "learned_hop": 0.0, "path_temperature": 5.0},
    "+ a metric learned from the marks": {"colour_rounds": 1, "path_temperature": 5.0},
    "+ a second round, longer paths": {},
}  # fmt: skip
DEFAULT = "probtx_pyro, all at once"
ONLINE = "probtx_pyro, with previous"


class Photograph(NamedTuple):
    """A picture and its truth: 1 background, 2 object, 0 not scored."""

    name: str
    image: np.ndarray
    truth: np.ndarray


def ours(options: dict[str, Any]) -> Method:
    """`apps.segmentation` with settings, all marks at once."""
    settings = SegmentationSettings(**options)
    return Method(
        lambda image: InteractiveSegmenter.from_image(image, settings=settings),
        lambda picture, marks: picture.segment(marks).mask,
    )


METHODS: dict[str, Callable[[], Method]] = {
    **{name: lambda options=options: ours(options) for name, options in ADDITIONS.items()},
    DEFAULT: lambda: ours({}),
    **PEERS,
}


def photographs(half: str) -> list[Photograph]:
    """Read the pictures of a half."""
    from PIL import Image

    if not (folder := os.environ.get("PROBTX_DATA")):
        raise ValueError("PROBTX_DATA is not set; it must name the folder that holds segmentation/images and masks")
    root = Path(folder) / "segmentation"
    if not (files := sorted((root / "images").glob("*.png"))):
        raise ValueError(f"there are no pictures in {root / 'images'}")
    found = []
    for file in files[{"even": 0, "odd": 1}[half] :: 2]:
        mask = np.asarray(Image.open(root / "masks" / file.name)).astype(int)
        found.append(
            Photograph(file.stem, np.asarray(Image.open(file).convert("RGB")), np.where(mask == 255, 0, mask + 1))
        )
    return found


def pagoda() -> list[Photograph]:
    """Read scikit-learn's ``china.jpg`` and its mask."""
    from probtx_pyro.data import load_pagoda

    image, mask = load_pagoda()
    return [Photograph("pagoda", image, np.where(mask, 2, 1))]


def online(
    picture: InteractiveSegmenter, truth: np.ndarray, num_clicks: int
) -> tuple[segmentation.ClickGame, list[Segmentation]]:
    """Play a game in which each answer is the prior of the next; return the answers, too."""
    answers: list[Segmentation] = []

    def answer(clicks: list[segmentation.Click]) -> np.ndarray:
        marks = segmentation.marks_from_clicks(truth.shape, clicks)
        answers.append(picture.segment(marks, previous=answers[-1] if answers else None))
        return answers[-1].mask

    return segmentation.play_clicks(answer, truth, num_clicks), answers


def play(method: Method | None, photograph: Photograph, num_clicks: int) -> np.ndarray:
    """IoU of the pet after 2, 3, ... clicks; no method stands for ours with previous."""
    truth = photograph.truth
    if method is None:
        return online(InteractiveSegmenter.from_image(photograph.image), truth, num_clicks)[0].scores[:, 1]
    state = method.prepare(photograph.image)
    return segmentation.play_clicks(
        lambda clicks: method.answer(state, segmentation.marks_from_clicks(truth.shape, clicks)), truth, num_clicks
    ).scores[:, 1]


def clicks(name: str, half: str) -> dict[str, Any]:
    """Play all pictures of a half by one method."""
    method = None if name == ONLINE else METHODS[name]()
    data = photographs(half)
    start = time.perf_counter()
    table = np.array([play(method, photograph, max(SHOWN)) for photograph in data])
    shown = table[:, [count - 2 for count in SHOWN]]
    return {
        "clicks": list(SHOWN),
        "iou": shown.mean(0).round(4).tolist(),
        "mean_of_2_to_10": round(float(table.mean()), 4),
        "of_each_picture": {
            photograph.name: row.round(4).tolist() for photograph, row in zip(data, shown, strict=True)
        },
        "seconds_of_a_picture": round((time.perf_counter() - start) / len(data), 2),
    }


def strokes(name: str, half: str) -> dict[str, Any]:
    """Score one method on the scribbles of a half."""
    method = METHODS[name]()
    scores: dict[str, list[list[float]]] = {kind: [] for kind in STROKES}
    for photograph in photographs(half):
        state = method.prepare(photograph.image)
        for kind, number in STROKES.items():
            answers = (method.answer(state, scribbles(photograph.truth, number, seed)) for seed in SEEDS)
            scores[kind].append([float(intersection_over_union(photograph.truth, mask)[1]) for mask in answers])
    tables = {kind: np.array(table) for kind, table in scores.items()}
    return {
        "seeds": len(SEEDS),
        **{kind: round(float(table.mean()), 4) for kind, table in tables.items()},
        **{f"{kind}_spread": round(float(table.mean(0).std(ddof=1)), 4) for kind, table in tables.items()},
    }


def drops(name: str, half: str) -> dict[str, Any]:
    """Falls of the score by a click, over 20 clicks."""
    method = None if name == ONLINE else METHODS[name]()
    falls, largest = [], []
    for photograph in pagoda() if half == "pagoda" else photographs(half):
        fall = -np.diff(play(method, photograph, 20))
        falls.append(fall)
        largest.append((round(float(fall.max()), 4), photograph.name, int(fall.argmax()) + 3))
    every = np.concatenate(falls)
    return {
        "clicks": len(every),
        "largest": round(float(every.max()), 4),
        "above": {f"{least}": int((every > least).sum()) for least in (0.001, 0.01, 0.02, 0.05, 0.1, 0.2)},
        "largest_of_each_picture_and_click": sorted(largest, reverse=True),
    }


def _bins(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Pixels, sum of predictions and pixels of the pet in ten bins of the prediction, (3, 10)."""
    bins = np.minimum((predicted * 10).astype(int), 9)
    return np.array([np.bincount(bins, weights, 10) for weights in (np.ones(len(bins)), predicted, true)])


def _curve(answers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels, mean prediction and share of the pet of each bin, for the `_bins` of some answers together, (answer, 3, 10)."""
    count, predicted, true = answers.sum(0)
    return count, predicted / count.clip(1), true / count.clip(1)


def reliability(name: str, half: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Bins of the predicted probability of the pet, of the default settings; standard errors by drawing pictures again, 2,000 times."""
    answered: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for photograph in photographs(half):
        picture = InteractiveSegmenter.from_image(photograph.image, settings=SegmentationSettings(**(options or {})))
        game, answers = online(picture, photograph.truth, 10)
        shown = {f"{count} clicks": answers[min(game.counts.index(count), len(answers) - 1)] for count in (3, 5, 10)}
        for kind, number in STROKES.items():
            for seed in SEEDS:
                shown[f"{kind} {seed}"] = picture.segment(scribbles(photograph.truth, number, seed))
        scored = photograph.truth > 0
        for label, answer in shown.items():
            kind = label if label.endswith("clicks") else "scribbles"
            pair = (answer.probabilities[scored][:, 1], photograph.truth[scored] == 2)
            answered.setdefault(kind, []).append(pair)
    rows = {}
    for kind, pairs in answered.items():
        each = np.array([_bins(*pair) for pair in pairs])  # (answer, [pixels, sum of predictions, pet], bin)
        count, mean, share = _curve(each)
        gap = np.abs(mean - share)
        by_picture = each.reshape(len(photographs(half)), -1, 3, 10).sum(1)
        again = np.random.default_rng(0).integers(len(by_picture), size=(2000, len(by_picture)))
        drawn = (_curve(by_picture[some]) for some in again)
        spread = np.array([np.where(pixels > 0, said - seen, np.nan) for pixels, said, seen in drawn])
        rows[kind] = {
            "pixels": count.astype(int).tolist(),
            "predicted": mean.round(4).tolist(),
            "share": share.round(4).tolist(),
            "largest_gap": round(float(gap[count > 0].max()), 4),
            "mean_gap": round(float((gap * count).sum() / count.sum()), 4),
            "standard_error_of_gap": [None if np.isnan(x) else round(float(x), 4) for x in np.nanstd(spread, axis=0)],
            "mean_gap_of_pictures": [
                round(float((abs(m - s) * c).sum() / c.sum()), 4) for c, m, s in map(_curve, by_picture[:, None])
            ],
        }
    return rows


def seconds(name: str, half: str) -> dict[str, Any]:
    """Wall seconds on a picture of 500 x 375, the median of five, one thread."""
    from PIL import Image

    photograph = photographs(half)[0]
    image = Image.fromarray(photograph.image).resize((500, 375))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    starts, further = [], []
    with tempfile.TemporaryDirectory() as folder:
        image.save(f"{folder}/photo.png")
        command = [sys.executable, "-m", "probtx_pyro", "segment", f"{folder}/photo.png", "--threads", "1",
                   "--click", "187,250,2", "--click", "10,10,1", "--out", f"{folder}/mask.png"]  # fmt: skip
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            starts.append(time.perf_counter() - start)
    picture = InteractiveSegmenter.from_image(np.asarray(image))
    given: list[segmentation.Click] = [(187, 250, 2), (10, 10, 1)]
    answer = picture.segment(segmentation.marks_from_clicks(picture.shape, given))
    for y, x in ((100, 100), (300, 400), (187, 60), (40, 250), (330, 120)):
        given.append((y, x, 1))
        start = time.perf_counter()
        answer = picture.segment(segmentation.marks_from_clicks(picture.shape, given), previous=answer)
        further.append(time.perf_counter() - start)
    return {"start_to_mask": round(float(np.median(starts)), 2), "further_segment": round(float(np.median(further)), 3)}


PARTS: dict[str, tuple[Callable[[str, str], dict[str, Any]], list[str], tuple[str, ...]]] = {
    "clicks": (clicks, [*ADDITIONS, ONLINE, *PEERS], ("even", "odd")),
    "scribbles": (strokes, [*ADDITIONS, *PEERS], ("even", "odd")),
    "drops": (drops, [DEFAULT, ONLINE], ("even", "odd", "pagoda")),
    "reliability": (reliability, [ONLINE], ("even", "odd")),
    "seconds": (seconds, [ONLINE], ("even",)),
}


NAMES = {  # of the reports, where the file has others
    "+ a second round, longer paths": "+ a second round, longer paths (the default), all at once",
    ONLINE: "the default, with previous",
}


def _result(rows: list[dict[str, Any]], part: str, half: str, method: str) -> dict[str, Any] | None:
    return next(
        (row["result"] for row in rows if (row["part"], row["half"], row["method"]) == (part, half, method)), None
    )


def held_out(rows: list[dict[str, Any]]) -> list[str]:
    """IoU of every method on the pictures that no setting was chosen on."""
    lines = []
    for method in (*ADDITIONS, ONLINE, *PEERS):
        clicked, drawn = (_result(rows, part, "odd", method) for part in ("clicks", "scribbles"))
        if clicked is not None:
            few = [
                f"{short(drawn[kind], 2)} ± {short(drawn[f'{kind}_spread'], 2)}" if drawn else "" for kind in STROKES
            ]
            lines.append([NAMES.get(method, method), *map(short, clicked["iou"]), *few])
    return rows_of(
        ["method, held out", *(f"{n} clicks" for n in SHOWN), *(f"{kind} strokes" for kind in STROKES)], *lines
    )


def by_half(rows: list[dict[str, Any]]) -> list[str]:
    """IoU after clicks on the tuning half, the held-out half and all 16 pictures."""
    lines = []
    for method in (*ADDITIONS, ONLINE, *PEERS):
        halves = [_result(rows, "clicks", half, method) for half in ("even", "odd")]
        if all(halves):
            tuned, held = (np.array(half["iou"]) for half in halves if half)
            each = zip(tuned, held, (tuned + held) / 2, strict=True)
            lines.append([NAMES.get(method, method), *(" / ".join(map(short, three)) for three in each)])
    return rows_of(["method: tuning half / held out / all 16", *(f"{n} clicks" for n in SHOWN)], *lines)


def falls(rows: list[dict[str, Any]]) -> list[str]:
    """The largest fall of the score by a click."""
    lines = []
    for method in (DEFAULT, ONLINE):
        for half, name in (("even", "tuning half"), ("odd", "held out"), ("pagoda", "the pagoda")):
            if found := _result(rows, "drops", half, method):
                fall, picture, click = found["largest_of_each_picture_and_click"][0]
                where = f"{picture}, click {click}" if fall > 0 else "none falls"
                above = [str(found["above"][least]) for least in ("0.02", "0.1")]
                lines.append([f"{method.partition(', ')[2]}, {name}", str(found["clicks"]), short(abs(found["largest"])), *above, where])  # fmt: skip
    return rows_of(
        ["", "clicks", "largest fall", "above .02", "above .1", "the photograph of the largest fall"], *lines
    )


def report_tables() -> Tables:
    """Tables of ``docs/reports/segmentation.md`` from the file of this benchmark."""
    rows = rows_kept("segmentation")
    return {"held out": held_out(rows), "halves": by_half(rows), "falls": falls(rows)}


def draw(rows: list[dict[str, Any]]) -> None:
    """Write the reliability figure from the rows of the held-out half."""
    from matplotlib import pyplot

    found = [row for row in rows if row["part"] == "reliability" and row["half"] == "odd"]
    if not found:
        return
    figure, ax = pyplot.subplots(figsize=(5.2, 4.6), layout="constrained")
    ax.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    ax.fill_between([0, 1], [-0.05, 0.95], [0.05, 1.05], color="#dddddd", linewidth=0)
    for (kind, row), marker in zip(found[0]["result"].items(), "osv^", strict=False):
        shown = np.array(row["pixels"]) > 0
        ax.plot(
            np.array(row["predicted"])[shown], np.array(row["share"])[shown], marker + "-", markersize=4, label=kind
        )
    ax.set(xlabel="predicted probability of the pet", ylabel="share of pixels that are pet", xlim=(0, 1), ylim=(0, 1))
    ax.legend(frameon=False)
    figure.savefig(FIGURE, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, write, draw; 2 and one line on stderr where data or packages are missing."""
    parser = argparse.ArgumentParser(prog="benchmarks.segmentation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--half", choices=("even", "odd", "both"), default="both")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, ONLINE], default=[*METHODS, ONLINE], metavar="NAME")
    parser.add_argument("--file", type=Path, default=FILE, help="the JSON file, in results")
    parser.add_argument("--again", action="store_true", help="run rows that the file holds")
    arguments = parser.parse_args(argv)
    rows: list[dict[str, Any]] = json.loads(arguments.file.read_text())["rows"] if arguments.file.exists() else []
    try:
        for part in arguments.only:
            run, methods, halves = PARTS[part]
            for half in halves:
                for name in methods:
                    key = {"part": part, "half": half, "method": name}
                    kept = [row for row in rows if key.items() <= row.items()]
                    if name not in arguments.methods or (half != "pagoda" and arguments.half not in (half, "both")):
                        continue
                    if not kept or arguments.again:
                        rows = [row for row in rows if row not in kept] + [{**key, "result": run(name, half)}]
                        write(arguments.file.stem, rows)
                    print(
                        *key.values(),
                        json.dumps(next(row["result"] for row in rows if key.items() <= row.items())),
                        flush=True,
                    )
    except (ValueError, OSError) as error:
        print(f"benchmarks.segmentation: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(
            f"benchmarks.segmentation: error: {error.name} is missing; pip install -e '.[bench,tour]'",
            file=sys.stderr,
        )
        return 2
    draw(rows)
    if arguments.file == FILE:
        write_tables("segmentation.md", report_tables())
    return 0


if __name__ == "__main__":
    sys.exit(main())

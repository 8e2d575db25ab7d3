"""Segmentation by clicks and scribbles: beside other methods, each part left out, harm by a right click, calibration, seconds.

    PROBTX_DATA=... python -m benchmarks.segmentation [--only PART ...] [--methods NAME ...] [--again]

Reads ``$PROBTX_DATA/segmentation/{images,masks}/*.png`` (masks: 0 background, 1 pet, 255 not scored): 16 photographs.

Protocol, written before the figures of the present layers were seen as a table (trials on the same photographs led to them).
**clicks.** `probtx_pyro.apps.segmentation.play_clicks`: one click in the middle of each class, then, again and again, one in the
middle of the largest wrong piece; no random numbers. With previous: each answer is the prior of the next.
**scribbles.** `benchmarks.scribbles`: one ("few") and three ("more") strokes a class, seeds 0 to 4, all strokes at once.
Score of both: intersection over union (IoU) of the pet; standard errors are over photographs.
**choice.** `CANDIDATES`: the settings found by hand, and 23 drawn about them by a seed, each of ten settings by a factor of ½ to 2.
A candidate's score on a photograph is the mean IoU of six: few and more (seeds 0 and 1), and clicks with previous after 2, 3, 5 and
10. Best on all 16 is what ships, rounded to two digits. **Left out**: each photograph is answered with the candidate that is best on the other 15. What
this does not leave out: the form of the layers and the centre of the candidates were found on the same photographs.
Peers: the settings of each were chosen on eight of these photographs. Of GrabCut's three starts the report shows each.
**drops.** How far the score falls by each click, over 20 clicks, left out, and on the pagoda of `data.load_pagoda`.
**calibration.** Share of the pet among pixels said to be pet with probability p (ten even bins), of answers left out, unmarked pixels:
after 3, 5 and 10 clicks with previous, and scribbles. ``region_error`` and ``review_gain`` fitted by log loss on the other 15.
Mean gap: mean over pixels of |mean prediction less share| of their bin; its standard error by drawing photographs again, 2,000 times.
Beside it the units' marginals alone, from mean field and from Gibbs sampling of the same field (64 chains, 30 sweeps), scribbles.
**seconds.** From the start of ``probtx segment`` to its end, and of a further `segment`, one thread, 481 x 321; and 12 and 48 million pixels.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit, logit

from benchmarks.reports import Tables, rows_kept, rows_of, short, write_tables
from benchmarks.scribbles import scribbles
from benchmarks.segmentation_peers import PEERS, Method, paper
from benchmarks.timing import RESULTS, write
from probtx_pyro import inference
from probtx_pyro.apps import InteractiveSegmenter, Segmentation, SegmentationSettings, segmentation
from probtx_pyro.metrics import intersection_over_union

SHOWN = (2, 3, 5, 10)
SEEDS = range(5)
STROKES = {"few": 1, "more": 3}
FILE = RESULTS / "segmentation.json"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "segmentation.png"
DRAWN = ("num_units", "num_colours", "colour_prior", "unmarked", "colour_evidence", "path_evidence", "hop_cost", "frame_cost", "coupling", "key_precision")  # fmt: skip
BY_HAND: dict[str, Any] = {
    "num_units": 1500, "key_precision": 4.0, "num_colours": 24, "colour_prior": 0.3, "unmarked": 0.1, "colour_evidence": 0.6,
    "path_evidence": 2.0, "hop_cost": 0.22, "frame_cost": 1.5, "coupling": 3.3,
}  # fmt: skip
ALONE: dict[str, dict[str, Any]] = {
    "without agreement of neighbours": {"coupling": 0.0},
    "without paths": {"path_evidence": 0.0},
    "without colours": {"colour_evidence": 0.0},
    "without the frame": {"frame_cost": 1e6},
    "colours of marked units alone": {"unmarked": 0.0},
}
AT_ONCE, ONLINE = "the default, all at once", "the default, with previous"
LEFT_OUT, LEFT_OUT_ONLINE = "left out, all at once", "left out, with previous"
PAPER = "the paper's model alone"


def candidates() -> list[SegmentationSettings]:
    """Settings to choose among; the first had been found by hand."""
    random, centre = np.random.default_rng(0), SegmentationSettings(**BY_HAND)
    found = [centre]
    for _ in range(23):
        factors = 2.0 ** random.uniform(-1, 1, len(DRAWN))
        drawn = {name: getattr(centre, name) * factor for name, factor in zip(DRAWN, factors, strict=True)}
        whole = {name: round(drawn[name]) for name in ("num_units", "num_colours")}
        found.append(replace(centre, **drawn | whole))
    return found


class Photograph(NamedTuple):
    """A picture and its truth: 1 background, 2 object, 0 not scored."""

    name: str
    image: np.ndarray
    truth: np.ndarray


@cache
def photographs() -> list[Photograph]:
    """Read the pictures, in the order of their names."""
    from PIL import Image

    if not (folder := os.environ.get("PROBTX_DATA")):
        raise ValueError("PROBTX_DATA is not set; it must name the folder that holds segmentation/images and masks")
    root = Path(folder) / "segmentation"
    if not (files := sorted((root / "images").glob("*.png"))):
        raise ValueError(f"there are no pictures in {root / 'images'}")
    found = []
    for file in files:
        mask = np.asarray(Image.open(root / "masks" / file.name)).astype(int)
        image = np.asarray(Image.open(file).convert("RGB"))
        found.append(Photograph(file.stem, image, np.where(mask == 255, 0, mask + 1)))
    return found


def pagoda() -> Photograph:
    """Read scikit-learn's ``china.jpg`` and its mask."""
    from probtx_pyro.data import load_pagoda

    image, mask = load_pagoda()
    return Photograph("pagoda", image, np.where(mask, 2, 1))


def ours(settings: SegmentationSettings) -> Method:
    """`apps.segmentation` with settings, all marks at once."""
    return Method(
        lambda image: InteractiveSegmenter.from_image(image, settings=settings),
        lambda picture, marks: picture.segment(marks).mask,
    )


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


def strokes(method: Method, photograph: Photograph, kind: str, seeds: Sequence[int]) -> list[float]:
    """IoU of the pet for scribbles of each seed."""
    state, truth = method.prepare(photograph.image), photograph.truth
    masks = (method.answer(state, scribbles(truth, STROKES[kind], seed)) for seed in seeds)
    return [float(intersection_over_union(truth, mask)[1]) for mask in masks]


def clicks(method: Method | SegmentationSettings, photograph: Photograph, num_clicks: int) -> np.ndarray:
    """IoU of the pet after 2, 3, ... clicks; settings stand for ours with previous."""
    truth = photograph.truth
    if isinstance(method, SegmentationSettings):
        picture = InteractiveSegmenter.from_image(photograph.image, settings=method)
        return online(picture, truth, num_clicks)[0].scores[:, 1]
    state = method.prepare(photograph.image)
    return segmentation.play_clicks(
        lambda given: method.answer(state, segmentation.marks_from_clicks(truth.shape, given)), truth, num_clicks
    ).scores[:, 1]


def after(scores: np.ndarray, counts: Sequence[int] = SHOWN) -> list[float]:
    """The scores after so many clicks."""
    return [round(float(scores[count - 2]), 4) for count in counts]


def choice(number: str) -> list[float]:
    """The score of a candidate on each photograph."""
    settings, found = candidates()[int(number)], []
    for photograph in photographs():
        drawn = [np.mean(strokes(ours(settings), photograph, kind, SEEDS[:2])) for kind in STROKES]
        found.append(round(float(np.mean([*drawn, *after(clicks(settings, photograph, max(SHOWN)))])), 4))
    return found


def chosen(rows: list[dict[str, Any]]) -> list[SegmentationSettings]:
    """The settings for each photograph, chosen on the others."""
    table = np.array([_of(rows, "choice", str(n)) for n in range(len(candidates()))])
    return [candidates()[int(np.delete(table, n, 1).mean(1).argmax())] for n in range(table.shape[1])]


def methods(rows: list[dict[str, Any]]) -> dict[str, Callable[[int], Method | SegmentationSettings]]:
    """By name, the method for a photograph, by its number."""
    centre = SegmentationSettings()
    own: dict[str, Callable[[int], Method | SegmentationSettings]] = {
        LEFT_OUT: lambda n: ours(chosen(rows)[n]),
        LEFT_OUT_ONLINE: lambda n: chosen(rows)[n],
        AT_ONCE: lambda _: ours(centre),
        ONLINE: lambda _: centre,
        **{name: lambda _, options=options: ours(replace(centre, **options)) for name, options in ALONE.items()},
        PAPER: lambda _: paper(),
        **{name: lambda _, make=make: make() for name, make in PEERS.items()},
    }
    return own


def compared(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """IoU of a method on each photograph: strokes of every seed, clicks."""
    make, found = methods(rows)[name], {}
    for n, photograph in enumerate(photographs()):
        method = make(n)
        own: dict[str, Any] = {"clicks": after(clicks(method, photograph, max(SHOWN)))}
        if isinstance(method, Method):
            own |= {kind: [round(x, 4) for x in strokes(method, photograph, kind, SEEDS)] for kind in STROKES}
        found[photograph.name] = own
    return found


def drops(rows: list[dict[str, Any]], name: str) -> dict[str, list[float]]:
    """Scores after 2 to 20 clicks, of each photograph and the pagoda."""
    make, data = methods(rows)[name], photographs()
    found = {x.name: after(clicks(make(n), x, 20), range(2, 21)) for n, x in enumerate(data)}
    default = SegmentationSettings() if "previous" in name else ours(SegmentationSettings())
    return found | {"pagoda": after(clicks(default, pagoda(), 20), range(2, 21))}


# -- calibration -------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Scored and unmarked pixels of an answer."""

    kind: str
    belief: np.ndarray  # of the pet
    contested: np.ndarray
    stood: np.ndarray
    pet: np.ndarray


KINDS = ("3 clicks", "5 clicks", "10 clicks", "scribbles")


def answers(photograph: Photograph, settings: SegmentationSettings) -> Iterator[Answer]:
    """Answers with previous after 3, 5 and 10 clicks, and to scribbles."""
    picture, truth = InteractiveSegmenter.from_image(photograph.image, settings=settings), photograph.truth

    def kept(kind: str, marks: np.ndarray, answer: Segmentation) -> Answer:
        assert answer.belief is not None and answer.stood is not None
        scored = (truth > 0) & (marks == 0)
        again = picture.segment(marks, background=int(answer.classes[np.argmax(answer.outside)])).mask
        contested = (again != answer.mask) & (answer.stood > 0)
        return Answer(kind, *(x[scored] for x in (answer.belief[..., 1], contested, answer.stood, truth == 2)))

    game, found = online(picture, truth, 10)
    for count in (3, 5, 10):  # a game that ends early keeps its last answer
        own = min(game.counts.index(count), len(found) - 1)
        marks = segmentation.marks_from_clicks(truth.shape, game.clicks[: own + 2])
        yield kept(f"{count} clicks", marks, found[own])
    for number in STROKES.values():
        for seed in SEEDS:
            marks = scribbles(truth, number, seed)
            yield kept("scribbles", marks, picture.segment(marks))


def said(answer: Answer, error: float, gain: float) -> np.ndarray:
    """Calibrated probability of the pet, as `apps.segmentation` says it for two classes."""
    sure = np.maximum(answer.belief, 1 - answer.belief).astype(float).clip(0.5, 1 - 1e-7)
    even = np.where(answer.contested, 0.5, (1 - error) * sure + error / 2)
    own = expit(logit(even) + gain * answer.stood)
    return np.where(answer.belief > 0.5, own, 1 - own)


def fit(games: Sequence[Sequence[Answer]]) -> tuple[float, float]:
    """ε and κ of the least log loss; photographs count alike, and kinds in each, every tenth pixel."""

    def loss(free: np.ndarray) -> float:
        total = 0.0
        for answer in (answer for game in games for answer in game):
            few = answer._replace(**{k: x[::10] for k, x in answer._asdict().items() if k != "kind"})
            p = said(few, float(expit(free[0])), float(np.exp(free[1]))).clip(1e-7, 1 - 1e-7)
            share = len(SEEDS) * len(STROKES) if answer.kind == "scribbles" else 3
            total -= float(np.log(np.where(few.pet, p, 1 - p)).mean()) / share
        return total

    free = minimize(loss, [-2.0, -1.0], method="Nelder-Mead", options={"xatol": 0.02, "fatol": 1e-4}).x
    return float(expit(free[0])), float(np.exp(free[1]))


def curve(said: Sequence[np.ndarray], pet: Sequence[np.ndarray]) -> dict[str, Any]:
    """Ten even bins of the pixels of all photographs, and the mean gap with its standard error."""
    sums = np.array([
        [np.bincount(np.minimum((p * 10).astype(int), 9), weights, 10) for weights in (np.ones(len(p)), p, true)]
        for p, true in zip(said, pet, strict=True)
    ])  # fmt: skip

    def mean_gap(some: np.ndarray) -> float:
        count, predicted, true = some.sum(0)
        return float(np.abs(predicted - true).sum() / count.sum())

    again = np.random.default_rng(0).integers(len(sums), size=(2000, len(sums)))
    count, predicted, true = sums.sum(0)
    log = np.concatenate([np.where(t, p, 1 - p) for p, t in zip(said, pet, strict=True)]).astype(float)
    return {
        "pixels": count.astype(int).tolist(),
        "predicted": (predicted / count.clip(1)).round(4).tolist(),
        "share": (true / count.clip(1)).round(4).tolist(),
        "mean_gap": round(mean_gap(sums), 4),
        "standard_error": round(float(np.std([mean_gap(sums[some]) for some in again])), 4),
        "log_loss": round(float(-np.log(log.clip(1e-7, 1)).mean()), 4),
    }


def calibration(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Curves before and after calibration, constants fitted without the photograph, and those of the package."""
    del name
    games = [list(answers(x, settings)) for x, settings in zip(photographs(), chosen(rows), strict=True)]
    without = [fit(games[:n] + games[n + 1 :]) for n in range(len(games))]
    shipped, found = SegmentationSettings(), {}
    for kind in KINDS:
        own = [[answer for answer in game if answer.kind == kind] for game in games]
        pet = [np.concatenate([a.pet for a in game]) for game in own]
        of = {
            "belief": [(0.0, 0.0)] * len(own),
            "calibrated": without,
            "the package's constants": [(shipped.region_error, shipped.review_gain)] * len(own),
        }
        for stage, constants in of.items():
            p = [np.concatenate([said(a, *c) for a in game]) for game, c in zip(own, constants, strict=True)]
            found[f"{kind}, {stage}"] = curve(p, pet)
    return {"constants": fit(games), "without": without, **found}


def marginals(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Curves of the units' marginals from mean field and from Gibbs sampling, scribbles, seed 0."""
    del name
    found: dict[str, list[np.ndarray]] = {"mean field": [], "Gibbs": []}
    pet: list[np.ndarray] = []
    for photograph, settings in zip(photographs(), chosen(rows), strict=True):
        picture = InteractiveSegmenter.from_image(photograph.image, settings=settings)
        own: dict[str, list[np.ndarray]] = {name: [] for name in found}
        for number in STROKES.values():
            marks = scribbles(photograph.truth, number, 0)
            scored, field = (photograph.truth > 0) & (marks == 0), picture.field(marks)
            drawn = inference.gibbs(field, num_samples=30, num_warmup=10, num_chains=64, seed=0, progress=False)
            share = (drawn.samples["label"] == 1).double().mean((0, 1))
            each = {"mean field": field.mean_field().label_marginals[:, 1], "Gibbs": share}
            for kind, marginal in each.items():
                own[kind].append(marginal.numpy()[picture.units.home][scored])
            pet.append(photograph.truth[scored] == 2)
        for kind in found:
            found[kind] += own[kind]
    return {kind: curve([x.astype(float) for x in found[kind]], pet) for kind in found}


# -- seconds -----------------------------------------------------------------------------------------------------------


def seconds(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Wall seconds, medians of five, one thread; and of two large pictures once, with the peak of memory."""
    del rows, name
    from PIL import Image

    torch.set_num_threads(1)
    image = Image.fromarray(photographs()[0].image)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    starts, further, large = [], [], {}
    with tempfile.TemporaryDirectory() as folder:

        def run(size: tuple[int, int]) -> float:
            height, width = size[1] // 2, size[0] // 2
            image.resize(size).save(f"{folder}/photo.png")
            command = [sys.executable, "-m", "probtx_pyro", "segment", f"{folder}/photo.png", 
                       "--click", f"{height},{width},2", "--click", "10,10,1", "--out", f"{folder}/mask.png"]  # fmt: skip
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            return time.perf_counter() - start

        starts = [run((481, 321)) for _ in range(5)]
        for size in ((4000, 3000), (8000, 6000)):
            wall = run(size)
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
            large[f"{size[0]} x {size[1]}"] = {"seconds": round(wall, 1), "peak_gib": round(peak, 2)}
    picture = InteractiveSegmenter.from_image(np.asarray(image.resize((481, 321))))
    given: list[segmentation.Click] = [(160, 240, 2), (10, 10, 1)]
    answer = picture.segment(segmentation.marks_from_clicks(picture.shape, given))
    for y, x in ((100, 100), (300, 400), (160, 60), (40, 250), (310, 120)):
        given.append((y, x, 1))
        start = time.perf_counter()
        answer = picture.segment(segmentation.marks_from_clicks(picture.shape, given), previous=answer)
        further.append(time.perf_counter() - start)
    medians = {"start_to_mask": round(float(np.median(starts)), 2), "further": round(float(np.median(further)), 3)}
    return medians | large


# -- tables ------------------------------------------------------------------------------------------------------------


def _of(rows: list[dict[str, Any]], part: str, name: str) -> Any:
    """The result of a part for a method; None where it is not there."""
    return next((row["result"] for row in rows if (row["part"], row["method"]) == (part, name)), None)


def _mean(values: Any, digits: int = 3) -> str:
    """Mean over photographs and its standard error."""
    x = np.array(values)
    return f"{short(float(x.mean()), digits)} ± {short(float(x.std(ddof=1) / len(x) ** 0.5), digits)}"


def beside(rows: list[dict[str, Any]]) -> list[str]:
    """IoU of every method."""
    lines = []
    for name in methods(rows):
        if (found := _of(rows, "compared", name)) is not None:
            each = [*found.values()]
            drawn = [_mean([np.mean(own[kind]) for own in each]) if kind in each[0] else "" for kind in STROKES]
            lines.append([name, *drawn, *(_mean([own["clicks"][n] for own in each]) for n in range(len(SHOWN)))])
    return rows_of(["method", "few strokes", "more strokes", *(f"{n} clicks" for n in SHOWN)], *lines)


def falls(rows: list[dict[str, Any]]) -> list[str]:
    """The largest fall of the score by a click."""
    lines = []
    for name in (LEFT_OUT, LEFT_OUT_ONLINE):
        if (found := _of(rows, "drops", name)) is not None:
            for kind, some in (("16 photographs", [x for x in found if x != "pagoda"]), ("the pagoda", ["pagoda"])):
                fall = {(x, n + 3): -d for x in some for n, d in enumerate(np.diff(found[x]))}
                worst = max(fall, key=lambda key: fall[key])
                above = [str(sum(d > least for d in fall.values())) for least in (0.02, 0.1)]
                where = f"{worst[0]}, click {worst[1]}" if fall[worst] > 0 else "none falls"
                lines.append([f"{name}, {kind}", str(len(fall)), short(max(fall[worst], 0.0) or 0.0), *above, where])
    return rows_of(["", "clicks", "largest fall", "above .02", "above .1", "the largest"], *lines)


def gaps(rows: list[dict[str, Any]]) -> list[str]:
    """Mean gaps and log losses."""
    lines, found = [], _of(rows, "calibration", LEFT_OUT)
    for kind in KINDS if found else ():
        stages = [found[f"{kind}, {stage}"] for stage in ("belief", "calibrated", "the package's constants")]
        gap = [f"{short(x['mean_gap'])} ± {short(x['standard_error'])}" for x in stages]
        lines.append([kind, *gap, " / ".join(short(x["log_loss"]) for x in stages)])
    return rows_of(["", "mean gap of the belief", "calibrated, constants of the other 15", "by the package's constants", "log loss of the three"], *lines)  # fmt: skip


def of_marginals(rows: list[dict[str, Any]]) -> list[str]:
    """Mean field beside Gibbs."""
    found = _of(rows, "marginals", LEFT_OUT) or {}
    lines = [[kind, f"{short(x['mean_gap'])} ± {short(x['standard_error'])}", short(x["log_loss"])] for kind, x in found.items()]  # fmt: skip
    return rows_of(["marginals of the units", "mean gap", "log loss"], *lines)


def of_settings(rows: list[dict[str, Any]]) -> list[str]:
    """The five best candidates, and how often each was chosen for a photograph."""
    found = [(n, _of(rows, "choice", str(n))) for n in range(len(candidates()))]
    scores = {n: float(np.mean(row)) for n, row in found if row is not None}
    if len(scores) < len(candidates()):
        return rows_of(["candidate", "mean score"])
    picked = [candidates().index(own) for own in chosen(rows)]
    best = sorted(scores, key=lambda n: -scores[n])[:5]
    lines = [
        [f"{n}{' (by hand)' if n == 0 else ''}", short(scores[n], 4), str(picked.count(n)), *(f"{getattr(candidates()[n], name):.3g}" for name in DRAWN)]
        for n in dict.fromkeys([*best, 0])
    ]  # fmt: skip
    return rows_of(
        ["candidate", "mean score of 16", "photographs it is chosen for", *(f"`{x}`" for x in DRAWN)], *lines
    )


def report_tables() -> Tables:
    """Tables of ``docs/reports/segmentation.md`` from the file of this benchmark."""
    rows = rows_kept("segmentation")
    return {
        "methods": beside(rows),
        "falls": falls(rows),
        "calibration": gaps(rows),
        "marginals": of_marginals(rows),
        "settings": of_settings(rows),
    }


def draw(rows: list[dict[str, Any]]) -> None:
    """Write the reliability figure."""
    from matplotlib import pyplot

    if (found := _of(rows, "calibration", LEFT_OUT)) is None:
        return
    figure, ax = pyplot.subplots(figsize=(5.2, 4.6), layout="constrained")
    ax.plot([0, 1], [0, 1], color="#999999", linewidth=1)
    for kind, marker in zip(KINDS, "osv^", strict=True):
        row = found[f"{kind}, calibrated"]
        shown = np.array(row["pixels"]) > 0
        ax.plot(
            np.array(row["predicted"])[shown], np.array(row["share"])[shown], marker + "-", markersize=4, label=kind
        )
    ax.set(xlabel="predicted probability of the pet", ylabel="share of pixels that are pet", xlim=(0, 1), ylim=(0, 1))
    ax.legend(frameon=False)
    figure.savefig(FIGURE, dpi=110)


Part = Callable[[list[dict[str, Any]], str], Any]
PARTS: dict[str, tuple[Part, list[str]]] = {
    "choice": (lambda _, number: choice(number), [str(n) for n in range(24)]),
    "compared": (compared, [LEFT_OUT, LEFT_OUT_ONLINE, AT_ONCE, ONLINE, *ALONE, PAPER, *PEERS]),
    "drops": (drops, [LEFT_OUT, LEFT_OUT_ONLINE]),
    "calibration": (calibration, [LEFT_OUT]),
    "marginals": (marginals, [LEFT_OUT]),
    "seconds": (seconds, [LEFT_OUT]),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, write, draw; 2 and one line on stderr where data or packages are missing."""
    parser = argparse.ArgumentParser(prog="benchmarks.segmentation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--methods", nargs="+", default=None, metavar="NAME")
    parser.add_argument("--file", type=Path, default=FILE, help="the JSON file, in results")
    parser.add_argument("--again", action="store_true", help="run rows that the file holds")
    arguments = parser.parse_args(argv)
    rows: list[dict[str, Any]] = json.loads(arguments.file.read_text())["rows"] if arguments.file.exists() else []
    try:
        photographs()
        for part in arguments.only:
            run, names = PARTS[part]
            for name in names:
                if arguments.methods is not None and name not in arguments.methods:
                    continue
                if _of(rows, part, name) is None or arguments.again:
                    result = run(rows, name)
                    rows = [row for row in rows if (row["part"], row["method"]) != (part, name)]
                    rows.append({"part": part, "method": name, "result": result})
                    write(arguments.file.stem, rows)
                    print(part, name, json.dumps(result)[:300], flush=True)
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

"""Few-click segmentation: the click protocol on photographs, beside random_walker and LabelSpreading.

    PROBTX_DATA=... python -m benchmarks.segmentation [--out FILE] [--methods NAME ...] [--half even|odd|both] [--append]

Reads ``$PROBTX_DATA/segmentation/{images,masks}/*.png`` (masks: 0 background, 1 pet, 255 not scored). Of the files in order of
their names the 1st, 3rd, ... are the tuning half ("even", counted from 0) and the others the held-out half ("odd"). All settings,
ours and those of the two others, were chosen on the tuning half. Protocol and score: `probtx_pyro.apps.segmentation.play_clicks`. No method and no
part of the protocol draws random numbers, so there is no seed.
"""

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probtx_pyro.apps import segmentation

SHOWN = (2, 3, 5, 10)
RESULTS = Path(__file__).parent / "results" / "segmentation.json"


class Method(NamedTuple):
    """Work on the image once, then turn clicks into a mask of their labels."""

    prepare: Callable[[np.ndarray], Any]
    answer: Callable[[Any, list[segmentation.Click]], np.ndarray]


def ours() -> Method:
    """`probtx_pyro.apps.segmentation` with its defaults."""

    def answer(picture, clicks):
        return picture.segment(segmentation.marks_from_clicks(picture.shape, clicks)).mask

    return Method(segmentation.InteractiveSegmenter.from_image, answer)


def random_walker(beta: float) -> Method:
    """scikit-image; its default beta is 130."""
    from skimage.segmentation import random_walker as walk

    def answer(image, clicks):
        marks = segmentation.marks_from_clicks(image.shape[:2], clicks)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return walk(image / 255, marks, beta=beta, mode="cg_j", tol=1e-4, channel_axis=-1)

    return Method(lambda image: image, answer)


def label_spreading(position: float, side: int = 32, **options) -> Method:
    """scikit-learn on a lattice of ``side`` points along the longer side, colour and position; each pixel takes its nearest point."""
    from scipy.spatial import cKDTree
    from sklearn.semi_supervised import LabelSpreading

    def prepare(image):
        height, width = image.shape[:2]
        where = np.stack(np.mgrid[:height, :width], -1) / max(height, width) * 2
        features = np.concatenate([segmentation.lab_colours(image) / 50, position * where], -1)
        step = max(height, width) / side
        y, x = ((np.arange(int(size / step)) * step + step / 2).astype(int) for size in (height, width))
        points = features[np.ix_(y, x)].reshape(-1, features.shape[-1])
        return features, points, cKDTree(points).query(features.reshape(-1, features.shape[-1]))[1]

    def answer(state, clicks):
        features, points, nearest = state
        given = np.array([features[y, x] for y, x, _ in clicks])
        labels = np.r_[np.full(len(points), -1), [label for *_, label in clicks]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = LabelSpreading(max_iter=100, **options).fit(np.concatenate([points, given]), labels)
        shares = np.nan_to_num(fit.label_distributions_[: len(points)])
        return fit.classes_[shares.argmax(-1)][nearest].reshape(features.shape[:2])

    return Method(prepare, answer)


METHODS: dict[str, Callable[[], Method]] = {
    "probtx_pyro": ours,
    "LabelSpreading kNN": lambda: label_spreading(2.0, kernel="knn", n_neighbors=10, alpha=0.2),
    "LabelSpreading RBF": lambda: label_spreading(1.0, kernel="rbf", gamma=30.0, alpha=0.9),
    "random_walker beta=130": lambda: random_walker(130),
    "random_walker beta=1000": lambda: random_walker(1000),
}


def pictures(root: Path, half: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, image and truth (1 background, 2 pet, 0 not scored) of each picture of a half."""
    from PIL import Image

    files = sorted((root / "images").glob("*.png"))
    if not files:
        raise ValueError(f"there are no pictures in {root / 'images'}")
    found = []
    for file in files[{"even": 0, "odd": 1}[half] :: 2]:
        mask = np.asarray(Image.open(root / "masks" / file.name)).astype(int)
        found.append((file.stem, np.asarray(Image.open(file).convert("RGB")), np.where(mask == 255, 0, mask + 1)))
    return found


def measure(method: Method, data: list[tuple[str, np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Play all pictures; means over pictures, and the scores of each picture."""
    scores, prepare_seconds, click_seconds = [], [], []
    for _, image, truth in data:
        start = time.perf_counter()
        state = method.prepare(image)
        prepare_seconds.append(time.perf_counter() - start)

        def answer(clicks, state=state):
            start = time.perf_counter()
            mask = method.answer(state, clicks)
            click_seconds.append(time.perf_counter() - start)
            return mask

        played = segmentation.play_clicks(answer, truth)
        scores.append([played.scores[played.counts.index(count)] for count in SHOWN])
    table = np.array(scores)  # (picture, shown, class)
    return {
        "clicks": list(SHOWN),
        "iou_pet": table[..., 1].mean(0).round(4).tolist(),
        "iou_mean_of_classes": table.mean((0, 2)).round(4).tolist(),
        "seconds_prepare": round(float(np.mean(prepare_seconds)), 4),
        "seconds_click": round(float(np.mean(click_seconds)), 4),
        "iou_pet_of_each_picture": {
            name: row.round(4).tolist() for (name, *_), row in zip(data, table[..., 1], strict=True)
        },
    }


def machine() -> dict[str, Any]:
    """What the seconds depend on."""
    import torch

    packages = ("torch", "pyro-ppl", "numpy", "scipy", "scikit-learn", "scikit-image")
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, write; 2 and one line on stderr where data or packages are missing."""
    parser = argparse.ArgumentParser(prog="benchmarks.segmentation", description="the click protocol on photographs")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"the JSON file (default {RESULTS.name} in results)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME")
    parser.add_argument("--half", choices=("even", "odd", "both"), default="both")
    parser.add_argument("--append", action="store_true", help="keep what the file has of other methods")
    arguments = parser.parse_args(argv)
    try:
        report = _run(arguments)
    except (ValueError, OSError) as error:
        print(f"benchmarks.segmentation: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(
            f"benchmarks.segmentation: error: {error.name} is missing; pip install 'probtx_pyro[bench,tour]'",
            file=sys.stderr,
        )
        return 2
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    if not (root := os.environ.get("PROBTX_DATA")):
        raise ValueError("PROBTX_DATA is not set; it must name the folder that holds segmentation/images and masks")
    if not arguments.out.parent.is_dir():
        raise ValueError(f"--out {arguments.out}: there is no folder {arguments.out.parent}")
    report: dict[str, Any] = {"results": []}
    if arguments.append and arguments.out.exists():
        kept = json.loads(arguments.out.read_text())["results"]
        report["results"] = [row for row in kept if row["method"] not in arguments.methods]
    print(
        f"{'':25}{'half':6}{'pet-only IoU after 2, 3, 5, 10':32}{'mean of classes':28}{'s before':>10}{'s a click':>10}"
    )
    for name in arguments.methods:
        method = METHODS[name]()
        for half in ("even", "odd") if arguments.half == "both" else (arguments.half,):
            row = measure(method, pictures(Path(root) / "segmentation", half))
            report["results"].append({"method": name, "half": half, **row, "machine": machine()})
            pet, mean = ("  ".join(f"{x:.3f}" for x in row[key]) for key in ("iou_pet", "iou_mean_of_classes"))
            print(
                f"{name:25}{half:6}{pet:32}{mean:28}{row['seconds_prepare']:10.3f}{row['seconds_click']:10.3f}",
                flush=True,
            )
    return report


if __name__ == "__main__":
    sys.exit(main())

"""Run the chapters one after the other and write what they hand back."""

import os
import time
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from matplotlib import pyplot
from tqdm.auto import tqdm

from probtx_pyro.tour._chapter import Chapter, Context
from probtx_pyro.tour._report import report

CHAPTERS = (
    "attention_is_a_posterior",
    "from_k_means_to_attention",
    "map_transformer",
    "adapting_keys",
    "one_click",
    "several_keys",
    "sentence_structure",
    "what_is_remembered",
    "diagnosing",
)


class Written(NamedTuple):
    """Files that the tour wrote.

    report: one HTML file that needs no other.
    data: NetCDF files of ArviZ data, in the order of the chapters.
    figures: PNG files in reading order.
    """

    report: Path
    data: list[Path]
    figures: list[Path]


def run(
    out: str | Path, *, seed: int, device: str = "cpu", progress: bool | None = True, smoke: bool | None = None
) -> Written:
    """Run the tour's chapters and write figures/*.png, tour.nc (adapted keys), posterior.nc (draws) and report.html.

    Parameters
    ----------
    out
        Folder for the results, made if missing; files of an earlier tour are overwritten.
    seed
        The only randomness; the same seed on the same device gives the same numbers.
    device
        Where the tensors live.
    progress
        Whether to show a bar; None shows it on a terminal.
    smoke
        Small sizes, to test the plumbing; None asks the environment variable PROBTX_SMOKE (1 is small).

    Returns
    -------
    Written

    Raises
    ------
    OSError
        The folder cannot be made or written to.
    """
    out = Path(out)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    smoke = os.environ.get("PROBTX_SMOKE") == "1" if smoke is None else smoke
    context = Context(seed, device, smoke)
    done, figures, data = list[tuple[Chapter, float]](), list[Path](), list[Path]()
    for name in tqdm(CHAPTERS, desc="tour", unit="chapter", disable=None if progress is None else not progress):
        start = time.perf_counter()
        chapter = import_module(f"probtx_pyro.tour._chapters.{name}").chapter(context)
        done.append((chapter, time.perf_counter() - start))
        for picture in chapter.pictures:
            figures.append(out / "figures" / f"{len(done)}_{picture.name}.png")
            picture.figure.savefig(figures[-1], dpi=130)
            pyplot.close(picture.figure)
        for file, found in chapter.inference_data.items():
            data.append(out / f"{file}.nc")
            data[-1].unlink(missing_ok=True)  # NetCDF cannot be written over a file that is still open elsewhere
            found.to_netcdf(str(data[-1]))
    (out / "report.html").write_text(report(done, figures, context), encoding="utf-8")
    return Written(out / "report.html", data, figures)

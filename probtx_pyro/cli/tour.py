"""The guided run: what attention as a posterior means, chapter by chapter, on data that the installed packages carry.

Each chapter asks one question, answers it with the library's public calls and shows the numbers behind its figures.
Everything is computed while you wait (under two minutes on two cores); the seed is the only randomness.
Needs scikit-learn: pip install -e '.[tour]' in the folder of the repository
"""

import argparse
from pathlib import Path

from probtx_pyro.cli import _options as options

SUMMARY = "the guided run: figures, an InferenceData file and an HTML report"
OUT = Path("tour_output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx tour``."""
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"folder for the results, made if missing (default {OUT})"
    )
    options.add_shared(parser, "--seed", "--device", "--threads", "--no-progress")


def run(arguments: argparse.Namespace) -> None:
    """Run the tour and say where its results are."""
    options.require("sklearn", "scikit-learn", "the tour", "tour")
    out = options.folder(arguments.out or OUT)
    device = options.device(arguments.device)
    if arguments.out is None:
        options.warn(f"the results go to {out}; --out DIR chooses another folder")
    import matplotlib

    from probtx_pyro import tour

    matplotlib.use("agg")  # no window, no display needed
    with options.threads(arguments.threads or 1):
        written = tour.run(out, seed=arguments.seed, device=device, progress=False if arguments.no_progress else None)
    print(
        f"Report: {written.report}\nData:   {', '.join(map(str, written.data))}\nFigures: {len(written.figures)} in {out / 'figures'}\n"
        "Next:   open the report in a browser; then, on a picture of your own:  probtx segment --help"
    )

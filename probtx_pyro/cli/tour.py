"""The guided run: what attention as a posterior means, by the beginnings of eight notebooks of the course.

They are executed while you wait (under two minutes on two cores), on data that the installed packages carry, and
become one page, with the code behind every number. Needs scikit-learn and Jupyter's packages:
pip install -e '.[tour]' in the folder of the repository
"""

import argparse
from pathlib import Path

from probtx_pyro.cli import _options as options

SUMMARY = "the guided run: figures, an InferenceData file and an HTML report"
OUT = Path("tour_output")
NAMES = {"sklearn": "scikit-learn"}  # of packages, where they are not those of their modules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx tour``."""
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"folder for the results, made if missing (default {OUT})"
    )
    options.add_shared(parser, "--threads", "--no-progress")


def run(arguments: argparse.Namespace) -> None:
    """Run the tour and say where its results are."""
    for module in ("sklearn", "nbclient", "nbconvert", "ipykernel", "sphinx-mathjax-offline"):
        options.require(module, NAMES.get(module, module), "the tour", "tour")
    out = options.folder(arguments.out or OUT)
    if arguments.out is None:
        options.warn(f"the results go to {out}; --out DIR chooses another folder")
    from probtx_pyro import tour
    from probtx_pyro.cli import explore

    progress = False if arguments.no_progress else None
    written = tour.run(out, explore.page(), threads=arguments.threads or 1, progress=progress)
    print(
        f"Report: {written.report}\nData:   {', '.join(map(str, written.data))}\n"
        f"Figures: {len(written.figures)} in {out / 'figures'}\n"
        "Next:   open the report in a browser; then click in a picture yourself:  probtx segment --example pagoda"
    )

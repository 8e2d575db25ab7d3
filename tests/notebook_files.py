"""The notebooks, and the scripts beside them as modules."""

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
FIRST = FOLDER / "00_mixtures_in_twenty_lines.ipynb"


def load(name):
    """A script of the notebooks' folder, as a module."""
    specification = importlib.util.spec_from_file_location(f"notebooks_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module

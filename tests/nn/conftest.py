"""Every tensor test runs on each device."""

import pytest


@pytest.fixture(autouse=True)
def _on_each_device(device):
    pass

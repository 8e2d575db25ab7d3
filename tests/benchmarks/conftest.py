"""Benchmarks register encoders of their own, which no other test may meet."""

import pytest

from probtx_pyro import nn


@pytest.fixture(autouse=True)
def _encoders_of_benchmarks_stay_there():
    before = dict(nn.ENCODERS)
    yield
    nn.ENCODERS.clear()
    nn.ENCODERS.update(before)

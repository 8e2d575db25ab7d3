import sys

import numpy as np
import pytest

from probtx_pyro import data

pytest.importorskip("sklearn")


def test_digits_are_ink_in_the_unit_interval():
    digits = data.load_digits()
    assert digits.images.shape == (1797, 8, 8) and digits.labels.shape == (1797,)
    assert digits.images.min() == 0.0 and digits.images.max() == 1.0
    assert sorted(set(digits.labels.tolist())) == list(range(10))


def test_pagoda_and_its_mask():
    image, mask = data.load_pagoda()
    assert image.shape == (427, 640, 3) and image.dtype == np.uint8
    assert mask.shape == (427, 640) and mask.dtype == bool
    assert 0.2 < mask.mean() < 0.3
    assert mask[200, 230] and mask[115, 200]  # a gallery, the upper roof
    assert not (mask[50, 500] or mask[250, 450] or mask[380, 120])  # sky, lake, tree in front
    assert image[mask].mean() < 0.7 * image[:100][~mask[:100]].mean()  # darker than the sky around it


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e '\.\[tour\]' in the folder"):
        data.load_digits()

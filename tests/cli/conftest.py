"""A picture for the tests of ``probtx segment``."""

import pytest
from made_pictures import disc
from PIL import Image


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(disc()[0]).save(path)
    return path

"""The browser of the tests that need one: Debian's Chromium, driven by Playwright."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium on the path: apt-get install chromium"
)

import pytest
from in_chromium import CHROMIUM


@pytest.fixture(scope="module")  # no longer: while Playwright runs, no other event loop does
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()

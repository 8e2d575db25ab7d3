"""The explorer's page, open in Chromium."""

import pytest
from explorer.cases import PAGE


class Visit:
    """The page with a view open, and what it wrote to its console and asked for."""

    def __init__(self, browser, place, page=PAGE, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.context.set_default_timeout(120_000)  # the machine may be busy
        self.page = self.context.new_page()
        self.console, self.asked = [], []
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(f"{page.as_uri()}{place}")

    def numbers(self):
        """Every number that the view shows, by name."""
        script = "Object.fromEntries([...document.querySelectorAll('[data-json]')].filter((x) => !x.parentElement.hidden).map((x) => [x.dataset.value, JSON.parse(x.dataset.json)]))"
        return self.page.evaluate(script)

    def state(self):
        return self.page.evaluate("explorer.state()")

    def until(self, script, argument=None):
        """Waits, two minutes at most. By hand: the page's policy lets `wait_for_function` ask once only."""
        for _ in range(1200):
            if self.page.evaluate(script, argument):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"never true: {script}")

    def set(self, state):
        self.page.evaluate("(state) => explorer.set(state)", state)

    def middle(self, locator):
        """Where a handle is on the screen."""
        handle = self.page.locator(locator).first
        handle.scroll_into_view_if_needed()
        box = handle.bounding_box()
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture
def visit(chromium):
    visits = []

    def begin(place, **options):
        visits.append(Visit(chromium, place, **options))
        return visits[-1]

    yield begin
    for one in visits:
        assert one.console == []
        assert {url.split(":")[0] for url in one.asked} <= {"file", "data"}
        assert len([url for url in one.asked if url.startswith("file")]) == 1
        one.context.close()

"""What can be wrong with a page: in its HTML, and in a browser."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# The rules of axe that say what the specification asks of a page; each is one of WCAG 2.1 A or AA.
RULES = [
    "color-contrast",
    "image-alt",
    "svg-img-alt",
    "frame-title",
    "html-has-lang",
    "document-title",
    "link-name",
    "button-name",
]
# Formulas have the colour of the text around them, and thousands of nodes.
STILL = "() => Promise.allSettled(document.getAnimations().map(x => x.finished))"
AXE = """async rules => (await axe.run({exclude: ["mjx-container"]}, {runOnly: rules, iframes: false, resultTypes: ["violations"]}))
    .violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target.join(" ") + " " + (n.any[0]?.message ?? "")))"""
WIDTHS = {"wide": 1200, "narrow": 380}


class Page(HTMLParser):
    """The identifiers, links, resources and pictures of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors, self.links, self.resources, self.undescribed = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if found.get("src") or (tag == "link" and found.get("rel") != "canonical" and "href" in found):
            self.resources.append(found.get("src") or found["href"])
        alt = found.get("alt", "").strip()
        if tag == "img" and (
            not alt or re.search(r"\.(png|jpe?g|svg)$", alt)
        ):  # docutils writes a file's name where there is none
            self.undescribed.append(found.get("src", "?"))


def broken_links(root: Path) -> list[str]:
    """Links and resources of all pages that lead nowhere, resources from elsewhere, pictures without a description."""
    pages = {path: Page(path.read_text()) for path in sorted(root.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(root)
        found += [f"{name}: {source} has no description" for source in page.undescribed]
        for link in page.resources + page.links:
            url = urlsplit(link)
            if url.scheme == "data" or (url.scheme in ("http", "https", "mailto") and link not in page.resources):
                continue
            if url.scheme or url.netloc:
                found.append(f"{name}: {link} is loaded from elsewhere")
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path.resolve()
            if not target.is_file():
                found.append(f"{name}: {link} does not exist")
            elif (
                url.fragment and target.suffix == ".html" and target.parent.name != "explorer"
            ):  # its fragment is a state
                if unquote(url.fragment) not in pages[root / target.relative_to(root.resolve())].anchors:
                    found.append(f"{name}: {link} has no such anchor")
    return found


class Watch:
    """Opens pages in a browser and says what is wrong with them."""

    def __init__(self, browser, axe: str):
        self.page = browser.new_page()
        self.axe, self.heard = axe, []
        self.page.on(
            "console", lambda message: self._hear(message.text) if message.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self._hear(str(error)))
        self.page.on("requestfailed", lambda request: self._hear(f"{request.url} failed"))
        self.page.on("request", lambda request: self._outside(request.url))

    def _hear(self, text: str) -> None:
        self.heard.append(text)

    def _outside(self, url: str) -> None:
        if urlsplit(url).scheme not in ("file", "data", "blob", "about"):
            self._hear(f"asked for {url}")

    def faults(self, path: Path, schemes=("light", "dark")) -> list[str]:
        """Errors, requests beyond the page's folder, what axe finds in both schemes, and what is wider than a narrow screen."""
        self.heard.clear()
        self.page.set_viewport_size({"width": WIDTHS["wide"], "height": 900})
        self.page.goto(path.resolve().as_uri(), wait_until="load")
        self.page.evaluate("async () => { if (window.MathJax?.startup) await MathJax.startup.promise; }")
        self.page.evaluate("() => document.querySelectorAll('details').forEach(x => x.open = true)")
        self.page.evaluate(self.axe)
        found = []
        for scheme in schemes:
            self.page.emulate_media(color_scheme=scheme)
            self.page.evaluate(STILL)  # what has just been opened fades in
            found += [f"{scheme}: {fault}" for fault in self.page.evaluate(AXE, RULES)]
        self.page.set_viewport_size({"width": WIDTHS["narrow"], "height": 800})
        width = self.page.evaluate("() => document.documentElement.scrollWidth")
        if width > WIDTHS["narrow"]:
            found.append(f"scrolls sideways: {width} pixels wide on a screen of {WIDTHS['narrow']}")
        return [*self.heard, *found]

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
AXE = """async ([rules, include]) => (include && !document.querySelector(include)) ? [] :
    (await axe.run({...(include && {include: [include]}), exclude: ["mjx-container"]}, {runOnly: rules, iframes: false, resultTypes: ["violations"]}))
    .violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target.join(" ") + " " + (n.any[0]?.message ?? "")))"""
WIDTHS = {"wide": 1200, "narrow": 380, "print": 700}  # print: A4 less its margins
NARROW = (
    '.mobile-header, input[type="checkbox"] ~ .page .content-icon-container'  # what is shown on narrow screens alone
)
# The theme lets its column scroll on a narrow screen, which the page does not see.
SIDEWAYS = """width => [document.documentElement, ...document.querySelectorAll(".content")].map(x => [x, x === document.documentElement ? width : x.clientWidth])
    .filter(([x, room]) => x.scrollWidth > room).map(([x]) => `${x.tagName.toLowerCase()} ${x.scrollWidth}`)"""
# A formula or a picture that is cut at the edge of its box needs a shadow there, which stays while the ground moves with what scrolls.
CUT = """() => [...document.querySelectorAll("main *, .content *")].filter(x => x.querySelector(":scope > mjx-container, :scope > img, :scope > .cell_output"))
    .flatMap(x => [x, ...x.children]).filter(x => x.querySelector("mjx-container, img") && x.checkVisibility() && x.scrollWidth > x.clientWidth + 1 && x.clientWidth > 0
        && getComputedStyle(x).overflowX !== "visible" && !getComputedStyle(x).backgroundAttachment.includes("local"))
    .map(x => `${x.tagName.toLowerCase()} ${x.className} is cut without a sign`)"""
PRINTED = """() => [...[".sidebar-drawer", ".toc-drawer", ".mobile-header", "iframe", "button.copybtn"].flatMap(x => [...document.querySelectorAll(x)])
    .filter(x => x.checkVisibility()).map(x => `shows ${x.className || x.tagName}`),
    ...(([r, g, b, a = 1]) => a > 0 && Math.min(r, g, b) < 240 ? ["is dark"] : [])(
        getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number))]"""


class Page(HTMLParser):
    """The identifiers, links, resources and pictures of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors, self.links, self.resources, self.undescribed = set(), [], [], []
        self.icon, self.summary = "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if found.get("src") or (tag == "link" and found.get("rel") != "canonical" and "href" in found):
            self.resources.append(found.get("src") or found["href"])
        if tag == "link" and "icon" in found.get("rel", "").split():
            self.icon = found.get("href", "")
        if tag == "meta" and found.get("name") == "description":
            self.summary = found.get("content", "").strip()
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
                url.fragment and target.suffix == ".html" and "explorer" not in (target.parent.name, target.stem)
            ):  # their fragment is a state
                if unquote(url.fragment) not in pages[root / target.relative_to(root.resolve())].anchors:
                    found.append(f"{name}: {link} has no such anchor")
    return found


class Watch:
    """Opens pages in a browser and says what is wrong with them."""

    def __init__(self, browser, axe: str):
        self.page = browser.new_page()
        self.page.set_default_timeout(120_000)  # the machine may be busy
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
        """Errors, requests beyond the page's folder, what axe finds in both schemes, what is too wide for a screen, or wrong in print."""
        self.heard.clear()
        self.page.emulate_media(media="screen")
        self.page.set_viewport_size({"width": WIDTHS["wide"], "height": 900})
        self.page.goto(path.resolve().as_uri(), wait_until="load")
        self.page.evaluate("async () => { if (window.MathJax?.startup) await MathJax.startup.promise; }")
        self.page.evaluate("() => document.querySelectorAll('details').forEach(x => x.open = true)")
        self.page.evaluate(self.axe)
        found = self._sideways("wide")
        for scheme in schemes:
            found += self._axe(scheme, RULES)
        self.page.set_viewport_size({"width": WIDTHS["narrow"], "height": 800})
        found += self._sideways("narrow") + [f"narrow: {fault}" for fault in self.page.evaluate(CUT)]
        for scheme in schemes:
            found += self._axe(scheme, ["color-contrast"], NARROW)
        self.page.emulate_media(media="print")  # in the dark, which paper is not
        self.page.set_viewport_size({"width": WIDTHS["print"], "height": 990})
        found += self._sideways("print") + [f"print: {fault}" for fault in self.page.evaluate(PRINTED)]
        return [*self.heard, *found]

    def _axe(self, scheme: str, rules: list[str], include: str | None = None) -> list[str]:
        self.page.emulate_media(color_scheme=scheme)
        self.page.evaluate(STILL)  # what has just been opened fades in
        return [f"{scheme}: {fault}" for fault in self.page.evaluate(AXE, [rules, include])]

    def _sideways(self, screen: str) -> list[str]:
        width = WIDTHS[screen]
        return [f"{screen}: {box} pixels, scrolls sideways on {width}" for box in self.page.evaluate(SIDEWAYS, width)]

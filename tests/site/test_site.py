"""The site as `make site` built it: every page in Chromium, every link; `make site-test` builds it first."""

import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from in_chromium import needs_chromium
from site_faults import Watch, broken_links

from probtx_pyro import inference, inspection, models, nn, results

ROOT = Path(__file__).parents[2]
OUT = ROOT / "site/_build"
PAGES = sorted(path.relative_to(OUT).as_posix() for path in OUT.rglob("*.html")) if OUT.is_dir() else []

pytestmark = pytest.mark.slow
needs_site = pytest.mark.skipif(not PAGES, reason="there is no site in site/_build: make site")


@pytest.fixture(scope="module")
def watch(chromium):
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        pytest.skip("axe is missing: pip install -e '.[site]'")
    return Watch(chromium, (Path(found.origin).parent / "axe.min.js").read_text())


# -- the checks themselves: each fault is seen -------------------------------------------------------------------------------

GOOD = '<!doctype html><html lang="en"><head><title>A page</title></head><body>{}</body></html>'
FAULTS = {
    "color-contrast": '<p style="color: #ccc; background: #fff">pale</p>',
    "image-alt": '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">',
    "frame-title": '<iframe srcdoc="x"></iframe>',
    "link-name": '<a href="#"></a>',
    "narrow: html 5": '<p style="width: 500px">wide</p>',
    "narrow: main 5": '<main class="content" style="overflow-x: auto"><p style="width: 500px">wide</p></main>',
    "wide: html 1": '<p style="width: 1250px">wide</p>',
    "print: html 1": "<style>@media print { p { width: 1000px } }</style><p>wide on paper</p>",
    "print: shows toc-drawer": '<nav class="toc-drawer">contents</nav>',
    "print: is dark": "<style>@media print { body { background: #222; color: #fff } }</style>",
    "boom": "<script>throw new Error('boom')</script>",
    "asked for http": '<script>fetch("http://127.0.0.1:9/x").catch(() => 0)</script>',
    "failed": '<script src="none.js"></script>',
}


@needs_chromium
def test_a_good_page_has_no_fault(watch, tmp_path):
    (tmp_path / "page.html").write_text(GOOD.format("<p>text</p>"))
    assert watch.faults(tmp_path / "page.html") == []


@needs_chromium
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen(watch, tmp_path, fault):
    (tmp_path / "page.html").write_text(GOOD.format(FAULTS[fault]))
    assert fault in "\n".join(watch.faults(tmp_path / "page.html"))


@needs_chromium
def test_a_fault_in_the_dark_is_seen(watch, tmp_path):
    style = "<style>@media (prefers-color-scheme: dark) { p { color: #333; background: #000 } }</style>"
    (tmp_path / "page.html").write_text(GOOD.format(style + "<p>text</p>"))
    assert [fault.split(":")[0] for fault in watch.faults(tmp_path / "page.html")] == ["dark"]


def test_broken_links_are_seen(tmp_path):
    body = '<h1 id="here"></h1><a href="b.html">x</a><a href="a.html#no">x</a><a href="#here">x</a><a href="https://pyro.ai">x</a>'
    body += '<img src="https://pyro.ai/x.png" alt="figure.png">'
    (tmp_path / "a.html").write_text(GOOD.format(body))
    assert broken_links(tmp_path) == [
        "a.html: https://pyro.ai/x.png has no description",
        "a.html: https://pyro.ai/x.png is loaded from elsewhere",
        "a.html: b.html does not exist",
        "a.html: a.html#no has no such anchor",
    ]


# -- the site ----------------------------------------------------------------------------------------------------------------


@needs_site
def test_links_lead_somewhere_and_pictures_are_described():
    assert broken_links(OUT) == []


@needs_site
@needs_chromium
@pytest.mark.parametrize("page", PAGES)
def test_page_in_chromium(watch, page):
    assert watch.faults(OUT / page) == []


@needs_site
@needs_chromium
def test_the_picture_of_the_home_page_is_whole_and_as_dark_as_the_page(chromium):
    page = chromium.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
    page.set_default_timeout(120_000)
    page.goto((OUT / "index.html").as_uri())
    frame = page.frame_locator("iframe.explorer")
    frame.locator("#view .handle").first.wait_for()
    high = "() => { const x = document.querySelector('iframe.explorer'); return x.style.height && parseFloat(x.style.height) }"
    page.wait_for_function(high)
    assert page.evaluate(high) >= frame.locator("body").evaluate("x => x.offsetHeight")
    assert frame.get_by_role("navigation").count() == 0 and frame.get_by_role("slider").count() == 0
    ground = "x => getComputedStyle(x).backgroundColor"
    before = frame.locator("body").evaluate(ground)
    page.evaluate("document.body.dataset.theme = 'dark'")
    frame.locator("html[data-theme=dark]").wait_for(state="attached")
    assert frame.locator("body").evaluate(ground) != before
    page.close()


@needs_site
@needs_chromium
@pytest.mark.parametrize(
    ("word", "page"),
    [("responsibilities", "docs/course/glossary.html"), ("MemoryClassifier", "docs/howto/classify.html")],
)
def test_search_finds_without_a_server(watch, word, page):
    watch.heard.clear()
    watch.page.goto(f"{(OUT / 'search.html').as_uri()}?q={word}")
    watch.page.wait_for_selector(
        f"#search-results li > a[href*='{page}']"
    )  # results come one after the other; without it, this raises
    assert watch.heard == []


@needs_site
@pytest.mark.parametrize("package", [models, inference, results, inspection, nn], ids=lambda package: package.__name__)
def test_the_reference_has_every_public_name(package):
    text = "".join(path.read_text() for path in (OUT / "reference").glob("*.html"))
    anchors = {
        name: f"{'module-' if inspect.ismodule(getattr(package, name)) else ''}{package.__name__}.{name}"
        for name in package.__all__
    }
    assert [name for name, anchor in anchors.items() if f'id="{anchor}"' not in text] == []


@needs_site
def test_every_notebook_and_how_to_is_a_page():
    sources = [
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("docs/howto/*.md"),
        *ROOT.glob("docs/reports/*.md"),
        *ROOT.glob("docs/course/**/*.md"),
    ]
    wanted = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in sources}
    assert wanted <= set(PAGES)


@needs_site
def test_sitemap_and_llms_name_pages_that_exist():
    for name in ("sitemap.xml", "llms.txt"):
        found = re.findall(r"http://localhost:8000/([\w./-]*)", (OUT / name).read_text())
        assert len(found) > 50
        assert [path for path in found if not (OUT / (path or "index.html")).is_file()] == []

"""The site as `make site` built it: every page in Chromium, every link; `make site-test` builds it first."""

import importlib
import importlib.util
import inspect
import json
import re
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from in_chromium import needs_chromium
from site_faults import Page, Watch, broken_links

from probtx_pyro import inference, inspection, models, nn, results

pytest.importorskip("sphinx", reason="sphinx is missing: pip install -e '.[site]'")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "site"))
try:
    build, lessons = importlib.import_module("build"), importlib.import_module("lessons")
finally:
    sys.path.remove(str(ROOT / "site"))
OUT = ROOT / "site/_build"
PAGES = sorted(path.relative_to(OUT).as_posix() for path in OUT.rglob("*.html")) if OUT.is_dir() else []

VIEWS = build.views()

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
    "narrow: div math is cut": '<main><div class="math" style="overflow-x: auto"><mjx-container style="display: block; width: 600px">formula</mjx-container></div></main>',
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
    [
        ("responsibilities", "docs/course/glossary.html"),
        ("MemoryClassifier", "docs/howto/classify.html"),
        ("k-means", "notebooks/02_from_k_means_to_attention.html"),
        ("R-hat", "notebooks/06_diagnosing_the_posterior.html"),
        *((title, "explorer.html") for title in VIEWS.values()),
    ],
)
def test_search_finds_without_a_server(watch, word, page):
    watch.heard.clear()
    watch.page.goto(f"{(OUT / 'search.html').as_uri()}?q={word}")
    watch.page.wait_for_selector(
        f"#search-results li > a[href*='{page}']"
    )  # results come one after the other; without it, this raises
    assert watch.heard == []


@pytest.fixture(scope="module")
def address():
    """The address of the site from a server on this machine."""
    handler = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=OUT)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@needs_site
@needs_chromium
def test_search_by_a_server_shows_where_k_means_stands(chromium, address):
    page = chromium.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{address}/search.html?q=k-means")
    page.locator("#search-results li p.context").first.wait_for()
    page.wait_for_function("() => /found/.test(document.querySelector('.search-summary')?.textContent ?? '')")
    assert 0 < page.locator("#search-results li").count() < len(PAGES) / 3
    assert "k-means" in " ".join(page.locator("#search-results li p.context").all_inner_texts())
    page.close()


@needs_site
def test_each_page_has_an_icon_and_a_sentence_of_its_own_about_it():
    pages = {path: Page((OUT / path).read_text()) for path in PAGES}
    assert [path for path, page in pages.items() if not page.icon] == []
    assert [path for path, page in pages.items() if not 20 < len(page.summary) <= 220] == []
    named = [page.summary for path, page in pages.items() if path.startswith(("docs/", "notebooks/"))]
    assert len(set(named)) == len(named)


@needs_site
@needs_chromium
def test_the_explorer_page_and_its_frame_have_one_address(chromium):
    page = chromium.new_page()
    page.set_default_timeout(120_000)
    page.goto((OUT / "explorer.html").as_uri() + "#mean-or-mode:" + json.dumps({"sd": 0.8}))
    frame = page.frame_locator("iframe.explorer.whole")
    frame.get_by_role("heading", name="Mean or mode").wait_for()
    page.evaluate(
        "() => { location.hash = '#attention-as-a-memory'; }"
    )  # a section of the page, as the search finds it
    frame.get_by_role("heading", name="Attention as a memory").wait_for()
    inside = next(one for one in page.frames if one.parent_frame)
    inside.evaluate("() => parent.postMessage({ probtx: 'hash', hash: '#keys-adapt:%7B%7D' }, '*')")
    page.wait_for_function("() => location.hash === '#keys-adapt:%7B%7D'")
    page.close()


@needs_site
@needs_chromium
@pytest.mark.parametrize("placed", lessons.PLACED, ids=lambda placed: f"{placed.notebook[:2]}-{placed.heading[:20]}")
def test_a_view_in_a_notebook_opens_in_its_state_and_words_set_it(chromium, placed):
    page = chromium.new_page()
    page.set_default_timeout(120_000)
    for changes in ({}, *(json.loads(found) for _, found in lessons.WORDS.findall(placed.suggestion))):
        file = OUT / "explorer" / lessons.PAGES.get(placed.view, "index.html")
        page.goto(f"{file.as_uri()}?{len(changes)}{lessons.address(placed.view, placed.state | changes)}")
        page.wait_for_function("() => window.explorer?.view()")
        assert page.evaluate("() => document.getElementById('message').textContent") == ""
        assert page.evaluate("() => explorer.view()") == placed.view
        assert page.evaluate("() => explorer.state()").items() >= (placed.state | changes).items()
    page.close()


@needs_site
@needs_chromium
def test_slides_turn_and_fold_their_answers(chromium):
    page = chromium.new_page()
    page.set_default_timeout(120_000)
    page.goto((OUT / "slides/00_mixtures_in_twenty_lines.html").as_uri())
    shown = page.locator("section:visible")
    assert shown.count() == 1 and "00" in shown.inner_text()
    while page.locator("section:visible .fragment").count() == 0:
        page.keyboard.press("ArrowRight")
    answer, place = page.locator("section:visible .fragment"), page.locator("#number").inner_text()
    assert not answer.is_visible()
    page.keyboard.press("ArrowRight")
    assert answer.is_visible() and page.locator("#number").inner_text() == place
    page.keyboard.press("ArrowRight")
    assert page.locator("#number").inner_text() != place
    page.close()


@needs_site
def test_each_notebook_can_be_had_and_has_slides():
    for path in ROOT.glob("notebooks/*.ipynb"):
        assert (OUT / "notebooks" / path.name).read_bytes() == path.read_bytes()
        assert (OUT / "slides" / f"{path.stem}.html").is_file()


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

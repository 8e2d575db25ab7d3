"""Formulas of the site are set when it is built: as pictures, with MathML, each glyph once a page; what cannot be read stops the build."""

import importlib
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="sphinx is missing: pip install -e '.[site]'")
pytest.importorskip("py_mini_racer", reason="mini-racer is missing: pip install -e '.[site]'")
ROOT = Path(__file__).parents[2]
OUT = ROOT / "site/_build"
PAGE = "<!doctype html><html><body><p>{}</p></body></html>"


@pytest.fixture(scope="module")
def formulas():
    sys.path.insert(0, str(ROOT / "site"))
    try:
        return importlib.import_module("formulas")
    finally:
        sys.path.remove(str(ROOT / "site"))


@pytest.fixture(scope="module")
def evaluate(formulas):
    with formulas.engine() as evaluate:
        yield evaluate


def test_a_formula_is_a_picture_and_mathml(formulas, evaluate):
    tex = r"\pi_j < \frac{1}{2}"
    page = formulas.with_formulas(PAGE.format(formulas.tagged(tex, display=False)), evaluate)
    assert page.count("<svg") == 2 and r"\pi" not in page  # the formula, and the outlines of its glyphs
    assert "<msub><mi>π</mi><mi>j</mi></msub><mo>&lt;</mo><mfrac>" in re.sub(r"</?mrow>", "", page)
    used, drawn = set(re.findall(r'<use xlink:href="#([^"]+)"', page)), re.findall(r'<path id="([^"]+)"', page)
    assert len(used) == len(drawn) == 5 and used == set(drawn)  # π j < 1 2


def test_a_page_has_the_glyphs_of_its_own_formulas_alone(formulas, evaluate):
    pages = [PAGE.format(formulas.tagged(tex, display=True)) for tex in ("x + x", "y")]
    found = [re.findall(r'<path id="[^"]*-(\w+)"', formulas.with_formulas(page, evaluate)) for page in pages]
    assert found == [["1D465", "2B"], ["1D466"]]
    assert formulas.with_formulas(PAGE.format("no formula"), evaluate) == PAGE.format("no formula")


@pytest.mark.parametrize("tex", [r"\fraction{1}{2}", r"\frac{1", r"x_1_2"])
def test_what_mathjax_cannot_read_is_refused(formulas, evaluate, tex):
    with pytest.raises(ValueError, match=re.escape(f"MathJax cannot read the formula {tex}: ")):
        formulas.with_formulas(PAGE.format(formulas.tagged(tex, display=False)), evaluate)


def test_what_sphinx_writes_is_found(formulas, evaluate):
    display = '<div class="math notranslate nohighlight">\n\\[a &lt; b \\tag{1}\\]</div>'
    inline = '<span class="math notranslate nohighlight">\\(c\\)</span>'
    page = formulas.with_formulas(PAGE.format(inline + display), evaluate)
    assert page.count("<mjx-container") == 2 and "\\" not in page and page.count('<div class="math"><mjx') == 1


@pytest.mark.slow
@pytest.mark.skipif(not OUT.is_dir(), reason="there is no site in site/_build: make site")
def test_no_page_of_the_site_has_a_formula_that_is_not_set():
    pages = {path: path.read_text() for path in OUT.rglob("*.html")}
    count = {path: len(re.findall(r'<(?:span|div) class="math[" ]', text)) for path, text in pages.items()}
    assert {path: text.count("<mjx-container") for path, text in pages.items()} == count
    assert sum(count.values()) > 2000 and not any(
        re.search(r"<script[^>]*mathjax|window\.MathJax", text) for text in pages.values()
    )

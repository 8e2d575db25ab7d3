"""Formulas are set when the site is built: pages carry them as SVG, with MathML for those who hear them, and run no MathJax.

MathJax itself sets them, from the files of sphinx-mathjax-offline, in the JavaScript engine that mini-racer brings.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape, unescape
from importlib import import_module
from pathlib import Path

PARTS = (
    "adaptors/liteDOM",
    "input/tex-full",
    "output/svg",
    "a11y/assistive-mml",
)  # of MathJax: what the loader asks for
ASKED = ("startup", "core", *PARTS, "output/svg/fonts/tex")
MATH = re.compile(
    r'<(span|div) class="math[^"]*">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.S
)  # as Sphinx and `tagged` write it
NOTHING = re.compile(
    r' (?:data-[\w-]+|focusable|role|xmlns(?::xlink)?|unselectable)="[^"]*"| style="position: relative;"'
)
GLYPHS = '<svg aria-hidden="true" style="position: absolute; width: 0; height: 0">{}</svg>'

SETUP = """
globalThis.window = globalThis;
globalThis.MathJax = {
  loader: { paths: { mathjax: "." }, load: %s, require: (file) => (0, eval)(files[file]) },
  startup: { typeset: false, document: "" },
  svg: { fontCache: "global", displayAlign: "left" },
  tex: { tags: "none", packages: { "[-]": ["noerrors", "noundefined"] } },
};
(0, eval)(files["./startup.js"]);
MathJax.startup.promise.then(() => "ready", String);
"""
FUNCTIONS = """
const { adaptor, output } = MathJax.startup;
const set = (tex, display) => adaptor.outerHTML(MathJax.tex2svg(tex, { display, em: 16, ex: 8, containerWidth: 1280 }));
const glyphs = () => adaptor.outerHTML(output.fontCache.getCache());
const forget = () => output.fontCache.clearCache();
0;
"""


def tagged(tex: str, display: bool) -> str:
    """The element of a formula that is to be set, as Sphinx writes it."""
    return (
        f'<div class="math">\\[{escape(tex)}\\]</div>' if display else f'<span class="math">\\({escape(tex)}\\)</span>'
    )


@contextmanager
def engine() -> Iterator[Callable[[str], str]]:
    """A JavaScript engine that has loaded MathJax: from an expression, its value."""
    mathjax = Path(import_module("sphinx-mathjax-offline").__file__).parent / "static/mathjax"
    files = {f"./{name}.js": (mathjax / f"{name}.js").read_text() for name in ASKED}
    with import_module("py_mini_racer").MiniRacer() as racer:
        racer.eval(f"globalThis.files = {json.dumps(files)}; 0;")
        said = racer.eval(SETUP % json.dumps(PARTS)).get(timeout=60)
        if said != "ready":
            raise RuntimeError(f"MathJax does not load in mini-racer: {said}")
        racer.eval(FUNCTIONS)
        yield racer.eval


def with_formulas(page: str, evaluate: Callable[[str], str]) -> str:
    """The page with its formulas set; the outlines of the glyphs that it has stand once, at its end."""

    def one(found: re.Match) -> str:
        tex = unescape(found[2])
        formula = evaluate(f"set({json.dumps(tex)}, {json.dumps(found[1] == 'div')})")
        if error := re.search(r'data-mjx-error="([^"]*)"', formula):
            raise ValueError(f"MathJax cannot read the formula {tex}: {unescape(error[1])}")
        return f'<{found[1]} class="math">{NOTHING.sub("", formula)}</{found[1]}>'

    evaluate("forget(); 0;")
    page, count = MATH.subn(one, page)
    return page.replace("</body>", f"{GLYPHS.format(evaluate('glyphs()'))}\n</body>", 1) if count else page


def write(out: Path) -> None:
    """Set the formulas of all pages of the built site, and write the style that they have in common."""
    with engine() as evaluate:
        for path in sorted(out.rglob("*.html")):
            text = path.read_text()
            try:
                done = with_formulas(text, evaluate)
            except ValueError as error:
                raise ValueError(f"{path.relative_to(out)}: {error}") from error
            if done != text:
                path.write_text(done)
        (out / "_static/formulas.css").write_text(evaluate("adaptor.textContent(MathJax.svgStylesheet())"))

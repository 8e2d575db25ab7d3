"""Slides of the notebooks as pages of the site, which need no network: what ``notebooks/slides.py`` takes from a notebook, with a script of ours."""

import hashlib
import re
from base64 import b64decode
from html import escape
from pathlib import Path

import formulas
import lessons
import nbformat
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="Slides: {title}">
<link rel="icon" href="../_static/icon.svg">
<link rel="stylesheet" href="../_static/slides.css">
<link rel="stylesheet" href="../_static/formulas.css">
<script defer src="../_static/slides.js"></script>
<title>{title} · slides</title>
</head>
<body>
<main>
{slides}
</main>
<nav aria-label="Slides"><button type="button" id="back">Back</button> <output id="number"></output> <button type="button" id="next">Next</button>
<a href="../notebooks/{name}.html">The notebook</a> <span>Keys: arrows, Home, End; S for notes.</span></nav>
</body>
</html>
"""


class Slide(IPythonRenderer):
    """Markdown whose formulas `formulas` sets."""

    def inline_math(self, body: str) -> str:
        """A formula within a line."""
        return formulas.tagged(body, display=False)

    def block_math(self, body: str) -> str:
        """A formula of its own."""
        return formulas.tagged(body, display=True)


def on_the_site(html: str, images: Path) -> str:
    """Links that lead to pages of the site, and pictures that the site has anyway as its files."""

    def file(found: re.Match) -> str:
        name = f"{hashlib.sha256(b64decode(found[1])).hexdigest()}.png"
        return f'src="../_images/{name}"' if (images / name).exists() else found[0]

    html = re.sub(r'src="data:image/png;base64,([^"]+)"', file, html)
    html = re.sub(r'href="(?!\w+:|#|\.\.)', 'href="../notebooks/', html)
    return re.sub(r'(href="\.\.[^"#]*)\.(?:md|ipynb)(?=["#])', r"\1.html", html)


def deck(name: str, notebook: nbformat.NotebookNode, images: Path) -> str:
    """The page of a notebook's slides."""
    slides: list[str] = []
    for cell in lessons.script("slides").slides(notebook).cells:
        kind = cell.metadata["slideshow"]["slide_type"]
        html = on_the_site(MarkdownWithMath(renderer=Slide(escape=False)).render(cell.source), images)
        html = re.sub(r'<a class="anchor-link".*?</a>', "", html)
        if kind == "slide":
            slides.append(html)
        elif kind == "-":
            slides[-1] += html
        else:
            slides[-1] += f'<div class="{kind}">{html}</div>'
    title = re.sub(r"^# ", "", notebook.cells[0].source.splitlines()[0])
    sections = "\n".join(f"<section>{slide}</section>" for slide in slides)
    return PAGE.format(title=escape(title), name=name, slides=sections)


def write(out: Path) -> None:
    """Write the slides of all notebooks into the built site, and the notebooks themselves, which its pages offer."""
    (out / "slides").mkdir()
    for path in sorted(lessons.NOTEBOOKS.glob("*.ipynb")):
        (out / "notebooks" / path.name).write_bytes(path.read_bytes())
        page = deck(path.stem, nbformat.read(path, as_version=4), out / "_images")
        (out / "slides" / f"{path.stem}.html").write_text(page)

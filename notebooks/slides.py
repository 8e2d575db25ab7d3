"""Make slides of the notebooks: the question, each prediction with its answer one key later, each figure, the summary.

``python notebooks/slides.py`` writes an HTML page for each notebook into ``slides/``; names as arguments
(``00_mixtures_in_twenty_lines.ipynb``) choose some. Arrow keys turn the slides, S opens the descriptions of the figures as speaker's notes,
and the address with ``?print-pdf`` prints. The pages load reveal.js and MathJax from the web. Without a network they load them from
``node_modules`` of ``npm install reveal.js@4 requirejs@2 jquery@2 mathjax@2``: ``--modules`` names that folder.
"""

import argparse
import html
import re
import sys
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter
from nbformat.v4 import new_markdown_cell, new_notebook

FOLDER = Path(__file__).resolve().parent
FOLDED = re.compile(r"<details><summary>(?P<name>\w+)</summary>(?P<text>.*?)</details>", re.DOTALL)

LOCAL = {
    "reveal_url_prefix": "reveal.js",
    "require_js_url": "requirejs/require.js",
    "jquery_url": "jquery/dist/jquery.min.js",
    "mathjax_url": "mathjax/MathJax.js",
}


def slides(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The slides of a notebook, as a notebook whose cells say by ``slideshow`` what they are."""
    made: list[nbformat.NotebookNode] = []

    def add(kind: str, cell: nbformat.NotebookNode) -> None:
        cell.metadata = nbformat.from_dict({"slideshow": {"slide_type": kind}})
        made.append(cell)

    heading = ""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    add("slide", new_markdown_cell(f"## {heading}"))
                    alt = output.metadata.get("image/png", {}).get("alt", "")
                    picture = output.data["image/png"].replace("\n", "")
                    add("-", new_markdown_cell(f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{picture}">'))
                    add("notes", new_markdown_cell(alt))
            continue
        text = FOLDED.sub("", cell.source)
        if title := re.match(r"# (.*)", text):
            add("slide", new_markdown_cell(f"# {title[1]}"))
        if found := re.findall(r"^##+ (.*)", text, re.MULTILINE):
            heading = found[-1]
        if summary := re.search(r"^## Summary$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
            for part in re.split(r"\n\n(?=\|)|(?<=\|)\n\n", summary[1].strip()):  # a table has a slide of its own
                add("slide", new_markdown_cell(f"## Summary\n\n{part}"))
        for part in re.split(r"(?=\*\*Predict\.\*\*)", cell.source)[1:]:
            answer = FOLDED.search(part)
            add("slide", new_markdown_cell(f"## {heading}\n\n{part[: answer.start()] if answer else part}"))
            if answer:
                add("fragment", new_markdown_cell(answer["text"].strip()))
    return new_notebook(cells=made, metadata=notebook.metadata)


def main(arguments: list[str]) -> int:
    """Write the pages, print their names."""
    parser = argparse.ArgumentParser(description="slides of the course's notebooks")
    parser.add_argument("names", nargs="*", metavar="NOTEBOOK", help="names in notebooks/; all without them")
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "slides", help="the folder to write to")
    parser.add_argument(
        "--modules", type=Path, metavar="FOLDER", help="node_modules with reveal.js, in the place of the web"
    )
    given = parser.parse_args(arguments)
    exporter = SlidesExporter()
    if given.modules:
        for option, file in LOCAL.items():
            if not (given.modules / file).exists():
                parser.error(
                    f"--modules: there is no {given.modules / file}; run npm install reveal.js@4 requirejs@2 jquery@2 mathjax@2"
                )
            setattr(exporter, option, (given.modules / file).resolve().as_uri())
        exporter.mathjax_url += "?config=TeX-AMS_CHTML-full,Safe"
    given.out.mkdir(parents=True, exist_ok=True)
    for path in [FOLDER / name for name in given.names] or sorted(FOLDER.glob("*.ipynb")):
        page, _ = exporter.from_notebook_node(slides(nbformat.read(path, as_version=4)))
        (given.out / f"{path.stem}.html").write_text(page, encoding="utf-8")
        print(given.out / f"{path.stem}.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

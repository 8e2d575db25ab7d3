"""The guided run behind ``probtx tour``: beginnings of the course's notebooks, executed, as one page with their
figures.
"""

import asyncio
import os
import platform
import re
import signal
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from html import escape
from importlib.metadata import distribution, version
from itertools import groupby
from pathlib import Path
from string import Template
from typing import NamedTuple

import nbformat
from nbclient import NotebookClient
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from tqdm.auto import tqdm

from probtx_pyro.course import CLAIM

IN_THE_WHEEL = Path(__file__).with_name("notebooks")
NOTEBOOKS = IN_THE_WHEEL if IN_THE_WHEEL.exists() else Path(__file__).parents[2] / "notebooks"
"""Folder of the course's notebooks: in the wheel without their outputs."""
HOWTO = Path(__file__).parents[2] / "docs/howto"


class Chapter(NamedTuple):
    """A chapter: how much of a notebook the tour runs, and where a reader goes on.

    until: heading of the second level before which the tour leaves the notebook.
    howto: pages of docs/howto, for data of one's own.
    """

    until: str
    howto: tuple[str, ...]


CHAPTERS = {
    "01_attention_is_a_posterior": Chapter("Summary", ("replace_attention", "look_inside_a_transformer")),
    "02_from_k_means_to_attention": Chapter("What happens to the centers as it gets warm?", ("cluster",)),
    "03_map_transformer": Chapter("4. Can there be more modes than units?", ("predict",)),
    "09_log_normalizer_and_hopfield": Chapter("6. How much fits in?", ("store_and_retrieve", "use_the_log_normalizer")),
    "10_mixture_of_gaussian_keys": Chapter("4. EM as printed", ("replace_attention",)),
    "12_interactive_segmentation": Chapter("4. Does it know what it does not know?", ("segment_a_photograph",)),
    "16_dependency_crf": Chapter("Channel by channel", ("draw_parses", "read_trees")),
    "06_diagnosing_the_posterior": Chapter(
        "2. Runs that must not be believed", ("sample_a_posterior", "read_a_verdict")
    ),
}
"""The notebooks of the tour."""
EXPLORER = "explorer.html"
DATA = "posterior.nc"
AFRESH = """%reset -f
import pyro, torch
torch.set_default_dtype(torch.float32)
torch.manual_seed(0)
pyro.clear_param_store()
"""
SAVE = f"by_gibbs.to_netcdf({DATA!r})"  # the draws of the last chapter
CODE_STYLE, DARK_STYLE = HtmlFormatter(style="xcode"), HtmlFormatter(style="github-dark")
HIDDEN = "hide-input"  # the tag of cells that a reader need not see


class Written(NamedTuple):
    """Files that the tour wrote.

    report: one HTML file that needs no other; some of its links lead to the explorer beside it.
    data: NetCDF files of ArviZ data, in the order of the chapters.
    figures: PNG files in reading order.
    """

    report: Path
    data: list[Path]
    figures: list[Path]


def run(out: str | Path, explorer: str = "", *, threads: int = 1, progress: bool | None = True) -> Written:
    """Run the tour's notebooks and write figures/*.png, posterior.nc (draws of keys and attention), explorer.html and
    report.html.

    With PROBTX_SMOKE=1 in the environment the notebooks take small sizes, to test the plumbing.

    Parameters
    ----------
    out
        Folder for the results, made if missing; files of an earlier tour are overwritten.
    explorer
        Text of the explorer's page (`cli.explore.page`), which is written beside the report and linked; empty for none.
    threads
        CPU threads of the process in which the notebooks run.
    progress
        Whether to show a bar; None shows it on a terminal.

    Returns
    -------
    Written

    Raises
    ------
    OSError
        The folder cannot be made or written to.
    nbclient.exceptions.CellExecutionError
        A cell of a notebook failed.
    """
    out = Path(out)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    (out / DATA).unlink(missing_ok=True)  # NetCDF cannot be written over a file that is still open elsewhere
    begin = time.perf_counter()
    chapters = {
        name: opening(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4), chapter.until)
        for name, chapter in CHAPTERS.items()
    }
    _execute(chapters.values(), out, threads, progress)
    if explorer:
        (out / EXPLORER).write_text(explorer, encoding="utf-8")
    pages = {name: page(name, cells, out, explorer) for name, cells in chapters.items()}
    figures = list[Path]()
    for name, text in pages.items():
        for number, image in enumerate(re.findall(r'src="data:image/png;base64,(.*?)"', text), start=1):
            figures.append(out / "figures" / f"{name}_{number}.png")
            figures[-1].write_bytes(b64decode(image))
    (out / "report.html").write_text(_report(pages, out, time.perf_counter() - begin), encoding="utf-8")
    return Written(out / "report.html", [out / DATA], figures)


def _execute(chapters: Iterable[Sequence[NotebookNode]], folder: Path, threads: int, progress: bool | None) -> None:
    """Execute the cells of all chapters in one process, which imports what they share once."""
    notebook = nbformat.v4.new_notebook()
    for cells in chapters:
        notebook.cells += [nbformat.v4.new_code_cell(AFRESH), *(cell for cell in cells if cell.cell_type == "code")]
    notebook.cells.append(nbformat.v4.new_code_cell(SAVE))
    # without what would choose other data than that of the wheel, or another place for figures than the notebook
    environment = {name: x for name, x in os.environ.items() if name not in ("PROBTX_DATA", "MPLBACKEND")}
    # widgets would need a kernel; what a text says need not hold to the last digit on another machine
    environment |= {"OMP_NUM_THREADS": str(threads), "PROBTX_KEEP_OUTPUTS": "1", "PROBTX_CLAIMS": "show"}
    hidden = None if progress is None else not progress
    with tqdm(total=len(notebook.cells), desc="tour", unit="cell", disable=hidden) as bar:
        NotebookClient(
            notebook,
            timeout=600,
            coalesce_streams=True,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            extra_arguments=["--log-level=CRITICAL"],
            on_notebook_start=_interruptible,
            on_cell_complete=lambda **_: bar.update(),
        ).execute(env=environment)


def _interruptible(**_: object) -> None:
    """Make Ctrl-C a KeyboardInterrupt again; nbclient would stop the kernel and then stumble over its absence."""
    with suppress(NotImplementedError):  # on Windows it is one
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


def opening(notebook: NotebookNode, heading: str) -> list[NotebookNode]:
    """Return the cells up to a heading of the second level, without the outputs that are kept in them."""
    cells = list[NotebookNode]()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
        before, found, _ = f"\n{cell.source}".partition(f"\n## {heading}\n")
        if found:
            return [*cells, nbformat.v4.new_markdown_cell(before)]
        cells.append(cell)
    raise ValueError(f"no heading {heading!r}")


def page(name: str, chapter: Sequence[NotebookNode], out: Path, explorer: str = "") -> str:
    """Return a chapter as HTML: its text, and between texts the code that the notebook shows, what its cells have
    shown, the claims about it that were checked, and the rest of the code, folded; last, where to go on.
    """
    parts = list[str]()
    for kind, group in groupby(chapter, lambda cell: cell.cell_type):
        cells = list(group)
        if kind == "markdown":
            parts += [_prose(cell.source, out) for cell in cells]
            continue
        hidden = [HIDDEN in cell.metadata.get("tags", []) for cell in cells]
        parts += [_code(cell) for cell, folded in zip(cells, hidden, strict=True) if not folded]
        outputs = [output for cell in cells for output in cell.outputs]
        parts += [shown for output in outputs for shown in _shown(output)]
        if claims := dict.fromkeys(escape(output.data[CLAIM]) for output in outputs if CLAIM in output.get("data", {})):
            parts.append(f"<p class='checked'><b>Checked in this run:</b> {'; '.join(claims)}.</p>")
        if any(hidden):
            code = "".join(_code(cell) for cell, folded in zip(cells, hidden, strict=True) if folded)
            parts.append(f"<details class='code'><summary>Code of the figures and checks</summary>{code}</details>")
    parts.append(f'<div class="onward">{_onward(name, out, explorer)}</div>')
    return f'<section id="{name}">{"".join(parts)}</section>'


def _code(cell: NotebookNode) -> str:
    """Return the code of a cell, in colours."""
    return highlight(cell.source, PythonLexer(), CODE_STYLE).replace("<pre>", "<pre tabindex='0'>")


def _onward(name: str, out: Path, explorer: str) -> str:
    """Return where the reader of a chapter goes on: the notebook, views of the explorer, how-to pages."""
    chapter = CHAPTERS[name]
    whole = _file(NOTEBOOKS / f"{name}.ipynb", f"notebook {name[:2]}", out)
    parts = [f"The rest is in {whole}, from “{escape(chapter.until)}” on."]
    views = re.findall(
        r'\bid: "([\w-]+)",(?:\s*number: \d+,)?\s*title: "(.*?)".*?\bnotebook: "(\w+)"', explorer, re.DOTALL
    )
    if moved := [f'<a href="{EXPLORER}#{view}">{title}</a>' for view, title, of in views if of == name]:
        parts.append(f"Move it yourself: {', '.join(moved)}.")
    pages = [_file(path, _title(path), out) for path in (HOWTO / f"{page}.md" for page in chapter.howto)]
    parts.append(f"On data of your own: {', '.join(pages)}.")
    return "".join(f"<p>{part}</p>" for part in parts)


def _title(path: Path) -> str:
    """Return the title of a page in Markdown, or its name in the repository where the page is not here."""
    return (
        path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") if path.exists() else f"docs/howto/{path.name}"
    )


def _file(path: Path, text: str, out: Path) -> str:
    """Return a link to a file that is here; of another its text."""
    if not path.exists():
        return escape(text)
    return f'<a href="{escape(Path(os.path.relpath(path, out)).as_posix())}">{escape(text)}</a>'


def _prose(source: str, out: Path) -> str:
    """Return Markdown as HTML, its headings one level down, without the table of what a student needs."""
    text = re.sub(r"\n\| \| \|\n(\|.*\n)+", "", f"{source}\n")
    html = MarkdownWithMath(renderer=IPythonRenderer(escape=False, exclude_anchor_links=True)).render(text)
    html = re.sub(r"(?<=<h)\d(?=[ >])|(?<=</h)\d(?=>)", lambda level: str(int(level[0]) + 1), html)
    return re.sub(r'<a href="([^":#]*)(?:#.*?)?">(.*?)</a>', lambda link: _link(link[1], link[2], out), html)


def _link(target: str, text: str, out: Path) -> str:
    """Return a link from one notebook to another place: a chapter of the page, a file where it is here, or no link."""
    if Path(target).stem in CHAPTERS:
        return f'<a href="#{Path(target).stem}">{text}</a>'
    if target and (file := NOTEBOOKS / target).exists():
        return f'<a href="{escape(Path(os.path.relpath(file, out)).as_posix())}">{text}</a>'
    return text


def _shown(output: NotebookNode) -> Iterator[str]:
    """Yield what a cell printed or drew, as HTML."""
    if output.output_type == "stream" and output.name == "stdout":
        yield f"<pre class='printed' tabindex='0'>{escape(output.text)}</pre>"
    elif "image/png" in output.get("data", {}):
        alt = escape(output.metadata.get("image/png", {}).get("alt", ""))
        image = output.data["image/png"].replace("\n", "")
        yield f'<figure tabindex="0"><img alt="{alt}" src="data:image/png;base64,{image}"></figure>'


PACKAGES = ("probtx_pyro", "torch", "pyro-ppl", "arviz", "numpy", "scipy", "scikit-learn", "matplotlib")


def _report(pages: Mapping[str, str], out: Path, seconds: float) -> str:
    """Return the page of all chapters, as HTML that needs no other file."""
    titles = {name: re.search("<h2>(.*?)</h2>", text) for name, text in pages.items()}
    rows = [("date", date.today().isoformat()), ("run", f"{seconds:.0f} s"), ("Python", platform.python_version())]
    rows += [(name, version(name)) for name in PACKAGES]
    offline = "sphinx-mathjax-offline"
    mathjax = distribution(offline).locate_file(f"{offline}/static/mathjax/tex-svg-full.js")
    small = os.environ.get("PROBTX_SMOKE") == "1"
    return Template(Path(__file__).with_name("_page.html").read_text(encoding="utf-8")).substitute(
        code_style=CODE_STYLE.get_style_defs(".highlight"),
        dark_style=DARK_STYLE.get_style_defs(".highlight"),
        count=len(pages),
        syllabus=_file(HOWTO.parent / "course/syllabus.md", "syllabus", out),
        small="Small sizes (PROBTX_SMOKE=1): these numbers test the plumbing only." if small else "",
        contents="".join(f'<li><a href="#{name}">{title[1]}</a></li>' for name, title in titles.items() if title),
        chapters="".join(pages.values()),
        made="".join(f"<tr><th scope='row'>{name}</th><td>{value}</td></tr>" for name, value in rows),
        mathjax=Path(str(mathjax)).read_text(encoding="utf-8"),
    )


__all__ = ["CHAPTERS", "NOTEBOOKS", "Chapter", "Written", "run"]

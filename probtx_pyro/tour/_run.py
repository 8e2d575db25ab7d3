"""Run the chapters one after the other and write what they hand back."""

import base64
import os
import platform
import time
from collections.abc import Sequence
from datetime import date
from html import escape
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from matplotlib import pyplot
from tqdm.auto import tqdm

from probtx_pyro.tour._chapter import Chapter, Context, Picture

CHAPTERS = (
    "attention_is_a_posterior",
    "from_k_means_to_attention",
    "map_transformer",
    "adapting_keys",
    "one_click",
    "several_keys",
    "sentence_structure",
    "what_is_remembered",
    "diagnosing",
)


class Written(NamedTuple):
    """Files that the tour wrote.

    report: one HTML file that needs no other.
    data: NetCDF files of ArviZ data, in the order of the chapters.
    figures: PNG files in reading order.
    """

    report: Path
    data: list[Path]
    figures: list[Path]


def run(
    out: str | Path, *, seed: int, device: str = "cpu", progress: bool | None = True, smoke: bool | None = None
) -> Written:
    """Run the tour's chapters and write figures/*.png, tour.nc (adapted keys), posterior.nc (draws) and report.html.

    Parameters
    ----------
    out
        Folder for the results, made if missing; files of an earlier tour are overwritten.
    seed
        The only randomness; the same seed on the same device gives the same numbers.
    device
        Where the tensors live.
    progress
        Whether to show a bar; None shows it on a terminal.
    smoke
        Small sizes, to test the plumbing; None asks the environment variable PROBTX_SMOKE (1 is small).

    Returns
    -------
    Written

    Raises
    ------
    OSError
        The folder cannot be made or written to.
    """
    out = Path(out)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    smoke = os.environ.get("PROBTX_SMOKE") == "1" if smoke is None else smoke
    context = Context(seed, device, smoke)
    done, figures, data = list[tuple[Chapter, float]](), list[Path](), list[Path]()
    for name in tqdm(CHAPTERS, desc="tour", unit="chapter", disable=None if progress is None else not progress):
        start = time.perf_counter()
        chapter = import_module(f"probtx_pyro.tour._chapters.{name}").chapter(context)
        done.append((chapter, time.perf_counter() - start))
        for picture in chapter.pictures:
            figures.append(out / "figures" / f"{len(done)}_{picture.name}.png")
            picture.figure.savefig(figures[-1], dpi=130)
            pyplot.close(picture.figure)
        for file, found in chapter.inference_data.items():
            data.append(out / f"{file}.nc")
            data[-1].unlink(missing_ok=True)  # NetCDF cannot be written over a file that is still open elsewhere
            found.to_netcdf(str(data[-1]))
    (out / "report.html").write_text(report(done, figures, context), encoding="utf-8")
    return Written(out / "report.html", data, figures)


PACKAGES = ("probtx_pyro", "torch", "pyro-ppl", "arviz", "numpy", "scipy", "scikit-learn", "matplotlib")

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f6f5f2; color: #222; font: 17px/1.6 Georgia, 'Times New Roman', serif; }
main { max-width: 880px; margin: 0 auto; padding: 2.5rem 2rem 4rem; background: #fff; }
h1 { font-size: 2.1rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.55rem; margin: 3.2rem 0 .2rem; padding-top: 1.2rem; border-top: 3px solid #0072B2; }
.question { font-style: italic; color: #0072B2; font-size: 1.15rem; margin: 0 0 1rem; }
.lead { color: #555; }
nav ol { padding-left: 1.3rem; } nav a { color: #0072B2; text-decoration: none; }
figure { margin: 2rem 0 .6rem; } figure img { max-width: 100%; height: auto; display: block; margin: 0 auto; }
figcaption { color: #444; font-size: .95rem; margin-top: .5rem; }
table { border-collapse: collapse; width: 100%; font: 13.5px/1.45 system-ui, 'DejaVu Sans', sans-serif; margin: .6rem 0 1.6rem; }
th { text-align: left; font-weight: 600; border-bottom: 1.5px solid #222; padding: .3rem .6rem .3rem 0; }
td { border-bottom: 1px solid #e2e0da; padding: .3rem .6rem .3rem 0; vertical-align: top; }
td.value { font-family: ui-monospace, 'DejaVu Sans Mono', monospace; white-space: nowrap; text-align: right; padding-right: 1.2rem; }
td.how { color: #666; }
footer { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
@media print { body { background: #fff; } h2 { break-before: page; } figure, table { break-inside: avoid; } }
"""


def report(chapters: Sequence[tuple[Chapter, float]], figures: Sequence[Path], context: Context) -> str:
    """Write the page as text.

    Parameters
    ----------
    chapters
        Each with the seconds it took.
    figures
        Image files of all pictures, in order.
    context
        For the seed, the device and whether the sizes are small.

    Returns
    -------
    str
        HTML that needs no other file.
    """
    files, sections, entries = iter(figures), [], []
    for number, (chapter, _) in enumerate(chapters, start=1):
        entries.append(f'<li><a href="#chapter-{number}">{escape(chapter.title)}</a>: {escape(chapter.question)}</li>')
        text = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in chapter.text)
        pictures = "".join(_picture(picture, next(files)) for picture in chapter.pictures)
        sections.append(
            f'<section id="chapter-{number}"><h2>{number}. {escape(chapter.title)}</h2>'
            f'<p class="question">{escape(chapter.question)}</p>{text}{pictures}</section>'
        )
    small = " Small sizes (PROBTX_SMOKE=1): these numbers test the plumbing only." if context.smoke else ""
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A tour of probtx_pyro</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head><body><main>'
        "<h1>Attention as a Pyro program</h1>"
        '<p class="lead">A tour of probtx_pyro on real data. Every number below was computed in the run that wrote this page, and '
        f"each table says how.{small}</p><nav><ol>{''.join(entries)}</ol></nav>{''.join(sections)}"
        f"{_colophon(chapters, context)}</main></body></html>\n"
    )


def _picture(picture: Picture, file: Path) -> str:
    image = base64.b64encode(file.read_bytes()).decode("ascii")
    rows = "".join(
        f'<tr><td>{escape(n.quantity)}</td><td class="value">{_value(n.value)}</td><td class="how">{escape(n.how)}</td></tr>'
        for n in picture.numbers
    )
    width = round(96 * picture.figure.get_size_inches()[0])  # CSS pixels of an inch
    return (
        f'<figure><img width="{width}" src="data:image/png;base64,{image}" alt="{escape(picture.caption, quote=True)}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
        f"<table><thead><tr><th>quantity</th><th>value</th><th>how</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _value(x: float) -> str:
    """Write four significant digits, and whole numbers as they are.

    >>> _value(12.0), _value(0.123456), _value(-1.5e-12)
    ('12', '0.1235', '−1.5e−12')
    """
    text = str(int(x)) if float(x).is_integer() and abs(x) < 1e6 else f"{x:.4g}"
    return text.replace("-", "−")


def _colophon(chapters: Sequence[tuple[Chapter, float]], context: Context) -> str:
    rows = [("date", date.today().isoformat()), ("seed", str(context.seed)), ("device", context.device)]
    rows += [("Python", platform.python_version()), *((name, version(name)) for name in PACKAGES)]
    rows += [(f"chapter {i}", f"{seconds:.1f} s") for i, (_, seconds) in enumerate(chapters, start=1)]
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<footer><p>How this page was made</p><table><tbody>{cells}</tbody></table></footer>"

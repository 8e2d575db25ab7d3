"""The explorer, in your browser: nine views of attention as a posterior, to drag and slide.

With a FILE that models.write_explorer_json wrote, the view for it opens with your own mixture or dependency CRF:

  mixture = models.GaussianMixture(keys, values, 1.0, 9.0)
  models.write_explorer_json("mixture.json", mixture, query)

  probtx explore mixture.json

The page is one file that asks nothing of the network. It is written to --out (- is standard output), or to a temporary
file that stays, since the browser reads it after the command has ended. A browser that may not read the folder of
temporary files (a snap) needs --out in your own.
"""

import argparse
import json
import sys
import tempfile
import webbrowser
from pathlib import Path

from probtx_pyro.cli import _options as options

SUMMARY = "an interactive page: attention as a posterior, in nine views"
PAGE = Path(__file__).with_name("_explorer.html")
VIEWS = ("posterior", "keys-adapt", "mean-field")  # that take a model
BESIDE = ' data-notebooks="../../notebooks/" data-suffix=".ipynb"'  # where notebooks lie in the repository, and not beside this page
BEFORE = "<noscript>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx explore``."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="JSON that models.write_explorer_json wrote")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="where to write the page (default: a temporary file)")
    parser.add_argument("--no-browser", action="store_true", help="write the page and print its name, open no browser")


def page(own: dict | None = None) -> str:
    """Return the text of the explorer's page.

    Parameters
    ----------
    own
        A view and its state, as `read` returns them; None for the page as it is.

    Returns
    -------
    str
    """
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BESIDE) == text.count(BEFORE) == 1
    text = text.replace(BESIDE, "")
    if own is None:
        return text
    safe = json.dumps(own).replace("<", "\\u003c")  # no name in it can end the element
    return text.replace(BEFORE, f'<script type="application/json" id="own">{safe}</script>\n{BEFORE}')


def read(path: Path) -> dict:
    """Return the view and the state of a file that `models.write_explorer_json` wrote.

    Raises
    ------
    ValueError
        Another file.
    """
    try:
        own = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise ValueError(f"{path} is not JSON ({error}); write it with models.write_explorer_json") from None
    if not isinstance(own, dict) or own.get("view") not in VIEWS or not isinstance(own.get("state"), dict):
        raise ValueError(f"{path} holds no model for the explorer; write it with models.write_explorer_json")
    return own


def run(arguments: argparse.Namespace) -> None:
    """Write the page, say where, and open it."""
    out = options.out_file(arguments.out, *filter(None, [arguments.file]))
    text = page(None if arguments.file is None else read(arguments.file))
    if arguments.out is None:
        with tempfile.NamedTemporaryFile(
            "w", prefix="probtx_explore_", suffix=".html", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        written = Path(file.name)
    elif out is None:
        sys.stdout.write(text)
        return
    else:
        from probtx_pyro.data.files import write_bytes

        write_bytes(out, text.encode())
        written = out
    print(written.resolve(), flush=True)
    if arguments.no_browser:
        return
    if not webbrowser.open(written.resolve().as_uri()):
        options.warn(f"no browser was found; open {written.resolve()} in one")

"""Pictures of the how-to pages: each page's own doctest, run when the site is built, up to a remark that describes what it drew.

``<!-- PICTURE a description -->`` in a page of ``docs/howto`` becomes the figure that the code above it left open, and
``<!-- VIEW name -->`` a view of the explorer with the file whose path is in that variable.
"""

import doctest
import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from lessons import address

MARK = re.compile(r"^<!-- (PICTURE|VIEW) (.+?) -->$", re.M | re.S)


def globals_after(text: str) -> dict:
    """The variables that the doctest of a page leaves."""
    import pyro
    import torch

    pyro.clear_param_store()
    torch.manual_seed(0)
    variables: dict = {}
    with redirect_stdout(StringIO()):
        for example in doctest.DocTestParser().get_examples(text):
            if example.exc_msg is None:
                exec(compile(example.source, "<how-to>", "exec"), variables)
    return variables


def picture(text: str, file: Path) -> None:
    """Write the figure that the doctest of a page leaves open."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")
    globals_after(text)
    if len(pyplot.get_fignums()) != 1:
        raise ValueError(f"{file.stem} leaves {len(pyplot.get_fignums())} figures open and not one")
    file.parent.mkdir(parents=True, exist_ok=True)
    pyplot.gcf().savefig(file, dpi=110, bbox_inches="tight")
    pyplot.close("all")


def described(text: str) -> str | None:
    """The description of a page's picture, where it has one."""
    found = MARK.search(text)
    return " ".join(found[2].split()) if found and found[1] == "PICTURE" else None


def shown(name: str, text: str, folder: Path) -> str:
    """The text of a page with its picture, written into the folder, or its view."""
    found = MARK.search(text)
    if found is None:
        return text
    if found[1] == "PICTURE":
        picture(text[: found.start()], folder / f"{name}.png")
        made = f"![{described(text)}](pictures/{name}.png)"
    else:
        own = json.loads(Path(globals_after(text[: found.start()])[found[2]]).read_text())
        source = f"../../explorer/index.html?view{address(own['view'], own['state'])}"
        made = f'<iframe class="explorer" loading="lazy" src="{source}" title="The explorer with this file"></iframe>'
    return text[: found.start()] + made + text[found.end() :]

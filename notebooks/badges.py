"""Give every notebook links that open it in Colab and Binder.

``python notebooks/badges.py OWNER/NAME`` writes one line below the title of each notebook, for the branch ``main`` of that repository on
GitHub, in the place of such a line if there is one. The links work from the day that the repository is public.
"""

import re
import sys
from pathlib import Path

import nbformat

FOLDER = Path(__file__).resolve().parent
LINE = re.compile(r"\n\n\[Open in Colab\].*")


def line(repository: str, name: str) -> str:
    """The line of links of one notebook."""
    colab = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name}"
    binder = f"https://mybinder.org/v2/gh/{repository}/main?labpath=notebooks/{name}"
    install = f'%pip install "probtx_pyro[tour,notebooks] @ git+https://github.com/{repository}"'
    return f"[Open in Colab]({colab}) (there, run `{install}` first) · [Open in Binder]({binder})"


def with_badges(notebook: nbformat.NotebookNode, repository: str, name: str) -> nbformat.NotebookNode:
    """The notebook with the line below its title."""
    title, rest = LINE.sub("", notebook.cells[0].source, count=1).split("\n", 1)
    notebook.cells[0].source = f"{title}\n\n{line(repository, name)}\n{rest}"
    return notebook


def main(arguments: list[str]) -> int:
    """Rewrite all notebooks of this folder."""
    if len(arguments) != 1 or not re.fullmatch(r"[\w.-]+/[\w.-]+", arguments[0]):
        print("usage: python notebooks/badges.py OWNER/NAME, of the repository on GitHub", file=sys.stderr)
        return 2
    for path in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(with_badges(nbformat.read(path, as_version=4), arguments[0], path.name), path)
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

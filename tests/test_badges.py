"""The line of links that opens a notebook elsewhere."""

import copy

import nbformat
import pytest
from notebook_files import FIRST, load

badges = load("badges")


def test_one_line_comes_below_the_title_and_replaces_the_one_before():
    notebook = nbformat.read(FIRST, as_version=4)
    once = badges.with_badges(copy.deepcopy(notebook), "someone/elsewhere", FIRST.name)
    twice = badges.with_badges(copy.deepcopy(once), "us/here", FIRST.name)
    was, now = (nb.cells[0].source.splitlines() for nb in (notebook, twice))
    assert now[:2] == [was[0], ""] and now[3:] == was[1:]
    assert "github/us/here/blob/main/notebooks/00_mix" in now[2] and "elsewhere" not in now[2]
    assert twice.cells[1:] == notebook.cells[1:]


@pytest.mark.parametrize("arguments", [[], ["name"], ["https://github.com/us/here"], ["us/here", "more"]])
def test_anything_but_a_repository_is_refused(arguments, capsys):
    assert badges.main(arguments) == 2 and "OWNER/NAME" in capsys.readouterr().err

"""The page of formulations by verbs says what each call does."""

import re

import pytest
from what_serves_what import PAGE, ROWS, VERBS, page

from probtx_pyro import models


@pytest.mark.slow
def test_every_cell_of_the_page_is_what_the_call_says():
    assert page() == PAGE.read_text(), "run python tests/what_serves_what.py"


def test_the_page_has_every_formulation_and_verb_and_every_refusal():
    lines = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert [cell.strip("`| ") for cell in lines[0][1:]] == [*VERBS]
    assert [line[0].strip("`| ") for line in lines[2:]] == [*ROWS]
    kinds = {x for x in vars(models).values() if isinstance(x, type) and issubclass(x, models.Formulation)}
    named = {re.split(r"[.(,]", name)[0] for name in ROWS}
    assert {x.__name__ for x in kinds} - {"Formulation", "Mixture"} == named
    said = {int(x) for x in re.findall(r"no, (\d+)\]", PAGE.read_text())}
    numbers = [int(x) for x in re.findall(r"^(\d+)\. `\w+Error`: \S", PAGE.read_text(), flags=re.M)]
    assert numbers == [*range(1, len(said) + 1)] and said == {*numbers}

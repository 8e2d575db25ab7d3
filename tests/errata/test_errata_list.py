"""Every erratum of ``docs/errata.md`` has a test here, and stands in the notebook on the errata."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errata.md").read_text()
NUMBERS = {*map(str, range(1, 25)), *"abdehikl"}
REMARKS = set("cfgj")
ELSEWHERE = {"c": "inference/test_em.py"}


def covered():
    """Numbers and letters in the names of the tests of this folder: ``test_12_and_22_...`` has both."""
    names = [
        name for path in Path(__file__).parent.glob("*.py") for name in re.findall(r"def test_(\w+)", path.read_text())
    ]
    heads = [re.match(r"(\d+|[a-l])(?:_and_(\d+))?_", name) for name in names]
    return {number for head in heads if head for number in head.groups() if number}


def test_the_page_lists_them_all():
    assert set(re.findall(r"^\| (\d+|[a-l]) \|", PAGE, flags=re.M)) == NUMBERS
    assert set(re.findall(r"^- \*\*([a-l])\. ", PAGE, flags=re.M)) == REMARKS


def test_each_has_a_test():
    assert covered() | set(ELSEWHERE) >= NUMBERS | REMARKS
    for letter, path in ELSEWHERE.items():
        named = re.search(rf"\*\*{letter}\. .*?`(test_\w+)` in `tests/{path}`", PAGE, flags=re.S)
        assert f"def {named[1]}(" in (ROOT / "tests" / path).read_text()


def test_the_notebook_shows_or_lists_each():
    cells = json.loads((ROOT / "notebooks" / "20_errata.ipynb").read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    cases, rest = text.split("\n## 5. The others\n")
    shown = set(re.findall(r"^\| \*\*(\d+)\*\*", cases, flags=re.M)) | set(
        re.findall(r"^## .*: erratum (\d+)$", cases, flags=re.M)
    )
    listed = set(re.findall(r"\[(\d+|[a-l])\]\(\.\./docs/errata\.md\)", rest))
    assert shown == {"1", "10", "11", "16", "23", "24"}
    assert shown | listed == NUMBERS | REMARKS and not shown & listed

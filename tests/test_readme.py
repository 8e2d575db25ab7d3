"""The README's map from equations to functions is true, and its links lead somewhere."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
ROWS = re.findall(r"^\| ((?:PT|MGK|MLK) [^|]+?) \| [^|]+ \| `([\w.]+)` \|$", TEXT, flags=re.M)
CITATIONS = {
    "PT": r"(?:PT )?eq(?:uation)?s?\.? (\d[\d, \-]*)|PT (?:eq\. )?(\d[\d, \-]*)",
    "MLK": r"MLK (?:eq\. )?(\d[\d, \-]*)()",
    "MGK": r"MGK (?:eq\. )?(\d[\d, \-]*)()",
}


def cited(dotted):
    """What a function, the class it is a method of, and the modules these live in say of themselves."""
    head, *rest = dotted.split(".")
    steps = [importlib.import_module(f"probtx_pyro.{head}")]
    for name in rest:
        steps.append(getattr(steps[-1], name))
    return "\n".join(f"{inspect.getdoc(step)}\n{inspect.getmodule(step).__doc__}" for step in steps[1:])


def numbers(text):
    """Equation numbers in a citation, '14-15' or '29, 30', and steps without a number, 'M-step'."""
    out = set(re.findall(r"[EM]-step", text))
    for low, high in re.findall(r"(\d+)(?:-(\d+))?", text):
        out |= set(range(int(low), int(high or low) + 1))
    return out


def missing(row):
    """Equations of a row that its function's documentation does not name."""
    equations, dotted = row
    text = cited(dotted)
    claims = re.findall(CITATIONS[equations.split()[0]], text)
    named = set(re.findall(r"[EM]-step", text)).union(*(numbers(a or b) for a, b in claims))
    return numbers(equations) - named


def test_the_index_is_there():
    assert len(ROWS) >= 7


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_each_function_names_its_equations(row):
    assert missing(row) == set()


def test_a_wrong_row_is_seen():
    assert missing(("PT 33", "models.GaussianMixture.attention")) == {33}
    assert missing(("MGK 14, M-step", "models.GaussianMixture.to")) == {14, "M-step"}
    with pytest.raises(AttributeError):
        missing(("PT 5", "models.GaussianMixture.no_such_method"))


def test_the_first_code_is_short_and_makes_a_posterior():
    first = re.search(r"```python\n(.*?)```", TEXT, flags=re.S)
    lines = [line for line in first[1].splitlines() if line.startswith((">>>", "..."))]
    assert 8 <= len(lines) <= 12 and "models.bayesian" in first[1] and "quantile" in first[1]
    assert TEXT.index("![") < first.start() < TEXT.index("\n## ")


def test_only_public_names_are_imported():
    assert re.findall(r"import .*\b_\w|from probtx_pyro\.\w+ import|import probtx_pyro\.\w+", TEXT) == []


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", TEXT))))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()

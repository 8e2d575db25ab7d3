"""The explorer's functions for views 6, 8, 9 and 14: cases find mistakes and are the library's; draws beside exact answers."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest
from explorer.cases import EXPLORER, HERE, NODE, SOURCE, load
from explorer.test_cases import node, numbers, run

CASES, MODULES = EXPLORER / "cases_of_inference.json", SOURCE / "math"
needs_node = pytest.mark.skipif(NODE is None, reason="there is no node on the path: apt-get install nodejs")
pytestmark = pytest.mark.slow  # Node is a process of its own


@needs_node
@pytest.mark.parametrize(
    ("module", "right", "mistaken", "functions"),
    [
        ("adapt", "keyStrength * m + precision * pull", "keyStrength + precision * pull", {"adapt", "keyConditional"}),
        ("adapt", "(shares[s] / total) * own[s]", "own[s] / count", {"average"}),
        ("crf", "heads[c][j][i + first] * back[b][a]", "0 * back[b][a]", {"summary"}),
        ("diagnostics", "rank - 0.375", "rank - 0.5", {"rhat", "essBulk"}),
        ("diagnostics", "p >= tail", "p > 2 * tail", {"simultaneousBand"}),
        ("funnel", "slope[d]);\n  const there", "slope[d] * 1.001);\n  const there", {"trajectory"}),
        ("funnel", "level + logWidened(t)", "level + logWidened(t) / 2", {"trajectory"}),
        (
            "funnel",
            "SHAPE * t - RATE * Math.exp(t) - logWidened(t)",
            "SHAPE * t - RATE * Math.exp(t)",
            {"above", "scalesOf"},
        ),
    ],
)
def test_the_cases_find_a_mistake(tmp_path, module, right, mistaken, functions):
    for file in MODULES.glob("*.js"):
        text = file.read_text()
        if file.stem == module:
            assert text.count(right) == 1
            text = text.replace(right, mistaken)
        (tmp_path / file.name).write_text(text)
    assert functions <= {name.split(":")[0].split(".")[1] for name in run(CASES, tmp_path)}


def test_the_file_holds_what_the_library_says():
    """Regenerated within 1e-9: sums over grids of a hundred thousand points may differ that much between machines' libraries."""
    kept, made = json.loads(CASES.read_text()), json.loads(json.dumps(load("cases_of_inference").cases()))
    assert [(x["function"], x["name"]) for x in kept] == [(x["function"], x["name"]) for x in made]
    assert set(Counter(x["module"] for x in kept)) == {"adapt", "crf", "diagnostics", "funnel"}
    for x, y in zip(kept, made, strict=True):
        for part in ("arguments", "expected"):
            assert numbers(x[part]) == pytest.approx(numbers(y[part]), rel=1e-9, abs=1e-9), x["name"]


@pytest.fixture(scope="module")
def drawn():
    return node(HERE / "draws.mjs", MODULES)


@needs_node
def test_draws_agree_with_exact_answers(drawn):
    """Means of independent chains within 5 of their standard errors: of 20 comparisons one in 80 000 runs fails by chance."""
    assert len(drawn["rows"]) >= 15
    for row in drawn["rows"]:
        assert 0 < row["error"] < 0.1 * max(abs(row["expected"]), 0.1), row
        assert abs(row["found"] - row["expected"]) < 5 * row["error"], row


@needs_node
def test_ranks_tell_samplers_with_a_bug_from_the_one_without(drawn):
    p = drawn["p"]  # of the first key and of the log likelihood
    assert min(p["none"]) > 1e-3  # of a right sampler below that once in 500 seeds
    for bug in ("twice", "offset"):
        assert p[bug][0] < 1e-4, bug
    assert p["ignore"][0] > 1e-3  # draws from the prior have uniform ranks: the key alone cannot tell
    assert p["ignore"][1] < 1e-4


@needs_node
def test_nuts_in_the_funnel_meets_the_librarys_divergences(tmp_path):
    """Means over 64 chains within 5 of their standard errors, from chains that share nothing: of six one in 300 000 runs fails by chance.

    Errors are those of chains, larger than binomial ones, for draws of a chain depend on each other.
    """
    kept = json.loads((EXPLORER / "funnel_draws.json").read_text())
    mistaken = tmp_path / "math"
    shutil.copytree(MODULES, mistaken)
    text = (MODULES / "funnel.js").read_text()
    right = "return turns(both) ? null : both;"
    assert text.count(right) == 1
    (mistaken / "funnel.js").write_text(text.replace(right, "return both;"))
    apart = {folder: [] for folder in (MODULES, mistaken)}
    for folder, all_apart in apart.items():
        for library, page in zip(
            kept["runs"], node(HERE / "funnel_draws.mjs", folder, EXPLORER / "funnel_draws.json"), strict=True
        ):
            for name, found in page.items():
                x, y = np.array(found), np.array(library[name])
                error = ((x.var(ddof=1) + y.var(ddof=1)) / len(x)) ** 0.5
                assert len(x) == len(y) == kept["num_chains"] and error > 0
                all_apart.append(abs(x.mean() - y.mean()) / error)
    assert max(apart[MODULES]) < 5 < max(apart[mistaken]), apart

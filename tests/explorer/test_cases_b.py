"""The explorer's functions for views 6, 8 and 9 in Node: the library's cases to 1e-10, and draws beside exact answers."""

import importlib.util
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXPLORER = HERE.parents[1] / "site" / "explorer"
MODULES, CASES = EXPLORER / "src" / "math", EXPLORER / "cases_b.json"
NODE = shutil.which("node")
TOLERANCE = 1e-10  # the contract of the explorer; relative where a number exceeds 1

needs_node = pytest.mark.skipif(NODE is None, reason="there is no node on the path: apt-get install nodejs")
pytestmark = pytest.mark.slow  # Node is a process of its own


def run(script, *words):
    done = subprocess.run([NODE, str(HERE / script), *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def wrong(modules=MODULES):
    found = run("run_cases_b.mjs", modules, CASES)
    return found, [x for x in found if x["error"] == "missing" or x["error"] > TOLERANCE]


@needs_node
def test_the_functions_give_the_librarys_numbers():
    found, failed = wrong()
    assert len(found) >= 70
    assert not failed


@needs_node
@pytest.mark.parametrize(
    ("module", "right", "mistaken", "functions"),
    [
        ("adapt", "keyStrength * m + precision * pull", "keyStrength + precision * pull", {"adapt", "keyConditional"}),
        ("adapt", "(shares[s] / total) * own[s]", "own[s] / count", {"average"}),
        ("crf", "heads[c][j][i + first] * back[b][a]", "0 * back[b][a]", {"summary"}),
        ("diagnostics", "rank - 0.375", "rank - 0.5", {"rhat", "essBulk"}),
        ("diagnostics", "p >= tail", "p > 2 * tail", {"simultaneousBand"}),
    ],
)
def test_the_cases_find_a_mistake(tmp_path, module, right, mistaken, functions):
    for file in MODULES.glob("*.js"):
        text = file.read_text()
        if file.stem == module:
            assert text.count(right) == 1
            text = text.replace(right, mistaken)
        (tmp_path / file.name).write_text(text)
    _, failed = wrong(tmp_path)
    assert functions <= {x["case"].split(":")[0].split(".")[1] for x in failed}


def test_the_file_holds_what_the_library_says():
    """Regenerated within 1e-9: sums over grids of a hundred thousand points may differ that much between machines' libraries."""
    spec = importlib.util.spec_from_file_location("cases_b", EXPLORER / "cases_b.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kept, made = json.loads(CASES.read_text()), json.loads(json.dumps(module.cases()))
    assert [(x["function"], x["name"]) for x in kept] == [(x["function"], x["name"]) for x in made]
    assert set(Counter(x["module"] for x in kept)) == {"adapt", "crf", "diagnostics"}
    for x, y in zip(kept, made, strict=True):
        for part in ("arguments", "expected"):
            assert numbers(x[part]) == pytest.approx(numbers(y[part]), rel=1e-9, abs=1e-9), x["name"]


def numbers(x):
    if isinstance(x, dict):
        return [n for key in sorted(x) for n in numbers(x[key])]
    if isinstance(x, list):
        return [n for y in x for n in numbers(y)]
    return [x] if isinstance(x, int | float) else []


@pytest.fixture(scope="module")
def drawn():
    return run("draws_b.mjs", MODULES)


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

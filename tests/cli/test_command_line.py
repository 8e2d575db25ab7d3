import subprocess
import sys

import pytest

from probtx_pyro import cli


def _python(*words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True)


@pytest.mark.slow
def test_help_teaches_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom probtx_pyro import cli\ntry:\n    cli.main(['tour', '--help'])\nexcept SystemExit as done:\n"
        "    print(done.code, [m for m in ('torch', 'pyro', 'matplotlib', 'arviz', 'sklearn') if m in sys.modules])"
    )
    done = _python("-c", code)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert "--out DIR" in done.stdout and "scikit-learn" in done.stdout


@pytest.mark.slow
def test_the_module_is_the_command_and_knows_its_version():
    done = _python("-m", "probtx_pyro", "--version")
    assert done.returncode == 0 and done.stdout.startswith("probtx 0.")


def test_top_level_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["--help"])
    assert done.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)


@pytest.mark.parametrize(
    "words", [[], ["turo"], ["tour"], ["tour", "--out", "x", "--seed", "-1"], ["tour", "--out", "x", "--seed", "a"]]
)
def test_wrong_usage_is_exit_code_two(words, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(words)
    assert done.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["warp", "cuda:99"])
def test_a_device_that_is_not_there_is_one_line(device, tmp_path, capsys):
    assert cli.main(["tour", "--out", str(tmp_path / "t"), "--device", device]) == 2
    error = capsys.readouterr().err
    assert error == f"probtx: error: --device {device}: this torch cannot use it here; try --device cpu\n"
    assert not (tmp_path / "t").exists()


def test_out_that_is_a_file_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["tour", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError("bad\n  input"), 2), (OSError("disk full"), 2), (KeyboardInterrupt(), 130)]
)
def test_errors_of_a_command_are_one_line(error, code, tmp_path, capsys, monkeypatch):
    from probtx_pyro import tour

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(tour, "run", fail)
    assert cli.main(["tour", "--out", str(tmp_path)]) == code
    shown = capsys.readouterr().err
    assert shown.startswith("probtx: ") and shown.count("\n") == 1


def test_a_fault_of_ours_is_not_hidden(tmp_path, monkeypatch):
    from probtx_pyro import tour

    monkeypatch.setattr(tour, "run", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["tour", "--out", str(tmp_path)])

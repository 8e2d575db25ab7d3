import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch

from probtx_pyro import cli, tour
from probtx_pyro._lazy import install_advice
from probtx_pyro.cli import _options
from probtx_pyro.cli.train import TASKS

WRITTEN = tour.Written(Path("tour_output/report.html"), [], [])


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
    ("words", "message"),
    [
        (["turo"], "invalid choice: 'turo'"),
        (["segment"], "one of the arguments IMAGE --example is required"),
        (["train", "lm", "--seed", "-1"], "argument --seed: '-1' is not a seed"),
        (["train", "lm", "--seed", "a"], "argument --seed: 'a' is not a seed"),
        (["tour", "--threads", "0"], "argument --threads: '0' is not a whole number from 1"),
        (["tour", "--threads", "\u0663"], "argument --threads: '\u0663' is not a whole number from 1"),
        *(
            ([*words, number], f"argument {words[-1]}: '{number}' is not a number")
            for words in (
                ["train", "lm", "--lr"],
                ["classify", "--false-alarm"],
                ["generate", "--top-p"],
                ["train", "tagger", "--head-step"],
            )
            for number in ("1_0", "\uff11", "a")
        ),
        (["train", "lm", "--seed", "\uff11"], "argument --seed: '\uff11' is not a seed"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_two(words, message, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(words)
    assert done.value.code == 2
    error = capsys.readouterr().err
    assert "error:" in error and message in error and "--help" in error and error.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["train"], ["adapt"]])
def test_a_bare_command_that_has_commands_is_wrong_usage_and_prints_its_help(words, capsys):
    assert cli.main(words) == 2
    bare = capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    assert (bare.out, bare.err) == ("", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 10_000])
def test_a_reader_that_stops_reading_is_no_error(lines):
    code = (
        "import sys\nfrom probtx_pyro import cli\nfrom probtx_pyro.cli import segment\n"
        f"segment.run = lambda _: print('one line\\n' * {lines})\n"
        "sys.exit(cli.main(['segment', 'a.png', '--out', 'b.png']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        done.stdout.close()
        assert (done.stderr.read(), done.wait()) == (b"", 141)


def test_every_command_that_computes_with_several_threads_has_help_on_one(capsys):
    commands = [
        ["tour"],
        ["classify"],
        ["parse"],
        ["adapt", "tagger"],
        *(["train", task] for task in TASKS),
    ]
    for words in commands:
        with pytest.raises(SystemExit):
            cli.main([*words, "--help"])
        assert "--threads N" in (shown := capsys.readouterr().out) and "Give 1 when" in " ".join(shown.split()), words


@pytest.mark.parametrize(
    ("words", "module", "message"),
    [
        (
            "tour",
            "sklearn",
            "the tour needs scikit-learn, which is not installed: pip install -e '.[tour]' in the folder",
        ),
        (
            "tour",
            "nbconvert",
            "the tour needs nbconvert, which is not installed: pip install -e '.[tour]' in the folder",
        ),
        (
            "classify a.csv b.csv --label x --out out",
            "sklearn",
            "MemoryClassifier needs scikit-learn, which is not installed: pip install -e '.[tour]'",
        ),
        *(
            (
                f"train {task} --out out",
                "lightning",
                "training needs Lightning, which is not installed: pip install -e '.[train]'",
            )
            for task in TASKS
        ),
        ("train translation --out out", "tokenizers", "training needs tokenizers, which is not installed"),
        ("train translation --out out", "sacrebleu", "training needs sacreBLEU, which is not installed"),
    ],
)
def test_a_missing_extra_stops_before_anything_is_begun(words, module, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith("probtx_pyro.apps.memory._classifier")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["tour"], ["classify"], *(["train", task] for task in ("lm", "translation"))])
def test_help_names_the_extra_that_a_command_needs(words, capsys):
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    extra = "train" if words[0] == "train" else "tour"
    assert f"pip install -e '.[{extra}]' in the folder of the repository" in " ".join(capsys.readouterr().out.split())


def test_the_advice_for_an_extra_names_its_packages_as_they_are_declared():
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    for extra in ("tour", "page", "train"):
        packages = [each.strip("'") for each in re.findall("'[^']+'", install_advice(extra).partition(", or ")[2])]
        assert sorted(packages) == sorted(extras[extra])


def test_no_advice_asks_the_index_for_this_package():
    folder = Path(cli.__file__).parents[1]
    assert not [
        path
        for path in folder.rglob("*")
        if path.suffix in (".py", ".html") and "install 'probtx_pyro" in path.read_text()
    ]


@pytest.mark.parametrize(("words", "asked"), [([], None), (["--no-progress"], False)])
def test_the_bar_of_a_tour_is_for_terminals(words, asked, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(tour, "run", lambda *_, progress, **__: seen.append(progress) or WRITTEN)
    assert cli.main(["tour", "--out", str(tmp_path), *words]) == 0
    assert seen == [asked]


def test_out_that_is_standard_output_is_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tour", "--out", "-"]) == 2
    assert "--out - is standard output, and several files are written" in capsys.readouterr().err


@pytest.mark.parametrize("number", [1, 3])
def test_threads_are_those_asked_for_and_set_back(number, tmp_path, monkeypatch):
    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr(
        tour, "run", lambda *_, threads, **__: seen.append((threads, torch.get_num_threads())) or WRITTEN
    )
    assert cli.main(["tour", "--out", str(tmp_path), "--threads", str(number)]) == 0
    assert cli.main(["tour", "--out", str(tmp_path)]) == 0
    assert seen == [(number, number), (1, before)] and torch.get_num_threads() == before


def test_a_tour_without_out_prints_its_folder_and_what_comes_next(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tour, "run", lambda out, page, **_: asked.append(out) or WRITTEN)
    assert cli.main(["tour"]) == 0
    shown = capsys.readouterr()
    assert asked == [Path("tour_output")]
    assert shown.err == "probtx: the results go to tour_output; --out DIR chooses another folder\n"
    assert "Report: tour_output/report.html\n" in shown.out and "Next: " in shown.out and "probtx segment" in shown.out


def test_names_of_the_library_become_options_and_english_words_stay():
    names = {"num_heads": "--heads", "batch": "--batch", "context": "--context", "lr": "--lr"}
    for message, expected in (
        ("num_heads 3 and num_heads_4, x.num_heads", "--heads 3 and num_heads_4, x.num_heads"),
        ("batch 5 is larger than a batch", "--batch 5 is larger than a batch"),
        ("give at most 8 (context); a context is short", "give at most 8 (--context); a context is short"),
        ("not finite; lower lr", "not finite; lower --lr"),
        ("runs/lr/num_heads is a file", "runs/lr/num_heads is a file"),
    ):
        assert _options.with_options(message, names) == expected


@pytest.mark.parametrize("device", ["warp", "cuda:99"])
def test_a_device_that_is_not_there_is_one_line(device, tmp_path, capsys):
    assert cli.main(["train", "lm", "--out", str(tmp_path / "t"), "--device", device]) == 2
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
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(tour, "run", fail)
    assert cli.main(["tour", "--out", str(tmp_path)]) == code
    shown = capsys.readouterr().err
    assert shown.startswith("probtx: ") and shown.count("\n") == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [(lambda: 1 / 0, ZeroDivisionError), (lambda: import_module("probtx_pyro.warp"), ModuleNotFoundError)],
)
def test_a_fault_of_ours_is_not_hidden(fault, error, tmp_path, monkeypatch):
    monkeypatch.setattr(tour, "run", lambda *_, **__: fault())
    with pytest.raises(error):
        cli.main(["tour", "--out", str(tmp_path)])

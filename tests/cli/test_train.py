import argparse
import json

import pytest
import torch

from probtx_pyro import cli, train
from probtx_pyro.cli import train_lm, training
from probtx_pyro.cli.train import TASKS

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
    "ignore:.*torch.jit.*:DeprecationWarning",
)
SMALL = (
    "--encoder transformer --heads 2 --layers 1 --width 8 --steps 4 --batch 4 --context 20 --validate-every 2".split()
)
SENTENCES = "The DET\ncat NOUN\nsleeps VERB\n\nA DET\ndog NOUN\n\n" * 10
TEXTS = "text,category\n" + 'the cat sleeps,animal\n"rain, and wind",weather\n' * 10
ENTITIES = SENTENCES.replace("DET", "O").replace("NOUN", "B-animal").replace("VERB", "O")
PROSE = "the cat sleeps and the dog runs in the rain\n" * 20
TREEBANK = "".join(
    f"{i}\t{word}\t_\t{tag}\t{tag.lower()}\t_\t{head}\tdep\t_\t_\n" + ("\n" if i == 2 else "")
    for i, word, tag, head in ((1, "the", "DET", 2), (2, "cat", "NOUN", 0)) * 20
)


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def test_the_tables_of_names_are_those_of_the_library():
    assert set(training.ENCODERS) == set(train.ENCODERS) and set(train_lm.ATTENTIONS) == set(train.ATTENTIONS)
    parser = cli.parser()
    for task, names in (("lm", train.ATTENTIONS), ("mlm", train.ENCODERS)):
        of = parser.parse_args(["train", task, "--out", "x"])
        assert {"lm": "attention", "mlm": "encoder"}[task] in of and vars(of)[
            {"lm": "attention"}.get(task, "encoder")
        ] in names


@pytest.mark.parametrize("task", TASKS)
def test_help_teaches(task, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["train", task, "--help"])
    shown = capsys.readouterr().out
    assert done.value.code == 0 and f"probtx train {task} " in shown and "--resume" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name", "content", "metric"),
    [
        (["mlm", "--text"], "a.txt", PROSE, "perplexity"),
        (["mlm", "--rows", "sentence", "--mask", "0.3", "--text"], "a.txt", PROSE, "perplexity"),
        (["tagger", "--data"], "a.tsv", SENTENCES, "accuracy"),
        (["tagger", "--data"], "a.txt", ENTITIES, "span_f1"),
        (["tagger", "--column", "xpos", "--data"], "a.conllu", TREEBANK, "accuracy"),
        (["classifier", "--data"], "a.csv", TEXTS, "accuracy"),
    ],
)
def test_each_task_on_a_file(words, name, content, metric, tmp_path, capsys):
    (tmp_path / name).write_text(content)
    command = ["train", *words, str(tmp_path / name), *SMALL, "--out", str(tmp_path / "run"), "--no-progress"]
    assert cli.main(command) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["steps"] == 4 and len(found["losses"]) == 4 and [step for step, _ in found["validation"]] == [2, 4]
    assert f"{found[metric]:.4f}" in capsys.readouterr().out
    assert found["machine"]["device"] == "cpu" and found["settings"]["options"] == {"num_heads": 2, "num_layers": 1}
    assert cli.main(command) == 2 and "resume it, or choose another folder" in capsys.readouterr().err
    assert cli.main([*command, "--resume"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mlm", "--heads", "2"], "--heads means nothing to --encoder crf; leave it out"),
        (["tagger", "--encoder", "transformer", "--rank", "2"], "--rank means nothing to --encoder transformer"),
        (["mlm", "--mask", "0"], "mask must be more than 0 and less than 1"),
        (
            ["tagger", "--data", "nowhere.conllu"],
            "there is no file or folder nowhere.conllu; give one, or one of small",
        ),
        (["classifier", "--data", "nowhere.csv"], "there is no file or folder nowhere.csv"),
        (["classifier", "--width", "0"], "width must be 1 or more"),
        (["mlm", "--text", "nowhere.txt"], "there is no file nowhere.txt"),
        (["mlm", "--device", "warp"], "--device warp: this torch cannot use it here"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(words, message, tmp_path, capsys):
    assert cli.main(["train", *words, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_column_without_tags(tmp_path, capsys):
    (tmp_path / "a.conllu").write_text(TREEBANK.replace("det", "_").replace("noun", "_"))
    command = [
        "train",
        "tagger",
        "--column",
        "xpos",
        "--data",
        str(tmp_path / "a.conllu"),
        "--out",
        str(tmp_path / "run"),
    ]
    assert cli.main(command) == 2
    assert "has no tags in its column xpos; choose another column" in capsys.readouterr().err


def test_distances_are_whole_numbers_between_commas():
    assert training.distances("2,3") == (2, 3)
    with pytest.raises(argparse.ArgumentTypeError, match="'2,x' are no distances; give whole numbers like 2,3,4"):
        training.distances("2,x")
    arguments = cli.parser().parse_args(["train", "tagger", "--distances", "2,3,4", "--rank", "5", "--out", "x"])
    assert training.encoder_settings(arguments)["options"] == {"distances": (2, 3, 4), "rank": 5}

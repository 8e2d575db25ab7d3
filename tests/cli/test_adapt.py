"""``probtx adapt tagger``: from a run and annotated sentences to an adapted run."""

import json
from dataclasses import asdict

import pytest
import torch

from probtx_pyro import cli, train
from probtx_pyro.train import CHECKPOINT

TOKENS, TAGS = ("�", "the", "cat", "sleeps"), ("DET", "NOUN", "VERB")
ROWS = (("the", "DET"), ("dog", "NOUN"), ("sleeps", "VERB"))
CONLLU = "".join(f"{i}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n" for i, (word, tag) in enumerate(ROWS, 1)) + "\n"
TSV = "\n".join(f"{word}\t{tag}" for word, tag in ROWS) + "\n\n"
OPTIONS = {"crf": {"num_channels": 1, "num_steps": 1}, "transformer": {"num_heads": 1}}


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run of each encoder, as training leaves it, and annotated sentences."""
    monkeypatch.chdir(tmp_path)
    for encoder, options in OPTIONS.items():
        settings = train.LabellingSettings(encoder=encoder, options=options, width=4)
        model = settings.model(len(TOKENS), (len(TAGS),))
        (tmp_path / encoder).mkdir()
        state = {"settings": asdict(settings), "kept": None, "model": model.state_dict()}
        torch.save({**state, "tokens": TOKENS, "labels": (TAGS,)}, tmp_path / encoder / CHECKPOINT)
    (tmp_path / "ten.conllu").write_text(CONLLU * 10)
    (tmp_path / "ten.tsv").write_text(TSV * 10)
    (tmp_path / "no.conllu").write_text(CONLLU.replace("DET", "_").replace("NOUN", "_").replace("VERB", "_"))
    (tmp_path / "other.tsv").write_text(TSV.replace("VERB", "ZZZ"))
    (tmp_path / "empty.tsv").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "move"), [("ten.conllu", ["--move", "words,tags"]), pytest.param("ten.tsv", [], marks=pytest.mark.slow)]
)
def test_adapts_tests_and_saves(folder, file, move, capsys):
    words = ["adapt", "tagger", "crf", file, "--out", "out", "--folds", "2", "--spread", "0.3", "--test", file, *move]
    assert cli.main([*words, "--no-progress"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    found = json.loads((folder / "out" / "results.json").read_text())
    assert found["sentences"] == 10 and found["new_words"] == 1 and found["move"]  # ten alike: moving pays
    assert shown.count("held out, ") == len(found["validation"])
    assert ("held out, as it is: " in shown) == (not move)
    assert f"moved: {','.join(found['move'])} within {found['spread']:g}; 10 sentences, 1 new words" in shown
    assert "test before: accuracy " in shown and "test after: accuracy " in shown
    assert "Next: in Python: probtx_pyro.train.load_run('out') loads the tagger\n" in shown
    assert train.load_run(folder / "out").vocabulary.tokens == (*TOKENS, "dog")
    assert cli.main(words) == 2 and "choose another folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_seed_gives_the_same_tagger(folder):
    for out in ("one", "two"):
        words = ["adapt", "tagger", "crf", "ten.tsv", "--out", out, "--folds", "2", "--spread", "0.3", "--seed", "7"]
        assert cli.main([*words, "--no-progress"]) == 0
    one, two = (train.load_run(folder / out).model.state_dict() for out in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["crf", "no.conllu"],
            "error: the sentences have no tags; annotate some of their words, or choose another column",
        ),
        (["crf", "other.tsv"], "error: sentence 1 has the tag 'ZZZ'; the tagger has DET, NOUN, VERB"),
        (["crf", "empty.tsv"], "error: empty.tsv has no sentences; give some, annotated with tags"),
        (["crf", "ten.tsv", "--folds", "11"], "error: --folds must be from 2 to 10 (sentences), not 11; or give both"),
        (
            ["crf", "ten.tsv", "--move", "words,heads"],
            "error: --move must name some of ternary, words, tags, not words, heads",
        ),
        (
            ["transformer", "ten.tsv"],
            "error: --move must be given, some of words, tags: there are no potentials to put priors on",
        ),
        (["nowhere", "ten.tsv"], "there is no nowhere/checkpoint.pt; give the folder of a run of probtx train"),
        (["crf", "nowhere.conllu"], "there is no"),
        (["crf", "ten.tsv", "--out", "ten.tsv"], "--out ten.tsv is a file; give the name of a folder"),
    ],
)
def test_bad_input_is_one_line(folder, words, message, capsys):
    assert cli.main(["adapt", "tagger", "--out", "out", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1, error
    assert not (folder / "out").exists()


@pytest.mark.parametrize("spread", ["0", "wide", "inf"])
def test_a_spread_that_is_no_positive_number(spread, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["adapt", "tagger", "crf", "ten.tsv", "--out", "out", "--spread", spread])
    error = capsys.readouterr().err
    kind = "number" if spread == "wide" else "positive number"
    assert done.value.code == 2 and f"argument --spread: '{spread}' is not a {kind}" in error


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["adapt", "tagger", "--help"])
    shown = capsys.readouterr().out
    assert done.value.code == 0 and "probtx adapt tagger runs/tags ten.conllu" in shown and "cross-validation" in shown

"""``probtx train translation`` and ``probtx translate``, from a run of four steps."""

import json

import pytest
import torch
from commands import calls

from probtx_pyro import cli

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
    "ignore:.*torch.jit.*:DeprecationWarning",
)
SMALL = "--width 8 --heads 2 --layers 1 --steps 4 --batch 4 --validate-every 4 --vocabulary 40 --level word --context 12 --no-progress"
NUMBERS = "zero one two three four five six seven eight nine".split()
PAIRS = "".join(f"the cat saw {a} of {b}\tdie Katze sah {b} von {a}\n" for a in NUMBERS for b in NUMBERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("translation")
    (made / "pairs.tsv").write_text(PAIRS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        torch.set_default_dtype(torch.float32)
        assert (
            cli.main(["train", *f"translation --data pairs.tsv --attention gaussian-keys {SMALL} --out run".split()])
            == 0
        )
        small = "--encoder transformer --heads 2 --layers 1 --width 8 --steps 1 --batch 1 --no-progress"
        assert cli.main(f"train mlm --text pairs.tsv {small} --out masked".split()) == 0
    return made


@pytest.fixture
def call(folder, monkeypatch, capsys):
    return calls(folder, monkeypatch, capsys)


@pytest.mark.slow
def test_training_prints_scores_and_next_steps_and_goes_on(call, folder):
    code, out, _ = call("train translation --out run --resume --steps 6")
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("gaussian-keys: dev BLEU ") and " after 6 steps" in lines[0]
    assert "test BLEU " in lines[0] and "signature nrefs:1|" in lines[0]
    assert lines[1].startswith("unknown tokens: dev 0.0%, test ")
    assert lines[3] == "Next: probtx translate sentences.txt --model run"
    results = json.loads((folder / "run" / "results.json").read_text())
    assert results["settings"]["level"] == "word" and results["settings"]["attention"] == "gaussian-keys"
    assert results["settings"]["num_steps"] == 6 and results["vocabulary"] <= 40
    code, out, _ = call(
        f"train translation --data pairs.tsv {SMALL} --level subword --vocabulary 300 --context 60 --out bytes"
    )
    assert code == 0 and "unknown tokens: dev 0.0%, test 0.0%" in out


@pytest.mark.slow
def test_translate_gives_a_line_for_a_line_from_a_file_or_standard_input(call, folder):
    text = "the cat saw two of six\n\nthe bird saw one of one\n\n"
    (folder / "new.txt").write_text(text)
    code, out, err = call("translate new.txt --model run")
    assert code == 0 and len(out.split("\n")) == 5 and out.split("\n")[1] == ""
    assert "unknown tokens: 8.3%" in err  # the bird, of twelve words
    assert call("translate - --model run", given=text)[1] == out
    assert call("translate new.txt --model run --batch 1 --threads 1")[1] == out
    _, scored, _ = call("translate new.txt --model run --log-probability")
    rows = [line.split("\t") for line in scored.splitlines()]
    assert [row[0] for row in rows] == out.splitlines() and rows[1] == [""]
    assert all(float(row[1]) < 0 for row in rows if row != [""])
    assert call("translate new.txt --model run --out made.txt")[1] == "made.txt\n"
    assert (folder / "made.txt").read_text() == out
    greedy = call("translate new.txt --model run --beam 1 --log-probability")[1].splitlines()[0].split("\t")
    best = (
        call("translate new.txt --model run --beam 30 --length-penalty 0 --log-probability")[1]
        .splitlines()[0]
        .split("\t")
    )
    assert float(best[1]) >= float(greedy[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "translate new.txt --model masked",
            "masked is a run of probtx train mlm; give one of probtx train translation",
        ),
        ("tag new.txt --model run", "run is a run of probtx train translation; give one of probtx train tagger"),
        ("translate - --model run", "standard input has no text"),
        ("translate new.txt --model nowhere", "there is no nowhere/checkpoint.pt; give the folder of a run"),
        ("translate new.txt --model run --length-penalty -1", "--length-penalty must not be negative"),
        ("translate new.txt --model run --out new.txt", "new.txt is the file to read; choose another name"),
        (
            "train translation --attention softmax --components 2 --out new",
            "--components means nothing to --attention softmax",
        ),
        (
            "train translation --attention gaussian --adapt-steps 1 --data pairs.tsv --batch 4 --out new",
            "--adapt-steps must be left out in a decoder",
        ),
        (
            "train translation --data nowhere.tsv --out new",
            "there is no file or folder nowhere.tsv; give one, or one of tatoeba",
        ),
        (
            "train translation --vocabulary 20 --data pairs.tsv --out new",
            "--vocabulary must be 259 or more for the level subword, not 20",
        ),
        ("train translation --context 3 --data pairs.tsv --out new", "--context must be"),
    ],
)
def test_bad_input_is_one_line(call, folder, words, message):
    (folder / "new.txt").write_text("the cat\n")
    code, _, err = call(words)
    assert code == 2 and message in err and err.count("\n") == 1

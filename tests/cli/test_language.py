"""Commands that use trained models of words: generate, tag, fill, classify and parse, from runs of four steps."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import calls

from probtx_pyro import cli
from probtx_pyro.cli._texts import say_unknown
from probtx_pyro.data import Vocabulary, read_conllu

pytestmark = [
    pytest.mark.slow,  # trains
    pytest.mark.filterwarnings(
        "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
        "ignore:.*torch.jit.*:DeprecationWarning",
    ),
]
SMALL = "--width 8 --steps 4 --batch 4 --context 20 --validate-every 4 --no-progress"
ENCODER = f"--encoder transformer --heads 2 --layers 1 {SMALL}"
FILES = {
    "prose.txt": "the cat sleeps and the dog runs in the rain\n" * 20,
    "tags.tsv": "The DET\ncat NOUN\nsleeps VERB\n\nA DET\ndog NOUN\n\n" * 10
    + "A DET\ncat NOUN\n\nThe DET\ndog NOUN\n\n",  # held out
    "texts.csv": "text,category\n" + 'the cat sleeps,animal\n"rain, and wind",weather\n' * 10,
}
RUNS = {
    "lm": f"lm --text prose.txt --heads 2 --layers 1 {SMALL}",
    "words": f"lm --text prose.txt --level word --heads 2 --layers 1 {SMALL}",
    "mlm": f"mlm --text prose.txt {ENCODER}",
    "crf": f"mlm --text prose.txt --iterations 2 --channels 2 --distances 2 {SMALL}",
    "tagger": f"tagger --data tags.tsv {ENCODER}",
    "classifier": f"classifier --data texts.csv {ENCODER}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        torch.set_default_dtype(torch.float32)
        for name, text in FILES.items():
            (made / name).write_text(text)
        for name, words in RUNS.items():
            assert cli.main(["train", *words.split(), "--out", name]) == 0
    return made


@pytest.fixture
def call(folder, monkeypatch, capsys):
    return calls(folder, monkeypatch, capsys)


@pytest.mark.parametrize("run", ["lm", "words"])
def test_generate_goes_on_from_the_prompt_the_same_for_the_same_seed(call, run):
    _, first, _ = call(f"generate {run} --prompt 'the cat' --tokens 30 --seed 1")
    assert first == call(f"generate {run} --prompt 'the cat' --tokens 30 --seed 1")[1]
    assert first.startswith("the cat") and len(first) > 30
    code, both, _ = call(f"generate {run} --prompt 'the cat' --tokens 30 --seed 0 --number 2")
    assert code == 0 and both.endswith(first) and both.count("the cat") >= 2


def test_tag_writes_a_word_a_line_from_a_file_or_standard_input(call, folder):
    (folder / "new.txt").write_text("The cat\n\nA bird sings\n")
    code, out, err = call("tag new.txt --model tagger")
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0 and [row[0] for row in rows] == ["The", "cat", "", "", "A", "bird", "sings", ""]
    assert all(row[1] in {"DET", "NOUN", "VERB"} and 1 / 3 <= float(row[2]) <= 1 for row in rows if row != [""])
    assert "unknown words: 40.0%" in err and "warning" in err
    assert call("tag - --model tagger", given="The cat\n\nA bird sings\n")[1] == out
    assert (
        call("tag new.txt --model tagger --out out.tsv")[1] == "out.tsv\n" and (folder / "out.tsv").read_text() == out
    )


@pytest.mark.parametrize(("spellings", "warned"), [(0, True), (16, False)])
def test_unknown_words_with_spellings_are_counted_without_a_warning(spellings, warned, capsys):
    run = SimpleNamespace(vocabulary=Vocabulary("word", ("?", "cat"), spellings))
    say_unknown(run, ["cat", "bird"], Path("new.txt"))
    err = capsys.readouterr().err
    assert "unknown words: 50.0%" in err and ("reads them all as the same one" in err) == warned


def test_fill_guesses_what_is_hidden(call):
    code, out, _ = call("fill - --model mlm --top 2", given="the [MASK] sleeps\n[MASK] [MASK]\n")
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0 and [row[:2] for row in rows] == [["1", "2"], ["2", "1"], ["2", "2"]]
    words = set(FILES["prose.txt"].split()) | {"<eos>"}
    assert all({row[2], row[4]} <= words and float(row[3]) >= float(row[5]) for row in rows)


def test_classify_takes_the_run_of_a_classifier(call, folder):
    code, out, _ = call("classify classifier - --out classes.csv", given="The cat!\nwind\n")
    header, *rows = [line.split(",") for line in (folder / "classes.csv").read_text().splitlines()]
    assert code == 0 and out == "classes.csv\n" and header == ["line", "class", "probability", "text"]
    assert [(row[0], row[3]) for row in rows] == [("1", "The cat!"), ("2", "wind")]
    assert all(row[1] in {"animal", "weather"} and 0.5 <= float(row[2]) <= 1 for row in rows)


def test_parse_reads_plain_text(call, folder):
    code, _, _ = call("parse - --model crf --out trees.conllu", given="the cat sleeps\n\nin the rain\n")
    sentences = read_conllu(folder / "trees.conllu")
    assert code == 0 and [s.words for s in sentences] == [("the", "cat", "sleeps"), ("in", "the", "rain")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("generate tagger", "tagger is a run of probtx train tagger; give one of probtx train lm"),
        ("generate lm --temperature -1", "--temperature must not be negative"),
        ("generate nowhere", "there is no nowhere/checkpoint.pt"),
        ("tag - --model tagger", "standard input has no text"),
        ("tag nothing.txt --model tagger", "nothing.txt"),
        ("tag prose.txt --model tagger --out prose.txt", "prose.txt is the file to read"),
        ("fill prose.txt --model mlm", "prose.txt, line 1 has no [MASK]; write it"),
        ("classify classifier prose.txt --out c.csv --label x", "--label means nothing to a run"),
        ("classify texts.csv texts.csv --out c.csv", "--label is missing; name the column"),
    ],
)
def test_bad_input_is_one_line(call, words, message):
    code, _, err = call(words)
    assert code == 2 and message in err and err.count("\n") == 1

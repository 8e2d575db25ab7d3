"""Text in and answers out of the commands that use models of words: which line an answer belongs to, what is text, where it goes.

The runs have no step of training behind them: what they answer is arbitrary, and is nowhere looked at.
"""

import csv
import errno
import gzip
import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from commands import calls

from probtx_pyro import train
from probtx_pyro.apps import _batches
from probtx_pyro.cli import _texts as texts
from probtx_pyro.data import Tokenizer, read_conllu

TOKENS = ("?", "the", "cat", "sleeps")
CRF = {"num_channels": 2, "num_steps": 1}
HELD = {  # settings of a run, the labels
    "tagger": (train.LabellingSettings, [["DET", "NOUN"]]),
    "masked": (train.MaskedSettings, []),
    "classifier": (train.ClassifierSettings, [["good", "bad"]]),
}
# the words of each command that reads lines, FILE in the place of the input
COMMANDS = {
    "tag": "tag FILE --model tagger",
    "fill": "fill FILE --model masked",
    "parse": "parse FILE --model masked --out -",
    "classify": "classify classifier FILE --out -",
    "translate": "translate FILE --model translation",
}
each_command = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run of each kind, and the model of translation with few tokens."""
    folder = tmp_path_factory.mktemp("runs")
    torch.set_default_dtype(torch.float32)

    def save(name, settings, model, tokens, labels, **more):
        (folder / name).mkdir()
        state = {
            "settings": asdict(settings),
            "kept": None,
            "model": model.state_dict(),
            "tokens": tokens,
            "labels": labels,
        }
        torch.save({**state, **more}, folder / name / "checkpoint.pt")
        (folder / name / train.RESULTS).write_text(json.dumps({"steps": settings.num_steps}))

    for name, (kind, labels) in HELD.items():
        settings = kind(options=CRF, width=4)
        save(name, settings, settings.model(len(TOKENS), list(map(len, labels))), TOKENS, labels)
    tokenizer = Tokenizer.of([" ".join(TOKENS)], "word", size=10)
    settings = train.TranslationSettings(level="word", vocabulary=10, context=30, width=8, heads=2, layers=1)
    model = settings.model(len(tokenizer.tokens))
    save("translation", settings, model, tokenizer.tokens, [], tokenizer=tokenizer.text)
    settings = train.LanguageModelSettings(level="word", context=8, width=8, heads=2, layers=1)
    save("lm", settings, settings.model(len(TOKENS)), TOKENS, [])
    return folder


@pytest.fixture
def call(runs, monkeypatch, capsys):
    return calls(runs, monkeypatch, capsys)


LINES = ["[MASK] cat sleeps", "", "the [MASK]", "   ", "", "[MASK] xyzzy the cat", ""]
FULL = [i for i, line in enumerate(LINES, 1) if line.strip()]
NUMBERED = {  # from the output to the numbers of the lines that the answers are of, and of those that have an empty one
    "tag": lambda out: [bool(block) for block in _blocks(out)],
    "fill": lambda out: sorted({int(line.split("\t")[0]) for line in out.splitlines()}),
    "parse": lambda out: [int(s.comments[0].removeprefix("# sent_id = ")) for s in read_conllu(out.split("\n"), False)],
    "classify": lambda out: [
        (int(row["line"]), row["text"], row["class"] != "") for row in csv.DictReader(io.StringIO(out))
    ],
    "translate": lambda out: out.count("\n"),
}
EXPECTED = {
    "tag": [bool(line.strip()) for line in LINES],
    "fill": FULL,
    "parse": FULL,
    "classify": [(i, line.strip(), bool(line.strip())) for i, line in enumerate(LINES, 1)],
    "translate": len(LINES),
}


def _blocks(out):
    """Sentences of words a line, an empty line behind each; one without words is that line alone."""
    found, block = [], []
    for line in out.splitlines():
        if line:
            block.append(line)
        else:
            found.append(block)
            block = []
    assert not block
    return found


@each_command
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_every_answer_can_be_told_to_be_of_its_line(command, ending, runs, call):
    content = "".join(line + ending for line in LINES).encode()
    (runs / "new.txt").write_bytes(b"\xef\xbb\xbf" + content)
    code, out, _ = call(COMMANDS[command].replace("FILE", "new.txt"))
    assert code == 0 and NUMBERED[command](out) == EXPECTED[command]
    assert call(COMMANDS[command].replace("FILE", "-"), given=b"\xef\xbb\xbf" + content)[1] == out
    (runs / "new.txt.gz").write_bytes(gzip.compress(content.rstrip()))  # without what is behind the last text
    shorter = call(COMMANDS[command].replace("FILE", "new.txt.gz"))[1]
    assert out.startswith(shorter)


@each_command
@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("[MASK] the\n[MASK] caf\xe9\n".encode("latin-1"), "not UTF-8 text (byte 21)"),
        (b"[MASK] the\r[MASK] \xff\r", "not UTF-8 text (byte 18)"),
        (b"[MASK] the\n[MASK]\0\n", "no text: it has a NUL character (byte 17)"),
    ],
)
def test_what_is_no_text_is_refused_alike_from_a_file_and_standard_input(command, content, what, runs, call):
    (runs / "bad.txt").write_bytes(content)
    words = COMMANDS[command].replace(" --out -", "") + " --out out.file" * (command != "fill")
    for source, name in (("bad.txt", "bad.txt"), ("-", "standard input")):
        code, out, err = call(words.replace("FILE", source), given=content)
        assert (code, out) == (2, "")
        assert err == f"probtx: error: {name}, line 2: this is {what}; convert the file first\n"
        assert not (runs / "out.file").exists()


@each_command
def test_blank_input_is_refused(command, runs, call):
    code, _, err = call(COMMANDS[command].replace("FILE", "-"), given="\n \n")
    assert code == 2 and err == "probtx: error: standard input has no text\n"


@each_command
def test_a_line_that_there_is_no_room_for_is_named(command, runs, call, monkeypatch):
    monkeypatch.setattr(_batches, "LONGEST", 2 * 30**2)  # 30 words in two channels
    long = "[MASK] " * 31
    code, out, err = call(COMMANDS[command].replace("FILE", "-"), given=f"[MASK]\n\n{long}\n")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert (
        err.startswith("probtx: error: standard input, line 3 has ")
        and "there is room for 30" in err
        and "; divide it" in err
    )


def test_a_line_without_a_hidden_word_is_named(call):
    err = call("fill - --model masked", given="\n[MASK]\nthe cat\n")[2]
    assert err == "probtx: error: standard input, line 3 has no [MASK]; write it in the place of the words to guess\n"


CONLLU = "# text = the cat\n1\tthe\t_\t_\t_\t_\t_\t_\t_\t_\n2\tcat\t_\t_\t_\t_\t_\t_\t_\t_\n\n"


@pytest.mark.parametrize(
    ("name", "content", "words", "said"),
    [
        ("A.TXT", "the cat\n", ["the", "cat"], ""),
        ("a.txt", CONLLU, None, ""),  # the name decides
        ("A.CoNLLU", CONLLU, ["the", "cat"], ""),
        (
            "notes.md",
            "the cat\n",
            ["the", "cat"],
            "notes.md is read as plain text, a sentence a line: its first line of words is none of CoNLL-U",
        ),
        ("bare", "the\tcat\n", ["the", "cat"], "bare is read as plain text"),
        ("bare", CONLLU, ["the", "cat"], "bare is read as CoNLL-U: its first line of words begins with 1 and a tab"),
        ("tree.conll", CONLLU, ["the", "cat"], "tree.conll is read as CoNLL-U"),
        ("-", CONLLU, ["the", "cat"], "standard input is read as CoNLL-U"),
        ("-", "the cat\n", ["the", "cat"], ""),
    ],
)
def test_the_kind_of_a_file_is_printed_where_its_name_does_not_tell(name, content, words, said, runs, call):
    if name != "-":
        (runs / name).write_text(content)
    code, out, err = call(f"tag {name} --model tagger", given=content)
    assert code == 0
    assert words is None or [line.split("\t")[0] for line in out.splitlines() if line] == words
    assert f"probtx: {said}" in err if said else "is read as" not in err


def test_an_error_in_conllu_of_any_name_has_file_and_line(runs, call):
    broken = CONLLU.replace("2\tcat", "3\tcat")
    (runs / "odd").write_text(broken)
    for name, called in (("odd", "odd"), ("-", "standard input")):
        err = call(f"tag {name} --model tagger", given=broken)[2].splitlines()[-1]
        assert err.startswith(f"probtx: error: {called}, line 3: ID 3, but the next ID must be 2")


WRITING = {
    **{
        name: COMMANDS[name].replace("FILE", "in.txt").replace(" --out -", "")
        for name in ("tag", "parse", "classify", "translate")
    },
    "explore": "explore --no-browser",
    "classify a table": "classify train.csv new.csv --label side",
    "draw": "parse in.txt --model masked --out - --draw",
}


@pytest.mark.parametrize("command", WRITING)
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere/out.file", "there is no folder nowhere to write out.file in; make it, or choose another"),
        (".", ". is a folder; give the name of a file"),
    ],
)
def test_where_to_write_is_checked_before_anything_is_read(command, target, message, call):
    words = WRITING[command] + (" " if command == "draw" else " --out ")
    assert call(words + target) == (2, "", f"probtx: error: {message}\n")  # and not that in.txt is not there


@each_command
def test_a_run_that_was_stopped_is_warned_of(command, runs, call):
    given, (folder,) = "[MASK]\n", [name for name in (*HELD, "translation") if name in COMMANDS[command]]
    words = COMMANDS[command].replace("FILE", "-")
    assert "stopped" not in call(words, given=given)[2]
    results = runs / folder / train.RESULTS
    whole = results.read_text()
    try:
        for content in ('{"steps": 20}', None):
            results.unlink() if content is None else results.write_text(content)
            code, _, err = call(words, given=given)
            assert code == 0
            assert (
                f"probtx: warning: {folder} is a run that stopped before its 2000 steps were done; probtx train " in err
            )
            assert f"--resume --out {folder} goes on\n" in err
    finally:
        results.write_text(whole)


def test_a_language_model_that_was_stopped_is_warned_of(runs, call):
    assert "stopped" not in call("generate lm --prompt the --tokens 2")[2]
    (runs / "lm" / train.RESULTS).unlink()
    assert "probtx: warning: lm is a run that stopped before" in call("generate lm --prompt the --tokens 2")[2]


@pytest.mark.parametrize("command", ["tag", "parse", "classify", "translate"])
def test_answers_on_standard_output_have_nothing_beside_them(command, runs, call):
    (runs / "in.txt").write_text("the cat\n")
    words = COMMANDS[command].replace("FILE", "in.txt").replace(" --out -", "")
    code, printed, _ = call(f"{words} --out out.file")
    assert code == 0 and printed.startswith("out.file\n")
    assert call(f"{words} --out -")[1] == (runs / "out.file").read_text() and not (runs / "-").exists()


@pytest.mark.parametrize("command", ["tag", "parse", "classify", "translate", "explore"])
def test_a_full_disk_leaves_no_half_of_a_file_and_names_it(command, runs, call, monkeypatch):
    (runs / "in.txt").write_text("the cat\n")
    opened = Path.open

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, content):
            self.file.write(content[:3])
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(path, mode="r", *more, **options):
        file = opened(path, mode, *more, **options)
        return Full(file) if path.name == "full.file" else file

    monkeypatch.setattr(Path, "open", full)
    code, _, err = call(f"{WRITING[command]} --out full.file")
    assert code == 2 and not (runs / "full.file").exists()
    assert (
        err.splitlines()[-1]
        == "probtx: error: full.file cannot be written (No space left on device); mend that, or give another place"
    )


def test_unknown_words_are_laid_at_the_door_of_the_training_text(call):
    err = call("tag - --model tagger", given="xyzzy xyzzy the\n")[2]
    assert "67% of the words of standard input are unknown" in err and "trained on other text, or on too little" in err


def test_lines_are_kept_one_for_one(tmp_path):
    (tmp_path / "a.txt").write_text(" a \n\n\u00a0\nb\n\n")
    assert texts.lines(tmp_path / "a.txt") == ["a", "", "", "b", ""]
    (tmp_path / "a.txt").write_text("a\n\nb")
    assert texts.lines(tmp_path / "a.txt") == ["a", "", "b"]

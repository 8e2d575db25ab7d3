"""ListOps: expressions in both forms of file, and the whole of the published one against a calculator."""

import gzip
import os
import statistics

import pytest

from probtx_pyro.data import Labelled, load_listops, read_listops
from probtx_pyro.data import labelled as module
from probtx_pyro.data.labelled import is_listops
from probtx_pyro.train import classified_texts

ROWS = [Labelled("[MAX 2 [SM 9 4 ] 1 ]", "3"), Labelled("7", "7")]
LINES = "3\t( ( ( [MAX 2 ) ( ( ( [SM 9 ) 4 ) ] ) ) 1 ) ]\n7\t7\n"
ARENA = "Source\tTarget\n( ( ( [MAX 2 ) ( ( ( [SM 9 ) 4 ) ] ) ) 1 ) ]\t3\n7\t7\n"
BY_NAME = {"[MAX": max, "[MIN": min, "[MED": lambda x: int(statistics.median(x)), "[SM": lambda x: sum(x) % 10}


def value(tokens):
    """The value of the expression at the head of an iterator of tokens."""
    token = next(tokens)
    if token not in BY_NAME:
        return None if token == "]" else int(token)
    return BY_NAME[token](list(iter(lambda: value(tokens), None)))


@pytest.mark.parametrize("content", [LINES, ARENA, LINES.replace("\n", "\r\n"), "\ufeff" + ARENA, LINES.rstrip()])
def test_both_forms_are_read_and_known(content, tmp_path):
    plain, packed = tmp_path / "train.tsv", tmp_path / "packed" / "train.tsv.gz"
    plain.write_bytes(content.encode())
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(content.encode()))
    for path in (plain, packed, packed.parent):
        assert is_listops(path)
        assert path.is_dir() or read_listops(path) == ROWS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[MAX 2 3 ]", "'[MAX 2 3 ]' is no digit; give the answer, a tab and the expression"),
        ("12\t[SM 9 3 ]", "'12' is no digit"),
        ("]\t[SM 9 3 ]", "']' is no digit"),
        ("3\t[MAXIMUM 3 ]", "'[MAXIMUM' is no token: [MAX, [MIN, [MED, [SM, ] or a digit"),
        ("3\t[MAX 3", "the brackets are not those of one expression"),
        ("3\t3 ]", "the brackets are not those of one expression"),
        ("3\t[MAX 3 ] 4", "the brackets are not those of one expression"),
        ("3\t3 3", "the brackets are not those of one expression"),
        ("3\t", "the brackets are not those of one expression"),
    ],
)
def test_broken_lines_are_named(line, message, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(LINES + line + "\n")
    with pytest.raises(ValueError) as error:
        read_listops(path)
    assert str(error.value).startswith(f"{path}, line 3: ") and message in str(error.value)


def test_a_classifier_takes_its_words_from_files_of_either_kind(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(LINES * 10)
    parts = classified_texts(str(path))
    assert (["[MAX", "2", "[SM", "9", "4", "]", "1", "]"], "3") in parts["train"] and len(parts["dev"]) == 10  # equal
    path.write_text("text\tcategory\n" + "Is it 7?\tno\n" * 10 + "Yes!\tyes\n")
    assert not is_listops(path) and classified_texts(str(path))["train"][0] == (["is", "it", "7", "?"], "no")
    with pytest.raises(ValueError, match="there is no file or folder nowhere; give one, or one of banking77, listops"):
        classified_texts("nowhere")


def test_without_a_folder_of_data_the_published_file_is_cut(tmp_path, monkeypatch):
    path = tmp_path / "whole.tsv"
    path.write_text("".join(f"{i % 10}\t{i % 10}\n" for i in range(100)))
    monkeypatch.delenv("PROBTX_DATA", raising=False)
    monkeypatch.setattr(module, "fetch", lambda remote: path)
    monkeypatch.setattr(module, "_TRAIN", 80)
    parts = load_listops()
    assert [len(part) for part in parts] == [72, 8, 20] and [row.label for row in parts.test] == [*"0123456789"] * 2
    assert load_listops(seed=1).dev != parts.dev


@pytest.mark.skipif("PROBTX_DATA" not in os.environ, reason="needs $PROBTX_DATA")
def test_the_published_answers_are_the_values():
    parts = load_listops()
    assert [len(part) for part in parts] == [7200, 800, 2000]
    for row in [*parts.train, *parts.dev, *parts.test]:
        assert value(iter(row.text.split())) == int(row.label)
    lengths = sorted(len(row.text.split()) for row in parts.test)
    assert (lengths[0], lengths[1000], lengths[-1]) == (4, 16, 779)

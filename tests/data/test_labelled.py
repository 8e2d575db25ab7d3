"""Labelled texts: CSV and TSV, odd and broken."""

import gzip
import os
from collections import Counter

import pytest

from probtx_pyro.data.labelled import Labelled, load_labelled, read_labelled, tokenize

ROWS = [Labelled("Where is my card?", "card"), Labelled('She said "no", twice', "other")]
CSV = 'text,category\nWhere is my card?,card\n"She said ""no"", twice",other\n'
TSV = 'text\tcategory\nWhere is my card?\tcard\nShe said "no", twice\tother\n'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", CSV),
        ("a.csv.gz", CSV),
        ("A.CSV", CSV),
        ("a.csv", "\ufeff" + CSV.replace("\n", "\r\n")),
        ("a.csv", CSV.replace("\n", "\n\n").rstrip()),
        ("a.csv", CSV.replace("text", "id,text").replace("Where", "1,Where").replace('"She', '2,"She')),
        ("a.tsv", TSV),
        ("a.tsv.gz", TSV),
    ],
)
def test_odd_but_right_files(name, text, tmp_path):
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read_labelled(tmp_path / name) == ROWS


def test_quotes_are_letters_of_a_tsv(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tcategory\n"Open\tx\n~a~\t"y"\n')
    assert read_labelled(tmp_path / "a.tsv") == [('"Open', "x"), ("~a~", '"y"')]


def test_columns_of_other_names_and_texts_over_two_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('intent,query\ncard,"two\nlines"\n')
    assert read_labelled(path, text="query", label="intent") == [Labelled("two\nlines", "card")]
    path.write_text(path.read_text() + "card\n")
    with pytest.raises(ValueError, match=r"a.csv, line 4: 1 columns instead of 2"):
        read_labelled(path, text="query", label="intent")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "text,label\na,b\n",
            "line 1: the header is text, label, without category; name the columns so",
        ),
        ("a.csv", "a,b\n", "line 1: the header is a, b, without category and text"),
        ("a.csv", CSV + "one, two,card\n", "line 4: 3 columns instead of 2; quote texts"),
        ("a.csv", CSV + "\n\nalone\n", "line 6: 1 columns instead of 2"),
        ("a.csv", CSV + " ,card\n", "line 4: the text or its label is empty"),
        ("a.csv", CSV + "card,\n", "line 4: the text or its label is empty"),
        ("a.csv", CSV + '"never closed,card\n', "line 4: unexpected end of data"),
        ("a.csv", CSV + '"a"b,card\n', "line 4: ',' expected after '\"'"),
        ("a.tsv", TSV + "a b\n", "line 4: 1 columns instead of 2"),
        (
            "a.tsv",
            CSV,
            r"line 1: the header has no '\t' but ','; mend it (delimiter ',')",
        ),
        ("a.csv", "text;category\na;b\n", "line 1: the header has no ',' but ';'"),
        ("a.csv", "text,category,text\na,b,c\n", "line 1: the header has the column text twice; rename one of them"),
        ("a.txt", CSV, "ends in none of .csv, .tsv; rename or convert it"),
        ("csv", CSV, "ends in none of .csv, .tsv"),
    ],
)
def test_broken_files_are_refused(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError) as error:
        read_labelled(tmp_path / name)
    assert str(error.value).startswith(str(tmp_path / name)) and message in str(error.value)


def test_dev_is_a_random_tenth(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tcategory\n" + "".join(f"{i}\t{i // 50}\n" for i in range(100)))
    parts = load_labelled(path)
    assert len(parts.train) == 90 and len(parts.dev) == 10 and parts.test == []
    assert {row.label for row in parts.dev} == {"0", "1"}  # the file is sorted by label, its end would have one only
    assert load_labelled(path) == parts != load_labelled(path, seed=1)


def test_a_text_is_cut_into_its_words():
    assert tokenize("I’ve 2 cards; why?!") == ["i’ve", "2", "cards", ";", "why", "?", "!"]
    assert tokenize("  rock 'n' roll\n£5.00 ") == ["rock", "'", "n", "'", "roll", "£", "5", ".", "00"]
    assert tokenize("") == []


@pytest.mark.skipif("PROBTX_DATA" not in os.environ, reason="needs $PROBTX_DATA")
def test_banking77_is_the_published_one():
    parts = load_labelled()
    assert len(parts.train) + len(parts.dev) == 10003 and len(parts.dev) == 1000 and len(parts.test) == 3080
    assert Counter(row.label for row in parts.test).keys() == {row.label for row in parts.train + parts.dev}
    assert len({row.label for row in parts.train}) == 77

"""CoNLL-U: one good sentence, systematically broken, and what must come of each break."""

import gzip
import os
import random
import re
from collections import Counter
from pathlib import Path

import conllu
import pytest

from probtx_pyro.data.conllu import COLUMNS, PUBLISHED, Sentence, read_conllu, write_conllu

# Line 1 and 2 are comments; the multiword token is line 5, the empty node line 9; words 1..5 stand on lines 3, 4, 6, 7, 8.
GOOD = """\
# sent_id = one
# text = We like trees don't.
1	We	we	PRON	PRP	Case=Nom	2	nsubj	2:nsubj	_
2	like	like	VERB	VBP	_	0	root	0:root	_
3-4	trees don't	_	_	_	_	_	_	_	SpaceAfter=No
3	trees	tree	NOUN	NNS	_	2	obj	2:obj	_
4	n't	not	PART	RB	_	2	advmod	2:advmod	_
5	.	.	PUNCT	.	_	2	punct	2:punct	Note=a b
5.1	like	like	VERB	VBP	_	_	_	2:conj	CopyOf=2
""".split("\n")[:-1]
WORD_LINES = {1: 2, 2: 3, 3: 5, 4: 6, 5: 7}  # word -> place in GOOD
HEADS = (2, 0, 2, 2, 2)
NO_SPACES = [column for column in range(10) if COLUMNS[column] not in ("FORM", "LEMMA", "MISC")]


def cell(place, column, value, lines=GOOD):
    """A copy of the lines with one cell changed."""
    fields = lines[place].split("\t")
    fields[column] = value
    return [*lines[:place], "\t".join(fields), *lines[place + 1 :]]


def heads(*values):
    lines = GOOD
    for word, value in enumerate(values, 1):
        lines = cell(WORD_LINES[word], 6, value, lines)
    return lines


def without(place):
    return GOOD[:place] + GOOD[place + 1 :]


def wrong_files():
    """(what stands in the place of a line, its place in `GOOD`, part of the message)."""
    for place in range(2, 9):
        fields = GOOD[place].split("\t")
        for keep in range(1, 10):
            yield "\t".join(fields[:keep]), place, f"{keep} columns"
        yield "\t".join([*fields, "_"]), place, "11 columns"
        if place != 4 and place != 7:  # where no cell has a space
            yield " ".join(fields), place, "put tabs, not spaces"
        for column in range(10):
            yield "\t".join([*fields[:column], "", *fields[column + 1 :]]), place, f"{COLUMNS[column]} is empty"
            yield "\t".join([*fields[:column], "  ", *fields[column + 1 :]]), place, f"{COLUMNS[column]} is empty"
        for column in NO_SPACES[1:]:
            yield "\t".join([*fields[:column], fields[column] + " ", *fields[column + 1 :]]), place, "has a space"
        for value in ("x", "-1", "1.", "1-", "01", "1-2-3", "0", "0-1", "²", "١"):
            yield "\t".join([value, *fields[1:]]), place, f"ID {value!r} is no word"
        yield "\t".join([f"{fields[0]} ", *fields[1:]]), place, "column ID has a space"
        if place > 2:
            yield "# late", place, "comment between words"


def broken():
    """(lines, number of the line the error must name, part of its message)."""
    for row, place, message in wrong_files():
        yield [*GOOD[:place], row, *GOOD[place + 1 :]], place + 1, message
    for word, place in WORD_LINES.items():
        for value in {1, 2, 3, 4, 5, 6, 100} - {word}:
            yield cell(place, 0, str(value)), place + 1, f"ID {value}, but the next ID must be {word}"
        for value in ("x", "-1", "6", "99", "1.5", "02", "²", "1:nsubj"):
            yield cell(place, 6, value), place + 1, "is no word of the sentence"
        yield cell(place, 6, str(word)), place + 1, f"word {word} is its own head"
        yield cell(place, 6, "_"), place + 1, "no HEAD, but other words"
    for place in (2, 3, 5, 6):  # a word lost: the next line of a word or multiword token is out of count
        yield without(place), place + 1, "the next ID must be"
    for value, message in (
        ("3-2", "runs backwards"),
        ("2-3", "the next ID must be 3"),
        ("4-5", "the next ID must be 3"),
        ("3-6", "ends at 6, the sentence at 5"),
        ("3-99", "ends at 99"),
    ):
        yield cell(4, 0, value), 5, message
    for value, line, message in (
        ("4-5", 7, "overlaps"),
        ("4-4", 7, "overlaps"),
        ("3-4", 6, "overlaps"),
    ):
        yield [*GOOD[: line - 1], GOOD[4].replace("3-4", value), *GOOD[line - 1 :]], line, message
    for value, message in (
        ("4.1", "must begin with 5"),
        ("6.1", "must begin with 5"),
        ("5.2", "next empty node is 5.1"),
        ("5.0", "next empty node is 5.1"),
    ):
        yield cell(8, 0, value), 9, message
    yield [*GOOD, GOOD[8]], 10, "next empty node is 5.2"
    for values, line in (
        (("2", "1", "2", "2", "2"), 3),
        (("2", "3", "4", "5", "1"), 3),
        (("2", "0", "4", "3", "2"), 6),
        (("2", "0", "5", "3", "4"), 6),
        (("3", "0", "4", "5", "4"), 7),
    ):
        yield heads(*values), line, "heads run in a circle"
    yield GOOD[:2], 1, "comments without words"
    yield [*GOOD[:2], "", *GOOD[2:]], 1, "comments without words"
    yield [*GOOD, "", "# the end"], 11, "comments without words"
    yield [GOOD[0], GOOD[8].replace("5.1", "0.1")], 2, "a sentence without words"
    yield [*GOOD, "\u00a0", *GOOD], 10, "1 columns"  # no ordinary space, so no blank line
    yield ["just a sentence ."], 1, "1 columns between tabs instead of 10; write _"


BROKEN = list(broken())
PIECES = [
    b"",
    b"\n",
    b"\n\n",
    b"\t",
    b" ",
    b"1",
    b"6",
    b"-",
    b".",
    b"_",
    b"#",
    b"a",
    b"\r\n",
    b"\r",
    b"\xc3\xa9",
    b"\xff",
    b"\x00",
]


def test_the_breaks_are_many_and_different():
    assert len(BROKEN) >= 200 and len({tuple(lines) for lines, _, _ in BROKEN}) >= 200


@pytest.mark.parametrize("first", [True, False], ids=["alone", "after a good one"])
def test_every_break_is_named_by_its_line(first, tmp_path):
    path = tmp_path / "broken.conllu"
    before = [] if first else [*GOOD, "", ""]
    for lines, number, message in BROKEN:
        path.write_text("\n".join([*before, *lines]) + "\n\n", encoding="utf-8")
        with pytest.raises(ValueError) as error:
            read_conllu(path)
        said = str(error.value)
        assert said.startswith(f"{path}, line {number + len(before)}: "), (said, lines)
        assert message in said and "\n" not in said, (said, message)


def test_random_damage_is_named_or_read_as_it_stands(tmp_path):
    draw, path = random.Random(5), tmp_path / "damaged.conllu"
    outcomes = Counter()
    for _ in range(600):
        content = bytearray((TEXT * 2).encode())
        for _ in range(draw.randint(1, 3)):
            place = draw.randrange(len(content))
            content[place : place + draw.randint(0, 2)] = draw.choice(PIECES)
        path.write_bytes(content)
        try:
            sentences = read_conllu(path)
        except ValueError as error:
            line = re.match(re.escape(str(path)) + r", line (\d+): .*; ", str(error))
            assert line and 1 <= int(line[1]) <= content.count(b"\n") + 1
            outcomes["refused"] += 1
        else:
            write_conllu(sentences, path)
            assert read_conllu(path) == sentences
            outcomes["read"] += 1
    assert min(outcomes["refused"], outcomes["read"]) > 60


def good():
    return read_conllu(GOOD)[0]


def test_a_sentence_holds_every_column():
    assert good() == Sentence(
        words=("We", "like", "trees", "n't", "."),
        lemmas=("we", "like", "tree", "not", "."),
        upos=("PRON", "VERB", "NOUN", "PART", "PUNCT"),
        xpos=("PRP", "VBP", "NNS", "RB", "."),
        heads=HEADS,
        relations=("nsubj", "root", "obj", "advmod", "punct"),
        comments=tuple(GOOD[:2]),
        lines=tuple(GOOD[2:]),
    )


TEXT = "\n".join(GOOD) + "\n\n"
ODD = {
    "as it should be": (TEXT, 1),
    "two sentences": (TEXT * 2, 2),
    "no blank line at the end": (TEXT[:-1], 1),
    "no line end either": (TEXT[:-2], 1),
    "many blank lines": ("\n\n" + TEXT + "\n\n" + TEXT + "\n", 2),
    "blank lines of spaces": (TEXT.replace("\n\n", "\n \t\n") * 2, 2),
    "CRLF": (TEXT.replace("\n", "\r\n"), 1),
    "byte-order mark": ("\ufeff" + TEXT, 1),
    "empty": ("", 0),
    "blank": ("\n\n", 0),
}


@pytest.mark.parametrize("text, number", ODD.values(), ids=ODD)
def test_odd_files_are_read_and_written_in_one_form(text, number, tmp_path):
    for name in ("odd.conllu", "odd.conllu.gz"):
        content = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        sentences = read_conllu(tmp_path / name)
        assert sentences == [good()] * number
        write_conllu(sentences, tmp_path / f"again-{name}")
        again = (tmp_path / f"again-{name}").read_bytes()
        assert not name.endswith("gz") or again == gzip.compress(TEXT.encode() * number, mtime=0)  # no time stamp in it
        assert (gzip.decompress(again) if name.endswith("gz") else again) == TEXT.encode() * number


@pytest.mark.parametrize(
    "lines",
    [
        cell(7, 9, "Note=a b "),  # a space at the end of a line belongs to MISC
        cell(2, 1, "W e"),
        cell(2, 2, "a b"),
        cell(2, 1, "#We"),
        cell(2, 1, "a\u2028b"),  # Unicode's own line ends are no ends here
        cell(2, 1, "a\x85b"),
        [*GOOD[:2], GOOD[8].replace("5.1", "0.1"), *GOOD[2:]],
        [*GOOD, GOOD[8].replace("5.1", "5.2")],
        [*GOOD[:7], GOOD[4].replace("3-4", "5-5"), *GOOD[7:]],
        cell(4, 0, "3-5"),
        GOOD[2:],
        heads("0", "0", "0", "0", "0"),
        heads("5", "0", "2", "3", "2"),  # not projective: 1 under 5 crosses the root above 2
    ],
)
def test_odd_but_right_files_are_written_as_they_were_read(lines, tmp_path):
    path = tmp_path / "odd.conllu"
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8", newline="")
    write_conllu(read_conllu(path), tmp_path / "again.conllu")
    assert path.read_bytes() == (tmp_path / "again.conllu").read_bytes()


def test_unannotated_text_and_unfinished_trees():
    assert read_conllu(heads(*"_____"))[0].heads == (None,) * 5
    for values, read in (("20_22", (2, 0, None, 2, 2)), ("21222", (2, 1, 2, 2, 2))):
        assert read_conllu(heads(*values), check_tree=False)[0].heads == read
        with pytest.raises(ValueError, match="the lines, line"):
            read_conllu(heads(*values))


def test_a_sentence_of_a_thousand_words():
    lines = [f"{i}\tw{i}\t_\t_\t_\t_\t{i % 1000 and i + 1}\t_\t_\t_" for i in range(1, 1001)]
    (sentence,) = read_conllu(lines)
    assert sentence.heads == (*range(2, 1001), 0) and sentence.words[-1] == "w1000"
    with pytest.raises(ValueError, match=r"line 1: heads run in a circle, 1 -> 2 -> .* -> 1000 -> 1;"):
        read_conllu([*lines[:-1], lines[-1].replace("\t0\t", "\t1\t")])


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "cut.conllu.gz").write_bytes(gzip.compress(TEXT.encode())[:-20])
    (tmp_path / "plain.conllu.gz").write_text(TEXT)
    (tmp_path / "latin.conllu").write_bytes(TEXT.encode() + "# ü".encode("latin-1"))
    for name, message in (
        ("cut.conllu.gz", "cut.conllu.gz cannot be read"),
        ("plain.conllu.gz", "plain.conllu.gz cannot be read"),
        ("latin.conllu", r"latin.conllu, line 11: this is not UTF-8 text"),
        ("none.conllu", "there is no file .*none.conllu; give a CoNLL-U file"),
        ("", "is a folder; give a CoNLL-U file"),
    ):
        with pytest.raises(ValueError, match=message):
            read_conllu(tmp_path / name)


def test_new_heads_change_their_words_only(tmp_path):
    path = tmp_path / "new.conllu"
    write_conllu([good()], path, heads=[[0, 1, 2, 2, 2]])
    written = path.read_text().split("\n")
    assert written[2].split("\t")[6:8] == ["0", "root"] and written[3].split("\t")[6:8] == ["1", "dep"]
    changed = {place for place, line in enumerate(GOOD) if written[place] != line}
    assert changed == {2, 3} and written[len(GOOD) :] == ["", ""]
    assert all(
        old == new
        for place in changed
        for column, (old, new) in enumerate(zip(GOOD[place].split("\t"), written[place].split("\t"), strict=True))
        if column not in (6, 7)
    )
    (back,) = read_conllu(path)
    assert back == good().with_heads([0, 1, 2, 2, 2]) and back.relations == ("root", "dep", "obj", "advmod", "punct")
    assert good().with_heads(HEADS) == good()


def test_heads_that_do_not_fit(tmp_path):
    for rows, message in (
        ([[2, 0, 2, 2]], "4 heads for 5 words"),
        ([[2, 0, 3, 2, 2]], "word 3 has head 3; give 0 or the number of another word, 1..5"),
        ([[2, 0, 6, 2, 2]], "word 3 has head 6"),
        ([[2, 0, -1, 2, 2]], "word 3 has head -1"),
        ([], "0 rows of heads for 1 sentences"),
    ):
        with pytest.raises(ValueError, match=message):
            write_conllu([good()], tmp_path / "new.conllu", heads=rows)
    assert not (tmp_path / "new.conllu").exists()


EWT = Path(os.environ.get("PROBTX_DATA", "nowhere")) / "ud_english_ewt"


@pytest.mark.skipif(not EWT.is_dir(), reason="needs $PROBTX_DATA")
def test_english_web_treebank_to_the_byte(tmp_path):
    path = EWT / "en_ewt-ud-dev.conllu.gz"
    sentences = read_conllu(path)
    write_conllu(sentences, tmp_path / "dev.conllu")
    assert (tmp_path / "dev.conllu").read_bytes() == gzip.decompress(path.read_bytes())
    assert (len(sentences), sum(len(sentence.words) for sentence in sentences)) == (2001, 25147)


def test_the_treebank_of_the_package_reads_as_by_a_peer():
    """The package ``conllu``: words, tags, heads and relations of every sentence, multiword tokens and empty nodes apart."""
    path = Path(PUBLISHED["small"]["train"])
    with path.open(encoding="utf-8") as file:
        theirs = [[word for word in one if isinstance(word["id"], int)] for one in conllu.parse_incr(file)]
    ours = read_conllu(path)
    assert len(ours) == len(theirs)
    for one, words in zip(ours, theirs, strict=True):
        assert list(zip(one.words, one.lemmas, one.upos, one.xpos, one.heads, one.relations, strict=True)) == [
            (x["form"], x["lemma"], x["upos"], x["xpos"] or "_", x["head"], x["deprel"]) for x in words
        ]

"""Two-column files, and span F1 against a count by hand and a second way to find spans."""

import os

import pytest

from probtx_pyro.data.tagged import Tagged, load_entities, read_tagged
from probtx_pyro.metrics import span_f1

GOOD = ["Empire\tB-location", "State\tI-location", "shines\tO", "", "Yes\tO"]
SENTENCES = [Tagged(("Empire", "State", "shines"), ("B-location", "I-location", "O")), Tagged(("Yes",), ("O",))]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(GOOD),
        "\n".join(GOOD) + "\n\n",
        "\n\n" + "\n".join(GOOD).replace("\n\n", "\n\t\n \n\n"),
        "\ufeff" + "\r\n".join(GOOD) + "\r\n",
        "\n".join(GOOD).replace("\t", " "),
        "\n".join(GOOD).replace("\t", "   ") + " ",
    ],
    ids=["bare", "blank line at the end", "blank lines of spaces", "CRLF and a mark", "space", "spaces"],
)
def test_odd_but_right_files(text, tmp_path):
    (tmp_path / "tags").write_text(text, encoding="utf-8", newline="")
    assert read_tagged(tmp_path / "tags") == read_tagged(tmp_path / "tags", bio=True) == SENTENCES


def test_a_word_may_have_spaces_where_tabs_part_the_columns():
    assert read_tagged(["New York \tNNP", "\u00a0\tO"])[0].words == ("New York", "\u00a0")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("word", "'word' is not a word, a tab and its tag"),
        ("word\t", "is not a word, a tab and its tag"),
        ("\tO", "is not a word, a tab and its tag"),
        ("word\t \tO", "is not a word, a tab and its tag"),
        ("a b", "'b' is no BIO tag; give O, B-type or I-type"),
        ("word\tB-", "'B-' is no BIO tag"),
        ("word\tE-person", "'E-person' is no BIO tag"),
        ("word\to", "'o' is no BIO tag"),
        ("word\tOO", "'OO' is no BIO tag"),
        ("word\tB-a b", "'B-a b' is no BIO tag"),
    ],
)
def test_bad_lines_are_named(line, message, tmp_path):
    for place in range(len(GOOD) + 1):
        (tmp_path / "tags").write_text("\n".join([*GOOD[:place], line, *GOOD[place:]]))
        with pytest.raises(ValueError) as error:
            read_tagged(tmp_path / "tags", bio=True)
        assert str(error.value).startswith(f"{tmp_path / 'tags'}, line {place + 1}: ") and message in str(error.value)


CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter NNP I-NP B-PER
"""


def test_of_four_columns_the_first_is_the_word_and_the_last_its_tag(tmp_path):
    expected = [Tagged(("EU", "rejects", "German"), ("I-ORG", "O", "I-MISC")), Tagged(("Peter",), ("B-PER",))]
    for name, text in (("spaces", CONLL_2003), ("tabs", CONLL_2003.replace(" ", "\t"))):
        (tmp_path / name).write_text(text)
        assert read_tagged(tmp_path / name, bio=True) == expected
    assert load_entities(tmp_path / "spaces", dev_share=0.5) == (expected[:1], expected[1:], [])
    gold = [row.tags for row in expected]  # an entity begins where an I follows no tag of its type
    assert span_f1(gold, gold) == 1.0 and span_f1([("O", "O", "I-MISC"), ("B-PER",)], gold) == pytest.approx(0.8)


def test_all_lines_have_as_many_columns():
    with pytest.raises(ValueError, match=r"line 3: 'New York B-LOC' has 3 columns instead of 2; give as many"):
        read_tagged(["in O", "", "New York B-LOC"])


def test_entities_of_the_users_own_are_read(tmp_path):
    for part in ("train", "dev", "test"):
        (tmp_path / f"my.{part}.txt").write_text("\n".join(GOOD))
    assert load_entities(tmp_path) == (SENTENCES,) * 3
    assert load_entities(tmp_path / "my.train.txt", dev_share=0.5) == (SENTENCES[:1], SENTENCES[1:], [])
    (tmp_path / "my.train.txt").write_text("a\tNN")
    with pytest.raises(ValueError, match="line 1: 'NN' is no BIO tag"):
        load_entities(tmp_path)


@pytest.mark.skipif("PROBTX_DATA" not in os.environ, reason="needs $PROBTX_DATA")
def test_wnut17_is_the_published_one():
    parts = load_entities()
    counts = [(len(part), sum(len(sentence.words) for sentence in part)) for part in parts]
    assert counts == [(3394, 62730), (1009, 15733), (1287, 23394)]
    assert {tag[2:] for part in parts for sentence in part for tag in sentence.tags} == {
        *("", "corporation", "creative-work", "group", "location", "person", "product")
    }
    gold = [sentence.tags for sentence in parts.test]
    assert span_f1(gold, gold) == 1.0

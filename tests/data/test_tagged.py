"""Two-column files, and span F1 against a count by hand and a second way to find spans."""

import os
import random
import re
import sys

import pytest

from probtx_pyro.data.tagged import Tagged, load_entities, read_tagged, span_f1

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
        ("word NN O", "is not a word, a tab and its tag"),
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


def test_entities_of_the_users_own_are_read(tmp_path):
    for part in ("train", "dev", "test"):
        (tmp_path / f"my.{part}.txt").write_text("\n".join(GOOD))
    assert load_entities(tmp_path) == (SENTENCES,) * 3
    assert load_entities(tmp_path / "my.train.txt", dev_share=0.5) == (SENTENCES[:1], SENTENCES[1:], [])
    (tmp_path / "my.train.txt").write_text("a\tNN")
    with pytest.raises(ValueError, match="line 1: 'NN' is no BIO tag"):
        load_entities(tmp_path)


def tags(*sentences):
    return [sentence.split() for sentence in sentences]


def test_f1_by_hand():
    gold = tags("B-per I-per O B-loc", "O B-org", "B-per B-per")
    assert span_f1(gold, gold) == 1.0
    # right: the location, the organisation, the first person of two. Wrong: a boundary, and one person left out.
    predicted = tags("B-per O O B-loc", "O B-org", "B-per O")
    assert span_f1(predicted, gold) == pytest.approx(2 * 3 / (4 + 5), rel=1e-12)
    assert span_f1(tags("B-loc I-loc O O"), gold[:1]) == 0.0  # the boundary alone does not count
    assert span_f1(tags("O O O O"), gold[:1]) == span_f1(tags("O"), tags("O")) == 0.0


def test_an_inside_tag_that_goes_on_with_nothing_begins_an_entity():
    assert span_f1(tags("I-per I-per O", "B-loc I-per"), tags("B-per I-per O", "B-loc B-per")) == 1.0


def spans(tags):
    """Entities by a pattern over the tags, one letter each: a type's number, small for I and capital for B."""
    types = sorted({tag[2:] for tag in tags if tag != "O"})
    letters = [chr(97 + types.index(tag[2:])) if tag != "O" else "." for tag in tags]
    text = "".join(c.upper() if tag[0] == "B" else c for c, tag in zip(letters, tags, strict=True))
    pattern = "|".join(f"{c}{c.lower()}*" for i in range(len(types)) for c in (chr(65 + i), chr(97 + i)))
    found = re.finditer(pattern, text) if types else ()
    return {(m.start(), m.end(), types[ord(m[0][0].lower()) - 97]) for m in found}


def test_f1_of_random_tags_against_a_second_way():
    draw = random.Random(3)
    seen = set()
    for _ in range(60):
        lengths = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        sides = [
            [draw.choices(("O", "B-a", "I-a", "B-b", "I-b"), weights=(4, 2, 2, 1, 1), k=n) for n in lengths]
            for _ in "pg"
        ]
        sides[0] = [p if draw.random() < 0.6 else g for p, g in zip(*sides, strict=True)]
        ours, theirs = ({(i, *span) for i, row in enumerate(side) for span in spans(row)} for side in sides)
        expected = 2 * len(ours & theirs) / max(len(ours) + len(theirs), 1)
        assert span_f1(*sides) == pytest.approx(expected, rel=1e-12)  # a few divisions apart
        seen.add(expected)
    assert len(seen) > 20


def test_scores_of_what_does_not_fit(monkeypatch):
    for predicted, gold, message in (
        (tags("O"), [], "1 predicted sentences for 0"),
        (tags("O", "O O"), tags("O", "O"), r"predicted\[1\] has 2 tags, gold\[1\] has 1"),
        (tags("O"), tags("X"), "'X' in sentence 0 is no BIO tag"),
        (tags("B"), tags("O"), "'B' in sentence 0 is no BIO tag"),
    ):
        with pytest.raises(ValueError, match=message):
            span_f1(predicted, gold)
    monkeypatch.setitem(sys.modules, "nervaluate", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'probtx_pyro\[train\]'"):
        span_f1(tags("O"), tags("O"))


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

"""COGS tags against hand-made ones, and that they lose nothing."""

import os
import random

import pytest

from probtx_pyro.data.cogs import NONE, Tags, load_cogs, logical_form_of, read_cogs, tags_of

# (sentence, logical form, parents, roles); sentences of this project's own in the grammar of COGS
BY_HAND = [
    (
        "The owl saw Mia .",
        "* owl ( x _ 1 ) ; see . agent ( x _ 2 , x _ 1 ) AND see . theme ( x _ 2 , Mia )",
        (0, 3, 0, 3, 0),
        "_ agent _ theme _",
    ),
    (
        "A TV in the hall broke .",
        "* hall ( x _ 4 ) ; tv ( x _ 1 ) AND tv . nmod . in ( x _ 1 , x _ 4 ) AND break . theme ( x _ 5 , x _ 1 )",
        (0, 6, 0, 0, 2, 0, 0),
        "_ theme _ _ nmod.in _ _",
    ),
    (
        "Mia wanted to eat a pie .",
        "want . agent ( x _ 1 , Mia ) AND want . xcomp ( x _ 1 , x _ 3 ) AND eat . agent ( x _ 3 , Mia )"
        " AND eat . theme ( x _ 3 , x _ 5 ) AND pie ( x _ 5 )",
        (2, 0, 0, 2, 0, 4, 0),
        "agent _ _ xcomp _ theme _",
    ),
    (
        "Mia said that Tom was given the pie .",
        "* pie ( x _ 7 ) ; say . agent ( x _ 1 , Mia ) AND say . ccomp ( x _ 1 , x _ 5 )"
        " AND give . recipient ( x _ 5 , Tom ) AND give . theme ( x _ 5 , x _ 7 )",
        (2, 0, 0, 6, 0, 2, 0, 6, 0),
        "agent _ _ recipient _ ccomp _ theme _",
    ),
    (
        "Mia wanted to try to sleep .",  # an agent handed down twice
        "want . agent ( x _ 1 , Mia ) AND want . xcomp ( x _ 1 , x _ 3 ) AND try . agent ( x _ 3 , Mia )"
        " AND try . xcomp ( x _ 3 , x _ 5 ) AND sleep . agent ( x _ 5 , Mia )",
        (2, 0, 0, 2, 0, 4, 0),
        "agent _ _ xcomp _ xcomp _",
    ),
]


@pytest.mark.parametrize(("sentence", "form", "parents", "roles"), BY_HAND)
def test_parents_and_roles_are_those_by_hand(sentence, form, parents, roles):
    words = sentence.split()
    tags = tags_of(words, form)
    assert tags.parents == parents and " ".join(tags.roles) == roles
    assert logical_form_of(words, tags) == form


def test_categories_determiners_and_lemmas_by_hand():
    tags = tags_of("A TV in the hall broke .".split(), BY_HAND[1][1])
    assert tags.categories == (NONE, "noun", NONE, NONE, "noun", "verb", NONE)
    assert tags.determiners == (NONE, "indefinite", NONE, NONE, "definite", NONE, NONE)
    assert tags.verbs == (NONE,) * 5 + ("break", NONE)
    assert tags_of("Mia slept .".split(), "sleep . agent ( x _ 1 , Mia )").categories == ("name", "verb", NONE)


@pytest.mark.parametrize(
    ("word", "meaning", "category"),
    [
        ("owl", "LAMBDA a . owl ( a )", "noun"),
        ("Mia", "Mia", "name"),
        ("sleep", "LAMBDA a . LAMBDA e . sleep . agent ( e , a )", "verb"),
        ("see", "LAMBDA a . LAMBDA b . LAMBDA e . see . agent ( e , b ) AND see . theme ( e , a )", "verb"),
    ],
)
def test_primitives_teach_their_word(word, meaning, category):
    lemma = word if category == "verb" else NONE
    assert tags_of((word,), meaning) == Tags((0,), (NONE,), (category,), (NONE,), (lemma,))


def test_every_change_of_a_tag_changes_the_logical_form():
    """So an exact match of logical forms asks for every tag that matters; here, those of a sentence without idle words."""
    words = "Mia saw Tom".split()
    tags = Tags((2, 0, 2), ("agent", NONE, "theme"), ("name", "verb", "name"), (NONE,) * 3, (NONE, "see", NONE))
    form = logical_form_of(words, tags)
    assert form == "see . agent ( x _ 1 , Mia ) AND see . theme ( x _ 1 , Tom )"
    for field, column in tags._asdict().items():
        for word in range(3):
            if field == "verbs" and word != 1:
                continue  # a lemma is read of verbs only
            if field == "roles" and word == 1:
                continue  # and a role of words with a parent
            value = 3 if field == "parents" else "definite" if field == "determiners" else "noun"
            other = tags._replace(**{field: (*column[:word], value, *column[word + 1 :])})
            assert logical_form_of(words, other) != form, (field, word)


def test_any_tags_spell_something():
    draw, words = random.Random(0), "The owl saw Mia .".split()
    choices = [("agent", "xcomp", "nmod.in", NONE), ("verb", "noun", "name", NONE), ("definite", "indefinite", NONE)]
    for _ in range(200):
        tags = Tags(tuple(draw.choices(range(6), k=5)), *(tuple(draw.choices(c, k=5)) for c in choices), ("see",) * 5)
        assert isinstance(logical_form_of(words, tags), str)
    for wrong, message in (
        (tags._replace(roles=("agent",)), r"tags of lengths \[5, 1, 5, 5, 5\] for 5 words"),
        (tags._replace(parents=(0, 0, 0, 0, 6)), r"a parent is outside 0..5"),
        (tags._replace(parents=(0, 0, 0, 0, -1)), r"a parent is outside 0..5"),
    ):
        with pytest.raises(ValueError, match=message):
            logical_form_of(words, wrong)


GOOD = "Mia slept .\tsleep . agent ( x _ 1 , Mia )\tin_distribution"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Mia slept .", "1 columns; give sentence, logical form, category"),
        (GOOD + "\tmore", "4 columns"),
        (GOOD.replace("Mia slept .", " "), "3 columns; give sentence"),
        (GOOD.replace("sleep .", "sleep"), "is neither noun"),
        (GOOD.replace("x _ 1", "x _ y"), "is neither noun"),
        (GOOD.replace(", Mia", ", Tom"), "is no word of the sentence"),
        (GOOD.replace("_ 1", "_ 7"), "a parent is outside 0..3"),
        (GOOD.replace(" )\t", " ) AND sleep . theme ( x _ 1 , Mia )\t"), "the tags of this logical form give"),
        (GOOD.replace("sleep . agent", "owl ( x _ 0 ) AND sleep . agent"), "the tags of this logical form give"),
        ("owl\tLAMBDA a . cat ( a )\tprimitive", "is not what 'owl' alone can mean"),
        ("owl\tOwl\tprimitive", "is not what 'owl' alone can mean"),
    ],
)
def test_bad_rows_are_named_by_their_line(line, message, tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ValueError) as error:
        read_cogs(path)
    assert str(error.value).startswith(f"{path}, line 2: ") and message in str(error.value)
    (example,) = read_cogs([GOOD])
    assert example.words == ("Mia", "slept", ".") and example.category == "in_distribution"


@pytest.mark.skipif("PROBTX_DATA" not in os.environ, reason="needs $PROBTX_DATA")
def test_nothing_is_lost_on_the_whole_of_cogs():
    parts = load_cogs()
    assert [len(part) for part in parts] == [24155, 3000, 3000, 21000]
    sentences = [example for part in parts for example in part if example.category != "primitive"]
    assert len(sentences) == sum(map(len, parts)) - 143
    assert all(logical_form_of(example.words, example.tags) == example.logical_form for example in sentences)
    assert len({example.category for example in parts.gen}) == 21

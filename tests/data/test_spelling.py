"""Features of spellings, and the numbers that vocabularies give them."""

import subprocess
import sys

import pytest

from probtx_pyro.data import Vocabulary, spelling_features
from probtx_pyro.data.text import spelling_numbers, word_shape

WORDS = ["Yes", "a", "", "I'm", "McGraw-1990s", "#ÉTÉ", "🙂", "aaaaaaaaaaaaaa"]


def test_features_by_hand():
    assert [word_shape(word) for word in WORDS[3:6]] == ["A'a", "AaAaaa-0000a", "#AAA"]
    kinds = {}
    for feature in spelling_features("iPhone7s"):
        name, _, found = feature.partition(" ")
        kinds.setdefault(name, []).append(found)
    assert kinds["prefix"] == ["i", "iP", "iPh", "iPho"] and kinds["suffix"] == ["s", "7s", "e7s", "ne7s"]
    assert (kinds["small"], kinds["shape"], kinds["runs"]) == (["iphone7s"], ["aAaaaa0a"], ["aAa0a"])
    assert len(kinds) == 5


def test_every_word_has_as_many_and_two_spellings_differ():
    assert len({len(spelling_features(word)) for word in WORDS}) == 1
    assert len({spelling_features(word) for word in WORDS}) == len(WORDS)
    assert set(spelling_features("Bonn")) & set(spelling_features("Köln")) == {"suffix n", "shape Aaaa", "runs Aa"}


def test_numbers_are_rows_of_the_table_and_those_of_every_process():
    found = [spelling_numbers(word, 50) for word in WORDS]
    assert all(0 <= x < 50 for row in found for x in row)
    same = spelling_features("Bonn").index("suffix n")
    assert spelling_numbers("Bonn", 10**6)[same] == spelling_numbers("Köln", 10**6)[same]
    # crc32 of "suffix n" by its definition: the remainder of the reflected polynomial 0xEDB88320
    rest = 0xFFFFFFFF
    for byte in b"suffix n":
        rest ^= byte
        for _ in range(8):
            rest = rest >> 1 ^ (0xEDB88320 if rest & 1 else 0)
    assert spelling_numbers("Bonn", 10**6)[same] == (rest ^ 0xFFFFFFFF) % 10**6


@pytest.mark.slow
def test_another_process_numbers_alike():
    """Python's own hash of a text is another in every process."""
    code = "from probtx_pyro.data.text import spelling_numbers; print(spelling_numbers('McGraw-1990s', 997))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str(spelling_numbers("McGraw-1990s", 997))


def test_a_vocabulary_gives_unknown_words_their_spelling():
    plain, spelled = Vocabulary("word", ("?", "to", "be")), Vocabulary("word", ("?", "to", "be"), 64)
    (row,) = spelled.numbers([["be", "Bonn"]])
    assert row[:, 0].tolist() == plain.numbers([["be", "Bonn"]])[0].tolist() == [2, 0]
    assert row[:, 1:].tolist() == [list(spelling_numbers(word, 64)) for word in ("be", "Bonn")]

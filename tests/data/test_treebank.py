"""The treebanks by name, and that the annotation of the small one keeps the rules of Universal Dependencies."""

import os
import shutil

import pytest

from probtx_pyro.data.conllu import PUBLISHED, load_treebank, read_conllu, write_conllu

SMALL = PUBLISHED["small"]["train"]
ALL = read_conllu(SMALL)
NOMINAL = {"NOUN", "PROPN", "PRON", "NUM"}
PREDICATE = {"VERB", "ADJ", "NOUN"}
# For each relation: what the word may be, and what its head may be.
PAIRS = {
    "acl:relcl": ({"VERB"}, {"NOUN", "PRON"}),
    "advcl": ({"VERB"}, {"VERB"}),
    "advmod": ({"ADV", "PART"}, {"VERB", "ADJ", "ADV", "NOUN"}),
    "amod": ({"ADJ"}, {"NOUN"}),
    "appos": ({"NOUN"}, {"NOUN"}),
    "aux": ({"AUX"}, {"VERB"}),
    "aux:pass": ({"AUX"}, {"VERB"}),
    "case": ({"ADP", "PART"}, NOMINAL),
    "cc": ({"CCONJ"}, PREDICATE | NOMINAL),
    "ccomp": ({"VERB", "ADJ"}, {"VERB"}),
    "compound": ({"NOUN"}, {"NOUN"}),
    "compound:prt": ({"ADP"}, {"VERB"}),
    "conj": (PREDICATE | NOMINAL, PREDICATE | NOMINAL),
    "cop": ({"AUX"}, {"ADJ", "NOUN"}),
    "csubj": ({"VERB"}, {"ADJ"}),
    "det": ({"DET"}, {"NOUN"}),
    "discourse": ({"INTJ"}, {"VERB"}),
    "expl": ({"PRON"}, {"VERB", "ADJ"}),
    "flat": ({"PROPN"}, {"PROPN"}),
    "iobj": ({"PRON"}, {"VERB"}),
    "mark": ({"SCONJ", "PART"}, {"VERB"}),
    "nmod": (NOMINAL, {"NOUN"}),
    "nmod:poss": ({"PRON", "PROPN", "NOUN"}, {"NOUN"}),
    "nsubj": (NOMINAL, PREDICATE),
    "nsubj:pass": (NOMINAL, {"VERB"}),
    "nummod": ({"NUM"}, {"NOUN"}),
    "obj": (NOMINAL, {"VERB"}),
    "obl": (NOMINAL, {"VERB", "ADJ", "ADV"}),
    "obl:agent": (NOMINAL, {"VERB"}),
    "punct": ({"PUNCT"}, PREDICATE | NOMINAL),
    "vocative": ({"PROPN"}, {"VERB"}),
    "xcomp": ({"VERB", "ADJ"}, {"VERB"}),
}
ALWAYS = {"DET": {"det"}, "CCONJ": {"cc"}, "SCONJ": {"mark"}, "PUNCT": {"punct"}, "AUX": {"aux", "aux:pass", "cop"}}
LEAVES = {"case", "cc", "cop", "aux", "aux:pass", "det", "mark", "punct", "expl"}


def arcs(sentence):
    """(word, part of speech, head, its part of speech, relation), words counted from 1."""
    for word, (upos, head, relation) in enumerate(
        zip(sentence.upos, sentence.heads, sentence.relations, strict=True), 1
    ):
        yield word, upos, head, sentence.upos[head - 1] if head else "ROOT", relation


def inside(sentence, word, top):
    """Whether ``word`` hangs under ``top``, or is it."""
    while word not in (0, top):
        word = sentence.heads[word - 1]
    return word == top


def projective(sentence):
    return all(
        inside(sentence, between, head)
        for word, _, head, _, _ in arcs(sentence)
        for between in range(min(word, head) + 1, max(word, head))
    )


def test_the_size_and_shape_of_the_small_treebank():
    assert len(ALL) >= 70 and len({sentence.words for sentence in ALL}) == len(ALL)
    assert all(3 <= len(sentence.words) <= 16 for sentence in ALL)
    assert all(sentence.heads.count(0) == 1 for sentence in ALL)
    assert sum(not projective(sentence) for sentence in ALL) == 4
    assert sum("-" in line.split("\t")[0] for sentence in ALL for line in sentence.lines) >= 8
    assert sum(sentence.words[-1] == "?" for sentence in ALL) >= 8
    assert "licensed under Apache-2.0" in ALL[0].comments[1]


@pytest.mark.parametrize("sentence", ALL, ids=lambda sentence: sentence.comments[-2].split()[-1])
def test_parts_of_speech_fit_relations(sentence):
    for word, upos, head, head_upos, relation in arcs(sentence):
        if relation == "root":
            assert head == 0 and upos in PREDICATE
            continue
        dependents, heads = PAIRS[relation]
        assert upos in dependents and head_upos in heads, (word, upos, relation, head_upos)
        assert relation in ALWAYS.get(upos, {relation})
        assert not head or sentence.relations[head - 1] not in LEAVES, f"word {word} hangs on a function word"
        assert relation not in ("conj", "flat", "appos") or head < word
        assert relation not in ("det", "cop", "aux", "aux:pass", "mark", "cc") or head > word
        if relation == "cc":
            assert sentence.relations[head - 1] == "conj"
        if relation == "acl:relcl":
            assert word > head
        if upos == "PUNCT":
            final = word == len(sentence.words)
            aside = {"conj", "advcl", "appos", "vocative"}
            assert sentence.relations[head - 1] in ({"root"} if final else aside)
    for head in range(1, len(sentence.words) + 1):
        under = [relation.split(":")[0] for _, _, other, _, relation in arcs(sentence) if other == head]
        assert all(under.count(once) <= 1 for once in ("nsubj", "csubj", "obj", "iobj", "cop", "case"))
        passive = {"nsubj:pass", "aux:pass"} & {r for _, _, other, _, r in arcs(sentence) if other == head}
        assert len(passive) in (0, 2)


@pytest.mark.parametrize("sentence", ALL, ids=lambda sentence: sentence.comments[-2].split()[-1])
def test_the_text_is_that_of_the_words(sentence):
    text, covered = "", 0
    for line in sentence.lines:
        fields = line.split("\t")
        first, _, last = fields[0].partition("-")
        if last:
            assert fields[1] == "".join(sentence.words[int(first) - 1 : int(last)])
            covered = int(last)
        if last or int(first) > covered:
            text += fields[1] + ("" if fields[9] == "SpaceAfter=No" else " ")
    assert sentence.comments[-1] == f"# text = {text.strip()}"


def test_lemmas_of_closed_classes():
    forms = {}
    for sentence in ALL:
        for form, lemma, upos in zip(sentence.words, sentence.lemmas, sentence.upos, strict=True):
            assert forms.setdefault((form.lower(), upos), lemma) == lemma
            assert lemma == form or lemma == lemma.lower() or lemma == "I", form
            if upos in ("ADP", "CCONJ", "SCONJ", "INTJ", "NUM", "PUNCT"):
                assert lemma == form.lower()
    assert {lemma for (_, upos), lemma in forms.items() if upos == "AUX"} <= {
        "be",
        "can",
        "do",
        "have",
        "must",
        "will",
        "would",
    }


def test_small_is_split_in_its_order():
    parts = load_treebank()
    assert parts.train + parts.dev == ALL and len(parts.dev) == round(0.2 * len(ALL)) and parts.test == []
    known = {pair for sentence in parts.train for pair in zip(sentence.upos, sentence.relations, strict=True)}
    assert {pair for sentence in parts.dev for pair in zip(sentence.upos, sentence.relations, strict=True)} <= known


def test_treebanks_of_the_users_own_are_read(tmp_path):
    shutil.copy(SMALL, tmp_path / "mine.conllu")
    assert load_treebank(tmp_path / "mine.conllu", dev_share=0.5).dev == ALL[-round(len(ALL) / 2) :]
    folder = tmp_path / "parts"
    folder.mkdir()
    for part, sentences in (("train", ALL[:5]), ("dev", ALL[5:7]), ("test", ALL[7:8])):
        write_conllu(sentences, folder / f"mine-{part}.conllu.gz")
    assert load_treebank(folder) == (ALL[:5], ALL[5:7], ALL[7:8])
    with pytest.raises(ValueError, match=r"there is no file or folder ewt2; give one, or one of small, ewt"):
        load_treebank("ewt2")


@pytest.mark.skipif("PROBTX_DATA" not in os.environ, reason="needs $PROBTX_DATA")
def test_english_web_treebank_is_the_published_one():
    parts = load_treebank("ewt")
    counts = [(len(part), sum(len(sentence.words) for sentence in part)) for part in parts]
    assert counts == [(12544, 204577), (2001, 25147), (2077, 25094)]
    assert all(sentence.heads.count(0) == 1 for part in parts for sentence in part)
    assert [sum(not projective(sentence) for sentence in part) for part in parts[1:]] == [31, 26]
    assert len({upos for part in parts for sentence in part for upos in sentence.upos}) == 17
    assert len({xpos for sentence in parts.train for xpos in sentence.xpos}) == 49
    assert len({relation for sentence in parts.train for relation in sentence.relations}) == 51

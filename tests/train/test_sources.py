import pytest

from probtx_pyro.data.cogs import Cogs, read_cogs
from probtx_pyro.train import classified_texts, sources, tagged_sentences

ROWS = "".join(
    f"{i}\t{w}\t_\t{u}\t{x}\t_\t{h}\tdep\t_\t_\n"
    for i, w, u, x, h in ((1, "a", "DET", "DT", 2), (2, "cat", "NOUN", "NN", 0))
)
SENTENCE = ("a", "cat")


@pytest.mark.parametrize(("column", "tags"), [("upos", ("DET", "NOUN")), ("xpos", ("DT", "NN"))])
def test_a_folder_of_treebanks(column, tags, tmp_path):
    for name, number in (("train", 5), ("dev", 2), ("test", 1)):
        (tmp_path / f"en-ud-{name}.CoNLLU").write_text((ROWS + "\n") * number)
    found = tagged_sentences(str(tmp_path), column)
    assert {name: len(part) for name, part in found.parts.items()} == {"train": 5, "dev": 2, "test": 1}
    assert found.parts["test"][0] == (SENTENCE, tuple((tag,) for tag in tags))
    assert found.select == "accuracy" and not found.metrics


@pytest.mark.parametrize(
    ("tags", "select"), [("OB", "accuracy"), (("O", "B-cat"), "span_f1"), (("O", "B"), "accuracy")]
)
def test_tags_that_are_all_bio_are_entities(tags, select, tmp_path):
    (tmp_path / "a.tsv").write_text(
        "".join(f"{w}\t{t}\n" for w, t in zip(SENTENCE, tags, strict=True))
        + "\n"
        + "".join(f"x{i}\tO\n\n" for i in range(9))
    )
    found = tagged_sentences(str(tmp_path / "a.tsv"))
    assert found.select == select and set(found.metrics) == {select} - {"accuracy"}
    assert found.parts["train"][0] == (SENTENCE, tuple((tag,) for tag in tags))
    assert len(found.parts["train"]) == 9 and len(found.parts["dev"]) == 1


def test_cogs_has_five_tags_a_word_and_parents_by_distance(monkeypatch):
    line = "A cat liked that a dog slept .\tcat ( x _ 1 ) AND like . agent ( x _ 2 , x _ 1 ) AND like . ccomp ( x _ 2 , x _ 6 ) AND dog ( x _ 5 ) AND sleep . agent ( x _ 6 , x _ 5 )\tin_distribution"
    rows = read_cogs([line])
    monkeypatch.setattr(sources, "load_cogs", lambda: Cogs(rows, rows, rows, rows))
    found = tagged_sentences("cogs")
    assert set(found.parts) == {"train", "dev", "test", "gen"} and found.select == "sentence_accuracy"
    labels = found.parts["gen"][0].labels
    assert [row[0] for row in labels] == ["_", "1", "_", "_", "_", "1", "-4", "_"]
    assert labels[1][1:] == ("agent", "noun", "indefinite", "_") and labels[6][1:] == ("ccomp", "verb", "_", "sleep")


def test_texts_become_words(tmp_path):
    (tmp_path / "a.csv").write_text("text,category\n" + "Rain!,weather\n" + "Rain,weather\n" * 9)
    found = classified_texts(str(tmp_path / "a.csv"))
    assert [(["rain", "!"], "weather")] in (found["dev"], found["train"]) and found["test"] == []
    assert sorted(len(found[part]) for part in ("dev", "train")) == [1, 9]  # equal texts are in one part

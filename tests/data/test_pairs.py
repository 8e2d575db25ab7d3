import gzip
import hashlib
import json

import pytest

from probtx_pyro.data import Pair, Tokenizer, files, load_pairs, pairs, read_pairs

LINES = [f"sentence {i // 2}\tSatz {i}" for i in range(200)]  # two translations of each


def test_pairs_are_read_as_they_are(tmp_path):
    path = tmp_path / "pairs.tsv.gz"
    path.write_bytes(gzip.compress('\ufeffGo.\tGeh.\tCC-BY 2.0\r\n\r\n Hi. \tHallo "du"!\r\n'.encode()))
    assert read_pairs(path) == [Pair("Go.", "Geh."), Pair("Hi.", 'Hallo "du"!')]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Go.\tGeh.\nHi.\n", "line 2: give a sentence, a tab and its translation"),
        ("Go.\t \n", "line 1: give a sentence"),
        ("\n\n", "has no pairs; give"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, message):
    (tmp_path / "pairs.tsv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_pairs(tmp_path / "pairs.tsv")


def test_parts_share_no_sentence(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(LINES))
    parts = load_pairs(path, dev_share=0.1, test_share=0.2)
    assert [len(part) for part in parts] == [140, 20, 40]
    assert sorted(pair for part in parts for pair in part) == sorted(read_pairs(LINES))
    for side in (0, 1):
        texts = [{pair[side] for pair in part} for part in parts]
        assert not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])
    assert parts == load_pairs(path, dev_share=0.1, test_share=0.2)
    assert parts != load_pairs(path, dev_share=0.1, test_share=0.2, seed=1)
    assert parts.test != sorted(parts.test)[:40] and not load_pairs(path, test_share=0.0).test
    with pytest.raises(ValueError, match=r"dev_share 0.002 of 200 items, .* leaves a part empty"):
        load_pairs(path, dev_share=0.002)
    with pytest.raises(ValueError, match=r"test_share 0.95 of 200 items, .* leaves a part empty"):
        load_pairs(path, test_share=0.95)


def test_a_folder_has_its_own_parts(tmp_path):
    for part, lines in {"train": LINES[:100], "dev": LINES[100:150], "test": LINES[150:]}.items():
        (tmp_path / f"{part}.tsv").write_text("\n".join(lines))
    parts = load_pairs(tmp_path)
    assert [len(part) for part in parts] == [100, 50, 50] and parts.train == read_pairs(LINES[:100])
    with pytest.raises(ValueError, match="there is no file or folder nowhere; give one, or one of tatoeba"):
        load_pairs("nowhere")


def test_the_publisher_s_file_is_the_one_of_the_data_folder_in_other_clothes(tmp_path, monkeypatch):
    content = "\n".join(LINES) + "\n"
    monkeypatch.setattr(pairs, "SHA256", hashlib.sha256(content.encode()).hexdigest())
    folder = tmp_path / "tatoeba_en_de"
    folder.mkdir()
    (folder / "pairs.tsv.gz").write_bytes(gzip.compress(content.encode()))
    monkeypatch.setenv("PROBTX_DATA", str(tmp_path))
    own = load_pairs()
    assert sum(map(len, own)) == 200
    monkeypatch.delenv("PROBTX_DATA")
    theirs = tmp_path / "deu.txt"
    theirs.write_bytes(("1\t2\n" + content).replace("\n", "\r\n").encode())
    monkeypatch.setattr(pairs, "download", lambda url, names, sha256: theirs)
    assert load_pairs() == own
    theirs.write_bytes(theirs.read_bytes().replace(b"Satz 7", b"Satz 8"))
    with pytest.raises(ValueError, match="does not hold the published pairs"):
        load_pairs()
    assert pairs.ADDRESS.startswith(files.GITHUB)


@pytest.mark.parametrize("level", ["subword", "word"])
def test_a_tokenizer_gives_the_text_back_and_is_its_text(level):
    lines = [text for pair in read_pairs(LINES) for text in pair]
    tokenizer = Tokenizer.of(lines, level, size=400)
    assert tokenizer.tokens[:3] == ("<unknown>", "<start>", "<end>") and len(tokenizer.tokens) <= 400
    for line in ("sentence 7", "Satz 199", "sentence Satz 1"):
        numbers = tokenizer.encode(line)
        assert tokenizer.decode(numbers) == line and numbers.min() > 2
    again = Tokenizer(tokenizer.text)
    assert again.tokens == tokenizer.tokens and again.text == tokenizer.text
    assert again.encode("Satz 12").tolist() == tokenizer.encode("Satz 12").tolist()
    assert json.loads(tokenizer.text)  # no library of its own to read it


def test_unknown_words_are_counted_and_subwords_know_everything():
    lines = ["the cat sleeps", "the dog sleeps"]
    words = Tokenizer.of(lines, "word", size=6)  # the, sleeps and cat
    assert words.unknown_share(["the bird sleeps"]) == 1 / 3 and words.encode("the dog").tolist()[1] == 0
    assert words.decode(words.encode("the dog sleeps")) == "the sleeps"
    assert words.unknown_share([]) == 0
    subwords = Tokenizer.of(lines, size=300)
    strange = "Größe 漢字 <end> \t\x00!"
    assert subwords.unknown_share([strange]) == 0 and subwords.decode(subwords.encode(strange)) == strange
    assert not {1, 2} & set(subwords.encode(strange).tolist())  # "<end>" in a text does not end it


def test_frequent_pairs_become_tokens():
    tokenizer = Tokenizer.of(["lower slower"] * 5, size=300)
    assert len(tokenizer.encode("lower slower")) == 2 < len(tokenizer.encode("wolf"))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"level": "char"}, "level must be one of subword, word, not 'char'"),
        ({"size": 258}, "size must be 259 or more for the level subword, not 258"),
        ({"level": "word", "size": 3}, "size must be 4 or more for the level word"),
    ],
)
def test_bad_sizes_and_levels_are_one_clear_error(how, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.of(["a b"], **how)
    with pytest.raises(ValueError, match="text holds no tokenizer"):
        Tokenizer("{}")

import gzip
import hashlib
import sys
import types

import pytest

from probtx_pyro.data import text
from probtx_pyro.data.files import read_text
from probtx_pyro.data.text import Text, Vocabulary, load_text

CONTENT = "First Citizen:\nBefore we proceed, speak.\n" * 10  # 410 characters


@pytest.fixture
def corpus(monkeypatch):
    """A stand-in for the published file: its checksum is that of `CONTENT`."""
    remote = text.REMOTE["tinyshakespeare"]["training"]
    digest = hashlib.sha256(CONTENT.encode()).hexdigest()
    monkeypatch.setitem(text.REMOTE, "tinyshakespeare", {"training": remote._replace(sha256=digest)})
    monkeypatch.delenv("PROBTX_DATA", raising=False)
    return remote


def test_a_file_plain_or_gzipped(tmp_path):
    (tmp_path / "a.txt").write_text(CONTENT, encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(CONTENT.encode()))
    for name in ("a.txt", "a.txt.gz"):
        found = load_text(tmp_path / name, validation_share=0.2)
        assert found == Text(CONTENT[:328], CONTENT[328:])  # four fifths of 410


def test_the_default_is_the_help_of_python():
    found = load_text()
    assert "class" in found.training and len(found.training) > 100_000


def test_a_local_folder_stands_for_the_network_and_is_checked(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("PROBTX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"there is no file .*input.txt.gz"):
        load_text("tinyshakespeare")
    (tmp_path / "tinyshakespeare").mkdir()
    path = tmp_path / "tinyshakespeare" / "input.txt.gz"
    path.write_bytes(gzip.compress(CONTENT.encode()))
    assert "".join(load_text("tinyshakespeare")) == CONTENT
    path.write_bytes(gzip.compress(CONTENT.replace("speak", "speek").encode()))
    with pytest.raises(ValueError, match=r"not the published file \(its SHA-256 differs\)"):
        load_text("tinyshakespeare")


def test_without_one_pooch_downloads_and_checks(corpus, tmp_path, monkeypatch):
    asked = []

    def retrieve(url, known_hash, path):
        asked.append((url, known_hash))
        (tmp_path / "input.txt").write_text(CONTENT, encoding="utf-8")
        return str(tmp_path / "input.txt")

    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve, os_cache=lambda name: name))
    assert "".join(load_text("tinyshakespeare")) == CONTENT
    digest = hashlib.sha256(CONTENT.encode()).hexdigest()
    assert asked == [(corpus.url, f"sha256:{digest}")] and corpus.url.startswith("https://")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ModuleNotFoundError, match=r"downloads need pooch.*or set PROBTX_DATA"):
        load_text("tinyshakespeare")


def test_bad_files_in_one_line(tmp_path):
    (tmp_path / "latin.txt").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(CONTENT.encode())[:40])
    (tmp_path / "short.txt").write_text("a")
    for name, message in (
        ("nowhere.txt", r"there is no file .*or one of topics, tinyshakespeare, wikitext2"),
        ("", r"is a folder; give a text file"),
        ("latin.txt", r"is not UTF-8 text \(byte 2\)"),
        ("cut.txt.gz", r"cannot be read"),
        ("short.txt", r"has 1 characters, too few"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            load_text(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="validation_share must be between 0 and 1"):
        load_text("topics", validation_share=1.0)


def test_vocabularies_number_characters_and_words():
    characters = Vocabulary.of("abba\n")
    assert characters.tokens == (text.UNKNOWN, "\n", "a", "b")
    assert characters.encode("ab?\n").tolist() == [2, 3, 0, 1]
    words = Vocabulary.of("to be\nor  not to be\n", "word")
    assert words.tokens == (text.UNKNOWN, "<eos>", "be", "not", "or", "to")
    assert words.encode("to bee\n").tolist() == [5, 0, 1]
    with pytest.raises(ValueError, match="level must be one of char, word"):
        Vocabulary.of("a", "syllable")


def test_every_line_of_a_text_ends_alike_and_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\r\r\n")
    assert read_text(tmp_path / "dos.txt") == "a\nb\nc\n\n"

"""Which file is which part, and what is held out."""

import hashlib
import sys
from types import SimpleNamespace

import pytest

from probtx_pyro.data.files import Remote, Splits, fetch, held_out, load_splits, part_paths, read_lines


def letters(path):
    return list(path.read_text())


def test_published_parts_are_fetched_or_installed(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "b.txt").write_text("d")
    remote = Remote("a.txt", "https://example.org/a.txt", hashlib.sha256(b"abc").hexdigest())
    monkeypatch.setenv("PROBTX_DATA", str(tmp_path))
    published = {"corpus": {"train": remote, "dev": tmp_path / "b.txt"}}
    assert load_splits("corpus", published, letters, 0.5) == Splits(["a", "b", "c"], ["d"], [])
    with pytest.raises(ValueError, match=r"there is no file or folder corpsu; give one, or one of corpus"):
        part_paths("corpsu", published)
    (tmp_path / "a.txt").write_text("abd")
    with pytest.raises(ValueError, match=r"a.txt is not the published file"):
        fetch(remote)


def test_a_file_is_split_at_its_end_or_by_a_seed(tmp_path):
    (tmp_path / "letters").write_text("abcdefghij")
    assert load_splits(tmp_path / "letters", {}, letters, 0.3) == Splits(list("abcdefg"), list("hij"), [])
    train, dev = held_out("abcdefghij", {"dev": 0.3}, seed=1).values()
    assert sorted(train + dev) == list("abcdefghij") and train == sorted(train) and dev == sorted(dev)
    assert held_out("abcdefghij", {"dev": 0.3}, seed=1)["dev"] == dev
    assert any(held_out("abcdefghij", {"dev": 0.3}, seed=seed)["dev"] != dev for seed in range(2, 5))


def test_a_share_may_not_empty_a_part():
    for share in (0.0, 1.0, 0.01, -1.0):
        with pytest.raises(ValueError, match=r"dev_share .* of 10 items, .* leaves a part empty"):
            held_out("abcdefghij", {"dev": share})
    assert held_out("abcd", {"dev": 0.25, "test": 0.0}) == {"train": list("abc"), "dev": ["d"], "test": []}


@pytest.mark.parametrize("seed", [None, *range(5)])
def test_what_is_connected_stays_together(seed):
    """Chains: each item shares a text with the next on one side or the other; a loop over parts finds none in two."""
    chains = [[(f"a{k}", f"x{k}"), (f"a{k}", f"y{k}"), (f"b{k}", f"y{k}"), (f"b{k}", f"z{k}")] for k in range(30)]
    items = [chain[i] for i in range(4) for chain in chains]
    parts = held_out(items, {"dev": 0.1, "test": 0.2}, seed, texts=iter)
    assert sorted(x for part in parts.values() for x in part) == sorted(items)
    assert [len(part) for part in parts.values()] == [84, 12, 24]
    for k, chain in enumerate(chains):
        assert sum(any(x in part for x in chain) for part in parts.values()) == 1, k
    swapped = held_out([("a", "b"), ("b", "c")], {"dev": 0.5}, seed, texts=iter)
    assert len(swapped["dev"]) == 1  # "b" stands on another side in each


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x-train.txt", "x-dev.txt", "x-test.txt"], {"train": 0, "dev": 1, "test": 2}),
        (["wnut17train.conll", "emerging.test.annotated", "contest.txt"], {"train": 0, "test": 1}),
        (["Training.csv", "validation.csv", "notes"], {"train": 0, "dev": 1}),
    ],
)
def test_parts_by_file_names(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).write_text("ab")
    assert part_paths(tmp_path, {}) == {part: tmp_path / names[i] for part, i in expected.items()}


def test_folders_that_do_not_tell(tmp_path):
    with pytest.raises(ValueError, match="has no file with 'train' in its name"):
        part_paths(tmp_path, {})
    for name in ("a-train.txt", "b-train.txt"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"has two train files, a-train.txt and b-train.txt; keep one"):
        part_paths(tmp_path, {})


def test_lines_without_their_ends(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfa\r\n\nb ")
    assert read_lines(tmp_path / "dos.txt") == (str(tmp_path / "dos.txt"), ["a", "", "b "])
    assert read_lines(["\ufeffa\r\n", "\n", "b "]) == ("the lines", ["a", "", "b "])
    with (tmp_path / "dos.txt").open(encoding="utf-8") as file:  # as it is opened, with the mark
        assert read_lines(file) == (str(tmp_path / "dos.txt"), ["a", "", "b "])
    (tmp_path / "latin.txt").write_bytes(b"a\nb\n\xe4\n")
    with pytest.raises(ValueError, match=r"latin.txt, line 3: this is not UTF-8 text \(byte 4\)"):
        read_lines(str(tmp_path / "latin.txt"))


def test_a_download_without_pooch(monkeypatch):
    monkeypatch.delenv("PROBTX_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ModuleNotFoundError, match="downloads need pooch"):
        fetch(Remote("a", "https://example.org/a", ""))


def test_a_download_without_a_connection(monkeypatch):
    def retrieve(*arguments, **options):
        raise ConnectionError("no route")

    monkeypatch.delenv("PROBTX_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", SimpleNamespace(retrieve=retrieve, os_cache=lambda name: name))
    with pytest.raises(ValueError, match=r"https://example.org/a cannot be downloaded .* PROBTX_DATA .* with a"):
        fetch(Remote("a", "https://example.org/a", ""))

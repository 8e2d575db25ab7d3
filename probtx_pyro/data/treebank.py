"""Dependency treebanks by name: the small one written for this project, UD English EWT, or the user's CoNLL-U files."""

from pathlib import Path

from probtx_pyro.data._fetch import on_github
from probtx_pyro.data._splits import Published, Splits, load_splits
from probtx_pyro.data.conllu import Sentence, read_conllu

# Each address serves the part's CoNLL-U file of the repository at that commit, uncompressed, as text.
PUBLISHED: Published = {
    "small": {"train": Path(__file__).with_name("small_treebank.conllu")},
    "ewt": on_github(
        "ud_english_ewt",
        "UniversalDependencies/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb",
        train=("en_ewt-ud-train.conllu", "3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b"),
        dev=("en_ewt-ud-dev.conllu", "531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6"),
        test=("en_ewt-ud-test.conllu", "e266e515a0a7547657ed3d90d9ba46487d6bd251f27ad4269d4e8a427c8555cd"),
    ),
}


def load_treebank(source: str | Path = "small", dev_share: float = 0.2) -> Splits[Sentence]:
    """A treebank by name, or the user's.

    Parameters
    ----------
    source
        ``"small"``, written for this project and installed with it; ``"ewt"``, the UD English Web Treebank (Silveira et
        al. 2014, CC BY-SA 4.0), from ``$PROBTX_DATA`` or downloaded once; or the path of a file or folder, see
        `part_paths`.
    dev_share
        How much of the end of a treebank without a dev part becomes one.

    Raises
    ------
    ValueError
        Of `part_paths` and `read_conllu`.

    Examples
    --------
    >>> load_treebank().train[0].words
    ('The', 'cat', 'sleeps', '.')
    """
    return load_splits(source, PUBLISHED, read_conllu, dev_share)

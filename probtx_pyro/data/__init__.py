"""Readers, toy problems with known truth, and downloads with checksums."""

from probtx_pyro.data.images import Digits, Photograph, load_digits, load_pagoda
from probtx_pyro.data.splits import Splits
from probtx_pyro.data.treebank import Sentence, load_treebank, read_conllu, write_conllu

__all__ = [
    "Digits",
    "load_digits",
    "Photograph",
    "load_pagoda",
    "Splits",
    "Sentence",
    "load_treebank",
    "read_conllu",
    "write_conllu",
]

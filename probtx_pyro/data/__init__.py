"""Readers, corpora and pictures by name, a small trained transformer, and downloads with checksums."""

from probtx_pyro.data import text_transformer
from probtx_pyro.data._fetch import read_lines
from probtx_pyro.data._splits import Splits
from probtx_pyro.data.cogs import Cogs, CogsExample, Tags, load_cogs, logical_form_of, read_cogs, tags_of
from probtx_pyro.data.conllu import Sentence, read_conllu, write_conllu
from probtx_pyro.data.idx import Fashion, load_fashion, read_idx
from probtx_pyro.data.images import Digits, Photograph, load_digits, load_pagoda
from probtx_pyro.data.labelled import Labelled, load_labelled, read_labelled, tokenize
from probtx_pyro.data.listops import load_listops, read_listops
from probtx_pyro.data.pairs import Pair, load_pairs, read_pairs
from probtx_pyro.data.spelling import spelling_features
from probtx_pyro.data.table import Table, read_table
from probtx_pyro.data.tagged import Tagged, load_entities, read_tagged
from probtx_pyro.data.text import Text, Vocabulary, load_text
from probtx_pyro.data.tokenizer import Tokenizer
from probtx_pyro.data.treebank import load_treebank

__all__ = [
    "Digits", "load_digits", "Photograph", "load_pagoda", "Fashion", "load_fashion", "read_idx",
    # rows of numbers
    "Table", "read_table", "read_lines",
    # text, its tokens, and a transformer that was trained on it
    "Text", "load_text", "Vocabulary", "spelling_features", "text_transformer",
    # every corpus of sentences comes in these parts
    "Splits",
    # dependency trees; a tag for each word; a label for each text; compositional generalisation; translations
    "Sentence", "load_treebank", "read_conllu", "write_conllu",
    "Tagged", "load_entities", "read_tagged",
    "Labelled", "load_labelled", "read_labelled", "tokenize",
    "load_listops", "read_listops",
    "Cogs", "CogsExample", "Tags", "load_cogs", "read_cogs", "tags_of", "logical_form_of",
    "Pair", "load_pairs", "read_pairs", "Tokenizer",
]  # fmt: skip

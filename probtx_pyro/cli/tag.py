"""Tag the words of sentences with a trained tagger.

  probtx train tagger --data treebank.conllu --out runs/tags
  probtx tag sentences.txt --model runs/tags --out tags.tsv
  echo "the cat sleeps ." | probtx tag - --model runs/tags

In: a sentence a line, words between spaces, where the name ends in .txt; CoNLL-U where it ends in .conllu (both also
.gz); any other file, and standard input, is what its first line of words looks like. Out: a word a line, its tag and
the tag's probability behind it, tabs between them, an empty line after each sentence (a blank line in is one of no
words): on standard output, or in the file of --out.
"""

import argparse
from pathlib import Path

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _texts as texts

SUMMARY = "tags of the words of sentences, by a trained tagger"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx tag``."""
    add = parser.add_argument
    add("sentences", type=Path, metavar="FILE", help="text or CoNLL-U, plain or .gz; - is standard input")
    add("--model", required=True, type=Path, metavar="DIR", help="folder of a run of probtx train tagger")
    add("--out", type=Path, metavar="FILE", help="write here (default, and -: standard output)")
    options.add_shared(parser, "--device", "--threads")


def run(arguments: argparse.Namespace) -> None:
    """Read, tag and write."""
    out = options.out_file(arguments.out, arguments.sentences)
    from probtx_pyro.apps import tag_words

    loaded = texts.load(arguments.model, arguments.device, "WordTagger")
    read = texts.sentences(arguments.sentences)
    sentences = read.words
    with texts.named_rows(arguments.sentences, read.kind):
        tagged = tag_words(loaded.model, loaded.vocabulary, loaded.labels, sentences)
    rows = "".join(
        "".join(
            "\t".join([word, *(f"{guess.label}\t{guess.probability:.4f}" for guess in guesses)]) + "\n"
            for word, guesses in zip(words, found, strict=True)
        )
        + "\n"
        for words, found in zip(sentences, tagged, strict=True)
    )
    options.write(out, rows)
    texts.say_unfinished(arguments.model, loaded)
    texts.say_unknown(loaded, (word for words in sentences for word in words), arguments.sentences)

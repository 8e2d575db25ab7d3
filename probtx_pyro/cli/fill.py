"""Guess words that are missing with a trained masked language model.

  probtx train mlm --text novel.txt --out runs/masked
  echo "the [MASK] sat on the mat ." | probtx fill - --model runs/masked
  probtx fill sentences.txt --model runs/masked --top 3

A sentence a line in, words between spaces, [MASK] in the place of those to guess; blank lines are passed over. A line
out for each hidden word: number of the line, number of the word, and the guesses with their probabilities, tabs between
them. Words of one sentence are guessed each by itself.
"""

import argparse
import sys
from pathlib import Path

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _texts as texts

SUMMARY = "words that are missing, by a trained masked language model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx fill``."""
    add = parser.add_argument
    add("sentences", type=Path, metavar="FILE", help="text, plain or .gz; - is standard input")
    add("--model", required=True, type=Path, metavar="DIR", help="folder of a run of probtx train mlm")
    add("--top", type=options.count, default=5, metavar="N", help="guesses for each word (default 5)")
    options.add_shared(parser, "--device", "--threads")


def run(arguments: argparse.Namespace) -> None:
    """Read, guess and print."""
    from probtx_pyro.apps import HIDDEN, fill_masked

    loaded = texts.load(arguments.model, arguments.device, "MaskedLanguageModel")
    sentences = [line.split() for line in texts.lines(arguments.sentences)]
    with texts.named_rows(arguments.sentences):
        filled = fill_masked(loaded.model, loaded.vocabulary, sentences, arguments.top)
    for number, (words, guesses) in enumerate(zip(sentences, filled, strict=True), 1):
        places = [place for place, word in enumerate(words, 1) if word == HIDDEN]
        for place, best in zip(places, guesses, strict=True):
            said = (f"{guess.label}\t{guess.probability:.4f}" for guess in best)
            sys.stdout.write("\t".join([str(number), str(place), *said]) + "\n")
    given = (word for words in sentences for word in words if word != HIDDEN)
    texts.say_unfinished(arguments.model, loaded)
    texts.say_unknown(loaded, given, arguments.sentences)

"""Translate sentences with a trained translation model.

  probtx train translation --data pairs.tsv --out runs/de
  probtx translate sentences.txt --model runs/de --out translations.txt
  echo "Where is Tom?" | probtx translate - --model runs/de --log-probability

A sentence a line in, its translation a line out; a blank line stays one. With --log-probability a tab stands behind
each translation, and the natural logarithm of the probability that the model gives to it.
"""

import argparse
from pathlib import Path

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _texts as texts

SUMMARY = "translations of sentences, by a trained translation model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx translate``."""
    add = parser.add_argument
    add("sentences", type=Path, metavar="FILE", help="text, plain or .gz; - is standard input")
    add("--model", required=True, type=Path, metavar="DIR", help="folder of a run of probtx train translation")
    add("--out", type=Path, metavar="FILE", help="write here (default, and -: standard output)")
    add("--log-probability", action="store_true", help="a second column with the log probability")
    add("--beam", type=options.count, metavar="N", help="sequences at a time; 1 is greedy (default: the run's)")
    add("--length-penalty", type=options.real, metavar="A", help="more favours long translations (default: the run's)")
    add("--batch", type=options.count, default=64, metavar="N", help="sentences at once (default 64)")
    options.add_shared(parser, "--device", "--threads")
    parser.set_defaults(names={"length_penalty": "--length-penalty"})


def run(arguments: argparse.Namespace) -> None:
    """Read, translate and write."""
    out = options.out_file(arguments.out, arguments.sentences)
    from probtx_pyro.apps import translate

    loaded = texts.load(arguments.model, arguments.device, "EncoderDecoder")
    sentences = texts.lines(arguments.sentences)
    how = {
        name: getattr(loaded.settings, name) if (given := getattr(arguments, name)) is None else given
        for name in ("beam", "length_penalty")
    }
    with texts.named_rows(arguments.sentences):
        found = translate(loaded.model, loaded.vocabulary, sentences, batch=arguments.batch, **how)
    with_log = arguments.log_probability
    rows = "".join(
        f"{each.text}\t{each.log_probability:.4f}\n" if with_log and sentence else f"{each.text}\n"
        for sentence, each in zip(sentences, found, strict=True)
    )
    options.write(out, rows)
    texts.say_unfinished(arguments.model, loaded)
    texts.say_unknown(loaded, sentences, arguments.sentences, "tokens")

"""Let a trained language model go on with a text.

  probtx train lm --attention gaussian-keys --text novel.txt --out runs/novel
  probtx generate runs/novel --prompt "It was" --tokens 300
  probtx generate runs/novel --temperature 0.8 --top-p 0.95 --seed 1 --number 3

Text out, on standard output, as it is drawn. The same seed gives the same text; a temperature of 0 takes the most
probable token.
"""

import argparse
import sys
from pathlib import Path

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _texts as texts

SUMMARY = "text from a trained language model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx generate``."""
    add = parser.add_argument
    add("model", type=Path, metavar="DIR", help="folder of a run of probtx train lm")
    add("--prompt", default="", metavar="TEXT", help="text to go on from (default: the start of a line)")
    add("--tokens", type=options.count, default=200, metavar="N", help="characters or words (default 200)")
    add("--temperature", type=options.real, default=1.0, metavar="T", help="divides the logits (default 1)")
    add("--top-p", type=options.real, default=1.0, metavar="P", help="draw from the fewest tokens that have P together")
    add("--number", type=options.count, default=1, metavar="N", help="texts, with seeds that follow each other")
    options.add_shared(parser, "--seed", "--device", "--threads")
    parser.set_defaults(names={"top_p": "--top-p", "temperature": "--temperature"})


def run(arguments: argparse.Namespace) -> None:
    """Print the prompt and what the model draws."""
    from probtx_pyro.apps import generate

    loaded = texts.load(arguments.model, arguments.device, "TransformerLM")
    by_word = loaded.vocabulary.level == "word"
    if arguments.prompt:
        tokens = arguments.prompt.split() if by_word else list(arguments.prompt)
        unknown = loaded.vocabulary.unknown_share(tokens)
        options.warn_unknown(unknown, "the prompt", "words" if by_word else "characters")
    how = {"temperature": arguments.temperature, "top_p": arguments.top_p}
    for number in range(arguments.number):
        how["seed"] = arguments.seed + number
        drawn = generate(loaded.model, loaded.vocabulary, arguments.prompt, num_tokens=arguments.tokens, **how)
        sys.stdout.write(arguments.prompt)
        for token in drawn:
            sys.stdout.write("\n" if token == "<eos>" else f" {token}" if by_word else token)
            sys.stdout.flush()
        sys.stdout.write("\n" + "-" * 20 * (number + 1 < arguments.number) + "\n" * (number + 1 < arguments.number))
    texts.say_unfinished(arguments.model, loaded)

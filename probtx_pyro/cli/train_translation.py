"""Train a translation model, an encoder-decoder with any of the attention layers, on pairs of sentences.

  probtx train translation --data pairs.tsv --out runs/de           a sentence, a tab and its translation on each line
  probtx train translation --attention gaussian-keys --heads 4 --head-dim 16 --out runs/mgk
  probtx train translation --out runs/mgk --resume --steps 5000     goes on from the checkpoint, and makes the run longer
  probtx train translation --preset iwslt --data folder --device cuda --precision bf16-mixed --out runs/large

--data is a file, of which one twentieth of the distinct sentences becomes dev and one test; a folder with files for
train, dev and test; or tatoeba, 50,001 short English-German pairs. Written to --out: checkpoint.pt, and results.json
with the settings, the loss of every step, the validation perplexities, and in the end perplexity and BLEU (sacreBLEU,
with its signature) of dev and test. --preset iwslt has the sizes that are usual for IWSLT'14 (the task of the paper's
table): it was never run for this library. Needs Lightning, tokenizers and sacreBLEU: pip install -e '.[train]' in the
folder of the repository
"""

import argparse
from statistics import fmean
from typing import Any

from probtx_pyro.cli import _choices as choices
from probtx_pyro.cli import _training as training

SUMMARY = "a translation model with any of the attention layers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train translation``."""
    from probtx_pyro import nn
    from probtx_pyro.data.tokenizer import LEVELS
    from probtx_pyro.train import TranslationSettings as Settings

    choices.add_choice(parser, "attention", Settings, choices.ATTENTION_OPTIONS, nn.ATTENTIONS)
    training.add_data(parser, "--data", "tatoeba", "tab-separated pairs (plain or .gz), a folder, or tatoeba")
    parser.add_argument("--level", choices=LEVELS, default=Settings.level, help="what a token is (default subword)")
    parser.add_argument("--preset", choices=training.PRESETS, help="defaults of another size (never run here)")
    training.add_settings(parser, Settings)


def run(arguments: argparse.Namespace, how: dict[str, Any]) -> None:
    """Train as ``how`` says, and say where the results are."""
    from probtx_pyro import train
    from probtx_pyro.data import load_pairs

    settings = training.settings(train.TranslationSettings, arguments)
    pairs = load_pairs(arguments.data)
    with training.threads(arguments, settings, fmean(len(pair.target.split()) for pair in pairs.train)):
        results = train.train_translation(settings, pairs, **how).results
    training.report(arguments, results, "probtx translate sentences.txt --model RUN")

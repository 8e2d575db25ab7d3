"""Train language models, taggers, masked language models,
classifiers and translation models whose attention is a probability model.

  probtx train lm --attention gaussian-keys --text novel.txt --out runs/novel
  probtx train tagger --data treebank.conllu --out runs/tags       tags of words, from CoNLL-U or from columns
  probtx train mlm --text novel.txt --out runs/masked              words that are hidden, from those around them
  probtx train classifier --data texts.csv --out runs/texts        categories of texts
  probtx train translation --data pairs.tsv --out runs/de          translations, from pairs of sentences
  probtx train TASK --help                                         what each takes

On one core or many machines: torchrun --nproc-per-node 2 -m probtx_pyro train TASK --out runs/two ... With --resume a
run goes on from the checkpoint in --out, with the options that it had; --steps may be more than they were. Written to
--out: checkpoint.pt, command.json (the options), and results.json with the settings, the loss of every step, the
validations, and the machine. Needs Lightning: pip install -e '.[train]' in the folder of the repository
"""

import argparse
from importlib import import_module

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _training as training

SUMMARY = "train language models, taggers, classifiers and translation models with the models of the library"
NEEDS = {  # packages of the extra train, by import name
    "lm": {"lightning": "Lightning"},
    "translation": {"lightning": "Lightning", "tokenizers": "tokenizers", "sacrebleu": "sacreBLEU"},
}
TASKS = ("lm", "tagger", "mlm", "classifier", "translation")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a command for each of `TASKS`, in a file of its own (``train_lm.py``,
    ...) made like those of `probtx_pyro.cli`.

    The ``run`` of a task also takes the options of the run, from `run_options`.
    """
    parser.set_defaults(run=lambda _: options.no_command(parser), names=training.OPTION_NAMES)
    tasks = parser.add_subparsers(title="tasks", metavar="TASK")
    for name in TASKS:
        module = import_module(f"probtx_pyro.cli.train_{name}")
        task = tasks.add_parser(
            name, help=module.SUMMARY, description=module.__doc__, fill=module.add_arguments, earlier=training.earlier
        )
        task.set_defaults(run=run, train=module.run, task=name)


def run(arguments: argparse.Namespace) -> None:
    """Train, and say where the results are."""
    for module, called in NEEDS.get(arguments.task, NEEDS["lm"]).items():
        options.require(module, called, "training", "train")
    import torch
    from torch import distributed

    mine = distributed.is_available() and not distributed.is_initialized()
    torch.set_flush_denormal(True)  # no sum can feel subnormal numbers, but a CPU multiplies them ten times slower
    try:
        how = training.run_options(arguments)
        if not arguments.resume:
            training.remember(arguments)
        arguments.train(arguments, how)
    except KeyboardInterrupt:
        if (arguments.out / "checkpoint.pt").exists():
            raise KeyboardInterrupt(
                f"probtx train {arguments.task} --resume --out {arguments.out} goes on from the last checkpoint"
            ) from None
        raise
    finally:
        torch.set_flush_denormal(False)
        if mine and distributed.is_initialized():  # its threads must end before the interpreter does, or may abort it
            distributed.destroy_process_group()

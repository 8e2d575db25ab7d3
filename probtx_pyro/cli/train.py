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
--out: checkpoint.pt (with the options), and results.json with the settings, the loss of every step, the validations,
and the machine. Needs Lightning: pip install -e '.[train]' in the folder of the repository
"""

import argparse
import inspect
import os
import shlex
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from probtx_pyro.cli import _choices as choices
from probtx_pyro.cli import _options as options

if TYPE_CHECKING:
    from probtx_pyro.train import Run
    from probtx_pyro.train.loop import LoopSettings, RunOptions

Settings = TypeVar("Settings", bound="LoopSettings")

SUMMARY = "train language models, taggers, classifiers and translation models with the models of the library"
# packages of the extra train, by import name
NEEDS = {"lightning": "Lightning"}
TRANSLATION_NEEDS = {**NEEDS, "tokenizers": "tokenizers", "sacrebleu": "sacreBLEU"}
# what a resumed run is not asked to repeat, and what says nothing of the run
OF_ONE_CALL = ("out", "resume", "no_progress", "device", "threads", "checkpoint_every")
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")
TEXTS = "UTF-8 text (plain or .gz), topics, tinyshakespeare or wikitext2"
# help of the options that set a number of the settings, by the name of the field
NUMBERS = {
    "num_steps": "AdamW steps",
    "batch": "rows of a batch, over all processes",
    "width": "channels of the model; for crf, labels",
    "dropout": "dropout rate",
    "lr": "peak learning rate",
    "validate_every": "steps between validations",
    "rarest": "a token that occurs less often is unknown",
    "context": "tokens of a row; for transformer, most words of a sentence or text",
    "heads": "attention heads",
    "head_dim": choices.HEAD_DIM,
    "layers": "transformer blocks",
    "mask": "share of the words of a row that are hidden",
    "unknown": "a word that occurs c times is made unknown with probability N / (N + c)",
    "vocabulary": "most tokens, of both languages together",
    "smoothing": "share of a target's probability that is spread over the vocabulary in training",
    "beam": "sequences that the search for a translation follows at a time",
    "length_penalty": "0 compares the probabilities of translations; more favours long ones",
    "characters": "rows of a table of prefixes, suffixes and shapes, which unknown words have, too, such as 16384",
    "prior_spread": "standard deviation of Normal priors, mean 0, on the potentials of crf (default: no priors)",
}


def option_of(field: str) -> str:
    """Return the option that sets a field of the settings."""
    return {"num_steps": "--steps", "map_training": "--map"}.get(field, f"--{field.replace('_', '-')}")


# option of each of the library's names; num_steps is the run's here: a layer's or an encoder's is checked by its own
# option
OPTION_NAMES = {
    **{
        option.argument.rpartition(".")[2]: f"--{name}"
        for name, option in {**choices.LAYER_OPTIONS, **choices.ENCODER_OPTIONS}.items()
    },
    **{field: option_of(field) for field in (*NUMBERS, "rows", "map_training")},
    **{"embed_dim": "--width", "checkpoint_every": "--checkpoint-every", "adapt": "--adapt-steps"},
}


def add_data(parser: argparse.ArgumentParser, option: str, default: str, files: str) -> None:
    """Add the option that names a file or a published corpus.

    Parameters
    ----------
    parser
        Parser of a task.
    option
        ``"--text"`` or ``"--data"``.
    default
        Corpus that is read without the option.
    files
        Files and corpora that it takes.
    """
    found = "published ones are read from $PROBTX_DATA, or downloaded"
    parser.add_argument(option, default=default, metavar="FILE", help=f"{files} (default {default}; {found})")


def add_settings(parser: argparse.ArgumentParser, kind: "type[LoopSettings]") -> None:
    """Add an option for each number of the settings, and what every run has.

    Parameters
    ----------
    parser
        Parser of a task.
    kind
        Class of the settings, which has the defaults.
    """
    for field in fields(kind):
        if (text := NUMBERS.get(field.name)) is not None:
            shown = text if field.default is None else f"{text} (default {field.default})"
            reads = options.real if "float" in str(field.type) else options.count
            name = option_of(field.name)
            parser.add_argument(name, dest=field.name, type=reads, default=field.default, metavar="N", help=shown)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of the run, made if missing")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    steps = "steps between checkpoints (default 200)"
    parser.add_argument("--checkpoint-every", type=options.count, default=200, metavar="N", help=steps)
    parser.add_argument("--precision", choices=PRECISIONS, default="32-true", help="arithmetic (default 32-true)")
    options.add_shared(parser, "--seed", "--no-progress", "--device", "--threads")


def add_words(parser: argparse.ArgumentParser, kind: "type[LoopSettings]") -> None:
    """Add ``--encoder``, a name of `nn.ENCODERS`, ``--attention``, of `nn.ATTENTIONS`, their options,
    and those of the settings.

    Parameters
    ----------
    parser
        Parser of a task on words.
    kind
        As in `add_settings`.
    """
    import torch

    from probtx_pyro import nn

    with torch.random.fork_rng(devices=[]):
        made = {name: of.build(8, context=1, dropout=0.0, root=False) for name, of in nn.ENCODERS.items()}
    encoders = {name: type(module) for name, module in made.items()}
    layer = choices.Option("attention", str, "its attention layers (default softmax)", tuple(nn.ATTENTIONS))
    choices.add_choice(parser, "encoder", kind, {"attention": layer, **choices.ENCODER_OPTIONS}, encoders)
    takes = choices.add_options(parser, choices.LAYER_OPTIONS, nn.ATTENTIONS)
    layers = choices.Choice("attention", takes, choices.LAYER_OPTIONS)
    parser.set_defaults(choices=[*parser.get_default("choices"), layers])
    add_settings(parser, kind)


def settings_of(kind: "type[Settings]", arguments: argparse.Namespace, **others: object) -> "Settings":
    """Return the settings of a run: every field has the value of the option of its name, where there is one.

    Parameters
    ----------
    kind
        Class of the settings.
    arguments
        Words of the command line, parsed.
    others
        Fields that have no option of their name.

    Raises
    ------
    ValueError
        An option that means nothing to the chosen layer or encoder, and what ``kind`` refuses.
    """
    named = {field.name: getattr(arguments, field.name) for field in fields(kind) if hasattr(arguments, field.name)}
    named.update(others, options=choices.given(arguments))
    return kind(**named)


def add_lm(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train lm``."""
    from probtx_pyro import nn
    from probtx_pyro.train import LanguageModelSettings as Settings

    choices.add_choice(parser, "attention", Settings, choices.ATTENTION_OPTIONS, nn.ATTENTIONS)
    add_data(parser, "--text", "topics", TEXTS)
    parser.add_argument("--level", choices=("char", "word"), default="char", help="what a token is (default char)")
    map_help = "MAP training: the layers' own parameters get Pyro priors"
    parser.add_argument("--map", dest="map_training", action="store_true", help=map_help)
    add_settings(parser, Settings)


def train_lm(arguments: argparse.Namespace, how: "RunOptions") -> "Run":
    """Train a language model whose attention is a probability model, on one core or on many machines.

      probtx train lm --attention gaussian-keys --heads 4 --head-dim 16 --out runs/mgk
      probtx train lm --text novel.txt --level word --steps 5000 --out runs/novel
      probtx train lm --out runs/mgk --resume             goes on from the checkpoint, with the options that the run had
      probtx train lm --out runs/mgk --resume --steps 5000   and makes it longer
      torchrun --nproc-per-node 2 -m probtx_pyro train lm --out runs/two ...

    Written to --out: checkpoint.pt, and results.json with the settings, the loss of every step, the validation
    perplexities, and the machine. The text is the help that comes with Python unless --text names another. Needs
    Lightning: pip install -e '.[train]' in the folder of the repository
    """
    from probtx_pyro import data, train

    settings = settings_of(train.LanguageModelSettings, arguments)
    return train.train_language_model(settings, data.load_text(arguments.text), arguments.out, **how)


def add_tagger(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train tagger``."""
    from probtx_pyro.train import LabellingSettings

    kinds = "a CoNLL-U file or folder, a file of words and tags, small (comes with the library), ewt, wnut17 or cogs"
    add_data(parser, "--data", "small", kinds)
    parser.add_argument("--column", choices=("upos", "xpos"), default="upos", help="tags of a treebank (default upos)")
    add_words(parser, LabellingSettings)


def train_tagger(arguments: argparse.Namespace, how: "RunOptions") -> "Run":
    """Train a tagger: a tag for every word of a sentence, from a dependency CRF, or a transformer with any attention.

      probtx train tagger --data treebank.conllu --column upos --out runs/tags  a CoNLL-U file or folder
      probtx train tagger --data entities.tsv --out runs/names                  a word and its BIO tag a line
      probtx train tagger --data conll2003 --characters 16384 --out runs/ner     a folder of files of columns
      probtx train tagger --data ewt --column xpos --channels 8 --distances 2,3,4 --out runs/ewt
      probtx train tagger --data ewt --encoder transformer --attention gaussian-keys --components 3 --out runs/mgk
      probtx train tagger --data cogs --rank 16 --out runs/cogs                 five tags a word

    The parameters with the best validation are kept (by accuracy; by span F1 for entities, by whole sentences for
    cogs), and tested where there is a test part. Resume, several processes and results as in `probtx train --help`.
    """
    from probtx_pyro import train

    data = train.tagged_sentences(arguments.data, arguments.column)
    settings = settings_of(train.LabellingSettings, arguments, select=data.select)
    return train.train_tagger(settings, data.parts, arguments.out, metrics=data.metrics, **how)


def add_mlm(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train mlm``."""
    from probtx_pyro.train import MaskedSettings

    add_data(parser, "--text", "topics", TEXTS)
    rows = "fixed (default): --context words; or the lines"
    parser.add_argument("--rows", choices=("fixed", "sentence"), default="fixed", help=rows)
    add_words(parser, MaskedSettings)


def train_mlm(arguments: argparse.Namespace, how: "RunOptions") -> "Run":
    """Train a masked language model: hidden words, predicted from those around them by a dependency CRF,
    or a transformer with any attention.

      probtx train mlm --text novel.txt --steps 5000 --rarest 2 --out runs/masked
      probtx train mlm --text wikitext2 --rows sentence --mask 0.3 --channels 8 --distances 2,3,4 --out runs/crf
      probtx train mlm --encoder transformer --heads 4 --layers 2 --out runs/transformer
      probtx train mlm --encoder transformer --attention linear-keys --out runs/linear

    Words are what stands between spaces; the output weights are the words' own unary scores. The perplexity is that of
    hidden words of the validation part, chosen once for a seed. Resume, several processes and results as in
    `probtx train --help`.
    """
    from probtx_pyro import data, train

    settings = settings_of(train.MaskedSettings, arguments)
    return train.train_masked_language_model(settings, data.load_text(arguments.text), arguments.out, **how)


def add_classifier(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train classifier``."""
    from probtx_pyro.nn import SUMMARIES
    from probtx_pyro.train import ClassifierSettings

    kinds = "a CSV or TSV file, a folder with train, dev and test files, banking77, or listops (or files of its form)"
    add_data(parser, "--data", "banking77", kinds)
    add_words(parser, ClassifierSettings)
    what = f"how a text is read from its words; root is for crf (default {ClassifierSettings.summary})"
    parser.add_argument("--summary", choices=SUMMARIES, default=ClassifierSettings.summary, help=what)


def train_classifier(arguments: argparse.Namespace, how: "RunOptions") -> "Run":
    """Train a classifier of texts: from the mean word of a dependency CRF or of a transformer with any attention,
    or from the root of a CRF.

      probtx train classifier --data texts.csv --out runs/texts          a CSV or TSV file with the header text,category
      probtx train classifier --data banking77 --channels 8 --steps 4000 --out runs/banking
      probtx train classifier --data banking77 --summary root --head-temperature 1 --out runs/root
      probtx train classifier --data folder --encoder transformer --heads 4 --out runs/transformer
      probtx train classifier --data folder --encoder transformer --attention gaussian-keys --out runs/mgk
      probtx train classifier --data listops --encoder transformer --context 1000 --out runs/listops

    The parameters with the best validation accuracy are kept, and tested where there is a test part. Resume, several
    processes and results as in `probtx train --help`.
    """
    from probtx_pyro import train

    settings = settings_of(train.ClassifierSettings, arguments)
    return train.train_classifier(settings, train.classified_texts(arguments.data), arguments.out, **how)


def add_translation(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx train translation``."""
    from probtx_pyro import nn
    from probtx_pyro.data.tokenizer import LEVELS
    from probtx_pyro.train import TranslationSettings as Settings

    choices.add_choice(parser, "attention", Settings, choices.ATTENTION_OPTIONS, nn.ATTENTIONS)
    add_data(parser, "--data", "tatoeba", "tab-separated pairs (plain or .gz), a folder, or tatoeba")
    parser.add_argument("--level", choices=LEVELS, default=Settings.level, help="what a token is (default subword)")
    add_settings(parser, Settings)


def train_translation(arguments: argparse.Namespace, how: "RunOptions") -> "Run":
    """Train a translation model, an encoder-decoder with any of the attention layers, on pairs of sentences.

      probtx train translation --data pairs.tsv --out runs/de         a sentence, a tab and its translation on each line
      probtx train translation --attention gaussian-keys --heads 4 --head-dim 16 --out runs/mgk
      probtx train translation --out runs/mgk --resume --steps 5000   goes on, and makes the run longer

    --data is a file, of which one twentieth of the distinct sentences becomes dev and one test; a folder with files for
    train, dev and test; or tatoeba, 50,001 short English-German pairs. Written to --out: checkpoint.pt, and
    results.json with the settings, the loss of every step, the validation perplexities, and in the end perplexity and
    BLEU (sacreBLEU, with its signature) of dev and test. Needs Lightning, tokenizers and sacreBLEU: pip install -e
    '.[train]' in the folder of the repository
    """
    from probtx_pyro import data, train

    settings = settings_of(train.TranslationSettings, arguments)
    return train.train_translation(settings, data.load_pairs(arguments.data), arguments.out, **how)


class Task(NamedTuple):
    """Kind of model; the docstring of ``train`` is the description in its help.

    summary: of the help.
    add: adds the options.
    train: trains, from the words of the command line, parsed, and the options of the run.
    needs: packages, by import name.
    uses: commands that take the run, RUN in the place of its folder.
    """

    summary: str
    add: Callable[[argparse.ArgumentParser], None]
    train: "Callable[[argparse.Namespace, RunOptions], Run]"
    uses: tuple[str, ...]
    needs: dict[str, str] = NEEDS


PARSE = "probtx parse sentences.conllu --model RUN --out trees.conllu"
TAG, FILL = "probtx tag sentences.txt --model RUN", "probtx fill sentences.txt --model RUN"
CLASSIFY, TRANSLATE = "probtx classify RUN texts.txt --out classes.csv", "probtx translate sentences.txt --model RUN"
TASKS = {
    "lm": Task("a causal language model with any of the attention layers", add_lm, train_lm, ("probtx generate RUN",)),
    "tagger": Task("a tagger of words: parts of speech, named entities, COGS", add_tagger, train_tagger, (TAG, PARSE)),
    "mlm": Task("a masked language model of words", add_mlm, train_mlm, (FILL, PARSE)),
    "classifier": Task("a classifier of texts", add_classifier, train_classifier, (CLASSIFY,)),
    "translation": Task(
        "a translation model with any of the attention layers",
        add_translation,
        train_translation,
        (TRANSLATE,),
        TRANSLATION_NEEDS,
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a command for each of `TASKS`."""
    parser.set_defaults(run=lambda _: options.no_command(parser), names=OPTION_NAMES)
    tasks = parser.add_subparsers(title="tasks", metavar="TASK")
    for name, task in TASKS.items():
        description = inspect.cleandoc(task.train.__doc__ or "")
        command = tasks.add_parser(name, help=task.summary, description=description, fill=task.add, earlier=earlier)
        command.set_defaults(run=partial(run, name))


def earlier(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the options that a run had when it was last trained, where it is to be resumed."""
    if not arguments.resume:
        return {}
    from probtx_pyro.train.loop import CHECKPOINT, read_checkpoint

    return read_checkpoint(arguments.out / CHECKPOINT).get("command", {})


def run_options(arguments: argparse.Namespace) -> "RunOptions":
    """Return the options of the run, checked.

    Raises
    ------
    ValueError
        A folder that is a file, or a device that is not here.
    """
    options.folder(arguments.out)
    plain, own = (bool, int, float, str, tuple), vars(arguments)
    command = {name: value for name, value in own.items() if name not in OF_ONE_CALL and isinstance(value, plain)}
    for name in {"text", "data"} & command.keys():
        if Path(own[name]).is_file():  # and no corpus by name: it is found from another folder, too
            command[name] = str(Path(own[name]).resolve())
    return {
        "device": options.device(arguments.device),
        "progress": False if arguments.no_progress else None,
        "resume": arguments.resume,
        "precision": arguments.precision,
        "checkpoint_every": arguments.checkpoint_every,
        "threads": arguments.threads,
        "command": command,
    }


def run(name: str, arguments: argparse.Namespace) -> None:
    """Train, and say where the results are.

    Parameters
    ----------
    name
        Task, of `TASKS`.
    arguments
        Words of the command line, parsed.
    """
    task = TASKS[name]
    for module, called in task.needs.items():
        options.require(module, called, "training", "train")
    import torch
    from torch import distributed

    from probtx_pyro.train import CHECKPOINT

    mine = distributed.is_available() and not distributed.is_initialized()
    torch.set_flush_denormal(True)  # no sum can feel subnormal numbers, but a CPU multiplies them ten times slower
    try:
        report(arguments, task.train(arguments, run_options(arguments)), task.uses)
    except KeyboardInterrupt:
        if (arguments.out / CHECKPOINT).exists():
            how = f"probtx train {name} --resume --out {arguments.out} goes on from the last checkpoint"
            raise KeyboardInterrupt(how) from None
        raise
    finally:
        torch.set_flush_denormal(False)
        if mine and distributed.is_initialized():  # its threads must end before the interpreter does, or may abort it
            distributed.destroy_process_group()


def report(arguments: argparse.Namespace, done: "Run", uses: tuple[str, ...]) -> None:
    """Print how the run went, where its results are and what can be done next; one process of many does.

    Parameters
    ----------
    arguments
        Words of the command line, parsed.
    done
        The run.
    uses
        Commands that take it, RUN in the place of its folder.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    from probtx_pyro.train import RESULTS

    results = done.results
    scores = results.get("metrics") or {"validation": {"perplexity": results["perplexity"]}}
    shown = {
        part: (f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}" for name, value in of.items())
        for part, of in scores.items()
    }
    found = "; ".join(f"{part} {', '.join(metrics)}" for part, metrics in shown.items())
    made = f"{results['steps']} steps, {results['parameters']:,} parameters, {results['seconds']:.0f} s"
    chosen = ", ".join(filter(None, (getattr(arguments, choice.name) for choice in arguments.choices)))
    print(f"{chosen}: {found} after {made}")
    what = "tokens" if "level" in results["settings"] else "words"
    print(f"unknown {what}: " + ", ".join(f"{part} {share:.1%}" for part, share in results["unknown"].items()))
    print(arguments.out / RESULTS)
    able = [use for use in uses if use != PARSE or arguments.encoder == "crf"]
    for word, use in zip(("Next:", *["or:"] * len(able)), able, strict=False):
        print(word, use.replace("RUN", shlex.quote(str(arguments.out))))
    print(f"In Python: probtx_pyro.train.load_run({str(arguments.out)!r}) loads the model")
    for part, share in () if results["settings"].get("characters") else results["unknown"].items():
        options.warn_unknown(share, f"the {part} part", what)

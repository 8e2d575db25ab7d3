"""Read dependency trees out of the attention of a trained dependency CRF, which has never seen a tree.

  probtx train mlm --text novel.txt --iterations 3 --channels 4 --distances 2,3,4 --out runs/masked
  probtx parse sentences.conllu --model runs/masked --out trees.conllu
  probtx parse sentences.conllu --model runs/masked --out trees.conllu --draw tree.png --sentence 3
  probtx parse half.conllu --model runs/masked --out trees.conllu --keep head

  echo "the cat sleeps ." | probtx parse - --model runs/masked --out trees.conllu

Plain text in (a sentence a line, words between spaces) where the name ends in .txt; CoNLL-U where it ends in .conllu
(both also .gz); any other file, and standard input, is what its first line of words looks like. CoNLL-U out: only HEAD
and DEPREL change, multiword tokens and empty nodes stay; of text, sent_id is the number of the line, and blank lines
have no sentence. The share of words that the model does not know is printed. Where the sentences come with heads, the
unlabelled attachment score is printed beside those of left arcs, right arcs and random heads.

With --keep head, heads that the file has are known: they come out as they are, and inform those of the other words,
whose HEAD is _. No known head is scored.
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _texts as texts

if TYPE_CHECKING:
    from probtx_pyro.data import Sentence

SUMMARY = "dependency trees of sentences, from the attention of a trained dependency CRF"
BATCH = 32  # sentences that are computed at once
DECODERS = ("tree", "projective", "word")
COLUMNS = ("head", "upos")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx parse``."""
    add = parser.add_argument
    add("sentences", type=Path, metavar="FILE", help="CoNLL-U, or text in .txt, plain or .gz; - is standard input")
    add("--model", required=True, type=Path, metavar="DIR", help="folder of a run of probtx train mlm or tagger")
    add("--out", required=True, type=Path, metavar="FILE", help="CoNLL-U with the heads; - is standard output")
    add(
        "--decoder",
        choices=DECODERS,
        default="tree",
        help="tree (default): maximum spanning arborescence; projective: Eisner; word: no tree",
    )
    add("--channel", type=int, metavar="N", help="the channel to read, from 0 (default: their mean)")
    add("--keep", type=kept, default=(), metavar="COLUMNS", help="columns that are known where they are not _: head")
    add("--draw", type=Path, metavar="PNG", help="picture of one sentence with its arcs")
    add("--sentence", type=int, default=1, metavar="N", help="which one to draw, from 1 (default 1)")
    options.add_shared(parser, "--device", "--threads")
    parser.set_defaults(names={"channel": "--channel", "check_tree=False": "--keep head"})


def kept(text: str) -> tuple[str, ...]:
    """Read names of columns.

    >>> kept("head")
    ('head',)
    """
    names = tuple(dict.fromkeys(text.split(",")))
    if wrong := [name for name in names if name not in COLUMNS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is no column to keep; give {' or '.join(COLUMNS)}")
    return names


def known_heads(sentences: "list[Sentence]", path: Path) -> list[tuple[int | None, ...]]:
    """Return the heads in the file, None where it has none.

    Parameters
    ----------
    sentences, path
        Of the file.

    Raises
    ------
    ValueError
        There is no head in it.
    """
    heads = [sentence.heads for sentence in sentences]
    if not any(head is not None for row in heads for head in row):
        raise ValueError(f"--keep head: column HEAD of {path} is _ throughout; leave it out")
    return heads


def require_no_tags(keep: tuple[str, ...], model: object) -> None:
    """Refuse tags as evidence: no run has a probability of a tag given a label (docs/mathematics.md, section 5.4).

    Parameters
    ----------
    keep
        Columns to keep.
    model
        The model of a run.

    Raises
    ------
    ValueError
        ``upos`` is among them.
    """
    if "upos" in keep:
        why = (
            "this tagger reads tags from scores of labels and has no probability of a tag given a label"
            if hasattr(model, "tags")
            else "this run has no tags"
        )
        raise ValueError(f"--keep upos: {why}; keep head, or give tags as the labels of a models.DependencyCRF")


def run(arguments: argparse.Namespace) -> None:
    """Read, parse and write; score the heads where the file has some to compare with."""
    out = options.out_file(arguments.out, arguments.sentences)
    options.out_file(arguments.draw, arguments.sentences)
    said = options.beside(out)
    device = options.device(arguments.device)

    from probtx_pyro.apps import AttentionParser
    from probtx_pyro.data import write_conllu
    from probtx_pyro.metrics import attachment_score, baseline_scores
    from probtx_pyro.train.loop import threads_for

    keep = "head" in arguments.keep
    read = texts.sentences(arguments.sentences, check_tree=not keep)
    sentences = [item for item in read.items if item is not None]
    if not sentences:
        raise ValueError(f"{arguments.sentences} has no sentences")
    if not 1 <= arguments.sentence <= len(read.items) or read.items[arguments.sentence - 1] is None:
        raise ValueError(f"--sentence {arguments.sentence} is none of 1 to {len(read.items)}, or a blank line")
    loaded = texts.load(arguments.model, device)
    parser = AttentionParser(loaded.model, loaded.vocabulary, arguments.decoder, arguments.channel)
    require_no_tags(arguments.keep, loaded.model)
    known = known_heads(sentences, arguments.sentences) if keep else None
    length = fmean(len(sentence.words) for sentence in sentences)
    with (
        options.threads(threads_for(arguments.threads, loaded.settings, loaded.model, length, BATCH)),
        texts.named_rows(arguments.sentences, read.kind),
    ):
        heads = parser.parse(read.words, known)
    heads = [row for row, item in zip(heads, read.items, strict=True) if item is not None]
    write_conllu(sentences, "-" if out is None else out, heads)
    if out is not None:
        print(out)
    texts.say_unfinished(arguments.model, loaded)
    unknown = loaded.vocabulary.unknown_share(word for sentence in sentences for word in sentence.words)
    print(f"unknown words: {unknown:.1%}", file=said)
    if not loaded.vocabulary.spellings:
        options.warn_unknown(unknown, str(arguments.sentences))
    gold = [[-1 if head is None else head for head in sentence.heads] for sentence in sentences]
    if known is not None:
        number, words = sum(head is not None for row in known for head in row), sum(map(len, heads))
        print(f"heads kept: {number} of {words}, none is scored", file=said)
    elif any(head >= 0 for row in gold for head in row):
        scores = {"attention": attachment_score(heads, gold), **baseline_scores(gold, seed=0)}
        print("unlabelled attachment: " + ", ".join(f"{name} {score:.3f}" for name, score in scores.items()), file=said)
    if arguments.draw is not None:
        import matplotlib

        matplotlib.use("agg")
        from probtx_pyro.plots import dependency_arcs

        index = sum(item is not None for item in read.items[: arguments.sentence - 1])
        right = gold[index] if max(gold[index]) >= 0 else None
        axes: Any = dependency_arcs(sentences[index].words, heads[index], gold=right)
        axes.figure.savefig(arguments.draw, bbox_inches="tight", dpi=150)
        print(arguments.draw, file=said)

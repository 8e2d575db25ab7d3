"""Data of ``probtx train``, by name or from the user's files, in the form that the training functions take."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from probtx_pyro.data.cogs import NONE, CogsExample, Tags, load_cogs
from probtx_pyro.data.conllu import PUBLISHED as TREEBANKS
from probtx_pyro.data.conllu import Sentence, load_treebank, read_conllu
from probtx_pyro.data.files import load_splits
from probtx_pyro.data.labelled import is_listops, load_labelled, load_listops, tokenize
from probtx_pyro.data.tagged import PUBLISHED as ENTITIES
from probtx_pyro.data.tagged import Tagged, read_tagged
from probtx_pyro.metrics import span_f1
from probtx_pyro.train.labelling import Example, Metric, Parts, Texts


class TaggedData(NamedTuple):
    """Sentences for `train_tagger`.

    parts: by name.
    metrics, select: further metrics, and the one to choose by.
    """

    parts: Parts
    metrics: Mapping[str, Metric]
    select: str


Row = TypeVar("Row", Sentence, Tagged, CogsExample)


def _examples(rows: Iterable[Row], tags: Callable[[Row], Iterable[tuple[str, ...]]]) -> list[Example]:
    """Examples of the rows of a part, from the tags of all words of a row."""
    return [Example(row.words, tuple(tags(row))) for row in rows]


def _treebank(source: str, column: str) -> TaggedData:
    corpus = load_treebank(source)._asdict()
    parts = {name: _examples(part, lambda row: zip(getattr(row, column), strict=True)) for name, part in corpus.items()}
    if all(tags == ("_",) for row in parts["train"] for tags in row.labels):
        raise ValueError(f"{source} has no tags in its column {column}; choose another column")
    return TaggedData(parts, {}, "accuracy")


def _two_columns(source: str, column: str) -> TaggedData:
    corpus = load_splits(source, ENTITIES, read_tagged, 0.1)._asdict()
    parts = {name: _examples(part, lambda row: zip(row.tags, strict=True)) for name, part in corpus.items()}
    tags = {tag for part in parts.values() for row in part for (tag,) in row.labels}
    entities = all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags)
    return TaggedData(parts, {"span_f1": span_f1}, "span_f1") if entities else TaggedData(parts, {}, "accuracy")


def _cogs(source: str, column: str) -> TaggedData:
    """The parent of a word as its distance, so that a tag means the same everywhere in a sentence."""

    def tags(row: CogsExample) -> Iterable[tuple[str, ...]]:
        distances = (str(parent - i - 1) if parent else NONE for i, parent in enumerate(row.tags.parents))
        return zip(distances, *row.tags[1:], strict=True)

    parts = {name: _examples(part, tags) for name, part in load_cogs()._asdict().items()}
    return TaggedData(parts, {}, "sentence_accuracy")


def cogs_tags(labels: Sequence[tuple[str, ...]]) -> Tags:
    """Return the tags of a COGS sentence from the labels that a tagger gives its words, for `data.logical_form_of`.

    Parameters
    ----------
    labels
        Five labels a word, those of ``tagged_sentences("cogs")``: the distance to the parent, role, category,
        determiner, verb.

    Raises
    ------
    ValueError
        A word that has not five labels, or a distance that is no number.

    Examples
    --------
    >>> cogs_tags([("1", "agent", "name", "_", "_"), ("_", "_", "verb", "_", "sleep")]).parents
    (2, 0)
    """
    if any(len(row) != len(Tags._fields) for row in labels):
        raise ValueError(f"labels of {[len(row) for row in labels]} columns; give {len(Tags._fields)} a word")
    distances, *others = zip(*labels, strict=True)
    parents = tuple(0 if distance == NONE else i + 1 + int(distance) for i, distance in enumerate(distances))
    return Tags(parents, *others)


NAMED = {**dict.fromkeys(TREEBANKS, _treebank), **dict.fromkeys(ENTITIES, _two_columns), "cogs": _cogs}


def tagged_sentences(source: str, column: str = "upos") -> TaggedData:
    """Sentences with their tags.

    Parameters
    ----------
    source
        One of `NAMED`; a CoNLL-U file (``.conllu``, also ``.gz``) or a folder of such; or a file of words and tags, one
        pair a line, or a folder of such (see `data.read_tagged`, also for CoNLL-2003). Tags that are all BIO are named
        entities.
    column
        The tags of a treebank, ``"upos"`` or ``"xpos"``.

    Raises
    ------
    ValueError
        No such name or file, an empty column, or what the readers refuse.
    """
    path = Path(source)
    if source in NAMED:
        return NAMED[source](source, column)
    if not path.exists():
        raise ValueError(f"there is no file or folder {source}; give one, or one of {', '.join(NAMED)}")
    files = path.iterdir() if path.is_dir() else [path]
    return (_treebank if any(".conllu" in file.name.lower() for file in files) else _two_columns)(source, column)


def annotated_sentences(source: str | Path, column: str = "upos") -> list[Example]:
    """Sentences of one file with their tags, as `adapt_tagger` takes them.

    Parameters
    ----------
    source
        A CoNLL-U file (``.conllu``, also ``.gz``), or one with a word and its tag on each line.
    column
        The tags of CoNLL-U, ``"upos"`` or ``"xpos"``.

    Raises
    ------
    ValueError
        No sentences, or what the readers refuse.
    """
    if ".conllu" in Path(source).name.lower():
        found = _examples(read_conllu(source, check_tree=False), lambda row: zip(getattr(row, column), strict=True))
    else:
        found = _examples(read_tagged(source), lambda row: zip(row.tags, strict=True))
    if not found:
        raise ValueError(f"{source} has no sentences; give some, annotated with tags")
    return found


NAMED_TEXTS = ("banking77", "listops")


def classified_texts(source: str) -> dict[str, Texts]:
    """The words of texts and their categories.

    Parameters
    ----------
    source
        One of `NAMED_TEXTS`, or the user's file or folder: texts, see `load_labelled`, or expressions, see
        `load_listops`.

    Raises
    ------
    ValueError
        No such name or file, or what the readers refuse.
    """
    if source not in NAMED_TEXTS and not Path(source).exists():
        raise ValueError(f"there is no file or folder {source}; give one, or one of {', '.join(NAMED_TEXTS)}")
    expressions = source == "listops" or (source not in NAMED_TEXTS and is_listops(source))
    load, words_of = (load_listops, str.split) if expressions else (load_labelled, tokenize)
    return {name: [(words_of(text), of) for text, of in part] for name, part in load(source)._asdict().items()}

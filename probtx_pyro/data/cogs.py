"""COGS, compositional generalisation, as tags of words from which the logical form follows exactly.

A COGS sentence (Kim & Linzen 2020, aclanthology 2020.emnlp-main.731) means a logical form ::

    A cat saw the dog .    * dog ( x _ 4 ) ; cat ( x _ 1 ) AND see . agent ( x _ 2 , x _ 1 ) AND see . theme ( x _ 2 , x _ 4 )

Its conjuncts are arcs between words, so that tagging can replace generation, as in Ontañón, Ainslie, Fisher & Cvicek
(2022, aclanthology 2022.acl-long.251): each word has a parent, a role, a category, a noun's determiner and a verb's
lemma. Nouns and names stand in the logical form as in the sentence (in small letters), conjuncts in the order of their
positions, and the one case of two parents, the agent of ``want`` that is also the agent of its ``xcomp``, follows from
the first parent. The details of the scheme are this project's; `tags_of` refuses what it could not give back.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probtx_pyro.data.files import fetch, on_github, read_lines

NONE = "_"
_NOUN = re.compile(r"(\* )?(\w+) \( x _ (\d+) \)")
_ARC = re.compile(r"(\w+) \. (\w+(?: \. \w+)?) \( x _ (\d+) , (?:x _ (\d+)|(\w+)) \)")
_LAMBDA = "LAMBDA a . "
PUBLISHED = on_github(
    "cogs",
    "najoungkim/COGS/165a7b669eade971fa47bf568a2e51925360fed8/data",
    train=("train.tsv", "220b3804b562c0156ee986eff1bdd15c27e52142549362a64f57baf86e304c78"),
    dev=("dev.tsv", "ab66388a309c7ac1ad210c781a6a0ce12281a9ef24619a12422a752cef61bc21"),
    test=("test.tsv", "68f8e51e9f6d9cd22d64efe68dd21d7ea5ba327e9a2359481030161aea757035"),
    gen=("gen.tsv", "d013d9eee0bafc153f8decc85f42814ac97260f84964d980e1e2b84577b82361"),
)


class Tags(NamedTuple):
    """Contribution of each word to the logical form, one entry a word; `NONE` where a tag does not apply.

    parents: the word it is an argument of, counted from 1, or 0: a tree, with `heads` as in a treebank.
    roles: to the parent: ``agent``, ``theme``, ``recipient``, ``ccomp``, ``xcomp``, ``nmod.in``, ``nmod.on``,
    ``nmod.beside``.
    categories: ``verb``, ``noun`` or ``name``.
    determiners: of nouns, ``definite`` or ``indefinite``.
    verbs: lemmas of verbs.
    """

    parents: tuple[int, ...]
    roles: tuple[str, ...]
    categories: tuple[str, ...]
    determiners: tuple[str, ...]
    verbs: tuple[str, ...]


class CogsExample(NamedTuple):
    """A row of COGS; category names the kind of generalisation, ``in_distribution``, or ``primitive``."""

    words: tuple[str, ...]
    logical_form: str
    category: str
    tags: Tags


class Cogs(NamedTuple):
    """The four parts; ``gen`` asks for new combinations of what train has."""

    train: list[CogsExample]
    dev: list[CogsExample]
    test: list[CogsExample]
    gen: list[CogsExample]


def tags_of(words: Sequence[str], logical_form: str) -> Tags:
    """Return the tags of a sentence.

    A primitive (one word, its meaning a lambda term or a name; 143 rows of train) gets its category and lemma only:
    enough to learn the word from, while the term itself is not a sentence's logical form and does not come back.

    Parameters
    ----------
    words
        Words of the sentence.
    logical_form
        Its meaning.

    Raises
    ------
    ValueError
        A conjunct of another form, or a logical form that does not follow from tags.

    Examples
    --------
    >>> tags = tags_of("A cat slept .".split(), "cat ( x _ 1 ) AND sleep . agent ( x _ 2 , x _ 1 )")
    >>> tags.parents, tags.roles, tags.verbs
    ((0, 3, 0, 0), ('_', 'agent', '_', '_'), ('_', '_', 'sleep', '_'))
    """
    if len(words) == 1:
        return _primitive(words[0], logical_form)
    columns: dict[str, dict[int, Any]] = {name: {} for name in Tags._fields}
    *definite, body = logical_form.split(" ; ")
    for conjunct in [*definite, *body.split(" AND ")]:
        if noun := _NOUN.fullmatch(conjunct):
            columns["categories"][int(noun[3])] = "noun"
            columns["determiners"][int(noun[3])] = "definite" if noun[1] else "indefinite"
        elif arc := _ARC.fullmatch(conjunct):
            predicate, role, parent, child, name = arc.groups()
            if name is not None and name not in words:
                raise ValueError(f"the name in {conjunct!r} is no word of the sentence; mend it")
            word = words.index(name) if name is not None else int(child)
            if name is not None:
                columns["categories"][word] = "name"
            if not role.startswith("nmod"):
                columns["categories"][int(parent)], columns["verbs"][int(parent)] = "verb", predicate
            if word not in columns["parents"]:  # a second agent is that of an xcomp, whose conjuncts come later
                columns["parents"][word], columns["roles"][word] = int(parent) + 1, role.replace(" . ", ".")
        else:
            raise ValueError(f"{conjunct!r} is neither noun ( x _ 1 ) nor verb . role ( x _ 2 , x _ 1 ); mend it")

    def column(name: str, absent: Any) -> tuple[Any, ...]:
        return tuple(columns[name].get(i, absent) for i in range(len(words)))

    tags = Tags(column("parents", 0), *(column(name, NONE) for name in Tags._fields[1:]))
    if (back := logical_form_of(words, tags)) != logical_form:
        raise ValueError(f"the tags of this logical form give {back!r}: it has what no tags express")
    return tags


def _primitive(word: str, meaning: str) -> Tags:
    """Category and lemma of a word alone."""
    if meaning == word:
        return Tags((0,), (NONE,), ("name",), (NONE,), (NONE,))
    if meaning == f"{_LAMBDA}{word} ( a )":
        return Tags((0,), (NONE,), ("noun",), (NONE,), (NONE,))
    if meaning.startswith(_LAMBDA) and f" . {word} . " in meaning:
        return Tags((0,), (NONE,), ("verb",), (NONE,), (word,))
    raise ValueError(f"{meaning!r} is not what {word!r} alone can mean; mend it")


def logical_form_of(words: Sequence[str], tags: Tags) -> str:
    """Return the logical form that tags spell; it inverts `tags_of` on sentences, and takes any tags without complaint.

    Parameters
    ----------
    words
        Words of the sentence.
    tags
        One tag of each kind for every word.

    Raises
    ------
    ValueError
        Not one tag of each kind a word, or a parent outside the sentence.
    """
    if any(len(column) != len(words) for column in tags):
        raise ValueError(f"tags of lengths {[len(column) for column in tags]} for {len(words)} words; give one a word")
    if not all(0 <= parent <= len(words) for parent in tags.parents):
        raise ValueError(f"a parent is outside 0..{len(words)}; give 0 or the number of a word, from 1")
    arcs = {(parent - 1, word): tags.roles[word] for word, parent in enumerate(tags.parents) if parent}
    agents = defaultdict(list)
    for (verb, word), role in sorted(arcs.items()):
        if role == "agent":
            agents[verb].append(word)
        elif role == "xcomp":
            arcs.update(((word, agent), "agent") for agent in agents[verb])
            agents[word] += agents[verb]
    noun = [word.lower() for word in words]
    predicates = [tags.verbs[i] if category == "verb" else noun[i] for i, category in enumerate(tags.categories)]
    arguments = [words[i] if category == "name" else f"x _ {i}" for i, category in enumerate(tags.categories)]
    conjuncts = {
        (i, -1): f"{noun[i]} ( x _ {i} )" for i, which in enumerate(tags.determiners) if which == "indefinite"
    } | {
        (i, j): f"{predicates[i]} . {role.replace('.', ' . ')} ( x _ {i} , {arguments[j]} )"
        for (i, j), role in arcs.items()
    }
    definite = [f"* {noun[i]} ( x _ {i} )" for i, which in enumerate(tags.determiners) if which == "definite"]
    return " ; ".join([*definite, " AND ".join(text for _, text in sorted(conjuncts.items()))])


def read_cogs(source: str | Path | Iterable[str]) -> list[CogsExample]:
    """Rows ``sentence TAB logical form TAB category`` of a file, plain or ``.gz``, or of lines, with their tags.

    Raises
    ------
    ValueError
        ``FILE, line N: ...``: not three columns, or what `tags_of` refuses; a file that cannot be read.
    """
    name, lines = read_lines(source, "COGS file")
    examples = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        columns = line.split("\t")
        try:
            if len(columns) != 3 or not columns[0].strip():
                raise ValueError(f"{len(columns)} columns; give sentence, logical form, category")
            words = tuple(columns[0].split())
            examples.append(CogsExample(words, columns[1], columns[2], tags_of(words, columns[1])))
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
    return examples


def load_cogs() -> Cogs:
    """The published COGS (MIT licence), from ``$PROBTX_DATA`` or downloaded once.

    Raises
    ------
    ValueError
        There is no connection, or ``$PROBTX_DATA`` is set and has other files.
    ModuleNotFoundError
        It must be downloaded, and pooch is not installed.
    """
    return Cogs(**{part: read_cogs(fetch(remote)) for part, remote in PUBLISHED.items()})

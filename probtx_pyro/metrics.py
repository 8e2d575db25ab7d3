"""Scores: heads of words against a treebank, named entities, and segmentations.

Heads are numbered as in CoNLL-U: 0 is the root, j the j-th word, counted from 1; -1 stands for an absent (padded) word.

Entities are BIO tags: ``B-person`` begins one, ``I-person`` goes on with it, ``O`` is outside. An ``I-`` tag that goes
on with nothing (after ``O``, at the beginning, or of another type than the tag before) begins an entity: so count
``conlleval``, the script of the CoNLL shared tasks (Tjong Kim Sang & De Meulder 2003, aclanthology W03-0419), and the
library nervaluate, used here.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from probtx_pyro._lazy import install_advice

Heads = NDArray[np.int64]
Decoder = Callable[[NDArray[np.float64]], ArrayLike]
BIO_TAG = re.compile(r"O|[BI]-\S+")
"""Pattern of a tag of spans: O, or B- and I- with a kind."""


def attachment_score(
    predicted: Sequence[ArrayLike], gold: Sequence[ArrayLike], counted: Sequence[ArrayLike] | None = None
) -> float:
    """Unlabelled attachment score: the share of words, over all sentences together, that have their right head.

    Parameters
    ----------
    predicted, gold
        (N,) heads of each sentence. Words whose gold head is -1 do not count.
    counted
        (N,) booleans of each sentence: False leaves a word out, such as punctuation. All words count if None.

    Returns
    -------
    score
        From 0 to 1.

    Raises
    ------
    ValueError
        Sentences or words that do not match, something that is no head, or no word that counts.

    Examples
    --------
    >>> attachment_score([[2, 0], [0]], [[0, 1], [0]], counted=[[True, False], [True]])
    0.5
    """
    return float(_hits(predicted, gold, counted).mean())


def left_arc(length: int) -> Heads:
    """Return heads (length,) where every word takes its left neighbour, the first the root.

    >>> left_arc(3).tolist(), right_arc(3).tolist()
    ([0, 1, 2], [2, 3, 0])
    """
    return np.arange(length)


def right_arc(length: int) -> Heads:
    """Return heads (length,) where every word takes its right neighbour, the last the root."""
    return np.append(np.arange(2, length + 1), 0)[:length]


def random_heads(length: int, seed: int | np.random.Generator) -> Heads:
    """Draw heads: every word takes the root or another word, all of them as likely; no tree, in general.

    Parameters
    ----------
    length
        Number of words.
    seed
        A seed, or a generator that goes on where it stands, for the sentences of one corpus.

    Returns
    -------
    (length,) heads.
    """
    heads = np.random.default_rng(seed).integers(0, length, length)
    return heads + (heads > np.arange(length))


BASELINES: dict[str, Callable[[int, np.random.Generator], Heads]] = {
    "left arc": lambda length, _: left_arc(length),
    "right arc": lambda length, _: right_arc(length),
    "random heads": random_heads,
}
"""Heads that need no model, by name: of a sentence's length and a random generator."""


def baseline_scores(
    gold: Sequence[ArrayLike], counted: Sequence[ArrayLike] | None = None, *, seed: int
) -> dict[str, float]:
    """Return `attachment_score` of each of the heads that know nothing: `left_arc`, `right_arc` and `random_heads`.

    Parameters
    ----------
    gold, counted
        As in `attachment_score`.
    seed
        Seed of the random heads.

    Returns
    -------
    Score of each name of `BASELINES`.

    Raises
    ------
    ValueError
        As in `attachment_score`.

    Examples
    --------
    >>> scores = baseline_scores([[0, 1, 2], [0, 1]], seed=0)
    >>> scores["left arc"], scores["right arc"]
    (1.0, 0.0)
    """
    rng = np.random.default_rng(seed)
    return {
        name: attachment_score([heads(len(np.asarray(x)), rng) for x in gold], gold, counted)
        for name, heads in BASELINES.items()
    }


def likeliest_heads(marginals: ArrayLike) -> Heads:
    """The most probable head of each word, which is another word or, where the marginals have a slot for it, the root.

    Shapes: (..., N, N), or (..., N, N + 1) with the root first -> (..., N). A single word without a slot for the root
    has head 0. NaN is refused with a ValueError.
    """
    array = np.asarray(marginals, dtype=float)
    if np.isnan(array).any():
        raise ValueError("marginals contain NaN, which is the largest of nothing; give probabilities")
    words, slots = array.shape[-2:]
    if words <= 1:
        return np.zeros(array.shape[:-1], np.int64)
    own = np.eye(words, slots, slots - words, dtype=bool)
    return np.where(own, -np.inf, array).argmax(-1) + 1 - (slots - words)


class ChannelScores(NamedTuple):
    """Attachment scores of attention with several channels.

    channels: of each channel by itself, (C,).
    averaged: of the mean of the channels' head marginals.
    best:     the largest of ``channels``, chosen by the gold heads themselves.
    oracle:   the share of words whose head is right in any channel: what the best choice among channels could reach.
    """

    channels: NDArray[np.float64]
    averaged: float
    best: float
    oracle: float


def channel_scores(
    head_marginals: Sequence[ArrayLike],
    gold: Sequence[ArrayLike],
    decode: Decoder = likeliest_heads,
    counted: Sequence[ArrayLike] | None = None,
) -> ChannelScores:
    """Score each channel of attention, the mean of the channels, and all of them together.

    Parameters
    ----------
    head_marginals
        (C, N, N), or (C, N, N + 1) with the root first, of each sentence: how probable each head of each word is.
    gold
        (N,) heads of each sentence. Without a slot for the root, only a decoder of trees finds the words that take it.
    decode
        From marginals (..., N, N) or (..., N, N + 1) to heads (..., N). Of projective trees, for one:
        ``lambda p: ops.eisner(ops.arc_scores(torch.as_tensor(p).log())).numpy()``.
    counted
        As in `attachment_score`.

    Returns
    -------
    ChannelScores

    Raises
    ------
    ValueError
        As in `attachment_score`; marginals of another shape, or NaN in them; sentences that differ in their channels.

    Examples
    --------
    >>> marginals = [[[0.0, 1.0, 0.0], [0.1, 0.0, 0.9], [0.3, 0.7, 0.0]], [[0.0, 0.4, 0.6], [0.8, 0.0, 0.2], [1.0, 0.0, 0.0]]]
    >>> scores = channel_scores([marginals], [[2, 0, 1]])
    >>> scores.channels.round(2).tolist(), round(scores.oracle, 2)
    ([0.33, 0.33], 0.67)
    """
    arrays = [_marginals(f"head_marginals[{i}]", x) for i, x in enumerate(head_marginals)]
    if len({len(array) for array in arrays}) > 1:
        raise ValueError("head_marginals differ in their number of channels; give those of one layer")
    decoded = [np.asarray(decode(np.concatenate([x, x.mean(0, keepdims=True)]))) for x in arrays]
    *channels, averaged = _hits(decoded, gold, counted)
    each = np.mean(channels, -1)
    return ChannelScores(each, float(averaged.mean()), float(each.max()), float(np.any(channels, 0).mean()))


def span_f1(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> float:
    """F1 of entities that have both the boundaries and the type right, over all sentences and types together.

    Parameters
    ----------
    predicted, gold
        BIO tags of each sentence.

    Returns
    -------
    float
        ``2 correct / (predicted + gold)`` of the numbers of entities; 0 where neither side has one.

    Raises
    ------
    ValueError
        Not the same sentences and words on both sides, or a tag that is no BIO tag.
    ModuleNotFoundError
        Without nervaluate.
    """
    try:
        from nervaluate import Evaluator
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"entities are scored by nervaluate: {install_advice('train')}") from None
    if len(predicted) != len(gold):
        raise ValueError(f"{len(predicted)} predicted sentences for {len(gold)}; give the tags of the same sentences")
    for number, (ours, theirs) in enumerate(zip(predicted, gold, strict=True)):
        if len(ours) != len(theirs):
            raise ValueError(f"predicted[{number}] has {len(ours)} tags, gold[{number}] has {len(theirs)}")
        for tag in (*ours, *theirs):
            if not BIO_TAG.fullmatch(tag):
                raise ValueError(f"{tag!r} in sentence {number} is no BIO tag; give O, B-type or I-type")
    types = sorted({tag[2:] for tags in (*predicted, *gold) for tag in tags if tag != "O"})
    if not types:
        return 0.0
    evaluator = Evaluator([list(tags) for tags in gold], [list(tags) for tags in predicted], tags=types, loader="list")
    return float(evaluator.evaluate()["overall"]["strict"].f1)


def intersection_over_union(truth: ArrayLike, predicted: ArrayLike) -> NDArray[np.float64]:
    """Intersection over union ``|T_c ∩ P_c| / |T_c ∪ P_c|`` of each class c of the true mask, ascending.

    "Pet only" is the entry of the pet; "mean over classes" is the mean of all, background included.

    Parameters
    ----------
    truth
        (H, W) labels of the true mask; pixels whose label is 0 or less are unknown and do not count.
    predicted
        (H, W) labels.

    Returns
    -------
    (class,) scores from 0 to 1.

    Raises
    ------
    ValueError
        Masks of two shapes, NaN, or a true mask without a labelled pixel.

    Examples
    --------
    >>> intersection_over_union([[1, 1, 2, 0]], [[1, 2, 2, 1]]).tolist()
    [0.5, 0.5]
    """
    true, found = np.asarray(truth), np.asarray(predicted)
    if true.shape != found.shape:
        raise ValueError(f"truth has shape {true.shape} but predicted has shape {found.shape}")
    for name, x in (("truth", true), ("predicted", found)):
        if x.dtype.kind == "f" and np.isnan(x).any():
            raise ValueError(f"{name} contains NaN, which is no label; give 0 where a pixel is unknown")
    known = true > 0
    if not known.any():
        raise ValueError("truth has no labelled pixel; give labels from 1")
    t, p = true[known], found[known]
    return np.array([((t == c) & (p == c)).sum() / ((t == c) | (p == c)).sum() for c in np.unique(t)])


def _hits(
    predicted: Sequence[ArrayLike], gold: Sequence[ArrayLike], counted: Sequence[ArrayLike] | None
) -> NDArray[np.bool_]:
    """Return, for each word that counts, if its head is right: (..., word), the sentences one after another."""
    for name, sentences in (("predicted", predicted), ("counted", counted)):
        if sentences is not None and len(sentences) != len(gold):
            raise ValueError(f"{name} has {len(sentences)} sentences but gold has {len(gold)}; give one array for each")
    hits = []
    for i, given in enumerate(gold):
        right = _heads(f"gold[{i}]", given, 1)
        heads = _heads(f"predicted[{i}]", predicted[i], None)
        keep = np.ones(len(right), bool) if counted is None else np.asarray(counted[i])
        if keep.dtype != bool or keep.shape != right.shape:
            raise ValueError(f"counted[{i}] must be {len(right)} booleans, but is {keep.dtype} of shape {keep.shape}")
        if heads.shape[-1] != len(right):
            raise ValueError(f"predicted[{i}] has {heads.shape[-1]} words but gold[{i}] has {len(right)}; match them")
        hits.append((heads == right)[..., keep & (right >= 0)])
    if not sum(x.shape[-1] for x in hits):
        raise ValueError("gold has no word that counts; give sentences, and True in counted")
    return np.concatenate(hits, -1)


def _heads(name: str, given: ArrayLike, rank: int | None) -> Heads:
    heads = np.asarray(given)
    if heads.size == 0:
        heads = heads.astype(int)
    if heads.dtype.kind not in "iu" or heads.ndim != (rank or heads.ndim) or heads.ndim == 0:
        raise ValueError(f"{name} must be whole numbers of shape (N,) but is {heads.dtype} of shape {heads.shape}")
    words = np.arange(1, heads.shape[-1] + 1)
    if ((heads < -1) | (heads > heads.shape[-1]) | (heads == words)).any():
        raise ValueError(f"{name} has a head that is no other word; count words from 1, the root is 0")
    return heads


def _marginals(name: str, given: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(given, dtype=float)
    if array.ndim != 3 or len(array) == 0 or array.shape[2] - array.shape[1] not in (0, 1):
        raise ValueError(f"{name} must have shape (C, N, N) or (C, N, N + 1) but has shape {array.shape}")
    if np.isnan(array).any():
        raise ValueError(f"{name} contains NaN; give probabilities")
    return array


__all__ = ["attachment_score", "left_arc", "right_arc", "random_heads", "BASELINES", "baseline_scores"]
__all__ += ["ChannelScores", "channel_scores", "likeliest_heads", "BIO_TAG", "span_f1", "intersection_over_union"]

"""Chapter 7: a sentence has a tree; attention is what a model of such trees believes about the heads of words."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from matplotlib import pyplot
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probtx_pyro import data, metrics, nn, ops, plots
from probtx_pyro.models.dependency_crf import MeanField
from probtx_pyro.tour._chapter import Chapter, Context, Picture, picture

DECODERS = {
    "likeliest head of each word": ops.argmax_heads,
    "best tree": ops.spanning_arborescence,
    "best projective tree": ops.eisner,
}
Sentences: TypeAlias = Sequence[data.Sentence]
UNSEEN = 0.5  # weight, in words, of what is known before a word's own tags are counted


class Lexicon(NamedTuple):
    """Counts of the tags of each word on trees.

    tags: names of the labels.
    counts: for each word, in small letters, (tag,).
    unseen: tags of a word that was never seen, (tag,), the distribution of those seen once.
    """

    tags: list[str]
    counts: dict[str, np.ndarray]
    unseen: np.ndarray


class Batch(NamedTuple):
    """Sentences padded to one length. unary: (B, N, L); padding: (B, N); labels, heads: (B, N), -1 for padding."""

    unary: Tensor
    padding: Tensor
    labels: Tensor
    heads: Tensor


def chapter(context: Context) -> Chapter:
    """A dependency CRF on a small treebank: tags, heads and trees of unseen sentences, and mean field beside exact inference."""
    treebank = data.load_treebank()
    lexicon = count(treebank.train)
    known, unseen = batch(context, treebank.train, lexicon, True), batch(context, treebank.dev, lexicon, False)
    encoder = fit(context, known, len(lexicon.tags))
    return Chapter(
        "The structure of a sentence",
        "Can a model of syntax be a transformer?",
        [
            "The dependency CRF of Wu & Tu (2023) gives every word a label and, in every channel, a head: another word, or the root. "
            "A word with its label has a score, an arc has one that depends on both labels and on how far apart the words are. "
            "Mean field takes turns: each word's distribution over heads given the labels, a softmax of scores between words, "
            "which is self-attention; then each word's distribution over labels given the heads. A turn is a layer.",
            "Here the labels are parts of speech and the one channel is the syntactic tree, on a small English treebank written for "
            "this library. What a word says about its tag is counted. (While the model learns, a training word does not count itself, so that "
            "a word seen once is as unknown as one in new text.) The scores of arcs maximise the log probability that four sweeps of mean field give to the "
            "tags and heads of the training trees, under a standard Normal prior.",
            "Heads chosen word by word need not make a tree. Two decoders find the best tree under the same attention, and the "
            "matrix-tree theorem says how likely independent draws of heads would be to make one.",
            "Mean field treats words and heads as independent. On four words the sum over all labellings is still possible and "
            "shows the price: log Z less the ELBO, and beliefs that are surer of themselves than the exact ones.",
        ],
        [_tree(context, treebank.dev, unseen, encoder), _exact(context, treebank.dev, unseen, encoder)],
    )


def count(sentences: Sentences) -> Lexicon:
    """The tags of each word."""
    tags = sorted({tag for sentence in sentences for tag in sentence.upos})
    counts: dict[str, np.ndarray] = {}
    for sentence in sentences:
        for word, tag in zip(sentence.words, sentence.upos, strict=True):
            counts.setdefault(word.lower(), np.zeros(len(tags)))[tags.index(tag)] += 1
    once = sum((row for row in counts.values() if row.sum() == 1), np.full(len(tags), 0.5))
    return Lexicon(tags, counts, once / once.sum())


def batch(context: Context, sentences: Sentences, lexicon: Lexicon, left_out: bool) -> Batch:
    """``log p(tag | word)`` of sentences; ``left_out`` takes each occurrence of a word out of its own counts."""
    nothing, found = np.zeros(len(lexicon.tags)), []
    for sentence in sentences:
        labels = np.array([lexicon.tags.index(tag) for tag in sentence.upos])
        rows = np.array([lexicon.counts.get(word.lower(), nothing) for word in sentence.words])
        rows = rows - left_out * np.eye(len(nothing))[labels]
        shares = (rows + UNSEEN * lexicon.unseen) / (rows.sum(-1, keepdims=True) + UNSEEN)
        whole = (torch.as_tensor(x, device=context.device) for x in (labels, np.array(sentence.heads, dtype=int)))
        found.append((context.tensor(np.log(shares)), *whole))
    fills = zip(zip(*found, strict=True), (0.0, -1, -1), strict=True)
    unary, tags, heads = (pad_sequence(list(parts), True, fill) for parts, fill in fills)
    return Batch(unary, tags < 0, tags, heads)


def fit(context: Context, known: Batch, num_labels: int) -> nn.DependencyCRFEncoder:
    """Scores of arcs by MAP: Adam on the log probability that mean field gives to tags and heads, standard Normal prior."""
    encoder = nn.DependencyCRFEncoder(
        num_labels, 1, num_steps=4, distances=(2, 3, 5), rank="full", root_labels=1, mean_field={"head_temperature": 1.0},
        dtype=known.unary.dtype, device=known.unary.device,
    )  # fmt: skip
    scores = list(encoder.parameters())
    for score in scores:
        torch.nn.init.zeros_(score)
    optimizer = torch.optim.Adam(scores, lr=0.05)
    for _ in range(context.size(100, 3)):
        optimizer.zero_grad()
        prior = torch.stack([score.square().sum() for score in scores]).sum() / 2
        (prior - log_probability(encoder.field(known.unary, known.padding), known)).backward()
        optimizer.step()
    return encoder.requires_grad_(False)


def log_probability(field: MeanField, gold: Batch) -> Tensor:
    """Log probability of the tags and heads of all words, in nats."""
    words = ~gold.padding
    tags = field.label_logits.log_softmax(-1)[words].gather(-1, gold.labels[words].unsqueeze(-1))
    heads = field.head_marginals[:, 0][words].gather(-1, gold.heads[words].unsqueeze(-1))
    return tags.sum() + heads.log().sum()


def _tree(context: Context, sentences: Sentences, unseen: Batch, encoder: nn.DependencyCRFEncoder) -> Picture:
    """The longest unseen sentence with its arcs, and the scores of all."""
    words = ~unseen.padding
    field = encoder.field(unseen.unary, unseen.padding)
    arcs = field.head_marginals[:, 0].log()
    gold = [np.array(sentence.heads, dtype=int) for sentence in sentences]
    total = sum(map(len, gold))
    decoded = {name: decode(arcs, words).cpu().numpy() for name, decode in DECODERS.items()}
    cut = {name: [row[: len(true)] for row, true in zip(rows, gold, strict=True)] for name, rows in decoded.items()}
    scores = {name: metrics.attachment_score(rows, gold) for name, rows in cut.items()}
    baselines = metrics.baseline_scores(gold, seed=context.seed)
    longest = int(np.argmax([len(right) for right in gold]))
    chosen = cut["best projective tree"][longest]
    weights = field.head_marginals[longest, 0, torch.arange(len(chosen)), chosen]
    ax: Any = plots.dependency_arcs(sentences[longest].words, chosen, gold[longest], weights=weights)
    named = (rows.argmax(-1) == unseen.labels for rows in (unseen.unary, field.label_marginals))
    right = [same[words].double().mean() for same in named]
    trees = ops.tree_log_partition(arcs, words).exp()
    how = f"share of {total} words in {len(gold)} unseen sentences whose head is right; its standard error is at most {0.5 / total**0.5:.2f}"
    return picture(
        "arcs",
        ax.figure,
        "The longest unseen sentence. Arcs from heads to dependents: the best projective tree, the stronger the more probable; dotted where the treebank has another.",
        *((f"attachment score, {name}", score, how) for name, score in scores.items()),
        *((f"attachment score, {name}", score, "the same words; knows nothing") for name, score in baselines.items()),
        ("tags named rightly by the word alone", right[0], "largest counted log p(tag | word), the same words"),
        ("tags named rightly in context", right[1], "largest label marginal after four sweeps"),
        ("probability that independent heads make a tree", trees.mean(), "exp ops.tree_log_partition of the logarithms of attention, mean over the sentences"),
    )  # fmt: skip


def _exact(context: Context, sentences: Sentences, unseen: Batch, encoder: nn.DependencyCRFEncoder) -> Picture:
    """Mean field beside the sum over all labellings, on the beginnings of the unseen sentences."""
    length = context.size(4, 3)
    long = [i for i, sentence in enumerate(sentences) if len(sentence.words) >= length][:8]
    crf = encoder.crf(unseen.unary[long, :length])
    field = crf.mean_field(500, "sequential", tol=1e-9, progress=False)
    exact = crf.marginals()
    gaps = crf.log_partition() - field.elbo
    worst = int(gaps.argmax())
    beliefs = exact.heads, field.head_marginals
    words = list(sentences[long[worst]].words[:length])
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for ax, matrix, title in zip(panels, beliefs, ("exact", "mean field"), strict=False):
        plots.attention_map(matrix[worst, 0], words, ["root", *words], ax, largest=1.0)
        ax.set(title=title, xlabel="head", ylabel="word")
    ax = plots.marginal_agreement([beliefs[0]], [beliefs[1]], ax=panels[2])
    ax.set(xlabel="exact probability of a head", ylabel="mean field", title=f"all {len(long)} beginnings")
    how = f"the first {length} words of {len(long)} unseen sentences; log Z sums over all labellings, in which the heads sum out in closed form"
    return picture(
        "mean_field_and_exact",
        figure,
        "How probable each head is. Left: the beginning with the largest gap, exactly and by mean field. Right: every word and head of all beginnings.",
        ("smallest log Z − ELBO, nats", gaps.min(), how),
        ("median log Z − ELBO, nats", gaps.median(), "sequential mean field until it stands still"),
        ("largest log Z − ELBO, nats", gaps.max(), " ".join(words)),
        ("largest difference of a head's probability", (beliefs[0] - beliefs[1]).abs().max(), "over words and heads"),
        ("largest difference of a label's probability", (exact.labels - field.label_marginals).abs().max(), "over words and labels"),
    )  # fmt: skip

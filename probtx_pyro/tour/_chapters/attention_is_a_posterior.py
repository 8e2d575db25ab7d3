"""Chapter 1: the upper half of a handwritten digit asks a memory of digits for its lower half."""

from functools import partial

import numpy as np
import torch
from matplotlib import pyplot
from pyro.distributions import Gamma
from pyro.infer import TraceEnum_ELBO
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro import data, inference, models, plots
from probtx_pyro.tour._chapter import Chapter, Context, Number, Picture


def chapter(context: Context) -> Chapter:
    """Attention completes pictures; as a guide it makes the ELBO tight; in the linked limit it is dot-product attention."""
    digits, rng = data.load_digits(), context.rng()
    order = rng.permutation(len(digits.labels))
    num_units, num_fit, num_asked = context.size(800, 60), context.size(400, 40), context.size(400, 20)
    memory, fitting, asked = np.split(order[: num_units + num_fit + num_asked], [num_units, num_units + num_fit])
    upper, lower = (
        {
            part: context.tensor(digits.images[rows, half].reshape(len(rows), -1))
            for part, rows in _parts(memory, fitting, asked)
        }
        for half in (slice(0, 4), slice(4, 8))
    )
    mixture = models.GaussianMixture(upper["memory"], lower["memory"])
    prior = dict(key_precision=Gamma(context.tensor(2.0), context.tensor(0.01)))
    mixture = inference.adapt(
        models.bayesian(mixture, **prior), upper["fitting"], num_steps=100, tol=1e-8, progress=False
    ).formulation
    return Chapter(
        "Attention is a posterior",
        "What is an attention matrix a probability of?",
        [
            f"A memory holds {num_units} handwritten digits: the upper half of each is a key, the lower half its value. A query "
            "is the upper half of a digit that the memory has never seen. The model says that a query is one of the keys plus "
            "Gaussian noise; which one is a latent variable, the unit. Attention is the posterior probability of the unit.",
            "In Pyro's words, attention is the guide that makes the ELBO tight. With the exact posterior as guide the ELBO is the "
            "log evidence of the queries. With any other matrix whose rows sum to one it falls short by exactly the "
            "Kullback-Leibler divergence from that matrix to attention.",
            "Choose the prior of the units proportional to the exponential of half the key's squared length times its precision, "
            "and the posterior mean of the answer is the familiar scaled dot-product attention.",
        ],
        [_completions(mixture, upper, lower), _law(context, mixture, upper["asked"]), _limit(mixture, upper["asked"])],
    )


def _parts(*rows):
    return zip(("memory", "fitting", "asked"), rows, strict=True)


def _completions(mixture: models.GaussianMixture, upper: dict[str, Tensor], lower: dict[str, Tensor]) -> Picture:
    queries, truth = upper["asked"], lower["asked"]
    answers = mixture.expected_outputs(queries)
    figure, panels = pyplot.subplots(3, 10, figsize=(8.5, 2.9), layout="constrained")
    blank = torch.zeros_like(truth)
    for row, (name, below) in enumerate((("asked", blank), ("attention", answers), ("truth", truth))):
        for column, ax in enumerate(panels[row]):
            halves = torch.cat([queries[column], below[column]]).reshape(8, 8).numpy(force=True)
            ax.imshow(halves, cmap="Greys", vmin=0, vmax=1)
            ax.axhline(3.5, color=plots.UNIT_COLORS[5], linewidth=0.8)
            ax.set(xticks=[], yticks=[])
        panels[row, 0].set_ylabel(name)
    error = float((answers - truth).square().mean().sqrt())
    constant = float((lower["memory"].mean(0) - truth).square().mean().sqrt())
    nearest = lower["memory"][torch.cdist(queries, mixture.keys).argmin(-1)]
    copied = float((nearest - truth).square().mean().sqrt())
    perplexity = mixture.attention(queries)
    units = float((-(perplexity * perplexity.clamp_min(1e-300).log()).sum(-1)).exp().mean())
    return Picture(
        "completions",
        figure,
        "The query (above), the lower half that attention expects (middle), and the digit itself (below); ink in [0, 1].",
        [
            Number("key precision α", float(torch.as_tensor(mixture.key_precision).max()), "inference.adapt under Gamma(2, 0.01), on digits that are neither memory nor queries"),
            Number("error of attention's answer", error, f"root mean square over the pixels of {len(queries)} unseen digits"),
            Number("error of the nearest key's value", copied, "the same, copying the value of the closest key"),
            Number("error of the mean value", constant, "the same, answering the memory's mean lower half every time"),
            Number("units that share a query", units, "mean over queries of exp(entropy of the attention row)"),
        ],
    )  # fmt: skip


def _law(context: Context, mixture: models.GaussianMixture, queries: Tensor) -> Picture:
    """ELBO gap against KL for the exact attention, tempered, blurred and random ones, each by Pyro's TraceEnum_ELBO."""
    rng, few, count = context.rng(), slice(0, 12), context.size(15, 3)
    mixture = mixture.replace(keys=mixture.keys[:40], values=None)
    queries = queries[few]
    exact, elbo = mixture.attention(queries), TraceEnum_ELBO(max_plate_nesting=1)
    scores = mixture.log_joint(queries)
    random = context.tensor(rng.dirichlet(np.ones(exact.shape[-1]), (count, len(queries))))
    guides = [("exact attention", exact)]
    guides += [("other temperature", (scores * t).softmax(-1)) for t in np.geomspace(0.05, 4, count)]
    guides += [("mixed with uniform", (1 - e) * exact + e / exact.shape[-1]) for e in np.geomspace(1e-4, 1, count)]
    guides += [("random rows", rows) for rows in random]
    evidence = float(mixture.log_evidence(queries).sum())
    divergence, gap = [], []
    for _, guide in guides:
        divergence.append(float(torch.xlogy(guide, guide).sum() - (guide * exact.log()).sum()))
        gap.append(evidence + elbo.loss(mixture.model, partial(mixture.guide, attention=guide), queries))
    divergence[0], largest = abs(divergence[0]), float(np.abs(np.subtract(gap, divergence)).max())
    kinds = [kind for kind, _ in guides]
    figure, ax = pyplot.subplots(figsize=(5, 4.4), layout="constrained")
    plots.elbo_gap(np.maximum(divergence, 0), np.maximum(gap, 0), kinds, ax)
    return Picture(
        "elbo_gap",
        figure,
        f"Every guide lies on the diagonal: {len(queries)} queries, {mixture.num_units} units, {len(guides)} row-stochastic matrices.",
        [
            Number("log evidence of the queries, nats", evidence, "mixture.log_evidence, summed"),
            Number("ELBO with attention as guide, nats", evidence - gap[0], "TraceEnum_ELBO on mixture.model and mixture.guide"),
            Number("largest |gap − KL|, nats", largest, f"over all {len(guides)} guides; rounding is all that is left"),
            Number("largest KL among the guides, nats", max(divergence), "Σ A log(A / W) over queries and units"),
        ],
    )  # fmt: skip


def _limit(mixture: models.GaussianMixture, queries: Tensor) -> Picture:
    """The linked prior against torch's own attention, in double and single precision."""
    scale, differences, numbers = mixture.keys.shape[-1] ** -0.5, {}, []
    assert mixture.values is not None
    for dtype in (torch.float64, torch.float32):
        q, k, v = (x.to(dtype) for x in (queries, mixture.keys, mixture.values))
        linked = models.GaussianMixture.linked(k, v, key_precision=scale)
        differences[dtype] = (
            linked.expected_outputs(q) - scaled_dot_product_attention(q[None], k[None], v[None])[0]
        ).abs()
        name = str(dtype).removeprefix("torch.")
        numbers.append(
            Number(
                f"largest difference in {name}",
                float(differences[dtype].max()),
                "expected_outputs of GaussianMixture.linked(α = 1/√D) against torch's scaled_dot_product_attention",
            )
        )
    linked = models.GaussianMixture.linked(mixture.keys[:12], mixture.values[:12], key_precision=scale)
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    plots.attention_map(linked.attention(queries[:8]).numpy(force=True), ax=panels[0])
    panels[0].set_title("linked prior: scaled dot-product attention", fontsize=9)
    own = mixture.replace(keys=mixture.keys[:12], values=None)
    plots.attention_map(own.attention(queries[:8]).numpy(force=True), ax=panels[1])
    panels[1].set_title(
        f"uniform prior, α = {float(torch.as_tensor(mixture.key_precision).max()):.1f} from the evidence", fontsize=9
    )
    return Picture(
        "dot_product_limit",
        figure,
        "The same queries and twelve of the units. Left, α = 1/√D and the linked prior: attention as in a transformer. Right, the precision that the data ask for.",
        numbers,
    )  # fmt: skip


__all__ = ["chapter"]

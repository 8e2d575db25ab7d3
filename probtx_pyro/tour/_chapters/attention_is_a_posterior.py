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
from probtx_pyro.tour._chapter import Chapter, Context, Picture, digit_rows, picture


def chapter(context: Context) -> Chapter:
    """Attention completes pictures; as a guide it makes the ELBO tight; in the linked limit it is dot-product attention."""
    images, _ = data.load_digits()
    memory, fitting, asked = context.parts(len(images), (800, 60), (400, 40), (400, 20))
    upper, lower = context.tensor(images.reshape(len(images), 2, -1)).unbind(1)
    prior = Gamma(context.tensor(2.0), context.tensor(0.01))
    posterior = models.bayesian(models.GaussianMixture(upper[memory], lower[memory]), key_precision=prior)
    mixture = inference.adapt(posterior, upper[fitting], num_steps=100, tol=1e-8, progress=False).formulation
    queries = upper[asked]
    return Chapter(
        "Attention is a posterior",
        "What is an attention matrix a probability of?",
        [
            f"A memory holds {mixture.num_units} handwritten digits: the upper half of each is a key, the lower half its value. A query "
            "is the upper half of a digit that the memory has never seen. The model says that a query is one of the keys plus "
            "Gaussian noise; which one is a latent variable, the unit. Attention is the posterior probability of the unit.",
            "In Pyro's words, attention is the guide that makes the ELBO tight. With the exact posterior as guide the ELBO is the "
            "log evidence of the queries. With any other matrix whose rows sum to one it falls short by exactly the "
            "Kullback-Leibler divergence from that matrix to attention.",
            "Choose the prior of the units proportional to the exponential of half the key's squared length times its precision, "
            "and the posterior mean of the answer is the familiar scaled dot-product attention.",
        ],
        [_completions(mixture, queries, lower[asked]), _law(context, mixture, queries), _limit(mixture, queries)],
    )


def _completions(mixture: models.GaussianMixture, queries: Tensor, truth: Tensor) -> Picture:
    assert mixture.values is not None
    answers, attention = mixture.expected_outputs(queries), mixture.attention(queries)
    below = {"asked": torch.zeros_like(truth), "attention": answers, "truth": truth}
    figure, panels = digit_rows({name: torch.cat([queries, half], -1) for name, half in below.items()}, height=2.9)
    for ax in panels.flat:
        ax.axhline(3.5, color=plots.UNIT_COLORS[5], linewidth=0.8)
    nearest = mixture.values[torch.cdist(queries, mixture.keys).argmin(-1)]
    guesses = answers, nearest, mixture.values.mean(0)
    error, copied, guessed = ((guess - truth).square().mean().sqrt() for guess in guesses)
    units = torch.special.entr(attention).sum(-1).exp().mean()
    return picture(
        "completions",
        figure,
        "The query (above), the lower half that attention expects (middle), and the digit itself (below); ink in [0, 1].",
        ("key precision α", mixture.key_precision, "inference.adapt under Gamma(2, 0.01), on digits that are neither memory nor queries"),
        ("error of attention's answer", error, f"root mean square over the pixels of {len(queries)} unseen digits"),
        ("error of the nearest key's value", copied, "the same, copying the value of the closest key"),
        ("error of the mean value", guessed, "the same, answering the memory's mean lower half every time"),
        ("units that share a query", units, "mean over queries of exp(entropy of the attention row)"),
    )  # fmt: skip


def _law(context: Context, mixture: models.GaussianMixture, queries: Tensor) -> Picture:
    """ELBO gap against KL for the exact attention, tempered, blurred and random ones, each by Pyro's TraceEnum_ELBO."""
    count, queries, mixture = context.size(15, 3), queries[:12], mixture.replace(keys=mixture.keys[:40], values=None)
    exact, elbo = mixture.attention(queries), TraceEnum_ELBO(max_plate_nesting=1)
    random = context.tensor(context.rng().dirichlet(np.ones(exact.shape[-1]), (count, len(queries))))
    guides = [("exact attention", exact)]
    guides += [
        ("other temperature", (mixture.log_joint(queries) * t).softmax(-1)) for t in np.geomspace(0.05, 4, count)
    ]
    guides += [("mixed with uniform", (1 - e) * exact + e / exact.shape[-1]) for e in np.geomspace(1e-4, 1, count)]
    guides += [("random rows", rows) for rows in random]
    evidence = float(mixture.log_evidence(queries).sum())
    divergence, gap = [], []
    for _, guide in guides:
        divergence.append(float(torch.xlogy(guide, guide).sum() - (guide * exact.log()).sum()))
        gap.append(evidence + elbo.loss(mixture.model, partial(mixture.guide, attention=guide), queries))
    divergence[0], largest = abs(divergence[0]), float(np.abs(np.subtract(gap, divergence)).max())
    figure, ax = pyplot.subplots(figsize=(5, 4.4), layout="constrained")
    plots.elbo_gap(np.maximum(divergence, 0), np.maximum(gap, 0), [kind for kind, _ in guides], ax)
    return picture(
        "elbo_gap",
        figure,
        f"Every guide lies on the diagonal: {len(queries)} queries, {mixture.num_units} units, {len(guides)} row-stochastic matrices.",
        ("log evidence of the queries, nats", evidence, "mixture.log_evidence, summed"),
        ("ELBO with attention as guide, nats", evidence - gap[0], "TraceEnum_ELBO on mixture.model and mixture.guide"),
        ("largest |gap − KL|, nats", largest, f"over all {len(guides)} guides; rounding is all that is left"),
        ("largest KL among the guides, nats", max(divergence), "Σ A log(A / W) over queries and units"),
    )  # fmt: skip


def _limit(mixture: models.GaussianMixture, queries: Tensor) -> Picture:
    """The linked prior against torch's own attention, in double and single precision."""
    assert mixture.values is not None
    scale, numbers = mixture.keys.shape[-1] ** -0.5, []
    how = "expected_outputs of GaussianMixture.linked(α = 1/√D) against torch's scaled_dot_product_attention"
    for dtype in (torch.float64, torch.float32):
        q, k, v = (x.to(dtype) for x in (queries, mixture.keys, mixture.values))
        answers = models.GaussianMixture.linked(k, v, key_precision=scale).expected_outputs(q)
        largest = (answers - scaled_dot_product_attention(q[None], k[None], v[None])[0]).abs().max()
        numbers.append((f"largest difference in {str(dtype).removeprefix('torch.')}", largest, how))
    own = mixture.replace(keys=mixture.keys[:12], values=mixture.values[:12])
    linked = models.GaussianMixture.linked(own.keys, own.values, key_precision=scale)
    shown = {
        "linked prior: scaled dot-product attention": linked,
        f"uniform prior, α = {float(mixture.key_precision):.1f} from the evidence": own,
    }
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    for ax, (title, memory) in zip(panels, shown.items(), strict=True):
        plots.attention_map(memory.attention(queries[:8]), ax=ax).set_title(title, fontsize=9)
    caption = "The same queries and twelve of the units. Left, α = 1/√D and the linked prior: attention as in a transformer. Right, the precision that the data ask for."
    return picture("dot_product_limit", figure, caption, *numbers)

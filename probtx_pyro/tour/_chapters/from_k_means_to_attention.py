"""Chapter 2: centers of handwritten digits share the points; one number leads from k-means to attention."""

import numpy as np
import torch
from matplotlib import pyplot
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from probtx_pyro import data, models, plots
from probtx_pyro.plots._style import finished
from probtx_pyro.tour._chapter import Chapter, Context, Picture, Row, picture, principal

NUM_CENTERS = 6


def chapter(context: Context) -> Chapter:
    """k-means of digits in the plane, softened until it is attention; and the γ below which there are no clusters."""
    pictures, labels = data.load_digits()
    (rows,) = context.parts(len(pictures), (1797, 300))
    images = pictures[rows].reshape(len(rows), -1)
    plane = context.tensor(principal(images)(images))
    start = models.SoftKMeans.plus_plus(plane, NUM_CENTERS, gamma=torch.inf, seed=context.seed)
    lloyd = start.fit(plane, progress=False)
    return Chapter(
        "From k-means to attention",
        "How does clustering become attention?",
        [
            f"{len(rows)} handwritten digits on their two principal components, and {NUM_CENTERS} centers that k-means found. A point "
            "gives each center the weight softmax(−γ |point − center|²). At γ = ∞ the nearest center takes all: k-means. At a finite γ "
            "the weights are the posterior of a mixture of Gaussians with precision 2γ, and the weighted average of the centers is "
            "attention: the point is the query, the centers are keys and values.",
            "γ is an inverse temperature. EM lowers a free energy, squared distance less entropy / γ, so warmth draws the centers "
            "together. Near the mean of the data an EM step multiplies their differences along the direction of the largest variance λ by "
            "2γλ: below γ = 1/(2λ) they merge into one, and there are no clusters.",
        ],
        [_panels(context, plane, lloyd, labels[rows]), _transition(context, plane, lloyd)],
    )


def _panels(context: Context, plane: Tensor, lloyd: models.SoftKMeans, labels: np.ndarray) -> Picture:
    """Responsibilities in the plane (above) and the answers of attention (below), as γ falls; the centers stay."""
    grid = plots.query_grid(plane, num=context.size(140, 20), margin=0.04)
    places, nearest = context.tensor(grid.reshape(-1, 2)), lloyd.distances(plane).argmin(-1).numpy(force=True)
    names = [str(np.bincount(labels[nearest == j], minlength=10).argmax()) for j in range(NUM_CENTERS)]
    panels = {torch.inf: "γ = ∞: k-means", 4.0: "γ = 4: soft k-means", 2**-1.5: "γ = 0.35: attention's 1/√D"}
    figure, axes = pyplot.subplots(2, len(panels), figsize=(11, 6.6), sharex=True, sharey=True, layout="constrained")
    for (above, below), (gamma, title) in zip(axes.T, panels.items(), strict=True):
        clusters = lloyd.replace(gamma=gamma)
        weights = clusters.assign(places).unflatten(0, grid.shape[:2])
        plots.responsibilities(grid, weights, clusters.centers, 2 * gamma, names, above)
        above.set_title(title)
        below.plot(*plane.numpy(force=True).T, ".", color="0.85", markersize=2)
        below.plot(*clusters.centers.numpy(force=True).T, "k+", markersize=12)
        colors = [plots.unit_color(int(j)) for j in nearest]
        below.scatter(*clusters.reconstruct(plane).numpy(force=True).T, s=7, color=colors, zorder=3)
        finished(below, "", "", aspect="equal")
    axes[0, 0].set_ylabel("who explains a place")
    axes[1, 0].set_ylabel("what attention returns")
    return picture(
        "gamma",
        figure,
        "The same points and centers, as γ falls. Above: the centers' colours mixed by their weights; each center is named by the digit "
        "most frequent among its points, and its circle is one standard deviation. Below: points (grey), centers (crosses), and "
        "what attention returns for the points, in the colour of the nearest center.",
        *_numbers(plane, lloyd),
    )


def _numbers(plane: Tensor, lloyd: models.SoftKMeans) -> list[Row]:
    soft = lloyd.replace(gamma=4.0)
    mixture = models.GaussianMixture(soft.centers, soft.centers, key_precision=2 * soft.gamma)
    attention = soft.assign(plane)
    unit = soft.replace(centers=soft.centers / soft.centers.norm(dim=-1, keepdim=True))
    standard = scaled_dot_product_attention(plane, unit.centers, unit.centers, scale=2 * float(unit.gamma))
    refit = soft.fit(plane, num_steps=300, progress=False)
    how = f"mean over {len(plane)} points, γ = 4"
    return [
        ("weights against attention", (attention - mixture.attention(plane)).abs().max(), "largest difference, SoftKMeans.assign and GaussianMixture.attention with precision 8"),
        ("answers against scaled_dot_product_attention", (unit.reconstruct(plane) - standard).abs().max(), "largest difference, centers scaled to length one, scale 2γ"),
        ("points with more than one center", (attention.amax(-1) < 0.99).double().mean(), "share of the points of which no center has 99 %, γ = 4"),
        ("free energy at the centers of k-means", soft.free_energy(plane).mean(), how),
        ("free energy after EM", refit.free_energy(plane).mean(), "the same, after up to 300 EM steps: never above"),
        ("weighted squared distance at the centers of k-means", soft.distortion(plane).mean(), how),
        ("weighted squared distance after EM", refit.distortion(plane).mean(), "the same; EM does not lower it, and can raise it"),
    ]  # fmt: skip


def _transition(context: Context, plane: Tensor, lloyd: models.SoftKMeans) -> Picture:
    """The centers as γ falls slowly, and the γ at which they part: derived and measured."""
    largest = float(torch.linalg.eigvalsh(plane.T @ plane / len(plane))[-1])
    critical = 1 / (2 * largest)
    gammas, settled, clusters = critical * np.geomspace(12, 0.7, context.size(32, 4)), [], lloyd
    for gamma in gammas:
        clusters = clusters.replace(gamma=gamma).fit(plane, context.size(200, 10), tol=1e-5, progress=False)
        settled.append(clusters.centers[:, 0].numpy(force=True))
    figure, ax = pyplot.subplots(figsize=(6.5, 3.8), layout="constrained")
    for j, line in enumerate(np.stack(settled, -1)):
        ax.semilogx(gammas, line, ".-", color=plots.unit_color(j), markersize=4)
    ax.axvline(critical, color="#222222", linestyle="--")
    ax.annotate("1/(2λ)", (critical, 0.97), (4, 0), xycoords=("data", "axes fraction"), textcoords="offset points", va="top")  # fmt: skip
    ticks = [0.5, 1, 2, 4, 8]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    finished(ax, "γ", "first component of the centers")
    first, last = (float(np.ptp(settled[i])) for i in (0, -1))
    return picture(
        "transition",
        figure,
        "Six centers, settled by EM as γ falls from right to left: at the dashed line the last of them meet.",
        ("largest variance λ", largest, "top eigenvalue of the covariance of the points, ink squared"),
        ("critical γ, derived", critical, "1/(2λ)"),
        ("critical γ, measured", _split(context, plane, critical), "where one more EM step no longer moves nearly merged centers apart: growth of their spread after 60 steps, linear between values of γ"),
        ("spread of the centers at the smallest γ", last, f"range of their first components, γ = {gammas[-1]:.2f}"),
        ("spread of the centers at the largest γ", first, f"the same, γ = {gammas[0]:.1f}"),
    )  # fmt: skip


def _split(context: Context, plane: Tensor, critical: float) -> float:
    """The γ at which an EM step leaves the spread of nearly merged centers as it is."""
    gammas = critical * np.linspace(0.9, 1.1, 5)
    noise = context.tensor(1e-7 * context.rng().standard_normal((NUM_CENTERS, 2)))
    near = models.SoftKMeans((plane.mean(0) + noise).expand(len(gammas), -1, -1), context.tensor(gammas))
    before = near.fit(plane, num_steps=60, tol=None, progress=False)
    after = before.fit(plane, num_steps=1, tol=None, progress=False)
    growth = after.centers.std(-2).norm(dim=-1) / before.centers.std(-2).norm(dim=-1)
    return float(np.interp(1.0, growth.numpy(force=True), gammas))

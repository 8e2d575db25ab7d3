"""Chapter 3: the answer itself has a posterior; attention's output is its mean, EM finds its modes."""

import numpy as np
import torch
from matplotlib import pyplot
from pyro.distributions import Gamma
from torch import Tensor

from probtx_pyro import data, inference, models, plots
from probtx_pyro.plots._style import finished
from probtx_pyro.tour._chapter import Chapter, Context, Picture, picture, principal


def chapter(context: Context) -> Chapter:
    """Posterior over answers in the plane of two principal components: mean, modes, EM paths, and β towards 0."""
    images, _ = data.load_digits()
    memory, fitting, asked = context.parts(len(images), (300, 30), (400, 30), (48, 6))
    flat = images.reshape(len(images), -1)
    upper, answers = context.tensor(flat[:, :32]), context.tensor(principal(flat[memory])(flat))
    mixture = models.GaussianMixture(upper[memory], answers[memory], key_precision=30.0, value_precision=4.0)
    vague = Gamma(context.tensor(2.0), context.tensor(0.01))
    posterior = models.bayesian(mixture, key_precision=vague, value_precision=vague)
    fit = inference.adapt(posterior, upper[fitting], answers[fitting], num_steps=200, tol=1e-6, progress=False)
    mixture, queries = fit.formulation, upper[asked]
    found = mixture.output_modes(queries, num_steps=context.size(200, 30), tol=1e-6)
    counts = found.is_mode.sum(-1)
    heights = found.log_density.masked_fill(~found.is_mode, -torch.inf).topk(2).values
    chosen = (heights[:, 1] - heights[:, 0]).argsort(descending=True, stable=True)[:2]  # the most even pairs of modes
    return Chapter(
        "The MAP transformer",
        "If attention's output is the mean of the answer, what is the rest of its distribution?",
        [
            "The query is again the upper half of a digit. The answer is now a point of the plane: where the whole digit falls on "
            "the first two principal components of the memory. Given the query, the answer is distributed as a mixture of the "
            "units' Gaussians, weighted by attention. Its mean is what attention returns, for every value precision β.",
            "An upper half can belong to different digits, so the distribution can have several modes, and its mean can fall "
            "between them, where no digit is. EM on the answer (attend with the answer as part of the query, average, repeat) "
            "climbs to a mode; every step is one attention, and the density never falls.",
            "As β goes to 0 the units' Gaussians widen until one hill is left, and the most probable answer tends to the mean: "
            "ordinary attention is the MAP answer in that limit.",
        ],
        [_paths(mixture, queries[chosen], found, chosen, context), _towards_zero(context, mixture, queries, counts)],
    )


def _paths(
    mixture: models.GaussianMixture, queries: Tensor, found: models.OutputModes, chosen: Tensor, context: Context
) -> Picture:
    """EM from every unit's answer, for the two queries given."""
    assert mixture.values is not None
    grid = plots.query_grid(mixture.values, num=context.size(90, 20), margin=0.05)
    points = context.tensor(grid.reshape(-1, 2))
    starts = mixture.values[:: max(1, mixture.num_units // 25)]
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 5.2), layout="constrained")
    rises, numbers = [], []
    for ax, query, which in zip(panels, queries, chosen.tolist(), strict=True):
        asked = query.expand(len(starts), -1)
        steps = [starts]
        for _ in range(context.size(60, 5)):
            steps.append(mixture.map_outputs(asked, steps[-1], num_steps=1))
        path = torch.stack(steps)
        answer = mixture.output_distribution(query[None])
        density = answer.log_prob(points[:, None]).exp().reshape(grid.shape[:2])
        modes, mean = found.locations[which][found.is_mode[which]], mixture.expected_outputs(query[None])
        plots.em_paths(path, grid, density, ax, modes=modes, mean=mean[0])
        ax.set(title=f"query {which}", xlabel="first component", ylabel="second component")
        rises.append(answer.log_prob(path[:, :, None]).diff(dim=0).min())
        best = found.log_density[which][found.is_mode[which]].max()
        numbers += [
            (f"modes found, query {which}", len(modes), "mixture.output_modes: EM from every unit and from the mean"),
            (f"log density at the highest mode, query {which}", best, "log p(answer | query)"),
            (f"log density at the mean, query {which}", answer.log_prob(mean), "log p(answer | query) at attention's output"),
        ]  # fmt: skip
    how = f"over {len(starts)} paths for each query; negative only by rounding"
    caption = "Density of the answer given the query (bright is high), with the ways of EM from the units' answers, for the two queries whose two highest modes are most even."
    numbers.append(("smallest change of log density in an EM step", min(rises), how))
    return picture("em_paths", figure, caption, *numbers)


def _towards_zero(context: Context, mixture: models.GaussianMixture, queries: Tensor, counts: Tensor) -> Picture:
    """Distance of the MAP answer from the mean as the value precision falls."""
    mean, precision = mixture.expected_outputs(queries), float(torch.as_tensor(mixture.value_precision).max())
    betas, distance = np.geomspace(1e-5 * precision, precision, context.size(11, 4)), []
    for beta in betas:
        answer = mixture.replace(value_precision=beta).map_outputs(queries, num_steps=500, tol=1e-9)
        distance.append(float((answer - mean).norm(dim=-1).mean()))
    slope = np.polyfit(np.log(betas[:3]), np.log(distance[:3]), 1)[0]
    exact = (mixture.replace(value_precision=0.0).map_outputs(queries) - mean).abs().max()
    figure, ax = pyplot.subplots(figsize=(5.5, 3.4), layout="constrained")
    ax.loglog(betas, distance, "o-", color=plots.UNIT_COLORS[0])
    finished(ax, "value precision β", "mean distance, MAP answer to mean")
    return picture(
        "towards_zero",
        figure,
        f"As β falls the MAP answer becomes attention's output ({len(queries)} queries; both axes logarithmic).",
        ("value precision β from the evidence", precision, "inference.adapt under Gamma(2, 0.01) on digits and answers that are not asked"),
        ("queries with more than one mode", (counts > 1).double().mean(), "share of the queries, at that β"),
        ("distance at that β", distance[-1], "mean over queries of |MAP answer − posterior mean|, map_outputs from the mean"),
        ("distance at the smallest β", distance[0], f"the same at β = {betas[0]:.1e}"),
        ("slope of the left end", slope, "least squares on the logarithms of the three smallest β; 1 is proportional to β"),
        ("distance at β = 0", exact, "largest difference; map_outputs is the mean there"),
    )  # fmt: skip

"""Chapter 9: a posterior over the keys of a small memory, its credible bands of attention, and whether to believe it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import arviz
import numpy as np
from matplotlib import pyplot
from pyro.distributions import Gamma, Normal
from torch import Tensor

from probtx_pyro import data, inference, models, plots, results
from probtx_pyro.plots._style import finished
from probtx_pyro.results._arviz import dataset
from probtx_pyro.results._diagnose import Verdict
from probtx_pyro.tour._chapter import Chapter, Context, Picture, picture, principal

SOME = (0, 1, 4, 6, 7)  # one unit for each of these digits
NAMES = [str(digit) for digit in SOME]


def chapter(context: Context) -> Chapter:
    """Gibbs and NUTS on the same posterior, their verdicts, bands on attention, and the calibration of Gibbs."""
    (program, queries), seed = _memory(context), context.seed
    mixture = program.formulation
    rivals = mixture.attention(queries).topk(2).values
    hardest = int((rivals[:, 0] - rivals[:, 1]).argmin())
    draws = {
        "Gibbs": inference.gibbs(
            program, queries, num_samples=context.size(400, 10), num_warmup=context.size(200, 10),
            num_chains=context.size(10, 3), thin=3, seed=seed, progress=False,
        ),
        "NUTS": inference.nuts(
            program, queries, num_samples=context.size(120, 10), num_warmup=context.size(80, 10), num_chains=2,
            seed=seed, progress=False,
        ),
    }  # fmt: skip
    coords, prior = {"unit": NAMES}, context.size(4000, 50)
    files = {name: results.to_inference_data(x, coords=coords, seed=seed, prior=prior) for name, x in draws.items()}
    verdicts = {name: results.diagnose(file) for name, file in files.items()}
    return Chapter(
        "Do we believe it?",
        "How sure is attention, and how sure are we of that?",
        [
            f"The posterior of a memory of {len(SOME)} units, one for each of the digits {', '.join(NAMES)}, given {len(queries)} pictures "
            "that nobody names, each described by two principal components. Keys and precisions have Normal and Gamma priors; the "
            "digits' own means are only where the prior expects the keys. Every draw of the parameters has an attention matrix, so "
            "that attention has a mean and a credible band, for each query and unit.",
            "A sampler can fail in silence. Three questions before its draws are used: do two samplers that share no step agree; do "
            "the chains agree, with enough effective draws (results.diagnose); and is the sampler right at all? The last one is "
            "answered without any real data: draw parameters from the prior and data from them, and the rank of the truth among "
            "posterior draws must be uniform (simulation-based calibration).",
            *(_spoken(name, draws[name], verdict) for name, verdict in verdicts.items()),
        ],
        [
            _bands(files["Gibbs"], mixture, queries, hardest),
            _agreement(files, draws, verdicts),
            _calibration(context, program, queries),
        ],
        {"posterior": files["Gibbs"]},
    )


def _memory(context: Context) -> tuple[models.Bayesian[models.GaussianMixture], Tensor]:
    """A unit for each digit in the plane of two principal components, priors that expect them there, and unnamed queries."""
    images, labels = data.load_digits()
    chosen = np.flatnonzero(np.isin(labels, SOME))
    known, asked = (chosen[rows] for rows in context.parts(len(chosen), (300, 100), (60, 20)))
    flat = images.reshape(len(images), -1)
    means = np.stack([flat[known][labels[known] == digit].mean(0) for digit in SOME])
    project = principal(flat[known])
    expected, queries = context.tensor(project(means)), context.tensor(project(flat[asked]))
    mixture = models.GaussianMixture(expected, key_precision=expected.new_full((len(SOME),), 2.0))
    precision = Gamma(context.tensor(8.0), context.tensor(4.0))
    return models.bayesian(mixture, keys=Normal(expected, context.tensor(0.3)), key_precision=precision), queries


def _spoken(name: str, draws: inference.Draws, verdict: Verdict) -> str:
    """The verdict's first line, and which checks fail."""
    failed = [check.name for check in verdict.checks if not check.ok]
    why = f" These fail: {', '.join(failed)}." if failed else ""
    count, first = draws.num_chains * draws.num_draws, str(verdict).splitlines()[0]
    return f"results.diagnose on {count} draws of {name}: {first}{why}"


def _bands(file: Any, before: models.GaussianMixture, queries: Tensor, hardest: int) -> Picture:
    """The keys' posterior in the plane, and the attention of the query that is hardest to place."""
    posterior = file["posterior"]
    keys, points = posterior["keys"].values.reshape(-1, len(SOME), 2), queries.numpy(force=True)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(*points.T, ".", color="#999999", markersize=3, label="queries")
    for unit, name in enumerate(NAMES):
        left.plot(*keys[::10, unit].T, ".", color=plots.unit_color(unit), markersize=2, alpha=0.3)
        left.text(*keys[:, unit].mean(0), name, ha="center", va="center", weight="bold")
    left.plot(*points[hardest], "*", color=plots.UNIT_COLORS[-1], markersize=11, label="the query on the right")
    finished(left, "first component", "second component", True, aspect="equal")
    attention, reference = posterior["attention"].isel(query=hardest), before.attention(queries)[hardest]
    plots.attention_band(attention, NAMES, reference=reference, ax=right)
    low, high = np.quantile(posterior["attention"].values, (0.055, 0.945), axis=(0, 1))
    widest = int((high - low)[hardest].argmax())
    return picture(
        "credible_attention",
        figure,
        "Left: draws of the keys, one cloud for each unit. Right: 89 % intervals of the attention of the query that the memory as it was found hardest to place; crosses: attention before the queries were seen.",
        (f"attention on {NAMES[widest]}, lower end", low[hardest, widest], "5.5 % quantile over the draws of Gibbs, the query on the right"),
        (f"attention on {NAMES[widest]}, upper end", high[hardest, widest], "94.5 % quantile"),
        ("median width of an interval", np.median((high - low).max(-1)), f"over {len(low)} queries, the widest interval of each"),
    )  # fmt: skip


def _agreement(
    files: Mapping[str, Any], draws: Mapping[str, inference.Draws], verdicts: Mapping[str, Verdict]
) -> Picture:
    """Posterior means of the two samplers, and what the diagnostics say of each."""
    drawn = {name: dataset(file, "posterior")[["keys", "key_precision"]] for name, file in files.items()}
    gibbs, nuts = (_flat(drawn[name].mean(("chain", "draw"))) for name in ("Gibbs", "NUTS"))
    gibbs_error, nuts_error = (_flat(arviz.mcse(drawn[name])) for name in ("Gibbs", "NUTS"))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.5, 3.6), layout="constrained")
    left.errorbar(gibbs, nuts, 4 * nuts_error, 4 * gibbs_error, "o", markersize=3, color=plots.UNIT_COLORS[0])
    ends = [min(gibbs), max(gibbs)]
    left.plot(ends, ends, color="#999999", linewidth=1, zorder=0)
    finished(left, "posterior mean by Gibbs", "posterior mean by NUTS")
    plots.prior_posterior(files["Gibbs"], name="key_precision", coords={"unit": NAMES[0]}, ax=right)
    right.set_xlabel(f"key precision of the unit {NAMES[0]}")
    apart = np.abs(gibbs - nuts) / np.hypot(gibbs_error, nuts_error)
    over = f"over {len(apart)} keys' coordinates and precisions"
    numbers = [("largest difference of two means, Monte Carlo errors", apart.max(), over)]
    for name, verdict in verdicts.items():
        checks = [check for check in verdict.checks if np.isfinite(check.value)]
        asked = [f"results.diagnose asks for {check.bound}; worst: {check.where or 'none'}" for check in checks]
        numbers += [(f"{check.name}, {name}", check.value, how) for check, how in zip(checks, asked, strict=True)]
        how = f"{draws[name].num_chains} chains of {draws[name].num_draws} draws"
        numbers.append((f"seconds, {name}", draws[name].record["seconds"], how))
    caption = "Left: posterior means by both samplers, bars of four Monte Carlo errors. Right: what the queries taught about one precision."
    return picture("two_samplers", figure, caption, *numbers)


def _flat(found: Any) -> np.ndarray:
    """All numbers of a dataset, variable by variable."""
    return np.concatenate([np.ravel(x.values) for x in found.data_vars.values()])


def _calibration(context: Context, program: models.Bayesian, queries: Tensor) -> Picture:
    """Simulation-based calibration of Gibbs, all simulations as one batch."""
    count, kept = context.size(200, 20), 19
    sampler = partial(inference.gibbs, num_chains=kept, num_samples=1, num_warmup=context.size(100, 5))
    found = results.calibrate(
        program, queries[:40], sampler=sampler, num_simulations=count, num_draws=kept, seed=context.seed,
        batch_size=count, progress=False,
    )  # fmt: skip
    figure, ax = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
    plots.calibration(found, ax=ax)
    worst, chance = found.smallest()
    return picture(
        "calibration",
        figure,
        "Simulation-based calibration of Gibbs: lines of all parameters and of the log likelihood; a right sampler stays inside the band in 99 of 100 such pictures.",
        ("simulations", count, "parameters from the prior, 40 queries from them"),
        ("quantities", found.num_quantities, "keys, precisions and the log likelihood"),
        ("smallest p-value, Bonferroni", chance, f"of {worst}; uniform ranks"),
    )

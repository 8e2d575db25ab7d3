"""What the pseudo-likelihood of a dependency CRF costs: its MAP and its spread beside those of the exact likelihood.

``python -m benchmarks.crf_likelihoods``; ``--draw`` makes the picture from the results that are there.

Protocol, fixed before any number was seen. SEEDS problems for each setting, each with a T of its own (C = 1 channel, two groups, L = 2
labels; standard Normal) and unary scores of its own (standard Normal), known. Labels are exact draws from the CRF; no heads are known.
The prior on T is the standard Normal that T comes from. MAP by `inference.adapt`, at most STEPS steps of L-BFGS, from T = 0.

- More sentences: 10, 40, 160, 640 of 4 words. Longer ones: 80 of 2, 4, 6, 8 words.
- Compared: the root mean square over the 8 entries of T of pseudo MAP less exact MAP, that of each less the T that made the data, and the
  exact log posterior density that the pseudo MAP lacks of the exact one, in nats. Mean and standard deviation over the seeds.
- Spread: 40 and 160 sentences of 4 words. Standard deviations by the curvature at the mode (Laplace), pseudo over exact, mean over entries; and the
  share of the entries whose truth lies within 1.645 of them around the mode. (Planned with NUTS, 40 sentences; those runs had not ended
  after 27 minutes on a machine that others used, and were stopped before a number was seen.)
- Calibration: `results.calibrate` of NUTS with the pseudo-likelihood, 200 simulations of 10 sentences of 3 words, 19 of 38 draws: the least
  uniform p-value, and beside it that of the exact likelihood.
"""

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Normal

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import RESULTS, write
from probtx_pyro import inference, models, results

SEEDS, STEPS = 10, 200
MORE = [(n, 4) for n in (10, 40, 160, 640)]
LONGER = [(80, n) for n in (2, 4, 6, 8)]
KINDS = ("exact", "pseudo")
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "crf_likelihoods.png"
Rows = list[dict[str, Any]]


def problems(sentences: int, words: int) -> tuple[dict[str, models.Bayesian], torch.Tensor, torch.Tensor]:
    """The posteriors of all seeds as one batch of problems, by likelihood; T, (seed, 1, 2, 2, 2); labels (seed, sentence, word)."""
    unary, ternary = [], []
    for seed in range(SEEDS):
        g = torch.Generator().manual_seed(seed)
        ternary.append(torch.randn(1, 2, 2, 2, generator=g, dtype=torch.float64))
        unary.append(torch.randn(sentences, words, 2, generator=g, dtype=torch.float64))
    truth, scores = torch.stack(ternary), torch.stack(unary)
    one, posteriors = models.DependencyCRF(unary[0], ternary[0]), {}
    for kind in KINDS:
        labelled = models.bayesian(one, likelihood=kind).formulation
        many = labelled.with_parameters({"unary": scores, "ternary": torch.zeros_like(truth)})
        posteriors[kind] = models.bayesian(many, ternary=Normal(0.0, 1.0))
    source = posteriors["exact"].formulation.with_parameters({"ternary": truth})
    with torch.random.fork_rng():
        torch.manual_seed(SEEDS)
        labels = poutine.trace(source.model).get_trace(None).nodes["labels"]["value"]
    return posteriors, truth, labels


def spread(x: torch.Tensor) -> list[float]:
    """Mean and standard deviation over the seeds."""
    return [round(float(x.mean()), 4), round(float(x.std()), 4)]


def climbed(posterior: models.Bayesian, labels: torch.Tensor) -> torch.Tensor:
    """The MAP of T of all seeds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # gradient MAP is what is wanted
        fit = inference.adapt(posterior, labels, num_steps=STEPS, tol=1e-6, progress=False)
    return fit.formulation.parameters()["ternary"].detach()


def modes(sentences: int, words: int) -> dict[str, Any]:
    """MAP by both likelihoods."""
    posteriors, truth, labels = problems(sentences, words)
    found, seconds = {}, {}
    for kind, posterior in posteriors.items():
        began = time.process_time()
        found[kind] = climbed(posterior, labels)
        seconds[kind] = round(time.process_time() - began, 2)

    def off(x: torch.Tensor, y: torch.Tensor) -> list[float]:
        return spread((x - y).square().flatten(1).mean(1).sqrt())

    def density(x: torch.Tensor) -> torch.Tensor:
        exact = posteriors["exact"].formulation.with_parameters({"ternary": x})
        return exact.log_evidence(labels).sum(-1) + Normal(0.0, 1.0).log_prob(x).flatten(1).sum(1)

    return {
        "what": "modes", "sentences": sentences, "words": words,
        "apart": off(found["pseudo"], found["exact"]), "exact_off": off(found["exact"], truth),
        "pseudo_off": off(found["pseudo"], truth), "nats": spread(density(found["exact"]) - density(found["pseudo"])),
        "seconds": seconds,
    }  # fmt: skip


def spreads(sentences: int, words: int = 4) -> dict[str, Any]:
    """Standard deviations and intervals by the curvature at the modes of both likelihoods."""
    posteriors, truth, labels = problems(sentences, words)
    sds, inside = {}, {}
    for kind, posterior in posteriors.items():
        mode = climbed(posterior, labels)

        def density(x: torch.Tensor, posterior: models.Bayesian = posterior) -> torch.Tensor:
            at = posterior.formulation.with_parameters({"ternary": x.reshape(truth.shape)})
            return at.log_evidence(labels).sum() + Normal(0.0, 1.0).log_prob(x).sum()

        point = mode.flatten(1).requires_grad_()
        (slope,) = torch.autograd.grad(density(point), point, create_graph=True)
        rows = [torch.autograd.grad(slope[:, i].sum(), point, retain_graph=True)[0] for i in range(slope.shape[1])]
        sds[kind] = torch.linalg.inv(-torch.stack(rows, 1)).diagonal(dim1=-2, dim2=-1).sqrt()  # seeds do not mix
        inside[kind] = ((mode - truth).flatten(1).abs() < 1.645 * sds[kind]).double().mean(1)
    return {
        "what": "spread", "sentences": sentences, "words": words, "ratio": spread((sds["pseudo"] / sds["exact"]).mean(1)),
        "exact_sd": spread(sds["exact"].mean(1)), "inside": {kind: spread(x) for kind, x in inside.items()},
    }  # fmt: skip


def calibrations(kinds: Sequence[str] = KINDS, sentences: int = 10, words: int = 3) -> Rows:
    """Least uniform p-values by both likelihoods."""
    g = torch.Generator().manual_seed(0)
    crf = models.DependencyCRF(
        torch.randn(sentences, words, 2, generator=g, dtype=torch.float64), torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    )
    sampler = partial(inference.nuts, num_chains=1, num_samples=38, num_warmup=60, start="prior", progress=False)
    rows = []
    for kind in kinds:
        posterior = models.bayesian(crf, ternary=Normal(0.0, 1.0), likelihood=kind)
        found = results.calibrate(
            posterior, (sentences, words), sampler=sampler, num_simulations=200, num_draws=19, batch_size=200, seed=0,
            progress=False,
        )  # fmt: skip
        where, p = found.smallest()
        print(found, flush=True)
        rows.append({"what": "calibration", "likelihood": kind, "least": where, "p": p})
    return rows


def draw(rows: Rows) -> None:
    """Write ``docs/figures/crf_likelihoods.png``: distances of the modes against the number and the length of sentences."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    labels = {
        "apart": "pseudo MAP to exact MAP",
        "exact_off": "exact MAP to the truth",
        "pseudo_off": "pseudo MAP to the truth",
    }
    for ax, settings, axis, title in (
        (panels[0], MORE, "sentences", "sentences of 4 words"), (panels[1], LONGER, "words", "words in each of 80 sentences"),
    ):  # fmt: skip
        own = [row for row in rows if row["what"] == "modes" and (row["sentences"], row["words"]) in settings]
        for i, (name, label) in enumerate(labels.items()):
            mean, sd = zip(*(row[name] for row in own), strict=True)
            ax.errorbar([row[axis] for row in own], mean, sd, marker="os^"[i], color=f"C{i}", capsize=3, label=label)
        ax.set(xlabel=title, yscale="log", xscale="log" if axis == "sentences" else "linear")
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("root mean square over T")
    panels[0].legend(frameon=False)
    figure.savefig(FIGURE, dpi=100)
    pyplot.close(figure)


def report_tables() -> Tables:
    """Tables of ``docs/reports/crf_posterior.md``."""
    rows, modes_, spreads_ = rows_kept("crf_likelihoods"), [], []
    for row in rows:
        if row["what"] == "modes":
            pairs = [
                f"{mean:.2f} ± {sd:.2f}" for mean, sd in (row[x] for x in ("apart", "exact_off", "pseudo_off", "nats"))
            ]
            seconds = ", ".join(f"{row['seconds'][x]:.1f}" for x in ("exact", "pseudo"))
            modes_.append([f"{row['sentences']}, {row['words']}", *pairs, seconds])
        if row["what"] == "spread":
            pairs = [f"{mean:.2f} ± {sd:.2f}" for mean, sd in (row["ratio"], row["exact_sd"], *row["inside"].values())]
            spreads_.append([f"{row['sentences']}, {row['words']}", *pairs])
    head = ["sentences, words", "pseudo MAP to exact MAP", "exact MAP to the truth", "pseudo MAP to the truth", "nats", "seconds, exact and pseudo"]  # fmt: skip
    wide = ["sentences, words", "standard deviation, pseudo over exact", "exact", "truths inside 90 %: exact", "pseudo"]
    return {"modes": rows_of(head, *modes_), "spread": rows_of(wide, *spreads_)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true")
    if parser.parse_args(arguments).draw:
        draw(json.loads((RESULTS / "crf_likelihoods.json").read_text())["rows"])
        return 0
    rows: Rows = []
    for sentences, words in dict.fromkeys([*MORE, *LONGER]):
        rows.append(modes(sentences, words))
        print(rows[-1], flush=True)
        write("crf_likelihoods", rows)
    for more in ([spreads(40), spreads(160)], calibrations()):
        rows += more
        print(more, flush=True)
        print(write("crf_likelihoods", rows))
    draw(rows)
    write_tables("crf_posterior.md", report_tables())
    return 0


if __name__ == "__main__":
    main()

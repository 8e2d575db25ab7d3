"""Every formulation by every verb, called on a tiny problem: what docs/what_serves_what.md shows.

``python tests/what_serves_what.py`` writes the page anew. A row is one line of `ROWS`, a column one line of `VERBS`.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import formulations
import torch
from pyro.poutine import seed, trace
from strategies import generator
from torch import nn as torch_nn

from probtx_pyro import inference, inspection, models, nn, results

PAGE = Path(__file__).parent.parent / "docs" / "what_serves_what.md"
QUIET = {"num_samples": 5, "seed": 0, "progress": False}
GIBBS = functools.partial(inference.gibbs, num_chains=2, num_warmup=1, **QUIET)
NUTS = functools.partial(inference.nuts, num_chains=2, num_warmup=1, max_tree_depth=2, start="formulation", **QUIET)
ASKED = ("attention", "log_evidence", "expected_outputs", "output_distribution")


class Served(NamedTuple):
    """A row: its problem, by its name in `formulations.ROWS`, the layer of `nn` that is captured, and what makes it a density of data.

    likelihood: of `models.bayesian`; the data are then labels, drawn from it.
    """

    problem: str
    layer: Callable[[], torch_nn.Module] | None = None
    likelihood: str | None = None


def layer(name: str, **options: Any) -> Callable[[], torch_nn.Module]:
    """Return what makes a layer of two heads."""
    return lambda: getattr(nn, name)(8, 2, batch_first=True, **options)


ROWS = {
    "GaussianMixture": Served("gaussian mixture", layer("GaussianMixtureAttention", linked=False)),
    "GaussianMixture(metric=, shift=)": Served(
        "gaussian mixture, metric and shift", layer("GaussianMixtureAttention", metric="full", shift=True)
    ),
    "GaussianMixture.categorical": Served("gaussian mixture, labels"),
    "GaussianKeys": Served("gaussian keys", layer("GaussianKeysAttention")),
    "GaussianKeys(metric=, shift=)": Served("gaussian keys, prior for each query, answers, metric and shift"),
    "LinearKeys": Served("linear keys", layer("LinearKeysAttention")),
    "LinearKeys(value_precision=)": Served("linear keys, answers with a density"),
    "Hopfield": Served("hopfield", layer("HopfieldAttention")),
    "SoftKMeans": Served("soft k-means"),
    "SoftHashTable": Served("soft hash table"),
    "LogNormalizer": Served("log normaliser, points"),
    "LogNormalizer(covariance=)": Served("log normaliser, a covariance each"),
    "LogNormalizer(variance=)": Served("log normaliser, a diagonal each"),
    "DependencyCRF": Served("dependency CRF"),
    'DependencyCRF, likelihood="exact"': Served("dependency CRF", likelihood="exact"),
    'DependencyCRF, likelihood="pseudo"': Served("dependency CRF", likelihood="pseudo"),
    "PottsField": Served("Potts field"),
    "RegressionMemory": Served("regression memory", layer("RegressionMemoryAttention")),
    "RegressionMemory(drift=Walk(a))": Served("regression memory, walk", layer("RegressionMemoryAttention")),
    "RegressionMemory(drift=Discount(γ))": Served("regression memory, discount", layer("RegressionMemoryAttention")),
    "RegressionMemory(drift=PullBack(γ))": Served("regression memory, pull-back", layer("RegressionMemoryAttention")),
    "RegressionMemory(drift=Reset())": Served("regression memory, reset", layer("RegressionMemoryAttention")),
}


class Problem:
    """The tiny problem of a row, and what a verb takes from another."""

    def __init__(self, served: Served):
        self.served = served
        if served.problem in formulations.MEMORIES:
            self.formulation, *self.data = formulations.MEMORIES[served.problem](generator(0))
            return
        row = formulations.ROWS[served.problem]
        formulation, *data = row.draw(generator(0))
        self.formulation, self.data = formulation, data[: max(row.parts)]
        if served.likelihood is not None:
            self.formulation = models.bayesian(formulation, likelihood=served.likelihood).formulation
            with seed(rng_seed=0):
                self.data = [trace(self.formulation.model).get_trace(None).nodes["labels"]["value"]]

    @functools.cached_property
    def posterior(self) -> models.Bayesian:
        """With a prior on every parameter that data inform."""
        return models.bayesian(self.formulation, **formulations.priors_of(self.formulation))

    @functools.cached_property
    def draws(self) -> inference.Draws:
        """By NUTS."""
        return NUTS(self.posterior, *self.data)

    @property
    def result(self) -> tuple[Any, ...]:
        """Draws, or where there is no posterior the formulation itself with its data."""
        return (self.draws,) if self.formulation.offers("log_evidence") else (self.formulation, *self.data)

    @functools.cached_property
    def labelled(self) -> Any:
        """The same as ArviZ data."""
        return results.to_inference_data(*self.result)


class Wrapped(torch_nn.Module):
    """A module that attends by a formulation, in no way that capture knows."""

    def __init__(self, formulation: models.Formulation):
        super().__init__()
        self.formulation = formulation

    def forward(self, *data: torch.Tensor) -> torch.Tensor:
        """Attention."""
        return self.formulation.attention(*data)


def adapted(problem: Problem) -> str:
    """By which method."""
    return inference.adapt(problem.posterior, *problem.data, num_steps=1, progress=False).method


def converted(problem: Problem) -> str:
    """What there is of attention and likelihood."""
    data = problem.labelled
    drawn = len(problem.result) == 1 and "posterior" in data
    held = data["posterior" if drawn else "point_estimate"]
    kind = "prequential log likelihood" if problem.formulation.PREQUENTIAL else "log likelihood"
    said = ["attention"] * ("attention" in held) + [kind] * (drawn and "log_likelihood" in data)
    return f"{'draws' if drawn else 'one value'}: {', '.join(said)}"


def diagnosed(problem: Problem) -> str:
    """A verdict."""
    return "yes" if results.diagnose(problem.labelled) is not None else ""


def calibrated(problem: Problem) -> str:
    """By which samplers."""
    found, samplers = [], [GIBBS] if problem.posterior.conjugate() else []
    for sampler in (*samplers, NUTS):
        options = {"num_simulations": 1, "num_draws": 3, "seed": 0, "progress": False}
        found.append(results.calibrate(problem.posterior, *problem.data, sampler=sampler, **options).method)
    return ", ".join(found)


def predicted(problem: Problem) -> str:
    """Which quantities."""
    said, found = results.predict(*problem.result), []
    for name in ASKED:
        try:
            getattr(said, name)
        except (NotImplementedError, ValueError) as error:
            refused = error
        else:
            found.append(f"`{name}`")
    if not found:
        raise refused
    return ", ".join(found)


def captured(problem: Problem) -> str:
    """The layer, and as which formulation it is caught where that is not the row's."""
    if problem.served.layer is None:
        inspection.capture(Wrapped(problem.formulation), *problem.data)
        raise AssertionError("capture knows a module without attention")
    made, x = problem.served.layer(), torch.randn(1, 3, 8, generator=generator(1))
    (found,) = inspection.capture(made.to(x.dtype), x, x, x).values()
    kind = type(found.written)
    return f"`nn.{type(made).__name__}`" + ("" if kind is type(problem.formulation) else f", as a `{kind.__name__}`")


def worked(call: Callable[[models.Bayesian], Any]) -> Callable[[Problem], str]:
    """A verb of which there is nothing to say but that it ran."""

    def cell(problem: Problem) -> str:
        call(problem)
        return "yes"

    return cell


def sampled(problem: Problem) -> str:
    """Of the posterior, or of latent choices where there is no posterior of parameters."""
    if problem.formulation.offers("latents") and not problem.formulation.offers("log_evidence"):
        GIBBS(problem.formulation, *problem.data)
        return "of its latent choices"
    GIBBS(problem.posterior, *problem.data)
    return "yes"


VERBS = {
    "adapt": adapted,
    "gibbs": sampled,
    "nuts": worked(lambda problem: problem.draws),
    "variational": worked(lambda problem: inference.variational(problem.posterior, *problem.data, num_steps=1, **QUIET)),
    "to_inference_data": converted,
    "diagnose": diagnosed,
    "calibrate": calibrated,
    "predict": predicted,
    "capture": captured,
}  # fmt: skip


def cells(name: str) -> Iterator[tuple[str, str, bool]]:
    """Verb, what it does for a row or the line in which it refuses, and whether it refused."""
    problem = Problem(ROWS[name])
    for verb, call in VERBS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                yield verb, call(problem), False
        except (NotImplementedError, ValueError) as error:
            yield verb, f"`{type(error).__name__}`: {error}", True


def page() -> str:
    """The whole page."""
    refusals: list[str] = []
    lines = []
    for name in ROWS:
        line = [f"`{name}`"]
        for _, said, refused in cells(name):
            if refused and said not in refusals:
                refusals.append(said)
            line.append(f"[no, {refusals.index(said) + 1}](#refusals)" if refused else said)
        lines.append(f"| {' | '.join(line)} |")
    head = [f"| formulation | {' | '.join(f'`{verb}`' for verb in VERBS)} |", f"| {' | '.join(['---'] * (len(VERBS) + 1))} |"]  # fmt: skip
    numbered = [f"{i}. {said.replace('|', chr(92) + '|')}" for i, said in enumerate(refusals, 1)]
    return "\n".join([PROSE.strip(), "", *head, *lines, "", REFUSALS.strip(), "", *numbered, ""])


PROSE = """
# What serves what

Every formulation of `models` by every verb of `inference`, `results` and `inspection`, each called on a tiny problem with a prior on
every parameter that the data inform. `tests/test_what_serves_what.py` calls every cell and compares; after a change
`python tests/what_serves_what.py` writes the page anew.

`adapt` shows its method, `calibrate` the samplers that can be called (whether they are calibrated is another question), `predict` the averages that there are, and `capture` the layer
of `nn` that is caught as this formulation. `gibbs` is asked for all parameters at once: where it says no, some may still have a
conditional, as the values of linear keys and their precision do. Of a CRF with a likelihood, sentences are its data. Without a posterior `to_inference_data` and `predict` take the
formulation itself.
"""
REFUSALS = """
## Refusals

What the empty cells raise:
"""

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    PAGE.write_text(page())

"""Wind tunnels: which layer computes a posterior in context? Small networks beside exact predictive distributions.

    python -m benchmarks.wind_tunnels [--quick] [--tune] [--table] [--only TASK ...] [--layer NAME ...] [--seeds N ...]

Protocol, written before any figure of a test part was seen (`benchmarks.wind_tunnel_tasks` has the tasks).

**Tasks.** The first three draw what governs a context anew for each.

- ``coin flips``: a chance, uniform; the next flip.
- ``bijection`` (arXiv 2512.22471): of 8 symbols, revealed pair by pair. Keys are drawn with replacement, where the paper reveals each
  once, so that a context asks for recall as well as for elimination.
- ``regression``: two weights of prior variance 1, noise of variance 1; the density of the next answer.
- ``hidden Markov``: three sticky states, four symbols, one model for all contexts; the next symbol.
- ``smoothing``: the same model; each state, given all symbols. For the dependency CRF, which reads whole sentences.

**Networks.** A position sees the observation before it with its input, and its own input: one linear layer, sinusoidal positions,
two pre-norm blocks of width 32 and four heads, one linear layer to logits, or to a mean and a log standard deviation; causal, but for
``smoothing``. Layers: softmax; one Gaussian key a unit; two keys (MGK); linear (normalised); delta and regression memory, both with
gates; and none, the control, whose positions see themselves alone. The dependency CRF has four channels, four sweeps, and distance
groups in the place of positions. Exchangeable tasks (the first three) are learnt without positions, too (arXiv 2507.11768), by all
layers but the control.

**Training.** On log loss, from 64 fresh contexts of 20 observations a step; 3,000 AdamW steps without weight decay, warm-up and
cosine of `train.loop.LoopSettings`, equal for all. Rates by trials of half the length (seed 9), by the log loss on validation
contexts: of `START`, and beyond as long as the best is at an end. 5 seeds of weights and batches; the test contexts are the same for
all, and are scored once, after training.

**Scores**, against the exact distribution and not against outcomes, in bits, by position, over 1,024 test contexts: KL(exact,
network), and the mean absolute error of the predictive entropy; at the trained length, 20, and at positions 21 to 40 of contexts
twice as long. Where observations are exchangeable also `results.martingale_check` after ten of them, in 256 contexts of 16 draws and
8 orders: total variation between a prediction and the average of the next ones (the martingale gap; none of real numbers), z and p
of the check, and the spread of log p over orders.

**Verdicts.** `CLAIMS`: softmax is nearer to the exact distribution than each other layer, by KL at the trained length, with
positions; in ``smoothing`` the CRF is nearer than softmax, and softmax than no attention. Intervals by `benchmarks.verdicts`, over
seeds and over test contexts in 32 blocks; Holm's correction beside. A task has verdicts if the mean KL of softmax is below 0.01 bit
(the anchor; 2512.22471 reaches 1e-3 to 1e-4 with more steps), else it is "undertrained". A row whose validation log loss still fell
by more than a hundredth of itself over the last fifth of the steps has no negative verdict.

What was tried before, by softmax at seed 9 on validation contexts, to choose sizes (trials, not kept): bijections of 16 symbols and
regressions on three features, which stayed above 0.08 bit for 1,500 steps; noise of variance 1/4; rates of 0.003 and 0.01. Two rows
of other layers were timed. One network of flips was scored on test contexts of another seed than today's.

A run is a file of ``results/wind_tunnels`` and is not run again; one that was killed goes on from its checkpoint in
``benchmarks/cache``. ``--quick`` is one seed of 800 steps with positions, at a rate of 0.01 for all, and no trials: so no verdicts.
It has files of its own. It had 300 steps at first, by which no layer had learnt the bijection (flips and a part of bijections were run
so, and their scores seen).
"""

import argparse
import itertools
import json
import math
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal, kl_divergence
from torch.nn import functional as F

from benchmarks.reports import Tables, rows_of, write_tables
from benchmarks.tasks import beyond
from benchmarks.timing import RESULTS, keep, machine
from benchmarks.verdicts import Items, Verdict, gains, holm, still_rose, verdict
from benchmarks.wind_tunnel_tasks import TUNNELS, Contexts
from probtx_pyro import nn, results
from probtx_pyro.data import Vocabulary
from probtx_pyro.train import LoopSettings, Task, train_task

FOLDER, CACHE = RESULTS / "wind_tunnels", Path(__file__).parent / "cache"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "wind_tunnels.png"
LENGTH, STEPS, SEEDS, ANCHOR = 20, 3000, range(5), 0.01
QUICK_STEPS, QUICK_RATE = 800, 1e-2
RATES, START, TUNING_SEED = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1), (1e-3, 3e-3, 1e-2), 9
TESTED, BLOCKS, VALIDATED = 1024, 32, 256
VALIDATION_SEED, TEST_SEED = 10**9 + 1, 10**9 + 2  # beyond those of batches


# -- networks --------------------------------------------------------------------------------------------------------------


class NoAttention(torch.nn.Module):
    """Attention that says nothing: positions see themselves alone."""

    def __init__(self, *shape: Any, **options: Any):
        super().__init__()

    def forward(self, query: Tensor, *others: Tensor, **options: Any) -> tuple[Tensor, None]:
        """Return zeros."""
        return torch.zeros_like(query), None


def _blocks(attention: Callable[..., torch.nn.Module], **options: Any) -> Callable[["Settings"], list[torch.nn.Module]]:
    return lambda of: [nn.TransformerBlock(of.width, of.heads, attention, **options) for _ in range(of.layers)]


LAYERS: dict[str, Callable[["Settings"], list[torch.nn.Module]]] = {
    "softmax": _blocks(nn.SoftmaxAttention),
    "Gaussian": _blocks(nn.GaussianMixtureAttention, linked=False),
    "two keys": _blocks(nn.GaussianKeysAttention),
    "linear": _blocks(nn.LinearKeysAttention, num_components=1),
    "delta": _blocks(nn.RegressionMemoryAttention, update="delta", gates=True),
    "regression memory": _blocks(nn.RegressionMemoryAttention, gates=True),
    "no attention": _blocks(NoAttention),
    "dependency CRF": lambda of: [nn.DependencyCRFEncoder(of.width, of.heads, distances=(2, 3, 4))],
}


@dataclass(frozen=True, kw_only=True)
class Settings(LoopSettings):
    """Settings of a run: task, layer, whether the network is told positions, heads and blocks."""

    tunnel: str
    layer: str = "softmax"
    positions: bool = True
    heads: int = 4
    layers: int = 2
    length: int = LENGTH
    num_steps: int = STEPS
    batch: int = 64
    width: int = 32
    weight_decay: float = 0.0
    validate_every: int = STEPS // 10

    RULES = {**LoopSettings.RULES, "tunnel": TUNNELS, "layer": LAYERS}

    @property
    def name(self) -> str:
        """The run's but for its seed."""
        words = [self.tunnel, self.layer, *([] if self.positions else ["without positions"]), f"{self.num_steps} steps"]
        return "-".join(words).replace(" ", "-")


class Network(torch.nn.Module):
    """Predicts every observation of contexts from those before it."""

    def __init__(self, settings: Settings):
        super().__init__()
        tunnel, width = TUNNELS[settings.tunnel], settings.width
        features = tokens_of(tunnel.draw(torch.Generator(), 1, 1), settings.tunnel).shape[-1]
        self.embed, self.read = torch.nn.Linear(features, width), torch.nn.Linear(width, tunnel.outcomes or 2)
        self.blocks, self.norm = torch.nn.ModuleList(LAYERS[settings.layer](settings)), torch.nn.LayerNorm(width)
        self.tunnel, self.positions = settings.tunnel, settings.positions

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (context, position, outcome), or means and log standard deviations (context, position, 2)."""
        x = self.embed(tokens)
        if self.positions:
            x = x + sinusoids(*x.shape[1:])
        for block in self.blocks:
            x = block(x, is_causal=True) if TUNNELS[self.tunnel].causal else block(x)
        return self.read(self.norm(x))

    def predict(self, given: Contexts) -> Distribution:
        """Return the distribution of every observation, batch (context, position)."""
        found = self(tokens_of(given, self.tunnel)).double()
        if TUNNELS[self.tunnel].outcomes:
            return Categorical(logits=found)
        return Normal(found[..., 0], found[..., 1].exp())


def sinusoids(length: int, width: int) -> Tensor:
    """Positions (length, width) of Vaswani et al. 2017."""
    angles = torch.arange(length).unsqueeze(-1) * 10_000 ** -(torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], -1)


def tokens_of(given: Contexts, tunnel: str) -> Tensor:
    """Return what positions see, (context, position, feature): the observation before with its input and a 1, and the own input.

    At the first position all of the former is 0. Where all inputs are seen at once, the own input and nothing else.
    """
    kind, (observed, inputs) = TUNNELS[tunnel], given
    if not kind.causal:
        return inputs
    seen = F.one_hot(observed, kind.outcomes).float() if kind.outcomes else observed.unsqueeze(-1)
    pairs = torch.cat([seen, inputs, torch.ones_like(seen[..., :1])], -1)
    return torch.cat([F.pad(pairs[:, :-1], (0, 0, 1, 0)), inputs], -1)


# -- training --------------------------------------------------------------------------------------------------------------


def task_of(settings: Settings) -> Task:
    """Return what the training loop of the library needs."""
    tunnel = TUNNELS[settings.tunnel]
    validation = tunnel.draw(torch.Generator().manual_seed(VALIDATION_SEED), VALIDATED, settings.length)

    def batch(step: int) -> tuple[tuple[Tensor, ...], int]:
        return tuple(
            tunnel.draw(settings.draw(step), settings.batch, settings.length)
        ), settings.batch * settings.length

    def loss(model: Any, observed: Tensor, inputs: Tensor) -> Tensor:
        return -_bare(model).predict(Contexts(observed, inputs)).log_prob(observed).sum()

    @torch.no_grad()
    def evaluate(model: Any, part: str, fabric: object) -> dict[str, float]:
        exact, found = tunnel.exact(validation), _bare(model).predict(validation)
        return {"bits": float((exact.entropy() + kl_divergence(exact, found)).mean()) / math.log(2)}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = Network(settings)
    return Task(
        label=settings.name, settings=settings, model=model, texts=[settings.tunnel], words=settings.length,
        vocabulary=Vocabulary("word", tuple(map(str, range(tunnel.outcomes)))), batch=batch, loss=loss, evaluate=evaluate, metric="bits",
    )  # fmt: skip


def _bare(model: Any) -> Network:
    """The network without Fabric's wrapper; on one device, in full precision, it has nothing to add."""
    return getattr(model, "module", model)


def result(settings: Settings, path: Path, trial: bool = False, **how: Any) -> dict[str, Any]:
    """What the file of a run says, which is made if it is not there: trained on from its checkpoint, and, but for a trial, scored."""
    wanted = json.loads(json.dumps(asdict(settings)))
    if path.exists():
        found = json.loads(path.read_text())
        changed = [name for name, value in wanted.items() if found["settings"].get(name) != value]
        if changed:
            raise ValueError(f"{path} was run with another {', '.join(changed)}; remove it to run again")
        return found
    out = CACHE / f"wind-tunnels-{path.stem}"
    resume = (out / "checkpoint.pt").exists()
    done = train_task(task_of(settings), out, resume=resume, progress=False, **how)
    kept = ("settings", "parameters", "steps", "validation", "seconds")
    found = {name: done.results[name] for name in kept} | {"on": machine()}
    if not trial:
        found |= scores_of(done.model.eval())
    keep(path, found)
    shutil.rmtree(out)
    return found


def trial(settings: Settings) -> float:
    """Validation bits of a run of half the length, at the rate of the settings."""
    steps = settings.num_steps // 2
    short = replace(settings, seed=TUNING_SEED, num_steps=steps, validate_every=steps)
    found = result(short, FOLDER / "tuning" / f"{short.name}-rate-{short.lr:g}.json", trial=True)
    return float(found["validation"][-1][1])


def best_rate(settings: Settings) -> float:
    """The rate with the fewest bits on validation; the trials go on beyond it where it is at an end."""
    scores = {rate: -trial(replace(settings, lr=rate)) for rate in START}
    while (beside := beyond(scores, RATES)) is not None:
        scores[beside] = -trial(replace(settings, lr=beside))
    return max(scores, key=scores.__getitem__)


# -- scores ----------------------------------------------------------------------------------------------------------------


def distances(exact: Distribution, found: Distribution) -> tuple[Tensor, Tensor]:
    """KL(exact, found) and the absolute error of the entropy, in bits, each (context, position)."""
    return kl_divergence(exact, found) / math.log(2), (found.entropy() - exact.entropy()).abs() / math.log(2)


@torch.no_grad()
def scores_of(model: Network) -> dict[str, Any]:
    """What the file of a run says of its network: by position, by blocks of contexts, and of exchangeable observations."""
    tunnel, found = TUNNELS[model.tunnel], dict[str, Any]()
    for name, length in (("trained", LENGTH), ("twice", 2 * LENGTH)):
        given = tunnel.draw(torch.Generator().manual_seed(TEST_SEED), TESTED, length)
        kl, entropy = distances(tunnel.exact(given), model.predict(given))
        found[name] = {"kl": rounded(kl.mean(0)), "entropy": rounded(entropy.mean(0))}
        if name == "trained":
            found["blocks"] = rounded(kl.view(BLOCKS, -1).mean(-1))
    if tunnel.exchangeable:
        found["exchangeable"] = exchangeable_scores(lambda given: model.predict(given), model.tunnel)
    return found


def exchangeable_scores(predict: Callable[[Contexts], Distribution], tunnel: str, contexts: int = 256) -> dict[str, float | None]:  # fmt: skip
    """Martingale gap, z and p of the check, and the spread over orders in bits, of predictions of all positions."""
    known = LENGTH // 2
    observed, inputs = TUNNELS[tunnel].draw(torch.Generator().manual_seed(TEST_SEED), contexts, known + 2)

    def next_of(before: Tensor, *given: Tensor) -> Distribution:
        seen, asked = given if given else (inputs[:1, : before.shape[1]].expand(len(before), -1, -1), None)
        asked = seen.new_zeros(len(before), seen.shape[-1]) if asked is None else asked
        # what stands at the position that is asked for is not seen
        filled = Contexts(F.pad(before, (0, 1)), torch.cat([seen, asked.unsqueeze(1)], 1))
        return at_last(predict(filled))

    given = inputs if inputs.shape[-1] else None
    check = results.martingale_check(next_of, observed[:, :known], inputs=given, seed=0, num_draws=16, num_orders=8)
    z = max(check.z_scores.values(), key=abs)
    distance = None if check.distances is None else float(check.distances.mean())
    spread = check.order_spread
    assert spread is not None
    return {"distance": distance, "z": float(z), "p": check.p_value, "spread": float(spread.mean()) / math.log(2)}


def at_last(of: Distribution) -> Distribution:
    """Distribution at the last position."""
    if isinstance(of, Categorical):
        return Categorical(logits=of.logits[:, -1])
    return Normal(of.mean[:, -1], of.stddev[:, -1])


def rounded(x: Tensor) -> list[float]:
    """Numbers of five digits."""
    return [float(f"{value:.5g}") for value in x.tolist()]


# -- rows ------------------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row of the tables: a task, a layer, and whether the network is told positions."""

    tunnel: str
    layer: str
    positions: bool = True

    @property
    def label(self) -> str:
        """Name of the row."""
        return self.layer if self.positions or self.layer == "dependency CRF" else f"{self.layer}, without positions"


ATTENTIONS = [name for name in LAYERS if name != "dependency CRF"]
ROWS = [
    *(Row(tunnel, layer) for tunnel in TUNNELS if tunnel != "smoothing" for layer in ATTENTIONS),
    *(Row(tunnel, layer, False) for tunnel, of in TUNNELS.items() if of.exchangeable for layer in ATTENTIONS[:-1]),
    Row("smoothing", "dependency CRF", False), Row("smoothing", "softmax"), Row("smoothing", "no attention"),
]  # fmt: skip
SMOOTHING = ROWS[-3:]
CLAIMS = [
    *((Row(tunnel, "softmax"), Row(tunnel, layer)) for tunnel in TUNNELS if tunnel != "smoothing" for layer in ATTENTIONS[1:]),
    *itertools.pairwise(SMOOTHING),
]  # fmt: skip


def settings_of(row: Row, quick: bool, seed: int = 0) -> Settings:
    """Settings of a row, but for the rate, which trials choose, unless it is quick."""
    steps = {"num_steps": QUICK_STEPS, "validate_every": QUICK_STEPS // 10, "lr": QUICK_RATE} if quick else {}
    return Settings(tunnel=row.tunnel, layer=row.layer, positions=row.positions, seed=seed, **steps)  # type: ignore[arg-type]


def file_of(settings: Settings) -> Path:
    return FOLDER / f"{settings.name}-seed-{settings.seed}.json"


def runs_of(row: Row, quick: bool = False) -> dict[int, dict[str, Any]]:
    """The runs of a row that are there, by seed."""
    files = {seed: file_of(settings_of(row, quick, seed)) for seed in SEEDS}
    return {seed: json.loads(path.read_text()) for seed, path in files.items() if path.exists()}


# -- tables ----------------------------------------------------------------------------------------------------------------


def bits(values: Sequence[float]) -> str:
    """Mean and standard deviation, as in ``3.2e-03 ± 1.1e-03``."""
    sd = f" ± {statistics.stdev(values):.1e}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2e}{sd}"


def within(run: dict[str, Any], score: str) -> float:
    """A score at the trained length."""
    return statistics.fmean(run["trained"][score])


def outside(run: dict[str, Any], score: str) -> float:
    """A score at the positions beyond the trained length, in contexts twice as long."""
    return statistics.fmean(run["twice"][score][LENGTH:])


def score_table(score: str, quick: bool) -> list[str]:
    """A score of every row that has runs."""
    body = []
    for row in ROWS:
        runs = runs_of(row, quick).values()
        if runs:
            body.append([row.tunnel, row.label, *(bits([at(run, score) for run in runs]) for at in (within, outside)), f"{len(runs)}"])  # fmt: skip
    return rows_of(["task", "layer", f"positions 1 to {LENGTH}", f"{LENGTH + 1} to {2 * LENGTH}", "seeds"], *(body or [["none has been run yet", "", "", "", ""]]))  # fmt: skip


def exchangeable_table(quick: bool) -> list[str]:
    """The martingale check of every row of an exchangeable task."""
    body = []
    for row in ROWS:
        own = [run["exchangeable"] for run in runs_of(row, quick).values() if "exchangeable" in run]
        if own:
            gap = "" if own[0]["distance"] is None else bits([x["distance"] for x in own])
            z = ", ".join(f"{x['z']:+.1f}" for x in own)
            body.append([row.tunnel, row.label, gap, z, f"{sum(x['p'] < 0.01 for x in own)} of {len(own)}", bits([x["spread"] for x in own])])  # fmt: skip
    head = ["task", "layer", "martingale gap", "largest z, each seed", "p < .01", "spread over orders, bits"]
    return rows_of(head, *(body or [["none has been run yet", *[""] * 5]]))


def trials_of(row: Row) -> dict[float, float]:
    """Validation bits of the trials of a row that are there, by rate."""
    short = replace(settings_of(row, False), num_steps=STEPS // 2)
    files = {rate: FOLDER / "tuning" / f"{short.name}-rate-{rate:g}.json" for rate in RATES}
    return {rate: json.loads(path.read_text())["validation"][-1][1] for rate, path in files.items() if path.exists()}


def runs_table() -> list[str]:
    """Trials, rate, parameters, and by how much the validation score still fell."""
    body = []
    for row in ROWS:
        runs = list(runs_of(row).values())
        if runs:
            tried = ", ".join(f"{rate:g}: {x:.4f}" for rate, x in trials_of(row).items())
            chosen, fell = f"{runs[0]['settings']['lr']:g}", f"{still_rose(runs, lower=True)[0]:.2%}"
            body.append([row.tunnel, row.label, tried, chosen, f"{runs[0]['parameters']:,}", fell])
    head = ["task", "layer", "validation bits by rate, trials", "rate", "parameters", "fall over the last fifth"]
    return rows_of(head, *(body or [["none has been run yet", *[""] * 5]]))


def anchored(tunnel: str) -> bool:
    """Whether softmax comes near enough for verdicts on a task."""
    runs = runs_of(Row(tunnel, "softmax")).values()
    return bool(runs) and statistics.fmean(within(run, "kl") for run in runs) < ANCHOR


def verdict_on(first: dict[int, dict[str, Any]], second: dict[int, dict[str, Any]]) -> Verdict:
    """The verdict on whether the runs of one row, by seed, are nearer than those of another."""
    kl = [{seed: within(run, "kl") for seed, run in runs.items()} for runs in (first, second)]
    items = [
        {seed: Items("mean", np.array([[x, 1.0] for x in run["blocks"]])) for seed, run in runs.items()}
        for runs in (first, second)
    ]
    rose = [still_rose(list(runs.values()), lower=True)[1] for runs in (first, second)]
    return verdict(gains(kl[0], kl[1], items, lower=True), rose)


def verdicts_table() -> list[str]:
    """Each claim, with its interval and Holm's correction over the page."""
    runs = {row: runs_of(row) for claim in CLAIMS for row in claim}
    several = [claim for claim in CLAIMS if all(len(runs[row]) > 1 for row in claim)]  # one seed has no interval
    found = [(claim, verdict_on(*(runs[row] for row in claim))) for claim in several]
    body = []
    for ((first, second), x), p in zip(found, holm([x.p for _, x in found]), strict=True):
        word = f"{x.word}: {x.more}" if x.more else x.word
        interval = f"{x.mean:+.2e} ({x.low:+.2e} to {x.high:+.2e})"
        claim = f"{first.label} is nearer than {second.label}"
        body.append([first.tunnel, claim, interval, word if anchored(first.tunnel) else "undertrained", f"{p:.2g}"])
    head = ["task", "claim", "bits nearer, 95 % interval", "verdict", "Holm's p"]
    return rows_of(head, *(body or [["none has two seeds yet", *[""] * 4]]))


def report_tables() -> Tables:
    """Tables of ``docs/reports/wind_tunnels.md``."""
    return {
        "distance": score_table("kl", False), "entropy": score_table("entropy", False), "exchangeable": exchangeable_table(False),
        "verdicts": verdicts_table(), "runs": runs_table(), "quick": score_table("kl", True), "quick exchangeable": exchangeable_table(True),
    }  # fmt: skip


def draw_figure(quick: bool, file: Path = FIGURE) -> None:
    """Draw bits from the exact distribution by position, one panel a task, mean of the seeds, their range as a band."""
    from matplotlib import pyplot

    from probtx_pyro.plots import unit_color

    tunnels = [name for name in TUNNELS if name != "smoothing"]
    marks = dict(zip(ATTENTIONS, "osD^vPX", strict=True))
    figure, panels = pyplot.subplots(2, 2, figsize=(12, 9), sharex=True, layout="constrained")
    for ax, tunnel in zip(panels.flat, tunnels, strict=True):
        for number, layer in enumerate(ATTENTIONS):
            runs = runs_of(Row(tunnel, layer), quick).values()
            if runs:
                each = np.array([run["twice"]["kl"] for run in runs])
                place, look = (
                    np.arange(1, each.shape[1] + 1),
                    {"color": unit_color(7 if layer == "no attention" else number)},
                )
                ax.plot(place, each.mean(0), marker=marks[layer], markevery=3, markersize=6, linewidth=2, label=layer, **look)  # fmt: skip
                ax.fill_between(place, each.min(0), each.max(0), alpha=0.15, linewidth=0, **look)
        ax.axvline(LENGTH + 0.5, color="black", linewidth=1, linestyle=":")
        ax.set_yscale("log")
        ax.set_title(tunnel, fontsize=15)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=13)
    for ax in panels[1]:
        ax.set_xlabel("position in the context", fontsize=14)
    for ax in panels[:, 0]:
        ax.set_ylabel("KL from the exact distribution, bits", fontsize=14)
    handles = {label: line for ax in panels.flat for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=13, frameon=False)
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TUNNELS, default=list(TUNNELS), metavar="TASK")
    parser.add_argument("--layer", nargs="+", choices=LAYERS, default=list(LAYERS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, help="all five, or, quickly, the first")
    parser.add_argument("--quick", action="store_true", help="one seed of few steps at a fixed rate")
    parser.add_argument("--tune", action="store_true", help="only the trials that choose the rates")
    parser.add_argument("--table", action="store_true", help="only tables and picture, of what is there")
    options = parser.parse_args(arguments)
    torch.set_flush_denormal(True)
    rows = [row for row in ROWS if row.tunnel in options.only and row.layer in options.layer]
    rows = [row for row in rows if row.positions or row.tunnel == "smoothing" or not options.quick]
    for seed in [] if options.table else (options.seeds or ([0] if options.quick else SEEDS)):
        for row in rows:
            settings = settings_of(row, options.quick, seed)
            if not options.quick:
                settings = replace(settings, lr=best_rate(settings))
            if options.tune:
                print(f"{row.tunnel}, {row.label}: rate {settings.lr:g}", flush=True)
                continue
            found = result(settings, file_of(settings))
            print(f"{row.tunnel}, {row.label}, seed {seed}: {within(found, 'kl'):.2e} bits, {found['seconds']:.0f} s", flush=True)  # fmt: skip
        if options.tune:
            return
    tables = report_tables()
    for lines in (tables["quick"], tables["quick exchangeable"]) if options.quick else tables.values():
        print("\n".join(lines), end="\n\n")
    write_tables("wind_tunnels.md", tables)
    if any(FOLDER.glob("*.json")):
        draw_figure(quick=not all(runs_of(row) for row in ROWS if row.positions and row.tunnel != "smoothing"))


if __name__ == "__main__":
    main()

"""Seven edits from the dependency CRF to a transformer, and an eighth: what each is worth on masked words, in both orders.

    python -m benchmarks.staircase [--quick] [--tune] [--table] [--part "masked words" longer ends cogs] [--rung NAME ...] [--seeds N ...]

Protocol, written before any run but those of the last paragraph (`benchmarks.staircase_encoder` has the encoder, whose ends are the
library's to rounding).

**Rungs.** The seven edits are those of the protocol: (1) a word may be its own head, (2) no message from the dependents, (3) values
untied from keys, (4) a residual in the place of unary re-injection, (5) layer norm, (6) feed-forward in the place of global nodes,
(7) unshared layers. They do not reach the transformer. What else differs goes

- with (4): dropout falls on the message, no longer on the new state, which a residual hands on;
- with (5): the norm takes the place of the softmax over labels. Marginals sum to one, normed channels have size one each; so the scale of
  scores, ``1 / λ_H = 64``, becomes ``1 / sqrt(columns)``, and factors and embedding start as those of a transformer do;
- with (6): global nodes, which the published CRF of this task does not have: 64 in each of 4 channels, as many as the feed-forward has
  hidden units. That adding them is no edit of the seven, it is a rung before the first;
- with (7): two layers in the place of three sweeps, the depths of the published ends;
- with (8), *plain heads*: one pair of projections a channel, 16 columns wide, with biases, and a bias of the logits for each offset, in
  the place of factors of rank 8 for each offset. It is an edit of its own because it is as large as the others and follows from none.

The transformer with learned positions, 69.9 in `benchmarks.tasks`, lies beyond: its positions are one more edit. The end of the staircase is
the one with relative positions, which stand where the distance groups of the CRF do.

"Added": the CRF with the first k edits. "Taken": the transformer without the first k. Both orders go from (1) to (8), so that each edit
is measured once on the side of the CRF and once on that of the transformer.

**Masked words**: data, batches, dropout and schedule of "masked sentences" in `benchmarks.tasks`; 3,000 steps, 5 seeds, test perplexity of
hidden words. A rate for each rung by trials of half the length (seed 9, dev), of `START`, and beyond as long as the best is at an end.

**Longer**, added when four of the five seeds had been seen, in which every rung still fell by 3 to 10 % over the last fifth, and the transformer
that hears its dependents (edits 3 to 8) was ahead of both ends: the transformer and the rungs without edits 1, 1 to 2, and 1 to 3, with 12,000 steps, 5 seeds,
rates by trials of half the length as above. Verdicts: each of the three edits lowers perplexity, and the rung without 1 to 2 is ahead of the transformer.

**Ends**: 12,000 steps at the published rates (0.01 for the CRF without nodes, 0.005 for the relative transformer), three seeds, on the text
of those runs, whose training part repeats sentences of the test part. They must be within two standard errors of the difference of the
published means, 84.5 and 68.9. If not, the staircase stands on other ground than those figures, and the report says so.

**COGS**: both ends, and the rungs on both sides of the two largest steps of perplexity, over both orders, once all rungs have been run.
Settings of `benchmarks.tasks` (6,000 steps, offsets to 9, rank 16, two sweeps), 5 seeds, rates by trials of half the length.

**Objectives.** `Edits.objective` says what is still climbed. At the trained weights, on 100 sentences of dev with words hidden: the angle
between each layer's update and the gradient of the ELBO of the CRF that has the layer's queries and keys, in the Fisher metric (0 in mean field,
below 90 degrees as long as a short step raises the ELBO), and how often the whole update raises it. Behind a layer norm there are no
marginals and no ELBO: its output stands in their place, without an entropy.

**Verdicts**: each edit lowers perplexity, in either order; nodes do; on COGS the CRF is ahead of the transformer, and each of the
two edits helps. Intervals over seeds and test items by `benchmarks.verdicts`, Holm's correction beside. A row that still fell by more than a
hundredth over the last fifth of its steps has no negative verdict.

``--quick`` is one seed of 100 steps of 16 sentences at a rate of 0.01, no trials, perplexity of 300 sentences of dev: no verdicts. A run is a file of
``results/seven_edits`` and is not run again; one that was killed goes on from its checkpoint in ``benchmarks/cache``.

What was seen before the quick runs: figures of `benchmarks.tasks`, milliseconds of a step of every rung, untrained, and one run of the CRF
of 100 steps of 64 sentences (dev perplexity 399), the quick setting at first, which was too slow.
"""

import argparse
import copy
import itertools
import json
import math
import statistics
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks import tasks
from benchmarks.reports import Tables, rows_of, write_tables
from benchmarks.staircase_encoder import Edits, StaircaseEncoder, climb
from benchmarks.task_runs import hidden_words, masked_text, questions, with_items
from benchmarks.timing import RESULTS
from benchmarks.verdicts import Items, Verdict, gains, holm, still_rose, verdict
from probtx_pyro import train
from probtx_pyro.data import Text
from probtx_pyro.nn import ENCODERS, Encoder

FOLDER = RESULTS / "seven_edits"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "seven_edits.png"
RATES, START = tasks.RATES, (5e-3, 1e-2, 2e-2)
NODES, SENTENCES, QUICK_DEV = 64, 100, 300
LABELS = {
    "own_head": "a word may be its own head",
    "heads_only": "no message from dependents",
    "untied_values": "values untied from keys",
    "residual": "residual for unary re-injection",
    "layer_norm": "layer norm",
    "feed_forward": "feed-forward for global nodes",
    "unshared": "unshared layers",
    "plain_heads": "plain heads",
}
EDITS = Edits._fields


class Rung(NamedTuple):
    """A rung: its name, the edits that are on, and whether it has global nodes where it has no feed-forward."""

    name: str
    edits: tuple[str, ...] = ()
    nodes: bool = True


BARE, CRF, TRANSFORMER = Rung("crf without nodes", nodes=False), Rung("crf"), Rung("transformer", EDITS)
ADDED = [CRF, *(Rung(f"with 1 to {k}", EDITS[:k]) for k in range(1, len(EDITS))), TRANSFORMER]
TAKEN = [TRANSFORMER, *(Rung(f"without 1 to {k}", EDITS[k:]) for k in range(1, len(EDITS))), CRF]
RUNGS = list(dict.fromkeys([BARE, *ADDED, *TAKEN]))


class Step(NamedTuple):
    """A step of a staircase: the edit, the order, and the rungs with and without the edit."""

    label: str
    order: str
    edited: Rung
    before: Rung


STEPS = [
    Step("global nodes", "added", CRF, BARE),
    *(Step(f"({k}) {LABELS[name]}", "added", ADDED[k], ADDED[k - 1]) for k, name in enumerate(EDITS, 1)),
    *(Step(f"({k}) {LABELS[name]}", "taken", TAKEN[k - 1], TAKEN[k]) for k, name in enumerate(EDITS, 1)),
]


# -- runs ------------------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A part of the protocol.

    task, run: of `benchmarks.tasks`, and what trains and scores, if not the task's own.
    steps, seeds: of a run, and how many.
    options: of the encoder.
    norm_start: standard deviation of the embedding of an encoder with norms, as the task's transformer has it.
    rates: by rung, where no trials choose them.
    changes: of the task's settings.
    """

    task: str
    run: Callable[..., dict[str, Any]] | None
    steps: int
    seeds: int
    options: dict[str, int]
    norm_start: float
    rates: dict[Rung, float] = {}
    changes: dict[str, int] = {}


@torch.no_grad()
def climbs(done: Any, text: str) -> dict[str, list[float]]:
    """Mean angle, and how often the objective rose, by layer, over sentences of two words and more: one word has no arc."""
    model = copy.deepcopy(done.model).double().eval()
    rows = ((words, where) for words, where in questions(done, text) if words.shape[1] > 1)
    found = [
        climb(model.encoder, model.embedded(words.masked_fill(where, model.mask)))
        for words, where in itertools.islice(rows, SENTENCES)
    ]
    angle, rose = (torch.cat(each).double().mean(0).tolist() for each in ([x.angle for x in found], [x.rose > 0 for x in found]))  # fmt: skip
    return {"angle": [round(x, 4) for x in angle], "rose": [round(x, 4) for x in rose]}


def masked(settings: train.MaskedSettings, tuning: bool, *, repeats: bool = False, quick: bool = False, **where: Any) -> dict[str, Any]:  # fmt: skip
    """Train a masked language model of EWT, score it, and look at how its updates climb; a trial does the first alone."""
    training, validation, test = masked_text(repeats)
    if quick:
        validation = "\n".join(validation.split("\n")[:QUICK_DEV])
    tested = not (tuning or quick)
    done = train.train_masked_language_model(settings, Text(training, validation, test if tested else ""), **where)
    found = done.results if tuning else {**done.results, "climb": climbs(done, validation)}
    if not tested:
        return found
    return with_items(found, hidden_words(done, test), found["metrics"]["test"]["perplexity"], within=1e-4)


SENTENCE = {"max_offset": 4, "rank": 8, "num_sweeps": 3, "num_layers": 2}
MAIN, LONGER, ENDS, COGS, QUICK = "masked words", "longer", "ends", "cogs", "quick"
PARTS = {
    MAIN: Part("masked sentences", masked, 3000, 5, SENTENCE, 0.125),
    LONGER: Part("masked sentences", masked, 12000, 5, SENTENCE, 0.125),
    ENDS: Part("masked sentences", partial(masked, repeats=True), 12000, 3, SENTENCE, 0.125, {BARE: 1e-2, TRANSFORMER: 5e-3}),
    COGS: Part("cogs", None, 6000, 5, {**SENTENCE, "max_offset": 9, "rank": 16, "num_sweeps": 2}, 0.02),
    QUICK: Part("masked sentences", partial(masked, quick=True), 100, 1, SENTENCE, 0.125, dict.fromkeys(RUNGS, 1e-2), {"batch": 16, "validate_every": 100}),
}  # fmt: skip
LATE = TAKEN[:4]  # the rungs that run longer
PUBLISHED = {BARE: "crf", TRANSFORMER: "relative"}  # what `benchmarks.tasks` calls the ends


def build(width: int, *, context: int, dropout: float, root: bool, **options: Any) -> nn.Module:
    """Build the encoder as `nn.ENCODERS` wants it."""
    if root:
        raise ValueError("no rung has a root; give the summary mean")
    return StaircaseEncoder(width, dropout=dropout, **options)


def settings_of(part: str, rung: Rung, seed: int, rate: float, steps: int | None = None) -> Any:
    """Settings of a run."""
    of, task = PARTS[part], tasks.TASKS[PARTS[part].task]
    start = of.norm_start if "layer_norm" in rung.edits else 0.3
    name = f"staircase, start {start}"
    ENCODERS[name] = Encoder(build, lambda encoder: 4 * tasks.SHARED["width"], start)
    steps = steps or of.steps
    options = {"edits": rung.edits, "nodes": NODES * rung.nodes, **of.options}
    how = {**tasks.SHARED, **task.settings, "num_steps": steps, "validate_every": max(1, steps // 10), **of.changes}
    return task.kind(**how, encoder=name, options=options, lr=rate, seed=seed)


def file_of(part: str, rung: Rung, end: str, steps: int, folder: str = ".") -> Path:
    return FOLDER / folder / f"{part} {rung.name} {steps} steps {end}.json".replace(" ", "-")


def trial(part: str, rung: Rung, rate: float, steps: int) -> float:
    """The figure on dev of a trial; larger is better."""
    path, settings = (
        file_of(part, rung, f"rate {rate:g}", steps, "tuning"),
        settings_of(part, rung, tasks.TUNING_SEED, rate, steps),
    )
    there = path.exists()
    score = tasks.dev_score(tasks.read_or_run(path, PARTS[part].task, settings, True, PARTS[part].run))
    if not there:
        print(f"{part}, {rung.name}, {steps} steps, rate {rate:g}: {score:.4f}", flush=True)
    return score


def best_rate(part: str, rung: Rung) -> float:
    """The rate of a rung: the one that is set, or the best of its trials, which are made if they are not there."""
    of = PARTS[part]
    if rung in of.rates:
        return of.rates[rung]
    return tasks.best_of_rounds(RATES, (of.steps // 2,), partial(trial, part, rung), START)


def run(part: str, rung: Rung, seed: int) -> dict[str, Any]:
    """What the file of a run says, which is made if it is not there."""
    of = PARTS[part]
    settings = settings_of(part, rung, seed, best_rate(part, rung))
    return tasks.read_or_run(file_of(part, rung, f"seed {seed}", of.steps), of.task, settings, False, of.run)


def runs_of(part: str, rung: Rung) -> dict[int, dict[str, Any]]:
    """The runs of a rung that are there, by seed."""
    of = PARTS[part]
    files = {seed: file_of(part, rung, f"seed {seed}", of.steps) for seed in range(of.seeds)}
    return {seed: json.loads(path.read_text()) for seed, path in files.items() if path.exists()}


def figure(part: str, found: dict[str, Any]) -> float:
    """Perplexity, of test, or of dev where that is all; of COGS the per cent of forms that are right."""
    if part == COGS:
        return 100 * float(found["forms"]["gen"]["exact_match"])
    return float(found["perplexity"] if part == QUICK else found["metrics"]["test"]["perplexity"])


def figures(part: str, rung: Rung) -> dict[int, float]:
    return {seed: figure(part, found) for seed, found in runs_of(part, rung).items()}


def rungs_of(part: str) -> list[Rung]:
    """The rungs of a part, as far as they are known: those of COGS hang on all the others."""
    return {MAIN: RUNGS, QUICK: RUNGS, LONGER: LATE, ENDS: list(PUBLISHED), COGS: list(dict.fromkeys([BARE, TRANSFORMER, *(rung for x in largest() for rung in (x.edited, x.before))]))}[part]  # fmt: skip


def largest(number: int = 2) -> list[Step]:
    """The edits that change perplexity most, either way; none before every rung has all its runs."""
    means = {rung: list(figures(MAIN, rung).values()) for rung in RUNGS}
    if any(len(values) < PARTS[MAIN].seeds for values in means.values()):
        return []
    change = {x: abs(statistics.fmean(means[x.edited]) - statistics.fmean(means[x.before])) for x in STEPS[1:]}
    return sorted(change, key=change.__getitem__, reverse=True)[:number]


# -- tables ----------------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation; nothing of nothing."""
    sd = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{sd}" if values else ""


def change(part: str, after: Rung, before: Rung) -> str:
    """By how much perplexity changes, paired by seed."""
    own, other = figures(part, after), figures(part, before)
    return f"{statistics.fmean(own[seed] - other[seed] for seed in own.keys() & other.keys()):+.1f}" if own.keys() & other.keys() else ""  # fmt: skip


def steps_table(part: str) -> list[str]:
    """Both staircases, one edit a row."""

    def cell(rung: Rung) -> str:
        return spread(list(figures(part, rung).values())) or "not run yet"

    nodes = ["global nodes", cell(CRF), change(part, CRF, BARE), "", ""]
    rows = [["the published CRF, without global nodes", cell(BARE), "", "", ""], nodes, ["the end it starts from", cell(CRF), "", cell(TRANSFORMER), ""]]  # fmt: skip
    for k, name in enumerate(EDITS, 1):
        both = [x for rungs in (ADDED, TAKEN) for x in (cell(rungs[k]), change(part, rungs[k], rungs[k - 1]))]
        rows.append([f"({k}) {LABELS[name]}", *both])
    return rows_of(["edit", "added to the CRF", "change", "taken from the transformer", "change"], *rows)


def verdict_on(part: str, first: Rung, second: Rung) -> Verdict:
    """The verdict on whether one rung is better than another."""
    runs = [runs_of(part, rung) for rung in (first, second)]
    values = [{seed: figure(part, found) for seed, found in own.items()} for own in runs]
    items = [{seed: Items.unpacked(found["items"]) for seed, found in own.items()} for own in runs]
    lower = part != COGS
    rose = [bool(own) and still_rose(list(own.values()), lower)[1] for own in runs]
    return verdict(gains(values[0], values[1], items, lower), rose)


def claims_table() -> list[str]:
    """Each claim, with its interval and Holm's correction over the page."""
    claims = [(MAIN, f"{x.label}, {x.order}: lower perplexity", x.edited, x.before) for x in STEPS]
    claims += [
        (LONGER, f"{x.label}, {x.order}: lower perplexity", x.edited, x.before)
        for x in STEPS
        if {x.edited, x.before} <= set(LATE)
    ]
    claims += [(LONGER, f"{LATE[2].name}: lower perplexity than the transformer", LATE[2], TRANSFORMER)]
    claims += [(COGS, "the CRF is ahead of the transformer", BARE, TRANSFORMER)]
    claims += [(COGS, f"{x.label}, {x.order}: more forms right", x.edited, x.before) for x in largest()]
    found = [(part, claim, verdict_on(part, *rungs)) for part, claim, *rungs in claims]
    body = []
    for (part, claim, x), p in zip(found, holm([x.p for *_, x in found]), strict=True):
        interval = f"{x.mean:+.1f} ({x.low:+.1f} to {x.high:+.1f})" if not math.isnan(x.low) else ""
        body.append([part, claim, interval, f"{x.word}: {x.more}" if x.more else x.word, "" if math.isnan(p) else f"{p:.2g}"])  # fmt: skip
    return rows_of(["task", "claim", "better by, 95 % interval", "verdict", "Holm's p"], *body)


def objective_table(part: str) -> list[str]:
    """What each rung climbs, and how its updates stand to the gradient of the ELBO."""
    body = []
    for rung in RUNGS:
        seen = [found["climb"] for found in runs_of(part, rung).values()]
        angle = spread([statistics.fmean(x["angle"]) for x in seen])
        largest_angle = f"{max(max(x['angle']) for x in seen):.1f}" if seen else ""
        rose = f"{statistics.fmean(y for x in seen for y in x['rose']):.0%}" if seen else ""
        body.append([rung.name, Edits.of(rung.edits).objective, angle, largest_angle, rose])
    return rows_of(
        ["rung", "climbs", "angle, degrees", "of the layer with the largest", "updates that raise it"], *body
    )


def runs_table(part: str) -> list[str]:
    """Trials, rate, parameters, and by how much the validation score still moved."""
    body = []
    for rung in rungs_of(part):
        found = list(runs_of(part, rung).values())
        files = {rate: file_of(part, rung, f"rate {rate:g}", PARTS[part].steps // 2, "tuning") for rate in RATES}
        scores = {rate: tasks.dev_score(json.loads(path.read_text())) for rate, path in files.items() if path.exists()}
        tried = ", ".join(f"{rate:g}: {abs(x):.4g}" for rate, x in scores.items())
        chosen = f"{found[0]['settings']['lr']:g}" if found else ""
        size = f"{found[0]['parameters']:,}" if found else ""
        moved = f"{still_rose(found, lower=part != COGS)[0]:.1%}" if found else ""
        seconds = f"{statistics.median(x['seconds'] for x in found):,.0f}" if found else ""
        body.append([rung.name, tried, chosen, size, moved, seconds, str(len(found))])
    head = ["rung", "dev by rate, trials", "rate", "parameters, words and all", "gain over the last fifth", "seconds a run", "seeds"]  # fmt: skip
    return rows_of(head, *body)


def ends_table() -> list[str]:
    """Both ends at the published settings, beside the published runs."""
    body = []
    for rung, encoder in PUBLISHED.items():
        ours = list(figures(ENDS, rung).values())
        files = sorted(
            (tasks.FOLDER / "with_repeats").glob(
                f"{tasks.name_of('masked sentences', encoder)}-{PARTS[ENDS].steps}-steps-seed-*.json"
            )
        )
        theirs = [figure(ENDS, json.loads(path.read_text())) for path in files]
        answer = "not run yet"
        if len(ours) > 1:
            error = math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs))
            apart = statistics.fmean(ours) - statistics.fmean(theirs)
            answer = f"{apart:+.1f}, {abs(apart) / error:.1f} standard errors"
        body.append([rung.name, spread(theirs), spread(ours), str(len(ours)), answer])
    return rows_of(["end", "published", "here", "seeds", "apart"], *body)


def rungs_table(part: str, label: str) -> list[str]:
    """The rungs of a part that has few."""
    found = {rung.name: list(figures(part, rung).values()) for rung in rungs_of(part)}
    return rows_of(["rung", label, "seeds"], *([name, spread(own), str(len(own))] for name, own in found.items()))


def report_tables() -> Tables:
    """Tables of ``docs/reports/seven_edits.md``."""
    return {
        "steps": steps_table(MAIN), "claims": claims_table(), "objectives": objective_table(MAIN), "runs": runs_table(MAIN),
        "longer": rungs_table(LONGER, "perplexity"), "longer runs": runs_table(LONGER), "ends": ends_table(),
        "cogs": rungs_table(COGS, "forms right, per cent"), "cogs runs": runs_table(COGS),
        "quick": steps_table(QUICK), "quick objectives": objective_table(QUICK),
    }  # fmt: skip


# -- picture ---------------------------------------------------------------------------------------------------------------


def draw_figure(part: str, file: Path = FIGURE) -> None:
    """Draw both staircases: perplexity after each edit, from the CRF down, and from the transformer back."""
    from matplotlib import pyplot

    from probtx_pyro.plots import unit_color

    figure_, ax = pyplot.subplots(figsize=(14, 7), layout="constrained")
    place = np.arange(len(EDITS) + 1)
    for number, (rungs, label, mark) in enumerate(((ADDED, "edits added to the CRF", "o"), (TAKEN, "edits taken from the transformer", "s"))):  # fmt: skip
        each = [list(figures(part, rung).values()) for rung in rungs]
        mean, color = [statistics.fmean(x) for x in each], unit_color(number)
        ax.step(place, mean, where="mid", color=color, linewidth=2.5, label=label)
        ax.plot(place, mean, mark, color=color, markersize=8)
        ax.vlines(place, [min(x) for x in each], [max(x) for x in each], color=color, linewidth=6, alpha=0.3)
    names = ["where it starts", *(f"({k}) {LABELS[name]}" for k, name in enumerate(EDITS, 1))]
    ax.set_xticks(place, [textwrap.fill(name, 14, break_on_hyphens=False) for name in names], fontsize=12)
    ax.set_ylabel(f"perplexity of hidden words, {'dev' if part == QUICK else 'test'}", fontsize=14)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(axis="y", labelsize=13)
    ax.legend(fontsize=14, frameon=False)
    figure_.savefig(file, dpi=100)
    pyplot.close(figure_)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=[MAIN, LONGER, ENDS, COGS], default=[MAIN, LONGER, ENDS, COGS])
    parser.add_argument(
        "--rung", nargs="+", choices=[rung.name for rung in RUNGS], metavar="NAME", help="instead of all"
    )
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of all of the part")
    parser.add_argument("--quick", action="store_true", help="one seed of few steps at a fixed rate")
    parser.add_argument("--tune", action="store_true", help="only the trials that choose the rates")
    parser.add_argument("--table", action="store_true", help="only tables and picture, of what is there")
    options = parser.parse_args(arguments)
    torch.set_flush_denormal(True)
    for part in [] if options.table else [QUICK] if options.quick else options.part:
        rungs = [rung for rung in rungs_of(part) if rung.name in (options.rung or [rung.name])]
        if options.tune:
            for rung in rungs:
                print(f"{part}, {rung.name}: rate {best_rate(part, rung):g}", flush=True)
            continue
        for seed, rung in itertools.product(options.seeds or range(PARTS[part].seeds), rungs):
            found = run(part, rung, seed)
            print(f"{part}, {rung.name}, seed {seed}: {figure(part, found):.2f}, {found['seconds']:.0f} s", flush=True)
    tables = report_tables()
    for name in ("quick", "quick objectives") if options.quick else tables:
        print("\n".join(tables[name]), end="\n\n")
    write_tables("seven_edits.md", tables)
    whole = [part for part in (MAIN, QUICK) if all(figures(part, rung) for rung in RUNGS)]
    if whole:
        draw_figure(whole[0])


if __name__ == "__main__":
    main()

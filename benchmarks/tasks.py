"""The dependency CRF beside a transformer of matched size on tagging, named entities, classification, masked words and COGS.

Run with ``python -m benchmarks.tasks [--only TASK ...] [--encoder crf ...] [--seeds 0 1 2] [--steps N] [--tune] [--table]``, with
$PROBTX_DATA set or a connection. Every finished run is a file of ``results/tasks/`` and is not run again; one that was interrupted
goes on from its checkpoint in ``benchmarks/cache``. These are small settings, for two CPU cores: not those of the paper. All
encoders of a task have the same recipe (steps, batches, schedule, dropout, word dropout) and a learning rate each. "relative" is a
transformer with learned biases in place of positions, for the offsets 1, 2, 3 and all beyond: the distance groups of the CRF.
"words" is no encoder: each word by itself. "rooted" reads the root of a CRF, where a text is classified.

How the rates were chosen, on dev alone:

- ``intents``: a few trials on its dev part, see `benchmarks.text_classification`. ``upos``, ``xpos``: two rounds as below, the second of
  half the length of a run (27 November 2026; a few trials before). The CRF has full potentials; "low rank" is today's default.
- ``masked sentences``, ``entities``, ``cogs`` (24 November 2026): ``--tune``, the same for every encoder: one short run
  (`Benchmark.tuning` steps) with each of `RATES`, seed 9, no test part; the best figure on dev decides. For masked sentences the three
  best go on to a second round of longer runs, with the next rate beyond them as long as the best is at an end, and the three best of
  these to a third. Each is a file of ``results/tasks/tuning/``. The rates went from 0.001 to 0.02 at first; the first trials on
  entities were best at either end, and both ends were moved out for all: to 0.0005 and 0.04. The first runs followed, and their test
  figures were seen. Three rates were still at an end, so both ends were moved out once more for all tasks and encoders, to 0.00025 and
  0.08, and, as the CRF was best at 0.08 on masked sentences, to 0.16; the second and third round came last. What has another best rate
  was run again.

On 27 November 2026 entities got a second round, of the whole length, and COGS one of half the length, because one round had misled: the CRF's
rate on entities is now 0.002 (0.08 before), on COGS 0.02 (0.04 before; whole runs at other rates are in ``rates/``). Since that day the rows of
train that stand in dev or test, too, are left out (`benchmarks.task_runs.without_repeats`). That changes nothing on WNUT-17 and COGS. The
runs of ``masked sentences`` were made again, at the same rates; those on the published training part are in ``with_repeats/``.

``masked sentences``: the sentences of EWT, words that occur 3 times, 15 % of each hidden, the last parameters, perplexity of hidden
test words, and the trees in the attention (`benchmarks.induced_trees`). Small, so that the 15 minutes that a run may take see it 60
times. Whether runs have converged: what more steps bring, so the runs of 4,000 and of 8,000 steps stay beside those of 12,000
(`masked-sentences-*-steps-*`). The first had 4,000 steps; their dev perplexity still fell, in every encoder. They were to be run again
with 12,000, but the first of these showed, on dev, that the best rate of 600 steps, 0.08 for the CRF, is far too high for long runs
(`earlier_rates/`: 109, no better than 4,000 steps at 0.04). The second round of trials and runs of 8,000 steps followed, in which dev
perplexity still fell. So 12,000 for all, what the slowest of them, the CRF, does in the time, at first at the rates of the second
round. Of these, two runs of the CRF and three of the relative transformer were no better than with 8,000 steps, on dev as on test. The
CRF's losses in training were no lower, either: a rate that is too high again. So a third round for all, of half the steps of a run.
How far learned positions are from the end: ``--steps 18000``, what they can do in the time (decided before any run of 12,000).

Trials on dev before the protocol (one seed, 400 steps, rate 0.002): the relative transformer starts better from an embedding of 0.125
(dev perplexity 292) than from 0.02 (331), and has it; the one with positions does not (310 after 400 steps; from 0.02, 291 at step 400
of 600), and keeps 0.02.

``entities``: WNUT-17, words with the features of their spelling (prefixes, suffixes, shape: `data.spelling_features`), the parameters
of the best dev F1. ``cogs``: encoders as in the authors' configurations (CRF: 4 channels, 2 sweeps, distances 2 to 9, rank 16;
relative transformer: offsets to 9), fewer steps; the figure is the share of sentences of the generalisation part whose logical form,
rebuilt from the predicted tags, is the given one to the letter.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.reports import rows_of, write_table
from benchmarks.task_runs import classifier, cogs, masked, tagger, words_alone
from benchmarks.timing import RESULTS, machine
from probtx_pyro import train
from probtx_pyro.nn import ENCODERS as RECIPES
from probtx_pyro.nn import Encoder

FOLDER, CACHE = RESULTS / "tasks", Path(__file__).parent / "cache"
CRF = {"num_channels": 4, "num_steps": 3, "distances": (2, 3, 4), "rank": "full"}
TRANSFORMER = {"num_heads": 4, "num_layers": 2}
SHARED = {"width": 64, "batch": 64, "dropout": 0.15, "weight_decay": 1e-4}
RATES, TUNING_SEED, KEPT = (2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 4e-2, 8e-2, 0.16), 9, 3


OWN_ENCODERS = {
    "words": Encoder(words_alone, lambda encoder: 0, RECIPES["crf"].start),
    "transformer, wide start": RECIPES["transformer"]._replace(start=0.125),  # 1 / sqrt(width)
}


class Benchmark(NamedTuple):
    """A task.

    run: trains and evaluates. settings: beyond `SHARED`.
    figure: the way to the figure shown, in the file of a run.
    kind: of the settings.
    tuning: steps of the trials that choose the rate, a round each: of all `RATES`, then of the `KEPT` best, and beyond (`beyond`).
    encoders: which, by default.
    """

    run: Callable[..., dict[str, Any]]
    settings: dict[str, Any]
    figure: tuple[str, ...]
    kind: type = train.LabellingSettings
    tuning: tuple[int, ...] = ()
    encoders: tuple[str, ...] = ("crf", "transformer", "relative")


ACCURACY = ("metrics", "test", "accuracy")
TAGS = {"num_steps": 980, "validate_every": 196}
MASKED = {
    "rarest": 3,
    "context": 256,
    "mask": 0.15,
    "dropout": 0.1,
    "rows": "sentence",
    "num_steps": 12000,
    "validate_every": 600,
}
TASKS = {
    "upos": Benchmark(tagger("ewt"), TAGS, ACCURACY, tuning=(196, 490), encoders=("crf", "low-rank", "transformer", "relative")),
    "xpos": Benchmark(tagger("ewt", "xpos"), TAGS, ACCURACY, tuning=(196, 490)),
    "entities": Benchmark(tagger("wnut17"), {"characters": 2**14, "num_steps": 530, "validate_every": 53}, ("metrics", "test", "span_f1"), tuning=(265, 530), encoders=("crf", "transformer", "relative", "words")),
    "intents": Benchmark(classifier, {"num_steps": 700, "validate_every": 140}, ACCURACY, train.ClassifierSettings, encoders=("crf", "transformer", "relative", "words", "rooted")),
    "cogs": Benchmark(cogs, {"num_steps": 6000, "validate_every": 600, "dropout": 0.1, "unknown": 0.0}, ("forms", "gen", "exact_match"), tuning=(600, 3000)),
    "masked sentences": Benchmark(masked, MASKED, ("metrics", "test", "perplexity"), train.MaskedSettings, tuning=(600, 2400, 6000)),
}  # fmt: skip
LOW_RANK = {**CRF, "rank": None}
ENCODERS: dict[str, dict[str, Any]] = {
    "crf": {"encoder": "crf", "options": CRF, "lr": 1e-2},
    "low-rank": {"encoder": "crf", "options": LOW_RANK, "lr": 1e-2},
    "transformer": {"encoder": "transformer", "options": TRANSFORMER, "lr": 2e-3},
    "relative": {"encoder": "transformer", "options": {**TRANSFORMER, "max_offset": 4}, "lr": 5e-3},
    "words": {"encoder": "words", "lr": 1e-2},
    "rooted": {"encoder": "crf", "options": {**CRF, "mean_field": {"head_temperature": 1.0}}, "lr": 1e-2},
}
OWN: dict[tuple[str, str], dict[str, Any]] = {  # what a task needs of an encoder beyond the above
    ("intents", "crf"): {"options": {**CRF, "mean_field": {"head_temperature": 1.0}}, "lr": 2e-2},
    ("intents", "words"): {"lr": 2e-2},
    ("intents", "relative"): {"num_steps": 1400},
    ("intents", "rooted"): {"summary": "root", "num_steps": 1400},
    ("entities", "crf"): {"options": LOW_RANK},
    ("masked sentences", "crf"): {"options": LOW_RANK},
    ("masked sentences", "relative"): {"encoder": "transformer, wide start"},
    ("cogs", "crf"): {
        "options": {"num_channels": 4, "num_steps": 2, "distances": (2, 3, 4, 5, 6, 7, 8, 9), "rank": 16}
    },
    ("cogs", "relative"): {"options": {**TRANSFORMER, "max_offset": 9}},
}
BEFORE = {"rank": "full"}  # what the CRF of a file without a rank had


def settings_of(task: str, encoder: str, seed: int, **changes: Any) -> Any:
    """The settings of a run; its rate is the best of the trials, where the task has them."""
    RECIPES.update(OWN_ENCODERS)
    benchmark = TASKS[task]
    given = {**SHARED, **ENCODERS[encoder], "seed": seed}
    given = {**given, **benchmark.settings, **OWN.get((task, encoder), {}), **changes}
    if benchmark.tuning and "lr" not in changes:
        given["lr"] = best_rate(task, encoder)
    return benchmark.kind(**given)


def name_of(task: str, encoder: str) -> str:
    return f"{task.replace(' ', '-')}-{encoder}"


def read_or_run(
    path: Path, task: str, settings: Any, tuning: bool, run: Callable[..., dict[str, Any]] | None = None
) -> dict[str, Any]:
    """What the file of a run says, which is made if it is not there, by ``run`` in the place of the task's own."""
    if path.exists():
        found = json.loads(path.read_text())
        wanted = json.loads(json.dumps(asdict(settings)))
        had = {**json.loads(json.dumps(asdict(type(settings)()))), **found["settings"]}
        if had["encoder"] == "crf":
            had["options"] = {**BEFORE, **had["options"]}
        changed = [name for name, value in wanted.items() if name != "select" and had[name] != value]
        if changed:
            raise ValueError(f"{path} was run with another {', '.join(changed)}; remove it to run again")
        return found
    out = CACHE / f"{path.parent.name}-{path.stem}"
    found = (run or TASKS[task].run)(settings, tuning, out=out, resume=(out / "checkpoint.pt").exists())
    losses = found.pop("losses")
    every = max(1, len(losses) // 50)
    thin = [round(statistics.fmean(losses[i : i + every]), 4) for i in range(0, len(losses), every)]
    found = {"task": task, **found, "losses": thin, "steps_per_loss": every, "on": machine()}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")  # a file is there whole or not at all
    part.write_text(json.dumps(found, indent=1) + "\n")
    part.replace(path)
    shutil.rmtree(out)
    return found


def run(task: str, encoder: str, seed: int, steps: int | None = None, rate: float | None = None) -> dict[str, Any]:
    """The results of a run: read, or made. With other steps than the task's it validates as often; with another rate than
    that of the trials its file is one of ``rates/``.
    """
    settings = settings_of(task, encoder, seed, **({} if rate is None else {"lr": rate}))
    if steps is not None:
        every = max(1, settings.validate_every * steps // settings.num_steps)
        settings = replace(settings, num_steps=steps, validate_every=every)
    name = f"{name_of(task, encoder)}-{settings.num_steps}-steps"
    own = f"{name}-seed-{seed}.json" if rate is None else f"rates/{name}-rate-{rate:g}-seed-{seed}.json"
    return read_or_run(FOLDER / own, task, settings, tuning=False)


def trial_file(task: str, encoder: str, rate: float, steps: int) -> Path:
    return FOLDER / "tuning" / f"{name_of(task, encoder)}-{steps}-steps-rate-{rate:g}.json"


def trial(task: str, encoder: str, rate: float, steps: int) -> float:
    """The figure on dev of a short run with a learning rate; larger is better."""
    settings = settings_of(task, encoder, TUNING_SEED, lr=rate, num_steps=steps, validate_every=steps)
    return dev_score(read_or_run(trial_file(task, encoder, rate, steps), task, settings, tuning=True))


def dev_score(found: dict[str, Any]) -> float:
    """The figure on dev of a run; larger is better."""
    return -found["perplexity"] if "perplexity" in found else max(score for _, score in found["validation"])


def known_trial(task: str, encoder: str, rate: float, steps: int) -> float:
    """`trial`, of those that have been run."""
    path = trial_file(task, encoder, rate, steps)
    if not path.exists():
        raise ValueError(f"there is no {path}; run --tune first")
    return trial(task, encoder, rate, steps)


def shown_trial(task: str, encoder: str, rate: float, steps: int) -> float:
    """`trial`, and a line that says what it found."""
    score = trial(task, encoder, rate, steps)
    print(f"{task}, {encoder}, {steps} steps, rate {rate:g}: {score:.4f}", flush=True)
    return score


def best_rate(task: str, encoder: str, score: Callable[[str, str, float, int], float] = known_trial) -> float:
    """The rate that the rounds of trials choose; ``score`` gives the figure of each, larger is better."""
    return best_of_rounds(RATES, TASKS[task].tuning, lambda rate, steps: score(task, encoder, rate, steps))


def best_of_rounds(
    rates: tuple[float, ...],
    rounds: tuple[int, ...],
    score: Callable[[float, int], float],
    start: tuple[float, ...] | None = None,
) -> float:
    """The best of the rates after a round of trials of so many steps each: of all, or of ``start``, then of the `KEPT` best; each time
    also of what is beyond.
    """
    tried = start or rates
    for steps in rounds:
        scores = {rate: score(rate, steps) for rate in tried}
        while (beside := beyond(scores, rates)) is not None:
            scores[beside] = score(beside, steps)
        tried = tuple(sorted(scores, key=scores.__getitem__, reverse=True)[:KEPT])
    return tried[0]


def beyond(scores: dict[float, float], rates: tuple[float, ...]) -> float | None:
    """The next of the rates beyond those tried, where the best of them is the smallest or the largest; else None."""
    best = max(scores, key=scores.__getitem__)
    outwards = {max(scores): rates[rates.index(best) + 1 :], min(scores): rates[: rates.index(best)][::-1]}
    return next(iter(outwards.get(best, ())), None)


def figure(task: str, found: dict[str, Any]) -> float:
    """The number that the table shows."""
    value: Any = found
    for name in TASKS[task].figure:
        value = value[name]
    return float(value)


def table(tasks: list[str], encoders: list[str] | None) -> list[dict[str, Any]]:
    """Mean and spread over the seeds of the runs that are there."""
    rows = []
    for task in tasks:
        for encoder in encoders or TASKS[task].encoders:
            steps = {**TASKS[task].settings, **OWN.get((task, encoder), {})}["num_steps"]
            files = sorted(FOLDER.glob(f"{name_of(task, encoder)}-{steps}-steps-seed-*.json"))
            found = [json.loads(path.read_text()) for path in files]
            if not found:
                continue
            figures = [round(figure(task, x), 7) for x in found]
            row = {
                "task": task,
                "figure": " ".join(TASKS[task].figure[-2:]),
                "encoder": encoder,
                "steps": steps,
                "rate": found[0]["settings"]["lr"],
            }
            row |= {"mean": round(statistics.fmean(figures), 7), "seeds": figures, "parameters": found[0]["parameters"]}
            row["sd"] = round(statistics.stdev(figures), 7) if len(figures) > 1 else None
            rows.append({**row, "seconds": round(statistics.median(x["seconds"] for x in found))})
    return rows


def printed(rows: list[dict[str, Any]]) -> list[str]:
    """The table as the report has it."""
    lines = []
    for row in rows:
        digits = 1 if row["mean"] > 1 else 4  # perplexities, and shares
        sd = "" if row["sd"] is None else f" ± {row['sd']:.{digits}f}"
        seeds = ", ".join(f"{x:.{digits}f}" for x in row["seeds"])
        lines.append([row["task"], row["figure"], row["encoder"], f"{row['steps']:,}", f"{row['rate']:g}", f"{row['mean']:.{digits}f}{sd}", seeds, f"{row['parameters']:,}", f"{row['seconds']:,}"])  # fmt: skip
    head = ["task", "figure", "encoder", "steps", "rate", "mean ± sd", "seeds", "parameters, words and all", "seconds a run"]  # fmt: skip
    return rows_of(head, *lines)


def table_of_steps(task: str, folder: Path | None = None) -> list[str]:
    """What more steps bring, by encoder: perplexity on test, and by how much that on dev falls over the last fifth of the steps."""
    lines = []
    for encoder in TASKS[task].encoders:
        by_steps: dict[int, list[dict[str, Any]]] = {}
        for path in sorted((folder or FOLDER).glob(f"{name_of(task, encoder)}-*-steps-seed-*.json")):
            found = json.loads(path.read_text())
            by_steps.setdefault(found["steps"], []).append(found)
        before = None
        for steps, runs in sorted(by_steps.items()):
            test = [figure(task, x) for x in runs]
            falls = [fall(x["validation"]) for x in runs]
            mean, sd = statistics.fmean(test), f" ± {statistics.stdev(test):.1f}" if len(test) > 1 else ""
            brought = "" if before is None else f"{mean / before - 1:+.0%}"
            seconds = statistics.median(x["seconds"] for x in runs)
            lines.append([encoder, f"{steps:,}", f"{runs[0]['settings']['lr']:g}", f"{mean:.1f}{sd}", brought, ", ".join(f"{x:.1%}" for x in falls), f"{seconds:,.0f}"])  # fmt: skip
            before = mean
    return rows_of(["encoder", "steps", "rate", "test perplexity", "with the row above", "fall on dev over the last fifth", "seconds a run"], *lines)  # fmt: skip


def fall(validation: list[tuple[int, float]]) -> float:
    """By which share of itself the figure on dev falls from the validation nearest to four fifths of the steps to the last."""
    last, end = validation[-1]
    _, start = min(validation, key=lambda at: abs(at[0] - 0.8 * last))
    return 1 - end / start


def kinds_of_generalisation(encoders: list[str] | None) -> list[str]:
    """Exact match of each kind of COGS's generalisation part, mean and standard deviation of the seeds, by encoder."""
    task = TASKS["cogs"]
    lines = []
    for encoder in encoders or task.encoders:
        files = sorted(FOLDER.glob(f"{name_of('cogs', encoder)}-{task.settings['num_steps']}-steps-seed-*.json"))
        found = [json.loads(path.read_text())["forms"]["gen"]["by category"] for path in files]
        for kind in found[0] if found else ():
            each = [of[kind] for of in found]
            sd = f"± {statistics.stdev(each):.4f}" if len(each) > 1 else ""
            lines.append(f"  cogs, {encoder:12s} {kind:42s} {statistics.fmean(each):.4f} {sd}")
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK")
    parser.add_argument("--encoder", nargs="+", choices=ENCODERS, help="instead of those of each task")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="instead of those of each task")
    parser.add_argument(
        "--rates", nargs="+", type=float, help="instead of that of the trials; kept apart, in results/tasks/rates"
    )
    parser.add_argument("--tune", action="store_true", help="only the trials that choose the rates")
    parser.add_argument("--table", action="store_true", help="only the table of what is there")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    todo = (
        []
        if args.table
        else [(task, encoder) for task in args.only for encoder in args.encoder or TASKS[task].encoders]
    )
    for task, encoder in todo if args.tune else []:
        best_rate(task, encoder, shown_trial)
    for seed in [] if args.tune else args.seeds:
        for task, encoder in todo:
            for rate in args.rates or [None]:
                done = run(task, encoder, seed, args.steps, rate)
                at = "" if rate is None else f", rate {rate:g}"
                print(
                    f"{task}, {encoder}{at}, seed {seed}: {figure(task, done):.4f}, {done['seconds']:.0f} s", flush=True
                )
    rows = table(args.only, args.encoder)
    print("\n".join(printed(rows)))
    steps = table_of_steps("masked sentences") if "masked sentences" in args.only else []
    kinds = kinds_of_generalisation(args.encoder) if "cogs" in args.only else []
    for line in [*steps, *kinds]:
        print(line)
    if set(args.only) == set(TASKS) and not args.encoder:
        (RESULTS / "tasks.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
        write_table("dependency_crf.md", "tasks", printed(rows))
        write_table("dependency_crf.md", "steps", steps)


if __name__ == "__main__":
    main()

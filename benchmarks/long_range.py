"""ListOps by encoders with any attention of the library and by the dependency CRF: accuracy by length, and time and memory by length.

Run with ``python -m benchmarks.long_range [--only ROW ...] [--seeds N ...] [--data listops] [--trials | --speed | --table]``, with
$PROBTX_DATA set or a connection. Every finished run is a file of ``results/long_range/``, named by what it is, and is not run
again; one that was interrupted goes on from its checkpoint in ``benchmarks/cache``. A row needs its trials before its runs.

Protocol, written before any accuracy on the test part was seen, but for what its last paragraph names.

Data. ``data.load_listops()``: 7,200 expressions to learn from, 800 for dev (a tenth, drawn with a fixed seed), 2,000 for test, in
tokens without parentheses. Training expressions of more than 400 tokens are dropped (the command prints how many; about 70, 1 %), for
time and memory; none of dev or test is, where the learned positions beyond 400 are as they started. Lengths have a median of 16 and
reach 939: this is long range in its tail only.
Rows. One recipe for all (`PRESETS`): width 64, the same steps, batches (of like length), schedule, dropout and weight decay, the
mean word as summary. Transformers have 2 layers and learned positions; "4 heads" are half of the 8 heads of 8 channels. "one
Gaussian key, 4 heads" is MGK with one key a unit; "one linked key, 4 heads" has its linked prior and learned precision as well,
and is its control. The CRF has 4 channels, 3 iterations, potentials of rank 8, distance groups and soft heads, as for texts in
`benchmarks.tasks`; "words" has no encoder and reads a bag of words.
Learning rates. Each row gets the same search with seed 0: trials of 600 steps with the five rates of `FIRST`; then the three best with
half the steps of a run, and at each length the next rate beyond as long as the best is at an end. The best accuracy on dev after the
last step is taken, of equals the smaller rate. 800 expressions give it a standard error of 0.017. The trials never see the test part.
Steps. 8,000 for every row.
Seeds. 0, 1 and 2; 0 to 9 for MGK and its two controls (`MORE_SEEDS`), which tell what a second key is worth.
Report. Accuracy on test, of the parameters with the best dev accuracy of the run (every 800 steps): over all 2,000 and by length (`BINS`:
cut at the quartiles of the test lengths, 10, 16 and 42, and at 128), beside chance, the commonest answer, and the commonest answer
given the first token. The seeds are shown; differences within the spread of the seeds or below two standard errors
of 2,000 expressions (0.02) decide nothing. ``seconds`` of a run are on a shared machine. Time and memory are measured apart (``--speed``):
forward and backward of one sequence of random tokens, candidates interleaved, the median over rounds; peak memory in a process of its own.
What was changed, and when. Before any accuracy on test: 4,000 steps for 2,500, and the rate 0.0003 for all rows, when softmax did better
with 0.001 than with 0.003 on dev. After a table of 4,000 steps with trials of 600 (three seeds, 24 November 2026), because most rows
still got better at its end, for all rows alike: 8,000 steps, trials of half of it, "one linked key, 4 heads", ten seeds of three rows
(27 November, before any run of 8,000). After two seeds of that: the rates 0.0001 and 0.1 where an end of `FIRST` was best; in
no trial were they better.

Expressions of 500 to 2,000 tokens (Long Range Arena): ``--data FOLDER`` with its files basic_train.tsv, basic_val.tsv and
basic_test.tsv takes the preset "arena", the same rows with more steps. It was never run here; no figure of it is in any table.
"""

import argparse
import json
import shutil
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.reports import rows_of, write_table
from benchmarks.task_runs import right_texts, texts, with_items
from benchmarks.tasks import OWN_ENCODERS, best_of_rounds
from benchmarks.timing import RESULTS, machine, peak_memory, rounds, write
from probtx_pyro import nn, train

FOLDER, CACHE = RESULTS / "long_range", Path(__file__).parent / "cache"
HALF = {"num_heads": 4, "head_dim": 8}  # of the 8 heads of 8 channels
CRF = {"num_channels": 4, "num_steps": 3, "distances": (2, 3, 4), "rank": 8, "mean_field": {"head_temperature": 1.0}}
ROWS: dict[str, dict[str, Any]] = {
    "softmax, 8 heads": {},
    "softmax, 4 heads": HALF,
    "one Gaussian key, 4 heads": {"attention": "gaussian", "linked": False, **HALF},
    "one linked key, 4 heads": {"attention": "gaussian", **HALF},
    "MGK, 4 heads": {"attention": "gaussian-keys", **HALF},
    "linear, 8 heads": {"attention": "linear-keys", "num_components": 1},
    "MLK, 4 heads": {"attention": "linear-keys", **HALF},
    "dependency CRF": CRF,
    "words": {},
}
ENCODERS = {"dependency CRF": "crf", "words": "words"}  # all others are transformers
PRESETS: dict[str, dict[str, Any]] = {
    "listops": {"num_steps": 8000, "batch": 16, "context": 1000, "validate_every": 800},
    "arena": {"num_steps": 5000, "batch": 32, "context": 2048, "validate_every": 500},
}
LONGEST = {"listops": 400}  # tokens of a training expression
SHARED = {"width": 64, "dropout": 0.1, "weight_decay": 0.01, "unknown": 0.0}
RATES = 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1
FIRST = RATES[1:-1]  # what every row tries; an end of them that is best is followed by what is beyond
TRIALS = {"listops": (600, 4000), "arena": (600, 2500)}  # steps of each round
MORE_SEEDS = "one Gaussian key, 4 heads", "one linked key, 4 heads", "MGK, 4 heads"
BINS = {"1-10": 10, "11-16": 16, "17-42": 42, "43-128": 128, "129-": 10**9}
SIZES = {128: 9, 256: 9, 512: 7, 1024: 5, 2048: 3}  # tokens, and rounds
SPEED = "long_range_speed"


def named(data: str) -> str:
    """The preset of the data: that of their name, or, of a folder, the longer one."""
    return data if data in PRESETS else "arena"


def settings_of(data: str, row: str, seed: int, lr: float, **others: Any) -> train.ClassifierSettings:
    """The settings of a run."""
    nn.ENCODERS.update(OWN_ENCODERS)
    encoder = ENCODERS.get(row, "transformer")
    options = {"num_layers": 2, **ROWS[row]} if encoder == "transformer" else ROWS[row]
    recipe = {**SHARED, **PRESETS[named(data)], **others}
    return train.ClassifierSettings(encoder=encoder, options=options, seed=seed, lr=lr, **recipe)


def parts_of(data: str) -> tuple[dict[str, Any], int]:
    """The parts, with test cut by length as well, and how many training expressions were too long."""
    parts: dict[str, Any] = texts(data)
    kept = [row for row in parts["train"] if len(row[0]) <= LONGEST.get(named(data), 10**9)]
    dropped = len(parts["train"]) - len(kept)
    cut = defaultdict(list)
    for row in parts["test"]:
        cut[next(name for name, last in BINS.items() if len(row[0]) <= last)].append(row)
    return {**parts, "train": kept, **{f"test {name}": cut[name] for name in BINS if name in cut}}, dropped


def file(data: str, row: str, settings: train.ClassifierSettings, trial: bool = False) -> Path:
    """Where the results of a run are kept."""
    what = f"{named(data)}-{row.replace(', ', '-').replace(' ', '-').lower()}-{settings.num_steps}-steps"
    return FOLDER / f"{what}-{f'trial-rate-{settings.lr:g}' if trial else f'seed-{settings.seed}'}.json"


def read(path: Path, settings: train.ClassifierSettings) -> dict[str, Any] | None:
    """The results of a finished run; refused if it was another run than the one asked for."""
    if not path.exists():
        return None
    found, wanted = json.loads(path.read_text()), json.loads(json.dumps(asdict(settings)))
    if changed := [name for name, value in found["settings"].items() if wanted.get(name) != value]:
        raise ValueError(f"{path} was run with another {', '.join(changed)}; remove it to run again")
    return found


def run(
    data: str, row: str, settings: train.ClassifierSettings, parts: Mapping[str, Any], trial: bool = False
) -> dict[str, Any]:
    """The results of a run: read, or made."""
    path = file(data, row, settings, trial)
    if (found := read(path, settings)) is not None:
        return found
    out = CACHE / f"long-range-{path.stem}"
    done = train.train_classifier(settings, parts, out, resume=(out / "checkpoint.pt").exists())
    found = done.results if trial else with_items(done.results, right_texts(done, parts["test"]), 100 * done.results["metrics"]["test"]["accuracy"])  # fmt: skip
    losses = found.pop("losses")
    every = max(1, len(losses) // 50)
    thin = [round(statistics.fmean(losses[i : i + every]), 4) for i in range(0, len(losses), every)]
    sizes = {name: len(part) for name, part in parts.items()}
    found = {"row": row, "data": data, "rows": sizes, **found, "losses": thin, "steps_per_loss": every, "on": machine()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(out)
    return found


def seeds_of(row: str) -> range:
    """The seeds of a row."""
    return range(10 if row in MORE_SEEDS else 3)


def rate(data: str, row: str, parts: Mapping[str, Any] | None = None) -> float:
    """The learning rate of a row, by its trials; with ``parts`` those that are missing are run."""

    def accuracy(lr: float, length: int) -> float:
        settings = settings_of(data, row, 0, lr, num_steps=length, validate_every=length)
        done = read(file(data, row, settings, trial=True), settings)
        if done is None:
            if parts is None:
                raise ValueError(f"a trial of {row} with the rate {lr:g} is missing; run with --trials first")
            done = run(data, row, settings, parts, trial=True)
            print(f"{row}, {length} steps, rate {lr:g}: {done['accuracy']:.4f}, {done['seconds']:.0f} s", flush=True)
        return float(done["accuracy"])

    return best_of_rounds(RATES, TRIALS[named(data)], accuracy, FIRST)


def baselines(parts: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Accuracy on test, over all and by length, of the commonest answer in train, without and with the first token known."""
    commonest = Counter(label for _, label in parts["train"]).most_common(1)[0][0]
    by_first: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, label in parts["train"]:
        by_first[words[0]][label] += 1
    answers = {
        "commonest answer": lambda words: commonest,
        "commonest answer to the first token": lambda words: by_first[words[0]].most_common(1)[0][0],
    }
    return {
        name: {
            part: round(statistics.fmean(answer(words) == label for words, label in rows), 4)
            for part, rows in parts.items()
            if part.startswith("test")
        }
        for name, answer in answers.items()
    }


def table(data: str, rows: list[str]) -> list[dict[str, Any]]:
    """Mean and figures of the seeds of the runs that are there."""
    made = []
    for row in rows:
        try:
            lr = rate(data, row)
        except ValueError as error:
            print(f"  {error}")
            continue
        each = (settings_of(data, row, seed, lr) for seed in seeds_of(row))
        found = [done for settings in each if (done := read(file(data, row, settings), settings)) is not None]
        if not found:
            continue
        parts = [name for name in found[0]["metrics"] if name.startswith("test")]
        scores = {name: [x["metrics"][name]["accuracy"] for x in found] for name in ("dev", *parts)}
        made.append(
            {
                "row": row,
                "rate": lr,
                "seeds": [x["settings"]["seed"] for x in found],
                "test": [round(x, 4) for x in scores["test"]],
                "mean": {name: round(statistics.fmean(x), 4) for name, x in scores.items()},
                "kept": [x["kept"] for x in found],
                "parameters": found[0]["parameters"],
                "seconds": round(statistics.median(x["seconds"] for x in found)),
            }
        )
    return made


def built(row: str, tokens: int) -> torch.nn.Module:
    """A model with room for so many tokens, the same every time."""
    return settings_of("listops", row, 0, 1.0, context=tokens, dropout=0.0).model(16, (10,))


def step(row: str, tokens: int) -> Any:
    """A forward and backward pass of one sequence."""
    model = built(row, tokens)
    words = torch.randint(16, (1, tokens), generator=torch.Generator().manual_seed(0))

    def call() -> None:
        model.zero_grad()
        F.cross_entropy(model(words), torch.zeros(1, dtype=torch.long)).backward()

    return call


MEMORY = """
import torch
from benchmarks.long_range import step
step({row!r}, 64)()
call = step({row!r}, {tokens})
ready()
call()
"""


def speed(rows: list[str], sizes: list[int]) -> list[dict[str, Any]]:
    """Milliseconds and peak MiB of a step against the number of tokens."""
    made = []
    for tokens in sizes:
        times = rounds({row: step(row, tokens) for row in rows}, SIZES[tokens])
        used = {row: peak_memory(MEMORY.format(row=row, tokens=tokens), repeats=1) for row in rows}
        made.append(
            {
                "N": tokens,
                "milliseconds": {row: round(1e3 * statistics.median(x), 1) for row, x in times.items()},
                "MiB": {row: round(x, 1) for row, x in used.items()},
            }
        )
        print(" ", made[-1], flush=True)
    return made


def speed_table(sizes: list[dict[str, Any]]) -> list[str]:
    """Milliseconds and MiB of each row by length, as the report has them."""
    cells = [[f"{of['milliseconds'][row]:,.0f}, {of['MiB'][row]:,.0f}" for of in sizes] for row in sizes[0]["MiB"]]
    head = ["ms, MiB", *(f"{of['N']:,} tokens" for of in sizes)]
    return rows_of(head, *([row, *of] for row, of in zip(sizes[0]["MiB"], cells, strict=True)))


def printed(rows: list[dict[str, Any]], known: dict[str, dict[str, float]]) -> list[str]:
    """The table as the report has it."""
    bins = [name for name in known["commonest answer"] if name != "test"]
    heads = [name.removeprefix("test ") for name in bins]
    lines = [["row", "rate", "test, mean", "seeds", *heads, "parameters", "s"]]
    for name, scores in known.items():
        lines.append([name, "", f"{scores['test']:.3f}", "", *(f"{scores[b]:.3f}" for b in bins), "", ""])
    for row in rows:
        mean, each = row["mean"], ", ".join(f"{x:.3f}" for x in row["test"])
        cells = [row["row"], f"{row['rate']:g}", f"{mean['test']:.3f}", each, *(f"{mean[b]:.3f}" for b in bins)]
        lines.append([*cells, f"{row['parameters']:,}", str(row["seconds"])])
    return rows_of(*lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--seeds", nargs="+", type=int, help="of those of each row; default: all")
    parser.add_argument("--data", default="listops", help="listops, or a folder of longer expressions")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--trials", action="store_true", help="only the search for the learning rates")
    what.add_argument("--speed", action="store_true", help="only time and memory against length")
    what.add_argument("--table", action="store_true", help="only the table of what is there")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    if args.speed:
        rows = [row for row in args.only if row != "words"]
        measured = speed(rows, list(SIZES))
        if args.only == list(ROWS):
            print(f"written to {write(SPEED, measured)}")
            write_table("long_range.md", "time and memory", speed_table(measured))
        return
    parts, dropped = parts_of(args.data)
    print(f"{len(parts['train'])} training expressions, {dropped} longer ones dropped; {len(parts['test'])} to test")
    if args.trials:
        some = {name: parts[name] for name in ("train", "dev")}
        for row in args.only:
            print(f"{row}: {rate(args.data, row, some):g}", flush=True)
        return
    for seed in [] if args.table else args.seeds or range(10):
        for row in args.only:
            if seed not in seeds_of(row):
                continue
            settings = settings_of(args.data, row, seed, rate(args.data, row))
            done = run(args.data, row, settings, parts)
            scores = {name: round(of["accuracy"], 4) for name, of in done["metrics"].items()}
            print(f"{row}, seed {seed}: {scores}, {done['seconds']:.0f} s", flush=True)
    rows, known = table(args.data, args.only), baselines(parts)
    print("\n".join(printed(rows, known)))
    if rows and args.only == list(ROWS) and args.data in PRESETS:
        path = RESULTS / f"long_range_{args.data}.json"
        path.write_text(json.dumps({"dropped": dropped, "baselines": known, "rows": rows}, indent=1) + "\n")
        if args.data == "listops":
            write_table("long_range.md", "accuracy", printed(rows, known))


if __name__ == "__main__":
    main()

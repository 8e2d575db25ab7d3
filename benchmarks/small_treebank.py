"""The dependency CRF on treebanks beside a transformer of equal width: seconds, accuracy, and what a busy core costs.

Run with ``python -m benchmarks.small_treebank [--parts small ewt threads] [--seeds 3] [--quick]`` on an idle machine of two cores or more;
the answer is ``results/small_treebank.json``, where a part replaces its own rows. ``small`` is the treebank that comes with the library: UPOS
tags, 73 sentences to train, 144 words to judge by; ``ewt`` needs ``PROBTX_DATA``.

Protocol. No sentence of dev or test is in train. Every encoder has 64 channels (labels), 8 heads (channels) and 4 layers (sweeps), batches of 32 sentences, no dropout, the same
words dropped, warmup, schedule and weight decay; the learning rate is that of `RATES` with the best accuracy at seed 0, for which the others
are run, too. Accuracy is that of the dev part (of EWT, its first 800 sentences) at the best of the validations, one every 100 steps (150 of
EWT); it is chosen on what it is judged by, so it flatters all of them alike. Seeds 0, 1, 2, all reported. Seconds are those of the whole run
with its validations, on the threads that ``probtx train`` takes, the encoders in turn for each seed.

Threads: `STEPS` training steps of each encoder, on one thread and on two, on the idle machine and beside one and two busy processes, in
turn over `ROUNDS` rounds, medians; and matrix products of several sizes the same way, which is where ``WORTH_THREADS`` of the command line
is read from.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.task_runs import without_repeats
from benchmarks.timing import RESULTS, write
from probtx_pyro.cli import _options as options
from probtx_pyro.train import LabellingSettings, tagged_sentences, train_tagger

CRF = {"num_channels": 8, "distances": (2, 3, 4)}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "crf": ("crf", CRF),
    "crf, full": ("crf", CRF | {"rank": "full"}),
    "crf, symmetric": ("crf", CRF | {"symmetric": True}),
    "transformer": ("transformer", {"num_heads": 8, "num_layers": 4}),
}


class Corpus(NamedTuple):
    """How long to train on a treebank, how often to validate, and on how many sentences (None: all)."""

    steps: int
    validate_every: int
    judged: int | None


CORPORA = {"small": Corpus(500, 100, None), "ewt": Corpus(300, 150, 800)}
RATES = (0.01, 0.005, 0.002)
STEPS, ROUNDS = 40, 5
SIZES = (2**20, 2**22, 2**24, 2**26, 2**28, 2**30)  # multiplications


def settings_of(encoder: str, steps: int, seed: int, rate: float, validate_every: int = 100) -> LabellingSettings:
    """Settings of a run."""
    name, given = ENCODERS[encoder]
    return LabellingSettings(
        encoder=name, options=given, width=64, num_steps=steps, seed=seed, lr=rate, validate_every=validate_every
    )


def parts_of(data: str) -> dict[str, Any]:
    """Train and the sentences to judge by, none of which train has."""
    parts = without_repeats(tagged_sentences(data).parts, lambda row: row.words)
    return {"train": parts["train"], "dev": parts["dev"][: CORPORA[data].judged]}


def run(data: str, encoder: str, seed: int, rate: float, steps: int | None = None) -> dict[str, Any]:
    """Seconds and accuracy of a run; ``steps`` in place of those of the treebank."""
    corpus, parts = CORPORA[data], parts_of(data)
    settings = settings_of(encoder, steps or corpus.steps, seed, rate, corpus.validate_every)
    start = time.process_time()
    found = train_tagger(settings, parts, progress=False).results
    row = {"data": data, "encoder": encoder, "seed": seed, "rate": rate, "steps": settings.num_steps}
    row |= {"parameters": found["parameters"], "accuracy": round(found["accuracy"], 4), "seconds": found["seconds"]}
    row |= {"cpu seconds": round(time.process_time() - start, 1), "threads": found["machine"]["threads"]}
    print(
        f"  {data:5s} {encoder:16s} seed {seed}, rate {rate}: {row['accuracy']:.3f}, {row['seconds']:6.1f} s",
        flush=True,
    )
    return row


def accuracy(data: str, seeds: int, steps: int | None = None) -> list[dict[str, Any]]:
    """Every encoder at every rate with seed 0, then at its best one with the other seeds."""
    rows = [run(data, encoder, 0, rate, steps) for rate in RATES for encoder in ENCODERS]
    best = {
        encoder: max((row for row in rows if row["encoder"] == encoder), key=lambda row: row["accuracy"])["rate"]
        for encoder in ENCODERS
    }
    return rows + [run(data, encoder, seed, best[encoder], steps) for seed in range(1, seeds) for encoder in ENCODERS]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Compute beside so many processes that never wait; they end with this one."""
    program = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(processes)]
    try:
        time.sleep(0.2 if processes else 0.0)
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def beside(candidates: dict[str, Callable[[], object]], rounds: int, **what: object) -> list[dict[str, Any]]:
    """Median seconds of candidates on one and two threads, idle and beside one and two busy processes, in turn."""
    places = [(name, threads, load) for name in candidates for threads in (1, 2) for load in (0, 1, 2)]
    times: dict[tuple[str, int, int], list[float]] = {place: [] for place in places}
    for _ in range(rounds):
        for name, threads, load in places:
            with busy(load), options.threads(threads):
                start = time.perf_counter()
                candidates[name]()
                times[name, threads, load].append(time.perf_counter() - start)
    rows = []
    for name in candidates:
        for threads in (1, 2):
            found = [statistics.median(times[name, threads, load]) for load in (0, 1, 2)]
            rows.append(
                {**what, "what": name, "threads": threads, "seconds beside 0, 1, 2": [round(x, 5) for x in found]}
            )
            print(f"  {name:16s} {threads} threads: " + ", ".join(f"{x:8.4f} s" for x in found), flush=True)
    return rows


def training(encoder: str) -> Callable[[], object]:
    """Some steps of training."""
    parts, settings = tagged_sentences("small").parts, settings_of(encoder, STEPS, 0, RATES[0], STEPS)
    return lambda: train_tagger(settings, parts, progress=False)


def product(size: int) -> Callable[[], object]:
    """Matrix products of so many multiplications each, as many as take a moment."""
    rows = size // 64 // 256
    x, w, out = torch.randn(rows, 64), torch.randn(64, 256), torch.empty(rows, 256)

    def run() -> None:
        for _ in range(max(1, 2**31 // size)):
            torch.mm(x, w, out=out)

    return run


def threads(rounds: int) -> list[dict[str, Any]]:
    """Training steps and matrix products on one and two threads, beside other programs."""
    print(f"{STEPS} steps, beside 0, 1 and 2 busy processes")
    rows = beside({encoder: training(encoder) for encoder in ENCODERS}, rounds, data="threads", steps=STEPS)
    print("matrix products, 2^31 multiplications together")
    products = {f"2^{size.bit_length() - 1} each": product(size) for size in SIZES}
    return rows + beside(products, rounds, data="threads")


NAMES = {"crf": "CRF, rank 8 (the default)", "crf, full": "CRF, full", "crf, symmetric": "CRF, rank 8, symmetric"}


def accuracy_table(rows: list[dict[str, Any]], data: str, seconds: str) -> list[str]:
    """Accuracy at every rate, and of every seed at the best one."""
    lines = []
    for encoder in ENCODERS:
        own = [row for row in rows if (row["data"], row.get("encoder")) == (data, encoder)]
        first = {row["rate"]: row["accuracy"] for row in own if row["seed"] == 0}
        seeds = [row["accuracy"] for row in own if row["rate"] == max(first, key=lambda rate: first[rate])]
        took = [row[seconds] for row in own]
        shown = [*(f"{first[rate]:.3f}" for rate in RATES), ", ".join(f"{x:.3f}" for x in seeds), f"{statistics.fmean(seeds):.3f}"]  # fmt: skip
        lines.append([NAMES.get(encoder, encoder), f"{own[0]['parameters']:,}", *shown, f"{min(took):.0f} to {max(took):.0f}"])  # fmt: skip
    head = [f"{data} treebank, {CORPORA[data].steps} steps", "parameters", *(f"rate {rate}" for rate in RATES)]
    return rows_of([*head, "seeds 0, 1, 2 at the best", "mean", seconds], *lines)


def threads_table(rows: list[dict[str, Any]]) -> list[str]:
    """Seconds on one thread and two, beside 0, 1 and 2 busy processes."""
    own = [row for row in rows if row["data"] == "threads"]
    lines = []
    for what in dict.fromkeys(row["what"] for row in own):
        digits = 1 if what in ENCODERS else 3
        times = [x for row in own if row["what"] == what for x in row["seconds beside 0, 1, 2"]]
        name = NAMES.get(what, what) if what in ENCODERS else f"products of {what}"
        lines.append([name, *(f"{x:.{digits}f}" for x in times)])
    return rows_of(["", "one thread: 0", "1", "2", "two threads: 0", "1", "2"], *lines)


def report_tables() -> Tables:
    """Tables of ``docs/reports/small_treebanks.md``."""
    rows = rows_kept("small_treebank")
    return {
        "small": accuracy_table(rows, "small", "seconds"),
        "ewt": accuracy_table(rows, "ewt", "cpu seconds"),
        "threads": threads_table(rows),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=(*CORPORA, "threads"), default=[*CORPORA, "threads"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="20 steps, one seed, one round, nothing written")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    file = RESULTS / "small_treebank.json"
    kept = json.loads(file.read_text())["rows"] if file.exists() else []
    for part in args.parts:
        if part == "threads":
            rows = threads(1 if args.quick else ROUNDS)
        else:
            rows = accuracy(part, 1, 20) if args.quick else accuracy(part, args.seeds)
        kept = [row for row in kept if row["data"] != part] + rows
        if not args.quick:
            print(write("small_treebank", kept))
    if not args.quick:
        write_tables("small_treebanks.md", report_tables())


if __name__ == "__main__":
    main()

"""Every table of the sources, their figures beside ours: writes the tables of ``docs/reports/the_papers_tables.md`` from the results.

Run with ``python -m benchmarks.papers_tables``. It trains nothing: a row has the figures of the run files of its name that are
there, one a seed, and a row without files says so. A claim is that one row is better than another. Its verdict is computed: at
three seeds or more, "reproduced" where every seed says so, "not reproduced" where every seed says the contrary, else "open"; where the
source has no such rows, "holds here" and "does not hold here".
"""

import json
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.reports import REPORTS, filled, rows_of
from benchmarks.timing import RESULTS

PAGE = REPORTS / "the_papers_tables.md"
SEEDS = 3  # at least, for a verdict


class Row(NamedTuple):
    """A model of a table.

    name: of the model.
    files: of our runs under ``results/``, one a seed.
    theirs: the figures that the source prints, one for each of its data sets; none for a control that it lacks.
    figure: in the place of the table's.
    """

    name: str
    files: str
    theirs: tuple[str, ...] = ()
    figure: Callable[[dict[str, Any]], float] | None = None


class Table(NamedTuple):
    """A table of a source.

    sets: the data sets of the source.
    ours: our data and figure.
    figure: from the contents of a run file.
    lower: True if a lower figure is the better.
    rows, claims: models, and pairs of their names of which the first is said to be better.
    digits: after the point.
    """

    sets: tuple[str, ...]
    ours: str
    figure: Callable[[dict[str, Any]], float]
    lower: bool
    rows: tuple[Row, ...]
    claims: tuple[tuple[str, str], ...]
    digits: int = 2


CRF, TRANSFORMER = "probabilistic transformer (dependency CRF)", "transformer"
RELATIVE, ALONE = "transformer, relative positions (control)", "each word by itself, no encoder (control)"


def metric(part: str, name: str, scale: float = 1.0) -> Callable[[dict[str, Any]], float]:
    """A figure of a part of the data."""
    return lambda run: scale * run["metrics"][part][name]


def trees(read: str) -> Callable[[dict[str, Any]], float]:
    """Attachment score of a way to read trees, in per cent."""
    return lambda run: 100 * run["attachment"][read]


def read_trees(encoders: dict[str, str]) -> tuple[Row, ...]:
    """The rows of trees in attention, and of baselines, which are the same in every run."""
    files = "tasks/masked-sentences-{}-12000-steps-seed-*.json"
    ways = {"mean of all channels": "mean of channels, projective", "best channel": "best channel, projective", "any channel": "any channel, projective"}  # fmt: skip
    rows = [Row(f"{name}: {way}", files.format(x), (), trees(key)) for x, name in encoders.items() for way, key in ways.items()]  # fmt: skip
    return (
        *(Row(name, files.format("crf"), (), trees(name)) for name in ("right arc", "left arc", "random heads")),
        *rows,
    )


def words(task: str, steps: int, **theirs: tuple[str, ...]) -> tuple[Row, ...]:
    """The rows of a task on words; of the relative transformer the poster has none."""
    names = {"crf": CRF, "transformer": TRANSFORMER, "relative": RELATIVE}
    return tuple(Row(names[x], f"tasks/{task}-{x}-{steps}-steps-seed-*.json", theirs.get(x, ())) for x in names)


LM = "language_modelling/wikitext2-{}-2000-steps-seed-*.json"
MT = "translation/{}-seed-*.json"
TABLES = {
    "language models": Table(
        ("WikiText-103, small, test", "WikiText-103, medium, test"),
        "WikiText-2 by words, 1.9 M parameters, test perplexity",
        metric("test", "perplexity"), True,
        (
            Row("softmax, 8 heads", LM.format("softmax-8-heads"), ("34.29", "29.60")),
            Row("MGK, 4 heads", LM.format("mgk-4-heads"), ("34.21", "28.86")),
            Row("shifted MGK, 8 heads", LM.format("shifted-mgk-8-heads"), ("33.99", "-")),
            Row("MGK, 8 heads", LM.format("mgk-8-heads"), ("33.93", "-")),
            Row("softmax, 4 heads", LM.format("softmax-4-heads"), ("35.85", "-")),
            Row("linear, 8 heads", LM.format("linear-8-heads"), ("39.08", "-")),
            Row("MLK, 4 heads", LM.format("mlk-4-heads"), ("39.46", "-")),
            Row("MLK, 8 heads", LM.format("mlk-8-heads"), ("38.99", "-")),
            Row("linear, 4 heads", LM.format("linear-4-heads"), ("40.17", "-")),
            Row("MGK, 4 heads, hard E-step", LM.format("mgk-4-heads-hard-e-step")),
            Row("one Gaussian key, 4 heads (control)", LM.format("one-gaussian-key-4-heads")),
        ),
        (
            ("MGK, 4 heads", "softmax, 8 heads"), ("MGK, 8 heads", "softmax, 8 heads"),
            ("shifted MGK, 8 heads", "softmax, 8 heads"), ("MGK, 4 heads", "softmax, 4 heads"),
            ("MLK, 8 heads", "linear, 8 heads"), ("linear, 8 heads", "MLK, 4 heads"), ("MLK, 4 heads", "linear, 4 heads"),
            ("MGK, 4 heads", "one Gaussian key, 4 heads (control)"),
        ),
    ),
    "translation": Table(
        ("IWSLT'14, 4 and 2 heads",), "Tatoeba English-German, 8 and 4 heads, test BLEU", metric("test", "BLEU"), False,
        (
            Row("softmax, all heads", MT.format("softmax-8-heads"), ("34.42",)),
            Row("MGK, half the heads", MT.format("mgk-4-heads"), ("34.34",)),
            Row("shifted MGK, half the heads", MT.format("shifted-mgk-4-heads"), ("34.69",)),
            Row("softmax, half the heads (control)", MT.format("softmax-4-heads")),
            Row("one Gaussian key, half the heads (control)", MT.format("one-gaussian-key-4-heads")),
        ),
        (
            ("shifted MGK, half the heads", "softmax, all heads"), ("softmax, all heads", "MGK, half the heads"),
            ("MGK, half the heads", "softmax, half the heads (control)"),
            ("MGK, half the heads", "one Gaussian key, half the heads (control)"),
        ),
    ),
    "long range": Table(
        (), "ListOps, test accuracy in per cent", metric("test", "accuracy", 100), False,
        tuple(Row(name, f"long_range/listops-{name.replace(', ', '-').replace(' ', '-').lower()}-4000-steps-seed-*.json")
              for name in ("softmax, 8 heads", "softmax, 4 heads", "one Gaussian key, 4 heads", "MGK, 4 heads", "linear, 8 heads",
                           "MLK, 4 heads", "dependency CRF", "words")),
        (
            ("MGK, 4 heads", "softmax, 8 heads"), ("MGK, 4 heads", "one Gaussian key, 4 heads"),
            ("MLK, 4 heads", "linear, 8 heads"), ("dependency CRF", "softmax, 8 heads"),
        ),
    ),
    "tags": Table(
        ("PTB", "UD"), "UD English EWT, universal tags, test accuracy in per cent",
        metric("test", "accuracy", 100), False,
        (
            *words("upos", 980, transformer=("96.44 ± 0.04", "91.17 ± 0.11"), crf=("96.29 ± 0.03", "90.96 ± 0.10")),
            Row("dependency CRF, potentials of low rank (control)", "tasks/upos-low-rank-980-steps-seed-*.json"),
        ),
        ((TRANSFORMER, CRF),),
    ),
    "masked words": Table(
        ("PTB", "BLLIP"), "UD English EWT by sentences, words that occur 3 times, perplexity of hidden test words",
        metric("test", "perplexity"), True,
        words("masked-sentences", 12000, transformer=("58.43 ± 0.58", "101.91 ± 1.40"), crf=("62.86 ± 0.40", "123.18 ± 1.50")),
        ((TRANSFORMER, CRF), (RELATIVE, CRF)),
    ),
    "entities": Table(
        ("CoNLL-2003",), "WNUT-17, words with their spelling, test F1 of spans in per cent", metric("test", "span_f1", 100), False,
        (
            *words("entities", 530, transformer=("74.02 ± 1.11",), crf=("75.47 ± 0.35",)),
            Row(ALONE, "tasks/entities-words-530-steps-seed-*.json"),
            Row("dependency CRF at a rate of 0.02, not 0.08 (control)", "tasks/earlier_rates/entities-crf-530-steps-rate-0.02-seed-*.json"),
            Row("dependency CRF without spelling (control)", "tasks/entities-crf-1060-steps-seed-*.json"),
        ),
        ((CRF, TRANSFORMER), (CRF, RELATIVE), (CRF, ALONE)),
    ),
    "texts": Table(
        ("SST-2", "SST-5"), "Banking77, 77 intents, test accuracy in per cent", metric("test", "accuracy", 100), False,
        (
            Row(CRF, "tasks/intents-crf-700-steps-seed-*.json", ("82.04 ± 0.88", "42.77 ± 1.18")),
            Row(TRANSFORMER, "tasks/intents-transformer-700-steps-seed-*.json", ("82.51 ± 0.26", "40.13 ± 1.09")),
            Row(ALONE, "tasks/intents-words-700-steps-seed-*.json"),
        ),
        ((CRF, ALONE),),
    ),
    "COGS": Table(
        ("COGS",), "COGS, generalisation part, logical forms right to the letter in per cent",
        lambda run: 100 * run["forms"]["gen"]["exact_match"], False,
        (
            Row(CRF, "tasks/cogs-crf-6000-steps-seed-*.json", ("84.60 ± 2.06",)),
            Row("transformer, relative positions", "tasks/cogs-relative-6000-steps-seed-*.json", ("82.05 ± 2.18",)),
            Row("transformer, learned positions (control)", "tasks/cogs-transformer-6000-steps-seed-*.json"),
        ),
        ((CRF, "transformer, relative positions"), (CRF, "transformer, learned positions (control)")),
    ),
    "induced trees": Table(
        (), "UD English EWT, attachment without punctuation in per cent", trees("right arc"), False,
        read_trees({"crf": "CRF", "transformer": "transformer", "relative": "relative transformer"}),
        (
            ("CRF: best channel", "transformer: best channel"), ("CRF: best channel", "relative transformer: best channel"),
            ("CRF: best channel", "right arc"), ("CRF: mean of all channels", "right arc"),
        ),
    ),
}  # fmt: skip


def seeds_of(row: Row, table: Table) -> dict[int, float]:
    """The figure of each seed that has been run."""
    runs = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(row.files))]
    return {run["settings"]["seed"]: (row.figure or table.figure)(run) for run in runs}


def spread(values: list[float], digits: int, sign: str = "") -> str:
    """Mean and standard deviation of the seeds; with ``sign="+"`` the sign of the mean is always shown."""
    if not values:
        return "not run yet"
    mean = f"{statistics.fmean(values):{sign}.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def verdict(gains: list[float], printed: bool = True) -> str:
    """Verdict on a claim, from how much better its first row is in each seed; of our own, where the source has not ``printed`` both rows."""
    holds, fails = ("reproduced", "not reproduced") if printed else ("holds here", "does not hold here")
    if len(gains) < SEEDS:
        return "open" if gains else "not run yet"
    return holds if min(gains) > 0 else fails if max(gains) < 0 else "open"


def number(text: str) -> float:
    """The mean that a source prints."""
    return float(text.split()[0])


def gain_of(first: str, second: str, lower: bool) -> str:
    """How much better the first of two printed figures is."""
    if "-" in (first, second):
        return "-"
    digits = len(first.split()[0].partition(".")[2])
    return f"{(number(second) - number(first)) * (1 if lower else -1):+.{digits}f}"


def lines(table: Table) -> list[str]:
    """The table and its claims, in Markdown."""
    found = {row.name: seeds_of(row, table) for row in table.rows}
    theirs = {row.name: row.theirs or ("-",) * len(table.sets) for row in table.rows}
    head = ["model", *(f"theirs: {name}" for name in table.sets), f"ours: {table.ours}", "seeds"]
    made = [head]
    for name, seeds in found.items():
        made.append([name, *theirs[name], spread(list(seeds.values()), table.digits), str(len(seeds))])
    sign = 1 if table.lower else -1
    head = ["claim", "theirs, by", "ours, by", "seeds for it", "verdict"]
    claims = [head]
    for first, second in table.claims:
        both = found[first].keys() & found[second].keys()
        gains = [sign * (found[second][seed] - found[first][seed]) for seed in sorted(both)]
        by = [gain_of(*pair, table.lower) for pair in zip(theirs[first], theirs[second], strict=True)]
        said = ", ".join(x for x in by if x != "-") or "no such row"
        shown = spread(gains, table.digits, "+")
        claims.append([f"{first}, better than {second}", said, shown, f"{sum(x > 0 for x in gains)} of {len(gains)}", verdict(gains, any(x != "-" for x in by))])  # fmt: skip
    return [*rows_of(*made), "", *rows_of(*claims)]


def page(text: str) -> str:
    """The page, its tables written anew."""
    for name, table in TABLES.items():
        text = filled(text, name, lines(table))
    return text


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))
    print(f"written to {PAGE}")


if __name__ == "__main__":
    main()

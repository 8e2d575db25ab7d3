"""Every table of the sources, their figures beside ours: writes the tables of ``docs/reports/the_papers_tables.md`` from the results.

Run with ``python -m benchmarks.papers_tables``. It trains nothing: a row has the figures of the run files of its name that are
there, one a seed, and a row without files says so. A claim is that one row is better than another; `benchmarks.verdicts` says when
it holds. It is "reproduced" or "not reproduced" where the source has both rows, else it "holds here" or "does not hold here".
"""

import json
import math
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.reports import REPORTS, filled, rows_of
from benchmarks.timing import RESULTS
from benchmarks.verdicts import LEVEL, Gains, Items, Verdict, gains, holm, still_rose, verdict

PAGE = REPORTS / "the_papers_tables.md"


class Row(NamedTuple):
    """A model of a table.

    name: of the model.
    files: of our runs under ``results/``, one a seed.
    theirs: the figures that the source prints, one for each of its data sets; none for a control that it lacks.
    figure: in the place of the table's, of which the files keep no items.
    fixed: the same in every run, which is no run of its own.
    """

    name: str
    files: str
    theirs: tuple[str, ...] = ()
    figure: Callable[[dict[str, Any]], float] | None = None
    fixed: bool = False


class Table(NamedTuple):
    """A table of a source.

    sets: the data sets of the source.
    ours: our data and figure.
    figure: from the contents of a run file.
    lower: True if a lower figure is the better.
    rows, claims: models, and pairs of their names of which the first is said to be better.
    digits: after the point.
    short: the rates come from trials of less than half a run, or from none, which the verdicts say.
    """

    sets: tuple[str, ...]
    ours: str
    figure: Callable[[dict[str, Any]], float]
    lower: bool
    rows: tuple[Row, ...]
    claims: tuple[tuple[str, str], ...]
    digits: int = 2
    short: bool = False


CRF, TRANSFORMER = "probabilistic transformer (dependency CRF)", "transformer"
RELATIVE, ALONE = "transformer, relative positions (control)", "each word by itself, no encoder (control)"


def metric(part: str, name: str, scale: float = 1.0) -> Callable[[dict[str, Any]], float]:
    """A figure of a part of the data."""
    return lambda run: scale * run["metrics"][part][name]


def trees(read: str) -> Callable[[dict[str, Any]], float]:
    """Attachment score of a way to read trees, in per cent; nan where a run did not read them so.

    Runs of the CRF before 27 November 2026 do not name their one layer, and those of transformers have the channels of all.
    """

    def figure(run: dict[str, Any]) -> float:
        own = run["attachment"]
        before = own.get(read.removeprefix("layer 1: "), math.nan) if run["settings"]["encoder"] == "crf" else math.nan
        return 100 * own.get(read, before)

    return figure


def read_trees(encoders: dict[str, tuple[str, int]]) -> tuple[Row, ...]:
    """The rows of trees in attention, layer by layer, and of baselines, which are the same in every run."""
    files = "tasks/masked-sentences-{}-12000-steps-seed-*.json"
    ways = ("mean of channels", "best channel", "any channel")
    rows = [
        Row(f"{name.format(layer)}: {way}", files.format(x), (), trees(f"layer {layer}: {way}, projective"))
        for x, (name, layers) in encoders.items()
        for layer in range(1, layers + 1)
        for way in ways
    ]
    baselines = (Row(name, files.format("crf"), (), trees(name), fixed=True) for name in ("right arc", "left arc", "random heads"))  # fmt: skip
    return (*baselines, *rows)


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
        short=True,
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
        short=True,
    ),
    "long range": Table(
        (), "ListOps, test accuracy in per cent", metric("test", "accuracy", 100), False,
        tuple(Row(name, f"long_range/listops-{name.replace(', ', '-').replace(' ', '-').lower()}-8000-steps-seed-*.json")
              for name in ("softmax, 8 heads", "softmax, 4 heads", "one Gaussian key, 4 heads", "one linked key, 4 heads", "MGK, 4 heads",
                           "linear, 8 heads", "MLK, 4 heads", "dependency CRF", "words")),
        (
            ("MGK, 4 heads", "softmax, 8 heads"), ("MGK, 4 heads", "one Gaussian key, 4 heads"), ("MGK, 4 heads", "one linked key, 4 heads"),
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
        ((TRANSFORMER, CRF), (RELATIVE, CRF)),
        short=True,
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
            Row("dependency CRF at a rate of 0.02 (control)", "tasks/earlier_rates/entities-crf-530-steps-rate-0.02-seed-*.json"),
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
        short=True,
    ),
    "COGS": Table(
        ("COGS",), "COGS, generalisation part, logical forms right to the letter in per cent",
        lambda run: 100 * run["forms"]["gen"]["exact_match"], False,
        (
            Row(CRF, "tasks/cogs-crf-6000-steps-seed-*.json", ("84.60 ± 2.06",)),
            Row("transformer, relative positions", "tasks/cogs-relative-6000-steps-seed-*.json", ("82.05 ± 2.18",)),
            Row("transformer, learned positions (control)", "tasks/cogs-transformer-6000-steps-seed-*.json"),
            *(Row(f"dependency CRF at a rate of {rate} (control)", f"tasks/rates/cogs-crf-6000-steps-rate-{rate}-seed-*.json") for rate in ("0.005", "0.01", "0.04")),
        ),
        (
            (CRF, "transformer, relative positions"), (CRF, "transformer, learned positions (control)"),
            *((f"dependency CRF at a rate of {rate} (control)", "transformer, relative positions") for rate in ("0.005", "0.01", "0.04")),
        ),
    ),
    "induced trees": Table(
        (), "UD English EWT, attachment without punctuation in per cent", trees("right arc"), False,
        read_trees({"crf": ("CRF", 1), "transformer": ("transformer, layer {}", 2), "relative": ("relative transformer, layer {}", 2)}),
        (
            *(("CRF: best channel", f"{name}transformer, layer {layer}: best channel") for name in ("", "relative ") for layer in (1, 2)),
            ("CRF: best channel", "right arc"), ("CRF: mean of channels", "right arc"),
        ),
    ),
}  # fmt: skip


SHAKESPEARE = "language_modelling/tinyshakespeare-{}-2000-steps-seed-*.json"
CHARACTERS = Table(
    (), "tiny Shakespeare, validation perplexity", lambda run: run["perplexity"], True,
    tuple(Row(name, SHAKESPEARE.format(name.replace(", ", "-").replace(" ", "-").lower()))
          for name in ("softmax, 8 heads", "softmax, 4 heads", "one Gaussian key, 4 heads", "MGK, 4 heads", "MGK, 8 heads", "shifted MGK, 8 heads", "linear, 8 heads", "MLK, 8 heads")),
    (
        ("MGK, 4 heads", "softmax, 4 heads"), ("MGK, 4 heads", "softmax, 8 heads"), ("one Gaussian key, 4 heads", "softmax, 8 heads"),
        ("MGK, 4 heads", "one Gaussian key, 4 heads"), ("shifted MGK, 8 heads", "MGK, 8 heads"),
        ("softmax, 8 heads", "linear, 8 heads"), ("MLK, 8 heads", "linear, 8 heads"),
    ),
    digits=3,
    short=True,
)  # fmt: skip


class Found(NamedTuple):
    """The runs of a row by seed, their figures, and the items of those that keep them."""

    runs: dict[int, dict[str, Any]]
    figures: dict[int, float]
    items: dict[int, Items]


def found_of(row: Row, table: Table) -> Found:
    """What has been run of a row."""
    figure = row.figure or table.figure
    read = (json.loads(path.read_text()) for path in sorted(RESULTS.glob(row.files)))
    runs = {run["settings"]["seed"]: run for run in read if not math.isnan(figure(run))}
    kept = {} if row.figure else {seed: Items.unpacked(run["items"]) for seed, run in runs.items() if "items" in run}
    return Found(runs, {seed: figure(run) for seed, run in runs.items()}, kept)


def spread(values: list[float], digits: int, sign: str = "") -> str:
    """Mean and standard deviation of the seeds; with ``sign="+"`` the sign of the mean is always shown."""
    if not values:
        return "not run yet"
    mean = f"{statistics.fmean(values):{sign}.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def rise_of(found: Found) -> tuple[float, bool]:
    """How much the validation score of the runs of a row got better over the last fifth, and whether that is too much."""
    runs = list(found.runs.values())
    return still_rose(runs, lower="perplexity" in runs[0]) if runs and "validation" in runs[0] else (0.0, False)


class Claim(NamedTuple):
    """A claim of a table, judged.

    first, second: rows of which the first is said to be better.
    gains, verdict: of the first over the second.
    """

    first: str
    second: str
    gains: Gains
    verdict: Verdict


def claims_of(table: Table, found: dict[str, Found]) -> list[Claim]:
    """The claims of a table, judged."""
    made = []
    for first, second in table.claims:
        rows = found[first], found[second]
        by = gains(*(row.figures for row in rows), [row.items for row in rows], table.lower)
        made.append(Claim(first, second, by, verdict(by, [rise_of(row)[1] for row in rows])))
    return made


def said(of: Verdict, printed: bool) -> str:
    """The word of a verdict; of our own, where the source has not ``printed`` both rows."""
    if printed:
        return {"holds": "reproduced", "does not hold": "not reproduced"}.get(of.word, of.word)
    return {"holds": "holds here", "does not hold": "does not hold here"}.get(of.word, of.word)


def number(text: str) -> float:
    """The mean that a source prints."""
    return float(text.split()[0])


def gain_of(first: str, second: str, lower: bool) -> str:
    """How much better the first of two printed figures is."""
    if "-" in (first, second):
        return "-"
    digits = len(first.split()[0].partition(".")[2])
    return f"{(number(second) - number(first)) * (1 if lower else -1):+.{digits}f}"


def lines(table: Table, corrected: dict[tuple[str, str], float] | None = None) -> list[str]:
    """The table and its claims, in Markdown; ``corrected`` has the p-values of its claims after `holm`."""
    found = {row.name: found_of(row, table) for row in table.rows}
    theirs = {row.name: row.theirs or ("-",) * len(table.sets) for row in table.rows}
    columns = ["rise at the end", "parameters", "seconds", "seeds"]
    made = [["model", *(f"theirs: {name}" for name in table.sets), f"ours: {table.ours}", *columns]]
    for row in table.rows:
        of = found[row.name]
        runs, values = list(of.runs.values()), list(of.figures.values())
        if row.fixed or not runs:
            shown = f"{values[0]:.{table.digits}f}" if values else "not run yet"
            made.append([row.name, *theirs[row.name], shown, "-", "-", "-", "-"])
            continue
        more, rose = rise_of(of)
        seconds = statistics.median(run.get("seconds", math.nan) for run in runs)
        cells = [f"{more:+.1%}{' **rose**' if rose else ''}", f"{runs[0].get('parameters', 0):,}", f"{seconds:,.0f}", str(len(runs))]  # fmt: skip
        made.append([row.name, *theirs[row.name], spread(values, table.digits), *cells])
    return [*rows_of(*made), "", *claim_lines(table, found, theirs, corrected)]


def claim_lines(
    table: Table,
    found: dict[str, Found],
    theirs: dict[str, tuple[str, ...]],
    corrected: dict[tuple[str, str], float] | None,
) -> list[str]:
    """The claims of a table, in Markdown."""
    head = ["claim", "theirs, by", f"ours, by, with {LEVEL:.0%} interval", "over", "p", "p after Holm", "verdict"]
    rows = [head]
    for claim in claims_of(table, found):
        pair = (claim.first, claim.second)
        by = [gain_of(*each, table.lower) for each in zip(theirs[claim.first], theirs[claim.second], strict=True)]
        printed = any(x != "-" for x in by)
        them = ", ".join(x for x in by if x != "-") or "no such row"
        rows.append([f"{claim.first}, better than {claim.second}", them, *judged(claim, table, printed, (corrected or {}).get(pair))])  # fmt: skip
    return rows_of(*rows)


def own_claims(table: Table) -> list[str]:
    """The claims of a table that no source has, corrected by themselves."""
    found = {row.name: found_of(row, table) for row in table.rows}
    corrected = corrected_p({"": claims_of(table, found)})[""]
    return claim_lines(table, found, {row.name: () for row in table.rows}, corrected)


def judged(claim: Claim, table: Table, printed: bool, corrected: float | None) -> list[str]:
    """The cells of a claim: difference and interval, what the interval covers, both p-values, verdict."""
    of, n, digits = claim.verdict, len(claim.gains.by_seed), table.digits
    if not n:
        return ["not run yet", "-", "-", "-", "not run yet"]
    interval = f" ({of.low:+.{digits}f} to {of.high:+.{digits}f})" if n > 1 else ""
    over = f"{n} seeds" + (" and items" if claim.gains.item_variance is not None else "")
    after = "-" if corrected is None else small(corrected)
    return [f"{of.mean:+.{digits}f}{interval}", over, small(of.p), after, said(of, printed) + (f": {of.more}" if of.more else "") + (" (short trials)" if table.short else "")]  # fmt: skip


def small(p: float) -> str:
    """A p-value with two digits behind the point, or as a bound."""
    return "-" if math.isnan(p) else "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0") if p < 0.1 else f"{p:.2f}".lstrip("0")  # fmt: skip


def everything() -> dict[str, list[Claim]]:
    """The claims of every table, judged."""
    return {name: claims_of(table, {row.name: found_of(row, table) for row in table.rows}) for name, table in TABLES.items()}  # fmt: skip


def corrected_p(all_claims: dict[str, list[Claim]]) -> dict[str, dict[tuple[str, str], float]]:
    """p-values after `holm` over all claims of the page, by table and pair."""
    flat = [(name, claim) for name, claims in all_claims.items() for claim in claims]
    found: dict[str, dict[tuple[str, str], float]] = {name: {} for name in all_claims}
    for (name, claim), p in zip(flat, holm([claim.verdict.p for _, claim in flat]), strict=True):
        found[name][claim.first, claim.second] = p
    return found


def summary(all_claims: dict[str, list[Claim]]) -> list[str]:
    """How many claims there are, and how many are decided."""
    corrected, rows = corrected_p(all_claims), [["table", "claims", "hold", "do not hold", "open", "still decided after Holm"]]  # fmt: skip
    words = ("holds", "does not hold", "open")
    totals = [0] * 5
    for name, claims in all_claims.items():
        count = [sum(claim.verdict.word == word for claim in claims) for word in words]
        kept = sum(claim.verdict.word in words[:2] and corrected[name][claim.first, claim.second] < 1 - LEVEL for claim in claims)  # fmt: skip
        numbers = [len(claims), *count, kept]
        totals = [a + b for a, b in zip(totals, numbers, strict=True)]
        rows.append([name, *map(str, numbers)])
    rows.append(["**all**", *map(str, totals)])
    chance = (1 - LEVEL) * totals[0]
    return [*rows_of(*rows), "", f"Were there no difference behind any of the {totals[0]} claims, {chance:.1f} of them would be decided by chance."]  # fmt: skip


def page(text: str) -> str:
    """The page, its tables written anew."""
    claims = everything()
    corrected = corrected_p(claims)
    for name, table in TABLES.items():
        text = filled(text, name, lines(table, corrected[name]))
    return filled(text, "claims", summary(claims))


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))
    print(f"written to {PAGE}")


if __name__ == "__main__":
    main()

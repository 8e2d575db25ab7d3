"""Which function makes the tables of which report: what ``python -m benchmarks.reports`` writes, and a test holds the pages to.

A benchmark has ``report_tables``, which reads the file that the benchmark writes. The page of the papers' tables is written by
`benchmarks.papers_tables`, which has a test of its own.
"""

import json
import statistics
from collections.abc import Callable
from functools import reduce
from operator import getitem

from benchmarks import (
    adaptation,
    agreement,
    calibration,
    claims,
    crf_bounds,
    crf_likelihoods,
    dependency_crf,
    efficiency,
    how_many_keys,
    known_heads,
    known_tags,
    language_modelling,
    long_range,
    memory,
    memory_classifier,
    mixture,
    next_click,
    papers_tables,
    posterior,
    real_transformers,
    redundancy,
    retrieval,
    segmentation,
    sinks,
    small_treebank,
    soft_kmeans,
    staircase,
    statements,
    tasks,
    text_classification,
    translation,
    tree_weights,
    wind_tunnels,
)
from benchmarks.evidence import domain_shift, in_context, label_shift, unseen, unseen_defaults
from benchmarks.reference import comparison
from benchmarks.reports import Tables, rows_of, whole_file
from benchmarks.tasks import FOLDER


def _language_models() -> Tables:
    texts = ("tinyshakespeare", "wikitext2")
    tables = {text: language_modelling.printed(whole_file(f"language_modelling_{text}")["rows"]) for text in texts}
    return {**tables, "claims by characters": papers_tables.own_claims(papers_tables.CHARACTERS)}


def _long_range() -> Tables:
    found = whole_file("long_range_listops")
    return {
        "accuracy": long_range.printed(found["rows"], found["baselines"]),
        "time and memory": long_range.speed_table(whole_file("long_range_speed")["rows"]),
    }


def _translation() -> Tables:
    trials = whole_file("translation/choice")["dev perplexity"]
    rates = rows_of(["learning rate", *trials], ["dev perplexity", *(f"{x:.2f}" for x in trials.values())])
    return {"BLEU": translation.printed(translation.table([0, 1, 2])), "rate": rates}


def _tasks() -> Tables:
    return {
        "tasks": tasks.printed(tasks.table(list(tasks.TASKS), None)),
        "steps": tasks.table_of_steps("masked sentences"),
        "steps, with repeats": tasks.table_of_steps("masked sentences", tasks.FOLDER / "with_repeats"),
    }


EARLIER = {  # runs that other tables do not have: files under ``results/tasks``, and where their figure stands
    "entities by words without their spelling, test F1": ("entities-{}-1060-steps", ("metrics", "test", "span_f1")),
    "entities at a rate of 0.02, test F1": ("earlier_rates/entities-{}-530-steps-rate-0.02", ("metrics", "test", "span_f1")),
    "the same, best dev F1": ("earlier_rates/entities-{}-530-steps-rate-0.02", ("span_f1",)),
    "the runs of the table, best dev F1": ("entities-{}-530-steps", ("span_f1",)),
    "COGS, 1,500 steps, all tags of a sentence of gen right": ("cogs-{}-1500-steps", ("metrics", "gen", "sentence_accuracy")),
    "masked words, WikiText-2, 1,500 steps, dev perplexity": ("masked-words-{}-1500-steps", ("perplexity",)),
    "masked sentences at a rate of 0.02, test perplexity": ("earlier_rates/masked-sentences-{}-12000-steps-rate-0.02", ("metrics", "test", "perplexity")),
}  # fmt: skip


def _earlier_runs() -> Tables:
    """Mean and standard deviation of the seeds, and their number, by encoder."""
    encoders = ("crf", "transformer", "relative")
    lines = []
    for name, (files, place) in EARLIER.items():
        cells = []
        for encoder in encoders:
            runs = [
                json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"{files.format(encoder)}-seed-*.json"))
            ]
            values = [float(reduce(getitem, place, run)) for run in runs]
            digits = 1 if values and values[0] > 1 else 3
            sd = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.{digits}f}{sd} ({len(values)})" if values else "")
        lines.append([name, *cells])
    return {"earlier runs": rows_of(["mean ± sd (seeds)", *encoders], *lines)}


MAKERS: tuple[tuple[str, Callable[[], Tables]], ...] = (
    ("crf_posterior.md", crf_likelihoods.report_tables),
    ("dependency_crf.md", _tasks),
    ("dependency_crf.md", _earlier_runs),
    ("dependency_crf.md", text_classification.report_tables),
    ("dependency_crf.md", crf_bounds.report_tables),
    ("dependency_crf.md", known_heads.report_tables),
    ("dependency_crf.md", known_tags.report_tables),
    ("dependency_crf.md", tree_weights.report_tables),
    ("domain_shift.md", domain_shift.report_tables),
    ("how_many_keys.md", how_many_keys.report_tables),
    ("in_context.md", in_context.report_tables),
    ("language_models.md", _language_models),
    ("long_range.md", _long_range),
    ("memory.md", lambda: dict(memory.tables(whole_file("memory")))),
    ("memory.md", efficiency.memory_tables),
    ("memory_classifier.md", memory_classifier.report_tables),
    ("performance.md", mixture.report_tables),
    ("performance.md", efficiency.report_tables),
    ("performance.md", lambda: {"redundancy": redundancy.printed(redundancy.means(redundancy.runs("wikitext2")))}),
    ("performance.md", dependency_crf.report_tables),
    ("posteriors.md", calibration.report_tables),
    ("posteriors.md", agreement.report_tables),
    ("posteriors.md", posterior.report_tables),
    ("real_transformers.md", real_transformers.report_tables),
    ("reference_posteriors.md", comparison.report_tables),
    ("retrieval.md", retrieval.report_tables),
    ("retrieval.md", soft_kmeans.report_tables),
    ("segmentation.md", segmentation.report_tables),
    ("segmentation.md", next_click.report_tables),
    ("seven_edits.md", staircase.report_tables),
    ("sinks.md", sinks.report_tables),
    ("small_treebanks.md", small_treebank.report_tables),
    ("statements_of_the_sources.md", lambda: {name: made() for name, made in statements.MADE.items()}),
    ("tagger_adaptation.md", adaptation.report_tables),
    ("translation.md", _translation),
    ("what_the_view_buys.md", label_shift.report_tables),
    ("what_the_view_buys.md", lambda: {"unseen choice": unseen_defaults.table(unseen_defaults.rows_kept())}),
    ("what_the_view_buys.md", lambda: dict(unseen.tables(unseen.rows_kept()))),
    ("wind_tunnels.md", wind_tunnels.report_tables),
    ("claims.md", lambda: {"claims": claims.lines()}),  # the last: it reads the other pages
)

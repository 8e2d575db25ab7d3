"""What README and the how-tos claim, and the figures that the claims stand on: the table of ``docs/reports/claims.md``.

Run with ``python -m benchmarks.reports``. A claim is a sentence of README, or of the first
paragraph of a how-to, that compares or counts (`claims_in`). Each has its row here, or stands among those that are none, with the
reason; ``tests/benchmarks/test_claims.py`` fails for one that has neither. Figures are cells of tables that the reports take from
files, so that none is typed here.
"""

import re
from typing import NamedTuple

from benchmarks.real_transformers import BEATEN, ENCODER, MODEL
from benchmarks.reports import END, REPORTS, rows_of

ROOT = REPORTS.parents[1]
COMPARES = re.compile(
    r"\b(better|best|worse|worst|ahead|behind|beats?|loses?|lost|wins?|faster|slower|quicker|cheaper|as (well|good|fast) as|level with"
    r"|measured|measurements?|hundredths?|thousandths?|nothing worth|change little|retrieves|covers?|is open|are not English)\b"
)
COUNTS = re.compile(r"\d")
NO_COUNT = re.compile(
    r"`[^`]*`|\bsections? [\d.]+|\bPython 3\.\d+|\barXiv [\d.]+|\b(19|20)\d\d\b|SHA-256|UTF-8|Apache-2\.0|\blecture \d+|\bEECS [\d/A-Z]+|N\(0, σ²I\)|1 / σ²"
)


class Cell(NamedTuple):
    """A figure of a table of a report: the table, the first cells of the row, and the head of the column."""

    report: str
    table: str
    row: tuple[str, ...]
    column: str


class Statement(NamedTuple):
    """A claim, and what it stands on.

    page: where it is made.
    words: of it, enough to find it.
    setting: in which it was measured.
    cells: its figures.
    file: under ``benchmarks/results``, or the test that holds it.
    """

    page: str
    words: str
    setting: str
    cells: tuple[Cell, ...]
    file: str


def _second_key(table: str, rows: tuple[str, str]) -> Cell:
    return Cell("the_papers_tables.md", table, (f"{rows[0]}, better than {rows[1]}",), "verdict")


def _genre(name: str) -> Cell:
    return Cell("tagger_adaptation.md", "genres", (name, "map"), "accuracy")


def _covered(data: str, column: str) -> Cell:
    return Cell("what_the_view_buys.md", "intervals", (data, "memory, ours, learned"), column)


def _density(name: str, other: str, column: str) -> Cell:
    return Cell("real_transformers.md", "beaten", (name, other), column)


STATEMENTS = (
    Statement(
        "README.md", "has a second key been shown to pay",
        "MGK in half the heads against one Gaussian key in as many (on long range with the same prior and precision), small models, an interval over seeds",
        (
            _second_key("language models", ("MGK, 4 heads", "one Gaussian key, 4 heads (control)")),
            _second_key("translation", ("MGK, half the heads", "one Gaussian key, half the heads (control)")),
            _second_key("long range", ("MGK, 4 heads", "one linked key, 4 heads")),
        ),
        "language_modelling, translation, long_range",
    ),
    Statement(
        "README.md", "Ten sentences for `adapt` brought nothing worth having",
        "CRF tagger of EWT without reviews or without email, ten sentences of the genre, ten draws: points of accuracy",
        (_genre("reviews"), _genre("email")), "adaptation",
    ),
    Statement(
        "README.md", "Of 100 stored Fashion images",
        "β that is best for the corruption, ten seeds of which images are stored and erased",
        (Cell("retrieval.md", "corruptions", ("random half erased",), "Fashion, best β: mean (worst seed)"),), "retrieval.json",
    ),
    Statement("README.md", "the best denoiser in cases that have a closed form", "posterior mean by hand", (), "tests/models/test_denoising.py"),
    Statement("docs/howto/denoise.md", "is best estimated, in squared error, by its posterior mean", "a theorem", (), "tests/models/test_denoising.py"),
    Statement(
        "README.md", "they are not English syntax", "masked words of EWT: best of four channels, less right arcs, points of attachment",
        (Cell("the_papers_tables.md", "induced trees", ("CRF: best channel, better than right arc",), "ours, by, with 95% interval"),), "tasks",
    ),
    Statement(
        "README.md", "As it comes its evidence finds unseen classes", "AUROC of known against unseen classes, ten seeds: defaults, and 5-NN on the same features",
        tuple(Cell("what_the_view_buys.md", "unseen against 5-NN", (data,), column) for data in ("banking77 MiniLM", "digits", "fashion against digits") for column in ("defaults less 5-NN", "95 % interval")),
        "evidence_unseen.json",
    ),
    Statement(
        "README.md", "on short texts as counts of words", "the same of Banking77 by TF-IDF and singular vectors: softmax of a tuned regression, and defaults",
        tuple(Cell("what_the_view_buys.md", "unseen", (row,), "banking77: AUROC") for row in ("largest softmax", "ours, defaults")),
        "evidence_unseen.json",
    ),
    Statement(
        "README.md", "intervals of a changed prevalence", "share of all classes whose share the interval holds, ten seeds; below it, of classes that the batch has",
        (
            _covered("digits", "Dirichlet(1): all"), _covered("banking77, 20-shot", "Dirichlet(1): all"), _covered("banking77, 5-shot", "Dirichlet(1): all"),
            _covered("banking77, 20-shot", "Dirichlet(0.1): all"), _covered("banking77, 20-shot", "present"), _covered("banking77, 5-shot", "present"),
        ),
        "evidence_label_shift.json",
    ),
    Statement(
        "docs/howto/segment_a_photograph.md", "clicks there change little",
        "mean IoU of sixteen photographs after 2 and 10 clicks, each answer the prior of the next, as on the page: clicks on the ring, and on the largest error",
        tuple(Cell("segmentation.md", "next click", ("middles", "with previous", rule), n) for rule in ("suggest_click", "largest error (sees the truth)") for n in ("2", "10")),
        "next_click.json",
    ),
    Statement(
        "README.md", "one full Gaussian is a better density of held-out queries",
        "72 heads of MiniLM and 36 of SmolLM2-135M: all fitted on four texts, log density of the queries of four others, errors over these",
        (
            *(_density("P a number", "one Gaussian, full", column) for column in ("in heads of 72", "in heads of 36")),
            *(_density(*pair, f"{model}: nats a query") for pair in BEATEN[:3] for model in (ENCODER, MODEL)),
        ),
        "real_transformers.json",
    ),
    Statement("README.md", "what a published layer loses of it is a number of nats", "`results.nats_lost`", (), "tests/contract/test_memories.py"),
)  # fmt: skip
NO_CLAIMS = {  # sentences that `claims_in` takes for claims, and why they are none
    ("README.md", "`make bench` prints cost ratios"): "says what a command prints",
    ("README.md", "and where it loses"): "names a report",
    ("README.md", "what each layer loses"): "names a report",
    ("docs/howto/read_a_verdict.md", "names the worst variable of every check"): "says what a function prints",
}


def paragraphs(text: str) -> list[str]:
    """The prose of a page: no code, tables, headings or pictures, links by their text."""
    for pattern in (r"```.*?```", r"(?m)^\|.*$", r"(?m)^#.*$", r"!\[.*?\]\(.*?\)"):
        text = re.sub(pattern, "\n\n" if "`" in pattern else "", text, flags=re.DOTALL if "(?m)" not in pattern else 0)
    text = re.sub(r"\[(.*?)\]\([^)]*\)", r"\1", text, flags=re.DOTALL)
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def claims_in(text: str) -> list[str]:
    """The sentences that compare or count."""
    sentences = re.split(r"(?<=[.!?:;])\s+(?=[A-Za-z`*(])", text)
    return [x for x in sentences if COMPARES.search(x) or COUNTS.search(NO_COUNT.sub("", x))]


def pages() -> dict[str, list[str]]:
    """The claims of README and of the first paragraph of each how-to, by page."""
    found = {"README.md": paragraphs((ROOT / "README.md").read_text())}
    for path in sorted((ROOT / "docs/howto").glob("*.md")):
        found[path.relative_to(ROOT).as_posix()] = paragraphs(path.read_text())[:1]
    return {page: [x for part in parts for x in claims_in(part)] for page, parts in found.items()}


def figure(cell: Cell) -> str:
    """What a cell of a report's table says.

    Raises
    ------
    ValueError
        No such table, or not one such row and column.
    """
    text = (REPORTS / cell.report).read_text()
    _, mark, rest = text.partition(f"<!-- table: {cell.table} -->")
    table = [line.strip() for line in rest.partition(END)[0].split("\n") if line.startswith("|")]
    rows = [[x.strip() for x in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]
    for head, block in _blocks(rows):
        own = [row for row in block if tuple(row[: len(cell.row)]) == cell.row]
        if mark and len(own) == 1 and cell.column in head:
            return own[0][head.index(cell.column)]
    raise ValueError(f"{cell.report} has no {cell}; say which table, row and column")


def _blocks(rows: list[list[str]]) -> list[tuple[list[str], list[list[str]]]]:
    """The tables between two marks, each a head and its rows."""
    heads = [i - 1 for i, row in enumerate(rows) if set("".join(row)) <= set("- ")]
    ends = [*heads[1:], len(rows)] if heads else []
    return [(rows[start], rows[start + 2 : end]) for start, end in zip(heads, ends, strict=True)]


def lines() -> list[str]:
    """The table of claims."""
    claims, made = pages(), []
    for of in STATEMENTS:
        sentence = next((x for x in claims[of.page] if of.words in x), None)
        if sentence is None:
            raise ValueError(f"{of.page} does not say {of.words!r}; mend the row of the claim, or remove it")
        figures = "; ".join(f"{', '.join(cell.row)}, {cell.column}: {figure(cell)}" for cell in of.cells) or "exact"
        reports = ", ".join(f"[{name.removesuffix('.md').replace('_', ' ')}]({name})" for name in dict.fromkeys(cell.report for cell in of.cells))  # fmt: skip
        made.append([of.page.removeprefix("docs/howto/"), sentence, of.setting, figures, f"`{of.file}`{' · ' if reports else ''}{reports}"])  # fmt: skip
    return rows_of(["page", "sentence", "setting", "figures", "file · report"], *made)

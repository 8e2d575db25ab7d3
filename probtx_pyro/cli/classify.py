"""Classify the rows of a table by a memory of labelled rows, and say which rows are like nothing in it.

  probtx classify train.csv --label species new.csv --out classes.csv
  probtx classify train.csv --label species new.csv --out classes.csv --units 1 --metric full --false-alarm 0.01
  probtx classify train.csv --label species new.csv --out classes.csv --adapt prevalence
  probtx classify train.csv --label species new.csv --out classes.csv --adapt auto

Texts, by a run of probtx train classifier in the place of the labelled rows (a text a line in; CSV out, a row for every
line, blank ones too: its number, its category, the probability of that, and the text):

  probtx classify runs/intents questions.txt --out classes.csv

CSV or TSV with a header in, every column but the label numbers, or true and false; new rows need the same columns, in
any order. CSV out, a line for each new row: its class, the probability of the class, the log evidence of the row, and
whether it is unlike the labelled rows, which happens to rows of the same kind at the rate of false alarms; that cell is
empty where there are too few labelled rows to tell (19 are needed at the rate of .05). Where the new rows have labels,
the share that is right is printed. As some spreadsheets write it:

  probtx classify train.csv --label species new.csv --out classes.csv --delimiter ';' --decimal ,

Tables need scikit-learn: pip install -e '.[tour]' in the folder of the repository
"""

import argparse
import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _texts as texts

if TYPE_CHECKING:
    import numpy as np

SUMMARY = "classes of the rows of a table, by a memory of labelled rows, with evidence"
METRICS = ("scalar", "diagonal", "full")


def units(text: str) -> int | str:
    """Read a number of units, or a word.

    >>> units("3"), units("all"), units("auto")
    (3, 'all', 'auto')
    """
    return text if text in ("all", "auto") else options.count(text)


def delimiter(text: str) -> str:
    r"""Read a character that stands between columns.

    >>> delimiter(";"), delimiter("tab")
    (';', '\t')
    """
    found = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(found) != 1 or found in '\r\n"':
        raise argparse.ArgumentTypeError(f"{text!r} is no delimiter; give one character, or tab")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx classify``."""
    add = parser.add_argument
    add("train", type=Path, metavar="TRAIN", help="labelled rows, .csv or .tsv (plain or .gz); or folder of a run")
    add("new", type=Path, metavar="NEW", help="rows, or lines of text, to classify; - is standard input")
    add("--label", metavar="COLUMN", help="column of the labels in TRAIN")
    add("--out", required=True, type=Path, metavar="FILE", help="CSV with the classes; - is standard output")
    add("--skip", action="append", default=[], metavar="COLUMN", help="a column that is no feature")
    add(
        "--incomplete",
        action="store_true",
        help="pass over rows without a number or label in TRAIN; those in NEW get no answer",
    )
    add("--delimiter", type=delimiter, metavar="C", help="between columns: , ; tab (default: by the ending)")
    add("--decimal", choices=(".", ","), default=".", help="what stands before decimals (default .)")
    add(
        "--units",
        type=units,
        default="auto",
        metavar="N",
        help="units a class, at most; all: every row; auto (default): all up to 5,000 rows, else 40",
    )
    add(
        "--metric",
        choices=METRICS,
        default="scalar",
        help="what units share (default scalar; full, with --units 1, answers better on small tables)",
    )
    add("--no-scale", action="store_true", help="take the numbers as they are, not in units of spread")
    add(
        "--false-alarm",
        type=options.real,
        default=0.05,
        metavar="RATE",
        help="rate of rows wrongly called unlike (0.05)",
    )
    add(
        "--adapt",
        metavar="NAMES",
        help="what adapts to new rows: prevalence,shift,scale,metric,keys, or auto, by evidence",
    )
    options.add_shared(parser, "--seed", "--threads")
    names = {name: f"--{name}" for name in ("skip", "incomplete", "delimiter", "decimal")}
    names |= {"false_alarm_rate": "--false-alarm", "move": "--adapt", "units_per_class": "--units"}
    parser.set_defaults(names=names)


def run(arguments: argparse.Namespace) -> None:
    """Read, learn, adapt where asked to, classify and write."""
    out = options.out_file(arguments.out, arguments.train, arguments.new)
    if str(arguments.train) == str(arguments.new) == "-":
        raise ValueError("TRAIN and NEW are both standard input, which is read once; give a file")
    if arguments.train.is_dir():
        return _texts(arguments, out)
    if arguments.label is None:
        raise ValueError("--label is missing; name the column of the labels")
    import warnings

    with options.imports():
        import numpy as np

        from probtx_pyro import apps
        from probtx_pyro.data import read_table

        make = apps.MemoryClassifier  # says what to install where scikit-learn is missing
        from sklearn.preprocessing import StandardScaler

    how = {name: getattr(arguments, name) for name in ("delimiter", "decimal", "incomplete")}
    train: Any = read_table(arguments.train, arguments.label, skip=arguments.skip, **how)
    new = read_table(arguments.new, arguments.label, features=train.features, **how)
    said = options.beside(out)
    kept, whole = (np.isfinite(table.numbers).all(1) for table in (train, new))
    kept &= train.labels != ""
    if arguments.incomplete:
        print(f"incomplete: {(~kept).sum()} rows of {arguments.train}, {(~whole).sum()} of {arguments.new}", file=said)
    x, labels, asked = train.numbers[kept], train.labels[kept], new.numbers[whole]
    _require_rows(arguments.train, np.flatnonzero(kept) + 1, x, labels, train.features, whole)
    if not arguments.no_scale:
        scaler, largest = StandardScaler().fit(x), np.finfo(x.dtype).max
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is as far as numbers go
            x, asked = scaler.transform(x), scaler.transform(asked).clip(-largest, largest)
    classifier: Any = make(arguments.units, metric=arguments.metric, random_state=arguments.seed)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        classifier.fit(x, labels)
        if arguments.adapt is not None:
            named = None if arguments.adapt == "auto" else [name.strip() for name in arguments.adapt.split(",")]
            classifier = classifier.adapt(asked, named)
            print(f"moved: {', '.join(classifier.moved_) or 'nothing'}", file=said)
    for warning in warned:
        options.warn(f"warning: {warning.message}")
    rate = arguments.false_alarm
    probabilities, evidence = classifier.predict_proba(asked), classifier.score_samples(asked)
    told = not 0 < rate < classifier.lowest_rate_
    unlike = classifier.reject(asked, rate) if told else [None] * len(asked)
    classes = classifier.classes_[probabilities.argmax(1)]
    found = zip(classes, probabilities.max(1), evidence, unlike, strict=True)
    rows = (
        [name, f"{p:.6g}", f"{log:.6g}", "" if odd is None else "yes" if odd else "no"] for name, p, log, odd in found
    )
    answers = (next(rows) if there else [""] * 4 for there in whole)
    options.write(out, table(["class", "probability", "log_evidence", "seen_nothing_like_it"], answers))
    count = sum(unlike) if told else "which of them are"
    print(f"{len(classes)} rows, {count} unlike the labelled rows{'' if told else ', nobody can tell'}", file=said)
    if new.labels is not None and (known := new.labels[whole] != "").any():
        print(f"right: {(classes == new.labels[whole])[known].mean():.3f} of {int(known.sum())}", file=said)


def _require_rows(
    path: Path,
    rows: "np.ndarray",
    numbers: "np.ndarray",
    labels: "np.ndarray",
    features: tuple[str, ...],
    whole: "np.ndarray",
) -> None:
    """Refuse labelled rows that no memory can be made of, and new ones of which none can be classified."""
    from probtx_pyro.apps.memory._classifier import check_spread
    from probtx_pyro.data.files import named

    counts = Counter(labels.tolist())
    if max(counts.values(), default=0) < 2:
        raise ValueError(
            f"{named(path)}: no class has two complete rows ({counts.total()} rows, {len(counts)} classes); give more"
        )
    if (numbers == numbers[0]).all():
        raise ValueError(f"all rows of {named(path)} are equal; give two that differ, or more")
    check_spread(numbers, rows, features, named(path))
    if len(counts) == 1:
        options.warn(
            f"warning: all rows of {named(path)} are of the class {next(iter(counts))}, and so will be all answers"
        )
    if not whole.any():
        raise ValueError("no new row is complete; fill some")


def _texts(arguments: argparse.Namespace, out: Path | None) -> None:
    """Classify lines of text by the classifier of a run."""
    for name in ("label", "skip", "adapt", "incomplete", "delimiter"):
        if getattr(arguments, name):
            raise ValueError(f"--{name} means nothing to a run of probtx train classifier; leave it out")
    from probtx_pyro.apps import classify_texts
    from probtx_pyro.data import tokenize

    loaded = texts.load(arguments.train, "cpu", "TextClassifier")
    lines = texts.lines(arguments.new)
    (labels,) = loaded.labels
    with texts.named_rows(arguments.new):
        found = classify_texts(loaded.model, loaded.vocabulary, labels, lines)
    best = ([guesses[0].label, f"{guesses[0].probability:.6g}"] if guesses else ["", ""] for guesses in found)
    rows = ([number, *answer, line] for number, (answer, line) in enumerate(zip(best, lines, strict=True), 1))
    options.write(out, table(["line", "class", "probability", "text"], rows))
    texts.say_unfinished(arguments.train, loaded)
    known = frozenset(loaded.vocabulary.tokens)
    texts.say_unknown(loaded, (word for line in lines for word in tokenize(line, known)), arguments.new)


def table(header: list[str], rows: Iterable[Sequence[object]]) -> str:
    """Return CSV.

    Parameters
    ----------
    header
        Names of the columns.
    rows
        Cells of each row.
    """
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return made.getvalue()

"""Classify the rows of a table by a memory of labelled rows, and say which rows are like nothing in it.

  probtx classify train.csv --label species new.csv --out classes.csv
  probtx classify train.csv --label species new.csv --out classes.csv --units all --metric scalar --false-alarm 0.01
  probtx classify train.csv --label species new.csv --out classes.csv --adapt prevalence
  probtx classify train.csv --label species new.csv --out classes.csv --adapt auto

Texts, by a run of probtx train classifier in the place of the labelled rows (a line for each text in; its category and the probability out):

  probtx classify runs/intents questions.txt --out classes.csv

CSV or TSV with a header in, every column but the label a number; new rows need the same columns, in any order. CSV out, a line
for each new row: its class, the probability of the class, the log evidence of the row, and whether it is unlike the labelled rows,
which happens to rows of the same kind at the rate of false alarms; that cell is empty where there are too few labelled rows to tell (19 are
needed at the rate of .05). Where the new rows have labels, the share that is right is printed.
"""

import argparse
from pathlib import Path
from typing import Any

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _texts as texts

SUMMARY = "classes of the rows of a table, by a memory of labelled rows, with evidence"
METRICS = ("full", "diagonal", "scalar")


def units(text: str) -> int | str:
    """Read a number of units, or the word all.

    >>> units("3"), units("all")
    (3, 'all')
    """
    return text if text == "all" else options.count(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx classify``."""
    parser.add_argument(
        "train", type=Path, metavar="TRAIN", help="labelled rows, .csv or .tsv, plain or .gz; or folder of a run"
    )
    parser.add_argument(
        "new", type=Path, metavar="NEW", help="rows, or lines of text, to classify; of text, - is standard input"
    )
    parser.add_argument("--label", metavar="COLUMN", help="column of the labels in TRAIN")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="CSV with the classes")
    parser.add_argument("--skip", action="append", default=[], metavar="COLUMN", help="a column that is no feature")
    parser.add_argument("--units", type=units, default=1, metavar="N", help="units a class (default 1), or all rows")
    parser.add_argument("--metric", choices=METRICS, default="full", help="what units share (default full)")
    parser.add_argument("--no-scale", action="store_true", help="take the numbers as they are, not in units of spread")
    parser.add_argument(
        "--false-alarm", type=float, default=0.05, metavar="RATE", help="rate of rows wrongly called unlike (0.05)"
    )
    parser.add_argument(
        "--adapt",
        metavar="NAMES",
        help="what adapts to the new rows: prevalence,shift,scale,metric,keys, or auto, by their evidence (default nothing)",
    )
    options.add_shared(parser, "--seed", "--threads")
    parser.set_defaults(names={"false_alarm_rate": "--false-alarm", "move": "--adapt", "units_per_class": "--units"})


def run(arguments: argparse.Namespace) -> None:
    """Read, learn, adapt where asked to, classify and write."""
    for source in (arguments.train, arguments.new):
        if arguments.out.resolve() == source.resolve():
            raise ValueError(f"{arguments.out} is a file to read; choose another name")
    if arguments.train.is_dir():
        return _texts(arguments)
    if arguments.label is None:
        raise ValueError("--label is missing; name the column of the labels")
    import warnings

    import numpy as np

    from probtx_pyro import apps
    from probtx_pyro.data import read_table

    make = apps.MemoryClassifier  # says what to install where scikit-learn is missing
    from sklearn.preprocessing import StandardScaler

    train = read_table(arguments.train, arguments.label, skip=arguments.skip)
    new = read_table(arguments.new, arguments.label, features=train.features)
    x, asked = train.numbers, new.numbers
    _check(arguments.train, train)
    if not arguments.no_scale:
        scaler, largest = StandardScaler().fit(x), np.finfo(x.dtype).max
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is as far as numbers go
            x, asked = scaler.transform(x), scaler.transform(asked).clip(-largest, largest)
    classifier: Any = make(arguments.units, metric=arguments.metric, random_state=arguments.seed)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        classifier.fit(x, train.labels)
        if arguments.adapt is not None:
            named = None if arguments.adapt == "auto" else [name.strip() for name in arguments.adapt.split(",")]
            classifier = classifier.adapt(asked, named)
            print(f"moved: {', '.join(classifier.moved_) or 'nothing'}")
    for warning in warned:
        options.warn(f"warning: {warning.message}")
    rate = arguments.false_alarm
    probabilities, evidence = classifier.predict_proba(asked), classifier.score_samples(asked)
    told = not 0 < rate < classifier.lowest_rate_
    unlike = classifier.reject(asked, rate) if told else [None] * len(asked)
    classes = classifier.classes_[probabilities.argmax(1)]
    write(arguments.out, zip(classes, probabilities.max(1), evidence, unlike, strict=True))
    print(arguments.out)
    said = (
        f"{sum(unlike)} unlike the labelled rows"
        if told
        else "which of them are unlike the labelled rows, nobody can tell"
    )
    print(f"{len(classes)} rows, {said}")
    if new.labels is not None and (known := new.labels != "").any():
        print(f"right: {(classes == new.labels)[known].mean():.3f} of {int(known.sum())}")


def _check(path: Path, train: Any) -> None:
    """Refuse labelled rows that no memory can be made of, and say where they are of one class."""
    import numpy as np

    from probtx_pyro.apps.memory._checks import check_spread

    if len(train.numbers) < 2:
        raise ValueError(f"{path} has one row; give two that differ, or more")
    if (train.numbers == train.numbers[0]).all():
        raise ValueError(f"all rows of {path} are equal; give two that differ, or more")
    check_spread(train.numbers, np.arange(1, 1 + len(train.numbers)), train.features, str(path))
    if len(set(train.labels)) == 1:
        options.warn(f"warning: all rows of {path} have the label {train.labels[0]}, which every new row gets")


def _texts(arguments: argparse.Namespace) -> None:
    """Classify lines of text by the classifier of a run."""
    for name in ("label", "skip", "adapt"):
        if getattr(arguments, name):
            raise ValueError(f"--{name} means nothing to a run of probtx train classifier; leave it out")
    import csv

    from probtx_pyro.apps import classify_texts
    from probtx_pyro.data import tokenize

    loaded = texts.load(arguments.train, "cpu", "TextClassifier")
    lines = texts.lines(arguments.new)
    (labels,) = loaded.labels
    found = classify_texts(loaded.model, loaded.vocabulary, labels, lines)
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["class", "probability"])
        writer.writerows([best.label, f"{best.probability:.6g}"] for best, *_ in found)
    print(arguments.out)
    known = frozenset(loaded.vocabulary.tokens)
    texts.say_unknown(loaded, (word for line in lines for word in tokenize(line, known)), arguments.new)


def write(path: Path, rows: Any) -> None:
    """Write class, probability, log evidence and "yes" or "no" a line.

    Parameters
    ----------
    path
        The file.
    rows
        Class, probability, log evidence, and a boolean of each row, None where nobody knows.
    """
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["class", "probability", "log_evidence", "seen_nothing_like_it"])
        for name, probability, evidence, unlike in rows:
            said = "" if unlike is None else "yes" if unlike else "no"
            writer.writerow([name, f"{probability:.6g}", f"{evidence:.6g}", said])

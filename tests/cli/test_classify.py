"""``probtx classify``: from labelled rows and new rows to classes, probabilities, evidence and a flag."""

import csv

import numpy as np
import pytest

from probtx_pyro import cli
from probtx_pyro.apps import MemoryClassifier
from probtx_pyro.data import read_table

NEAR = [(0.1 * i, 0.2 * (i % 3)) for i in range(12)]


@pytest.fixture
def files(tmp_path):
    rows = [f"{x},{y},left" for x, y in NEAR] + [f"{x + 9},{y},right" for x, y in NEAR]
    (tmp_path / "train.csv").write_text("\n".join(["a,b,side", *rows]) + "\n")
    (tmp_path / "new.csv").write_text("name,b,a,side\nu,0.2,9.5,right\nv,0.1,0.4,left\nw,500,0.4,\n")
    return tmp_path


def words(folder, *more):
    return ["classify", str(folder / "train.csv"), str(folder / "new.csv"), "--label", "side", "--out", str(folder / "out.csv"), *more]  # fmt: skip


def test_it_is_the_classifier_on_files(files, capsys):
    assert cli.main(words(files, "--no-scale", "--metric", "scalar")) == 0
    with (files / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    train = read_table(files / "train.csv", "side")
    assert train.features == ("a", "b")
    classifier = MemoryClassifier(metric="scalar", random_state=0).fit(train.numbers, train.labels)
    asked = np.array([[9.5, 0.2], [0.4, 0.1], [0.4, 500.0]])
    assert [row["class"] for row in found] == classifier.predict(asked).tolist()
    # six digits are written
    np.testing.assert_allclose(
        [float(row["probability"]) for row in found], classifier.predict_proba(asked).max(1), rtol=1e-5
    )
    np.testing.assert_allclose(
        [float(row["log_evidence"]) for row in found], classifier.score_samples(asked), rtol=1e-5
    )
    assert [row["seen_nothing_like_it"] for row in found] == ["no", "no", "yes"]
    assert capsys.readouterr().out.splitlines()[1:] == ["3 rows, 1 unlike the labelled rows", "right: 1.000 of 2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [("--units", "all"), ("--adapt", "prevalence,shift"), ("--adapt", "auto"), ("--false-alarm", "0")]
)
def test_options(files, more):
    assert cli.main(words(files, *more)) == 0
    assert (files / "out.csv").read_text().count("\n") == 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--label", "sides"), "train.csv, line 1: the header has no column sides"),
        (("--skip", "c"), "the header has no column c; name one of ['a', 'b', 'side']"),
        (("--out", "new.csv"), "is the file to read; choose another name"),
    ],
)
def test_bad_input_is_one_line(files, more, message, capsys, monkeypatch):
    monkeypatch.chdir(files)
    assert cli.main(words(files, *more)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--adapt", "colour"), "--adapt must name some of prevalence, shift, scale, metric, keys, not ['colour']"),
        (("--false-alarm", "2"), "--false-alarm must be from 0 to below 1"),
    ],
)
def test_what_the_classifier_refuses_is_said_in_options(files, more, message, capsys):
    assert cli.main(words(files, *more)) == 2
    assert message in capsys.readouterr().err

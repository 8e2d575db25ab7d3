"""``probtx classify``: from labelled rows and new rows to classes, probabilities, evidence and a flag."""

import csv
import io
from pathlib import Path

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
    (tmp_path / "new.csv").write_text("name,b,a,side\nu,0.2,9.5,right\nv,0.2,0.4,left\nw,500,0.4,\n")
    return tmp_path


def words(folder, *more):
    return [
        "classify",
        str(folder / "train.csv"),
        str(folder / "new.csv"),
        "--label",
        "side",
        "--out",
        str(folder / "out.csv"),
        *more,
    ]


def test_it_is_the_classifier_on_files(files, capsys):
    assert cli.main(words(files, "--no-scale", "--metric", "scalar")) == 0
    with (files / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    train = read_table(files / "train.csv", "side")
    assert train.features == ("a", "b")
    classifier = MemoryClassifier(metric="scalar", random_state=0).fit(train.numbers, train.labels)
    asked = np.array([[9.5, 0.2], [0.4, 0.2], [0.4, 500.0]])
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


def answers(path):
    with path.open(newline="") as file:
        return [tuple(row.values()) for row in csv.DictReader(file)]


def test_standard_input_and_output_are_tables_and_nothing_else_is_on_it(files, capsys, monkeypatch):
    assert cli.main(words(files)) == 0
    capsys.readouterr()
    train, new = str(files / "train.csv"), str(files / "new.csv")
    for which, given in (("new", new), ("train", train)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(given).read_bytes())))
        sources = [train, "-"] if which == "new" else ["-", new]
        assert cli.main(["classify", *sources, "--label", "side", "--out", "-"]) == 0
        shown = capsys.readouterr()
        assert shown.out == (files / "out.csv").read_text()
        assert shown.err.splitlines() == ["3 rows, 1 unlike the labelled rows", "right: 1.000 of 2"]
    assert cli.main(["classify", "-", "-", "--label", "side", "--out", "-"]) == 2
    assert "TRAIN and NEW are both standard input, which is read once; give a file" in capsys.readouterr().err


def test_semicolons_and_decimal_commas_are_another_writing_of_the_same_table(files):
    assert cli.main(words(files)) == 0
    expected = answers(files / "out.csv")
    for name in ("train.csv", "new.csv"):
        text = (files / name).read_text()
        (files / name).write_text(text.replace(",", ";").replace(".", ","))
    assert cli.main(words(files, "--delimiter", ";", "--decimal", ",")) == 0
    assert answers(files / "out.csv") == expected
    for name in ("train.csv", "new.csv"):
        (files / name).write_text((files / name).read_text().replace(";", "\t"))
    assert cli.main(words(files, "--delimiter", "tab", "--decimal", ",")) == 0
    assert answers(files / "out.csv") == expected


def test_incomplete_rows_are_passed_over_in_train_and_have_an_empty_answer_in_new(files, capsys):
    assert cli.main(words(files)) == 0
    expected = answers(files / "out.csv")
    train, new = ((files / name).read_text() for name in ("train.csv", "new.csv"))
    (files / "train.csv").write_text(train + "NA,1,left\n2,3,\n,,right\n")
    lines = new.splitlines()
    (files / "new.csv").write_text("\n".join([*lines[:2], "x,,1,left", *lines[2:], "y,nan,NaN,"]) + "\n")
    capsys.readouterr()
    assert cli.main(words(files)) == 2
    assert "(--incomplete)" in capsys.readouterr().err
    assert cli.main(words(files, "--incomplete")) == 0
    nothing = ("",) * 4
    assert answers(files / "out.csv") == [expected[0], nothing, *expected[1:], nothing]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"incomplete: 3 rows of {files / 'train.csv'}, 2 of {files / 'new.csv'}"
    assert shown[2:] == ["3 rows, 1 unlike the labelled rows", "right: 1.000 of 2"]
    (files / "new.csv").write_text("a,b\n,\n")
    assert cli.main(words(files, "--incomplete")) == 2
    assert "no new row is complete; fill some" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("1,2,left\n", "train.csv: no class has two complete rows (1 rows, 1 classes); give more"),
        ("1,2,left\n3,4,right\n5,6,top\n", "complete rows (3 rows, 3 classes); give more"),
    ],
)
def test_rows_that_say_nothing_of_a_spread_are_refused(files, train, said, capsys):
    (files / "train.csv").write_text("a,b,side\n" + train)
    assert cli.main(words(files)) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_single_class_is_warned_of(files, capsys):
    (files / "train.csv").write_text("a,b,side\n" + "\n".join(f"{x},{y},None" for x, y in NEAR))  # a text like another
    assert cli.main(words(files)) == 0
    assert (
        f"all rows of {files / 'train.csv'} are of the class None, and so will be all answers"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("text", ["", ";;", "\n", '"'])
def test_a_delimiter_is_one_character(files, text, capsys):
    with pytest.raises(SystemExit):
        cli.main(words(files, "--delimiter", text))
    assert "is no delimiter; give one character, or tab" in capsys.readouterr().err


def test_few_labelled_rows_leave_the_flag_empty(files, capsys):
    lines = (files / "train.csv").read_text().splitlines()
    (files / "train.csv").write_text("\n".join([lines[0], *lines[1:4], *lines[13:16]]) + "\n")
    assert cli.main(words(files)) == 0
    with (files / "out.csv").open(newline="") as file:
        assert [row["seen_nothing_like_it"] for row in csv.DictReader(file)] == ["", "", ""]
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1] == "3 rows, which of them are unlike the labelled rows, nobody can tell"
    assert (
        "warning: 6 rows were held out, too few to tell with 5% false alarms" in shown.err
        and shown.err.count("\n") == 1
    )
    assert cli.main(words(files, "--false-alarm", "0.2")) == 0
    assert cli.main(words(files, "--false-alarm", "0")) == 0
    with (files / "out.csv").open(newline="") as file:
        assert [row["seen_nothing_like_it"] for row in csv.DictReader(file)] == ["no", "no", "no"]


@pytest.mark.parametrize("scale", [(), ("--no-scale",)])
def test_new_rows_with_fill_values_are_unlike(scale, files):
    fills = ["1e20", "-1e38", "1e150", "1e200", "1.7e308", "-1.7e308"]
    (files / "new.csv").write_text(
        "\n".join(["a,b,side", "0.4,0.2,left", *(f"0.4,{fill},left" for fill in fills)]) + "\n"
    )
    assert cli.main(words(files, *scale)) == 0
    with (files / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["seen_nothing_like_it"] for row in found] == ["no", *["yes"] * len(fills)]
    assert all(0.5 <= float(row["probability"]) <= 1 and row["log_evidence"] != "nan" for row in found)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1,2,left", "1,2,left"], "all rows of train.csv are equal; give two that differ, or more"),
        (
            [*(f"{x},{y},left" for x, y in NEAR), "1e20,0,left"],
            "train.csv has 1e+20 in row 13, column 'a', more than a million times",
        ),
    ],
    ids=["equal rows", "a fill value"],
)
def test_a_table_that_no_memory_can_be_made_of_is_one_line(rows, message, files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    (files / "train.csv").write_text("\n".join(["a,b,side", *rows]) + "\n")
    assert cli.main(["classify", "train.csv", "new.csv", "--label", "side", "--out", "out.csv"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


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
        (
            ("--label", "a"),
            "line 2: side is 'left', no finite number; fill it, remove the line or leave out the column (--skip side)",
        ),
        (
            ("--delimiter", ";"),
            "line 1: the header has no ';' but ','; mend it (--delimiter ',')",
        ),
        (
            ("--decimal", ","),
            "line 2: a is '0.0', no finite number; write ',' before decimals, say what stands there (--decimal '.')",
        ),
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
def test_refusals_of_the_classifier_name_options(files, more, message, capsys):
    assert cli.main(words(files, *more)) == 2
    assert message in capsys.readouterr().err

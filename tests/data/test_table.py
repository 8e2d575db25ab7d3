"""Tables of numbers: columns by name, and what is wrong by its line."""

import numpy as np
import pytest

from probtx_pyro.data import read_table


def test_columns_are_found_by_name_in_the_order_asked_for(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("name\tb\ta\nx\t1\t2e1\ny\t-3\t4\n")
    table = read_table(path, "side", features=("a", "b"))
    assert (
        table.features == ("a", "b") and table.numbers.tolist() == [[20.0, 1.0], [4.0, -3.0]] and table.labels is None
    )
    table = read_table(path, "name")
    assert table.features == ("b", "a") and table.labels.tolist() == ["x", "y"]
    assert read_table(path, "name", skip=["b"]).features == ("a",)


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"\xef\xbb\xbfa,b,side\n1.5,-2,left\n", {}),
        (b'\xef\xbb\xbf"a","b","side"\n1.5,-2,left\n', {}),  # pandas#4793, #13497: the mark before a quote
        (b"a,b,side\r\n1.5,-2,left\r\n", {}),
        (b"a,b,side\r1.5,-2,left\r", {}),
        (b'"a", "b", "side"\n"1.5", "-2", "left"\n\n', {}),  # a space behind each comma
        (b' a ,b\xc2\xa0,side\n 1.5,\xc2\xa0-2,"left\n"\n', {}),  # a no-break space, a line end within quotes
        (b"a;b;side\n1,5;-2;left\n", {"delimiter": ";", "decimal": ","}),
        (b"a|b|side\n+15e-1|-.2E1|left\n", {"delimiter": "|"}),
        (b"a\tb\tside\n1.5\t-2.\tleft\n", {"delimiter": "\t"}),
    ],
)
def test_odd_but_right_tables(content, options, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    table = read_table(path, "side", **options)
    assert (
        table.features == ("a", "b") and table.numbers.tolist() == [[1.5, -2.0]] and table.labels.tolist() == ["left"]
    )


def test_missing_numbers_are_refused_or_nan_as_asked(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b,side\n1,,left\nNA,2,right\n3,4,\n")
    with pytest.raises(
        ValueError,
        match=r"line 2: b is '', .*; fill it, remove the line, pass over all such lines \(incomplete\) or leave",
    ):
        read_table(path, "side")
    table = read_table(path, "side", incomplete=True)
    assert [[x == x for x in row] for row in table.numbers] == [[True, False], [False, True], [True, True]]
    assert table.labels.tolist() == ["left", "right", ""]
    path.write_text("a,side\nx,left\n")
    with pytest.raises(
        ValueError, match=r"line 2: a is 'x', .*; fill it, remove the line or leave out the column \(skip a\)"
    ):
        read_table(path, "side", incomplete=True)


def test_threads_of_pandas_and_csvkit_on_cells_that_were_read_as_something_else(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,side\n   0,x\n   1,None\n   0,NA\n")  # pandas#9710 lost the zeros, csvkit#206 the town of None
    table = read_table(path, "side")
    assert table.numbers.tolist() == [[0.0], [1.0], [0.0]] and table.labels.tolist() == ["x", "None", "NA"]
    for decimal, cells in (
        (".", ["1,2", ", ,, 123", "1,234"]),
        (",", ["1a.2,3", "1,2,3", "1.2,3", "1.5"]),
    ):  # csvkit#805, #795; pandas#38420
        for cell in cells:
            path.write_text(f'a;side\n1;x\n"{cell}";x\n')
            with pytest.raises(ValueError, match=r"line 3: a is .*no finite number"):
                read_table(path, "side", delimiter=";", decimal=decimal)
    path.write_text("a,b,side\n1,4,x,\n2,5,y,\n")  # pandas#14124, #15203 shift the columns
    with pytest.raises(ValueError, match="line 2: 4 columns instead of 3"):
        read_table(path, "side")
    path.write_text("a,side\n1,te\0st\n")  # pandas#19886 cuts the cell there
    with pytest.raises(ValueError, match="line 2: this is no text: it has a NUL character"):
        read_table(path, "side")


def test_only_a_point_or_a_comma_is_before_decimals(tmp_path):
    with pytest.raises(ValueError, match=r"decimal must be one of \. ,, not ';'"):
        read_table(tmp_path / "a.csv", decimal=";")


@pytest.mark.parametrize("decimal", [".", ","])
def test_booleans_are_0_and_1(tmp_path, decimal):
    path = tmp_path / "a.csv"  # pandas writes True, spreadsheets TRUE, JSON true
    path.write_text("a;b;side\nTrue;1;left\nFALSE; false;right\n;TRUE;left\n")
    table = read_table(path, "side", delimiter=";", decimal=decimal, incomplete=True)
    np.testing.assert_array_equal(table.numbers, [[1, 1], [0, 0], [np.nan, 1]])


NO_NUMBERS = (
    "1_000|1 000|1\u00a0000|1'000|\u0661\u0662|\uff11\uff12|\u00b2|inf|-Infinity|1e400|-1e999|"
    "nan|0x10|1e|e5|.|--1|\u22121|1.2.3|12%|$1|1\u00bd|yes|1j"
)


@pytest.mark.parametrize("cell", NO_NUMBERS.split("|"))
def test_what_is_no_number_in_the_digits_of_ascii_is_refused_with_its_line(cell, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"a,b,side\n1,2,left\n{cell},2,left\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 3: a is .* no finite number; fill it"):
        read_table(path, "side")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a;b;side\n1;2;left\n", r"line 1: the header has no ',' but ';'; .* \(delimiter ';'\)"),
        ("a,b,side\n1,2;3,left\n", "line 2: b is '2;3', no finite number"),
        (
            'a,b,side\n1,"2,5",left\n',
            r"line 2: b is '2,5', .*; write '\.' before decimals, say what stands there \(decimal ','\)",
        ),
        ('a,b,side\n1,"1,234.5",left\n', "line 2: b is '1,234.5', no finite number"),
        ("a,b,side,\n1,2,left,\n", "line 1: column 4 of the header has no name; name it, or remove it"),
        (",a,side\n0,1,left\n", "line 1: column 1 of the header has no name"),
        ("a,b,side\n1,2,left,\n", "line 2: 4 columns instead of 3"),
        ("a,b,side\n1,2\n", "line 2: 2 columns instead of 3"),
        ("side,a,side\nleft,1,right\n", "line 1: the header has the column side twice; rename one of them"),
        ("a, a ,side\n1,2,left\n", "line 1: the header has the column a twice"),
        ('a,side\n1,"left\n', "line 2: unexpected end of data"),
        ("a,side\n1,le\0ft\n", "line 2: this is no text: it has a NUL character"),
        ("a,b,side\n1,x,left\n", "line 2: b is 'x', no finite number"),
        ("a,b,side\n1,nan,left\n", "line 2: b is 'nan', no finite number"),
        ("a,b,side\n1,2,\n", "line 2: the label in side is empty"),
        ("a,a,side\n1,2,left\n", "line 1: the header has the column a twice"),
        ("side\nleft\n", "line 1: there is no column of numbers"),
        ("a,side\n", "has no rows"),
        ("a,side\n1\n", "line 2: 1 columns instead of 2"),
    ],
)
def test_bad_tables(text, message, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(path, "side")

"""Tables of numbers: columns by name, and what is wrong by its line."""

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
    ("text", "message"),
    [
        ("a,b,side\n1,x,left\n", "line 2: b is 'x', which is no finite number"),
        ("a,b,side\n1,nan,left\n", "line 2: b is 'nan', which is no finite number"),
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

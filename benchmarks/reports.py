"""Tables of ``docs/reports`` that commands write, each between ``<!-- table: NAME -->`` and ``<!-- end of the table -->``.

``python -m benchmarks.reports`` writes all of them anew from the files in ``benchmarks/results``; it measures nothing. Which function
makes the tables of which report: ``benchmarks/report_tables.py``.
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import RESULTS

REPORTS = Path(__file__).parents[1] / "docs" / "reports"
END = "<!-- end of the table -->"
Tables = dict[str, list[str]]


def whole_file(name: str) -> dict[str, Any]:
    """A file of results."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def rows_kept(name: str) -> list[dict[str, Any]]:
    """The rows of a file of results."""
    rows: list[dict[str, Any]] = whole_file(name)["rows"]
    return rows


def rows_of(*rows: Sequence[str]) -> list[str]:
    """Lines of a Markdown table, the first row its head."""
    head, *body = rows
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)]


def short(x: float, digits: int = 3, sign: str = "") -> str:
    """A number without the 0 before its point, as in ``.944``; with ``sign="+"`` always with its sign."""
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{x:{sign}.{digits}f}")


def short_spread(values: Sequence[float], digits: int = 3, sign: str = "") -> str:
    """Mean and standard deviation, as in ``.812 ± .010``; of one value, that value."""
    mean = short(statistics.fmean(values), digits, sign)
    return f"{mean} ± {short(statistics.stdev(values), digits)}" if len(values) > 1 else mean


def filled(text: str, name: str, lines: Sequence[str]) -> str:
    """The text of a report with new lines in the place of a table.

    Raises
    ------
    ValueError
        The text does not have one place for the table.
    """
    start = f"<!-- table: {name} -->"
    pattern = re.compile(re.escape(start) + r".*?" + re.escape(END), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"the report must have one place for the table {name!r}, between {start} and {END}")
    made = "\n".join([start, *lines, END])
    return pattern.sub(lambda _: made, text)


def write_tables(report: str, tables: Mapping[str, Sequence[str]]) -> None:
    """Write tables into a report, and say where."""
    page = REPORTS / report
    text = page.read_text()
    for name, lines in tables.items():
        text = filled(text, name, lines)
    page.write_text(text)
    print(f"written to {page}")


def write_table(report: str, name: str, lines: Sequence[str]) -> None:
    """Write one table into a report, and say where."""
    write_tables(report, {name: lines})


def main() -> None:
    from benchmarks import papers_tables
    from benchmarks.report_tables import MAKERS  # which imports the benchmarks, and they this file

    papers_tables.main()
    for report, make in MAKERS:
        write_tables(report, make())


if __name__ == "__main__":
    main()

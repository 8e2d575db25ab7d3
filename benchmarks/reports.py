"""Tables of ``docs/reports`` that commands write, each between ``<!-- table: NAME -->`` and ``<!-- end of the table -->``."""

import re
from collections.abc import Sequence
from pathlib import Path

REPORTS = Path(__file__).parents[1] / "docs" / "reports"
END = "<!-- end of the table -->"


def rows_of(*rows: Sequence[str]) -> list[str]:
    """Lines of a Markdown table, the first row its head."""
    head, *body = rows
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)]


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


def write_table(report: str, name: str, lines: Sequence[str]) -> None:
    """Write a table into a report, and say where."""
    page = REPORTS / report
    page.write_text(filled(page.read_text(), name, lines))
    print(f"written to {page}")

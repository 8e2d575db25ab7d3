"""A small graph of a Markdown page, as an inline drawing: layers from the top, a box for each node, a line for each edge."""

import re
from html import escape

WIDTH, HEIGHT, GAP, DROP = 132, 58, 12, 38  # of a box, and between boxes in a row and between rows


def parse(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Labels of the nodes and the edges of a ``graph TD`` in Mermaid's notation."""
    labels: dict[str, str] = {}
    edges = []
    for line in text.splitlines()[1:]:
        ends = re.findall(r"(\w+)(?:\[\"(.*?)\"\])?", line.replace("-->", " "))
        for name, label in ends:
            labels[name] = label or labels.get(name, name)
        edges += [(ends[0][0], ends[1][0])] if len(ends) == 2 else []
    return labels, edges


def layers(labels: dict[str, str], edges: list[tuple[str, str]]) -> list[list[str]]:
    """Rows of nodes: each below everything that leads to it, ordered by the mean place of what leads to it."""
    depth = dict.fromkeys(labels, 0)
    for _ in labels:
        for source, target in edges:
            depth[target] = max(depth[target], depth[source] + 1)
    rows: list[list[str]] = []
    for level in range(max(depth.values()) + 1):
        place = {name: index / len(row) for row in rows for index, name in enumerate(row)}
        row = [name for name in labels if depth[name] == level]

        def mean(name: str, place: dict[str, float] = place) -> float:
            above = [place[source] for source, target in edges if target == name]
            return sum(above) / len(above) if above else 0.0

        rows.append(sorted(row, key=mean))
    return rows


def wrapped(label: str, length: int = 18) -> list[str]:
    """A label in lines of at most so many characters where its words allow."""
    lines = [""]
    for word in label.split():
        lines = [*lines[:-1], f"{lines[-1]} {word}".strip()] if len(f"{lines[-1]} {word}") <= length else [*lines, word]
    return lines


def svg(text: str) -> str:
    """The drawing, with a title that says its edges in words for those who do not see it."""
    labels, edges = parse(text)
    rows = layers(labels, edges)
    wide = max(map(len, rows)) * (WIDTH + GAP) + GAP
    at = {}
    for level, row in enumerate(rows):
        left = (wide - len(row) * (WIDTH + GAP) + GAP) / 2
        at |= {name: (left + index * (WIDTH + GAP), GAP + level * (HEIGHT + DROP)) for index, name in enumerate(row)}
    words = "; ".join(f"{labels[target]} needs {labels[source]}" for source, target in edges)
    out = [
        f'<div class="graph" tabindex="0"><svg viewBox="0 0 {wide} {len(rows) * (HEIGHT + DROP)}" width="{wide}" role="img" aria-label="{escape(words)}">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for source, target in edges:
        (x, y), (to, down) = at[source], at[target]
        start, end = x + WIDTH / 2, to + WIDTH / 2
        out.append(
            f'<path class="edge" marker-end="url(#arrow)" d="M{start:.0f} {y + HEIGHT}C{start:.0f} {y + HEIGHT + 24} {end:.0f} {down - 24} {end:.0f} {down - 1}"/>'
        )
    for name, (x, y) in at.items():
        out.append(f'<rect x="{x:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>')
        lines = wrapped(labels[name])
        for number, line in enumerate(lines):
            high = y + HEIGHT / 2 + 5 + (number - (len(lines) - 1) / 2) * 16
            out.append(f'<text x="{x + WIDTH / 2:.0f}" y="{high:.0f}">{escape(line)}</text>')
    return "\n".join([*out, "</svg></div>"]) + "\n"

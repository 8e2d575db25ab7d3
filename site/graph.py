"""A small graph of a Markdown page, as an inline drawing: layers from the top, a box for each node, a line for each edge."""

import re
from html import escape
from itertools import pairwise

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


def routed(labels: dict[str, str], edges: list[tuple[str, str]]) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Rows and edges in which an edge joins neighbouring rows only: a longer one leads through gaps, nodes without a label."""
    depth = {name: level for level, row in enumerate(layers(labels, edges)) for name in row}
    every, pieces = dict(labels), {}
    for source, target in edges:
        chain = [source, *(f"{source} at {level}" for level in range(depth[source] + 1, depth[target])), target]
        every |= {name: "" for name in chain[1:-1]}
        pieces |= dict.fromkeys(pairwise(chain))
    return layers(every, list(pieces)), list(pieces)


def svg(text: str, links: dict[str, str] | None = None) -> str:
    """The drawing, with a title that says its edges in words for those who do not see it.

    ``links`` has the address of a node by its name. No edge runs behind a box: it crosses a row in a gap.
    """
    labels, edges = parse(text)
    rows, pieces = routed(labels, edges)
    width = {name: WIDTH if name in labels else 0 for row in rows for name in row}
    wide = max(sum(width[name] + GAP for name in row) for row in rows) + GAP
    middle, top = {}, {}
    for level, row in enumerate(rows):
        left = (wide - sum(width[name] + GAP for name in row) + GAP) / 2
        for name in row:
            middle[name], top[name] = left + width[name] / 2, GAP + level * (HEIGHT + DROP)
            left += width[name] + GAP
    words = "; ".join(f"{labels[target]} needs {labels[source]}" for source, target in edges)
    out = [
        f'<div class="graph" tabindex="0"><svg viewBox="0 0 {wide} {len(rows) * (HEIGHT + DROP)}" width="{wide}" role="group" aria-label="{escape(words)}">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for source, target in pieces:
        x, y, to, down = middle[source], top[source] + HEIGHT, middle[target], top[target]
        curve = f"M{x:.0f} {y}C{x:.0f} {y + 24} {to:.0f} {down - 24} {to:.0f} {down}"
        through, end = ("", ' marker-end="url(#arrow)"') if target in labels else (f"V{down + HEIGHT}", "")
        out.append(f'<path class="edge"{end} d="{curve}{through}"/>')
    for name, label in labels.items():
        x, y = middle[name], top[name]
        lines = wrapped(label)
        box = [f'<rect x="{x - WIDTH / 2:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>']
        for number, line in enumerate(lines):
            high = y + HEIGHT / 2 + 5 + (number - (len(lines) - 1) / 2) * 16
            box.append(f'<text x="{x:.0f}" y="{high:.0f}">{escape(line)}</text>')
        address = (links or {}).get(name)
        out += [f'<a href="{escape(address)}">', *box, "</a>"] if address else box
    return "\n".join([*out, "</svg></div>"]) + "\n"

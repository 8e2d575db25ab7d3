"""Run a table by its name: ``PROBTX_DATA=... python -m benchmarks.evidence NAME [--quick] [...]``.

``--quick`` is a small run that writes nothing. A run that is stopped goes on where it was: rows that are kept are not made again.
"""

import importlib
import sys

TABLES = {
    "unseen": "benchmarks.evidence.unseen",
    "unseen-defaults": "benchmarks.evidence.unseen_defaults",
    "label-shift": "benchmarks.evidence.label_shift",
    "domain-shift": "benchmarks.evidence.domain_shift",
    "in-context": "benchmarks.evidence.in_context",
}


def main(argv: list[str] | None = None) -> None:
    """Call ``main`` of the table's module with the arguments that follow its name."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if name not in TABLES:
        raise SystemExit(f"usage: python -m benchmarks.evidence {{{','.join(TABLES)}}} [--quick]")
    importlib.import_module(TABLES[name]).main(rest)


if __name__ == "__main__":
    main()

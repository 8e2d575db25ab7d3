"""``python -m benchmarks.reference``: the comparison."""

from benchmarks.reference.comparison import main

main()

"""Which of many cases of a test the default suite runs; `make test-slow` runs the others."""

from itertools import combinations

import pytest


def covering(cases):
    """Return positions of cases, each a mapping from option to value, such that every two values of two options that stand
    together in any case stand together in one of these: greedily, most new pairs first.
    """
    pairs = [set(combinations(sorted(case.items()), min(2, len(case)))) for case in cases]
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(range(len(pairs)), key=lambda i: len(pairs[i] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen)


def seeds(number, often):
    """Return seeds from 0, all but the first of them slow."""
    return [pytest.param(seed, marks=() if seed < often else pytest.mark.slow) for seed in range(number)]

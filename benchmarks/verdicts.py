"""Verdicts on claims: by an interval of the difference of two rows, paired by seed and by test item.

A claim says that one row is better than another. Its gains are the differences of the two figures, one a seed. Their mean has
two sources of error, and the interval covers both:

- seeds: the variance of the gains over the n seeds that both rows have, divided by n;
- test items: the variance that another test part of the same size would bring, by the jackknife over the items of the gain
  averaged over the seeds. The run files keep what each item adds to the figure (`Items`). Where they do not, or where the items
  are too many to matter, the interval covers the seeds alone, and the table says so.

The interval is ``mean ± q sqrt(seeds + items)``, where q is Cochran's (1964): the mean of the 0.975 quantiles of Student's t with
n - 1 degrees of freedom and of the normal distribution, weighted by the two variances. It misses in at most 5 % of cases, where
the degrees of freedom of Welch and Satterthwaite miss in up to 8 % at three seeds. The jackknife sees some of the variance of seeds,
too, which makes the interval a little wider (``tests/benchmarks/test_verdicts.py`` counts how often it covers).

A claim *holds* where the interval is on its side of zero, *does not hold* where it is on the other side, and is *open* where it
covers zero: then the number of seeds that would decide it is given, were mean and spread to stay (about ``(2 sd / difference)²``, a
few more because t is wide at few seeds); it is "not worth it" above 50 of them, or where the items alone would leave it open. A row whose validation score still rose at the end has no negative verdict: the claim
is open. A score still rose where, averaged over the seeds, it got better by more than 1 % of itself over the last fifth of the
steps. `holm` corrects for the number of claims on a page.
"""

import base64
import io
import math
import statistics
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

LEVEL, WORTH, ROSE = 0.95, 50, 0.01
Figure = Callable[[np.ndarray], np.ndarray]


def mean(sums: np.ndarray) -> np.ndarray:
    """Mean: from (..., 2) a sum and what it is over."""
    return sums[..., 0] / sums[..., 1]


def share(sums: np.ndarray) -> np.ndarray:
    """Per cent right: from (..., 2) things right and things."""
    return 100 * sums[..., 0] / sums[..., 1]


def f1(sums: np.ndarray) -> np.ndarray:
    """F1 in per cent: from (..., 3) spans found and right, spans found, and spans there are; 0 where there is none."""
    return 200 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)


def perplexity(sums: np.ndarray) -> np.ndarray:
    """Perplexity: from (..., 2) nats and words."""
    return np.exp(sums[..., 0] / sums[..., 1])


def bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU of sacreBLEU: from (..., 10) lengths of translations and of references, and of four orders those right and all."""
    from sacrebleu.metrics import BLEU

    flat = sums.reshape(-1, 10)
    scores = [
        BLEU.compute_bleu(
            row[2:6].astype(int).tolist(), row[6:10].astype(int).tolist(), int(row[0]), int(row[1]), smooth_method="exp"
        ).score
        for row in flat
    ]
    return np.array(scores).reshape(sums.shape[:-1])


FIGURES: dict[str, Figure] = {"mean": mean, "share": share, "f1": f1, "perplexity": perplexity, "bleu": bleu}


class Items(NamedTuple):
    """What each test item adds to a figure.

    figure: one of `FIGURES`.
    each: (item, column).
    """

    figure: str
    each: np.ndarray

    def packed(self) -> dict[str, str]:
        """As text for a file: NumPy's own format, compressed, in base 64."""
        file = io.BytesIO()
        np.save(file, self.each)
        return {"figure": self.figure, "each": base64.b64encode(zlib.compress(file.getvalue(), 9)).decode()}

    @classmethod
    def unpacked(cls, kept: dict[str, str]) -> "Items":
        """What `packed` made."""
        return cls(kept["figure"], np.load(io.BytesIO(zlib.decompress(base64.b64decode(kept["each"])))))


class Gains(NamedTuple):
    """How much better one row is than another.

    by_seed: one for each seed that both have.
    item_variance: of their mean, by the test items; None where the files do not have the items.
    """

    by_seed: tuple[float, ...]
    item_variance: float | None = None


def gains(first: dict[int, float], second: dict[int, float], items: Sequence[dict[int, Items]] = (), lower: bool = False) -> Gains:  # fmt: skip
    """Gains of a row over another.

    Parameters
    ----------
    first, second
        The figure of each seed.
    items
        Of both rows, the items of each seed; a seed that lacks them on either side leaves the items out.
    lower
        True if a lower figure is the better.
    """
    seeds = sorted(first.keys() & second.keys())
    sign = -1.0 if lower else 1.0
    by_seed = tuple(sign * (first[seed] - second[seed]) for seed in seeds)
    if not seeds or len(items) != 2 or any(seed not in row for row in items for seed in seeds):
        return Gains(by_seed)
    return Gains(by_seed, jackknife([items[0][seed] for seed in seeds], [items[1][seed] for seed in seeds]))


def jackknife(first: Sequence[Items], second: Sequence[Items]) -> float:
    """Variance by the test items of the mean gain of runs over their partners: each item is left out of all runs at once."""
    without = [FIGURES[a.figure](_without(a)) - FIGURES[b.figure](_without(b)) for a, b in zip(first, second, strict=True)]  # fmt: skip
    mean = np.mean(without, 0)
    return float((len(mean) - 1) / len(mean) * ((mean - mean.mean()) ** 2).sum())


def _without(items: Items) -> np.ndarray:
    """(item, column) sums without each item."""
    each = items.each.astype(float)
    return each.sum(0) - each


class Verdict(NamedTuple):
    """What an interval says of a claim.

    mean, low, high: of the gain.
    p: two-sided, of no gain.
    word: "holds", "does not hold", "open", "not run yet".
    more: what would decide an open claim.
    """

    mean: float
    low: float
    high: float
    p: float
    word: str
    more: str = ""


def verdict(of: Gains, rose: Sequence[bool] = (False, False)) -> Verdict:
    """The verdict on a claim, from the gains and from whether each of the two rows still rose at the end of its runs."""
    n = len(of.by_seed)
    if n < 2:
        mean = of.by_seed[0] if n else math.nan
        return Verdict(mean, math.nan, math.nan, math.nan, "open" if n else "not run yet", "3 seeds" if n else "")
    mean, sd = statistics.fmean(of.by_seed), statistics.stdev(of.by_seed)
    seeds, items = sd**2 / n, of.item_variance or 0.0
    total = seeds + items
    if total == 0.0 and mean == 0.0:
        return Verdict(0.0, 0.0, 0.0, 1.0, "open", "the same in every seed")
    if total == 0.0:
        raise ValueError("the gains are the same to the last digit in every seed; is one run counted twice?")
    p = 2 * _tail(abs(mean) / math.sqrt(total), n, seeds, items)
    wide = half(n, sd, items)
    interval = (mean, mean - wide, mean + wide, p)
    if abs(mean) <= wide:
        return Verdict(*interval, "open", _more(mean, sd, items))
    if rose[mean > 0]:
        return Verdict(*interval, "open", "longer runs: the row behind still rose")
    return Verdict(*interval, "holds" if mean > 0 else "does not hold")


def _more(mean: float, sd: float, items: float) -> str:
    """How many seeds would decide an open claim, were the mean and the spread to stay as they are."""
    if half(10**6, sd, items) >= abs(mean):
        return "not worth it: the test part is too small"
    most = next((n for n in range(3, WORTH + 1) if half(n, sd, items) < abs(mean)), None)
    return f"not worth it: more than {WORTH} seeds" if most is None else f"{most} seeds"


def quantile(tail: float, n: int, seeds: float, items: float) -> float:
    """Cochran's quantile: of Student's t for the variance of seeds, of the normal distribution for that of items."""
    return -float(seeds * stdtrit(n - 1, tail) + items * ndtri(tail)) / (seeds + items)


def _tail(x: float, n: int, seeds: float, items: float) -> float:
    """The tail whose `quantile` is x; none is said to be below 1e-15."""
    smallest = 1e-15
    if quantile(smallest, n, seeds, items) <= x:
        return smallest
    return float(brentq(lambda tail: quantile(tail, n, seeds, items) - x, smallest, 0.5))


def half(n: int, sd: float, items: float) -> float:
    """Half the width of the interval at n seeds, from the standard deviation of the gains and the variance by items."""
    seeds = sd**2 / n
    return quantile((1 - LEVEL) / 2, n, seeds, items) * math.sqrt(seeds + items)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction (1979) of p-values; nan stays."""
    known = sorted((value, i) for i, value in enumerate(p) if not math.isnan(value))
    corrected, least = list(p), 0.0
    for rank, (value, i) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * value))
        corrected[i] = least
    return corrected


def rise(validation: Sequence[tuple[int, float]], lower: bool = False) -> float:
    """By which share of itself a validation score got better over the last fifth of the steps."""
    last, end = validation[-1]
    _, start = min(validation, key=lambda at: abs(at[0] - 0.8 * last))
    return (1 - end / start) if lower else (end / start - 1 if start else math.inf)


def still_rose(runs: Sequence[dict[str, Any]], lower: bool = False) -> tuple[float, bool]:
    """The mean `rise` of runs, and whether it is more than a hundredth."""
    mean = statistics.fmean(rise(run["validation"], lower) for run in runs)
    return mean, mean > ROSE

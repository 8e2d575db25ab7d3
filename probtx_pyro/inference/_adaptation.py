"""Step sizes and scales of many chains at once: dual averaging and growing windows of variances,
pooled over chains or by chain.

Nesterov's dual averaging as Hoffman & Gelman 2014 (section 3.2) use it, aimed at a mean acceptance probability;
variances of the coordinates over windows that double, as in Stan (Reference Manual, "Automatic parameter tuning"). All
arrays are (chain, problem, ...).
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

SHRINKAGE, OFFSET, FORGETTING = 0.05, 10.0, 0.75  # γ, t0, κ of Hoffman & Gelman 2014, section 3.2.1
#: steps before the windows, of the first window, and after them: Stan's, and for so many chains that few steps are many draws
ALONE, TOGETHER, MANY = (75, 25, 50), (10, 10, 50), 4
FEWEST = 20  # steps of warmup that are too few for a window
PRIOR_DRAWS, PRIOR_VARIANCE = 5, 1e-3  # what a variance is shrunk to, in draws


def windows(num_warmup: int, num_chains: int = 1) -> tuple[int, list[int]]:
    """Return the warm-up schedule: the step at which the first window begins, and the steps at which windows end.

    There are none in a short warmup.
    """
    if num_warmup < FEWEST:
        return num_warmup, []
    first, size, last = TOGETHER if num_chains >= MANY else ALONE
    if num_warmup < first + size + last:
        first, last = int(0.15 * num_warmup), int(0.1 * num_warmup)
        size = num_warmup - first - last
    ends, begin = [], first
    while begin < num_warmup - last:
        end = begin + size
        end = num_warmup - last if end + 2 * size > num_warmup - last else end
        ends.append(end)
        begin, size = end, 2 * size
    return first, ends


def as_numbers(x: Tensor) -> np.ndarray:
    """A tensor's numbers on the CPU, float32 where it has fewer digits."""
    x = x.detach().cpu()
    return x.to(torch.promote_types(x.dtype, torch.float32)).numpy()


class Adaptation:
    """Step sizes and scales that chains learn in warmup: ``step`` (chain, problem) and ``scale``, the sd of each
    coordinate (chain, problem, coordinate).

    Parameters
    ----------
    start
        (chain, problem, coordinate).
    num_warmup, target_accept
        Steps of adaptation, and the mean acceptance probability to reach.
    pooled
        True if all chains of a problem share what they learn; then they must take their steps of warmup together.
    gather
        From a tensor of this process's chains to that of all chains, (chain, ...).
    """

    def __init__(
        self, start: Tensor, num_warmup: int, target_accept: float, pooled: bool, gather: Callable[[Tensor], Tensor]
    ):
        self.num_warmup, self.target, self.pooled, self._gather = num_warmup, target_accept, pooled, gather
        self.first, ends = windows(num_warmup, len(gather(start)) if pooled else 1)
        self.ends = np.zeros(num_warmup + 1, dtype=bool)
        self.ends[ends] = True
        self.last = ends[-1] if ends else num_warmup
        zero, wide = np.zeros(start.shape[:2]), np.zeros(start.shape)
        #: all that the next steps depend on
        self.state = {"step": zero + 1.0, "scale": np.ones_like(as_numbers(start))}
        self.state |= dict.fromkeys(("center", "count", "error", "average", "draws"), zero)
        self.state |= dict.fromkeys(("mean", "squares"), wide)

    def gather(self, x: np.ndarray) -> np.ndarray:
        """The numbers of all chains, those of other processes among them."""
        return self._gather(torch.from_numpy(x)).numpy()

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Each lane's own number, or the mean over all chains of its problem."""
        return np.broadcast_to(self.gather(x).mean(0), x.shape) if self.pooled else x

    def begin(self, acceptance: Callable[[np.ndarray], np.ndarray]) -> None:
        """Find a first step size: doubled or halved from 1 until the ``acceptance``
        of one leapfrog step crosses 0.8.
        """
        step = self.state["step"]
        upward = self.mean(acceptance(step)) > 0.8
        moving, factor = np.ones_like(upward), np.where(upward, 2.0, 0.5)
        for _ in range(60):  # a density without scale would go on for ever
            step = np.where(moving, step * factor, step)
            moving = moving & ((self.mean(acceptance(step)) > 0.8) == upward)
            if not bool(self.gather(moving).any()):
                break
        self._restart(np.ones_like(moving), step)

    def _restart(self, which: np.ndarray, step: np.ndarray) -> None:
        """Begin dual averaging anew at a step size."""
        s = self.state
        fresh = {"step": step, "center": np.log(10 * step), "count": 0.0, "error": 0.0, "average": np.log(step)}
        for name, x in fresh.items():
            s[name] = np.where(which, x, s[name])

    def update(self, which: np.ndarray, done: np.ndarray, acceptance: np.ndarray, position: np.ndarray) -> None:
        """Learn from a step of those lanes ``which`` (chain, problem) are in warmup.

        Parameters
        ----------
        which
            Boolean; ``done`` counts the steps taken, this one included.
        acceptance, position
            The mean acceptance probability of the step, and where it led.
        """
        s = self.state
        count = s["count"] + 1
        error = s["error"] + (self.target - self.mean(acceptance) - s["error"]) / (count + OFFSET)
        log_step = s["center"] - np.sqrt(count) / SHRINKAGE * error
        average = s["average"] + count**-FORGETTING * (log_step - s["average"])
        final = done == self.num_warmup
        moved = {
            "count": count,
            "error": error,
            "average": average,
            "step": np.exp(np.where(final, average, log_step)),
        }
        for name, x in moved.items():
            s[name] = np.where(which, x, s[name])
        inside = which & (done > self.first) & (done <= self.last)
        draws = s["draws"] + 1
        delta = position - s["mean"]
        mean = s["mean"] + delta / draws[..., None]
        s["squares"] = np.where(inside[..., None], s["squares"] + delta * (position - mean), s["squares"])
        s["mean"] = np.where(inside[..., None], mean, s["mean"])
        s["draws"] = np.where(inside, draws, s["draws"])
        end = which & self.ends[np.minimum(done, self.num_warmup)]
        if end.any():
            self._rescale(end)

    def _rescale(self, which: np.ndarray) -> None:
        """Take the standard deviations of the window as scales, and begin the next window."""
        s = self.state
        draws, mean, squares = s["draws"][..., None], s["mean"], s["squares"]
        if self.pooled:
            means = self.gather(mean)
            between = np.square(means - means.mean(0))
            squares = (self.gather(squares) + draws[:1] * between).sum(0)
            draws = draws * len(means)
        weight = draws / (draws + PRIOR_DRAWS)
        variance = weight * squares / np.maximum(draws - 1, 1) + (1 - weight) * PRIOR_VARIANCE
        wide = which[..., None]
        s["scale"] = np.where(wide, np.sqrt(variance).astype(s["scale"].dtype), s["scale"])
        for name in ("mean", "squares"):
            s[name] = np.where(wide, 0.0, s[name])
        s["draws"] = np.where(which, 0.0, s["draws"])
        # where all scales are 1, steps of so many coordinates are accepted (n^(-1/4): Beskos et al. 2013)
        self._restart(which, np.full_like(s["step"], mean.shape[-1] ** -0.25))

"""Step sizes and scales of many chains at once: dual averaging and growing windows of variances,
pooled over chains or by chain.

Nesterov's dual averaging as Hoffman & Gelman 2014 (section 3.2) use it, aimed at a mean acceptance probability;
variances of the coordinates over windows that double, as in Stan (Reference Manual, "Automatic parameter tuning"). All
arrays are (chain, problem, ...).
"""

from collections.abc import Callable

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
        From an array of this process's chains to that of all chains, (chain, ...).
    """

    def __init__(
        self, start: Tensor, num_warmup: int, target_accept: float, pooled: bool, gather: Callable[[Tensor], Tensor]
    ):
        lanes, device = start.shape[:2], start.device
        self.num_warmup, self.target, self.pooled, self.gather = num_warmup, target_accept, pooled, gather
        self.first, ends = windows(num_warmup, len(gather(start)) if pooled else 1)
        self.ends = torch.zeros(num_warmup + 1, dtype=torch.bool, device=device)
        self.ends[ends] = True
        self.last = ends[-1] if ends else num_warmup
        zero = torch.zeros(lanes, dtype=torch.float64, device=device)
        #: all that the next steps depend on
        self.state = {"step": zero + 1.0, "scale": torch.ones_like(start)}
        self.state |= dict.fromkeys(("center", "count", "error", "average", "draws"), zero)
        self.state |= dict.fromkeys(("mean", "squares"), torch.zeros_like(start, dtype=torch.float64))

    def mean(self, x: Tensor) -> Tensor:
        """Each lane's own number, or the mean over all chains of its problem."""
        return self.gather(x).mean(0).expand_as(x) if self.pooled else x

    def begin(self, acceptance: Callable[[Tensor], Tensor]) -> None:
        """Find a first step size: doubled or halved from 1 until the ``acceptance``
        of one leapfrog step crosses 0.8.
        """
        step = self.state["step"]
        upward = self.mean(acceptance(step)) > 0.8
        moving, factor = torch.ones_like(upward), torch.where(upward, 2.0, 0.5)
        for _ in range(60):  # a density without scale would go on for ever
            step = torch.where(moving, step * factor, step)
            moving = moving & ((self.mean(acceptance(step)) > 0.8) == upward)
            if not bool(self.gather(moving).any()):
                break
        self._restart(torch.ones_like(moving), step)

    def _restart(self, which: Tensor, step: Tensor) -> None:
        """Begin dual averaging anew at a step size."""
        s = self.state
        fresh = {"step": step, "center": (10 * step).log(), "count": 0.0, "error": 0.0, "average": step.log()}
        for name, x in fresh.items():
            s[name] = torch.where(which, torch.as_tensor(x, dtype=s[name].dtype, device=which.device), s[name])

    def update(self, which: Tensor, done: Tensor, acceptance: Tensor, position: Tensor) -> None:
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
        log_step = s["center"] - count.sqrt() / SHRINKAGE * error
        average = s["average"] + count**-FORGETTING * (log_step - s["average"])
        final = done == self.num_warmup
        moved = {
            "count": count,
            "error": error,
            "average": average,
            "step": torch.where(final, average, log_step).exp(),
        }
        for name, x in moved.items():
            s[name] = torch.where(which, x, s[name])
        inside = which & (done > self.first) & (done <= self.last)
        draws = s["draws"] + 1
        delta = position - s["mean"]
        mean = s["mean"] + delta / draws.unsqueeze(-1)
        s["squares"] = torch.where(inside.unsqueeze(-1), s["squares"] + delta * (position - mean), s["squares"])
        s["mean"] = torch.where(inside.unsqueeze(-1), mean, s["mean"])
        s["draws"] = torch.where(inside, draws, s["draws"])
        end = which & self.ends[done.clamp(max=self.num_warmup)]
        if bool(end.any()):
            self._rescale(end)

    def _rescale(self, which: Tensor) -> None:
        """Take the standard deviations of the window as scales, and begin the next window."""
        s = self.state
        draws, mean, squares = s["draws"].unsqueeze(-1), s["mean"], s["squares"]
        if self.pooled:
            means = self.gather(mean)
            between = (means - means.mean(0)).square()
            squares = (self.gather(squares) + draws[:1] * between).sum(0).expand_as(mean)
            draws = draws * len(means)
        weight = draws / (draws + PRIOR_DRAWS)
        variance = weight * squares / (draws - 1).clamp_min(1) + (1 - weight) * PRIOR_VARIANCE
        wide = which.unsqueeze(-1)
        s["scale"] = torch.where(wide, variance.sqrt().to(s["scale"]), s["scale"])
        for name in ("mean", "squares"):
            s[name] = torch.where(wide, 0.0, s[name])
        s["draws"] = torch.where(which, 0.0, s["draws"])
        # where all scales are 1, steps of so many coordinates are accepted (n^(-1/4): Beskos et al. 2013)
        self._restart(which, torch.full_like(s["step"], mean.shape[-1] ** -0.25))

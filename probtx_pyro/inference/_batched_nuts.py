"""The No-U-Turn sampler of many chains as one batch: every pass is one leapfrog step of every chain,
wherever it is in its own tree.

Hoffman & Gelman 2014, with multinomial sampling along the trajectory, the generalised U-turn criterion and biased
progressive sampling (Betancourt 2017, appendix A). The recursion is unrolled, so that a tree is grown leaf by leaf: at
each leaf the aligned blocks of 2, 4, 8, ... leaves that end there are looked at for a U-turn, from what was kept at
their first leaves (Lao & Dillon 2019; Phan, Pradhan & Jankowiak 2019). A chain whose tree has ended begins its next one
at once; it does not wait for longer trees.

The trees are kept in NumPy, on the CPU: they are some hundred operations on few numbers for each gradient, of which one
costs several times more in torch, and far more on a GPU. Only the density is of torch, where its data are.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probtx_pyro.inference._adaptation import Adaptation, as_numbers

DIVERGENCE = 1000.0  # nats of energy error
BLOCK = 64  # rows of random numbers that are drawn ahead; a trajectory takes one to set out, and one for each step
POSITION, MOMENTUM, SLOPE = range(3)
Potential = Callable[[Tensor], tuple[Tensor, Tensor]]


class Streams:
    """One stream of random numbers for each lane, independent of the other lanes and of where a run is resumed.

    Parameters
    ----------
    seeds
        One for each chain.
    problems, size
        Lanes of a chain, and coordinates of a lane.
    like
        A tensor of the dtype of what is drawn.
    used
        How many rows each lane has taken, if it goes on.
    """

    def __init__(self, seeds: Sequence[int], problems: int, size: int, like: Tensor, used: np.ndarray | None = None):
        self.lanes = [(seed, problem) for seed in seeds for problem in range(problems)]
        self.used = np.zeros(len(self.lanes), dtype=np.int64) if used is None else used.copy()
        self._ahead = np.empty((len(self.lanes), BLOCK, size + 3), dtype=as_numbers(like).dtype)
        self._rows = np.arange(len(self.lanes))
        for lane in np.flatnonzero(self.used % BLOCK):
            self._draw(lane)

    def _draw(self, lane: np.integer) -> None:
        generator = np.random.default_rng([*self.lanes[lane], int(self.used[lane]) // BLOCK])
        size = self._ahead.shape[-1] - 3
        self._ahead[lane] = np.concatenate([generator.random((BLOCK, 3)), generator.standard_normal((BLOCK, size))], 1)

    def take(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A row of three uniform numbers (lane, 3) and a normal one for each coordinate;
        lanes not in ``which`` keep theirs for later.
        """
        place = self.used % BLOCK
        for lane in np.flatnonzero(which & (place == 0)):
            self._draw(lane)
        row = self._ahead[self._rows, place]
        self.used += which
        return row[:, :3], row[:, 3:]


class BatchedNUTS:
    """Chains on their way, each row a lane: a chain in one of several independent problems.

    Parameters
    ----------
    potential
        From positions (lane, coordinate) to minus their log densities (lane,) and the gradient.
    start
        (lane, coordinate).
    streams, adaptation
        Random numbers, and what the chains learn in warmup.
    num_samples
        Draws to keep of each lane.
    max_tree_depth
        Doublings of a trajectory at most.
    together
        True if the chains of all problems, not only of one, wait for each other in a warmup that they share.

    Attributes
    ----------
    draws : Tensor
        (lane, draw, coordinate), on the CPU.
    statistics : dict
        (lane, draw) each, on the CPU, by ArviZ's names, as CmdStan defines them: ``lp`` and ``energy``, the
        Hamiltonian, at the point drawn with the momentum that it had on the trajectory; ``tree_depth``, the doublings
        completed; ``n_steps``, leapfrog steps; ``acceptance_rate``, their mean acceptance probability; ``step_size``;
        ``diverging``.
    """

    def __init__(
        self,
        potential: Potential,
        start: Tensor,
        streams: Streams,
        adaptation: Adaptation,
        num_samples: int,
        max_tree_depth: int,
        together: bool = False,
    ):
        self.potential, self.streams, self.adaptation, self.together = potential, streams, adaptation, together
        self.max_tree_depth, self.total = max_tree_depth, adaptation.num_warmup + num_samples
        self._like = start
        lanes, size = start.shape
        self.shape = adaptation.state["step"].shape
        self._sizes = 2 ** np.arange(1, max_tree_depth + 1)
        position = as_numbers(start)
        vector, number, count = np.zeros_like(position), np.zeros(lanes, position.dtype), np.zeros(lanes, int)
        energy, slope = self._evaluate(position)
        point = np.stack([position, vector, slope], 1)  # position, momentum, slope of the potential
        #: where the chains are; all that the next draws depend on, with `streams` and `adaptation`
        self.state: dict[str, np.ndarray] = {"done": count, "point": point, "potential": energy}
        # the trajectory: its two ends, sum of momenta, weight, doublings, and the point that it proposes
        self.state |= {"ends": np.stack([point, point], 1), "sum": vector, "chosen": point}
        self.state |= dict.fromkeys(("weight", "initial", "chosen_potential", "chosen_energy", "accepted"), number)
        self.state |= dict.fromkeys(("depth", "steps", "leaves"), count)
        # the half that is grown: its last leaf, its direction, how many leaves it has, and as above
        self.state |= {"tip": point, "half": point, "half_sum": vector}
        self.state |= dict.fromkeys(("sign", "half_weight", "half_potential", "half_energy"), number)
        # momentum and sum before it, of the first leaf of a block
        self.state["kept"] = np.zeros((lanes, max_tree_depth, 2, size), position.dtype)
        self.state |= dict.fromkeys(("moving", "diverging"), np.zeros(lanes, bool))
        self.state = {name: x.copy() for name, x in self.state.items()}  # each is written on
        self.draws = torch.zeros(lanes, num_samples, size, dtype=start.dtype, device="cpu")
        self.statistics = {
            name: torch.zeros(lanes, num_samples, dtype=dtype, device="cpu") for name, dtype in STATISTICS.items()
        }

    @np.errstate(all="ignore")
    def begin(self) -> None:
        """Find first step sizes, and set out."""
        everyone = np.ones_like(self.state["moving"])
        normals = self.streams.take(everyone)[1]

        def acceptance(step: np.ndarray) -> np.ndarray:
            _, potential, momentum = self._leap(self.state["point"], step.ravel(), normals)
            lost = potential + _kinetic(momentum) - self.state["potential"] - _kinetic(normals)
            accepted = np.exp(np.minimum(-lost.astype(float), 0.0))
            return np.where(np.isfinite(lost), accepted, 0.0).reshape(self.shape)

        self.adaptation.begin(acceptance)
        self._set_out(everyone)

    @property
    def finished(self) -> bool:
        """True once every lane has all its draws."""
        return bool((self.state["done"] == self.total).all())

    def _evaluate(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The potential of positions and its gradient, by torch."""
        energy, slope = self.potential(torch.from_numpy(position).to(self._like))
        return as_numbers(energy), as_numbers(slope)

    def _leap(
        self, point: np.ndarray, step: np.ndarray, momentum: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One leapfrog step in coordinates whose scales are 1: the new point, its potential and its momentum."""
        scale = self.adaptation.state["scale"]
        stride = step.astype(point.dtype)[:, None] * scale.reshape(-1, scale.shape[-1])
        momentum = momentum - 0.5 * stride * point[:, SLOPE]
        position = point[:, POSITION] + stride * momentum
        potential, slope = self._evaluate(position)
        momentum = momentum - 0.5 * stride * slope
        return np.stack([position, momentum, slope], 1), potential, momentum

    @np.errstate(all="ignore")
    def advance(self) -> int:
        """Take one leapfrog step with every lane that moves, end the trees that are complete;
        the number of draws completed.
        """
        s = self.state
        moving = s["moving"].copy()
        uniforms, _ = self.streams.take(moving)
        step = self.adaptation.state["step"].ravel() * s["sign"]
        leaf, potential, momentum = self._leap(s["tip"], step, s["tip"][:, MOMENTUM])
        energy = potential + _kinetic(momentum)
        # no number, or an infinite density where the numbers end on the boundary of a support: never a point to draw
        energy = np.where(np.isfinite(energy), energy, np.inf)
        lost = energy - s["initial"]
        diverging = ~(lost <= DIVERGENCE)
        # the leaf joins the half, which proposes each of its leaves with a chance in proportion to its weight
        half_sum, half_weight = s["half_sum"] + momentum, np.logaddexp(s["half_weight"], -lost)
        taken = np.log(uniforms[:, 0]) <= -lost - half_weight
        turning = self._turning(moving, momentum, half_sum)
        leaves = s["leaves"] + 1
        self._set(moving, tip=leaf, half_sum=half_sum, half_weight=half_weight, leaves=leaves, diverging=diverging)
        self._set(moving, steps=s["steps"] + 1, accepted=s["accepted"] + np.exp(np.minimum(-lost, 0.0)))
        self._set(moving & taken, half=leaf, half_potential=potential, half_energy=energy)
        # a half of as many leaves as the trajectory joins it, and is favoured by its weight over the trajectory's
        broken = diverging | turning
        joined = moving & ~broken & (leaves == 2 ** s["depth"])
        finished = moving & broken
        if joined.any():
            chosen = joined & (np.log(uniforms[:, 1]) <= s["half_weight"] - s["weight"])
            self._set(chosen, chosen=s["half"], chosen_potential=s["half_potential"], chosen_energy=s["half_energy"])
            outer = joined[:, None] & np.stack([s["sign"] < 0, s["sign"] > 0], 1)
            np.copyto(s["ends"], leaf[:, None], where=outer[..., None, None])
            weight = np.logaddexp(s["weight"], s["half_weight"])
            self._set(joined, sum=s["sum"] + s["half_sum"], weight=weight, depth=s["depth"] + 1)
            ended = _turns(s["ends"][:, 0, MOMENTUM], s["ends"][:, 1, MOMENTUM], s["sum"])
            ended = joined & (ended | (s["depth"] == self.max_tree_depth))
            finished |= ended
            self._grow(joined & ~ended, uniforms[:, 2])
        s["moving"] = moving & ~finished
        return self._complete()

    def _turning(self, moving: np.ndarray, momentum: np.ndarray, half_sum: np.ndarray) -> np.ndarray:
        """True where an aligned block of 2, 4, 8, ... leaves that ends at this leaf makes a U-turn; to be called before
        the leaf is counted.
        """
        s = self.state
        deepest = max(1, int(s["depth"].max()))
        number, sizes, kept = s["leaves"][:, None], self._sizes[:deepest], s["kept"][:, :deepest]
        first = (number % sizes == 0) & moving[:, None]
        np.copyto(kept, np.stack([momentum, s["half_sum"]], 1)[:, None], where=first[..., None, None])
        last = (number + 1) % sizes == 0
        begun, sums = kept[:, :, 0], half_sum[:, None] - kept[:, :, 1]
        return (last & _turns(begun, momentum[:, None], sums)).any(1)

    def _complete(self) -> int:
        """End the step of every lane that rests, unless it shares its warmup with one that does not yet."""
        s, adaptation = self.state, self.adaptation
        if s["moving"].all():
            return 0
        resting = (~s["moving"] & (s["done"] < self.total)).reshape(self.shape)
        warm = (s["done"] < adaptation.num_warmup).reshape(self.shape)
        if adaptation.pooled:
            everyone = resting.all() if self.together else resting.all(0)
            resting = resting & (everyone | ~warm)
        if not resting.any():
            return 0
        ready = resting.ravel()
        done = s["done"] + ready
        acceptance = s["accepted"] / s["steps"]
        lane = np.flatnonzero(ready & (done > adaptation.num_warmup))
        if len(lane):
            draw = done[lane] - adaptation.num_warmup - 1
            found = {
                "lp": -s["chosen_potential"],
                "energy": s["chosen_energy"],
                "tree_depth": s["depth"],
                "n_steps": s["steps"],
                "step_size": adaptation.state["step"].ravel(),
                "acceptance_rate": acceptance,
                "diverging": s["diverging"],
            }
            for name, x in found.items():
                self.statistics[name].numpy()[lane, draw] = x[lane]
            self.draws[lane, draw] = torch.from_numpy(s["chosen"][lane, POSITION]).to(self.draws)
        self._set(ready, done=done, point=s["chosen"], potential=s["chosen_potential"])
        if (resting & warm).any():
            position = s["point"][:, POSITION].reshape(*self.shape, -1)
            adaptation.update(
                resting & warm, done.reshape(self.shape), acceptance.astype(float).reshape(self.shape), position
            )
        self._set_out(ready & (done < self.total))
        return int(ready.sum())

    def _set_out(self, which: np.ndarray) -> None:
        """Begin a trajectory of a single point, with a new momentum."""
        s = self.state
        uniforms, normals = self.streams.take(which)
        start = np.stack([s["point"][:, POSITION], normals, s["point"][:, SLOPE]], 1)
        energy = s["potential"] + _kinetic(normals)
        self._set(which, ends=start[:, None], sum=normals, initial=energy, moving=True)
        self._set(which, weight=0.0, depth=0, steps=0, accepted=0.0)
        self._set(which, chosen=start, chosen_potential=s["potential"], chosen_energy=energy)
        self._grow(which, uniforms[:, 2])

    def _grow(self, which: np.ndarray, uniform: np.ndarray) -> None:
        """Begin to double the trajectory, at one of its two ends."""
        forward, ends = uniform < 0.5, self.state["ends"]
        tip = np.where(forward[:, None, None], ends[:, 1], ends[:, 0])
        self._set(which, tip=tip, sign=np.where(forward, 1.0, -1.0), leaves=0, half_sum=0.0, half_weight=-np.inf)

    def _set(self, which: np.ndarray, **new: np.ndarray | float) -> None:
        """Write values of some lanes."""
        for name, x in new.items():
            old = self.state[name]
            np.copyto(old, x, where=which.reshape(-1, *(1,) * (old.ndim - 1)))

    # -- runs that are killed ------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """All that the next draws depend on, and the draws so far, as tensors."""
        arrays = {"state": self.state, "adaptation": self.adaptation.state, "streams": {"used": self.streams.used}}
        moved = {kind: {name: torch.tensor(x) for name, x in own.items()} for kind, own in arrays.items()}
        return moved | {"draws": self.draws, "statistics": self.statistics}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what was `saved`; the streams are made with its ``used``."""
        self.state = {name: x.numpy() for name, x in saved["state"].items()}
        self.adaptation.state = {name: x.numpy() for name, x in saved["adaptation"].items()}
        self.draws, self.statistics = saved["draws"], saved["statistics"]


STATISTICS = {"lp": torch.float64, "energy": torch.float64, "tree_depth": torch.long, "n_steps": torch.long}
STATISTICS |= {"step_size": torch.float64, "acceptance_rate": torch.float64, "diverging": torch.bool}


def _kinetic(momentum: np.ndarray) -> np.ndarray:
    return 0.5 * np.square(momentum).sum(-1)


def _turns(first: np.ndarray, last: np.ndarray, total: np.ndarray) -> np.ndarray:
    """True where a stretch of a trajectory, given the momenta of its ends and the sum over its points, has turned back.

    The generalised criterion of Betancourt 2017 (appendix A.4.2), with the ends counted by half, as an integral over
    the stretch is: trees of a few steps else take a turn of half a period for none.
    """
    between = total - 0.5 * (first + last)
    return ~((first * between).sum(-1) > 0) | ~((last * between).sum(-1) > 0)

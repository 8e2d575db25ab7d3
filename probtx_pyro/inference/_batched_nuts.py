"""The No-U-Turn sampler of many chains as one batch: every pass is one leapfrog step of every chain,
wherever it is in its own tree.

Hoffman & Gelman 2014, with multinomial sampling along the trajectory, the generalised U-turn criterion and biased
progressive sampling (Betancourt 2017, appendix A). The recursion is unrolled, so that a tree is grown leaf by leaf: at
each leaf the aligned blocks of 2, 4, 8, ... leaves that end there are looked at for a U-turn, from what was kept at
their first leaves (Lao & Dillon 2019; Phan, Pradhan & Jankowiak 2019). A chain whose tree has ended begins its next one
at once; it does not wait for longer trees.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probtx_pyro.inference._adaptation import Adaptation

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
        A tensor of the dtype and device of what is drawn.
    used
        How many rows each lane has taken, if it goes on.
    """

    def __init__(self, seeds: Sequence[int], problems: int, size: int, like: Tensor, used: Tensor | None = None):
        self.lanes = [(seed, problem) for seed in seeds for problem in range(problems)]
        self.used = np.zeros(len(self.lanes), dtype=np.int64) if used is None else used.numpy().copy()
        self._ahead = like.new_empty(len(self.lanes), BLOCK, size + 3)
        self._rows = torch.arange(len(self.lanes), device=like.device)
        for lane in np.flatnonzero(self.used % BLOCK):
            self._draw(lane)

    def _draw(self, lane: np.integer) -> None:
        generator = np.random.default_rng([*self.lanes[lane], int(self.used[lane]) // BLOCK])
        size = self._ahead.shape[-1] - 3
        drawn = np.concatenate([generator.random((BLOCK, 3)), generator.standard_normal((BLOCK, size))], 1)
        self._ahead[lane] = torch.from_numpy(drawn).to(self._ahead)

    def take(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """A row of three uniform numbers (lane, 3) and a normal one for each coordinate;
        lanes not in ``which`` keep theirs for later.
        """
        taking = which.cpu().numpy()
        for lane in np.flatnonzero(taking & (self.used % BLOCK == 0)):
            self._draw(lane)
        row = self._ahead[self._rows, torch.from_numpy(self.used % BLOCK).to(self._rows.device)]
        self.used += taking
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
        (lane, draw, coordinate).
    statistics : dict
        (lane, draw) each, by ArviZ's names, as CmdStan defines them: ``lp`` and ``energy``, the Hamiltonian, at the
        point drawn with the momentum that it had on the trajectory; ``tree_depth``, the doublings completed;
        ``n_steps``, leapfrog steps; ``acceptance_rate``, their mean acceptance probability; ``step_size``;
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
        lanes, size = start.shape
        self.shape = adaptation.state["step"].shape
        self._sizes = 2 ** torch.arange(1, max_tree_depth + 1, device=start.device)
        number, vector = start.new_zeros(lanes), torch.zeros_like(start)
        count = torch.zeros(lanes, dtype=torch.long, device=start.device)
        never = torch.zeros(lanes, dtype=torch.bool, device=start.device)
        energy, slope = potential(start)
        point = torch.stack([start, vector, slope], 1)  # position, momentum, slope of the potential
        #: where the chains are; all that the next draws depend on, with `streams` and `adaptation`
        self.state: dict[str, Tensor] = {"done": count, "point": point, "potential": energy}
        # the trajectory: its two ends, sum of momenta, weight, doublings, and the point that it proposes
        self.state |= {"ends": torch.stack([point, point], 1), "sum": vector, "chosen": point}
        self.state |= dict.fromkeys(("weight", "initial", "chosen_potential", "chosen_energy", "accepted"), number)
        self.state |= dict.fromkeys(("depth", "steps", "leaves"), count)
        # the half that is grown: its last leaf, its direction, how many leaves it has, and as above
        self.state |= {"tip": point, "half": point, "half_sum": vector}
        self.state |= dict.fromkeys(("sign", "half_weight", "half_potential", "half_energy"), number)
        # momentum and sum before it, of the first leaf of a block
        self.state["kept"] = start.new_zeros(lanes, max_tree_depth, 2, size)
        self.state |= dict.fromkeys(("moving", "diverging"), never)
        self.draws = start.new_zeros(lanes, num_samples, size)
        wide = {name: torch.zeros(lanes, num_samples, dtype=torch.float64, device=start.device) for name in STATISTICS}
        self.statistics = {name: x.to(STATISTICS[name]) for name, x in wide.items()}

    def begin(self) -> None:
        """Find first step sizes, and set out."""
        everyone = torch.ones_like(self.state["moving"])
        normals = self.streams.take(everyone)[1]

        def acceptance(step: Tensor) -> Tensor:
            _, potential, momentum = self._leap(self.state["point"], step.flatten(), normals)
            lost = potential + _kinetic(momentum) - self.state["potential"] - _kinetic(normals)
            return torch.where(torch.isfinite(lost), (-lost.double()).exp().clamp(max=1.0), 0.0).view(self.shape)

        self.adaptation.begin(acceptance)
        self._set_out(everyone)

    @property
    def finished(self) -> bool:
        """True once every lane has all its draws."""
        return bool((self.state["done"] == self.total).all())

    def _leap(self, point: Tensor, step: Tensor, momentum: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One leapfrog step in coordinates whose scales are 1: the new point, its potential and its momentum."""
        scale = self.adaptation.state["scale"].flatten(0, 1)
        step = step.to(point.dtype).unsqueeze(-1)
        momentum = momentum - 0.5 * step * scale * point[:, SLOPE]
        position = point[:, POSITION] + step * scale * momentum
        potential, slope = self.potential(position)
        momentum = momentum - 0.5 * step * scale * slope
        return torch.stack([position, momentum, slope], 1), potential, momentum

    def advance(self) -> int:
        """Take one leapfrog step with every lane that moves, end the trees that are complete;
        the number of draws completed.
        """
        s = self.state
        moving = s["moving"]
        uniforms, _ = self.streams.take(moving)
        step = self.adaptation.state["step"].flatten() * s["sign"]
        leaf, potential, momentum = self._leap(s["tip"], step, s["tip"][:, MOMENTUM])
        energy = potential + _kinetic(momentum)
        # no number, or an infinite density where the numbers end on the boundary of a support: never a point to draw
        energy = torch.where(torch.isfinite(energy), energy, math.inf)
        lost = energy - s["initial"]
        diverging = ~(lost <= DIVERGENCE)
        # the leaf joins the half, which proposes each of its leaves with a chance in proportion to its weight
        before, number = s["half_sum"], s["leaves"]
        half_sum, half_weight = before + momentum, torch.logaddexp(s["half_weight"], -lost)
        taken = uniforms[:, 0].log() <= -lost - half_weight
        turning = self._turning(moving, number, momentum, before, half_sum)
        self._set(moving, tip=leaf, half_sum=half_sum, half_weight=half_weight, leaves=number + 1, diverging=diverging)
        self._set(moving, steps=s["steps"] + 1, accepted=s["accepted"] + (-lost).exp().clamp(max=1.0))
        self._set(moving & taken, half=leaf, half_potential=potential, half_energy=energy)
        # a half of as many leaves as the trajectory joins it, and is favoured by its weight over the trajectory's
        broken = diverging | turning
        joined = moving & ~broken & (s["leaves"] == 2 ** s["depth"])
        total = s["sum"] + s["half_sum"]
        chosen = uniforms[:, 1].log() <= s["half_weight"] - s["weight"]
        self._set(
            joined & chosen, chosen=s["half"], chosen_potential=s["half_potential"], chosen_energy=s["half_energy"]
        )
        forward = s["sign"] > 0
        outer = torch.stack([~forward, forward], 1).view(-1, 2, 1, 1)
        ends = torch.where(outer, leaf.unsqueeze(1), s["ends"])
        weight = torch.logaddexp(s["weight"], s["half_weight"])
        self._set(joined, sum=total, ends=ends, weight=weight, depth=s["depth"] + 1)
        ended = _turns(s["ends"][:, 0, MOMENTUM], s["ends"][:, 1, MOMENTUM], s["sum"]) | (
            s["depth"] == self.max_tree_depth
        )
        finished = moving & (broken | joined & ended)
        self._grow(joined & ~ended, uniforms[:, 2])
        s["moving"] = moving & ~finished
        return self._complete()

    def _turning(self, moving: Tensor, number: Tensor, momentum: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """True where an aligned block of 2, 4, 8, ... leaves that ends at this leaf makes a U-turn."""
        deepest = max(1, int(self.state["depth"].max()))
        sizes, kept = self._sizes[:deepest], self.state["kept"][:, :deepest]
        first = (number.unsqueeze(1) % sizes == 0) & moving.unsqueeze(1)
        kept = torch.where(first[..., None, None], torch.stack([momentum, before], 1).unsqueeze(1), kept)
        self.state["kept"][:, :deepest] = kept
        last = (number.unsqueeze(1) + 1) % sizes == 0
        begun, sums = kept[:, :, 0], after.unsqueeze(1) - kept[:, :, 1]
        return (last & _turns(begun, momentum.unsqueeze(1), sums)).any(1)

    def _complete(self) -> int:
        """End the step of every lane that rests, unless it shares its warmup with one that does not yet."""
        s, adaptation = self.state, self.adaptation
        resting = (~s["moving"] & (s["done"] < self.total)).view(self.shape)
        warm = (s["done"] < adaptation.num_warmup).view(self.shape)
        if adaptation.pooled:
            everyone = resting.all() if self.together else resting.all(0)
            resting = resting & (everyone | ~warm)
        if not bool(resting.any()):
            return 0
        ready = resting.flatten()
        done = s["done"] + ready
        acceptance = s["accepted"] / s["steps"]
        kept = ready & (done > adaptation.num_warmup)
        lane, draw = kept.nonzero().squeeze(-1), (done - adaptation.num_warmup - 1)[kept]
        found = {
            "lp": -s["chosen_potential"],
            "energy": s["chosen_energy"],
            "tree_depth": s["depth"],
            "n_steps": s["steps"],
            "step_size": adaptation.state["step"].flatten(),
            "acceptance_rate": acceptance,
            "diverging": s["diverging"],
        }
        for name, x in found.items():
            self.statistics[name][lane, draw] = x[kept].to(self.statistics[name].dtype)
        self.draws[lane, draw] = s["chosen"][kept, POSITION]
        self._set(ready, done=done, point=s["chosen"], potential=s["chosen_potential"])
        if bool((resting & warm).any()):
            position = s["point"][:, POSITION].unflatten(0, self.shape)
            adaptation.update(resting & warm, done.view(self.shape), acceptance.double().view(self.shape), position)
        self._set_out(ready & (done < self.total))
        return int(ready.sum())

    def _set_out(self, which: Tensor) -> None:
        """Begin a trajectory of a single point, with a new momentum."""
        s = self.state
        uniforms, normals = self.streams.take(which)
        start = torch.stack([s["point"][:, POSITION], normals, s["point"][:, SLOPE]], 1)
        energy = s["potential"] + _kinetic(normals)
        self._set(which, ends=start.unsqueeze(1).expand_as(s["ends"]), sum=normals, initial=energy, moving=True)
        self._set(which, weight=0.0, depth=0, steps=0, accepted=0.0)
        self._set(which, chosen=start, chosen_potential=s["potential"], chosen_energy=energy)
        self._grow(which, uniforms[:, 2])

    def _grow(self, which: Tensor, uniform: Tensor) -> None:
        """Begin to double the trajectory, at one of its two ends."""
        forward = uniform < 0.5
        tip = torch.where(forward.view(-1, 1, 1), self.state["ends"][:, 1], self.state["ends"][:, 0])
        sign = torch.where(forward, 1.0, -1.0).to(tip.dtype)
        self._set(which, tip=tip, sign=sign, leaves=0, half_sum=0.0, half_weight=-math.inf)

    def _set(self, which: Tensor, **new: Any) -> None:
        """Write values of some lanes."""
        for name, x in new.items():
            old = self.state[name]
            self.state[name] = torch.where(which.view(-1, *(1,) * (old.dim() - 1)), x, old)

    # -- runs that are killed ------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """All that the next draws depend on, and the draws so far."""
        used, statistics = torch.from_numpy(self.streams.used.copy()), dict(self.statistics)
        moved = {"state": dict(self.state), "adaptation": dict(self.adaptation.state), "used": used}
        return moved | {"draws": self.draws, "statistics": statistics}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what was `saved`; the streams are made with its ``used``."""
        device = self.draws.device
        self.state = {name: x.to(device) for name, x in saved["state"].items()}
        self.adaptation.state = {name: x.to(device) for name, x in saved["adaptation"].items()}
        self.draws = saved["draws"].to(device)
        self.statistics = {name: x.to(device) for name, x in saved["statistics"].items()}


STATISTICS = {"lp": torch.float64, "energy": torch.float64, "tree_depth": torch.long, "n_steps": torch.long}
STATISTICS |= {"step_size": torch.float64, "acceptance_rate": torch.float64, "diverging": torch.bool}


def _kinetic(momentum: Tensor) -> Tensor:
    return 0.5 * momentum.square().sum(-1)


def _turns(first: Tensor, last: Tensor, total: Tensor) -> Tensor:
    """True where a stretch of a trajectory, given the momenta of its ends and the sum over its points, has turned back.

    The generalised criterion of Betancourt 2017 (appendix A.4.2), with the ends counted by half, as an integral over
    the stretch is: trees of a few steps else take a turn of half a period for none.
    """
    between = total - 0.5 * (first + last)
    return ~((first * between).sum(-1) > 0) | ~((last * between).sum(-1) > 0)

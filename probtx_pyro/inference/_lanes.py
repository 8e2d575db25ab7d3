"""The log density of many chains at once, each a vector of R^n: what a sampler of a batch moves in.

A lane is one chain in one of the independent problems of a batch; lanes are rows of one matrix, chains first. A closed form takes all
of them as leading axes of its parameters, a program by ``torch.func.vmap`` where that serves, and one by one where it does not.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import pyro
import torch
from torch import Tensor

from probtx_pyro.inference._program import Parameters
from probtx_pyro.ops._numerics import sum_to

Evaluation = Callable[[Tensor], tuple[Tensor, Tensor]]


class Lanes:
    """Minus the log density of each lane, and its gradient.

    Parameters
    ----------
    found
        The parameters of a program.
    starts
        Constrained values by site, (chain, *shape of the parameter).

    Raises
    ------
    ValueError
        A start without a finite log density or gradient, naming chain and site.
    """

    def __init__(self, found: Parameters, starts: Mapping[str, Tensor]):
        self.found, self.problem = found, found.problem if found.closed else None
        problem = self.problem
        self._potential, self.transforms = found.unconstrained()
        #: the independent problems, each a lane of every chain
        self.problems = torch.Size() if problem is None else problem.problems
        own = {name: self.transforms[name](x[0]).shape for name, x in starts.items()}
        leading = {name: 0 if problem is None else problem.leading(name) for name in own}
        self._shapes = {name: (shape[: leading[name]], shape[leading[name] :]) for name, shape in own.items()}
        self.sizes = {name: math.prod(shape) // self.problems.numel() for name, shape in own.items()}
        self.how = "closed form"
        self._evaluate: Evaluation = partial(_differentiated, self._closed)
        with pyro.validation_enabled(False), torch.enable_grad():
            free = {name: self.transforms[name](x).detach() for name, x in starts.items()}
            self.start = self._laid_out(free)
            if problem is None:
                self.how, self._evaluate = "program, chain by chain", partial(_differentiated, self._one_by_one)
                if not found.discrete and self._vectorises():
                    self.how, self._evaluate = "program by vmap", self._by_vmap
            self._require_inside(starts, free)

    def _padded(self, name: str) -> tuple[list[int], list[int]]:
        """The leading axes of a parameter as those of problems and those within one."""
        leading, _ = self._shapes[name]
        wide = (1,) * (len(self.problems) - len(leading)) + tuple(leading)
        return list(self.problems), [n // p for n, p in zip(wide, self.problems, strict=True)]

    def _laid_out(self, free: Mapping[str, Tensor]) -> Tensor:
        """Values (chain, *shape) as rows."""
        rows = []
        for name, z in free.items():
            outer, inner = self._padded(name)
            rank = len(outer)
            z = z.reshape(len(z), *(n for pair in zip(outer, inner, strict=True) for n in pair), *self._shapes[name][1])
            order = [0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2), *range(2 * rank + 1, z.dim())]
            rows.append(z.permute(order).reshape(len(z) * self.problems.numel(), -1))
        return torch.cat(rows, 1)

    def _values(self, rows: Tensor) -> dict[str, Tensor]:
        """The inverse: rows (chain * problems, ..., coordinate) to (chain, ..., *shape)."""
        chains, middle, rank = len(rows) // self.problems.numel(), rows.shape[1:-1], len(self.problems)
        free = {}
        for name, z in zip(self.sizes, rows.split(list(self.sizes.values()), -1), strict=True):
            outer, inner = self._padded(name)
            leading, own = self._shapes[name]
            m = len(middle)
            z = z.reshape(chains, *outer, *middle, *inner, *own)
            pairs = [axis for i in range(rank) for axis in (1 + i, 1 + rank + m + i)]
            order = [0, *range(1 + rank, 1 + rank + m), *pairs, *range(1 + 2 * rank + m, z.dim())]
            free[name] = z.permute(order).reshape(chains, *middle, *leading, *own)
        return free

    def constrained(self, rows: Tensor) -> dict[str, Tensor]:
        """Values of the parameters, (chain, draw, *shape), of rows (lane, draw, coordinate)."""
        with pyro.validation_enabled(False), torch.no_grad():
            return {name: self.transforms[name].inv(z) for name, z in self._values(rows).items()}

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The potential (lane,) and its gradient (lane, coordinate); infinity where a matrix has no decomposition."""
        try:
            return self._evaluate(rows.detach())
        except torch.linalg.LinAlgError:
            lanes = self.problems.numel()
            if len(rows) == lanes:  # of one chain: it has left the numbers' range, which is a divergence and no error
                return rows.new_full((lanes,), math.inf), torch.zeros_like(rows)
            found = [self(part) for part in rows.split(lanes)]
            return torch.cat([energy for energy, _ in found]), torch.cat([slope for _, slope in found])

    def _closed(self, rows: Tensor, guarded: bool = True) -> Tensor:
        """Potential energy by `Problem.objective`; infinity where the numbers of a lane have reached the boundary of a support."""
        problem = self.problem
        assert problem is not None
        free = self._values(rows)
        values = {name: self.transforms[name].inv(z) for name, z in free.items()}
        if guarded:
            with torch.no_grad():
                inside = self._inside(values)
            if not bool(inside.all()):
                within = self.start[: self.problems.numel()].repeat(len(rows) // self.problems.numel(), 1)
                rows = torch.where(inside.unsqueeze(1), rows, within)
                return torch.where(inside, self._closed(rows, guarded=False), math.inf)
        volume = torch.zeros(())
        for name, x in values.items():
            volume = volume + self._by_problem(name, self.transforms[name].inv.log_abs_det_jacobian(free[name], x))
        laid_out = {name: x.reshape(len(x), *problem.start[name].shape) for name, x in values.items()}
        return -(problem.objective(laid_out) + volume).flatten()

    def _by_problem(self, name: str, x: Tensor) -> Tensor:
        """Sums over what belongs to one problem, (chain, *problems), of numbers (chain, *leading axes, ...) of a parameter."""
        leading = 1 + len(self._shapes[name][0])
        x = x.flatten(leading).sum(-1) if x.dim() > leading else x
        x = x.reshape(len(x), *(1,) * (1 + len(self.problems) - x.dim()), *x.shape[1:])
        return sum_to(x, torch.Size((len(x), *self.problems)))

    def _inside(self, values: Mapping[str, Tensor]) -> Tensor:
        """True for the lanes (lane,) whose parameters are finite and on their supports."""
        assert self.problem is not None
        formulation, outside = self.problem.formulation, torch.zeros(())
        for name, x in values.items():
            for wrong in (~formulation.row(name).support.check(x), ~torch.isfinite(x)):
                outside = outside + self._by_problem(name, wrong.to(x.dtype))
        return (outside == 0).expand(len(x), *self.problems).flatten()

    def _one_by_one(self, rows: Tensor) -> Tensor:
        return torch.stack([self._of_row(row) for row in rows])

    def _of_row(self, row: Tensor) -> Tensor:
        return self._potential(_chain(self._values(row.unsqueeze(0)), 0))

    def _by_vmap(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        slopes, energies = torch.func.vmap(torch.func.grad_and_value(self._of_row))(rows)
        return energies.detach(), slopes.detach()  # a program may hold parameters of its own

    def _vectorises(self) -> bool:
        """True if the program under vmap is the program: of two starts, densities and gradients agree to half the digits."""
        rows = self.start[:2].detach()
        alone = _differentiated(self._one_by_one, rows)
        try:
            together = self._by_vmap(rows)
        except (RuntimeError, ValueError, NotImplementedError):  # it looks at numbers, or uses what vmap cannot do
            return False
        close = 10 * torch.finfo(rows.dtype).eps ** 0.5
        return all(
            torch.allclose(x, y, rtol=close, atol=close, equal_nan=True) for x, y in zip(alone, together, strict=True)
        )

    def _require_inside(self, starts: Mapping[str, Tensor], free: Mapping[str, Tensor]) -> None:
        """Refuse a start of no density, on the boundary of a support, or without a gradient."""
        energies, slopes = self(self.start)
        inside = torch.isfinite(energies) & torch.isfinite(slopes).all(1) & torch.isfinite(self.start).all(1)
        if bool(inside.all()):
            return
        lane = int((~inside).nonzero()[0])
        chain = lane // self.problems.numel()
        self.found.require_finite(_chain(starts, chain), f"start of chain {chain + 1}")
        gradients = self._values(slopes)
        for name, z in free.items():
            if not (torch.isfinite(z[chain]).all() and torch.isfinite(gradients[name][chain]).all()):
                raise ValueError(
                    f"start: {name} is on the boundary of its support or has no finite gradient there; start inside, at start='prior' or values of your own"
                )
        raise ValueError(
            f"start of chain {chain + 1}: the log density is {-float(energies[lane])}; start='prior', or values of your own"
        )


def _differentiated(energies: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Energies (lane,) and their gradient, by one backward pass."""
    point = rows.detach().requires_grad_()
    found = energies(point)
    (slopes,) = torch.autograd.grad(found.sum(), point)
    return found.detach(), slopes


def _chain(values: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: x[index] for name, x in values.items()}

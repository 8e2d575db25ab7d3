"""The No-U-Turn sampler on any Pyro program: all chains as one batch, with full statistics, and runs that go on.

Chains are lanes of `_batched_nuts`; so are the independent problems of a batch, such as the simulations of a
calibration.
"""

import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import pyro
import torch
from torch import Tensor

from probtx_pyro.inference._adaptation import Adaptation
from probtx_pyro.inference._batched_nuts import BatchedNUTS, Streams
from probtx_pyro.inference._checkpoint import Checkpoint, fingerprint
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._program import Parameters, Program, bound, identity, parameters, require_counts, untouched
from probtx_pyro.inference._start import seeds, starts
from probtx_pyro.inference._units import volume
from probtx_pyro.inference.distributed import Together
from probtx_pyro.models._supports import lies_on
from probtx_pyro.ops._numerics import enable_grad, sum_to, values_hidden
from probtx_pyro.ops._progress import progress_bar

SAVE_SECONDS = 30.0  # a killed run loses no more than this
LOOK_SECONDS = 0.2  # between two looks of the bar
RECORDED = 200  # evaluations of a program after which one is recorded, which takes the time of about as many
#: steps of a chain that learns by itself, of all together that share what they learn, and of each of these at least
WARMUP, SHARED, SHORTEST = 1000, 2000, 250
ADAPTATION = {"shared": True, "chain": False}
#: how the numbers of independent problems become one, by statistic
OVER_PROBLEMS: dict[str, Callable[[Tensor, int], Tensor]] = dict.fromkeys(("lp", "energy", "n_steps"), Tensor.sum)
OVER_PROBLEMS |= {"tree_depth": Tensor.amax, "diverging": Tensor.any}
OVER_PROBLEMS |= dict.fromkeys(("step_size", "acceptance_rate"), Tensor.mean)


@untouched()
def nuts(
    program: Program,
    *args: Any,
    num_samples: int = 1000,
    num_warmup: int | None = None,
    num_chains: int = 4,
    seed: int,
    start: str | Mapping[str, Tensor] = "map",
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
    adaptation: str = "shared",
    compile: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    process_group: Any = None,
    progress: bool | None = None,
    **named: Any,
) -> Draws:
    """Draw a program's continuous latent sites, given its data, by NUTS.

    Parameters
    ----------
    program, args, named
        Usually `models.bayesian`, collapsed for speed, and its data, by place or by name; any other Pyro program, too,
        with its arguments by place. Discrete sites are summed out by Pyro's enumeration.
    num_samples, num_chains
        Draws kept of each chain, and chains. Those of a collapsed `models.bayesian` are one batch, in which 64 cost
        little more than 4; those of another program are where ``torch.func.vmap`` serves it, else it runs once for
        each. Independent problems, the leading axes of a posterior that no parameter shares, have trees and step sizes
        of their own.
    num_warmup
        Adaptation steps before the draws. If None 1000; where more than two chains share what they learn 2000 in all,
        but no less than 250 each.
    seed
        Fixes every draw to the bit on one device; the global generator is left as it was.
    start
        ``"map"``, ``"formulation"``, ``"prior"`` or values, as in `inference.gibbs`. Chains from "map" know one mode.
    target_accept
        Mean acceptance probability that the step size is adapted to, in (0, 1); raise it where draws diverge.
    max_tree_depth
        At most ``2**max_tree_depth - 1`` leapfrog steps for a draw.
    adaptation
        ``"shared"``: in the warmup chains wait for each other and learn one step size and one variance of each
        coordinate. ``"chain"``: each learns its own, and its draws do not depend on how many others there are, but for
        rounding in the density of the batch.
    compile
        True compiles the density and its gradient by ``torch.compile``, which on the CPU wants a C++ compiler.
        That takes 10 to 30 seconds, a few where the same was compiled before; a run takes a third to a fifth of the
        time. Draws are others than without, because rounding differs. Programs other than a collapsed
        `models.bayesian`, hierarchies among them, must be such that ``torch.func.vmap`` serves.
    checkpoint
        A file that keeps the run, every 30 seconds; the same call after a kill goes on to the same draws. For a program
        that is not `models.bayesian` the file knows its name and arguments, not its code.
    process_group
        A `torch.distributed` group whose processes each move a share of the chains, after the same call in each; every
        one returns all draws. Random numbers belong to chains, so that the draws are the same for any number of
        processes, but for rounding as above.
    progress
        True shows a bar with step size and divergences, False none, None shows one on a terminal after a second.

    Returns
    -------
    Draws
        With ``lp`` (log density over unconstrained coordinates, Jacobians included), ``energy``, ``tree_depth``,
        ``n_steps``, ``step_size``, ``acceptance_rate`` and ``diverging``, each (chain, draw), as CmdStan defines them.
        Over independent problems densities, energies and steps are sums, the depth is the largest, step size and
        acceptance are means. Of an enumerated program, each query of weight 0 adds log U to ``lp``.
        ``record["evaluation"]`` says how the density was evaluated, ``record["compile_seconds"]`` how much of
        ``record["seconds"]`` went to ``compile``.

    Raises
    ------
    ValueError
        Bad options; a start whose log density is not finite, naming the site; a checkpoint of another run; a density
        that cannot be compiled.

    Examples
    --------
    >>> import torch
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]), key_precision=10.0)
    >>> posterior = models.bayesian(mixture, keys=Normal(0.0, 3.0))
    >>> queries = torch.tensor([[-2.0], [-2.2], [2.0]])
    >>> draws = nuts(posterior, queries, num_samples=10, num_warmup=20, num_chains=2, seed=0)
    >>> draws.samples["keys"].shape
    torch.Size([2, 10, 2, 1])
    """
    if num_warmup is None:
        num_warmup = max(SHORTEST, min(WARMUP, SHARED // max(1, num_chains))) if adaptation == "shared" else WARMUP
    _require_options(num_samples, num_warmup, num_chains, target_accept, max_tree_depth, adaptation)
    together = Together(process_group)
    mine = together.share(num_chains)
    if process_group is not None and checkpoint is not None:
        raise ValueError("checkpoint: chains spread over processes are not kept; leave out checkpoint or process_group")
    args = bound(program, args, named)
    began = time.monotonic()
    own = seeds(seed, num_chains, "chains")
    found = parameters(program, args).in_units()
    sizes = [num_samples, num_warmup, num_chains, target_accept, max_tree_depth, adaptation]
    dtype = next(iter(found.sites.values())).initial.dtype
    what = {"arguments": args, "sizes": sizes, "seed": seed, "start": start, "dtype": dtype, "trees": "NumPy"}
    what |= {"units": found.units, "compile": compile}
    run = fingerprint(identity(program) | what)
    kept = Checkpoint(checkpoint, run)
    state = kept.load()
    together.agree(**{"program, data, options or seed": run})
    lanes = Lanes(found, starts(found, num_chains, start, seed))  # all, so that a bad one is refused everywhere
    problems = lanes.problems.numel()
    begin = lanes.start.unflatten(0, (-1, problems))[mine]
    adapting = Adaptation(begin, num_warmup, target_accept, ADAPTATION[adaptation], together.rows)
    begin = begin.flatten(0, 1)
    # a trajectory may leave the numbers' range, which is a divergence and no error; the start was checked
    with pyro.validation_enabled(False), enable_grad():
        compiling = time.monotonic()
        if compile:
            lanes.compile(begin)
        compiling = time.monotonic() - compiling
        streams = Streams(
            own[mine], problems, begin.shape[1], begin, None if state is None else state["streams"]["used"].numpy()
        )
        sampler = BatchedNUTS(
            lanes, begin, streams, adapting, num_samples, max_tree_depth, together=process_group is not None
        )
        seconds = 0.0
        if state is None:
            sampler.begin()
        else:
            sampler.restore(state)
            seconds = state["seconds"]
        total = len(begin) * (num_warmup + num_samples)
        saved = shown = time.monotonic()
        with progress_bar(
            label="NUTS", progress=progress, total=total, initial=int(sampler.state["done"].sum())
        ) as bar:
            while not sampler.finished:
                bar.update(sampler.advance())
                now = time.monotonic()
                if now - shown > LOOK_SECONDS or sampler.finished:
                    shown, step = now, float(adapting.state["step"].mean())
                    bar.set_postfix(step=f"{step:.2g}", diverging=int(sampler.statistics["diverging"].sum()))
                if checkpoint is not None and (now - saved > SAVE_SECONDS or sampler.finished):
                    saved = now
                    kept.save({**sampler.saved(), "seconds": seconds + now - began})
    statistics = {
        name: OVER_PROBLEMS[name](together.rows(x.to(begin.device).unflatten(0, (-1, problems))), 1)
        for name, x in sampler.statistics.items()
    }
    drawn = together.rows(sampler.draws.to(begin.device).unflatten(0, (-1, problems)))
    samples = lanes.constrained(drawn.flatten(0, 1))
    record: dict[str, str | int | float] = {
        "seed": seed,
        "num_warmup": num_warmup,
        "seconds": seconds + time.monotonic() - began,
        "start": start if isinstance(start, str) else "values",
        "target_accept": target_accept,
        "max_tree_depth": max_tree_depth,
        "adaptation": adaptation,
        "evaluation": lanes.how,
        **({"compile_seconds": compiling} if compile else {}),
    }
    return Draws(samples, statistics, program, args, "NUTS", record)


def _require_options(
    num_samples: int, num_warmup: int, num_chains: int, target_accept: float, max_tree_depth: int, adaptation: str
) -> None:
    require_counts(num_samples=num_samples, num_chains=num_chains, max_tree_depth=max_tree_depth)
    if num_warmup < 0:
        raise ValueError(f"num_warmup must be 0 or more, not {num_warmup}")
    if not 0 < target_accept < 1:
        raise ValueError(f"target_accept must be between 0 and 1, not {target_accept}; 0.8 is usual")
    if adaptation not in ADAPTATION:
        raise ValueError(f"adaptation must be one of {', '.join(map(repr, ADAPTATION))}, not {adaptation!r}")


Evaluation = Callable[[Tensor], tuple[Tensor, Tensor]]
ONE_BY_ONE = "program, chain by chain"


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
        self.found = found
        self.problem = problem = found.problem.unchecked() if found.closed and found.problem is not None else None
        self._potential, self.transforms = found.unconstrained()
        #: the independent problems, each a lane of every chain
        self.problems = torch.Size() if problem is None else problem.problems
        own = {name: self.transforms[name](x[0]).shape for name, x in starts.items()}
        #: maps from coordinates to values, of the parameters whose coordinates are not their values
        self._maps = {
            name: self.transforms[name].inv for name, x in starts.items() if self.transforms[name](x) is not x
        }
        leading = {name: 0 if problem is None else problem.leading(name) for name in own}
        self._shapes = {name: (shape[: leading[name]], shape[leading[name] :]) for name, shape in own.items()}
        self.sizes = {name: math.prod(shape) // self.problems.numel() for name, shape in own.items()}
        self.how = "closed form"
        self._evaluate: Evaluation = partial(_differentiated, self._closed)
        with pyro.validation_enabled(False), enable_grad():
            free = {name: self.transforms[name](x).detach() for name, x in starts.items()}
            self.start = self._laid_out(free)
            if problem is None:
                self.how, self._evaluate = ONE_BY_ONE, partial(_differentiated, self._one_by_one)
                if not found.discrete and self._vectorises():
                    self.how, self._evaluate, self._before = "program by vmap", self._recording, RECORDED
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

    def _closed(self, rows: Tensor, look: bool = True) -> Tensor:
        """Potential energy by `Problem.objective`;
        infinity where the numbers of a lane have reached the boundary of a support.

        ``look=False`` looks at no number to see whether any has: it takes the way of all cases.
        """
        free, values = self._both(rows)
        with torch.no_grad():
            inside = self._inside(rows, values)
        if look and bool(inside.all()):
            return self._energy(free, values)
        within = self.start[: self.problems.numel()].repeat(len(rows) // self.problems.numel(), 1)
        moved = self._both(torch.where(inside.unsqueeze(1), rows, within))
        return torch.where(inside, self._energy(*moved), math.inf)

    def _both(self, rows: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Coordinates and values of the parameters, (chain, *shape)."""
        free = self._values(rows)
        return free, {name: self._maps[name](z) if name in self._maps else z for name, z in free.items()}

    def _energy(self, free: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
        problem = self.problem
        assert problem is not None
        total = torch.zeros(())
        for name, to_value in self._maps.items():
            total = total + self._by_problem(name, volume(to_value, free[name], values[name]))
        laid_out = {name: x.reshape(len(x), *problem.start[name].shape) for name, x in values.items()}
        return -(problem.objective(laid_out) + total).flatten()

    def _by_problem(self, name: str, x: Tensor) -> Tensor:
        """Sums over what belongs to one problem, (chain, *problems), of numbers (chain, *leading axes,
        ...) of a parameter.
        """
        leading = 1 + len(self._shapes[name][0])
        x = x.flatten(leading).sum(-1) if x.dim() > leading else x
        x = x.reshape(len(x), *(1,) * (1 + len(self.problems) - x.dim()), *x.shape[1:])
        return sum_to(x, torch.Size((len(x), *self.problems)))

    def _inside(self, rows: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """True for the lanes (lane,) whose parameters are finite and on their supports."""
        assert self.problem is not None
        outside = torch.zeros((), device=rows.device)
        for name in self._maps:  # another parameter is on its support wherever it is finite
            x = values[name]
            for wrong in (~lies_on(self.problem.formulation.row(name).support, x), ~torch.isfinite(x)):
                outside = outside + self._by_problem(name, wrong.to(x.dtype))
        lanes = (len(rows) // self.problems.numel(), *self.problems)
        return torch.isfinite(rows).all(-1) & (outside == 0).expand(lanes).flatten()

    def _one_by_one(self, rows: Tensor) -> Tensor:
        return torch.stack([self._of_row(row) for row in rows])

    def _of_row(self, row: Tensor) -> Tensor:
        return self._potential(_chain(self._values(row.unsqueeze(0)), 0))

    def _by_vmap(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        slopes, energies = torch.func.vmap(torch.func.grad_and_value(self._of_row))(rows)
        return energies.detach(), slopes.detach()  # a program may hold parameters of its own

    def _recording(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The program by vmap, which after some evaluations records the tensor operations of one and replays them,
        in a third of the time. Where it looks at numbers, or a replay differs in a bit, it runs on.
        """
        found = self._by_vmap(rows)
        self._before -= 1
        if self._before == 0:
            self._evaluate = self._by_vmap
            try:
                replay = self.recorded(rows)
            except RuntimeError as error:
                if not values_hidden(error):
                    raise
                return found
            pairs = zip(found, replay(rows), strict=True)
            if all(torch.allclose(x, y, rtol=0, atol=0, equal_nan=True) for x, y in pairs):
                self._evaluate = lambda x: replay(x) if x.shape == rows.shape else self._by_vmap(x)
                self.how = "program by vmap, replayed"
        return found

    def recorded(self, rows: Tensor) -> Evaluation:
        """The tensor operations of one evaluation, which serve as many rows as these.

        Raises
        ------
        RuntimeError
            A density that looks at numbers.
        """
        from torch.fx.experimental.proxy_tensor import make_fx  # takes a fifth of a second

        energies = partial(self._closed, look=False)
        plain = self._by_vmap if self.problem is None else partial(_derived, energies)
        with torch.no_grad():
            return cast(Evaluation, make_fx(lambda x: plain(x))(rows))

    def compile(self, rows: Tensor) -> None:
        """Evaluate as many rows as these by what torch makes of the operations of one evaluation; others as before.

        Raises
        ------
        ValueError
            A density that looks at numbers, or runs chain by chain; one that torch cannot compile, or not to the same
            numbers.
        """
        if self.how == ONE_BY_ONE:
            raise ValueError("compile: torch.func.vmap does not serve this program; leave compile out")
        before = self._by_vmap if self.problem is None else self._evaluate
        try:
            fast = torch.compile(self.recorded(rows), fullgraph=True, dynamic=False)
            with torch.no_grad():
                found = fast(rows)
        except RuntimeError as error:  # those of torch._dynamo and torch._inductor are such
            why = "it looks at numbers" if values_hidden(error) else str(error).strip().split("\n")[0]
            raise ValueError(f"compile: the density cannot be compiled: {why}; leave compile out") from error
        if not _close(before(rows), found):
            raise ValueError("compile: the compiled density is another at the start; leave compile out")

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
            if x.shape != rows.shape:  # fewer come when some matrix has no decomposition
                return before(x)
            with torch.no_grad():
                energies, slopes = fast(x)
            return energies, slopes

        self._evaluate, self.how = evaluate, f"{self.how}, compiled"

    def _vectorises(self) -> bool:
        """True if the program under vmap is the program: of two starts,
        densities and gradients agree to half the digits.
        """
        rows = self.start[:2].detach()
        alone = _differentiated(self._one_by_one, rows)
        try:
            together = self._by_vmap(rows)
        except (RuntimeError, ValueError, NotImplementedError):  # it looks at numbers, or uses what vmap cannot do
            return False
        return _close(alone, together)

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
                    f"start: {name} is on the boundary of its support, or without a finite gradient; "
                    "give start='prior' or values"
                )
        raise ValueError(
            f"start of chain {chain + 1}: the log density is {-float(energies[lane])}; "
            "start='prior', or values of your own"
        )


def _differentiated(energies: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Energies (lane,) and their gradient, by one backward pass."""
    point = rows.detach().requires_grad_()
    found = energies(point)
    (slopes,) = torch.autograd.grad(found.sum(), point)
    return found.detach(), slopes


def _derived(energies: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """The same by ``torch.func``, whose operations can be recorded."""

    def total(x: Tensor) -> tuple[Tensor, Tensor]:
        found = energies(x)
        return found.sum(), found

    slopes, found = torch.func.grad(total, has_aux=True)(rows)
    return found, slopes


def _close(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> bool:
    """True if energies and slopes agree to half the digits. Slopes that cancel do within ten roundings of the energy,
    a sum of as many terms.
    """
    rounding = torch.finfo(found[0].dtype).eps
    close = 10 * rounding**0.5
    least = max(close, 10 * rounding * float(expected[0].abs().nan_to_num(0.0, 0.0, 0.0).max()))
    return all(
        torch.allclose(x, y, rtol=close, atol=least, equal_nan=True) for x, y in zip(found, expected, strict=True)
    )


def _chain(values: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: x[index] for name, x in values.items()}

"""The No-U-Turn sampler on any Pyro program: all chains as one batch, with full statistics, and runs that go on.

Chains are lanes of `_batched_nuts`; so are the independent problems of a batch, such as the simulations of a calibration.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from torch import Tensor

from probtx_pyro.inference._adaptation import Adaptation
from probtx_pyro.inference._batched_nuts import BatchedNUTS, Streams
from probtx_pyro.inference._checkpoint import Checkpoint, fingerprint
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._lanes import Lanes
from probtx_pyro.inference._program import Program, bound, identity, parameters, untouched
from probtx_pyro.inference._start import seeds, starts
from probtx_pyro.inference.distributed import Together
from probtx_pyro.ops._progress import progress_bar

SAVE_SECONDS = 30.0  # a killed run loses no more than this
LOOK_SECONDS = 0.2  # between two looks of the bar
WARMUP, SHORTEST = 1000, 250  # steps of four chains, or of one by itself, and of however many that share them
ADAPTATION = {"shared": True, "chain": False}
#: how the numbers of independent problems become one, by statistic
OVER_PROBLEMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "lp": Tensor.sum, "energy": Tensor.sum, "n_steps": Tensor.sum, "tree_depth": Tensor.amax, "step_size": Tensor.mean,
    "acceptance_rate": Tensor.mean, "diverging": Tensor.any,
}  # fmt: skip


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
    checkpoint: str | os.PathLike[str] | None = None,
    process_group: Any = None,
    progress: bool | None = None,
    **named: Any,
) -> Draws:
    """Draw a program's continuous latent sites, given its data, by NUTS.

    Parameters
    ----------
    program, args, named
        Usually `models.bayesian`, collapsed for speed, and its data, by place or by name; any other Pyro program, too, with its
        arguments by place. Discrete sites are summed out by Pyro's enumeration.
    num_samples, num_chains
        Draws kept of each chain, and chains. Those of a collapsed `models.bayesian` are one batch, in which 64 cost little more
        than 4; those of another program are where ``torch.func.vmap`` serves it, else it runs once for each.
        Independent problems, the leading axes of a posterior that no parameter shares, have trees and step sizes of their own.
    num_warmup
        Adaptation steps before the draws. If None 1000; fewer, to no less than 250, where more than four chains share them.
    seed
        Fixes every draw to the bit on one device; the global generator is left as it was.
    start
        ``"map"``, ``"formulation"``, ``"prior"`` or values, as in `inference.gibbs`. Chains from "map" know one mode.
    target_accept
        Mean acceptance probability that the step size is adapted to, in (0, 1); raise it where draws diverge.
    max_tree_depth
        At most ``2**max_tree_depth - 1`` leapfrog steps for a draw.
    adaptation
        ``"shared"``: in the warmup chains wait for each other and learn one step size and one variance of each coordinate.
        ``"chain"``: each learns its own, and its draws do not depend on how many others there are, but for rounding in the
        density of the batch.
    checkpoint
        A file that keeps the run, every 30 seconds; the same call after a kill goes on to the same draws. For a program that is
        not `models.bayesian` the file knows its name and arguments, not its code.
    process_group
        A `torch.distributed` group whose processes each move a share of the chains, after the same call in each; every one
        returns all draws. Random numbers belong to chains, so that the draws are the same for any number of processes, but for
        rounding as above.
    progress
        True shows a bar with step size and divergences, False none, None shows one on a terminal after a second.

    Returns
    -------
    Draws
        With ``lp`` (log density over unconstrained coordinates, Jacobians included), ``energy``, ``tree_depth``, ``n_steps``,
        ``step_size``, ``acceptance_rate`` and ``diverging``, each (chain, draw), as CmdStan defines them. Over independent problems
        densities, energies and steps are sums, the depth is the largest, step size and acceptance are means. Of an enumerated
        program, each query of weight 0 adds log U to ``lp``. ``record["evaluation"]`` says how the density was evaluated.

    Raises
    ------
    ValueError
        Bad options; a start whose log density is not finite, naming the site; a checkpoint of another run.

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
        num_warmup = max(SHORTEST, min(WARMUP, 4 * WARMUP // max(1, num_chains))) if adaptation == "shared" else WARMUP
    _require_options(num_samples, num_warmup, num_chains, target_accept, max_tree_depth, adaptation)
    together = Together(process_group)
    mine = together.share(num_chains)
    if process_group is not None and checkpoint is not None:
        raise ValueError(
            "checkpoint: chains that are spread over processes are not kept; leave out checkpoint or process_group"
        )
    args = bound(program, args, named)
    began = time.monotonic()
    own = seeds(seed, num_chains, "chains")
    found = parameters(program, args)
    sizes = [num_samples, num_warmup, num_chains, target_accept, max_tree_depth, adaptation]
    dtype = next(iter(found.sites.values())).initial.dtype
    what = {"arguments": args, "sizes": sizes, "seed": seed, "start": start, "dtype": dtype}
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
    with pyro.validation_enabled(False), torch.enable_grad():
        streams = Streams(own[mine], problems, begin.shape[1], begin, None if state is None else state["used"])
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
        name: OVER_PROBLEMS[name](together.rows(x.unflatten(0, (-1, problems))), 1)
        for name, x in sampler.statistics.items()
    }
    samples = lanes.constrained(together.rows(sampler.draws.unflatten(0, (-1, problems))).flatten(0, 1))
    record: dict[str, str | int | float] = {
        "seed": seed, "num_warmup": num_warmup, "seconds": seconds + time.monotonic() - began,
        "start": start if isinstance(start, str) else "values", "target_accept": target_accept,
        "max_tree_depth": max_tree_depth, "adaptation": adaptation, "evaluation": lanes.how,
    }  # fmt: skip
    return Draws(samples, statistics, program, args, "NUTS", record)


def _require_options(
    num_samples: int, num_warmup: int, num_chains: int, target_accept: float, max_tree_depth: int, adaptation: str
) -> None:
    if num_samples < 1 or num_chains < 1 or num_warmup < 0 or max_tree_depth < 1:
        raise ValueError(
            f"num_samples, num_chains and max_tree_depth must be 1 or more and num_warmup 0 or more, not {num_samples}, {num_chains}, {max_tree_depth} and {num_warmup}"
        )
    if not 0 < target_accept < 1:
        raise ValueError(f"target_accept must be between 0 and 1, not {target_accept}; 0.8 is usual")
    if adaptation not in ADAPTATION:
        raise ValueError(f"adaptation must be one of {', '.join(map(repr, ADAPTATION))}, not {adaptation!r}")

"""The No-U-Turn sampler on any Pyro program: Pyro's own kernel, with full statistics, several chains, and runs that go on.

Hoffman & Gelman 2014 with multinomial sampling and windowed adaptation (Betancourt 2017, Stan); discrete sites are summed out.
"""

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro.ops.integrator import potential_grad
from torch import Tensor

from probtx_pyro.inference._checkpoint import Checkpoint
from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._program import Parameters, Program, bound, identity, parameters, untouched
from probtx_pyro.inference._recording_nuts import RecordingNUTS
from probtx_pyro.inference._start import seeds, starts
from probtx_pyro.ops._progress import progress_bar

SAVE_STEPS, SAVE_SECONDS = 100, 30.0  # a killed run loses no more than this
Chain = dict[str, dict[str, Tensor]]


@untouched()
def nuts(
    program: Program,
    *args: Any,
    num_samples: int = 1000,
    num_warmup: int = 1000,
    num_chains: int = 4,
    seed: int,
    start: str | Mapping[str, Tensor] = "map",
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    **named: Any,
) -> Draws:
    """Draw a program's continuous latent sites, given its data, by NUTS.

    Parameters
    ----------
    program, args, named
        Usually `models.bayesian`, collapsed for speed, and its data, by place or by name; any other Pyro program, too, with its
        arguments by place. Discrete sites are summed out by Pyro's enumeration.
    num_samples, num_warmup, num_chains
        Draws kept of each chain, adaptation steps before them, and chains, which run one after another. A chain's draws do
        not depend on how many others there are.
    seed
        Fixes every draw to the bit on one device; the global generator is left as it was.
    start
        ``"map"``, ``"formulation"``, ``"prior"`` or values, as in `inference.gibbs`. Chains from "map" know one mode.
    target_accept
        Mean acceptance probability that the step size is adapted to, in (0, 1); raise it where draws diverge.
    max_tree_depth
        At most ``2**max_tree_depth - 1`` leapfrog steps for a draw.
    checkpoint
        A file that keeps the run, every 100 steps or 30 seconds; the same call after a kill goes on to the same draws. For a
        program that is not `models.bayesian` the file knows its name and arguments, not its code.
    progress
        True shows a bar with step size and divergences, False none, None shows one on a terminal after a second.

    Returns
    -------
    Draws
        With ``lp`` (log density over unconstrained coordinates, Jacobians included), ``energy``, ``tree_depth``, ``n_steps``,
        ``step_size``, ``acceptance_rate`` and ``diverging``, each (chain, draw), as CmdStan defines them. Of an enumerated
        program, each query of weight 0 adds log U to ``lp``.

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
    if num_samples < 1 or num_chains < 1 or num_warmup < 0 or max_tree_depth < 1:
        raise ValueError(
            f"num_samples, num_chains and max_tree_depth must be 1 or more and num_warmup 0 or more, not {num_samples}, {num_chains}, {max_tree_depth} and {num_warmup}"
        )
    if not 0 < target_accept < 1:
        raise ValueError(f"target_accept must be between 0 and 1, not {target_accept}; 0.8 is usual")
    args = bound(program, args, named)
    began = time.monotonic()
    own = seeds(seed, num_chains, "chains")
    found = parameters(program, args)
    like = next(iter(found.sites.values())).initial
    sizes = (num_samples, num_warmup, num_chains, target_accept, max_tree_depth)
    what = {"arguments": args, "sizes": sizes, "seed": seed, "start": start, "dtype": like.dtype}
    kept = Checkpoint(checkpoint, identity(program) | what)
    state = kept.load() or {"finished": [], "seconds": 0.0}
    finished: list[Chain] = state["finished"]
    began -= state["seconds"]
    points = starts(program, args, num_chains, start, seed) if len(finished) < num_chains else {}
    total = num_chains * (num_warmup + num_samples)
    bar = progress_bar(label="NUTS", progress=progress, total=total)

    def save(chain: dict[str, Any] | None) -> None:
        kept.save({"finished": finished, "chain": chain, "seconds": time.monotonic() - began})

    with bar, torch.enable_grad():
        bar.update(len(finished) * (num_warmup + num_samples))
        for index in range(len(finished), num_chains):
            bar.set_description(f"NUTS {index + 1}/{num_chains}")
            torch.manual_seed(own[index])
            point = {name: x[index] for name, x in points.items()}
            found.require_finite(point, f"start of chain {index + 1}")
            resumed, state = state.get("chain"), {}
            options = {"target_accept_prob": target_accept, "max_tree_depth": max_tree_depth}
            finished.append(_chain(found, point, num_samples, num_warmup, options, resumed, save, bar))
            save(None)
    samples, statistics = (
        {name: torch.stack([chain[kind][name] for chain in finished]).to(like.device) for name in finished[0][kind]}
        for kind in ("samples", "statistics")
    )
    record = {
        "seed": seed, "num_warmup": num_warmup, "seconds": time.monotonic() - began,
        "start": start if isinstance(start, str) else "values", "target_accept": target_accept,
        "max_tree_depth": max_tree_depth,
    }  # fmt: skip
    return Draws(samples, statistics, program, args, "NUTS", record)


def _chain(
    found: Parameters,
    point: dict[str, Tensor],
    num_samples: int,
    num_warmup: int,
    options: Mapping[str, Any],
    resumed: Mapping[str, Any] | None,
    save: Any,
    bar: Any,
) -> Chain:
    """One chain, from its start or from where it was ``resumed``."""
    potential, transforms = found.unconstrained()
    free = {name: transforms[name](x).detach() for name, x in point.items()}
    _require_interior(potential, free)
    kernel = RecordingNUTS(potential, free, **options)
    samples, statistics = defaultdict[str, list[Tensor]](list), defaultdict[str, list[Tensor]](list)
    # a trajectory may leave the numbers' range, which is a divergence and no error; the start was checked
    with pyro.validation_enabled(False):
        kernel.setup(num_warmup)
        done, diverged = 0, 0
        if resumed is not None:
            kernel.restore(_moved(resumed["kernel"], next(iter(free.values())).device))
            samples.update({name: list(x) for name, x in resumed["samples"].items()})
            statistics.update({name: list(x) for name, x in resumed["statistics"].items()})
            done, diverged = resumed["done"], int(sum(statistics["diverging"]))
            torch.set_rng_state(resumed["generators"][0])
            torch.cuda.set_rng_state_all(resumed["generators"][1:])
        bar.update(done)
        saved = time.monotonic()
        last = num_warmup + num_samples
        for step in range(done + 1, last + 1):
            free = kernel.sample(free)
            if step > num_warmup:
                for name, z in free.items():
                    samples[name].append(transforms[name].inv(z).detach().cpu())
                for name, value in kernel.statistics.items():
                    kind = torch.float64 if isinstance(value, float) else None
                    statistics[name].append(torch.tensor(value, dtype=kind))
                diverged += int(kernel.statistics["diverging"])
            if step % SAVE_STEPS == 0 or time.monotonic() - saved > SAVE_SECONDS:
                saved = time.monotonic()
                generators = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
                chain = {"samples": _stacked(samples), "statistics": _stacked(statistics)}
                save({"kernel": kernel.state(), "done": step, "generators": generators, **chain})
            bar.update()
            bar.set_postfix(step=f"{kernel.step_size:.2g}", diverging=diverged, refresh=step == last)
    return {"samples": _stacked(samples), "statistics": _stacked(statistics)}


def _require_interior(potential: Any, free: dict[str, Tensor]) -> None:
    """Refuse a start on the boundary of a support, or one without a gradient."""
    with pyro.validation_enabled(False):
        slopes, _ = potential_grad(potential, {name: z.clone() for name, z in free.items()})
    for name, z in free.items():
        if not (torch.isfinite(z).all() and torch.isfinite(slopes[name]).all()):
            raise ValueError(
                f"start: {name} is on the boundary of its support or has no finite gradient there; start inside, at start='prior' or values of your own"
            )


def _stacked(values: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack(x) for name, x in values.items() if x}


def _moved(x: Any, device: torch.device) -> Any:
    if isinstance(x, dict):
        return {name: _moved(value, device) for name, value in x.items()}
    if isinstance(x, list):
        return [_moved(value, device) for value in x]
    return x.to(device) if isinstance(x, Tensor) else x

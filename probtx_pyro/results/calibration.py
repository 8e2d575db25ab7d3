"""Is a sampler right: simulation-based calibration, and Geweke's joint test of Gibbs sampling.

If parameters come from the prior and data from them, the rank of the true parameter among draws from its posterior is
uniform: of every parameter, and of any function of parameters and data. Talts et al. 2018, *Validating Bayesian
inference algorithms with simulation-based calibration*; Modrák et al. 2023 on why the log likelihood belongs among the
functions; Geweke 2004, *Getting it right*.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probtx_pyro.inference import Approximation, Draws
from probtx_pyro.inference._checkpoint import Checkpoint
from probtx_pyro.inference._program import identity, require_counts
from probtx_pyro.inference._start import seeds
from probtx_pyro.inference.distributed import Together
from probtx_pyro.inference.em import require_posterior
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.ops._progress import progress_bar
from probtx_pyro.results._ecdf import Band, simultaneous_band, uniformity
from probtx_pyro.results._evaluation import led
from probtx_pyro.results._simulation import simulate, simulate_data, simulate_one

Sampler = Callable[..., Draws | Approximation]
Quantity = Callable[[Any, Data], Tensor]
Array = NDArray[np.floating[Any]]


def log_likelihood(formulation: Formulation, data: Data) -> Tensor:
    """``Σ_i log p(x_i | parameters)`` over the observations of a problem.

    Parameters
    ----------
    formulation
        Its parameters may have leading axes of draws.
    data
        In the order of the formulation's table.

    Returns
    -------
    Tensor
        (..., *problems).
    """
    evidence, weights = formulation.log_evidence(*formulation.observations(data)), formulation.datum(data, "weights")
    return (evidence if weights is None else torch.where(weights > 0, weights * evidence, 0.0)).sum(-1)


class Calibration(NamedTuple):
    """Ranks of the truth among posterior draws.

    ranks: by quantity, (simulation, *shape): how many of ``num_draws`` lie below the truth. method: the sampler's.
    kind: "posterior", or what else was drawn from, as "pseudo-posterior", whose ranks need not be uniform where the
    sampler is right.
    """

    ranks: dict[str, NDArray[np.int64]]
    num_draws: int
    method: str
    kind: str = "posterior"

    @property
    def num_simulations(self) -> int:
        """Simulations."""
        return len(next(iter(self.ranks.values())))

    @property
    def num_quantities(self) -> int:
        """Scalars whose ranks are tested."""
        return sum(x[0].size for x in self.ranks.values())

    def p_values(self) -> dict[str, Array]:
        """The p-values of uniform ranks, by quantity, (*shape); each by itself, see `ecdf.uniformity`."""
        return {name: uniformity(x, self.num_draws) for name, x in self.ranks.items()}

    def smallest(self) -> tuple[str, float]:
        """The least uniform quantity, with its index, and its p-value times the number of quantities (Bonferroni),
        at most 1.
        """
        named = [
            (f"{name}{list(i) if i else ''}", p[i]) for name, p in self.p_values().items() for i in np.ndindex(p.shape)
        ]
        worst, p = min(named, key=lambda x: x[1])
        return worst, min(1.0, float(p) * len(named))

    def ok(self, level: float = 0.99) -> bool:
        """True if all ranks look uniform at once: a right sampler passes with chance ``level`` or more."""
        return self.smallest()[1] > 1 - level

    def band(self, level: float = 0.99) -> Band:
        """The band that holds the distribution functions of all quantities at once with chance ``level`` or more."""
        return simultaneous_band(self.num_simulations, self.num_draws, 1 - (1 - level) / self.num_quantities)

    def __str__(self) -> str:
        worst, p = self.smallest()
        verdict = "calibrated" if self.ok() else "NOT calibrated"
        method = self.method if self.kind == "posterior" else f"{self.method} on a {self.kind}"
        return (
            f"{method}: {verdict} in {self.num_simulations} simulations of {self.num_draws} draws; "
            f"the least uniform of {self.num_quantities} quantities is {worst} (p = {p:.2g} after Bonferroni)"
        )


def calibrate(
    posterior: Bayesian,
    *data: Tensor | None,
    sampler: Sampler,
    num_simulations: int,
    seed: int,
    num_draws: int = 99,
    batch_size: int | None = None,
    quantities: Mapping[str, Quantity] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    process_group: Any = None,
    progress: bool | None = None,
    **named: Tensor | None,
) -> Calibration:
    """Simulation-based calibration of a sampler on a model.

    Parameters
    ----------
    posterior
        `models.bayesian`, its priors proper. Where they do not separate the units, labels switch and ranks mean
        nothing.
    data, named
        The data of the formulation, by place or by name, or their shapes. Explained data give shapes alone, their
        numbers are drawn anew; masks, weights and what the model is conditional on are kept as they are.
    sampler
        ``sampler(posterior, *data, seed=...)``: `inference.gibbs`, `nuts` or `variational`, with its options by
        `functools.partial`. Its draws should be nearly independent: thinned, or one for each of many chains.
    num_simulations, num_draws
        Simulations, and draws used of each posterior, evenly spaced over all that the sampler returns.
    seed
        A non-negative integer.
    batch_size
        So many simulations go to the sampler at once, as one more leading axis of parameters and data, which
        `inference.gibbs` and `nuts` take at little more cost; one at a time, without that axis, if None.
    quantities
        Functions of a formulation and data, more to be ranked than the parameters and the log likelihood.
    checkpoint
        A file that keeps the ranks after every call of the sampler: the same call goes on there. Delete it when done.
    process_group
        A `torch.distributed` group whose processes each make a share of the sampler's calls, after the same call in
        each; every one returns all ranks, which are the same for any number of processes.
    progress
        True shows a bar, False none; None shows one on a terminal after a second.

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        A sampler that returns fewer draws than asked for, or NaN; numbers that are not positive.

    Examples
    --------
    >>> from functools import partial
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import inference, models
    >>> keys = torch.tensor([[-2.0], [2.0]])
    >>> posterior = models.bayesian(models.GaussianMixture(keys), keys=Normal(keys, 0.5))
    >>> sampler = partial(inference.gibbs, num_chains=19, num_samples=1, num_warmup=20)
    >>> found = calibrate(posterior, (6, 1), sampler=sampler, num_simulations=50, num_draws=19, seed=0, batch_size=50)
    >>> found.ranks["keys"].shape, found.ok()
    ((50, 2, 1), True)
    """
    require_counts(num_simulations=num_simulations, num_draws=num_draws, batch_size=batch_size or 1)
    require_posterior(posterior, "results.calibrate")
    like, size = _like(posterior, posterior.bind(*data, **named)), batch_size or 1
    if posterior.hierarchical and batch_size:
        raise ValueError("batch_size: a hierarchy is calibrated one simulation at a time; leave batch_size out")
    functions = {"log_likelihood": log_likelihood, **(quantities or {})}
    starts = range(0, num_simulations, size)
    rows = list(zip(posterior.formulation.DATA.items(), like, strict=True))
    what = {
        **identity(posterior),
        "fixed": [x for (_, row), x in rows if row.role != "explained"],
        "shapes": [x if x is None else tuple(x.shape) for _, x in rows],
        "functions": [*functions],
        "options": ("calibration", num_simulations, num_draws, seed, batch_size),
    }
    run = Checkpoint(checkpoint, what)
    kept: dict[str, Any] = run.load() or {"ranks": [], "method": ""}
    together = Together(process_group)
    if process_group is not None and checkpoint is not None:
        raise ValueError("checkpoint: ranks spread over processes are not kept; leave out checkpoint or process_group")
    mine = together.share(len(starts))
    done, parts = len(kept["ranks"]), [*zip(starts, seeds(seed, len(starts), "simulations"), strict=True)][mine]
    bar = progress_bar(parts[done:], label="calibration", progress=progress, total=len(parts), initial=done)
    for part, seed_of_part in bar:
        count = min(size, num_simulations - part)
        of_data, of_sampler, of_ties = seeds(seed_of_part, 3, "simulations")
        if batch_size is None:
            own, truth, simulated = simulate_one(posterior, like, of_data)
        else:
            own, truth, simulated = simulate(posterior, like, count, of_data)
        drawn = sampler(own, *simulated, seed=of_sampler)
        draws = drawn.draws if isinstance(drawn, Approximation) else drawn
        picked = _picked(draws, num_draws)
        ties = np.random.default_rng(of_ties)
        # in a batch a number that all units share has axes of size 1
        wide = {name: x.reshape(picked[name].shape[1:]) for name, x in truth.items()}
        with torch.no_grad():
            both = [(_at(own, simulated, x), simulated) for x in (wide, picked)]
            values = {name: (wide[name], picked[name]) for name in truth}
            values |= {name: (function(*both[0]), function(*both[1])) for name, function in functions.items()}
        found = {name: _ranks(name, x, y, ties) for name, (x, y) in values.items()}
        found |= {name: found[name].reshape(x.shape) for name, x in truth.items()}
        kept["ranks"].append(
            {name: torch.as_tensor(x if batch_size else x[None], device="cpu") for name, x in found.items()}
        )
        kept["method"] = draws.method
        run.save(kept)
    ranks = {name: together.rows(torch.cat([x[name] for x in kept["ranks"]])).numpy() for name in kept["ranks"][0]}
    return Calibration(ranks, num_draws, kept["method"], posterior.formulation.evidence_kind)


def _like(posterior: Bayesian, data: Data) -> Data:
    """Data of which shapes alone may be given, where they are drawn anew."""
    like = next(iter(posterior.formulation.parameters().values()))
    for (name, row), x in zip(posterior.formulation.DATA.items(), data, strict=True):
        if isinstance(x, tuple) and row.role != "explained":
            raise ValueError(f"{name}: only shape {x} is given, but the model is conditional on it; give the tensor")
    rows = zip(posterior.formulation.DATA.values(), data, strict=True)
    kinds = ((x, torch.long if row.integer else like.dtype) for row, x in rows)
    return tuple(like.new_zeros(x, dtype=kind) if isinstance(x, tuple) else x for x, kind in kinds)


def _at(posterior: Bayesian, data: Data, values: Mapping[str, Tensor]) -> Formulation:
    """The formulation with parameters (draw or absent, *shape); hyperparameters are passed over."""
    formulation, problem, wide = posterior.formulation, posterior.problem(*data), {}
    problems = len(problem.batch)
    for name, (_, initial) in problem.sites.items():
        x = values[name]
        wide[name] = led(formulation, name, x, problems) if x.dim() > initial.dim() else x
    return formulation.with_parameters(wide)


def _picked(draws: Draws, count: int) -> dict[str, Tensor]:
    """Evenly spaced draws of all chains, (draw, *shape)."""
    total = draws.num_chains * draws.num_draws
    if total < count:
        raise ValueError(f"the sampler returned {total} draws of each posterior; ask it for num_draws={count} or more")
    places = torch.linspace(0, total - 1, count).round().long()
    return {name: x.flatten(0, 1)[places] for name, x in draws.samples.items()}


def _ranks(name: str, truth: Tensor, draws: Tensor, ties: np.random.Generator) -> NDArray[np.int64]:
    """Number of draws below the truth; ties, as of a weight that is masked and always 0, are broken at random."""
    for what, x in (("the truth", truth), ("the draws", draws)):
        if x.isnan().any():
            raise ValueError(f"{name}: NaN in {what}, which has no rank; look at the sampler, or at the quantity")
    below = (draws < truth).sum(0).cpu().numpy()
    equal = (draws == truth).sum(0).cpu().numpy()
    return below + ties.integers(0, equal + 1)


def joint_test(
    posterior: Bayesian, *data: Tensor | None, num_chains: int, num_steps: int, seed: int, **named: Tensor | None
) -> dict[str, Array]:
    """Geweke's joint test of `inference.gibbs`: parameters and data drawn in turn must leave the prior as it is.

    Each chain starts at a draw from the prior with data of its own; then a sweep of Gibbs given the data and new data
    given the parameters take turns. A right sampler leaves (parameters, data) in their joint distribution, however few
    its steps.

    Parameters
    ----------
    posterior, data, named
        As in `calibrate`.
    num_chains, num_steps, seed
        Chains, turns, and a non-negative integer.

    Returns
    -------
    dict
        z-scores of first and second moments, ``parameter`` and ``parameter²``, (*shape): the last state of the chains
        against prior draws of their own; standard Normal for a right sampler.
    """
    require_posterior(posterior, "results.joint_test")
    like = _like(posterior, posterior.bind(*data, **named))
    of_start, of_prior, of_data, of_sweeps = seeds(seed, 4, "simulations")
    many, truth, simulated = simulate(posterior, like, num_chains, of_start)
    problem = many.problem(*simulated)
    generator = torch.Generator(problem.like.device).manual_seed(of_sweeps)
    state = {name: truth[name].reshape(1, *x.shape) for name, x in problem.start.items()}
    fixed = many.formulation.origins()
    for step_seed in seeds(of_data, num_steps, "simulations"):
        with torch.no_grad():
            state, _ = problem.gibbs_step(state, fixed, generator)
        now = many.formulation.with_parameters({name: x[0] for name, x in state.items()})
        problem = problem.with_data(simulate_data(now, problem.data, step_seed))
    fresh = simulate(posterior, like, num_chains, of_prior).truth
    scores = {}
    for name, before in fresh.items():
        after = state[name].reshape(before.shape)
        for power, label in ((1, name), (2, f"{name}²")):
            x, y = after.pow(power), before.pow(power)
            error = ((x.var(0) + y.var(0)) / num_chains).sqrt()
            scores[label] = ((x.mean(0) - y.mean(0)) / error.clamp_min(torch.finfo(error.dtype).tiny)).cpu().numpy()
    return scores

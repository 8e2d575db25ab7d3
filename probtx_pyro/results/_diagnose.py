"""May these draws be believed? The checks that practice asks for, each with the worst offender and what to do about it.

Works on both kinds of ArviZ data and on files made elsewhere. Numpy, xarray and ArviZ alone.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import arviz
import numpy as np
import xarray

from probtx_pyro.results._arviz import SAMPLES, dataset, derived, group_names, leave_one_out_k

TAILS = (0.05, 0.95)  # the quantiles whose effective sizes count, on every ArviZ


class Check(NamedTuple):
    """One check.

    name: what was checked.
    value: the worst value found; NaN where the check has no meaning for these draws.
    bound: what it is held against, such as ``<= 1.01``.
    where: who has that value, in words: ``keys[unit=3, feature=1]``.
    ok: whether it passes.
    advice: what to do where it does not.
    """

    name: str
    value: float
    bound: str
    where: str
    ok: bool
    advice: str


class Verdict(NamedTuple):
    """The findings of `diagnose`; ``str`` says it in plain language.

    checks: in order; `ok` is whether all of them pass.
    skipped: what could not be checked, and why.
    kind: "posterior", or what else the draws are of, as "pseudo-posterior".
    """

    checks: tuple[Check, ...]
    skipped: tuple[str, ...]
    kind: str = "posterior"

    @property
    def ok(self) -> bool:
        """True if all checks pass."""
        return all(check.ok for check in self.checks)

    def __str__(self) -> str:
        """A line for each check, then what to do."""
        failed = [check for check in self.checks if not check.ok]
        head = (
            "These draws may be used."
            if self.ok
            else f"Do not use these draws yet: {len(failed)} of {len(self.checks)} checks fail."
        )
        if self.kind != "posterior":
            head += f" They are of a {self.kind}: its density is no likelihood times the prior, and its spread no posterior spread."
        rows = [
            f"  {'ok  ' if check.ok else 'FAIL'}  {check.name:<12} {_number(check.value):>9} {check.bound:<8}  {check.where}".rstrip()
            for check in self.checks
        ]
        todo = ["What to do:", *(f"  {check.name}: {check.advice}" for check in failed)] if failed else []
        return "\n".join([head, *rows, *todo, *(f"Not checked: {reason}." for reason in self.skipped)])


def diagnose(
    data: Any,
    *,
    var_names: str | Sequence[str] | None = None,
    rhat: float = 1.01,
    ess: float = 400.0,
    bfmi: float = 0.3,
    pareto_k: float | None = None,
) -> Verdict:
    """Check a posterior: R-hat, bulk and tail ESS, divergences, BFMI, and Pareto k of leave-one-out.

    Parameters
    ----------
    data
        ArviZ data (0.x or 1.x) with the group ``posterior``; the checks of sampler statistics and of ``log_likelihood``
        are made where these are there.
    var_names
        Which variables, or the name of one; all but ``attention`` and others that follow from the parameters, if None.
    rhat, ess, bfmi
        Largest rank-normalised R-hat, smallest effective sample sizes of bulk and tails, smallest energy information.
    pareto_k
        Pareto k must be below it; by default ArviZ's own bound, ``min(1 - 1 / log10(draws), 0.7)``.

    Returns
    -------
    Verdict
        ``verdict.ok``, ``verdict.checks``, and ``print(verdict)``. Variables that are constant in all draws are left
        out. Draws of a guide (the attribute ``approximation``) do not pass: nothing in them says how near the guide is.

    Raises
    ------
    ValueError
        No posterior, fewer than 4 draws, variables that are not there, or a bound that is not a positive number.

    Examples
    --------
    >>> from probtx_pyro.results import from_arrays
    >>> keys = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> verdict = diagnose(from_arrays({"posterior": {"keys": (("chain", "draw", "unit"), keys)}}))
    >>> verdict.ok, [check.name for check in verdict.checks]
    (True, ['R-hat', 'bulk ESS', 'tail ESS'])

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021, *Rank-normalization, folding, and localization: an improved
    R-hat*; Betancourt 2016, *Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo*; Vehtari,
    Simpson, Gelman, Yao & Gabry 2024, *Pareto smoothed importance sampling*.
    """
    if hasattr(data, "samples") or hasattr(data, "draws"):
        from probtx_pyro.results.convert import to_inference_data  # needs torch, which a file does not

        data = to_inference_data(data)
    for name, bound in (
        ("rhat", rhat),
        ("ess", ess),
        ("bfmi", bfmi),
        ("pareto_k", 0.7 if pareto_k is None else pareto_k),
    ):
        if not bound > 0:
            raise ValueError(f"{name} must be a positive number, not {bound}; nothing can be held against it")
    posterior = _chosen(dataset(data, "posterior"), var_names, derived(data))
    chains, draws = (posterior.sizes[dim] for dim in SAMPLES)
    if draws < 4:
        raise ValueError(f"data: {draws} draws a chain are too few to check; 4 are the least, and 1000 the rule")
    checks: list[Check] = []
    skipped: list[str] = []
    finite = posterior.map(np.isfinite).all(SAMPLES)
    share, where = _worst(1 - finite)
    if share:
        advice = "NaN or infinity among the draws: look at the model's log density there"
        checks.append(Check("finite", np.nan, "", where, False, advice))
    sound = posterior.where(finite).fillna(0.0)
    moving = sound.max(SAMPLES) > sound.min(SAMPLES)
    still = [name for name, moves in moving.data_vars.items() if not bool(moves.any())]
    if still:
        skipped.append(f"{', '.join(map(str, still))}: constant in all draws")
    posterior = posterior.drop_vars(still)
    guide = data.attrs.get("approximation")
    if not posterior.data_vars:
        advice = "no variable that was drawn moves, or none was chosen: the sampler is stuck at its start, or var_names leaves out what it draws"
        checks.append(Check("moving", np.nan, "", "", False, advice))
    else:
        with np.errstate(invalid="ignore", divide="ignore"):  # of entries that do not move
            checks.extend(_convergence(posterior, moving, chains, guide, rhat, ess))
    statistics = dataset(data, "sample_stats") if "sample_stats" in group_names(data) else xarray.Dataset()
    checks.extend(_sampler(statistics, bfmi))
    if not guide and data.attrs.get("method") != "Gibbs":  # which has neither
        skipped.extend(
            f"{name}: the sampler recorded none" for name in ("diverging", "energy") if name not in statistics
        )
    if str(data.attrs.get("log_likelihood", "")).startswith("prequential"):
        skipped.append("Pareto k: the log likelihood is prequential, and its terms cannot be left out one by one")
    elif "log_likelihood" in group_names(data):
        sizes = {str(name): x.size for name, x in dataset(data, "log_likelihood").data_vars.items()}
        skipped.extend(f"Pareto k: {name} has no observation" for name, size in sizes.items() if not size)
        checks.extend(_leave_one_out(data, [name for name, size in sizes.items() if size], pareto_k))
    else:
        skipped.append("Pareto k: there is no group log_likelihood")
    return Verdict(tuple(checks), tuple(skipped), str(data.attrs.get("evidence_kind", "posterior")))


def _chosen(posterior: xarray.Dataset, var_names: str | Sequence[str] | None, follow: Sequence[str]) -> xarray.Dataset:
    names = [str(name) for name in posterior.data_vars]
    var_names = [var_names] if isinstance(var_names, str) else var_names
    wanted = [name for name in names if name not in follow] if var_names is None else list(var_names)
    if missing := [name for name in wanted if name not in names]:
        raise ValueError(f"var_names: the posterior has no {missing[0]!r}; choose from {', '.join(names)}")
    return posterior[wanted]


def _convergence(
    posterior: xarray.Dataset, moving: xarray.Dataset, chains: int, guide: str | None, rhat: float, ess: float
) -> Iterator[Check]:
    """R-hat and effective sample sizes; an undefined one of a variable that moves counts as the worst."""
    worst, where = np.nan, ""
    if guide:
        advice = (
            f"R-hat has no meaning for independent draws of a guide ({guide}), which agree with each other however "
            "far they are from the posterior; compare with draws of inference.nuts or inference.gibbs"
        )
    elif chains < 2:
        advice = "one chain cannot disagree with itself: run 4, from different starts"
    else:
        worst, where = _worst(arviz.rhat(posterior).fillna(np.inf).where(moving))
        advice = (
            "the chains disagree: run longer, start from other points, and if they sit in different modes relabel "
            "exchangeable units (results.relabel) or give priors that tell the units apart"
        )
    yield Check("R-hat", worst, f"<= {rhat:g}", where, worst <= rhat, advice)
    for method, prob in () if guide else (("bulk", None), ("tail", TAILS)):
        found = arviz.ess(posterior, method=method, prob=prob)
        worst, where = _worst(-found.fillna(0.0).where(moving))
        least = -worst
        times = int(np.ceil(ess / least)) if least > 1 else "many"
        advice = f"draw about {times} times as many, or reparametrise so that draws depend less on each other"
        yield Check(f"{method} ESS", least, f">= {ess:g}", where, least >= ess, advice)


def _sampler(statistics: xarray.Dataset, bfmi: float) -> Iterator[Check]:
    """Divergences and energy, where the sampler recorded them."""
    if "diverging" in statistics:
        each = (statistics["diverging"] != 0).sum("draw")  # NaN is no sign that a draw did not diverge
        where = f"chain {int(np.argmax(each.values))}" if bool(each.any()) else ""
        advice = "the sampler met curvature that its steps are too long for: raise target_accept, or tighten priors (a precision near 0 or without bound)"
        yield Check("divergences", float(each.sum()), "== 0", where, not bool(each.any()), advice)
    if "energy" in statistics:
        energy = np.asarray(statistics["energy"].transpose(*SAMPLES), float)
        spread = energy.var(1)
        each = np.divide((np.diff(energy, axis=1) ** 2).mean(1), spread, out=np.zeros_like(spread), where=spread != 0)
        advice = "the momenta cannot follow the energy, so tails are explored slowly: reparametrise heavy-tailed parameters, or run longer"
        yield Check(
            "BFMI", float(each.min()), f">= {bfmi:g}", f"chain {each.argmin()}", bool(each.min() >= bfmi), advice
        )


def _leave_one_out(data: Any, names: Sequence[str], bound: float | None) -> Iterator[Check]:
    for name in names:
        with warnings.catch_warnings():  # ArviZ warns of what the check itself reports
            warnings.simplefilter("ignore")
            found, good = leave_one_out_k(data, name)
        known = bool((found == np.inf).any())  # it is named then, rather than one that ArviZ did not come to
        worst, where = _worst(xarray.Dataset({name: found if known else found.fillna(np.inf)}))
        limit = good if bound is None else bound
        advice = (
            f"leave-one-out is unreliable for {where}: refit without it, or ask whether the model can explain it at all"
        )
        yield Check("Pareto k", worst, f"< {limit:.2g}", where, worst < limit, advice)


def _worst(badness: xarray.Dataset) -> tuple[float, str]:
    """The largest badness, NaN left out, and whose it is, in words."""
    best, where = -np.inf, ""
    for name, x in badness.data_vars.items():
        values = np.asarray(x, float)
        if np.isnan(values).all():
            continue
        index = np.unravel_index(int(np.nanargmax(values)), values.shape)
        if values[index] > best:
            at = [(dim, x[dim].values[i]) for dim, i in zip(x.dims, index, strict=True)]
            labels = [str(label) if dim == "observation" else f"{dim}={label}" for dim, label in at]
            best, where = float(values[index]), f"{name}[{', '.join(labels)}]" if labels else str(name)
    return best, where


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}" if abs(value) < 10 and value != int(value) else f"{value:.0f}"

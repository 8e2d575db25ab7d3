"""Every formulation as a row of one table, with the capabilities that it declares; `tests/contract` holds each row to them."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from pyro.distributions import Beta, Dirichlet, Gamma, Normal, Uniform, Wishart
from strategies import crf_problem, keys_problem, lists, problem
from torch.distributions import constraints
from truths import assigned, enumerated, hopfield_lists, kmeans_lists, of_lists, table_lists, tilted

from probtx_pyro import models


def hopfield(g, *, batch=(), queries=5, units=4, features=3, answers=2, values=False, mask=False, transformation="softmax"):  # fmt: skip
    """A random memory, each problem with a β of its own, and states."""
    patterns = torch.randn(*batch, units, features, generator=g)
    beta = torch.rand(batch, generator=g) + 0.7
    read = torch.randn(*batch, units, answers, generator=g) if values else None
    stored = (torch.arange(units) != 1).expand(*batch, units) if mask else None
    memory = models.Hopfield(patterns, beta, read, stored, transformation)
    return memory, torch.randn(*batch, queries, features, generator=g)


def soft_kmeans(g, *, batch=(), queries=5, units=4, features=3, answers=2):
    """Random clusters, each problem with a γ of its own, and points."""
    clusters = models.SoftKMeans(
        torch.randn(*batch, units, features, generator=g), torch.rand(batch, generator=g) + 0.4
    )
    return clusters, torch.randn(*batch, queries, features, generator=g)


def hash_table(g, *, batch=(), queries=5, units=4, features=3, answers=2):
    """Random notes, each table with a scale of its own, and queries."""
    keys, values = (torch.randn(*batch, units, n, generator=g) for n in (features, answers))
    table = models.SoftHashTable(keys, values, torch.rand(batch, generator=g) + 0.5)
    return table, torch.randn(*batch, queries, features, generator=g)


def log_normalizer(g, *, batch=(), queries=5, units=4, features=3, answers=2, kind="points"):
    """A random base measure with weights, queries, and where it has a density a point for each."""
    locations = torch.randn(*batch, units, features, generator=g)
    root = 0.4 * torch.randn(*batch, units, features, features, generator=g)
    covariance = root @ root.mT + 0.2 * torch.eye(features)
    spread = {
        "points": {},
        "shared": {"covariance": covariance[..., 0, :, :]},
        "each": {"covariance": covariance},
        "diagonal": {"variance": covariance.diagonal(dim1=-2, dim2=-1)},
    }[kind]
    log_weights = torch.randn(*batch, units, generator=g)
    base = models.LogNormalizer(locations, log_weights=log_weights, **spread)
    data = [torch.randn(*batch, queries, features, generator=g) for _ in range(1 if kind == "points" else 2)]
    return base, *data


def linear_keys(g, *, batch=(), queries=5, units=4, components=2, features=3, answers=2, precision=False):
    """A random memory of linear keys with weights, queries, and answers if they have a precision."""
    keys = torch.randn(*batch, units, components, features, generator=g)
    values = torch.randn(*batch, units, answers, generator=g)
    mixing = torch.randn(*batch, units, components, generator=g).softmax(-1)
    memory = models.LinearKeys(keys, values, mixing, None, torch.rand(*batch, units, generator=g) + 0.5)
    asked = torch.randn(*batch, queries, features, generator=g)
    if not precision:
        return memory, asked
    memory = memory.replace(value_precision=torch.rand(*batch, units, generator=g) + 0.5)
    return memory, asked, torch.randn(*batch, queries, answers, generator=g)


def memory(g, *, batch=(), queries=7, units=0, features=3, answers=2, drift=None, relative=False):
    """A regression memory with a precision for each feature, and its pairs: ``queries`` are their steps."""
    mean = 0.3 * torch.randn(*batch, answers, features, generator=g)
    rates = torch.rand(*batch, features, generator=g) + 0.5
    made = models.RegressionMemory(rates, torch.rand(batch, generator=g) + 2.0, drift, mean, relative=relative)
    pairs = (torch.randn(*batch, queries, size, generator=g) for size in (features, answers))
    return made, *pairs


def crf(g, *, batch=(), queries=3, units=2, features=0, answers=0, **options):
    """A random dependency CRF: ``queries`` are its words and ``units`` its labels; it takes no data."""
    return (crf_problem(g, batch=batch, words=queries, labels=units, channels=2, distances=(2,), **options),)


def potts(g, *, batch=(), queries=4, units=3, features=0, answers=0):
    """A random Potts field on a ring: ``queries`` are its places and ``units`` its labels; it takes no data."""
    edges = torch.stack([torch.arange(queries), (torch.arange(queries) + 1) % queries], -1)
    unary = torch.randn(*batch, queries, units, generator=g)
    return (models.PottsField(unary, edges, 0.5 * torch.rand(*batch, queries, generator=g)),)


# -- masks and invariances ----------------------------------------------------------------------------------------------------


def single(formulation, index):
    """One problem of a batch."""
    ranks = {row.field or name: (name, len(formulation.axes(name))) for name, row in formulation.PARAMETERS.items()}
    own = {}
    for field, x in vars(formulation).items():
        if isinstance(x, torch.Tensor):
            name, rank = ranks.get(field, (None, 1))  # what is no parameter is a mask
            if (x if name is None else formulation.held(name)).dim() > rank:
                own[field] = x[index]
    return formulation.with_parameters(own)


def units_of(formulation):
    """The number of units."""
    return next(
        formulation.held(n).shape[-len(r.names)] for n, r in formulation.PARAMETERS.items() if r.names[0] == "unit"
    )


def chosen(formulation, order):
    """The formulation with these units, in this order."""
    order, changes, units = torch.as_tensor(order), {}, units_of(formulation)
    for name, row in formulation.PARAMETERS.items():
        field = row.field or name
        x, rank = getattr(formulation, field), len(row.names)
        if x is not None and "unit" in row.names:
            axis = row.names.index("unit") - rank
            if x.dim() >= -axis and x.shape[axis] == units:
                changes[field] = x.index_select(axis, order)
    if "log_prior" in changes:  # rows that lost a unit are no longer normalised
        changes["log_prior"] = changes["log_prior"].log_softmax(-1)
    mask = getattr(formulation, "mask", None)
    if mask is not None:
        changes["mask"] = mask.index_select(-1, order)
    return formulation.with_parameters(changes)


def by_prior(mixture, unit):
    log_prior = mixture.log_weights().clone()
    log_prior[..., unit] = -math.inf
    return mixture.replace(log_prior=log_prior.log_softmax(-1))


def by_mask(memory, unit):
    return memory.replace(mask=torch.arange(units_of(memory)) != unit)


def by_log_weights(base, unit):
    return base.replace(log_weights=base.log_weights.index_fill(-1, torch.tensor([unit]), -math.inf))


def by_unit_weights(memory, unit):
    return memory.replace(unit_weights=memory.unit_weights.index_fill(-1, torch.tensor([unit]), 0.0))


def translated(name, formulation, queries, *rest):
    """Units and queries moved alike."""
    return (formulation.with_parameters({name: getattr(formulation, name) + 1000.0}), queries + 1000.0, *rest)


def rotated(name, formulation, queries):
    """Units and queries turned alike."""
    turn = torch.linalg.qr(torch.randn(queries.shape[-1], queries.shape[-1]))[0]
    return formulation.with_parameters({name: getattr(formulation, name) @ turn}), queries @ turn


def translated_points(base, eta, *points):
    """Locations and points moved alike; the queries of a log normaliser are directions, which stay."""
    return base.with_parameters({"locations": base.locations + 1000.0}), eta, *(x + 1000.0 for x in points)


def reweighted(memory, *data):
    """All unit weights times a number."""
    return memory.replace(unit_weights=7.0 * memory.unit_weights), *data


def shifted_scores(formulation):
    """A number added to the scores of all labels of each word."""
    return (formulation.replace(unary=formulation.unary + torch.arange(3.0)[:, None]),)


def priors_of(formulation):
    """A conjugate or other proper prior on every parameter that data inform; weights as they are given."""
    found = {}
    for name in formulation.PARAMETERS:
        row, x = formulation.row(name), formulation.parameter(name, formulation.batch_shape)
        try:
            formulation.check_prior(name)
        except ValueError:  # it is not there, or nothing would inform it
            continue
        if row.support is constraints.simplex:
            found[name] = Dirichlet(torch.full_like(x, 2.0))
        elif row.support is constraints.positive_definite:
            found[name] = Wishart(torch.tensor(x.shape[-1] + 3.0), torch.eye(x.shape[-1]) / 3)
        elif row.support is constraints.positive or row.support is constraints.nonnegative:
            found[name] = Gamma(torch.full_like(x, 3.0), 2.0)
        elif row.support is constraints.unit_interval:
            found[name] = Beta(torch.full_like(x, 8.0), 2.0)
        elif isinstance(row.support, constraints.interval):
            found[name] = Uniform(torch.full_like(x, row.support.lower_bound), row.support.upper_bound)
        else:
            found[name] = Normal(x, 1.0)
    return found


class Row(NamedTuple):
    """A formulation under test.

    draw: from a generator (and ``batch``, ``queries``, ...) to the formulation and its data.
    truth: from one problem to `truths.Truth`, by loops. evidence: the log normaliser of its Pyro program, summed.
    invariance: to a formulation and data with the same attention. scale: how much larger numbers the invariance passes through.
    parts: numbers of data that make a problem: queries, outputs, observed. least: how many of them its density needs. components: the axis of keys whose order means nothing.
    masked: the formulation with a unit masked; None where it has no masks. density: whether it is a density of data, which the verbs
    of inference need. conjugate: whether all its parameters have closed-form conditionals. lists: a problem as `oracles` takes it.
    often: whether the verbs run in the default suite; False where another row takes nearly the same way.
    given: the argument of the guide that takes another attention. answers: what a unit answers, where that does not depend on the query.
    offered: what it has although it is no density of data.
    """

    draw: Callable
    truth: Callable
    invariance: Callable | None
    scale: float = 1.0
    evidence: Callable = lambda formulation, *data: formulation.log_evidence(*data).sum()
    parts: tuple[int, ...] = (1,)
    least: int = 1
    components: int | None = None
    masked: Callable | None = None
    density: bool = True
    conjugate: bool = False
    lists: Callable | None = None
    often: bool = True
    given: str | None = "attention"
    answers: Callable | None = lambda formulation: formulation.unit_answers()
    offered: tuple[str, ...] = ()

    def dense(self, parts: int) -> bool:
        """Whether it is a density of the last of so many data."""
        return self.density and parts >= self.least

    def programs(self, formulation: Any, parts: int) -> tuple[Callable, Callable]:
        """The Pyro program whose evidence is ``evidence`` once enumerated, and its exact guide."""
        if self.given is None:  # every choice of a CRF is enumerated
            return formulation.enumerated, lambda: None
        return formulation.model if self.dense(parts) else formulation.unnormalized, formulation.guide


def mixture_row(draw, **options):
    far = functools.partial(translated, "keys")
    return Row(
        draw, functools.partial(of_lists, lists), far, 20_000.0, masked=by_prior, conjugate=True, lists=lists, **options
    )


def reduced_row(draw, make, invariance, scale=1.0, **options):
    return Row(draw, functools.partial(of_lists, make), invariance, scale, lists=make, **options)


def measure_row(kind):
    dense = kind != "points"
    return Row(
        functools.partial(log_normalizer, kind=kind), tilted,
        translated_points if dense else functools.partial(rotated, "locations"), 20_000.0 if dense else 1.0,
        evidence=lambda base, eta, *x: (base.log_evidence(eta, *x) if x else base.log_normalizer(eta)).sum(),
        masked=by_log_weights, density=dense, often=kind == "diagonal", given="weights", parts=(1, 2) if dense else (1,), least=2,
        answers=None if dense else (lambda base: base.locations),
    )  # fmt: skip


def linear_row(**options):
    return Row(
        functools.partial(linear_keys, **options), assigned, reweighted, masked=by_unit_weights, density=bool(options),
        evidence=lambda f, q, *v: f.log_evidence(q, *v).sum() if v else torch.tensor(assigned(f, q).evidence).sum(),
        parts=(1, 2) if options else (1,), least=2,
        answers=lambda memory: memory.values,
    )  # fmt: skip


def crf_row(**options):
    return Row(
        functools.partial(crf, **options), enumerated, shifted_scores, 3.0, evidence=lambda f: f.log_partition(), parts=(0,),
        density=False, given=None, answers=None, offered=("collapsed", "gibbs"),
    )  # fmt: skip


def shifted_unary(field, *data):
    """A number more for every label of a place, which says nothing."""
    return field.replace(unary=field.unary + torch.arange(field.unary.shape[-2]).unsqueeze(-1)), *data


with_options = functools.partial
keys_row = functools.partial(mixture_row, components=-2)
DATA = {"parts": (1, 2, 3)}
ROWS = {
    "gaussian mixture": mixture_row(problem, **DATA),
    "gaussian mixture, shared precision": mixture_row(with_options(problem, precision="shared"), often=False, **DATA),
    "gaussian mixture, prior for each query": mixture_row(with_options(problem, rows=5), often=False, **DATA),
    "gaussian mixture, masked": mixture_row(with_options(problem, rows=5, masked=True), **DATA),
    "gaussian mixture, labels": mixture_row(with_options(problem, answer="categorical"), **DATA),
    "gaussian mixture, metric and shift": mixture_row(with_options(problem, metric="full"), **DATA),
    "gaussian mixture, diagonal metric and shift": mixture_row(
        with_options(problem, metric="diagonal"), often=False, **DATA
    ),
    "gaussian keys": keys_row(keys_problem),
    "gaussian keys, shared precision and weights, labels, diagonal metric and shift": keys_row(
        with_options(keys_problem, precision="shared", weights="shared", answer="categorical", metric="diagonal"), **DATA
    ),
    "gaussian keys, prior for each query, answers, metric and shift": keys_row(
        with_options(keys_problem, precision="unit", weights=None, rows=5, answer="gaussian", metric="full"),
        often=False,
        **DATA,
    ),
    "gaussian keys, masked": keys_row(with_options(keys_problem, rows=5, masked=True), often=False),
    "hopfield": reduced_row(hopfield, hopfield_lists, functools.partial(rotated, "patterns"), masked=by_mask),
    "hopfield, values and a mask": reduced_row(
        with_options(hopfield, values=True, mask=True),
        hopfield_lists,
        functools.partial(rotated, "patterns"),
        often=False,
    ),
    "soft k-means": reduced_row(
        soft_kmeans, kmeans_lists, functools.partial(translated, "centers"), 20_000.0, conjugate=True
    ),
    "soft hash table": reduced_row(hash_table, table_lists, functools.partial(rotated, "keys")),
    "log normaliser, points": measure_row("points"),
    "log normaliser, one covariance": measure_row("shared"),
    "log normaliser, a covariance each": measure_row("each"),
    "log normaliser, a diagonal each": measure_row("diagonal"),
    "linear keys": linear_row(),
    "linear keys, answers with a density": linear_row(precision=True),
    "dependency CRF": crf_row(),
    "dependency CRF, root and nodes": crf_row(root=2, nodes=2, masked=True),
    "Potts field": Row(
        potts, enumerated, shifted_unary, 3.0, evidence=lambda f: f.log_partition(), parts=(0,),
        density=False, given=None, answers=None, offered=("gibbs",),
    ),
}  # fmt: skip
MEMORIES = {
    "regression memory": memory,
    "regression memory, walk": with_options(memory, drift=models.Walk(0.9)),
    "regression memory, walk with a spread": with_options(memory, drift=models.Walk(0.9, 0.1)),
    "regression memory, discount": with_options(memory, drift=models.Discount(0.9)),
    "regression memory, pull-back": with_options(memory, drift=models.PullBack(0.9)),
    "regression memory, reset": with_options(memory, drift=models.Reset()),
    "regression memory, relative": with_options(memory, relative=True),
}
"""Densities of data whose attention is no posterior of an assignment: a draw of each, for the verbs."""

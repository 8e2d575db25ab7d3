"""Posterior prediction for queries: attention, evidence and answers averaged over its draws, each by its own formula.

======================  ===================================  ====================================
average of              a query of the data D                a new query q
======================  ===================================  ====================================
attention               ``E[w(θ)]``                          ``E[p(q|θ) w(θ)] / E[p(q|θ)]``
mean answer             ``E[v(θ)]``                          ``E[p(q|θ) v(θ)] / E[p(q|θ)]``
density of the answer   ``E[p(v|q,θ)]``                      ``E[p(q|θ) p(v|q,θ)] / E[p(q|θ)]``
evidence                ``E[p(q|θ)]``                        ``E[p(q|θ)]``
======================  ===================================  ====================================

E is the mean over draws of ``p(θ | D)``. A query of D is conditioned on already. A new one is one more observation of
θ, so that each draw counts by the density that it gives the query (PT eq. 23).
"""

import math
import warnings
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from probtx_pyro.inference import Adaptation, Approximation, Draws
from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Data, Field, Formulation
from probtx_pyro.ops._numerics import common_shape
from probtx_pyro.results._evaluation import at_draws, flattened, width
from probtx_pyro.results._exchangeable import draws_relabelled
from probtx_pyro.results._posterior_mixture import PosteriorMixture


def shares(log_weights: Tensor) -> Tensor:
    """Weights that sum to 1 over chains and draws, from their logarithms, in double precision."""
    return log_weights.double().flatten(0, 1).softmax(0).reshape(log_weights.shape)


def average_error(x: Tensor, log_weights: Tensor) -> Tensor:
    """Standard error of the weighted mean m, a ratio of means, to first order:
    that of ``r_s (x_s - m) / mean(r)`` (delta method).
    """
    wide, weights = x.double(), shares(log_weights)
    number = x.shape[0] * x.shape[1]
    return standard_error(number * weights * (wide - (weights * wide).sum((0, 1)))).to(x.dtype)


def log_average(log_x: Tensor) -> Tensor:
    """``log mean_s exp(log_x_s)``, (...)."""
    return (log_x.double().flatten(0, 1).logsumexp(0) - math.log(log_x.shape[0] * log_x.shape[1])).to(log_x.dtype)


def log_average_error(log_x: Tensor) -> Tensor:
    """Standard error of `log_average`, to first order."""
    return standard_error((log_x.double() - log_average(log_x.double())).exp()).to(log_x.dtype)


def band(x: Tensor, log_weights: Tensor, prob: float) -> Tensor:
    """The central band that holds ``prob`` of the weights, (2, ...)."""
    return quantiles(x, shares(log_weights), ((1 - prob) / 2, (1 + prob) / 2))


def quantiles(x: Tensor, weights: Tensor, probs: tuple[float, ...]) -> Tensor:
    """Return the smallest draw up to which the weights reach each probability: (chain, draw,
    ...) to (probability, ...).
    """
    last = x.flatten(0, 1).movedim(0, -1).contiguous()  # to sort along neighbours in memory takes a third of the time
    ordered, order = last.sort(-1)
    reached = weights.expand_as(x).flatten(0, 1).movedim(0, -1).gather(-1, order).cumsum(-1)
    limits = reached.new_tensor(probs).expand(*reached.shape[:-1], -1).contiguous()
    places = torch.searchsorted(reached, limits).clamp_max(
        last.shape[-1] - 1
    )  # rounding may keep the sum below a limit
    return ordered.gather(-1, places).movedim(-1, 0)


def standard_error(x: Tensor) -> Tensor:
    """Standard error of the mean of Markov chains, (chain, draw, ...) to (...); 0 where all draws are equal.

    By the effective sample size of Geyer's initial monotone sequence over split chains (Vehtari et al. 2021,
    *Rank-normalization, folding, and localization*). Of chains shorter than 8 draws by the spread of their means; NaN
    of a single such chain.
    """
    chains, draws = x.shape[:2]
    if draws < 8:
        alike = (x == x[:1, :1]).flatten(0, 1).all(0)
        return torch.where(alike, 0.0, x.mean(1).std(0) / chains**0.5 if chains > 1 else math.nan)
    half = draws // 2
    x = torch.cat([x[:, :half], x[:, -half:]]).movedim(1, -1).contiguous()
    means = x.mean(-1)
    spectrum = torch.view_as_real(torch.fft.rfft(x - means.unsqueeze(-1), n=2 * half)).square().sum(-1).mean(0)
    covariance = torch.fft.irfft(spectrum, n=2 * half)[..., :half] / half
    within = covariance[..., :1] * half / (half - 1)
    total = covariance[..., :1] + means.var(0).unsqueeze(-1)
    correlation = 1 - (within - covariance) / total
    correlation[..., 0] = 1
    even, odd = correlation[..., : half // 2 * 2].unflatten(-1, (-1, 2)).unbind(-1)
    positive = (even + odd > 0).cumprod(-1)
    kept = torch.where(positive.bool(), (even + odd).cummin(-1).values, 0.0).sum(-1, keepdim=True)
    after = torch.cat([even, torch.zeros_like(even[..., :1])], -1).gather(-1, positive.sum(-1, keepdim=True))
    number = len(means) * half
    inflation = (2 * kept - 1 + after.clamp_min(0)).clamp_min(1 / math.log10(number))
    return torch.where(total > 0, (total * inflation / number).sqrt(), 0.0).squeeze(-1)


class ParameterDraws(NamedTuple):
    """Draws of a formulation's parameters, (chain, draw, *shape) by name, and data of problems ``batch``.

    ``absorbed``: the data that the draws were made from, for `Formulation.conditioned`; ``new``: whether ``data`` are
    others, so that their density, too, is that of a formulation that has absorbed them.
    Without draws the formulation is as it is: a posterior of one point. Methods that take ``alone`` are those of all
    that the data hold, or of their first datum alone, such as queries without their answers.
    """

    formulation: Formulation
    samples: Mapping[str, Tensor]
    data: Data
    batch: torch.Size
    absorbed: Data | None = None
    new: bool = False

    @property
    def number(self) -> tuple[int, int]:
        """Chains, and draws of each."""
        return next(((x.shape[0], x.shape[1]) for x in self.samples.values()), (1, 1))

    @property
    def like(self) -> Tensor:
        """A tensor of their dtype and device."""
        return next(iter([*self.samples.values(), *self.formulation.parameters().values()]))

    @property
    def width(self) -> int:
        """Numbers of the largest result at one draw."""
        return max(1, self.batch.numel() * width(self.formulation, self.data))

    @property
    def observed(self) -> tuple[str, ...]:
        """Axes of the observations, independent given the parameters; none where the formulation has no evidence."""
        return self.formulation.axes("log_evidence") if "log_evidence" in self.formulation.RESULTS else ()

    @property
    def num_observations(self) -> int:
        """Number of observations that the data have along the last of these axes."""
        for name, x in zip(self.formulation.DATA, self.data, strict=True):
            axes = self.formulation.axes(name)
            if x is not None and self.observed and self.observed[-1] in axes:
                return x.shape[x.dim() + axes.index(self.observed[-1]) - len(axes)]
        return 1

    def arguments(self, alone: bool) -> Data:
        """The arguments of a closed form."""
        return self.formulation.asked(self.data) if alone else self.formulation.observations(self.data)

    def informs(self, alone: bool) -> bool:
        """True if the model explains some of the data; what it is only conditional on says nothing of parameters."""
        return self.formulation.explains(self.arguments(alone))

    def each(self, method: str, alone: bool) -> Tensor:
        """Return what a method of the formulation says at every draw, (chain, draw, *batch, *its own axes)."""
        given = self.arguments(alone)
        if self.samples:
            found = at_draws(
                lambda at: {method: getattr(self.ready(at, alone), method)(*given)},
                self.formulation,
                self.batch,
                self.data,
                self.samples,
            )
            return found[method]
        with torch.no_grad():
            x = getattr(self.formulation, method)(*given)
        return x.expand(*self.batch, *x.shape[x.dim() - len(self.formulation.axes(method)) :])[None, None]

    def mean(self, method: str, alone: bool, weights: Tensor, held: int) -> Tensor:
        """Return the mean of what a method says, (*batch, *its own axes), under ``weights`` as `aligned` lays them.

        ``held``: how many numbers a result for some of the draws may have.
        """
        given, flat = self.arguments(alone), weights.flatten(0, 1)
        own, total = len(self.formulation.axes(method)), flat.new_zeros(())
        for rows in torch.arange(len(flat)).split(max(1, held // self.width)):
            with torch.no_grad():
                x = getattr(self.at(rows, alone), method)(*given)
            total = total + (flat[rows] * x.double()).sum(0)
        return total.expand(*self.batch, *total.shape[total.dim() - own :]).to(self.like.dtype)

    def at(self, rows: Tensor, alone: bool) -> Any:
        """Return the formulation at some of the draws, counted over all chains: its leading axis."""
        flat = flattened(self.formulation, self.samples, len(self.batch))
        return self.ready(self.formulation.with_parameters({name: x[rows] for name, x in flat.items()}), alone)

    def ready(self, at: Formulation, alone: bool) -> Formulation:
        """Return the formulation with what it has absorbed; as it was before for the density of its own data."""
        return at.conditioned(self.absorbed) if self.absorbed and (self.new or alone) else at

    def some(self, rows: Tensor) -> "ParameterDraws":
        """Return the same with some of the observations along the last of their axes."""
        axis = self.observed[-1]

        def chosen(name: str, x: Any) -> Any:
            axes = self.formulation.axes(name)
            if x is None or axis not in axes:
                return x
            place = x.dim() + axes.index(axis) - len(axes)
            return x.index_select(place, rows) if place >= 0 and x.shape[place] > 1 else x

        table = [(name, row) for name, row in self.formulation.PARAMETERS.items() if axis in row.names]
        held = {row.field or name: chosen(name, self.formulation.held(name)) for name, row in table}
        drawn = {name: chosen(name, self.samples[name]) for name, _ in table if name in self.samples}
        data = tuple(chosen(name, x) for name, x in zip(self.formulation.DATA, self.data, strict=True))
        found = self.formulation.with_parameters(held)
        return self._replace(formulation=found, samples={**self.samples, **drawn}, data=data)

    def aligned(self, x: Tensor, name: str) -> Tensor:
        """Lay ``x`` (chain, draw, *batch, *observations) along the axes of a result; those it lacks have size 1."""
        rank = x.dim() - len(self.observed)
        sizes = dict(zip(self.observed, x.shape[rank:], strict=True))
        return x.reshape(*x.shape[:rank], *(sizes.get(axis, 1) for axis in self.formulation.axes(name)))

    def require_rows(self) -> None:
        """Refuse draws with a row for each observation of their data where there are other observations."""
        for name, x in self.samples.items():
            axes = self.formulation.axes(name)
            for axis in {*axes} & {*self.observed[-1:]}:
                place = x.dim() + axes.index(axis) - len(axes)
                if place >= 2 and x.shape[place] not in (1, self.num_observations):
                    raise ValueError(
                        f"{name}: the draws have a row for each {axis} of their data, {x.shape[place]}, but there are "
                        f"{self.num_observations} new ones; "
                        "give them a prior that they share, such as a Dirichlet of shape (..., 1, U)"
                    )


HELD = 2**21  # numbers of a tensor over draws, problems, units and queries; some ten are held at a time
FEWEST = 10  # draws on which an average should rest


def predict(
    fit: Draws | Approximation | Adaptation | Formulation,
    *data: Tensor | None,
    prob: float = 0.9,
    relabel: bool = True,
    **named: Tensor | None,
) -> "Prediction":
    """Average attention, evidence and answers over a posterior, for the queries of its data or for new ones.

    Parameters
    ----------
    fit
        `Draws` of a sampler, or what `inference.variational` returned, of a posterior made by `models.bayesian`; what
        `inference.adapt` returned, or a formulation: a posterior of one point.
    data, named
        New queries (..., Q, D), and what is known of their answers, by place or by name as in `inference.adapt`.
        Without any, or with ``queries=None``, the data that the draws were made from.
    prob
        Of the bands, between equal tails.
    relabel
        True numbers units that may change places alike in all draws, see `relabel`: attention to a unit means nothing
        otherwise. Evidence and answers are the same for any numbering.

    Returns
    -------
    Prediction
        Every quantity is computed when it is first asked for, some queries and some draws at a time.

    Raises
    ------
    ValueError
        A result without a formulation or without data, shapes that do not fit, a query of density 0 at every draw.

    Warns
    -----
    UserWarning
        The average for a new query rests on fewer than 10 draws, of 100 or more.

    Notes
    -----
    A query of weight 0 was not among the data, and counts as new. An answer of the data that is known is conditioned on
    by ``attention``; ``expected_outputs`` and ``output_distribution`` are those of another answer to the same query.
    The evidence of the data's own queries is that of a posterior that has seen them: for comparing models take
    `arviz.loo`. A query that a formulation is only conditional on, as that of linear keys, says nothing about
    parameters, and its average is plain.

    Examples
    --------
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import inference, models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]), torch.tensor([[0.0], [1.0]]), 10.0, 4.0)
    >>> posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 0.3))
    >>> draws = inference.gibbs(posterior, torch.tensor([[-1.5], [-1.1], [1.0]]), num_samples=200, num_chains=20, seed=0)
    >>> said = predict(draws, torch.tensor([[-1.2], [0.0]]))
    >>> said.attention.shape, said.log_evidence.shape, said.output_distribution.batch_shape
    (torch.Size([2, 2]), torch.Size([2]), torch.Size([2]))
    >>> [round(float(answer), 1) for answer in said.expected_outputs]
    [0.0, 0.9]

    References
    ----------
    Movellan & Gabbur 2020, eq. 23; Stephens 2000, *Dealing with label switching in mixture models*.
    """
    if not 0 < prob < 1:
        raise ValueError(f"prob must be between 0 and 1, not {prob}")
    fit = fit.draws if isinstance(fit, Approximation) else fit
    formulation = _formulation(fit)
    given = formulation.bind(*data, **named)
    new = any(x is not None for x in given)
    asked = [name for name, row in formulation.DATA.items() if row.role in ("explained", "given")]
    if isinstance(fit, Draws):
        samples = {name: x for name, x in fit.samples.items() if name in formulation.PARAMETERS}
        bound = formulation.bind(*fit.arguments)
    else:
        samples, bound = {}, ()
        if asked and not new:
            raise ValueError(f"{asked[0]}: a {type(fit).__name__} does not keep its data; give them")
    weights = formulation.datum(given if new else bound or given, "weights")
    if new and weights is not None:
        raise ValueError("query_weights say how often queries count among the data, and new ones do not; drop them")
    data = given if new else bound or given
    if asked and data[0] is None:
        raise ValueError(f"{asked[0]}: there are other data of new queries but no {asked[0]}; give them, too")
    leading = [x.shape[2 : max(2, x.dim() - len(formulation.axes(name)))] for name, x in samples.items()]
    own = formulation.plates(*data).batch if asked else formulation.batch_shape
    values = ParameterDraws(formulation, samples, data, common_shape(own, *leading), bound or None, new)
    values.require_rows()
    seen = not new or not isinstance(fit, Draws)
    known = torch.tensor(seen, device=values.like.device) if weights is None else weights > 0
    return Prediction(values, known, prob, fit if isinstance(fit, Draws) and relabel else None)


def _formulation(fit: Any) -> Formulation:
    """The formulation of a result of inference."""
    if isinstance(fit, Draws):
        if isinstance(fit.program, Bayesian):
            return fit.program.formulation
        if isinstance(fit.program, Formulation):
            raise ValueError(
                "fit: draws of latent choices are the answer themselves and know no queries; "
                "average those of results.to_inference_data(draws), such as its attention"
            )
        raise ValueError(
            "fit: these draws are not of a program made by models.bayesian, so nothing says what attention or "
            "evidence is; give a program of your own to Pyro's Predictive"
        )
    if isinstance(fit, Field):
        raise ValueError(
            f"fit: the marginals of a {type(fit).__name__} are the answer themselves; "
            f"take {', '.join(fit.marginals())} of results.to_inference_data(fit)"
        )
    formulation = fit.formulation if isinstance(fit, Adaptation) else fit
    if not isinstance(formulation, Formulation):
        raise ValueError(
            "fit must be draws, what inference.variational or inference.adapt returned, or a formulation, not a "
            f"{type(fit).__name__}; ArviZ data and Pyro's own results do not keep the formulation, so give what the "
            "verb of inference returned"
        )
    return formulation


class Prediction:
    """Predictions of a posterior for queries, see `predict`; every quantity is computed when it is first asked for.

    attention: (..., Q, U), probabilities of the units. log_evidence: (..., Q). expected_outputs: (..., Q, M), the mean
    answer, or probabilities of labels. output_distribution: a Pyro distribution of batch shape (..., Q), with
    ``log_prob`` and ``sample``. ``band(name)`` and ``error(name)`` say how sure the posterior is of the first three,
    and how well the draws tell it.
    """

    def __init__(self, values: ParameterDraws, known: Tensor, prob: float, draws: Draws | None):
        self._values, self._known, self._prob, self._draws = values, known, prob, draws
        self._found: dict[tuple[str, str], Tensor] = {}
        self._evidences: dict[bool, Tensor] = {}
        self._warned = False

    @property
    def attention(self) -> Tensor:
        """The probability of each unit, (..., Q, U); units are numbered as `results.relabel` numbers them."""
        return self._reduced("attention", "mean")

    @property
    def log_evidence(self) -> Tensor:
        """The log density of each query (with its answer, where that is given), parameters averaged out, (..., Q)."""
        return self._reduced("log_evidence", "mean")

    @property
    def expected_outputs(self) -> Tensor:
        """The mean answer to each query, (..., Q, M)."""
        return self._reduced("expected_outputs", "mean")

    def band(self, name: str) -> Tensor:
        """Lower and upper end of the central band of a quantity over the posterior of the parameters, (2, ...).

        Of ``attention`` and ``expected_outputs`` the parameters' posterior given the query, too; of ``log_evidence``
        given the data alone. A band of the mean answer is none of the answers: take quantiles of
        ``output_distribution.sample``.
        """
        return self._reduced(name, "band")

    def error(self, name: str) -> Tensor:
        """Monte Carlo standard error of a quantity, (...):
        by its autocorrelation along the chains and the spread of weights.
        """
        return self._reduced(name, "error")

    @cached_property
    def effective_draws(self) -> Tensor:
        """Number of independent draws that those behind each query's averages are worth, (..., Q):
        chains and weights reduce both.

        The effective sample size of the weights, ``1 / Σ r²``, times that of the chains of ``p(q|θ)`` over their
        length.
        """
        evidence, log_weights = self._evidence(False), self._log_weights(False)
        number = evidence.shape[0] * evidence.shape[1]
        relative = number * shares(evidence)
        spread = relative.var((0, 1), correction=0)
        chains = torch.where(spread > 0, spread / standard_error(relative).square(), number).clamp_max(number)
        return (chains / number / shares(log_weights).square().sum((0, 1))).to(evidence)

    @cached_property
    def output_distribution(self) -> TorchDistribution:
        """The distribution of the answer to each query, parameters averaged out, batch shape (..., Q)."""
        values = self._values
        if not values.formulation.offers("output_distribution"):
            values.formulation.refuse("output_distribution")
        log_weights = (
            self._log_weights(True).flatten(0, 1).log_softmax(0).expand(-1, *values.batch, values.num_observations)
        )

        def at_draws(rows: Tensor) -> TorchDistribution:
            return (
                values.at(rows, True).output_distribution(*values.data[:1]).expand((len(rows), *log_weights.shape[1:]))
            )

        return PosteriorMixture(at_draws, log_weights, max(1, HELD // values.width))

    def __repr__(self) -> str:
        kind = type(self._values.formulation).__name__
        chains, draws = self._values.number
        of = f"{chains} chains of {draws} draws" if self._values.samples else "one point"
        seen = "the data's own" if bool(self._known.any()) else "new"
        sizes = dict(zip(self._values.formulation.DATA, self._values.data, strict=False))
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in sizes.items() if x is not None)
        density = self._values.formulation.evidence_kind
        kind = kind if density == "posterior" else f"{kind}, {density}"
        return f"Prediction by {of} of a {kind}, for {seen} {shapes or 'problem'}"

    # -- averages ------------------------------------------------------------------------------------------------------

    def _reduced(self, name: str, kind: str) -> Tensor:
        """The mean, error or band of a quantity over the draws, kept once it is there."""
        if name not in ("attention", "log_evidence", "expected_outputs"):
            raise ValueError(f"name must be attention, log_evidence or expected_outputs, not {name!r}")
        if name in self._values.formulation.lacks():
            self._values.formulation.refuse(name)
        if (name, kind) not in self._found:
            self._found[name, kind] = (
                self._of_evidence(kind) if name == "log_evidence" else self._over_blocks(name, kind)
            )
        return self._found[name, kind]

    def _of_evidence(self, kind: str) -> Tensor:
        evidence = self._evidence(False)
        if kind == "band":
            return band(evidence, torch.zeros_like(evidence), self._prob)
        return log_average(evidence) if kind == "mean" else log_average_error(evidence)

    def _over_blocks(self, name: str, kind: str) -> Tensor:
        """The mean some draws at a time; error and band some queries at a time, with all draws of them."""
        alone = name == "expected_outputs"
        values, log_weights = self._labelled if name == "attention" else self._values, self._log_weights(alone)
        if kind == "mean":
            return values.mean(name, alone, values.aligned(shares(log_weights), name), HELD)
        reduce = average_error if kind == "error" else partial(band, prob=self._prob)
        block = max(1, HELD * values.num_observations // (math.prod(values.number) * values.width))
        parts = []
        for rows in torch.arange(values.num_observations, device=values.like.device).split(block):
            whole = len(rows) == values.num_observations
            some = values if whole else values.some(rows)
            weights = log_weights if whole or log_weights.shape[-1] == 1 else log_weights.index_select(-1, rows)
            parts.append(reduce(some.each(name, alone), values.aligned(weights, name)))
        if len(parts) == 1:
            return parts[0]
        own = values.formulation.axes(name)
        return torch.cat(parts, own.index(values.observed[-1]) - len(own))

    def _log_weights(self, alone: bool) -> Tensor:
        """Log weights of the draws for each observation: 0 for those that the draws have seen,
        the log evidence for new ones.
        """
        values = self._values
        if bool(self._known.all()) or not values.informs(alone):
            return values.like.new_zeros(*values.number, *[1] * (len(values.batch) + len(values.observed)))
        log_weights = torch.where(self._known, 0.0, self._evidence(alone))
        self._require_weights(log_weights)
        return log_weights

    def _evidence(self, alone: bool) -> Tensor:
        """The log evidence at every draw, (chain, draw, *batch, *observations): of the queries alone,
        or with their answers.
        """
        alone = alone and len(self._values.arguments(False)) > 1
        if alone not in self._evidences:
            self._evidences[alone] = self._values.each("log_evidence", alone)
        return self._evidences[alone]

    @cached_property
    def _labelled(self) -> ParameterDraws:
        """The values with exchangeable units numbered alike in all draws."""
        if self._draws is None:
            return self._values
        return self._values._replace(samples=draws_relabelled(self._draws).samples)

    def _require_weights(self, log_weights: Tensor) -> None:
        """Refuse queries of density 0, and warn of those whose averages rest on a few draws."""
        flat = log_weights.flatten(0, 1)
        nowhere = ~(flat.amax(0) > -torch.inf)
        if bool(nowhere.any()):
            raise ValueError(
                f"queries: that at {nowhere.nonzero()[0].tolist()} has density 0 at every draw, so that nothing "
                "follows from it; leave it out"
            )
        worth = 1 / flat.double().softmax(0).square().sum(0)
        few = worth < FEWEST
        if len(flat) >= 10 * FEWEST and bool(few.any()) and not self._warned:
            self._warned = True
            warnings.warn(
                f"the averages of {int(few.sum())} of {few.numel()} queries rest on fewer than {FEWEST} draws, in the "
                f"worst case on {float(worth.min()):.1f}: their densities differ widely between draws; "
                "condition on these queries by adding them to the data, or draw more",
                stacklevel=4,
            )


__all__ = ["Prediction", "predict"]

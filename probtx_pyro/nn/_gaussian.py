"""Base of the attention layers whose units are Gaussians: precisions, the prior of the units, adaptation to the queries
of a call by `inference.adapt`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import Dirichlet, Gamma, Normal, TorchDistribution, Wishart
from torch import Tensor, nn
from torch.distributions import Distribution

from probtx_pyro import models
from probtx_pyro.inference import adapt
from probtx_pyro.models.priors import in_dtype
from probtx_pyro.nn._heads import Masks
from probtx_pyro.nn._module import made
from probtx_pyro.nn.attention import Answers, Attention, Units, explicit
from probtx_pyro.ops import Factor, attend, log_joint
from probtx_pyro.ops._chunks import Reduction, assigned_outputs, log_sum
from probtx_pyro.ops._numerics import drop, single, unrounded
from probtx_pyro.ops.attention import dot_product_attention, key_factor

Model = models.GaussianMixture | models.GaussianKeys
Prior = Distribution | Callable[[Tensor], Distribution] | None  # fixed, from the present value, or the layer's own

WIDE = 0.25  # precision of a background beside that of the other units where it starts: twice as wide
ABSENT = ("metric", "shift", "values", "value_precision", "answer_probs")  # but in a GaussianMixtureAttention
BACKGROUNDS = (None, "zero", "learned")  # its answer


@dataclass(frozen=True)
class Adapt:
    """Adaptation of the units of every head to the queries of a call, by ECM (`inference.adapt`).

    Parameters
    ----------
    steps
        Number of ECM steps. Gradients flow through them. In a causal call query i meets units that adapted to queries
        up to i, in O(L² S) a step. Dropout then falls on the channels of the answers.
    parameters
        What adapts: names, or one name, each under a prior whose mode is the parameter as it was, of a strength that
        each head learns (``log_strength_keys`` and so on). Or a mapping from names to priors: any Pyro distribution that fits the
        parameter of every head, (B, H, ...); a function (or a module, which then trains with the layer) from its
        present value to a distribution; None for the layer's own. Names are ``keys``, ``key_precision`` and
        ``weights``; of a `GaussianMixtureAttention` also, with ``shift=True``, ``shift``, with a metric ``metric``,
        with ``answers=True`` ``values`` and ``value_precision``.
    implicit
        Gradients of the adapted units by the implicit function theorem, for so many steps that they have settled,
        instead of through the steps.
    answers
        True takes known answers of some queries (``answers``, ``observed`` of `Attention.forward`): by them the units
        adapt, so that they inform the other queries. A query whose answer is known answers with it. Each head learns a
        value precision. Only in a `GaussianMixtureAttention`.

    Raises
    ------
    ValueError
        No steps; something that is no prior.
    """

    steps: int = 1
    parameters: str | Sequence[str] | Mapping[str, Prior] = ("keys",)
    implicit: bool = False
    answers: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be 1 or more, not {self.steps}")
        for name, prior in self.priors.items():
            if isinstance(prior, type) or not (prior is None or isinstance(prior, Distribution) or callable(prior)):
                repair = "give a Pyro distribution, a function from the present value to one, or None"
                raise ValueError(f"parameters: {name}={prior!r} is no prior; {repair}")

    @property
    def priors(self) -> dict[str, Prior]:
        """A prior, or None for the layer's own, by name of the parameter."""
        names = [self.parameters] if isinstance(self.parameters, str) else self.parameters
        return dict(names if isinstance(names, Mapping) else dict.fromkeys(names))


def _normal(value: Tensor, strength: Tensor) -> TorchDistribution:
    return Normal(value, _beside(strength, value).rsqrt().expand_as(value))


def _gamma(value: Tensor, strength: Tensor) -> TorchDistribution:
    strength = _beside(strength, value).expand_as(value)
    return Gamma(1 + strength, strength / value)


def _wishart(value: Tensor, strength: Tensor) -> TorchDistribution:
    each = _beside(strength, value[..., 0, 0]).expand(value.shape[:-2])
    return Wishart(value.shape[-1] + 1 + each, value / each[..., None, None])


def _dirichlet(value: Tensor, strength: Tensor) -> TorchDistribution:
    return Dirichlet(1 + _beside(strength, value) * value)


#: the prior of a conjugate family: its mode is the present value (B, H, ...), its strength (H,)
OWN: Mapping[type | None, Callable[[Tensor, Tensor], TorchDistribution]] = {
    Normal: _normal,
    Gamma: _gamma,
    Wishart: _wishart,
    Dirichlet: _dirichlet,
}


def _beside(strength: Tensor, parameter: Tensor) -> Tensor:
    """Lay (H,) out beside a parameter (B, H, ...)."""
    return strength.view(-1, *(1,) * (parameter.dim() - 2))


class GaussianAttention(Attention):
    """Base of `GaussianMixtureAttention` and `GaussianKeysAttention`, where its arguments are explained."""

    num_components = 1
    reduce: Reduction = staticmethod(log_sum)

    def _start(self, linked: bool, adapt: Adapt | Mapping[str, object] | None, background: str | None) -> None:
        """Check the arguments of both layers, and make their parameters."""
        if background not in BACKGROUNDS:
            raise ValueError(f"background must be one of {', '.join(map(repr, BACKGROUNDS))}, not {background!r}")
        self.linked, self.background = linked, background
        self.adapt = None if adapt is None else made(Adapt, adapt)
        self._given = {} if self.adapt is None else self.adapt.priors
        self._check_adapted()
        for name, prior in self._given.items():
            if isinstance(prior, nn.Module):
                setattr(self, f"prior_of_{name}", prior)
        several = 1 if linked else self.num_components
        start = torch.full((self.num_heads, several), self.head_dim**-0.5, **self._made).log()
        self.log_key_precision = nn.Parameter(start)
        for name in self._own_strengths:
            setattr(self, f"log_strength_{name}", self._per_head())
        there = background is not None
        self.background_log_weight = self._per_head(where=there)
        self.background_log_precision = self._per_head(where=there and not linked, start=math.log(WIDE))
        self.background_value = self._per_head(self.head_dim, where=background == "learned")

    def _check_adapted(self) -> None:
        """Refuse to adapt a parameter that is not there."""
        kind = models.GaussianMixture if self.num_components == 1 else models.GaussianKeys
        known = [name for name, row in kind.PARAMETERS.items() if row.conjugate in OWN and name not in self.lacking]
        for name in self._given:
            if name not in known:
                lacks = f"{name} needs {self.lacking[name]}; or" if name in self.lacking else f"no parameter {name!r};"
                raise ValueError(f"adapt: {lacks} choose from {', '.join(known)}")
        if self.adapt is not None and self.adapt.answers and not self.takes_answers:
            raise ValueError("adapt: answers=True needs a GaussianMixtureAttention")

    def _per_head(self, *shape: int, where: bool = True, start: float = 0.0) -> nn.Parameter | None:
        return nn.Parameter(torch.full((self.num_heads, *shape), start, **self._made)) if where else None

    def constrained(self) -> dict[str, Tensor]:
        """Return ``key_precision`` (H, 1 or R) and, where the layer has them, ``strength_keys`` and the like (H,),
        ``background_weight`` and ``background_precision`` (H,), and ``background_value`` (H, D).
        """
        strengths = {f"strength_{name}": x for name, x in self._strengths().items()}
        logs = {"background_weight": self.background_log_weight, "background_precision": self.background_log_precision}
        values = {name: x.exp() for name, x in logs.items() if x is not None}
        if self.background_value is not None:
            values["background_value"] = self.background_value
        return {"key_precision": self.log_key_precision.exp(), **strengths, **values}

    @property
    def lacking(self) -> dict[str, str]:
        """Parameters of the model that the layer does not have, and what it takes to have them."""
        return dict.fromkeys(ABSENT, "a GaussianMixtureAttention")

    @property
    def _own_strengths(self) -> list[str]:
        """The parameters that adapt under the layer's own prior."""
        return [name for name, prior in self._given.items() if prior is None]

    def _strengths(self) -> dict[str, Tensor]:
        """Return the strength (H,) of the layer's own prior on each parameter that adapts under it."""
        return {name: single(getattr(self, f"log_strength_{name}")).exp() for name in self._own_strengths}

    def more_units(self, like: Tensor) -> list[tuple[Units, Tensor]]:
        """Return the extra units, the background last."""
        more = super().more_units(like)
        if self.background_log_weight is not None:
            zero = like.new_zeros(1, self.num_heads, 1, self.head_dim)
            own = self.background_log_weight, self.background_log_precision
            unit = Units(zero, *(None if x is None else x.view(1, -1, 1) for x in own))
            more.append((unit, zero if self.background_value is None else self.background_value.view_as(zero)))
        return more

    def whitened(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys where the metric of the model is the plain inner product and its shift is 0."""
        return queries, keys

    def shared(self, keys: Tensor) -> dict[str, Any]:
        """Return further arguments of the mixture of every head, to go with keys (B, H, S, D)."""
        return {}

    def component_log_weights(self) -> Tensor | None:
        """Return the log weights of the components, (H, R); None for one key a unit."""
        return None

    def precision(self, units: Units) -> Tensor:
        """Return the precision of every key, (H, 1) where they share one, else (..., S·R)."""
        precision = single(self.log_key_precision).exp()
        if units.log_precision is None:
            return precision if precision.shape[-1] == 1 else self._of_keys(precision.unsqueeze(-2), units)
        return self._of_keys(precision.unsqueeze(-2) * single(units.log_precision).exp().unsqueeze(-1), units)

    def _of_keys(self, x: Tensor, units: Units) -> Tensor:
        """Return numbers (..., S or 1, R or 1) for every key, (..., S·R)."""
        return x.expand(*x.shape[:-2], units.keys.shape[2], self.num_components).flatten(-2)

    def log_weights(self, units: Units) -> Tensor | None:
        """Return the log weight of every key, (..., S·R), not normalised, without the linked part;
        None where all are equal.
        """
        own = self.component_log_weights()
        if own is None:
            return units.log_weights
        own = own.unsqueeze(-2)
        return self._of_keys(own if units.log_weights is None else own + units.log_weights.unsqueeze(-1), units)

    def attend(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Return the posterior mean of the answers; fused where no weights are asked for. See `Attention.attend`."""
        if self.by_model:
            return self._asked(queries, units, values, masks, need_weights)
        keys = units.keys if self.num_components == 1 else units.keys.flatten(-3, -2)
        queries, keys = (x.to(values.dtype) for x in self.whitened(queries, keys))
        precision, weights = self.precision(units), self.log_weights(units)
        how: Any = {"components": self.num_components, "causal": masks.causal, "dropout": self._rate}
        if self.linked:
            scaled = queries * precision.unsqueeze(-1)
            if weights is None and not need_weights:
                return dot_product_attention(scaled, keys, values, masks.log_prior, **how), None
            factor = Factor(single(scaled), single(keys), single(keys).new_zeros(keys.shape[:-1]))
        else:
            factor = key_factor(queries, keys, precision)
        if weights is not None:
            factor = factor._replace(bias=factor.bias + weights)
        if need_weights:
            logits = self.reduce(log_joint(factor).unflatten(-1, (-1, self.num_components)))
            return explicit(logits, values, masks, self._rate)
        if self.reduce is not log_sum:
            rows = masks.explicit(queries.shape[-2], values.shape[-2], factor.bias)
            rows = None if rows is None else rows.repeat_interleave(self.num_components, -1)
            answers = assigned_outputs(factor, values, rows, self.num_components, self.reduce)
            return drop(answers, self._rate), None
        return attend(factor, values, masks.log_prior, **how), None

    @property
    def by_model(self) -> bool:
        """True if a call goes through the probability model itself, False if the fused kernels serve it."""
        return self.adapt is not None

    def ask(self, model: Model, queries: Tensor, need_weights: bool, *known: Tensor) -> Answers:
        """Return the answers, and the weights if asked for, of the probability model of every head;
        given ``known`` answers.
        """
        return model.expected_outputs(queries), model.attention(queries, *known) if need_weights else None

    def formulation(self, queries: Tensor, units: Units, values: Tensor, masks: Masks) -> tuple[Model, Tensor]:
        """Return the mixture, or the mixture of keys, of every head, and its queries. See `Attention.formulation`."""
        return self._model(units, values, masks, queries.shape[-2]), single(queries)

    def attending(self, queries: Tensor, units: Units, values: Tensor, masks: Masks) -> tuple[Model, Tensor]:
        """Return the answers of units adapted to the queries, and the weights if they are asked for; in a causal call
        each query has its own units. See `Attention.attending`.
        """
        if self.adapt is None:
            return self.formulation(queries, units, values, masks)
        _check_masks(masks)
        present = self._present(queries, masks)
        if present is not None:
            queries = torch.where(present.unsqueeze(-1), queries, 0.0)
        model, queries = self.formulation(queries, units, values, masks)
        posterior = models.bayesian(model, **self._priors_of(model))
        weights = None if present is None else present.to(queries.dtype)
        how: Any = {"num_steps": self.adapt.steps, "implicit": self.adapt.implicit, "query_weights": weights}
        fitted = adapt(posterior, queries, *masks.known(queries), causal=masks.causal, progress=False, **how)
        return fitted.formulation, queries.unsqueeze(-2) if masks.causal else queries

    def _priors_of(self, model: Model) -> dict[str, Any]:
        """Return the priors of a call, by name of the parameter; ``model`` is that of every head, before it adapts."""
        priors: dict[str, Distribution] = {}
        strengths = self._strengths()
        for name, prior in self._given.items():
            value = model.parameter(name, model.batch_shape)
            assert value is not None
            if prior is None:
                priors[name] = OWN[model.row(name).conjugate](value, strengths[name].to(value))
                continue
            found = prior if isinstance(prior, Distribution) else prior(value)
            if not isinstance(found, Distribution):
                kind = type(found).__name__
                raise ValueError(f"adapt: the function for {name} returned a {kind}, not a distribution")
            priors[name] = in_dtype(found, value.dtype)
        return priors

    def _present(self, queries: Tensor, masks: Masks) -> Tensor | None:
        """True at queries that count, (B, H, L); None where all do."""
        alive = masks.alive(queries.shape[-2])
        if alive is None and masks.padded is None:
            return None
        present = queries.new_ones((), dtype=torch.bool) if alive is None else alive.squeeze(-1)
        present = present if masks.padded is None else present & ~masks.padded.unsqueeze(1)
        return present.expand(queries.shape[:-1])

    def _model(self, units: Units, values: Tensor, masks: Masks, num_queries: int) -> Model:
        units = units.mapped(single)
        keys, values, precision, weights = units.keys, single(values), self.precision(units), self.log_weights(units)
        precision, weights = precision.to(keys), keys.new_zeros(()) if weights is None else weights.to(keys)
        if self.num_components > 1:
            count = self.num_components
            precision, weights = (x.unflatten(-1, (-1, count if x.shape[-1] > 1 else 1)) for x in (precision, weights))
        if self.linked:
            weights = weights + 0.5 * precision * self.whitened(keys, keys)[1].square().sum(-1)
        precision, weights = precision.expand(keys.shape[:-1]), weights.expand(keys.shape[:-1])
        log_prior = (weights.logsumexp(-1) if self.num_components > 1 else weights).unsqueeze(-2)
        rows = masks.opened(num_queries, values.shape[-2], values)
        log_prior = (log_prior if rows is None else log_prior + rows).log_softmax(-1)
        if self.num_components > 1:
            return models.GaussianKeys(keys, values, precision, weights.softmax(-1), log_prior=log_prior)
        return models.GaussianMixture(keys, values, precision, log_prior=log_prior, **self.shared(keys))

    def _asked(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        alive, dtype = masks.alive(queries.shape[-2]), values.dtype
        with unrounded(queries.device):
            model, asked = self.attending(single(queries), units, single(values), masks)
            alone, known = asked.dim() > queries.dim(), masks.known(asked)  # every query has units of its own
            answers, weights = self.ask(model, asked, need_weights, *(x.unsqueeze(3) if alone else x for x in known))
            if alone:
                answers, weights = answers.squeeze(-2), None if weights is None else weights.squeeze(-2)
            if known:  # a query whose answer is known answers with it
                answers = torch.where(known[1].unsqueeze(-1), known[0], answers)
        if alive is not None:
            answers = torch.where(alive, answers, 0.0)
            weights = None if weights is None else torch.where(alive, weights, 0.0)
        return drop(answers, self._rate).to(dtype), weights


def _check_masks(masks: Masks) -> None:
    """Refuse a mask by which a query could learn from a unit that is hidden from it, other than causally."""
    rows = masks.log_prior
    if rows is None or rows.shape[-2] == 1:
        return
    hidden = rows == -math.inf
    if (hidden != hidden[..., :1, :]).any():
        repair = "use is_causal=True or key_padding_mask, or leave adapt out"
        raise ValueError(f"attn_mask hides units from some queries only, but every query moves the units; {repair}")

"""Base of the attention layers whose units are Gaussians: precisions, the prior of the units,
adaptation to the queries at hand.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro import models
from probtx_pyro.inference import adapt
from probtx_pyro.nn._adaptation import Adapted, Model, check_masks, named, priors_of
from probtx_pyro.nn._masks import Masks
from probtx_pyro.nn.attention import Answers, Attention, Units
from probtx_pyro.nn.softmax import explicit
from probtx_pyro.ops import Factor, attend, log_joint
from probtx_pyro.ops._chunks import Reduction, assigned_outputs, log_sum
from probtx_pyro.ops._numerics import single
from probtx_pyro.ops.attention import dot_product_attention, key_factor

WIDE = 0.25  # precision of a background beside that of the other units where it starts: twice as wide
ABSENT = ("metric", "shift", "values", "value_precision", "answer_probs")  # but in a GaussianMixtureAttention
BACKGROUNDS = (None, "zero", "learned")  # its answer


class GaussianAttention(Attention):
    """Base of `GaussianMixtureAttention` and `GaussianKeysAttention`, where its arguments are explained."""

    num_components = 1
    reduce: Reduction = staticmethod(log_sum)

    def _start(
        self,
        linked: bool,
        unit_weights: bool,
        unit_precision: bool,
        adapt_steps: int,
        adapted: Adapted,
        implicit: bool,
        background: str | None,
    ) -> None:
        """Check the arguments of both layers, and make their parameters."""
        if linked and unit_precision:
            raise ValueError("unit_precision needs linked=False: the linked prior is undefined for unequal precisions")
        if adapt_steps < 0:
            raise ValueError(f"adapt_steps must be 0 or more, not {adapt_steps}")
        if background not in BACKGROUNDS:
            raise ValueError(f"background must be one of {', '.join(map(repr, BACKGROUNDS))}, not {background!r}")
        kind = models.GaussianMixture if self.num_components == 1 else models.GaussianKeys
        self._given = named(adapted, kind, self.lacking)
        self.adapted = adapted if isinstance(adapted, Mapping) else tuple(adapted)
        for name, prior in self._given.items():
            if isinstance(prior, nn.Module):
                setattr(self, f"prior_of_{name}", prior)
        self.linked, self.adapt_steps, self.implicit, self.background = linked, adapt_steps, implicit, background
        several = 1 if linked else self.num_components
        start = torch.full((self.num_heads, several), self.head_dim**-0.5, **self._made).log()
        self.log_key_precision = nn.Parameter(start)
        for name in self._own_strengths:
            setattr(self, f"log_strength_{name}", self._per_head())
        there = background is not None
        self.background_log_weight = self._per_head(where=there)
        self.background_log_precision = self._per_head(where=there and not linked, start=math.log(WIDE))
        self.background_value = self._per_head(self.head_dim, where=background == "learned")
        self.unit_weights = self._per_unit() if unit_weights else None
        self.unit_precision = self._per_unit() if unit_precision else None

    def _per_head(self, *shape: int, where: bool = True, start: float = 0.0) -> nn.Parameter | None:
        return nn.Parameter(torch.full((self.num_heads, *shape), start, **self._made)) if where else None

    def _per_unit(self) -> nn.Linear:
        linear = nn.Linear(self.kdim, self.num_heads, bias=False, **self._made)  # a bias would add nothing new
        nn.init.zeros_(linear.weight)
        return linear

    def constrained(self) -> dict[str, Tensor]:
        """Return ``key_precision`` (H, 1 or R) and, where the layer has them, ``strength_keys`` and the like (H,), the
        weights ``unit_weights`` and ``unit_precision`` (H, kdim), ``background_weight`` and ``background_precision``
        (H,), and ``background_value`` (H, D).
        """
        strengths = {f"strength_{name}": x for name, x in self._strengths().items()}
        own = {"unit_weights": self.unit_weights, "unit_precision": self.unit_precision}
        weights = {name: linear.weight for name, linear in own.items() if linear is not None}
        logs = {"background_weight": self.background_log_weight, "background_precision": self.background_log_precision}
        values = {name: x.exp() for name, x in logs.items() if x is not None}
        if self.background_value is not None:
            values["background_value"] = self.background_value
        return {"key_precision": self.log_key_precision.exp(), **strengths, **weights, **values}

    @property
    def lacking(self) -> dict[str, str]:
        """Parameters of the model that the layer does not have, and what it takes to have them."""
        return dict.fromkeys(ABSENT, "a GaussianMixtureAttention")

    @property
    def _own_strengths(self) -> list[str]:
        """The parameters that adapt under the layer's own prior."""
        return [name for name, prior in self._given.items() if prior is None and self.adapt_steps]

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

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """Return the projected keys, with each unit's weight and precision as its source decides them."""
        own = self.unit_weights, self.unit_precision
        return Units(keys, *(None if linear is None else linear(source).transpose(-1, -2) for linear in own))

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
            return F.dropout(answers, self._rate), None
        return attend(factor, values, masks.log_prior, **how), None

    @property
    def by_model(self) -> bool:
        """True if a call goes through the probability model itself, False if the fused kernels serve it."""
        return self.adapt_steps > 0

    def ask(self, model: Any, queries: Tensor, need_weights: bool, *known: Tensor) -> Answers:
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
        if not self.adapt_steps:
            return self.formulation(queries, units, values, masks)
        check_masks(masks)
        present = self._present(queries, masks)
        if present is not None:
            queries = torch.where(present.unsqueeze(-1), queries, 0.0)
        model, queries = self.formulation(queries, units, values, masks)
        posterior = models.bayesian(model, **priors_of(model, self._given, self._strengths()))
        how: Any = {"num_steps": self.adapt_steps, "implicit": self.implicit, "causal": masks.causal, "progress": False}
        how["query_weights"] = None if present is None else present.to(queries.dtype)
        fitted = adapt(posterior, queries, *masks.known(queries), **how).formulation
        return fitted, queries.unsqueeze(-2) if masks.causal else queries

    def _present(self, queries: Tensor, masks: Masks) -> Tensor | None:
        """True at queries that count, (B, H, L); None where all do."""
        alive = masks.alive(queries.shape[-2])
        if alive is None and masks.padded is None:
            return None
        present = queries.new_ones((), dtype=torch.bool) if alive is None else alive.squeeze(-1)
        present = present if masks.padded is None else present & ~masks.padded.unsqueeze(1)
        return present.expand(queries.shape[:-1])

    def _model(self, units: Units, values: Tensor, masks: Masks, num_queries: int) -> Model:
        units = Units(single(units.keys), *(None if x is None else single(x) for x in units[1:]))
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
        with torch.autocast(queries.device.type, enabled=False):
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
        return F.dropout(answers, self._rate).to(dtype), weights

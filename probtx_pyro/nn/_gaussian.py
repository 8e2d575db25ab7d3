"""Base of the attention layers whose units are Gaussians: precisions, the prior of the units, adaptation to the queries at hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro import models
from probtx_pyro.inference import adapt
from probtx_pyro.nn._adaptation import ADAPTED, Model, check_masks
from probtx_pyro.nn._masks import Masks
from probtx_pyro.nn.attention import Answers, Attention, Units
from probtx_pyro.nn.softmax import explicit
from probtx_pyro.ops import Factor, attend, log_joint
from probtx_pyro.ops._assignment import Reduction, assigned_outputs, log_sum
from probtx_pyro.ops._numerics import single
from probtx_pyro.ops.attention import dot_product_attention, key_factor


class GaussianAttention(Attention):
    """Base of `GaussianMixtureAttention` and `GaussianKeysAttention`, where its arguments are explained."""

    num_components = 1
    reduce: Reduction = staticmethod(log_sum)

    def _start(
        self, linked: bool, unit_weights: bool, unit_precision: bool, adapt_steps: int, adapted: Sequence[str]
    ) -> None:
        """Check the arguments of both layers, and make their parameters."""
        if linked and unit_precision:
            raise ValueError("unit_precision needs linked=False: the linked prior is undefined for unequal precisions")
        if adapt_steps < 0:
            raise ValueError(f"adapt_steps must be 0 or more, not {adapt_steps}")
        for name in adapted:
            if name not in ADAPTED:
                raise ValueError(f"adapted: no parameter {name!r}; choose from {', '.join(ADAPTED)}")
        self.linked, self.adapt_steps, self.adapted = linked, adapt_steps, tuple(adapted)
        several = 1 if linked else self.num_components
        start = torch.full((self.num_heads, several), self.head_dim**-0.5, **self._made).log()
        self.log_key_precision = nn.Parameter(start)
        for name in self.adapted if adapt_steps else ():
            setattr(self, f"log_strength_{name}", nn.Parameter(torch.zeros((self.num_heads,), **self._made)))
        self.unit_weights = self._per_unit() if unit_weights else None
        self.unit_precision = self._per_unit() if unit_precision else None

    def _per_unit(self) -> nn.Linear:
        linear = nn.Linear(self.kdim, self.num_heads, bias=False, **self._made)  # a bias would add nothing new
        nn.init.zeros_(linear.weight)
        return linear

    def constrained(self) -> dict[str, Tensor]:
        """Return ``key_precision`` (H, 1 or R) and, where the layer has them, ``strength_keys`` and ``strength_key_precision`` (H,), and the weights ``unit_weights`` and ``unit_precision`` (H, kdim)."""
        strengths = {f"strength_{name}": x for name, x in self._strengths().items()}
        own = {"unit_weights": self.unit_weights, "unit_precision": self.unit_precision}
        weights = {name: linear.weight for name, linear in own.items() if linear is not None}
        return {"key_precision": self.log_key_precision.exp(), **strengths, **weights}

    def _strengths(self) -> dict[str, Tensor]:
        """Return the strength (H,) of the prior on each parameter that adapts."""
        return {name: single(getattr(self, f"log_strength_{name}")).exp() for name in self.adapted if self.adapt_steps}

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """Return the projected keys, with each unit's weight and precision as its source decides them."""
        own = self.unit_weights, self.unit_precision
        return Units(keys, *(None if linear is None else linear(source).transpose(-1, -2) for linear in own))

    def component_log_weights(self) -> Tensor | None:
        """Return the log weights of the components, (H, R); None for one key a unit."""
        return None

    def precision(self, units: Units) -> Tensor:
        """Return the precision of every key, (H, 1) where they share one, else (..., S·R)."""
        precision = self.log_key_precision.exp()
        if units.log_precision is None:
            return precision if precision.shape[-1] == 1 else self._of_keys(precision.unsqueeze(-2), units)
        return self._of_keys(precision.unsqueeze(-2) * units.log_precision.exp().unsqueeze(-1), units)

    def _of_keys(self, x: Tensor, units: Units) -> Tensor:
        """Return numbers (..., S or 1, R or 1) for every key, (..., S·R)."""
        return x.expand(*x.shape[:-2], units.keys.shape[2], self.num_components).flatten(-2)

    def log_weights(self, units: Units) -> Tensor | None:
        """Return the log weight of every key, (..., S·R), not normalised, without the linked part; None where all are equal."""
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
        precision, weights = self.precision(units), self.log_weights(units)
        how: Any = {"components": self.num_components, "causal": masks.causal, "dropout": self._rate}
        if self.linked:
            scaled = queries * precision.unsqueeze(-1)
            if weights is None and not need_weights:
                return dot_product_attention(scaled, keys, values, masks.log_prior, **how), None
            factor = Factor(scaled, keys, keys.new_zeros(keys.shape[:-1]))
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

    def ask(self, model: Any, queries: Tensor, need_weights: bool) -> Answers:
        """Return the answers, and the weights if asked for, of the probability model of every head."""
        return model.expected_outputs(queries), model.attention(queries) if need_weights else None

    def posterior_model(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Model, Tensor]:
        """Return the probability model whose posterior is this layer's attention, and its queries.

        Parameters
        ----------
        query, key, value, key_padding_mask, attn_mask, is_causal
            As in ``forward``.

        Returns
        -------
        One model for each example and head, with the batch axes (B, H), and queries (B, H, L, D).

        Raises
        ------
        ValueError
            Inputs or masks that ``forward`` refuses.
        """
        queries, units, values, found = self.heads(query, key, value, key_padding_mask, attn_mask, is_causal)
        return self._model(units, values, found, queries.shape[-2]), single(queries)

    def _model(self, units: Units, values: Tensor, masks: Masks, num_queries: int) -> Model:
        units = Units(single(units.keys), *(None if x is None else single(x) for x in units[1:]))
        keys, values, precision, weights = units.keys, single(values), self.precision(units), self.log_weights(units)
        precision, weights = single(precision), keys.new_zeros(()) if weights is None else single(weights)
        if self.num_components > 1:
            count = self.num_components
            precision, weights = (x.unflatten(-1, (-1, count if x.shape[-1] > 1 else 1)) for x in (precision, weights))
        if self.linked:
            weights = weights + 0.5 * precision * keys.square().sum(-1)
        precision, weights = precision.expand(keys.shape[:-1]), weights.expand(keys.shape[:-1])
        log_prior = (weights.logsumexp(-1) if self.num_components > 1 else weights).unsqueeze(-2)
        rows = masks.explicit(num_queries, values.shape[-2], values)
        if rows is not None:  # a query that may attend to nothing gets equal weights here; its answer is discarded
            log_prior = log_prior + torch.where((rows > -torch.inf).any(-1, keepdim=True), rows, 0.0)
        log_prior = log_prior.log_softmax(-1)
        if self.num_components > 1:
            return models.GaussianKeys(keys, values, precision, weights.softmax(-1), log_prior=log_prior)
        return models.GaussianMixture(keys, values, precision, log_prior=log_prior)

    def _asked(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        if self.adapt_steps:
            check_masks(masks)
        alive, dtype = masks.alive(queries.shape[-2]), values.dtype
        with torch.autocast(queries.device.type, enabled=False):
            queries, values = single(queries), single(values)
            present = None if alive is None else alive.squeeze(-1).expand(queries.shape[:-1])
            if present is not None and masks.padded is not None:
                present = present & ~masks.padded.unsqueeze(1)
                queries = torch.where(present.unsqueeze(-1), queries, 0.0)
            model = self._model(units, values, masks, queries.shape[-2])
            if self.adapt_steps:
                priors: dict[str, Any] = {name: ADAPTED[name](model, x) for name, x in self._strengths().items()}
                how: Any = {"num_steps": self.adapt_steps, "causal": masks.causal, "progress": False}
                heard = None if present is None else present.to(queries.dtype)
                model = adapt(models.bayesian(model, **priors), queries, query_weights=heard, **how).formulation
            alone = bool(self.adapt_steps) and masks.causal  # every query has units of its own
            answers, weights = self.ask(model, queries.unsqueeze(-2) if alone else queries, need_weights)
            if alone:
                answers, weights = answers.squeeze(-2), None if weights is None else weights.squeeze(-2)
        if alive is not None:
            answers = torch.where(alive, answers, 0.0)
            weights = None if weights is None else torch.where(alive, weights, 0.0)
        return F.dropout(answers, self._rate).to(dtype), weights

"""Base of all attention layers: arguments, parameters and masks of ``torch.nn.MultiheadAttention``.

A layer is this class and one method, `Attention.attend`: queries, keys, values and masks of every head in, answers (and, where
they are asked for, weights) out.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.models import Formulation
from probtx_pyro.nn._masks import Masks, combine
from probtx_pyro.nn._options import options, printed
from probtx_pyro.nn._priors import Priors, WithPriors
from probtx_pyro.nn._torch_layer import settings_of

Answers = tuple[Tensor, Tensor | None]  # of queries, and their weights if asked for


class Units(NamedTuple):
    """The memory units of every head, as a layer makes them from its input.

    keys: (B, H, S, D), or (B, H, S, R, D) for R keys a unit.
    log_weights: added to the log prior of a unit, (B, H, S); None is 0.
    log_precision: added to the log precision of a unit's keys, (B, H, S); None is 0.
    """

    keys: Tensor
    log_weights: Tensor | None = None
    log_precision: Tensor | None = None

    def extended(self, key: Tensor) -> "Units":
        """Return the units with one more behind them, all of whose keys are ``key`` (1, H, 1, D)."""
        keys = self.keys
        more = (key if keys.dim() == 4 else key.unsqueeze(-2)).expand(len(keys), -1, 1, *keys.shape[3:])
        rest = [None if x is None else F.pad(x, (0, 1)) for x in self[1:]]
        return Units(torch.cat([keys, more.to(keys.dtype)], 2), *rest)


class Attention(WithPriors):
    """Base of the layers that take the place of ``torch.nn.MultiheadAttention``: its constructor, its ``forward``, its state.

    A layer of your own derives from it and defines `attend` and, for a posterior and to be captured, `formulation`.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    head_dim
        Width of a head; None is ``embed_dim // num_heads``. With half the heads and the same ``head_dim`` a layer has half the
        parameters and half the work.
    priors
        Pyro or torch distributions over the layer's own parameters, by the names of `constrained`; `nn.log_prior_density` is
        their log density.

    Raises
    ------
    ValueError
        Sizes that do not fit each other, a dropout outside [0, 1).
    TypeError
        ``priors`` that are not distributions.

    Notes
    -----
    The state of a trained ``MultiheadAttention`` loads with ``load_state_dict(state, strict=False)``; what a layer has beyond it
    keeps its start. Queries that may attend to nothing get output and weights 0, never NaN.

    ``torch.nn.TransformerEncoder`` bypasses a layer's ``forward`` in eval mode when it believes that it knows the layer; it asks
    ``_qkv_same_embed_dim``, which is therefore False here. Nested tensors, into which it packs padded batches, are understood.
    """

    _qkv_same_embed_dim = False
    in_proj_weight: Tensor | None
    q_proj_weight: Tensor | None
    k_proj_weight: Tensor | None
    v_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        head_dim: int | None = None,
        priors: Priors | None = None,
    ):
        super().__init__(priors)
        if embed_dim <= 0 or num_heads <= 0 or (head_dim is None and embed_dim % num_heads):
            raise ValueError(
                f"embed_dim {embed_dim} must be positive and divisible by num_heads {num_heads}; or give head_dim"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, not {dropout}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.bias, self.add_bias_kv, self.add_zero_attn = bias, add_bias_kv, add_zero_attn
        inner = num_heads * self.head_dim
        made: Any = {"device": device, "dtype": dtype}
        self._made = made

        def register(name: str, start: Callable[[Tensor], Tensor], *shape: int, where: bool) -> None:
            self.register_parameter(name, nn.Parameter(start(torch.empty(shape, **made))) if where else None)

        packed = self.kdim == self.vdim == embed_dim
        register("in_proj_weight", nn.init.xavier_uniform_, 3 * inner, embed_dim, where=packed)
        for name, width in (("q", embed_dim), ("k", self.kdim), ("v", self.vdim)):
            register(f"{name}_proj_weight", nn.init.xavier_uniform_, inner, width, where=not packed)
        register("in_proj_bias", nn.init.zeros_, 3 * inner, where=bias)
        self.out_proj = nn.Linear(inner, embed_dim, bias=bias, **made)
        if bias:
            nn.init.zeros_(self.out_proj.bias)
        for name in ("bias_k", "bias_v"):
            register(name, nn.init.xavier_normal_, 1, 1, inner, where=add_bias_kv)

    # -- what a layer defines --------------------------------------------------------------------------------------------

    def attend(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Return the answers of every head and, if asked for, the weights.

        Parameters
        ----------
        queries
            (B, H, L, D).
        units
            The memory units, as `units_of` makes them.
        values
            (B, H, S, D).
        masks
            The units that each query may attend to.
        need_weights
            False is the fused path, without an L x S tensor.

        Returns
        -------
        Answers (B, H, L, D), and weights (B, H, L, S) or None.
        """
        raise NotImplementedError

    def formulation(self, queries: Tensor, units: Units, values: Tensor, masks: Masks) -> tuple[Formulation, Tensor]:
        """Return the formulation whose attention is the layer's, before it adapts to the queries, and the queries that it is asked with.

        Arguments are those of `attend`; a query that may attend to nothing meets equal weights. The formulation has the leading axes
        (B, H), the queries (B, H, L, D); where every query needs units or a mask of its own, (B, H, L) and (B, H, L, 1, D).
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say which formulation it is; define its method formulation(queries, units, values, masks)"
        )

    def attending(self, queries: Tensor, units: Units, values: Tensor, masks: Masks) -> tuple[Formulation, Tensor]:
        """Return what `formulation` returns, after the layer has adapted it to the queries, where it does."""
        return self.formulation(queries, units, values, masks)

    @property
    def attention_options(self) -> dict[str, Any]:
        """Arguments beyond the queries by which the formulation's ``attention`` is the layer's."""
        return {}

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """Return the units, from projected keys (B, H, S, D) and the input ``source`` (B, S, kdim) that was projected."""
        return Units(keys)

    def _options(self) -> dict[str, Any]:
        """Return the constructor arguments, None where that stands for what the layer has."""
        by_default = {
            "kdim": self.embed_dim, "vdim": self.embed_dim, "head_dim": self.embed_dim / self.num_heads, "priors": {},
        }  # fmt: skip
        found = options(self, type(self))
        return found | {name: None for name, value in by_default.items() if found[name] == value}

    # -- what all layers share -------------------------------------------------------------------------------------------

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Answers:
        """Return output and, if asked for, weights, exactly as ``torch.nn.MultiheadAttention.forward`` shapes them.

        Parameters
        ----------
        query, key, value
            (B, L, embed_dim), (B, S, kdim) and (B, S, vdim) with ``batch_first``, else (L, B, ...); without B for a single one.
        key_padding_mask
            (B, S); True, or -inf, at units that no query may attend to.
        need_weights
            False is the fused path, without an L x S tensor.
        attn_mask
            (L, S) or (B·H, L, S); True forbids, numbers are added to the logits.
        average_attn_weights
            Average the weights over the heads.
        is_causal
            Query i attends to units up to i. May be given without ``attn_mask``; with it, it says that this is the causal mask.

        Returns
        -------
        Output, of the shape of ``query``, and weights (B, L, S), (B, H, L, S) if not averaged; None if not asked for.

        Raises
        ------
        ValueError
            Inputs or masks whose shapes do not fit, a mask that is neither boolean nor floating.
        """
        if query.is_nested:
            return self._nested(query, key, value, need_weights, average_attn_weights)
        single = query.dim() == 2
        queries, units, values, masks = self.heads(query, key, value, key_padding_mask, attn_mask, is_causal)
        answers, weights = self.attend(queries, units, values, masks, need_weights)
        output = self.out_proj(answers.transpose(1, 2).flatten(-2))
        alive = masks.alive(queries.shape[-2])
        if alive is not None:  # without the bias of out_proj, too
            output = torch.where(alive.any(1), output, 0.0)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if single:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def posterior_model(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Any, Tensor]:
        """Return the probability model whose posterior is this layer's attention, before it adapts, and its queries.

        Arguments are those of `forward`, returned is what `formulation` returns. ValueError for inputs or masks that ``forward``
        refuses, NotImplementedError for a layer of your own that does not define ``formulation``.
        """
        return self.formulation(*self.heads(query, key, value, key_padding_mask, attn_mask, is_causal))

    def heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Units, Tensor, Masks]:
        """Return the arguments of `attend`: queries (B, H, L, D), units, values (B, H, S, D) and masks of every head.

        Parameters
        ----------
        query, key, value, key_padding_mask, attn_mask, is_causal
            As in `forward`.

        Raises
        ------
        ValueError
            Inputs or masks whose shapes do not fit, a mask that is neither boolean nor floating.
        """
        myself, packed = query is key, key is value

        def laid_out(x: Tensor) -> Tensor:
            return x.unsqueeze(0) if x.dim() == 2 else x if self.batch_first else x.transpose(0, 1)

        if query.dim() == 2 and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        query = laid_out(query)
        key = query if myself else laid_out(key)
        value = key if packed else laid_out(value)
        self._validate(query, key, value)
        queries, units, values, extra = self._project(query, key, value)
        masks = combine(attn_mask, key_padding_mask, is_causal, queries, key.shape[1], extra)
        if myself and key_padding_mask is not None:
            padded = key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask == -torch.inf
            masks = masks._replace(padded=padded)
        present = masks.present()
        if present is not None:
            values = torch.where(present, values, 0.0)
            wide = present.view(*present.shape, *(1,) * (units.keys.dim() - 4))
            units = units._replace(keys=torch.where(wide, units.keys, 0.0))
        return queries, units, values, masks

    def _validate(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, x, width in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if x.dim() != 3 or x.shape[-1] != width:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)} but must be batched or single with {width} features (batch_first={self.batch_first})"
                )
        if key.shape[:2] != value.shape[:2] or len(query) != len(key):
            raise ValueError(
                f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} disagree on batch or length"
            )

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Units, Tensor, int]:
        """Return queries, units and values of every head, and how many units stand behind those of the input."""
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if self.in_proj_weight is not None and query is key and key is value:
            projected = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            each: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = each if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
            projected = tuple(F.linear(*parts) for parts in zip((query, key, value), weights, biases, strict=True))
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected)
        units, extra = self.units_of(k, key), []
        if self.bias_k is not None and self.bias_v is not None:
            extra.append([b.view(1, self.num_heads, 1, -1) for b in (self.bias_k, self.bias_v)])
        if self.add_zero_attn:
            extra.append([k.new_zeros(1, self.num_heads, 1, self.head_dim)] * 2)
        for more_keys, more_values in extra:
            units = units.extended(more_keys)
            v = torch.cat([v, more_values.expand(len(v), -1, -1, -1).to(v.dtype)], 2)
        return q, units, v, len(extra)

    def _nested(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool, average: bool) -> Answers:
        """Attend with nested input, as ``TransformerEncoder`` makes it: padded, attended, nested again."""
        if not (query is key and key is value and self.batch_first) or need_weights:
            raise ValueError(
                "nested tensors are understood in self-attention with batch_first=True, need_weights=False"
            )
        padded = query.to_padded_tensor(0.0)
        lengths = torch.tensor([len(x) for x in query.unbind()], device=padded.device)
        padding = torch.arange(padded.shape[1], device=padded.device) >= lengths.unsqueeze(-1)
        output = self.forward(padded, padded, padded, padding, False, None, average)[0]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensors is in prototype.*")
            return torch._nested_tensor_from_mask(output, ~padding, mask_check=False), None

    @property
    def _rate(self) -> float:
        return self.dropout if self.training else 0.0

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention, **options: Any) -> Self:
        """Return a layer with the settings, mode, device, dtype and a copy of the weights of a ``MultiheadAttention``.

        Weights that were frozen stay frozen; where all were, the layer's own parameters are frozen, too. Hooks stay behind.

        Parameters
        ----------
        layer
            The trained layer.
        options
            Arguments of this class beyond those of ``torch.nn.MultiheadAttention``.

        Raises
        ------
        TypeError
            ``layer`` is not a ``MultiheadAttention``, or ``options`` are not arguments of this class.
        ValueError
            ``layer`` has a ``forward`` of its own, or keeps its weights under other names (parametrization, pruning, adapters);
            options out of range, or such as the weights of ``layer`` decide.
        """
        settings = settings_of(layer)
        width = settings["embed_dim"] // settings["num_heads"]
        decided = [name for name in options if name in settings]
        if options.get("head_dim", width) not in (None, width):
            decided.append("head_dim")
        if decided:
            raise ValueError(
                f"options: {', '.join(decided)} cannot be chosen, since the layer that is replaced decides it"
            )
        new, weights = cls(**settings, **options), dict(layer.named_parameters(remove_duplicate=False))
        learns = any(weight.requires_grad for weight in weights.values())
        with torch.no_grad():
            for name, parameter in new.named_parameters():
                if name in weights:
                    parameter.copy_(weights[name]).requires_grad_(weights[name].requires_grad)
                elif not learns:
                    parameter.requires_grad_(False)
        return new.train(layer.training)

    def extra_repr(self) -> str:
        """Return the sizes, and the options that differ from their defaults, as modules print them."""
        sizes = {"embed_dim": self.embed_dim, "num_heads": self.num_heads, "head_dim": self.head_dim}
        return printed(self, sizes, self._options())

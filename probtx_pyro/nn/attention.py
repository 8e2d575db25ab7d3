"""Base of all attention layers: arguments, parameters and masks of ``torch.nn.MultiheadAttention``; and the layer that
is their reference, scaled dot-product attention.

A layer is the base and one method, `Attention.attend`: queries, keys, values and masks of every head in, answers (and,
where they are asked for, weights) out.
"""

import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.models import Formulation, GaussianMixture
from probtx_pyro.nn._heads import Heads, Masks, Remembered, Units, attended
from probtx_pyro.nn._module import options, printed
from probtx_pyro.ops._chunks import Reduction
from probtx_pyro.ops._numerics import drop, single, unrounded
from probtx_pyro.ops.attention import dot_product_attention
from probtx_pyro.ops.entmax import softmax

Answers = tuple[Tensor, Tensor | None]  # of queries, and their weights if asked for


class Attention(Heads):
    """Base of the layers that take the place of ``torch.nn.MultiheadAttention``: its constructor, its ``forward``,
    its state.

    A layer of your own derives from it and defines `attend` and, for a posterior and to be captured, `formulation`.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    head_dim
        Width of a head; None is ``embed_dim // num_heads``. With half the heads and the same ``head_dim`` a layer has
        half the parameters and half the work.
    priors
        Pyro or torch distributions over the layer's own parameters, by the names of `constrained`;
        `nn.log_prior_density` is their log density.

    Raises
    ------
    ValueError
        Sizes that do not fit each other, a dropout outside [0, 1).
    TypeError
        ``priors`` that are not distributions; an option that the class does not have.

    Notes
    -----
    The state of a trained ``MultiheadAttention`` loads with ``load_state_dict(state, strict=False)``; what a layer has
    beyond it keeps its start. Queries that may attend to nothing get output and weights 0, never NaN.

    ``torch.nn.TransformerEncoder`` bypasses a layer's ``forward`` in eval mode when it believes that it knows the
    layer; it asks ``_qkv_same_embed_dim``, which is therefore False here. Nested tensors, into which it packs padded
    batches, are understood, and keep their layout.
    """

    _qkv_same_embed_dim = False

    # -- what a layer defines ------------------------------------------------------------------------------------------

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
        """Return the formulation whose attention is the layer's, before it adapts to the queries,
        and the queries that it is asked with.

        Arguments are those of `attend`; a query that may attend to nothing meets equal weights. The formulation has the
        leading axes (B, H), the queries (B, H, L, D); where every query needs units or a mask of its own, (B, H, L) and
        (B, H, L, 1, D).
        """
        kind = type(self).__name__
        raise NotImplementedError(f"{kind} does not say which formulation it is; define its method formulation")

    def attending(self, queries: Tensor, units: Units, values: Tensor, masks: Masks) -> tuple[Formulation, Tensor]:
        """Return what `formulation` returns, after the layer has adapted it to the queries, where it does."""
        return self.formulation(queries, units, values, masks)

    @property
    def attention_options(self) -> dict[str, Reduction]:
        """Arguments beyond the queries by which the formulation's ``attention`` is the layer's."""
        return {}

    @property
    def by_model(self) -> bool:
        """True if a call goes through the probability model itself, False if the fused kernels serve it."""
        return False

    def _options(self) -> dict[str, Any]:
        """Return the constructor arguments, None where that stands for what the layer has."""
        width, found = self.embed_dim, options(self, type(self))
        by_default = {"kdim": width, "vdim": width, "head_dim": width / self.num_heads, "priors": {}}
        return found | {name: None for name, value in by_default.items() if found[name] == value}

    # -- what all layers share -----------------------------------------------------------------------------------------

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
        *,
        answers: Tensor | None = None,
        observed: Tensor | None = None,
    ) -> Answers:
        """Return output and, if asked for, weights, exactly as ``torch.nn.MultiheadAttention.forward`` shapes them.

        Parameters
        ----------
        query, key, value
            (B, L, embed_dim), (B, S, kdim) and (B, S, vdim) with ``batch_first``, else (L, B, ...); without B for a
            single one.
        key_padding_mask
            (B, S); True, or -inf, at units that no query may attend to.
        need_weights
            False is the fused path, without an L x S tensor.
        attn_mask
            (L, S) or (B·H, L, S); True forbids, numbers are added to the logits.
        average_attn_weights
            Average the weights over the heads.
        is_causal
            Query i attends to units up to i. May be given without ``attn_mask``; with it, it says that this is the
            causal mask.
        answers, observed
            Known answers of some queries, of the shape of ``query`` but vdim wide: they lie where ``value`` does.
            Boolean (B, L) says which are known, None all. For layers that take them (`GaussianMixtureAttention`).

        Returns
        -------
        Output, of the shape of ``query``, and weights (B, L, S), (B, H, L, S) if not averaged; None if not asked for.

        Raises
        ------
        ValueError
            Inputs or masks whose shapes do not fit, a mask that is neither boolean nor floating; answers for a layer
            that takes none.
        """
        if query.is_nested:
            if answers is not None:
                raise ValueError("answers go with padded input, not with nested tensors; give key_padding_mask")
            return self._nested(query, key, value, need_weights, average_attn_weights)
        alone = query.dim() == 2
        given = self.heads(query, key, value, key_padding_mask, attn_mask, is_causal, answers, observed)
        answered, weights = attended(self._fused, *given, need_weights)
        output = self._output(answered, given[-1])
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if alone:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _output(self, answers: Tensor, masks: Masks) -> Tensor:
        """Return the output (B, L, E) from the answers of every head; 0 for queries that may attend to nothing."""
        output = self.out_proj(answers.transpose(1, 2).flatten(-2))
        alive = masks.alive(answers.shape[-2])
        return output if alive is None else torch.where(alive.any(1), output, 0.0)  # without the bias of out_proj, too

    def remember(self, key: Tensor, key_padding_mask: Tensor | None = None) -> Remembered:
        """Return units and values of every head, projected once, to be asked by `recall` as often as wanted.

        Parameters
        ----------
        key
            (B, S, kdim), whatever ``batch_first`` is; the values are projected from it, too.
        key_padding_mask
            (B, S), True at units that no query may attend to; None where all may be.
        """
        keys, values = (self._split(F.linear(key, *how)) for how in self._projections()[1:])
        padding = key.new_zeros(key.shape[:2], dtype=torch.bool) if key_padding_mask is None else key_padding_mask
        return Remembered(self.units_of(keys, key), values, padding)

    def recall(self, query: Tensor, memory: Remembered) -> Tensor:
        """Return the output for queries that may attend to all that is remembered:
        what ``forward`` returns for its keys.

        Parameters
        ----------
        query
            (B, L, embed_dim), whatever ``batch_first`` is.
        memory
            Of `remember`.

        Returns
        -------
        (B, L, embed_dim)
        """
        queries = self._split(F.linear(query, *self._projections()[0]))
        padding = memory.padding if memory.padding.any() else None
        units, values, masks = self._masked(queries, memory.units, memory.values, None, padding)
        return self._output(attended(self.attend, queries, units, values, masks)[0], masks)

    def _fused(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Attend. In a fused causal call extra units stand in front, and as many queries that nobody asked:
        the mask stays causal.
        """
        extra = masks.extra if masks.causal and not self.by_model else 0
        if not extra:
            return self.attend(queries, units, values, masks, need_weights)
        if need_weights:
            masks = masks.written_out(queries.shape[-2], values.shape[-2], values)
            return self.attend(queries, units, values, masks, need_weights)
        rows = None if masks.log_prior is None else masks.log_prior.roll(extra, -1)
        queries, masks = F.pad(queries, (0, 0, extra, 0)), masks._replace(log_prior=rows, extra=0)
        answers, _ = self.attend(
            queries, units.mapped(lambda x: x.roll(extra, 2)), values.roll(extra, 2), masks, need_weights
        )
        return answers[..., extra:, :], None

    def posterior_model(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Formulation, Tensor]:
        """Return the probability model whose posterior is this layer's attention, before it adapts, and its queries.

        Arguments are those of `forward`, returned is what `formulation` returns. ValueError for inputs or masks that
        ``forward`` refuses, NotImplementedError for a memory and for a layer of your own without ``formulation``.
        """
        return self.formulation(*self.heads(query, key, value, key_padding_mask, attn_mask, is_causal))

    def _nested(self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool, average: bool) -> Answers:
        """Attend with nested input, as ``TransformerEncoder`` makes it: padded, attended, nested again."""
        if not (query is key and key is value and self.batch_first) or need_weights:
            raise ValueError("nested tensors need self-attention with batch_first=True and need_weights=False")
        padded = query.to_padded_tensor(0.0)
        lengths = torch.tensor([len(x) for x in query.unbind()], device=padded.device)
        padding = torch.arange(padded.shape[1], device=padded.device) >= lengths.unsqueeze(-1)
        output = self.forward(padded, padded, padded, padding, False, None, average)[0]
        if query.layout == torch.jagged:
            jagged = torch.nested.nested_tensor_from_jagged
            return jagged(output[~padding], query.offsets()), None  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensors is in prototype.*")
            return torch._nested_tensor_from_mask(output, ~padding, mask_check=False), None

    @property
    def _rate(self) -> float:
        return self.dropout if self.training else 0.0

    @classmethod
    def from_torch(cls, layer: nn.MultiheadAttention, **options: Any) -> Self:
        """Return a layer with the settings, mode, device, dtype and a copy of the weights of a ``MultiheadAttention``.

        Weights that were frozen stay frozen; where all were, the layer's own parameters are frozen, too. Hooks stay
        behind.

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
            ``layer`` has a ``forward`` of its own, or keeps its weights under other names (parametrization, pruning,
            adapters); options out of range, or such as the weights of ``layer`` decide.
        """
        settings = settings_of(layer)
        width = settings["embed_dim"] // settings["num_heads"]
        decided = [name for name in options if name in settings]
        if options.get("head_dim", width) not in (None, width):
            decided.append("head_dim")
        if decided:
            raise ValueError(f"options: {', '.join(decided)} cannot be chosen; the layer that is replaced decides it")
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


def settings_of(layer: nn.MultiheadAttention) -> dict[str, Any]:
    """Return the arguments that the constructor of ``layer`` was given.

    Raises
    ------
    TypeError
        ``layer`` is not a ``MultiheadAttention``.
    ValueError
        A ``forward`` of its own, which does something else with the weights, or other parameters than the constructor
        makes.
    """
    if not isinstance(layer, nn.MultiheadAttention):
        raise TypeError(f"layer must be a torch.nn.MultiheadAttention, not {type(layer).__name__}")
    calls = ("forward", "__call__", "_call_impl")
    own = any(getattr(type(layer), name) is not getattr(nn.MultiheadAttention, name) for name in calls)
    if own or "forward" in vars(layer):
        raise ValueError(f"{type(layer).__name__} has a forward of its own, which another layer would not run")
    settings = options(layer, nn.MultiheadAttention)
    settings |= {"bias": layer.in_proj_bias is not None, "add_bias_kv": layer.bias_k is not None}
    settings |= {name: getattr(layer.out_proj.weight, name) for name in ("device", "dtype")}
    usual, found = (_names(x) for x in (nn.MultiheadAttention(**settings | {"device": "meta"}), layer))
    if usual != found:
        keeps = f"{type(layer).__name__} keeps its weights under other names than MultiheadAttention"
        others = ", ".join(sorted(usual ^ found))
        raise ValueError(f"{keeps} ({others}); remove its parametrizations, pruning or adapters first")
    return settings


def _names(layer: nn.Module) -> set[str]:
    kinds = layer.named_parameters, layer.named_buffers
    return {name for named in kinds for name, _ in named(remove_duplicate=False)}


class SoftmaxAttention(Attention):
    """Scaled dot-product attention itself, the reference for the others, with ``head_dim`` free.

    The arguments are those of `Attention`.

    Examples
    --------
    >>> import torch
    >>> layer = SoftmaxAttention(8, 2, batch_first=True)
    >>> layer(*[torch.ones(1, 3, 8)] * 3, is_causal=True)[1][0, 0].tolist()
    [1.0, 0.0, 0.0]
    """

    def attend(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Weigh by the softmax of dot products over ``sqrt(head_dim)``. See `Attention.attend`."""
        queries = (single(queries) if need_weights else queries) * self.head_dim**-0.5
        if need_weights:
            return explicit(products(queries, units.keys), values, masks, self._rate)
        causal, rate = masks.causal, self._rate
        return dot_product_attention(queries, units.keys, values, masks.log_prior, causal=causal, dropout=rate), None

    def formulation(
        self, queries: Tensor, units: Units, values: Tensor, masks: Masks
    ) -> tuple[GaussianMixture, Tensor]:
        """Return the mixture that softmax assumes in every head, and its queries. See `Attention.formulation`."""
        keys, values = single(units.keys), single(values)
        rows = masks.opened(queries.shape[-2], values.shape[-2], values)
        return GaussianMixture.linked(keys, values, self.head_dim**-0.5, 0.0, rows), single(queries)


def products(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the products (B, H, L, S) of queries (B, H, L, D) and keys (B, H, S, D), in 32 bits at least:
    softmax sees their differences.
    """
    with unrounded(queries.device):
        return single(queries) @ single(keys).mT


def explicit(
    logits: Tensor, values: Tensor, masks: Masks, dropout: float, function: Callable[[Tensor], Tensor] = softmax
) -> tuple[Tensor, Tensor]:
    """Return answers and weights by the L x S path; dropped weights are returned as torch returns them.

    Parameters
    ----------
    logits, values
        (B, H, L, S) and (B, H, S, D).
    masks
        The units that each query may attend to.
    dropout
        Rate.
    function
        From logits, of 32 bits at least, to rows on the simplex.

    Returns
    -------
    Answers (B, H, L, D) and weights (B, H, L, S).
    """
    log_prior = masks.explicit(logits.shape[-2], logits.shape[-1], logits)
    weights = function(single(logits if log_prior is None else logits + log_prior)).to(values.dtype)
    weights = drop(weights, dropout)
    return weights @ values, weights

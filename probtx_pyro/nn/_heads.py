"""The part of ``torch.nn.MultiheadAttention`` in every attention layer: its parameters; queries, keys and values of
every head; masks as log priors, 0 where a unit may be attended to, -inf where not; and known answers.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.nn._module import Priors, WithPriors, refuse_unknown
from probtx_pyro.ops._fused import causal_prior, reachable


class Units(NamedTuple):
    """The memory units of every head, as a layer makes them from its input.

    keys: (B, H, S, D), or (B, H, S, R, D) for R keys a unit.
    log_weights: added to the log prior of a unit, (B, H, S); None is 0.
    log_precision: added to the log precision of a unit's keys, (B, H, S); None is 0.
    log_forgetting: log of what a memory that reads units in their order keeps of those before this one, (B, H, S); None
    is 0.
    """

    keys: Tensor
    log_weights: Tensor | None = None
    log_precision: Tensor | None = None
    log_forgetting: Tensor | None = None

    def extended(self, more: "Units") -> "Units":
        """Return the units with one more behind them, all of whose keys are those of ``more`` (1, H, 1, D);
        numbers that are None are 0.
        """
        keys = self.keys
        key = (more.keys if keys.dim() == 4 else more.keys.unsqueeze(-2)).expand(keys.shape[0], -1, 1, *keys.shape[3:])
        rest = []
        for own, other in zip(self[1:], more[1:], strict=True):
            if own is not None or other is not None:
                own = keys.new_zeros(keys.shape[:3]) if own is None else own
                last = own.new_zeros(()) if other is None else other.to(own)
                own = torch.cat([own, last.expand(*own.shape[:2], 1)], -1)
            rest.append(own)
        return Units(torch.cat([keys, key.to(keys.dtype)], 2), *rest)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "Units":
        """Return the units with ``function`` of every tensor in its place."""
        return Units(function(self.keys), *(None if x is None else function(x) for x in self[1:]))


class Masks(NamedTuple):
    """The units that each query may attend to, and what else is known of each query.

    log_prior: (B, 1 or H, L or 1, S) log weights, not normalised; None where everything is allowed.
    causal: query i sees units up to i, on top of ``log_prior``.
    padded: True at queries that are padding themselves, (B, L); None where that is not known (it is in self-attention).
    extra: number of units behind those of the input, which every query sees.
    answers, observed: known answers (B, H, L, D), and at which queries they are known, (B, 1, L); None where there are
    none.
    """

    log_prior: Tensor | None = None
    causal: bool = False
    padded: Tensor | None = None
    extra: int = 0
    answers: Tensor | None = None
    observed: Tensor | None = None

    def explicit(self, num_queries: int, num_units: int, like: Tensor) -> Tensor | None:
        """Return the log prior, with a row for each query where the mask is causal;
        None where everything is allowed.
        """
        if not self.causal or not self.extra:
            return causal_prior(self.log_prior, num_queries, num_units, like) if self.causal else self.log_prior
        inner = None if self.log_prior is None else self.log_prior[..., : -self.extra]
        return F.pad(causal_prior(inner, num_queries, num_units - self.extra, like), (0, self.extra))

    def written_out(self, num_queries: int, num_units: int, like: Tensor) -> "Masks":
        """Return the same with a row for each query in place of ``causal``, where there are extra units."""
        if not self.causal or not self.extra:
            return self
        return self._replace(log_prior=self.explicit(num_queries, num_units, like), causal=False)

    def opened(self, num_queries: int, num_units: int, like: Tensor) -> Tensor | None:
        """Return the same with equal weights for a query that may attend to nothing, which no formulation takes."""
        rows = self.explicit(num_queries, num_units, like)
        return None if rows is None else torch.where((rows != -math.inf).any(-1, keepdim=True), rows, 0.0)

    def present(self) -> Tensor | None:
        """Return True at units that some query may attend to, (B, 1 or H, S, 1), causality aside; None where all are.

        Other units may hold anything.
        """
        return None if self.log_prior is None else (self.log_prior != -math.inf).any(-2).unsqueeze(-1)

    def known(self, like: Tensor) -> list[Tensor]:
        """Return known answers, of the dtype of ``like``, and where they are known; nothing where none are."""
        return [] if self.answers is None or self.observed is None else [self.answers.to(like.dtype), self.observed]

    def alive(self, num_queries: int) -> Tensor | None:
        """Return True at queries that may attend to something, (B or 1, 1 or H, L or 1, 1); None where all may."""
        if self.log_prior is None or self.extra:
            return None
        return reachable(self.log_prior, num_queries, self.causal)


def combine(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    queries: Tensor,
    num_units: int,
    extra: int = 0,
) -> Masks:
    """Combine the masks of a call, and allow ``extra`` units behind the others to every query.

    Parameters
    ----------
    attn_mask
        (L, S) or (B·H, L, S); True forbids, numbers are added to the logits.
    key_padding_mask
        (B, S), likewise.
    is_causal
        As in torch, True says that ``attn_mask`` is the causal mask; without ``attn_mask`` it asks for one.
    queries
        (B, H, L, D).
    num_units
        S, without the extra units.
    extra
        Number of units behind those of the input.

    Raises
    ------
    ValueError
        A mask of another shape, or one that is neither boolean nor floating.
    """
    batch, heads, length, _ = queries.shape
    shape = length, num_units
    rows = _additive("attn_mask", attn_mask, [shape, (batch * heads, *shape)], queries.dtype)
    columns = _additive("key_padding_mask", key_padding_mask, [(batch, num_units)], queries.dtype)
    if rows is not None:
        rows = None if is_causal else rows.view(1, 1, *shape) if rows.dim() == 2 else rows.view(batch, heads, *shape)
    if columns is not None:
        columns = columns.view(batch, 1, 1, num_units)
        rows = columns if rows is None else rows + columns
    if rows is None and num_units + extra == 0:  # nobody may attend to anything, which no mask says
        rows = queries.new_zeros(1, 1, 1, 0)
    return Masks(F.pad(rows, (0, extra)) if extra and rows is not None else rows, is_causal, extra=extra)


def _additive(name: str, mask: Tensor | None, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> Tensor | None:
    if mask is None:
        return None
    if tuple(mask.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{name} has shape {tuple(mask.shape)} but must have shape {wanted}")
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be boolean (True forbids) or floating (added to the logits), not {mask.dtype}")
    return mask.to(dtype)


def attended(
    attend: Callable[..., tuple[Tensor, Tensor | None]],
    queries: Tensor,
    units: Units,
    values: Tensor,
    masks: Masks,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return answers and weights by a layer's ``attend``; where there is no example, no query or no unit,
    all of them are 0.

    There one query attends to one masked unit in their place: the answer hangs on every parameter, with gradients of 0.
    """
    (batch, _, length, _), number = queries.shape, values.shape[2]
    if 0 not in (batch, length, number):
        return attend(queries, units, values, masks, need_weights)

    def at_least_one(x: Tensor) -> Tensor:
        x = x[:0, :, :1]  # no number of the input, which may be anything
        return F.pad(x, [side for n in reversed(x.shape) for side in (0, int(n == 0))])

    masks = Masks(queries.new_full((1, 1, 1, 1), -torch.inf))
    asked = at_least_one(queries), units.mapped(at_least_one), at_least_one(values)
    answers, weights = attend(*asked, masks, need_weights)
    weights = None if weights is None else weights.expand(batch, -1, length, number)
    return answers.expand(batch, -1, length, -1), weights


class Remembered(NamedTuple):
    """Units that were projected once, without the extra ones, see `Attention.remember`.

    units, values: of every head, the values (B, H, S, D).
    padding: True at units that no query may attend to, (B, S).
    """

    units: Units
    values: Tensor
    padding: Tensor

    def joined(self, more: "Remembered") -> "Remembered":
        """Return these units with those of ``more`` behind them."""
        rest = zip(self.units[1:], more.units[1:], strict=True)
        joined = (None if a is None or b is None else torch.cat([a, b], 2) for a, b in rest)
        units = Units(torch.cat([self.units.keys, more.units.keys], 2), *joined)
        return Remembered(units, torch.cat([self.values, more.values], 2), torch.cat([self.padding, more.padding], 1))

    def rows(self, index: Tensor) -> "Remembered":
        """Return the rows of the batch at ``index``, in its order."""
        return Remembered(self.units.mapped(lambda x: x[index]), self.values[index], self.padding[index])


class Made(TypedDict, total=False):
    """Device and dtype that parameters are made with."""

    device: torch.device | str | None
    dtype: torch.dtype | None


class Shared(Made, total=False):
    """Arguments that every layer takes: those of ``torch.nn.MultiheadAttention``, and those of `Attention`."""

    embed_dim: int
    num_heads: int
    dropout: float
    bias: bool
    add_bias_kv: bool
    add_zero_attn: bool
    kdim: int | None
    vdim: int | None
    batch_first: bool
    head_dim: int | None
    priors: Priors | None


class Heads(WithPriors):
    """Base of `Attention`, where its arguments are explained: the parameters of ``torch.nn.MultiheadAttention``,
    and what they project.
    """

    in_proj_weight: Tensor | None
    q_proj_weight: Tensor | None
    k_proj_weight: Tensor | None
    v_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    registered: ClassVar[Mapping[str, type["Heads"]]] = {}  # the layers of `ATTENTIONS`

    def __init_subclass__(cls, **given: object):
        """Say the arguments of ``__init__``, in full where it hands ``*torch, **shared`` on to this class."""
        super().__init_subclass__(**given)
        own = dict(inspect.signature(cls.__init__).parameters)
        if own.pop("torch", None) is not None:
            own = {**inspect.signature(Heads.__init__).parameters, **own}
            del own["shared"]
        del own["self"]
        cls.__signature__ = inspect.Signature(list(own.values()))  # type: ignore[attr-defined]

    def __new__(cls, *args: object, **options: object) -> Self:
        """Refuse an option that the class does not have, and name the layers that have it."""
        refuse_unknown(cls, options, cls.registered.values())
        return super().__new__(cls)

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
            sizes = f"embed_dim {embed_dim} must be positive and divisible by num_heads {num_heads}"
            raise ValueError(f"{sizes}; or give head_dim")
        if head_dim is not None and head_dim <= 0:
            raise ValueError(f"head_dim must be positive, not {head_dim}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, not {dropout}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.bias, self.add_bias_kv, self.add_zero_attn = bias, add_bias_kv, add_zero_attn
        inner = num_heads * self.head_dim
        made: Made = {"device": device, "dtype": dtype}
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

    # -- what a layer may add ------------------------------------------------------------------------------------------

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """Return the units, from projected keys (B, H, S, D) and the input ``source`` (B, S,
        kdim) that was projected.
        """
        return Units(keys)

    def more_units(self, like: Tensor) -> list[tuple[Units, Tensor]]:
        """Return the units behind those of the input, with keys (1, H, 1, D), and their values (1, H, 1, D);
        of the dtype of ``like``.
        """
        more = []
        if self.bias_k is not None and self.bias_v is not None:
            key, value = (b.view(1, self.num_heads, 1, -1) for b in (self.bias_k, self.bias_v))
            more.append((Units(key), value))
        if self.add_zero_attn:
            zero = like.new_zeros(1, self.num_heads, 1, self.head_dim)
            more.append((Units(zero), zero))
        return more

    @property
    def takes_answers(self) -> bool:
        """True if known answers of some queries inform the others."""
        return False

    # -- heads ---------------------------------------------------------------------------------------------------------

    def heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        answers: Tensor | None = None,
        observed: Tensor | None = None,
    ) -> tuple[Tensor, Units, Tensor, Masks]:
        """Return the arguments of `attend`: queries (B, H, L, D), units, values (B, H, S, D) and masks of every head.

        Parameters
        ----------
        query, key, value, key_padding_mask, attn_mask, is_causal, answers, observed
            As in `forward`.

        Raises
        ------
        ValueError
            Inputs or masks whose shapes do not fit, a mask that is neither boolean nor floating; answers for a layer
            that takes none.
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
        queries, units, values = self._project(query, key, value)
        units, values, masks = self._masked(queries, units, values, attn_mask, key_padding_mask, is_causal)
        if myself and key_padding_mask is not None:
            padded = key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask == -torch.inf
            masks = masks._replace(padded=padded)
        if answers is not None or observed is not None:
            given, known = self._known(answers, observed, laid_out, query)
            masks = masks._replace(answers=given, observed=known)
        return queries, units, values, masks

    def _masked(
        self,
        queries: Tensor,
        units: Units,
        values: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> tuple[Units, Tensor, Masks]:
        """Return units and values with the extra ones behind them and 0 where no query may attend, and the masks."""
        number, extra = values.shape[2], self.more_units(values)
        for more, more_values in extra:
            units = units.extended(more)
            values = torch.cat([values, more_values.expand(values.shape[0], -1, -1, -1).to(values.dtype)], 2)
        masks = combine(attn_mask, key_padding_mask, is_causal, queries, number, len(extra))
        present = masks.present()
        if present is not None:
            values = torch.where(present, values, 0.0)
            wide = present.view(*present.shape, *(1,) * (units.keys.dim() - 4))
            units = units._replace(keys=torch.where(wide, units.keys, 0.0))
        return units, values, masks

    def _validate(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, x, width in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if x.dim() != 3 or x.shape[-1] != width:
                wanted = f"batched or single with {width} features (batch_first={self.batch_first})"
                raise ValueError(f"{name} has shape {tuple(x.shape)} but must be {wanted}")
        if key.shape[:2] != value.shape[:2] or query.shape[0] != key.shape[0]:
            shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)}"
            raise ValueError(f"{shapes} disagree on batch or length")

    def _known(
        self, answers: Tensor | None, observed: Tensor | None, laid_out: Callable[[Tensor], Tensor], query: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return known answers, projected as values are, (B, H, L, D), and which are known, (B, 1, L)."""
        if not self.takes_answers:
            repair = "make a GaussianMixtureAttention(..., adapt=Adapt(answers=True))"
            raise ValueError(f"answers are given, but this {type(self).__name__} takes none; {repair}")
        if answers is None:
            raise ValueError("observed is given without answers; pass the answers that it marks")
        answers, shape = laid_out(answers), query.shape[:2]
        if answers.shape != (*shape, self.vdim):
            found = (
                f"answers have shape {tuple(answers.shape)} where the queries have {tuple(query.shape)} (batch first)"
            )
            raise ValueError(f"{found}; give one for each query, with {self.vdim} features as value has")
        observed = torch.ones(shape, dtype=torch.bool, device=query.device) if observed is None else observed
        observed = observed.unsqueeze(0) if observed.dim() == 1 else observed
        if getattr(observed, "dtype", None) != torch.bool or observed.shape != shape:
            found = f"{observed.dtype} {tuple(observed.shape)}"
            raise ValueError(f"observed must be a boolean tensor {tuple(shape)} (batch, query), not {found}")
        weight, bias = self._projections()[2]
        projected = F.linear(torch.where(observed.unsqueeze(-1), answers, 0.0), weight, bias)
        return self._split(projected), observed.unsqueeze(1)

    def _split(self, projected: Tensor) -> Tensor:
        """Return (B, L, H·D) by head, (B, H, L, D)."""
        return projected.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _projections(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return weight and bias of the projection of queries, of keys and of values."""
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = apart if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [(weight, bias) for weight, bias in zip(weights, biases, strict=True) if weight is not None]

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Units, Tensor]:
        """Return queries, units and values of every head."""
        if self.in_proj_weight is not None and query is key and key is value:
            projected = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            inputs = zip((query, key, value), self._projections(), strict=True)
            projected = tuple(F.linear(x, *how) for x, how in inputs)
        q, k, v = map(self._split, projected)
        return q, self.units_of(k, key), v

"""Attention caught while its module runs: layers of torch and of `probtx_pyro.nn`, fused calls, what Hugging Face
calls ``"eager"``, and layers that a function explains.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from probtx_pyro.inspection._captured import Captured, additive, captured, seen
from probtx_pyro.nn import DependencyCRFEncoder, HopfieldRetrieval, SoftmaxAttention
from probtx_pyro.nn._heads import Masks as HeadMasks
from probtx_pyro.nn._heads import Units
from probtx_pyro.nn.attention import Attention

Explain = Callable[..., Mapping[str, Any]]
Ours: TypeAlias = nn.MultiheadAttention | Attention | HopfieldRetrieval
EAGER = "eager_attention_forward"  # of every file of models of Hugging Face: module, query, key, value, attention_mask
ANOTHER = ("encoder_hidden_states", "key_value_states")  # arguments that hold the sequence which is attended to
NAMED = 5  # names that an error lists


@torch.no_grad()
def capture(
    module: nn.Module,
    *inputs: object,
    attentions: Mapping[type[nn.Module], Explain] | None = None,
    layers: str | Sequence[str] | None = None,
    padded: Tensor | None = None,
    **kwargs: object,
) -> dict[str, Captured]:
    """Run ``module(*inputs, **kwargs)`` once and return what each of its attention layers computed.

    Caught is, wherever it sits,

    - every ``torch.nn.MultiheadAttention``, and every layer of `probtx_pyro.nn`, adapted where it adapts; of a Hopfield
      layer of several steps the last one, whose queries are its states;
    - every call of ``torch.nn.functional.scaled_dot_product_attention``, which is how most models attend, those of
      Hugging Face by default: queries, keys and mask as they come, positions included, shared keys repeated;
    - every ``eager_attention_forward`` of Hugging Face, to which its models turn for ``attn_implementation="eager"``
      or ``output_attentions=True``, held against the weights that it returns;
    - every module of a class in ``attentions``, explained by a function of yours.

    The fused path by which ``torch.nn.TransformerEncoder`` bypasses its layers in eval mode is switched off for the
    run. The module runs in the mode it is in: call ``.eval()`` first, or dropout will act before the later layers.

    Queries that are padding do not count (`Captured.present`). Known is the padding of the layers of torch and of
    `probtx_pyro.nn`, of explained ones, and an ``attention_mask`` (B, L), 0 where a token is padding, with which the
    module or one inside it is called. It belongs to the layers inside that module whose keys are its L tokens and whose
    queries are the last of them, and to those that attend to another sequence with L queries.

    Parameters
    ----------
    module, inputs, kwargs
        The module, and what it is called with.
    attentions
        By class of module, for attention written out as ``softmax(scale q k' + mask)``: a function that is called as
        the module is, ``explain(layer, *args, **kwargs)``, before it runs, and returns arguments of `captured` by name:
        ``queries`` (B, H, L, D) and ``keys`` (B, H, S, D), or fewer heads of keys, H a multiple of them; and where
        there are such ``values``, ``mask``, ``scale`` and ``padded``. A class includes those that derive from it.
    layers
        Names of the layers to catch, or patterns of them: ``"model.layers.2*"``; None is every layer.
    padded
        Boolean (B, L), True where a token is padding, of a model that is told so by another name than
        ``attention_mask``; it takes the place of one.

    Returns
    -------
    dict
        By the name of the layer, in the order of the calls; a second call of one layer is ``"name (call 2)"``. Shapes
        have the leading axes (batch, head) whatever ``batch_first`` says. The units of ``add_bias_kv`` and
        ``add_zero_attn`` stand last.

    Raises
    ------
    ValueError
        No module, or one that computed no attention, as a model of Hugging Face that writes it out by itself; a pattern
        that no layer matches; weights that are parametrized; nested tensors. Padding that belongs to no layer, or that
        queries attend to; grouped queries whose number the keys do not divide; eager attention that is no softmax.
    NotImplementedError
        A layer of your own that derives from those of `probtx_pyro.nn` and does not define ``formulation``.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> found = capture(encoder, torch.randn(3, 5, 8))
    >>> list(found), tuple(found["layers.0.self_attn"].attention().shape)
    (['layers.0.self_attn', 'layers.1.self_attn'], (3, 2, 5, 5))
    >>> list(capture(encoder, torch.randn(3, 5, 8), layers="layers.1.*"))
    ['layers.1.self_attn']
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module that attends, not a {type(module).__name__}")
    if padded is not None and (getattr(padded, "dtype", None) != torch.bool or padded.dim() != 2):
        raise ValueError(f"padded must be boolean (B, L), not {padded.dtype} {tuple(padded.shape)}")
    run = _Run(dict(attentions or {}), [layers] if isinstance(layers, str) else layers, padded)
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        for name, layer in module.named_modules():
            before = partial(run.enter, name or type(layer).__name__)
            stack.enter_context(layer.register_forward_pre_hook(before, with_kwargs=True))
            stack.enter_context(layer.register_forward_hook(run.leave, always_call=True))
        stack.enter_context(eager_calls(module, run.eager))
        stack.enter_context(FusedCalls(run.call))
        module(*inputs, **kwargs)
    if not run.names:
        raise _nothing_known(module, kwargs)
    run.check()
    return run.found


def _nothing_known(module: nn.Module, kwargs: Mapping[str, object]) -> ValueError:
    """Say why no attention was caught."""
    if any(isinstance(layer, DependencyCRFEncoder) for layer in module.modules()):
        return ValueError(
            "module: a DependencyCRFEncoder has no queries and keys to catch; "
            "take encoder.field(x).head_marginals, its attention, or encoder.crf(x), the formulation"
        )
    pretrained = [layer for layer in module.modules() if hasattr(layer, "set_attn_implementation")]
    configs = [getattr(layer, "config", None) for layer in pretrained]
    if pretrained and (kwargs.get("output_attentions") or any(getattr(x, "output_attentions", 0) for x in configs)):
        return ValueError("output_attentions=True makes the module write its attention out; leave it out")
    if pretrained and all(getattr(layer, "_supports_sdpa", True) for layer in pretrained):
        return ValueError('module writes its attention out; call model.set_attn_implementation("sdpa") first')
    return ValueError("module computed no attention that is known; explain its class by attentions= or use captured")


class _Tokens(NamedTuple):
    """Tokens of which a module knows which are padding.

    padded: True where one is, (B, L). asking: whether the module is a decoder, that has another sequence to attend to.
    given: whether ``capture`` was told.
    """

    padded: Tensor
    asking: bool
    given: bool


class _Running(NamedTuple):
    """A module that runs.

    known: whether it, or one around it, is captured as a whole. crossed: whether it attends to another sequence.
    """

    name: str
    layer: nn.Module
    known: bool
    crossed: bool
    tokens: _Tokens | None


class Masks:
    """Masks of a run, as they come and as `Captured` keeps them: once for all layers."""

    def __init__(self) -> None:
        self.found: dict[object, tuple[object, Tensor]] = {}

    def __call__(self, mask: Tensor | tuple[int, int] | None, like: Tensor) -> Tensor | None:
        """A mask that is boolean (True allows), additive, or the size of a causal one."""
        if mask is None:
            return None
        named = mask if isinstance(mask, tuple) else (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype)
        if named not in self.found:
            added = torch.ones(mask, dtype=torch.bool, device=like.device).tril() if isinstance(mask, tuple) else mask
            if added.dtype == torch.bool:
                added = torch.zeros(added.shape, device=like.device).masked_fill(~added, -torch.inf)
            self.found[named] = mask, additive(added)
        return self.found[named][1]


class _Run:
    """Attention found in one run of a module.

    names: every layer that attends, whether wanted or not. found: those that are wanted. missed, hit: whether padding
    belonged to none, or some, of their calls.
    """

    def __init__(self, explained: Mapping[type, Explain], patterns: Sequence[str] | None, padded: Tensor | None):
        self.explained, self.patterns = explained, patterns
        self.tokens = None if padded is None else _Tokens(padded, False, True)
        self.names: dict[str, None] = {}
        self.found: dict[str, Captured] = {}
        self.running: list[_Running] = []  # modules inside each other
        self.kept = Masks()
        self.missed: list[str] = []
        self.hit = False

    # -- what the hooks call -------------------------------------------------------------------------------------------

    def enter(self, name: str, layer: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        read = next((function for kind, function in self.explained.items() if isinstance(layer, kind)), None)
        known, tokens = (self.running[-1].known, self.running[-1].tokens) if self.running else (False, self.tokens)
        call = dict(zip(_positional(type(layer).forward), args, strict=False)) | kwargs
        other = "key" in call and call["key"] is not None and call.get("query") is not call["key"]
        crossed = other or any(call.get(argument) is not None for argument in ANOTHER)
        if not (tokens and tokens.given):
            tokens = _tokens(_positional(type(layer).forward), call, crossed, tokens)
        self.running.append(
            _Running(name, layer, known or read is not None or isinstance(layer, Ours), crossed, tokens)
        )
        if not known and read is not None:
            self.add(lambda: _explained(name, read(layer, *args, **kwargs)))
        elif not known and isinstance(layer, Ours):
            self.add(lambda: _of_layer(name, layer, args, kwargs))

    def leave(self, *_: object) -> None:
        self.running.pop()

    def call(self, *args: Any, **kwargs: Any) -> Tensor:
        """A call of ``scaled_dot_product_attention``, in its place."""
        at = self.running[-1]
        if not at.known:
            self.add(lambda: of_call(self.kept, at.name, at.layer, *args, **kwargs))
        return F.scaled_dot_product_attention(*args, **kwargs)

    def eager(self, function: Callable[..., Any], layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """A call of the attention that Hugging Face writes out, in its place."""
        answer = function(layer, *args, **kwargs)
        if self.running and self.running[-1].layer is layer and not self.running[-1].known:
            self.add(lambda: of_eager(self.kept, self.running[-1].name, answer, function, layer, *args, **kwargs))
        return answer

    # -- what they add -------------------------------------------------------------------------------------------------

    def wants(self, name: str) -> bool:
        return self.patterns is None or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def add(self, read: Callable[[], Captured]) -> None:
        """Keep a call of the module that runs, if it is wanted."""
        at = self.running[-1]
        self.names[at.name] = None
        if not self.wants(at.name):
            return
        one = read()
        if at.tokens is not None and bool(at.tokens.padded.any()):
            one = self.told(at, at.tokens, one)
        again = sum(known == at.name or known.startswith(f"{at.name} (call ") for known in self.found)
        self.found[f"{at.name} (call {again + 1})" if again else at.name] = one

    def told(self, at: _Running, tokens: _Tokens, one: Captured) -> Captured:
        """The same without the queries that are padding."""
        padded, argument = tokens.padded.to(one.present.device), "padded" if tokens.given else "attention_mask"
        num_queries, num_units, length = one.present.shape[-1], one.mask.shape[-1], padded.shape[-1]
        batch = one.present.shape[0] if one.present.dim() > 1 else 0
        opened, square = one.mask > -torch.inf, padded.shape[0] == length > 1 and not tokens.given
        if square and (length != batch or torch.equal(opened[(0,) * (opened.dim() - 2)], ~padded)):
            return one  # (L, L): which tokens may attend to which
        fits = padded.shape[0] in (1, batch)
        heads = (1,) * (one.present.dim() - 2)
        if at.crossed:
            fits = fits and num_queries == length
        else:
            fits = fits and num_queries <= length <= num_units
        if fits and not at.crossed and num_units > length:  # units beyond the tokens, the last of which sees itself
            itself = opened[..., -1, length - 1] | padded[:, -1].reshape(-1, *heads)
            fits = bool(itself.all()) and not bool(opened[..., length:].any())
        said = f"{argument} {tuple(padded.shape)} marks padding"
        if not fits:
            here = f"{tuple(one.present.shape)} queries and {num_units} units"
            self.missed.append(f"{said} but fits no layer, as {at.name} with {here}; give padded= (B, L) of the layers")
            return one
        if bool(padded.all()):
            raise ValueError(f"{said} everywhere; mark tokens that count by {'False' if tokens.given else 1}")
        self.hit = True
        queries = padded[:, length - num_queries :].reshape(-1, *heads, num_queries)
        units = F.pad(padded, (0, max(num_units - length, 0))).reshape(len(padded), *heads, 1, -1)
        if not tokens.given and at.crossed and not tokens.asking and num_units == length:
            raise ValueError(f"{said}, of the queries of {at.name} or of its keys; give padded= (B, L) of the queries")
        if not tokens.given and not at.crossed and bool((opened & units & ~queries.unsqueeze(-1)).any()):
            raise ValueError(f"{said} that {at.name} attends to: is it of other tokens? give padded= (B, L) of its own")
        return one.without(queries)

    def check(self) -> None:
        """Refuse patterns that no layer matches, and padding that belongs to no layer."""
        for pattern in self.patterns or ():
            if not any(fnmatchcase(name, pattern) for name in self.names):
                some = ", ".join(list(self.names)[:NAMED]) + (", ..." if len(self.names) > NAMED else "")
                raise ValueError(f"layers: no layer that attends matches {pattern!r}; there are {some}")
        if self.missed and not self.hit:
            raise ValueError(self.missed[0])


@lru_cache
def _positional(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the arguments of a method that may be given by position."""
    named = inspect.signature(forward).parameters.values()
    return tuple(x.name for x in named if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD))[1:]


def _tokens(named: Sequence[str], call: Mapping[str, object], crossed: bool, around: _Tokens | None) -> _Tokens | None:
    """The tokens of a module's call: those its ``attention_mask`` tells, else those of the module around it."""
    mask = call.get("attention_mask")
    starts = "attention_mask" in named and ("input_ids" in named or "inputs_embeds" in named)
    if isinstance(mask, Tensor) and mask.dim() == 2 and not bool((mask < 0).any()):  # else it is added to the logits
        return _Tokens(mask == 0, crossed and starts, False)
    return None if mask is None and starts else around  # None: a decoder that is told nothing of its tokens


class FusedCalls(TorchFunctionMode):
    """Gives every call of ``scaled_dot_product_attention`` to a function, which answers in its place."""

    def __init__(self, attend: Callable[..., Tensor]):
        super().__init__()
        self.attend = attend

    def __torch_function__(self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None):
        attend = self.attend if function is F.scaled_dot_product_attention else function
        return attend(*args, **(kwargs or {}))


@contextmanager
def eager_calls(module: nn.Module, attend: Callable[..., Any]) -> Iterator[None]:
    """Give every call of Hugging Face's ``eager_attention_forward`` in a model to a function, which answers in its
    place: it is given what is written out, and then the arguments of the call.
    """
    with ExitStack() as stack:
        for home in {sys.modules.get(kind.__module__) for layer in module.modules() for kind in type(layer).__mro__}:
            if callable(written := vars(home).get(EAGER) if home else None):
                stack.callback(setattr, home, EAGER, written)
                setattr(home, EAGER, wraps(written)(partial(attend, written)))
        yield


def of_call(
    kept: Callable[[Any, Tensor], Tensor | None],
    name: str,
    layer: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Captured:
    """A call of ``scaled_dot_product_attention``, with its arguments: in a boolean mask True allows."""
    mask = kept((query.shape[-2], key.shape[-2]) if is_causal else attn_mask, query)
    groups = getattr(layer, "num_key_value_groups", 1)
    heads = getattr(getattr(layer, "config", None), "num_attention_heads", None)
    if groups > 1 and query.shape[-3:-1] == (key.shape[-3], groups) and heads == key.shape[-3] * groups:
        # Hugging Face lays the heads of one query that share keys out as queries of one head
        query = query.flatten(-3, -2).unsqueeze(-2)
        mask = mask if mask is None or mask.shape[-3] == 1 else mask.flatten(-3, -2).unsqueeze(-2)
    key, value = _repeated(name, query, key, value)
    return captured(query, key, value, mask, scale)


def _repeated(name: str, query: Tensor, *shared: Any) -> tuple[Any, ...]:
    """Keys and values (..., H', S, D), repeated for the H heads of the queries where H' is fewer."""
    heads = query.shape[-3] if query.dim() > 3 else 1
    for x in shared:
        if isinstance(x, Tensor) and x.dim() > 3 and heads % x.shape[-3]:
            raise ValueError(
                f"{name} has grouped queries, but {heads} heads of them are no multiple of {x.shape[-3]} heads of keys "
                f"or values; give {heads} heads of each, repeated"
            )
    return tuple(
        x.repeat_interleave(heads // x.shape[-3], -3)
        if isinstance(x, Tensor) and x.dim() > 3 and x.shape[-3] not in (1, heads)
        else x
        for x in shared
    )


def of_eager(
    kept: Masks, name: str, answer: Any, function: Callable[..., Any], layer: nn.Module, *args: Any, **kwargs: Any
) -> Captured:
    """A call of ``eager_attention_forward``, with its arguments, and its answer: outputs and weights."""
    call = dict(inspect.signature(function).bind(layer, *args, **kwargs).arguments)
    call |= call.pop("kwargs", {})
    query, mask, bias = call["query"], call["attention_mask"], call.get("position_bias")
    key, value = _repeated(name, query, call["key"], call["value"])
    if bias is not None:
        mask = bias if mask is None else bias + mask
    elif mask is not None:
        mask = kept(mask, query)
    mask = None if mask is None else mask[..., : key.shape[-2]]
    one = captured(query, key, value, mask, call.get("scaling"))
    weights: Any = answer[1] if isinstance(answer, tuple) and len(answer) > 1 else None
    alike = isinstance(weights, Tensor) and weights.shape == (*one.present.shape, one.mask.shape[-1])
    if alike and not layer.training:  # else dropout has acted on them
        eps = max(torch.finfo(dtype).eps for dtype in (weights.dtype, torch.float32))
        size = 1 + one.scale * query.double().norm(dim=-1).max() * key.double().norm(dim=-1).max()  # of the logits
        away, lost = weights - one.attention(), weights.double().sum(-1) - 1
        alike = bool(torch.where(one.present.unsqueeze(-1), away, 0.0).abs().max() <= 8 * eps * size)
        alike = alike and bool(torch.where(one.present, lost, 0.0).abs().max() <= max(4 * eps, 1e-4))
    if not alike or call.get("softcap") is not None:
        kind = type(layer).__name__
        raise ValueError(
            f"{name}, a {kind}, attends by more than softmax(scale q k' + mask), which is no mixture that is known; "
            "leave it out by layers="
        )
    return one


def _explained(name: str, given: Mapping[str, Any]) -> Captured:
    """The layer as a function of the user describes it."""
    allowed = inspect.signature(captured).parameters
    if not isinstance(given, Mapping) or not {"queries", "keys"} <= given.keys() <= allowed.keys():
        said = ", ".join(given) if isinstance(given, Mapping) else type(given).__name__
        raise ValueError(f"attentions: the function for {name} must return arguments of captured, not {said}")
    shared = dict(
        zip(("keys", "values"), _repeated(name, given["queries"], given["keys"], given.get("values")), strict=True)
    )
    return captured(**{**given, **shared})


def _of_layer(name: str, layer: Ours, args: tuple[object, ...], kwargs: dict[str, object]) -> Captured:
    """A layer of torch or of `probtx_pyro.nn`, from the arguments of its call."""
    projecting = own(name, layer) if isinstance(layer, nn.MultiheadAttention) else layer
    call = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
    if any(isinstance(x, Tensor) and x.is_nested for x in call.values()):
        raise ValueError(f"{name} got nested tensors; pad them, and say where by a padding mask")
    taken = inspect.signature(projecting.heads).parameters
    return of_heads(projecting, *projecting.heads(**{key: x for key, x in call.items() if key in taken}))


def of_heads(
    projecting: Attention | HopfieldRetrieval, queries: Tensor, units: Units, values: Tensor, combined: HeadMasks
) -> Captured:
    """Return what a layer of `probtx_pyro.nn` attends with."""
    padded = None if combined.padded is None else combined.padded.unsqueeze(1)
    if type(projecting) is SoftmaxAttention:
        mask = combined.explicit(queries.shape[-2], values.shape[-2], queries)
        scale, dims = projecting.head_dim**-0.5, ("batch", "head")
        return captured(queries, units.keys, values, mask, scale, padded=padded, dims=dims)
    units = units._replace(**{field: x.double() for field, x in units._asdict().items() if x is not None})
    queries, values = queries.double(), values.double()
    if combined.log_prior is not None:
        combined = combined._replace(log_prior=combined.log_prior.double())
    present = padded is None or ~padded.unsqueeze(-1)
    finite = queries if padded is None else torch.where(present | queries.isfinite(), queries, 0.0)
    written, asked = projecting.attending(finite, units, values, combined)
    asked = asked.squeeze(-2) if asked.dim() > queries.dim() else asked
    mask = combined.explicit(queries.shape[-2], values.shape[-2], queries)
    mask = queries.new_zeros(1, values.shape[-2]) if mask is None else mask
    return seen(asked, written, mask, padded, ("batch", "head"), options=projecting.attention_options)


def own(name: str, layer: nn.MultiheadAttention) -> Attention:
    """Our reference layer with the weights of torch's: the two project alike."""
    cuda = [layer.out_proj.weight.device.index] if layer.out_proj.weight.is_cuda else []
    with torch.random.fork_rng(devices=cuda):  # the start that the weights replace is drawn
        twin = SoftmaxAttention.from_torch(layer)
    if twin.state_dict().keys() != layer.state_dict().keys():
        raise ValueError(f"{name} keeps its weights under other names; remove its parametrizations first")
    return twin

"""Formulations in the place of a model's attention, so that its loss says what a reading costs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.inspection._capture import FusedCalls, Masks, eager_calls, of_call, of_eager, of_heads, own
from probtx_pyro.inspection._captured import Captured
from probtx_pyro.models import Formulation
from probtx_pyro.nn._heads import Masks as HeadMasks
from probtx_pyro.nn._heads import Units
from probtx_pyro.nn.attention import Attention

Answers: TypeAlias = Formulation | Captured | Tensor
Reading: TypeAlias = Formulation | Callable[[Captured], Answers]


@contextmanager
def replaced(model: nn.Module, readings: Mapping[str, Reading | Mapping[int, Reading]]) -> Iterator[nn.Module]:
    """Run a model with formulations in the place of its attention, inside a ``with`` block.

    Every call of ``torch.nn.functional.scaled_dot_product_attention`` in a layer that is named, which is how models of
    Hugging Face attend by default, every call of their ``eager_attention_forward`` there, and every named
    ``torch.nn.MultiheadAttention`` or layer of `probtx_pyro.nn`, answers by its reading. Queries, keys and masks come
    as the layer computes them: rotated, repeated for the queries of a group, with those of a cache. The rest of the
    model runs on as it is, so that a loss inside the block less the loss outside is what the reading costs. Readings
    are computed in double precision, without gradients and without dropout; weights that a layer returns beside its
    answers are None, or, of ``eager_attention_forward``, the layer's own.

    Parameters
    ----------
    model
        The model.
    readings
        By name of the layer, or a pattern such as ``"model.layers.2*"``: what answers in its place. A formulation
        answers by its ``expected_outputs``; a function is given the `Captured` of the call, leading axes (batch, head),
        and returns a formulation, a `Captured` or answers (..., Q, M). For some heads only, a mapping from the number
        of a head to its reading, which is then given a `Captured` of one head, leading axis (batch).

    Yields
    ------
    torch.nn.Module
        The model.

    Raises
    ------
    ValueError
        A name that the model does not have; after the block, a name under which nothing attended, as in a model of
        Hugging Face that writes its attention out by itself. Answers of another shape than the layer's; eager attention
        that is no softmax.

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> x = torch.randn(3, 5, 8)
    >>> before = encoder(x)
    >>> with replaced(encoder, {"layers.*": lambda one: one.written}):
    ...     bool((encoder(x) - before).abs().max() < 1e-5)
    True
    >>> with replaced(encoder, {"layers.1.*": {0: lambda one: 0 * one.values}}):
    ...     bool((encoder(x) - before).abs().max() < 1e-5)
    False
    """
    names = [name or type(module).__name__ for name, module in model.named_modules()]
    for pattern in readings:
        if not any(fnmatchcase(name, pattern) for name in names):
            attending = [name for name in names if "att" in name.lower()] or names
            some = ", ".join(attending[:3])
            raise ValueError(f"readings: the model has no module {pattern!r}; its names are such as {some}")
    used: set[str] = set()
    running: list[tuple[str, nn.Module] | None] = []  # modules inside each other; None is a reading

    def reading_of(name: str) -> Reading | Mapping[int, Reading] | None:
        found = next((pattern for pattern in readings if fnmatchcase(name, pattern)), None)
        used.update([] if found is None else [found])
        return None if found is None else readings[found]

    def attend(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        fused, at = partial(F.scaled_dot_product_attention, query, *args, **kwargs), running[-1] if running else None
        reading = None if at is None else reading_of(at[0])
        if at is None or reading is None:
            return fused()
        one = of_call(Masks(), *at, query, *args, **kwargs)
        found = _answers(at[0], reading, one, lambda: fused().reshape(*one.present.shape, -1))
        return found.to(query.dtype).reshape(*query.shape[:-1], -1)

    def eager(function: Callable[..., Any], layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
        answer, at = function(layer, *args, **kwargs), running[-1] if running else None
        reading = None if at is None or at[1] is not layer else reading_of(at[0])
        if at is None or reading is None:
            return answer
        one = of_eager(Masks(), at[0], answer, function, layer, *args, **kwargs)
        found = _answers(at[0], reading, one, lambda: answer[0].transpose(1, 2))
        return found.to(answer[0].dtype).transpose(1, 2).contiguous(), *answer[1:]

    def answering(name: str, layer: nn.MultiheadAttention | Attention, reading: Any) -> Callable[[], None]:
        """Let a layer of torch, or of ours, answer by a reading; returned is what undoes it."""
        twin = own(name, layer) if isinstance(layer, nn.MultiheadAttention) else layer
        fused = twin._fused

        def attend(
            queries: Tensor, units: Units, values: Tensor, masks: HeadMasks, need_weights: bool
        ) -> tuple[Tensor, Tensor | None]:
            heads = queries, units, values, masks
            running.append(None)
            try:
                found = _answers(name, reading, of_heads(twin, *heads), lambda: fused(*heads, False)[0])
                return found.to(values.dtype), None
            finally:
                running.pop()

        def undo() -> None:
            del twin._fused, layer.forward

        twin._fused, layer.forward = attend, twin.forward  # type: ignore[method-assign]
        return undo

    with ExitStack() as stack:
        for name, layer in model.named_modules():
            name = name or type(layer).__name__
            if isinstance(layer, nn.MultiheadAttention | Attention) and (reading := reading_of(name)) is not None:
                stack.callback(answering(name, layer, reading))
            stack.enter_context(
                layer.register_forward_pre_hook(lambda layer, _, name=name: running.append((name, layer)))
            )
            stack.enter_context(layer.register_forward_hook(lambda *_: running.pop() and None, always_call=True))
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(eager_calls(model, eager))
        stack.enter_context(FusedCalls(attend))
        yield model
    if unused := [pattern for pattern in readings if pattern not in used]:
        repair = 'call model.set_attn_implementation("sdpa") if the model writes its attention out'
        raise ValueError(f"readings: nothing attended under {unused[0]!r}; name the layer that attends, or {repair}")


@torch.no_grad()
def _answers(name: str, reading: Reading | Mapping[int, Reading], one: Captured, own: Callable[[], Tensor]) -> Tensor:
    """Answers (..., Q, M) of a reading; heads without one keep the layer's ``own``."""
    assert one.values is not None
    if isinstance(reading, Mapping):
        answers = own().clone()
        heads = answers.shape[-3] if one.dims[-1:] == ("head",) else 0
        for head, of_head in reading.items():
            if not 0 <= head < heads:
                raise ValueError(f"readings: {name} has heads 0 to {heads - 1}, not {head!r}")
            alone = partial(answers.select, -3, head)
            alone().copy_(_answers(f"{name}, head {head}", of_head, one.select(head=head), alone))
        return answers
    found = reading if isinstance(reading, Formulation) else reading(one)
    if isinstance(found, Formulation):
        found = one._answered(found.expected_outputs(one._asked), 1)
    elif isinstance(found, Captured) and found.values is not None:
        found = found.attention() @ found.values
    wanted = (*one.queries.shape[:-1], one.values.shape[-1])
    if not isinstance(found, Tensor) or tuple(found.shape) != wanted:
        said = f"answers of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ValueError(f"readings: that of {name} gave {said}; the layer answers with shape {wanted}")
    return found

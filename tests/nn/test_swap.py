"""Swapping the attention of a whole model changes the layers and nothing else."""

import copy
import gc

import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.nn.utils import parametrizations, parametrize

from probtx_pyro import nn

E, H = 8, 2


class Stack(torch.nn.Module):
    """Layers one after the other, each adding to its input."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x


def attention(**options):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(E, H, batch_first=True, **options)
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter)
    return layer


def inputs(dtype=None):
    return torch.randn(3, 5, E, generator=generator(1), dtype=dtype)


def swapped(model, layer=nn.GaussianMixtureAttention, **options):
    """The model, swapped in place."""
    assert nn.swap_attention(model, layer, **options)
    return model


# -- places ---------------------------------------------------------------------------------------------------------------


def test_every_place_is_reported_by_its_name():
    model = torch.nn.Transformer(E, H, 1, 2, 16, batch_first=True)
    found = nn.swap_attention(model, nn.SoftmaxAttention)
    assert found == [
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.self_attn",
        "decoder.layers.1.multihead_attn",
    ]
    assert all(type(model.get_submodule(name)) is nn.SoftmaxAttention for name in found)
    assert not any(isinstance(module, torch.nn.MultiheadAttention) for module in model.modules())


def test_a_layer_used_three_times_stays_one_layer():
    shared = attention()
    model, x = Stack(shared, shared, shared), inputs()
    before = model(x)
    assert nn.swap_attention(model, nn.GaussianMixtureAttention) == ["layers.0", "layers.1", "layers.2"]
    first, second, third = model.layers
    assert first is second is third and type(first) is nn.GaussianMixtureAttention
    assert len(list(model.parameters())) == 4 + 1  # and one log_key_precision
    assert_equal(model(x), before, operations=64)  # three layers in a row


def test_a_block_used_twice_stays_one_block():
    block = Stack(attention())
    model = torch.nn.Sequential(block, block)
    assert nn.swap_attention(model, nn.SoftmaxAttention) == ["0.layers.0", "1.layers.0"]
    assert model[0] is model[1] and type(model[0].layers[0]) is nn.SoftmaxAttention


def test_parameters_tied_between_layers_stay_tied():
    first, second = attention(), attention()
    second.in_proj_weight = first.in_proj_weight
    model = swapped(Stack(first, second))
    assert model.layers[0].in_proj_weight is model.layers[1].in_proj_weight


# -- parameters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 4}, {"bias": False}, {"add_bias_kv": True}], ids=str)
def test_the_parameters_are_the_very_ones_of_before(options):
    old = attention(**options)
    before, model = dict(old.named_parameters()), Stack(old)
    after = dict(swapped(model).layers[0].named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert set(after) - set(before) == {"log_key_precision"}


def test_an_optimizer_made_before_the_swap_still_trains():
    model = Stack(attention())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, start = inputs(), {name: p.detach().clone() for name, p in model.named_parameters()}
    swapped(model)
    model(x).square().sum().backward()
    optimizer.step()
    after = dict(model.named_parameters())
    assert all(not torch.equal(after[name], value) for name, value in start.items())


@pytest.mark.parametrize("frozen", [("in_proj_weight",), ("out_proj.weight", "out_proj.bias", "in_proj_bias")])
def test_what_was_frozen_stays_frozen(frozen):
    old = attention()
    for name in frozen:
        old.get_parameter(name).requires_grad_(False)
    for new in (nn.GaussianMixtureAttention.from_torch(old), swapped(Stack(old)).layers[0]):
        assert {name for name, p in new.named_parameters() if not p.requires_grad} == set(frozen)


def test_a_layer_frozen_whole_gets_nothing_that_learns():
    old = attention().requires_grad_(False)
    for new in (nn.GaussianMixtureAttention.from_torch(old), swapped(Stack(old)).layers[0]):
        assert "log_key_precision" in dict(new.named_parameters())
        assert not any(parameter.requires_grad for parameter in new.parameters())


def test_from_torch_copies_the_weights():
    old = attention()
    new = nn.SoftmaxAttention.from_torch(old)
    assert_equal(new.in_proj_weight, old.in_proj_weight)
    assert new.in_proj_weight is not old.in_proj_weight
    assert new.in_proj_weight.data_ptr() != old.in_proj_weight.data_ptr()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mode_and_dtype_are_kept(training, dtype):
    model = Stack(attention(dtype=dtype, dropout=0.1)).train(training)
    new = swapped(model, nn.GaussianKeysAttention, num_components=2).layers[0]
    assert all(module.training is training for module in model.modules())
    assert {parameter.dtype for parameter in new.parameters()} == {dtype}
    assert new.dropout == 0.1 and new.batch_first and new(*[inputs(dtype)] * 3)[0].dtype == dtype


def test_device_is_kept():
    """The meta device stands for another one."""
    model = Stack(attention(device="meta"))
    assert {parameter.device.type for parameter in swapped(model).parameters()} == {"meta"}


# -- options and hooks ------------------------------------------------------------------------------------------------------


def test_options_reach_every_layer():
    model = swapped(Stack(attention(), attention()), map_steps=3, linked=False)
    assert [(layer.map_steps, layer.linked) for layer in model.layers] == [(3, False)] * 2


def test_hooks_are_kept_and_their_handles_still_remove_them():
    old, calls = attention(), []
    model = Stack(old)

    def note(name):
        return lambda module, *_, **__: calls.append((name, type(module).__name__))

    handles = [
        old.register_forward_pre_hook(note("forward_pre")),
        old.register_forward_hook(note("forward")),
        old.register_forward_hook(note("forward, named"), with_kwargs=True, always_call=True),
        old.register_full_backward_pre_hook(note("backward_pre")),
        old.register_full_backward_hook(note("backward")),
        old.register_state_dict_pre_hook(note("state_pre")),
        old.register_state_dict_post_hook(note("state_post")),
        old.register_load_state_dict_pre_hook(note("load_pre")),
        old.register_load_state_dict_post_hook(note("load_post")),
        old.out_proj.register_forward_hook(note("out_proj")),
    ]
    swapped(model, nn.SoftmaxAttention)
    del old
    gc.collect()  # a hook that remembers the old layer would now find it dead

    def use():
        calls.clear()
        model(inputs().requires_grad_()).sum().backward()
        model.load_state_dict(model.state_dict())
        return set(calls)

    names = "forward_pre, forward, backward_pre, backward, state_pre, state_post, load_pre, load_post".split(", ")
    expected = {(name, "SoftmaxAttention") for name in [*names, "forward, named"]}
    assert use() == expected | {("out_proj", "Linear")}
    for handle in handles:
        handle.remove()
    assert use() == set()


def test_a_hook_that_changes_the_output_still_changes_it():
    old, x = attention(), inputs()
    old.register_forward_hook(lambda module, args, output: (2 * output[0], output[1]))
    model = Stack(old)
    before = model(x)
    assert_equal(swapped(model)(x), before)


def test_a_state_dict_hook_does_not_reach_the_weights():
    """``from_torch`` reads the parameters, not a state that a hook may have rewritten."""
    old, x = attention(), inputs()
    old.register_state_dict_post_hook(lambda module, state, prefix, local: state.clear())
    assert_equal(nn.SoftmaxAttention.from_torch(old)(x, x, x)[0], old(x, x, x)[0])


# -- refusals ---------------------------------------------------------------------------------------------------------------


class Doubled(torch.nn.MultiheadAttention):
    def forward(self, *args, **options):
        output, weights = super().forward(*args, **options)
        return 2 * output, weights


class Called(torch.nn.MultiheadAttention):
    """Doubled by the call that leads to ``forward``, which is torch's."""

    def __call__(self, *args, **options):
        output, weights = super().__call__(*args, **options)
        return 2 * output, weights


class Renamed(torch.nn.MultiheadAttention):
    """A subclass that does nothing of its own."""


class Gated(torch.nn.MultiheadAttention):
    """A subclass with a parameter of its own."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.gate = torch.nn.Parameter(torch.ones(()))


def normed():
    layer = attention()
    parametrizations.weight_norm(layer.out_proj, "weight")
    return layer


def patched():
    layer = attention()
    layer.forward = lambda *args, **options: torch.nn.MultiheadAttention.forward(layer, *args, **options)
    return layer


def test_a_subclass_that_changes_nothing_is_swapped():
    model = Stack(Renamed(E, H, batch_first=True))
    assert type(swapped(model).layers[0]) is nn.GaussianMixtureAttention


INSTANCE = nn.GaussianMixtureAttention(16, 2, map_steps=3, linked=False)
PARAMETERS = (
    r"layers.1: \w+ keeps its weights under other names than MultiheadAttention \(.*{}.*\); remove its parametrizations"
)
BAD = {
    "instance": (TypeError, lambda: [attention()], (INSTANCE,), {}, r"layer must be a class, not an instance; call swap_attention\(model, GaussianMixtureAttention, \.\.\.\)"),
    "no attention class": (TypeError, lambda: [attention()], (torch.nn.MultiheadAttention,), {}, r"layer must be a class of attention layers, such as SoftmaxAttention, not <class.*MultiheadAttention'>"),
    "no class": (TypeError, lambda: [attention()], ("softmax",), {}, r"layer must be a class of attention layers, such as SoftmaxAttention, not 'softmax'"),
    "the base class": (TypeError, lambda: [attention()], (nn.Attention,), {}, r"layer must be a class of attention layers"),
    "unknown option": (TypeError, lambda: [attention()], (nn.SoftmaxAttention,), {"map_steps": 3}, r"map_steps"),
    "option of torch's": (ValueError, lambda: [attention()], (nn.SoftmaxAttention,), {"dropout": 0.3}, r"layers.0: options: dropout cannot be chosen; the layer that is replaced decides it"),
    "option that the weights decide": (ValueError, lambda: [attention()], (nn.SoftmaxAttention,), {"head_dim": 2}, r"layers.0: options: head_dim cannot be chosen"),
    "option out of range": (ValueError, lambda: [attention()], (nn.GaussianMixtureAttention,), {"map_steps": -1}, r"layers.0: map_steps must be 0 or more, not -1"),
    "nothing to swap": (ValueError, lambda: [torch.nn.Linear(2, 2)], (nn.SoftmaxAttention,), {}, r"there is no torch.nn.MultiheadAttention in Stack; inspection.capture and inspection.replaced may serve attention of another kind"),
    "swapped before": (ValueError, lambda: [nn.SoftmaxAttention(E, H)], (nn.SoftmaxAttention,), {}, r"there is no torch.nn.MultiheadAttention in Stack"),
    "forward of its own": (ValueError, lambda: [attention(), Doubled(E, H)], (nn.SoftmaxAttention,), {}, r"layers.1: Doubled has a forward of its own, which another layer would not run"),
    "call of its own": (ValueError, lambda: [attention(), Called(E, H)], (nn.SoftmaxAttention,), {}, r"layers.1: Called has a forward of its own"),
    "patched forward": (ValueError, lambda: [attention(), patched()], (nn.SoftmaxAttention,), {}, r"layers.1: MultiheadAttention has a forward of its own"),
    "parameter of its own": (ValueError, lambda: [attention(), Gated(E, H)], (nn.SoftmaxAttention,), {}, PARAMETERS.format("gate")),
    "parametrized": (ValueError, lambda: [attention(), parametrizations.orthogonal(attention(), "in_proj_weight")], (nn.SoftmaxAttention,), {}, PARAMETERS.format("parametrizations.in_proj_weight")),
    "parametrized inside": (ValueError, lambda: [attention(), normed()], (nn.SoftmaxAttention,), {}, PARAMETERS.format("out_proj.parametrizations")),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_refused_swap_changes_nothing(name):
    kind, layers, given, options, message = BAD[name]
    model = Stack(*layers())
    before = list(model.layers)
    with pytest.raises(kind, match=message) as error:
        nn.swap_attention(model, *given, **options)
    assert "\n" not in str(error.value)
    assert all(now is then for now, then in zip(model.layers, before, strict=True))


def test_a_layer_that_is_the_whole_model_is_refused_with_the_call_that_works():
    model, x = attention(), inputs()
    with pytest.raises(
        ValueError, match=r"model is itself a MultiheadAttention.*use HopfieldAttention.from_torch\(model\)"
    ):
        nn.swap_attention(model, nn.HopfieldAttention)
    assert_equal(nn.HopfieldAttention.from_torch(model)(x, x, x)[0], model(x, x, x)[0])


def test_a_parametrization_that_was_removed_is_no_hindrance():
    layer = parametrizations.orthogonal(attention(), "in_proj_weight")
    parametrize.remove_parametrizations(layer, "in_proj_weight")
    x, model = inputs(), Stack(layer)
    before = model(x)
    assert_equal(swapped(model)(x), before)


@pytest.mark.parametrize("given", ["a model", None, attention], ids=["text", "nothing", "function"])
def test_what_is_no_module_is_refused(given):
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, not"):
        nn.swap_attention(given, nn.SoftmaxAttention)
    with pytest.raises(TypeError, match=r"layer must be a torch.nn.MultiheadAttention, not"):
        nn.SoftmaxAttention.from_torch(given)


def test_a_copy_of_a_swapped_model_is_its_own():
    model, x = swapped(Stack(attention())), inputs()
    other = copy.deepcopy(model)
    assert_equal(other(x), model(x))
    assert other.layers[0].in_proj_weight is not model.layers[0].in_proj_weight

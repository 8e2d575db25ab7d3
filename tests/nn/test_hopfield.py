"""Hopfield layers against loops over items, heads and steps; masks, batches, memories that are held, derivatives."""

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import models, nn
from probtx_pyro.ops.entmax import ENTMAX

B, H, L, S, E = 3, 2, 4, 6, 8
every = pytest.mark.parametrize("transformation", ENTMAX)


def tensors(seed=0, answers=E):
    g = generator(seed)
    return (torch.randn(B, n, width, generator=g) for n, width in ((L, E), (S, E), (S, answers)))


def by_loops(state, patterns, values, allowed, beta, num_steps, transformation):
    """(B, L, M) from one row, one head and one item at a time; ``allowed`` (B, H, L, S), or None."""
    function, width, wide = ENTMAX[transformation].function, E // H, values.shape[-1] // H
    output = torch.zeros(B, L, values.shape[-1])
    for b in range(B):
        for h in range(H):
            x, v = patterns[b][:, h * width : (h + 1) * width], values[b][:, h * wide : (h + 1) * wide]
            for i in range(L):
                kept = torch.ones(S, dtype=torch.bool) if allowed is None else allowed[b, h, i]
                if not kept.any():
                    continue
                s = state[b, i, h * width : (h + 1) * width]
                for _ in range(num_steps - 1):
                    s = function(beta[h] * x[kept] @ s) @ x[kept]
                output[b, i, h * wide : (h + 1) * wide] = function(beta[h] * x[kept] @ s) @ v[kept]
    return output


def mask(name):
    """Arguments of a call, and who may look at whom, (B, H, L, S)."""
    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[1, 3:] = padding[2, :2] = True
    each = torch.rand(B * H, L, S, generator=generator(1)) < 0.4
    each[1, 2] = True  # this state sees nobody in the second head
    everyone = torch.ones(B, H, L, S, dtype=torch.bool)
    return {
        "none": ({}, None),
        "padding": ({"key_padding_mask": padding}, everyone & ~padding[:, None, None]),
        "one for all": ({"attn_mask": each[2]}, everyone & ~each[2]),
        "each head": ({"attn_mask": each, "key_padding_mask": padding}, ~each.view(B, H, L, S) & ~padding[:, None, None]),
        "causal": ({"is_causal": True}, everyone & torch.ones(L, S, dtype=torch.bool).tril()),
    }[name]  # fmt: skip


MASKS = ("none", "padding", "one for all", "each head", "causal")


@pytest.mark.pairs
@every
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("num_steps", [1, 3])
def test_retrieval_is_the_loop(name, num_steps, transformation):
    state, patterns, values = tensors(answers=6)
    options, allowed = mask(name)
    layer = nn.HopfieldRetrieval(H, 0.9, num_steps=num_steps, transformation=transformation, batch_first=True)
    assert list(layer.parameters()) == [] and layer.state_dict() == {}
    for answers in (values, None):
        read = patterns if answers is None else answers
        expected = by_loops(state, patterns, read, allowed, [0.9, 0.9], num_steps, transformation)
        assert_equal(layer(state, patterns, answers, **options), expected, operations=256)
    batch_second = nn.HopfieldRetrieval(H, 0.9, num_steps=num_steps, transformation=transformation)
    found = batch_second(*(x.transpose(0, 1) for x in (state, patterns, values)), **options).transpose(0, 1)
    assert_equal(
        found, by_loops(state, patterns, values, allowed, [0.9, 0.9], num_steps, transformation), operations=256
    )


@every
@pytest.mark.parametrize("name", MASKS)
def test_attention_is_the_loop_between_its_projections(name, transformation):
    """Three steps in the space of the keys, then the values; with and without weights."""
    torch.manual_seed(0)
    layer = nn.HopfieldAttention(
        E, H, batch_first=True, beta=1.2, learn_beta=True, num_steps=3, transformation=transformation
    )
    torch.nn.init.normal_(layer.in_proj_bias)
    torch.nn.init.normal_(layer.out_proj.bias)
    with torch.no_grad():
        layer.update.log_beta[1] += 0.7
    state, patterns, values = tensors(2)
    options, allowed = mask(name)
    weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    projected = (x @ w.T + b for x, w, b in zip((state, patterns, values), weights, biases, strict=True))
    inner = by_loops(*projected, allowed, layer.constrained()["beta"].flatten(), 3, transformation)
    expected = inner @ layer.out_proj.weight.T + layer.out_proj.bias
    for need_weights in (False, True):
        output, found = layer(state, patterns, values, need_weights=need_weights, **options)
        assert_equal(output, expected, operations=256)
    sums = torch.ones(B, L) if allowed is None else allowed.any(-1).double().mean(1)
    assert_equal(found.sum(-1), sums)


@every
def test_the_layer_is_the_model(transformation):
    state, patterns, values = tensors(3)
    layer = nn.HopfieldRetrieval(1, 1.5, num_steps=50, tol=1e-4, transformation=transformation, batch_first=True)
    memory = models.Hopfield(patterns, 1.5, transformation=transformation)
    assert_equal(layer(state, patterns), memory.retrieve(memory.retrieve(state, 49, tol=1e-4)), operations=256)
    read = memory.replace(values=values)
    assert_equal(layer(state, patterns, values), read.retrieve(state, 50, tol=1e-4), operations=256)


@pytest.mark.parametrize("tol", [None, 1e-2])
def test_a_batch_is_its_singles(tol):
    state, patterns, values = tensors(4, answers=4)
    for layer in (
        nn.HopfieldRetrieval(H, 2.0, num_steps=30, tol=tol, batch_first=True),
        nn.HopfieldAttention(E, H, vdim=4, beta=2.0, num_steps=30, tol=tol, batch_first=True),
    ):
        together = layer(state, patterns, values)
        for b in range(B):
            alone = layer(state[b], patterns[b], values[b])
            if isinstance(together, tuple):
                assert all(torch.allclose(x[b], y, atol=1e-12) for x, y in zip(together, alone, strict=True))
            else:
                assert_equal(together[b], alone, operations=256)
    padding = torch.arange(S) > 3
    single = nn.HopfieldRetrieval(H, 2.0)(state[0], patterns[0], key_padding_mask=padding)
    assert_equal(single, nn.HopfieldRetrieval(H, 2.0)(state[0], patterns[0, :4]))


def test_a_memory_that_is_held_moves_is_saved_and_is_shared_by_the_batch():
    state, patterns, values = tensors(5, answers=2)
    layer = nn.HopfieldRetrieval(H, 0.7, patterns=patterns[0], values=values[0], batch_first=True)
    assert set(layer.state_dict()) == {"patterns", "values"} and list(layer.parameters()) == []
    by_call = nn.HopfieldRetrieval(H, 0.7, batch_first=True)
    assert_equal(layer(state), by_call(state, patterns[0], values[0]))
    assert_equal(layer(state)[1], by_call(state[1], patterns[0], values[0]))
    assert_equal(
        layer(state, patterns), by_call(state, patterns)
    )  # patterns of the call go before, with their own values
    assert_equal(layer(state, values=-values[0]), -layer(state))
    assert layer.to(torch.float32)(state.float()).dtype == torch.float32
    again = nn.HopfieldRetrieval(H, 0.7, patterns=torch.zeros(S, E), values=torch.zeros(S, 2), batch_first=True)
    again.load_state_dict(layer.double().state_dict())
    assert torch.equal(again(state), layer(state))


def test_what_is_masked_may_be_anything():
    state, patterns, _ = tensors(6)
    padding = torch.arange(S) >= torch.tensor([[S], [3], [0]])
    broken = patterns.masked_fill(padding.unsqueeze(-1), torch.nan)
    for transformation in ENTMAX:
        layer = nn.HopfieldRetrieval(H, num_steps=2, transformation=transformation, batch_first=True)
        output = layer(state.requires_grad_(), broken, key_padding_mask=padding)
        assert_equal(output, layer(state, patterns, key_padding_mask=padding))
        assert (output[2] == 0).all() and (output[:2] != 0).any()
        assert torch.isfinite(torch.autograd.grad(output.square().sum(), state)[0]).all()


@every
@pytest.mark.parametrize("num_steps", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_gradients_are_finite_differences(transformation, num_steps):
    inputs = [x[:1, :3].clone().requires_grad_() for x in tensors(7)]
    options = {"num_steps": num_steps, "transformation": transformation, "batch_first": True, "learn_beta": True}
    retrieval = nn.HopfieldRetrieval(H, 0.05, **options)  # so small that sparse maps have several patterns to weigh
    attention = nn.HopfieldAttention(E, H, **options)
    assert torch.autograd.gradcheck(retrieval, inputs)
    assert torch.autograd.gradcheck(lambda *x: attention(*x, need_weights=False)[0], inputs)
    assert torch.autograd.gradgradcheck(lambda *x: attention(*x)[0], inputs)
    (slope,) = torch.autograd.grad(retrieval(*inputs).square().sum(), retrieval.update.log_beta)
    assert slope.shape == (H, 1) and (slope != 0).all()


@every
@pytest.mark.parametrize("tol", [None, 1e-2])
def test_autocast_is_close_to_float32(transformation, tol):
    state, patterns, values = (x.float() for x in tensors(11))
    padding = torch.arange(S).expand(B, S) > 3
    layer = nn.HopfieldRetrieval(H, 0.5, num_steps=3, tol=tol, transformation=transformation, batch_first=True)
    expected = layer(state, patterns, values, padding)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(state, patterns, values, padding)
    # six roundings to 8 bits (products and means of three steps) of numbers of order 1; steps at this β do not magnify them
    assert (output.float() - expected).abs().max() <= 6 * 2**-8 * float(values.abs().max())


def test_more_steps_lower_the_energy_of_the_states_and_reach_the_pattern():
    patterns = 3 * torch.nn.functional.normalize(torch.randn(5, 16, generator=generator(8)), dim=-1)
    state = patterns + 0.5 * torch.randn(5, 16, generator=generator(9))
    memory = models.Hopfield(patterns, 1.0)
    states = [nn.HopfieldRetrieval(beta=1.0, num_steps=n, patterns=patterns)(state) for n in (1, 2, 5, 20)]
    energies = torch.stack([memory.energy(x) for x in (state, *states)])
    assert (energies.diff(dim=0) <= 1e-13).all() and (energies[0] - energies[1] > 0.5).all()
    assert (states[-1] - patterns).abs().max() < 0.05


def test_with_a_fixed_beta_the_state_is_that_of_multihead_attention():
    theirs = torch.nn.MultiheadAttention(E, H)
    ours = nn.HopfieldAttention(E, H, num_steps=3, beta=0.5)
    shapes = [{name: x.shape for name, x in layer.state_dict().items()} for layer in (ours, theirs)]
    assert shapes[0] == shapes[1]
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert all(torch.equal(x, theirs.state_dict()[name]) for name, x in ours.state_dict().items())


def test_our_transformer_with_it_is_causal_and_every_beta_has_a_gradient():
    torch.manual_seed(1)
    model = nn.TransformerLM(
        20, 6, width=E, num_heads=H, num_layers=2, attention=nn.HopfieldAttention, num_steps=2, learn_beta=True
    )
    tokens = torch.randint(20, (B, 6), generator=generator(10))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 20
    before, after = model(tokens), model(changed)
    assert_equal(before[:, :-1], after[:, :-1])
    gradients = torch.autograd.grad(before.square().sum(), [b.attention.update.log_beta for b in model.blocks])
    assert all((g != 0).all() for g in gradients)


X = torch.zeros(B, L, E, dtype=torch.float64)
BAD = {
    "no patterns": (lambda: nn.HopfieldRetrieval()(X), "there are no patterns; give them to the call"),
    "heads": (lambda: nn.HopfieldRetrieval(0), "num_heads must be 1 or more, not 0"),
    "steps": (lambda: nn.HopfieldRetrieval(num_steps=0), "num_steps must be 1 or more, not 0"),
    "beta": (lambda: nn.HopfieldRetrieval(beta=float("inf")), "beta must be positive and finite, not inf"),
    "learned beta": (lambda: nn.HopfieldRetrieval(learn_beta=True), "learn_beta needs a number to start from"),
    "transformation": (lambda: nn.HopfieldRetrieval(transformation="max"), "transformation must be one of softmax, entmax15"),
    "values alone": (lambda: nn.HopfieldRetrieval(values=X[0]), "values to hold need the patterns"),
    "features": (lambda: nn.HopfieldRetrieval()(X, X[..., :4]), r"disagree on features"),
    "numbers": (lambda: nn.HopfieldRetrieval()(X, X, X[:2]), r"or number \(patterns, values\)"),
    "width": (lambda: nn.HopfieldRetrieval(3)(X, X), r"state must be batched .* features that num_heads 3 divides"),
    "batch": (lambda: nn.HopfieldRetrieval(batch_first=True)(X, X[:2]), r"patterns must be batched \(of 3, batch_first=True\)"),
    "axes": (lambda: nn.HopfieldRetrieval()(X[0, 0], X[0]), r"state must be batched .* has shape \(8,\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_error_of_bad_input_names_the_argument(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)

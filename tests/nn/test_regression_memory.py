"""A memory as an attention layer: every update against a loop of its published formula, pair by pair, in NumPy."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from strategies import generator
from tolerances import assert_equal
from torch.autograd import forward_ad
from torch.func import functional_call, jacfwd, jacrev
from torch.nn import functional as F

from probtx_pyro import inspection, models, nn

B, T, E, H = 3, 11, 6, 2
UPDATES = list(nn.memory_updates)
updates = pytest.mark.parametrize("update", UPDATES)
gated = pytest.mark.parametrize("gates", [False, True], ids=["", "gates"])


def made(update="exact", gates=False, spread=0.5, **options):
    """A layer whose every parameter is away from its start, batch first, and another in each head."""
    torch.manual_seed(0)
    layer = nn.RegressionMemoryAttention(E, H, batch_first=True, update=update, gates=gates, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    return layer


def draw(seed, *shape, **how):
    return torch.randn(*shape, generator=generator(seed), **how)


def padding():
    """Nothing, some pairs in the middle, the first two and the last."""
    return torch.tensor([[0] * T, [0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0], [1, 1, *[0] * (T - 3), 1]]).bool()


# -- loops of the formulas, of one head --------------------------------------------------------------------------------


def conjugate_gradients(matrix, q, tol):
    x, left = np.zeros_like(q), q.copy()
    along = left.copy()
    for _ in range(2 * len(q)):
        if left @ left <= tol**2 * (q @ q):
            break
        step = left @ left / (along @ matrix @ along)
        x, new = x + step * along, left - step * matrix @ along
        along, left = new + (new @ new) / (left @ left) * along, new
    return x


def after_each_pair(update, keys, values, betas, gammas, prior):
    """Yield, after each pair, the function from a query to its answer and the answer's variance. An absent pair has β 0
    and changes nothing."""
    width, eye = keys.shape[1], np.eye(keys.shape[1])
    memory, number, second = np.zeros((values.shape[1], width)), np.zeros((values.shape[1], width)), 0 * eye
    precision, variance = prior * eye, np.ones(width) / prior
    if update == "kalman_isotropic":
        variance = variance[:1]
    for k, v, beta, gamma in zip(keys, values, betas, gammas, strict=True):
        if beta > 0 and update == "linear":
            memory = gamma * memory + beta / prior * np.outer(v, k)
        elif beta > 0 and update == "delta":
            memory = gamma * memory
            memory = memory + beta / (prior + beta * k @ k) * np.outer(v - memory @ k, k)
        elif beta > 0 and update.startswith("kalman"):
            memory, variance = gamma * memory, gamma**2 * variance + (1 - gamma**2) / prior
            gain = variance * k / (1 / beta + (variance * k**2).sum())
            memory = memory + np.outer(v - memory @ k, gain)
            variance = 1 / (1 / variance + beta * (k**2 if len(variance) > 1 else (k @ k) / width))
        elif beta > 0:
            number = gamma * number + beta * np.outer(v, k)
            second = gamma * second + beta * np.outer(k, k)
            precision = gamma * precision + beta * np.outer(k, k)
        if update in ("linear", "delta"):
            yield lambda q, w=memory: (w @ q, q @ q / prior)
        elif update.startswith("kalman"):
            yield lambda q, w=memory, p=variance: (w @ q, (p * q**2).sum())
        else:
            full = precision if update == "discount" else second + prior * eye

            def read(q, n=number, full=full):
                solved = np.linalg.solve(full, q)
                if update == "conjugate_gradient":
                    solved = conjugate_gradients(full, q, 1e-6)
                return n @ solved, q @ solved

            yield read


def by_hand(layer, x, memory, padded, causal):
    """Output, weights, means and variances, (B, L, E), (B, H, L, S), (B, L, H, D), (B, L, H); no shared code."""
    weights = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    x, memory, padded = x.numpy(), memory.numpy(), padded.numpy()
    length, number, width = x.shape[1], memory.shape[1], E // H
    means, variances = np.zeros((B, length, H, width)), np.zeros((B, length, H))
    signed = np.zeros((B, H, length, number))
    q, k, v = np.split(weights["in_proj_weight"], 3)
    q_bias, k_bias, v_bias = np.split(weights["in_proj_bias"], 3)
    for b in range(B):
        for h in range(H):
            part = slice(h * width, (h + 1) * width)
            queries, keys = (x[b] @ q.T + q_bias)[:, part], (memory[b] @ k.T + k_bias)[:, part]
            queries, keys = (y / np.linalg.norm(y, axis=1, keepdims=True) for y in (queries, keys))
            values = (memory[b] @ v.T + v_bias)[:, part]
            prior, noise = (1e-4 + np.log1p(np.exp(weights[f"raw_{name}_precision"][h])) for name in ("prior", "noise"))
            betas, gammas = np.full(number, noise), np.ones(number)
            if layer.gates:
                betas = noise / (1 + np.exp(-memory[b] @ weights["strength.weight"][h]))
                inner = memory[b] @ weights["forgetting.weight"][h] + weights["forgetting.bias"][h]
                gammas = np.exp(-np.exp(weights["log_rate"][h]) * np.log1p(np.exp(inner)))
            betas, gammas = np.where(padded[b], 0, betas), np.where(padded[b], 1, gammas)
            for wrong, written in enumerate((values, np.eye(number))):
                found = list(after_each_pair(layer.update, keys, written, betas, gammas, prior))
                for i in range(length):
                    answer, spread = found[i if causal else -1](queries[i])
                    if wrong:
                        signed[b, h, i] = answer
                    else:
                        means[b, i, h], variances[b, i, h] = answer, spread + 1 / noise
    output = means.reshape(B, length, -1) @ weights["out_proj.weight"].T + weights["out_proj.bias"]
    nobody = np.logical_and.accumulate(padded, 1) if causal else padded.all(1, keepdims=True).repeat(length, 1)
    output[nobody] = 0.0
    return [torch.from_numpy(y) for y in (output, signed, means, variances)]


@pytest.mark.pairs
@pytest.mark.parametrize("hidden", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "crossed"])
@gated
@updates
def test_every_update_is_the_loop_of_its_formula(update, gates, causal, hidden):
    layer = made(update, gates)
    x = draw(1, B, T, E)
    asked = x if causal else draw(2, B, 4, E)
    padded = padding() if hidden else torch.zeros(B, T, dtype=torch.bool)
    output, weights, means, variances = by_hand(layer, asked, x, padded, causal)
    how = {"key_padding_mask": padded if hidden else None, "is_causal": causal}
    found, signed = layer(asked, x, x, **how, average_attn_weights=False)
    for one, other in zip(
        (found, layer(asked, x, x, **how, need_weights=False)[0], signed, *layer.bands(asked, x, x, **how)),
        (output, output, weights, means, variances),
        strict=True,
    ):
        # 11 pairs of 3 features, then 6 channels; conditions below 100
        assert_equal(one, other, operations=100 * 64)
    assert_equal(layer(asked, x, x, **how)[1], weights.mean(1), operations=100 * 64)
    assert (weights < -1e-3).any()  # signed


MODELS = {
    "exact": lambda prior, noise, gamma: models.RegressionMemory(
        prior, noise, models.Static() if gamma is None else models.PullBack(gamma)
    ),
    "discount": lambda prior, noise, gamma: models.RegressionMemory(
        prior, noise, models.Static() if gamma is None else models.Discount(gamma)
    ),
    "delta": lambda prior, noise, gamma: models.RegressionMemory(
        prior, noise, models.Reset(decay=torch.ones(()) if gamma is None else gamma)
    ),
}


@gated
@pytest.mark.parametrize("update", MODELS)
def test_reads_and_bands_are_those_of_the_model_that_the_update_is_exact_for(update, gates):
    """The variance of `delta` is that before the next pair, when certainty is reset; its mean is the model's."""
    layer, x, padded = made(update, gates), draw(1, B, T, E), padding()
    heads = layer.heads(x, x, x, key_padding_mask=padded, is_causal=True)
    stream, noise = layer.stream(*heads), layer.noise_precision
    gamma = None if stream.log_forgetting is None else stream.log_forgetting.exp()
    memory = MODELS[update](layer.prior_precision.unsqueeze(-1), noise, gamma)
    strength = stream.precision / noise.unsqueeze(-1)
    read = memory.read(stream.queries, stream.features, stream.values, strength > 0, strength, clock=False)
    mean, variance = layer.bands(x, x, x, key_padding_mask=padded, is_causal=True)
    assert_equal(mean.transpose(1, 2), read.mean, operations=100 * 64)
    if update != "delta":
        assert_equal(variance.transpose(1, 2), read.variance, operations=100 * 64)


LAYERS = {
    "linear": lambda prior, noise: models.layers.linear(noise / prior, noise_precision=noise),
    "delta": lambda prior, noise: models.layers.delta(noise / (prior + noise), noise_precision=noise),
    "kalman_diagonal": lambda prior, noise: models.layers.kalman(prior.unsqueeze(-1), noise),
    "kalman_isotropic": lambda prior, noise: models.layers.kalman(prior.unsqueeze(-1), noise, diagonal=False),
    "conjugate_gradient": lambda prior, noise: models.layers.mesa(prior.unsqueeze(-1), noise),
}


@pytest.mark.parametrize("update", LAYERS)
def test_reads_are_those_of_the_published_layers(update):
    layer, x = made(update), draw(1, B, T, E)
    stream = layer.stream(*layer.heads(x, x, x, is_causal=True))
    memory = LAYERS[update](layer.prior_precision, layer.noise_precision)
    expected = memory.read(stream.queries, stream.features, stream.values)
    found = layer.bands(x, x, x, is_causal=True)[0].transpose(1, 2)
    if update == "conjugate_gradient":  # the layer stops at a residual of 1e-6 of the query, whose norm is 1
        largest = stream.values.norm(dim=-1).sum(-1).max() * layer.noise_precision.max() / layer.prior_precision.min()
        assert (found - expected).abs().max() <= 1e-6 * largest
    else:
        assert_equal(found, expected, operations=100 * 64)


def test_without_gates_three_updates_are_one():
    x = draw(1, B, T, E)
    exact, discount, near = (
        made(update)(x, x, x, is_causal=True)[0] for update in ("exact", "discount", "conjugate_gradient")
    )
    assert_equal(discount, exact)
    # a residual of 1e-6 of a query, times 11 values of norm 5 in all, times β/λ below 10
    assert (near - exact).abs().max() <= 11 * 5 * 10 * 1e-6


# -- chunks and streams ------------------------------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("size", [1, 3, 16, T])
@gated
@updates
def test_chunks_change_rounding_alone(update, gates, size):
    x = draw(1, B, T, E)
    found, expected = (
        made(update, gates, chunk_size=n)(x, x, x, key_padding_mask=padding(), is_causal=True) for n in (size, 64)
    )
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= 1e-10


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@gated
@updates
def test_a_stream_goes_on_from_its_state(update, gates, dtype):
    layer, x = made(update, gates).to(dtype), draw(1, B, 40, E).to(dtype)
    whole = layer(x, x, x, need_weights=False, is_causal=True)[0]
    state, found = layer.prefill(x[:, 17:20], layer.prefill(x[:, :17])), []
    sizes = [y.numel() for y in state if y is not None]
    for t in range(20, 40):
        y, state = layer.step(x[:, t : t + 1], state)
        found.append(y)
    alone, _ = layer.step(x)
    bound = 1e-10 if dtype == torch.float64 else 1e-4
    assert (torch.cat(found, 1) - whole[:, 20:]).abs().max() <= bound and (alone - whole).abs().max() <= bound
    assert [y.numel() for y in state if y is not None] == sizes
    assert y.dtype == dtype


@updates
def test_a_query_after_all_pairs_reads_what_the_last_one_does(update):
    layer, x = made(update, True), draw(1, B, T, E)
    last = layer(x[:, -1:], x, x, need_weights=False)[0]
    assert_equal(last, layer(x, x, x, need_weights=False, is_causal=True)[0][:, -1:], operations=100 * 64)


def test_without_forgetting_order_does_not_matter():
    layer, x, order = made(), draw(1, B, T, E), torch.randperm(T, generator=generator(2))
    assert_equal(layer(x, x, x)[0], layer(x, x[:, order], x[:, order])[0], operations=100 * 64)


# -- the contract of a layer -------------------------------------------------------------------------------------------


@updates
def test_padding_may_be_anything_and_stops_the_clock(update):
    """Pairs that are hidden might as well not be there."""
    layer, x, padded = made(update, True), draw(1, B, T, E), padding()
    garbage = torch.where(padded.unsqueeze(-1), 1e3, x)
    for how in ({}, {"is_causal": True}):
        output = layer(x, x, x, padded, **how)[0]
        assert_equal(layer(garbage, garbage, garbage, padded, **how)[0][~padded], output[~padded])
        for row in range(B):
            kept = x[row : row + 1, ~padded[row]]
            alone = layer(kept, kept, kept, **how)[0]
            assert_equal(output[row, ~padded[row]], alone[0], operations=100 * 64)
    everything = torch.ones(B, T, dtype=torch.bool)
    output, weights = layer(x, x, x, everything)
    assert (output == 0).all() and (weights == 0).all()


@gated
def test_batch_first_or_not_batched_or_not(gates):
    layer, x = made(gates=gates), draw(1, B, T, E)
    other = nn.RegressionMemoryAttention(E, H, gates=gates)
    other.load_state_dict(layer.state_dict())
    expected = layer(x, x, x, is_causal=True)
    turned = other(*[x.transpose(0, 1)] * 3, is_causal=True)
    assert_equal(turned[0].transpose(0, 1), expected[0])
    assert_equal(turned[1], expected[1])
    for one, many in zip(layer(x[1], x[1], x[1], is_causal=True), expected, strict=True):
        assert_equal(one, many[1])


@updates
def test_the_state_goes_round_and_swaps_with_multihead_attention(update):
    layer, x = made(update, True), draw(1, B, T, E)
    again = copy.deepcopy(nn.RegressionMemoryAttention(E, H, batch_first=True, update=update, gates=True))
    again.load_state_dict(layer.state_dict())
    assert_equal(again(x, x, x)[0], layer(x, x, x)[0])
    encoder = torch.nn.TransformerEncoderLayer(E, H, 8, 0.0, batch_first=True)
    theirs = encoder.self_attn.state_dict()
    assert nn.swap_attention(encoder, nn.RegressionMemoryAttention, update=update) == ["self_attn"]
    assert all(torch.equal(encoder.self_attn.state_dict()[name], weight) for name, weight in theirs.items())
    causal = torch.nn.Transformer.generate_square_subsequent_mask(T)
    for train in (True, False):
        assert encoder.train(train)(x, src_mask=causal, is_causal=True).shape == x.shape


@updates
@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, 0, 0), (2, 3, 0), (2, 0, 3)], ids=str)
def test_a_size_of_zero_is_a_size_like_any_other(update, sizes):
    batch, length, pairs = sizes
    layer, query, memory = made(update, True), draw(1, batch, length, E), draw(2, batch, pairs, E)
    for causal in (False, True):
        output, weights = layer(query, memory, memory, is_causal=causal)
        assert output.shape == query.shape and weights.shape == (batch, length, pairs)
        assert (output == 0).all() or pairs > 0
    if length:
        assert layer.bands(query, memory, memory)[1].isfinite().all()


def test_widths_of_keys_and_values_and_of_features_are_free():
    square = torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh())
    layer = nn.RegressionMemoryAttention(
        E, H, kdim=3, vdim=4, head_dim=2, feature_map=square, gates=True, batch_first=True
    )
    query, key, value = draw(1, B, 4, E), draw(2, B, T, 3), draw(3, B, T, 4)
    output, weights = layer(query, key, value)
    mean, variance = layer.bands(query, key, value)
    assert output.shape == (B, 4, E) and weights.shape == (B, 4, T)
    assert mean.shape == (B, 4, H, 2) and variance.shape == (B, 4, H)
    causal = layer(query, key, value, is_causal=True, need_weights=False)[0]
    assert_equal(causal[:, -1:], layer(query[:, -1:], key[:, :4], value[:, :4])[0], operations=100 * 64)


def test_an_update_of_your_own():
    def doubled(stream, state):
        found = nn.memory_updates["exact"](stream, state)
        return found._replace(mean=2 * found.mean)

    x = draw(1, B, T, E)
    plain, twice = (made(update) for update in ("exact", doubled))
    assert_equal(twice.bands(x, x, x)[0], 2 * plain.bands(x, x, x)[0])
    assert "update=doubled" in repr(twice)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_drops_values_and_keeps_the_mean(causal):
    layer = made(dropout=0.3)
    x = draw(1, 1, T, E).expand(2000, T, E)
    with torch.no_grad():
        calm = layer.eval()(x[:1], x[:1], x[:1], is_causal=causal)[0]
        layer.train()
        for need_weights in (False, True):
            draws = layer(x, x, x, need_weights=need_weights, is_causal=causal)[0]
            error = draws.std(0) / 2000**0.5
            # 66 means of 2000 draws each: five standard errors are passed by chance once in 2e4 times
            assert (error > 0).all() and ((draws.mean(0) - calm[0]).abs() <= 5 * error).all()


REFUSED = {
    "unknown": ({"update": "ridge"}, "update must be one of exact, discount, .*, or a function, not 'ridge'"),
    "chunk": ({"chunk_size": 0}, "chunk_size must be 1 or more, not 0"),
    "bias": ({"add_bias_kv": True}, "add_bias_kv, add_zero_attn: a memory has no unit beside its pairs"),
    "zero": ({"add_zero_attn": True}, "add_bias_kv, add_zero_attn: a memory has no unit beside its pairs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_out_of_range_are_refused(name):
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        nn.RegressionMemoryAttention(E, H, **options)


def test_the_causal_mask_is_the_one_mask():
    layer, x = made(gates=True), draw(1, B, T, E)
    expected = layer(x, x, x, is_causal=True)[0]
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)
    numbers = torch.zeros(T, T).masked_fill(causal, -math.inf)
    for mask in (causal, numbers, causal.expand(B * H, T, T)):
        assert_equal(layer(x, x, x, attn_mask=mask)[0], expected)
    for mask in (causal.mT, torch.zeros(T, T), numbers + torch.eye(T), torch.zeros(T, T, dtype=torch.bool)):
        with pytest.raises(
            ValueError, match="a memory reads all pairs up to a query; use is_causal or key_padding_mask"
        ):
            layer(x, x, x, attn_mask=mask)
    with pytest.raises(ValueError, match="attn_mask has shape"):
        layer(x, x, x, attn_mask=causal[:3])


def test_numbers_of_a_padding_mask_are_logs_of_strengths():
    """Half as strong is as if the noise were twice as large; two pairs of half the strength are one."""
    layer, x = made(), draw(1, B, T, E)
    halves = torch.full((B, 2 * T), math.log(0.5))
    twice = torch.cat([x, x], 1)
    assert_equal(layer(x, twice, twice, halves)[0], layer(x, x, x)[0], operations=100 * 64)
    assert_equal(layer(x, x, x, torch.full((B, T), -1e4))[0], layer.out_proj.bias.expand(B, T, E))


def test_no_formulation_holds_a_memory():
    layer, x = made(), draw(1, B, T, E)
    for ask in (layer.posterior_model, lambda *inputs: inspection.capture(layer, *inputs)):
        with pytest.raises(NotImplementedError, match=r"no assignment; ask bands .* or give keys and values to models"):
            ask(x, x, x)


def test_both_precisions_can_have_priors():
    prior = torch.distributions.Gamma(2.0, 2.0)
    layer = nn.RegressionMemoryAttention(E, H, priors={"prior_precision": prior, "noise_precision": prior})
    assert_equal(layer.prior_precision, torch.ones(H))
    assert_equal(layer.noise_precision, torch.ones(H))
    assert_equal(nn.log_prior_density(layer), 4 * prior.log_prob(torch.ones(())))
    with torch.no_grad():
        layer.raw_prior_precision.fill_(-100.0)
    assert (layer.prior_precision >= 1e-4).all()


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@gated
@updates
def test_gradients(update, gates):
    layer, x = made(update, gates, chunk_size=3), draw(1, 1, 5, E).requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)
    padded = torch.arange(5).unsqueeze(0) == 2

    def output(x, *parameters):
        with_these = dict(zip(names, parameters, strict=True))
        how = {"key_padding_mask": padded, "is_causal": True, "need_weights": False}
        return functional_call(layer, with_these, (x, x, x), how)[0]

    # conjugate gradients of a direction that is left at a residual of 1e-6
    assert torch.autograd.gradcheck(output, (x, *parameters), atol=1e-5)


@pytest.mark.parametrize(
    "update", ["exact", *(pytest.param(name, marks=pytest.mark.slow) for name in ("delta", "linear"))]
)
def test_gradients_of_gradients(update):
    layer, x = made(update, True, chunk_size=2), draw(1, 1, 3, E).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: layer.bands(x, x, x, is_causal=True)[0], x)


# conjugate gradients stop at a residual, which a derivative magnifies
@pytest.mark.parametrize("update", [name for name in UPDATES if name != "conjugate_gradient"])
def test_second_derivatives_of_every_mode_are_those_by_reverse_mode(update):
    layer, x = made(update, True, chunk_size=2), draw(1, 1, 3, E)

    def output(x):
        return layer(x, x, x, is_causal=True, need_weights=False)[0].square().sum()

    by_reverse = torch.autograd.functional.hessian(output, x)
    for inner, outer in itertools.product((jacfwd, jacrev), repeat=2):
        assert_equal(outer(inner(output))(x), by_reverse)
    assert by_reverse.abs().max() > 1e-2


@pytest.mark.parametrize("causal", [True, False])
@updates
def test_forward_mode_is_reverse_mode_turned_round(update, causal):
    layer, x, v = made(update, True, chunk_size=2), draw(1, 1, 3, E).requires_grad_(), draw(2, 1, 3, E)

    def output(x):
        return layer(x, x, x, is_causal=causal, need_weights=False)[0]

    with forward_ad.dual_level():
        ahead = forward_ad.unpack_dual(output(forward_ad.make_dual(x.detach(), v))).tangent
    weights = draw(3, *ahead.shape)
    (back,) = torch.autograd.grad((weights * output(x)).sum(), x)
    # some hundred operations on numbers of 16 digits, in well-conditioned memories, and room for a factor of a thousand;
    # conjugate gradients stop at a residual of 1e-6 of the query, whose effect either mode sees in its own way
    bound = 1e-4 if update == "conjugate_gradient" else 1e-10
    assert abs((weights * ahead).sum() - (back * v).sum()) < bound * (back * v).abs().sum()


@gated
@updates
def test_half_precision_and_autocast(update, gates):
    exact, x = made(update, gates), draw(1, B, T, E).bfloat16()
    half = copy.deepcopy(exact).bfloat16()
    exact = copy.deepcopy(half).double()
    expected = exact(x.double(), x.double(), x.double(), is_causal=True)[0]
    # 8 roundings to 8 bits of numbers of order 1, of which the memory makes at most β/λ + 1 or so of the last
    bound = 8 * 2**-8 * max(1.0, float(expected.detach().abs().max()))
    bound = bound * float((1 + exact.noise_precision / exact.prior_precision).detach().max())
    output, weights = half(x, x, x, is_causal=True)
    assert output.dtype == weights.dtype == torch.bfloat16
    assert (output - expected).abs().max() <= bound
    single = copy.deepcopy(exact).float()
    with torch.autocast("cpu", torch.bfloat16):
        cast = single(*[x.float()] * 3, need_weights=False, is_causal=True)[0]
    assert cast.dtype == torch.bfloat16 and (cast - expected).abs().max() <= bound
    cast.float().square().sum().backward()
    assert half.prefill(x).mean.dtype == torch.float32


@pytest.mark.parametrize("update", ["exact", "conjugate_gradient", "discount"])
@gated
def test_where_single_precision_loses_its_digits_the_memory_takes_double(update, gates):
    """``κ̂ = 1 + 300 β/λ`` is about 1e7 here: single precision alone would be wrong in the second digit."""
    layer = made(update, gates, spread=0.1)
    with torch.no_grad():
        layer.raw_noise_precision.fill_(3e4)
        layer.raw_prior_precision.fill_(1.0)
    x, single = draw(1, 1, 300, E), copy.deepcopy(layer).float()
    stream = single.stream(*single.heads(x.float(), x.float(), x.float(), is_causal=True))
    asked = nn.memory_updates[update](stream, None)
    wide, _ = stream.in_double(None)
    expected = nn.memory_updates[update](wide, None).mean
    assert stream.features.dtype == torch.float32 and asked.mean.dtype == torch.float64
    assert_equal(asked.mean, expected)
    state = single.prefill(x[:, :200].float())
    assert state.mean.dtype == torch.float64
    y, _ = single.step(x[:, 200:].float(), state)
    assert y.dtype == torch.float32


def test_a_memory_that_lost_all_digits_is_one_clear_error_and_nan_goes_through():
    layer, x = made("discount", True), draw(1, 1, 30, E)
    with torch.no_grad():
        layer.log_rate.fill_(5.0)
    with pytest.raises(
        ValueError, match=r"raise prior_precision or lower noise_precision, and of 'discount'.* 'exact'"
    ):
        layer(x, x, x, is_causal=True)
    wrong = x.masked_fill(torch.arange(30).unsqueeze(-1) == 3, math.nan)
    found = made()(wrong, wrong, wrong, is_causal=True, need_weights=False)[0]
    assert found[:, 3:].isnan().all()


@updates
def test_a_language_model_learns(update):
    """A circle of five letters, the next of which is certain."""
    torch.manual_seed(0)
    model = nn.TransformerLM(
        5, 12, width=8, num_heads=2, num_layers=1, attention=nn.RegressionMemoryAttention, update=update, gates=True
    )
    tokens = torch.arange(4 * 13).reshape(4, 13) % 5
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(20):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]

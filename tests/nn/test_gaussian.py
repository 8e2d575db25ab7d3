"""The Gaussian layers are the models they say they are."""

import itertools

import pytest
import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import inference, models, nn

B, L, E, H = 2, 6, 8, 2
LAYERS = {
    "linked": (nn.GaussianMixtureAttention, {}),
    "distances": (nn.GaussianMixtureAttention, {"linked": False}),
    "keys": (nn.GaussianKeysAttention, {}),
    "three keys": (nn.GaussianKeysAttention, {"num_components": 3}),
    "shifted": (nn.GaussianKeysAttention, {"share": "shift"}),
    "linked keys": (nn.GaussianKeysAttention, {"linked": True}),
    "one key": (nn.GaussianKeysAttention, {"num_components": 1}),
    "hard": (nn.GaussianKeysAttention, {"assignment": "hard"}),
}
layers = pytest.mark.parametrize("kind", LAYERS.values(), ids=LAYERS.keys())
PADDING = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=torch.bool)


def make(kind, **more):
    """A layer with every parameter away from its start."""
    torch.manual_seed(0)
    layer = kind[0](E, H, batch_first=True, **kind[1], **more)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator(1))
    return layer, torch.randn(B, L, E, generator=generator(2))


def projected(layer, x):
    """Queries, values (B, H, L, D) and keys (B, H, L, R, D), from the layer's parameters by hand."""
    q, k, v = (
        (x @ w.T + b).view(B, L, H, -1).transpose(1, 2)
        for w, b in zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
    )
    made = getattr(layer, "components", None)
    if hasattr(made, "shifts"):
        keys = torch.stack([k + made.shifts[:, r].view(1, H, 1, -1) for r in range(made.shifts.shape[1])], -2)
    elif made is not None and made.linear is not None:
        others = (x @ made.linear.weight.T + made.linear.bias).view(B, L, H, made.others, -1).permute(0, 2, 1, 3, 4)
        keys = torch.cat([k.unsqueeze(-2), others], -2)
    else:
        keys = k.unsqueeze(-2)
    return q, keys, v


def attention_by_hand(layer, x, allowed):
    """Weights (B, H, L, L) written out: every term of the density, softmax over units at the end."""
    q, keys, v = projected(layer, x)
    precision = layer.log_key_precision.exp().view(1, H, 1, -1)
    logs = -0.5 * precision.unsqueeze(2) * (q[:, :, :, None, None] - keys.unsqueeze(2)).square().sum(-1)
    logs = logs + 0.5 * keys.shape[-1] * precision.log().unsqueeze(2)
    if layer.linked:
        logs = logs + (0.5 * precision * keys.square().sum(-1)).unsqueeze(2)
    if getattr(layer, "component_logits", None) is not None:
        logs = logs + layer.component_logits.log_softmax(-1).view(1, H, 1, 1, -1)
    logs = logs.logsumexp(-1) if getattr(layer, "assignment", "soft") == "soft" else logs.amax(-1)
    weights = torch.where(allowed, logs, -torch.inf).softmax(-1)
    return torch.where(allowed.any(-1, keepdim=True), weights, 0.0), v


@layers
@pytest.mark.parametrize(("causal", "padded"), list(itertools.product([False, True], repeat=2)))
def test_weights_and_output_are_the_density_written_out(kind, causal, padded):
    layer, x = make(kind)
    allowed = torch.ones(L, L, dtype=torch.bool).tril() if causal else torch.ones(L, L, dtype=torch.bool)
    allowed = allowed & ~PADDING[:, None, None] if padded else allowed.expand(B, 1, L, L)
    expected, values = attention_by_hand(layer, x, allowed)
    masks = {"is_causal": causal, "key_padding_mask": PADDING if padded else None}
    output, weights = layer(x, x, x, average_attn_weights=False, **masks)
    assert_equal(weights, expected)
    answer = (expected @ values).transpose(1, 2).flatten(-2) @ layer.out_proj.weight.T + layer.out_proj.bias
    answer = torch.where(allowed.any(-1)[:, 0].unsqueeze(-1), answer, 0.0)
    assert_equal(output, answer)
    assert_equal(layer(x, x, x, need_weights=False, **masks)[0], answer)


@layers
@pytest.mark.parametrize(("causal", "padded"), list(itertools.product([False, True], repeat=2)))
def test_the_posterior_model_is_the_layer(kind, causal, padded):
    layer, x = make(kind)
    masks = {"is_causal": causal, "key_padding_mask": PADDING if padded else None}
    model, queries = layer.posterior_model(x, x, x, **masks)
    assert isinstance(model, models.GaussianMixture | models.GaussianKeys)
    how = {"assignment": "hard"} if kind[1].get("assignment") == "hard" else {}
    weights = layer(x, x, x, average_attn_weights=False, **masks)[1]
    seen = (
        weights.sum(-1) > 0
    )  # the model refuses queries that may attend to nothing, and is given an open mask for them
    assert_equal(model.attention(queries, **how)[seen], weights[seen])
    assert torch.isfinite(model.log_evidence(queries)).all()


def test_unit_norm_queries_and_keys_and_one_key_are_softmax():
    layer, x = make((nn.GaussianKeysAttention, {"num_components": 1}))
    q, units, v, masks = layer.heads(x, x, x)
    q, k = (torch.nn.functional.normalize(y, dim=-1) for y in (q, units.keys))
    output, _ = layer.attend(q, units._replace(keys=k), v, masks, need_weights=False)
    logits = layer.log_key_precision.exp().view(1, H, 1, 1) * q @ k.transpose(-1, -2)
    assert_equal(output, logits.softmax(-1) @ v)


def test_log_prior_is_the_density_of_the_parameters():
    priors = {
        "key_precision": Gamma(2.0, 1.5),
        "component_weights": Dirichlet(torch.tensor([2.0, 3.0])),
        "shifts": Normal(0.0, 0.7),
    }
    layer, _ = make((nn.GaussianKeysAttention, {"share": "shift", "priors": priors}))
    precision, pi = layer.log_key_precision.exp(), layer.component_logits.softmax(-1)
    expected = (
        (2 * torch.tensor(1.5).log() + precision.log() - 1.5 * precision).sum()
        + (
            torch.lgamma(torch.tensor(5.0)) - torch.lgamma(torch.tensor(3.0)) + pi[:, 0].log() + 2 * pi[:, 1].log()
        ).sum()
        + (-0.5 * (layer.components.shifts / 0.7).square() - torch.tensor(0.7 * (2 * torch.pi) ** 0.5).log()).sum()
    )
    assert_equal(layer.log_prior_density(), expected)
    two = torch.nn.ModuleList([layer, nn.SoftmaxAttention(E, H), layer.__class__(E, H)])
    assert_equal(nn.log_prior_density(two), expected)
    slopes = torch.autograd.grad(nn.log_prior_density(two), [layer.log_key_precision, layer.component_logits])
    assert all(slope.abs().max() > 0.01 for slope in slopes)


ADAPTING = {name: LAYERS[name] for name in ("linked", "distances", "keys", "shifted", "linked keys", "hard")}
adapting = pytest.mark.parametrize("kind", ADAPTING.values(), ids=ADAPTING.keys())


@adapting
@pytest.mark.parametrize("adapted", [("keys",), ("keys", "key_precision")])
def test_adaptation_is_inference_adapt_head_by_head(kind, adapted):
    layer, x = make(kind, adapt=nn.Adapt(3, adapted))
    output, weights = layer(x, x, x, PADDING, average_attn_weights=False)
    model, queries = layer.posterior_model(x, x, x, key_padding_mask=PADDING)
    answers = torch.zeros(B, H, L, E // H)
    for b, h in itertools.product(range(B), range(H)):
        alone = model.with_parameters({k: v[b, h] for k, v in vars(model).items() if torch.is_tensor(v) and v.dim()})
        strength = {name: getattr(layer, f"log_strength_{name}")[h].exp() for name in adapted}
        priors = {"keys": Normal(alone.keys, strength["keys"] ** -0.5)}
        if "key_precision" in adapted:
            theta = strength["key_precision"]
            priors["key_precision"] = Gamma(1 + theta, theta / alone.key_precision)
        present = ~PADDING[b]
        fit = inference.adapt(models.bayesian(alone, **priors), queries[b, h][present], num_steps=3)
        how = {"assignment": "hard"} if "assignment" in kind[1] else {}
        answers[b, h] = fit.formulation.expected_outputs(queries[b, h], **how)
        assert_equal(weights[b, h][present], fit.formulation.attention(queries[b, h], **how)[present])
    assert (output - layer.out_proj(answers.transpose(1, 2).flatten(-2)))[~PADDING].abs().max() < 1e-10


@adapting
def test_causal_adaptation_ignores_later_queries(kind):
    layer, x = make(kind, adapt=nn.Adapt(2, ("keys", "key_precision")))
    changed = x.clone()
    changed[:, -1] += 2.0
    before, after = (layer(y, y, y, is_causal=True, need_weights=False)[0] for y in (x, changed))
    assert_equal(before[:, :-1], after[:, :-1])  # the common shift of keys and queries is rounding
    assert (before[:, -1] - after[:, -1]).abs().max() > 1e-3
    still = make(kind)[0](x, x, x, is_causal=True)[0]
    assert (before - still)[:, 1:].abs().max() > 1e-3  # and something does adapt


@adapting
def test_a_strong_prior_freezes_and_padding_does_not_count(kind):
    layer, x = make(kind, adapt=nn.Adapt(2))
    garbage = torch.where(PADDING.unsqueeze(-1), 50.0, x)
    options = {"key_padding_mask": PADDING, "need_weights": False}
    output = layer(x, x, x, **options)[0]
    assert_equal(layer(garbage, garbage, garbage, **options)[0][~PADDING], output[~PADDING])
    with torch.no_grad():
        layer.log_strength_keys.fill_(30.0)  # e^30: the keys move by some 1e-13 of their distance to the queries
    still = make(kind)[0]
    assert (layer(x, x, x, **options)[0] - still(x, x, x, **options)[0])[~PADDING].abs().max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("adapt", [None, nn.Adapt(2)], ids=["", "adapted"])
def test_map_answers_are_those_of_the_model(causal, adapt):
    kind = (nn.GaussianMixtureAttention, {"linked": False})
    layer, x = make(kind, map_steps=30, adapt=adapt)
    with torch.no_grad():
        layer.log_value_precision.add_(2.0)  # so that the most probable answer is not the mean
    output = layer(x, x, x, need_weights=False, is_causal=causal)[0]
    model, queries = layer.posterior_model(x, x, x, is_causal=causal)
    answers = torch.zeros(B, H, L, E // H)
    for b, h, i in itertools.product(range(B), range(H), range(L)):
        alone = model.with_parameters({k: v[b, h] for k, v in vars(model).items() if torch.is_tensor(v) and v.dim()})
        if causal:
            alone = alone.replace(log_prior=alone.log_prior[i : i + 1])
        if adapt:
            heard = queries[b, h, : i + 1] if causal else queries[b, h]
            prior = dict(keys=Normal(alone.keys, layer.log_strength_keys[h].exp() ** -0.5))
            rows = {"log_prior": model.log_prior[b, h, : i + 1]} if causal else {}
            moved = inference.adapt(
                models.bayesian(alone.replace(**rows), **prior), heard, num_steps=adapt.steps
            ).formulation.keys
            alone = alone.replace(keys=moved)
        alone = alone.replace(value_precision=layer.log_value_precision.exp()[h])
        answers[b, h, i] = alone.map_outputs(queries[b, h, i : i + 1], num_steps=30)[0]
    expected = layer.out_proj(answers.transpose(1, 2).flatten(-2))
    assert (output - expected).abs().max() < 1e-9  # the loops sum over other batches, thirty times over
    mean = make((nn.GaussianMixtureAttention, {"linked": False}), adapt=adapt)[0]
    mean.load_state_dict(layer.state_dict(), strict=False)
    assert (output - mean(x, x, x, is_causal=causal)[0]).abs().max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LAYERS["linked"], LAYERS["keys"]], ids=["linked", "keys"])
def test_gradients_flow_through_the_adaptation(kind):
    layer, x = make(kind, adapt=nn.Adapt(2, ("keys", "key_precision")))
    names = [name for name, _ in layer.named_parameters() if name.startswith("log_")]
    inputs = [
        x[:1, :3].clone().requires_grad_(),
        *(dict(layer.named_parameters())[n].detach().clone().requires_grad_() for n in names),
    ]

    def output(x, *parameters):
        return torch.func.functional_call(
            layer, dict(zip(names, parameters, strict=True)), (x, x, x), {"need_weights": False}
        )[0]

    assert torch.autograd.gradcheck(output, inputs, check_undefined_grad=False)


@pytest.mark.parametrize("kind", ["softmax", "linked", "distances", "keys", "shifted", "linear"])
def test_language_model_is_causal_and_shows_its_attention(kind):
    cls, own = {"softmax": (nn.SoftmaxAttention, {}), "linear": (nn.LinearKeysAttention, {})}.get(kind) or LAYERS[kind]
    torch.manual_seed(3)
    model = nn.TransformerLM(11, 7, width=8, num_heads=2, num_layers=2, attention=cls, **own)
    tokens = torch.randint(11, (3, 7), generator=generator(4))
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 11
    before, after = model(tokens), model(changed)
    assert_equal(before[:, :-1], after[:, :-1])
    assert (before[:, -1] - after[:, -1]).abs().max() > 1e-3
    weights = model.attention_weights(tokens)
    assert weights.shape == (2, 3, 2, 7, 7) and (weights.triu(1) == 0).all()
    assert_equal(weights.sum(-1), torch.ones(2, 3, 2, 7))
    with pytest.raises(ValueError, match=r"there are 8 tokens in a row; give between 1 and 7"):
        model(torch.zeros(1, 8, dtype=torch.long))


def test_block_takes_masks():
    torch.manual_seed(5)
    block = nn.TransformerBlock(E, H, nn.GaussianKeysAttention, share="shift")
    x = torch.randn(B, L, E, generator=generator(6))
    garbage = torch.where(PADDING.unsqueeze(-1), 9.0, x)
    before, after = (block(y, key_padding_mask=PADDING) for y in (x, garbage))
    assert_equal(before[~PADDING], after[~PADDING])

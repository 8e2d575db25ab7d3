"""Layers with a metric, a shift and a background are the densities written out, and start as the layers without."""

import itertools
import math

import pytest
import torch
from pyro.distributions import MultivariateNormal, Normal, Wishart
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import inspection, models, nn

B, L, E, H, D = 2, 5, 6, 2, 3
GEOMETRIES = {
    "diagonal": {"metric": "diagonal"},
    "full": {"metric": "full"},
    "shift": {"shift": True},
    "both": {"metric": "full", "shift": True},
}
geometries = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES.keys())
linking = pytest.mark.parametrize("linked", [True, False], ids=["linked", "distances"])
PADDING = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
MASKS = [{}, {"is_causal": True}, {"key_padding_mask": PADDING}, {"is_causal": True, "key_padding_mask": PADDING}]


@torch.no_grad()
def moved(layer, scale=0.3):
    """The layer with every parameter away from its start."""
    for parameter in layer.parameters():
        parameter += scale * torch.randn(parameter.shape, generator=generator(1))
    return layer


def make(kind=nn.GaussianMixtureAttention, move=True, **options):
    torch.manual_seed(0)
    layer = kind(E, H, batch_first=True, **options)
    return moved(layer) if move else layer, torch.randn(B, L, E, generator=generator(2))


def projected(layer, x):
    """Queries, keys and values (B, H, L, D), by hand."""
    weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    return [(x @ w.T + b).view(B, L, H, D).transpose(1, 2) for w, b in zip(weights, biases, strict=True)]


@torch.no_grad()
def metric_by_hand(layer, head):
    """Λ = LL' of a head, L entry by entry from its coordinates, its diagonal scaled to determinant 1 at the end."""
    if layer.metric is None:
        return torch.eye(D)
    numbers = iter(layer.metric_coordinates[head])
    root = torch.zeros(D, D)
    for row in range(D):
        for column in range(row + 1):
            if column == row:
                root[row, column] = next(numbers).exp()
            elif layer.metric == "full":
                root[row, column] = next(numbers)
    scale = math.prod(float(root[i, i]) for i in range(D)) ** (-1 / D)
    for i in range(D):
        root[i, i] *= scale
    return root @ root.T


def attention_by_hand(layer, x, causal=False, padded=False):
    """Log densities of every head, query and unit one by one, softmax at the end; and answers."""
    q, k, v = projected(layer, x)
    weights, answers = torch.zeros(B, H, L, L), torch.zeros(B, H, L, D)
    for b, h, i in itertools.product(range(B), range(H), range(L)):
        matrix = layer.log_key_precision[h].exp() * metric_by_hand(layer, h)
        shift = torch.zeros(D) if layer.key_shift is None else layer.key_shift[h]
        logs = []
        for j in range(L):
            if (causal and j > i) or (padded and PADDING[b, j]):
                logs.append(torch.tensor(-math.inf))
            elif layer.linked:
                logs.append((q[b, h, i] - shift) @ matrix @ k[b, h, j])
            else:
                unit = MultivariateNormal(k[b, h, j] + shift, precision_matrix=matrix)
                logs.append(unit.log_prob(q[b, h, i]))
        if max(logs) > -math.inf:
            weights[b, h, i] = torch.stack(logs).softmax(-1)
            answers[b, h, i] = weights[b, h, i] @ v[b, h]
    return weights, answers


@pytest.mark.pairs
@geometries
@linking
@pytest.mark.parametrize("masks", MASKS, ids=["", "causal", "padded", "both"])
def test_weights_and_output_are_the_density_written_out(geometry, linked, masks):
    layer, x = make(linked=linked, **geometry)
    how = "is_causal" in masks, "key_padding_mask" in masks
    with torch.no_grad():
        expected, answers = attention_by_hand(layer, x, *how)
    output, weights = layer(x, x, x, average_attn_weights=False, **masks)
    assert_equal(weights, expected)
    answer = answers.transpose(1, 2).flatten(-2) @ layer.out_proj.weight.T + layer.out_proj.bias
    answer = torch.where((expected.sum((1, -1)) > 0).unsqueeze(-1), answer, 0.0)
    assert_equal(output, answer)
    assert_equal(layer(x, x, x, need_weights=False, **masks)[0], answer)


@geometries
@linking
def test_starts_as_the_layer_without(geometry, linked):
    with_, x = make(linked=linked, move=False, **geometry)
    without, _ = make(linked=linked, move=False)
    for need_weights, causal in itertools.product([True, False], repeat=2):
        how = {"need_weights": need_weights, "is_causal": causal}
        assert_equal(with_(x, x, x, **how)[0], without(x, x, x, **how)[0])


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_a_metric_has_determinant_one_and_leaves_the_scale_to_the_precision(metric):
    layer, x = make(metric=metric)
    found = layer.constrained()["metric"]
    matrix = torch.diag_embed(found) if metric == "diagonal" else found
    assert_equal(matrix, torch.stack([metric_by_hand(layer, h) for h in range(H)]))
    assert_equal(torch.linalg.det(matrix), torch.ones(H))
    before = layer(x, x, x)[0]
    diagonal = [0, 1, 2] if metric == "diagonal" else [0, 2, 5]  # of the coordinates: adding to all is a common scale
    with torch.no_grad():
        layer.metric_coordinates[:, diagonal] += 0.7
    assert_equal(layer(x, x, x)[0], before)


@pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # few queries will do
@geometries
@linking
def test_the_posterior_model_and_what_is_captured_are_the_layer(geometry, linked):
    layer, x = make(linked=linked, background="learned", **geometry)
    model, queries = layer.posterior_model(x, x, x)
    weights = layer(x, x, x, average_attn_weights=False)[1]
    assert_equal(model.attention(queries), weights)
    log_joint = torch.zeros(B, H, L)
    for b, h in itertools.product(range(B), range(H)):
        each = model.key_precision[b, h, :, None, None] * metric_by_hand(layer, h).detach()
        shift = 0.0 if layer.key_shift is None else layer.key_shift[h]
        units = MultivariateNormal(model.keys[b, h] + shift, precision_matrix=each)
        log_joint[b, h] = (units.log_prob(queries[b, h].unsqueeze(-2)) + model.log_prior[b, h]).logsumexp(-1)
    assert_equal(model.log_evidence(queries), log_joint)
    (found,) = inspection.capture(layer, x, x, x).values()
    assert_equal(found.attention(), weights)
    assert_equal(found.raw.log_evidence(), log_joint)
    if linked:  # the best equivalent has the same attention, and at least the evidence
        best = inspection.best_equivalent(found)
        assert (best.attention() - weights).abs().max() < 1e-8  # the bar of docs/mathematics.md, section 2.10
        assert best.log_evidence().sum() >= log_joint.sum()


def test_metric_and_shift_can_have_priors():
    wishart, normal = Wishart(torch.tensor(5.0), torch.eye(D)), Normal(0.0, 0.5)
    layer, _ = make(metric="full", shift=True, priors={"metric": wishart, "shift": normal})
    by_hand = torch.stack([metric_by_hand(layer, h).detach() for h in range(H)])
    log_wishart = [0.5 * torch.logdet(m) - 0.5 * m.trace() - 7.5 * math.log(2) - torch.mvlgamma(torch.tensor(2.5), 3) for m in by_hand]  # fmt: skip
    log_normal = (-2 * layer.key_shift.square() - math.log(0.5 * (2 * math.pi) ** 0.5)).sum()
    assert_equal(nn.log_prior_density(layer), sum(log_wishart) + log_normal)


OPTIONS = {  # and how many parameters they add
    "metric and shift": ({"metric": "full", "shift": True}, 2),
    "background": ({"background": "learned"}, 2),
    "all": ({"metric": "diagonal", "shift": True, "background": "learned", "linked": False}, 5),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("need_weights", [True, False], ids=["weights", "fused"])
def test_gradients_of_the_new_parameters(options, need_weights):
    layer, x = make(**options[0])
    new = ("metric_coordinates", "key_shift", "background_")
    leaves = {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters() if n.startswith(new)}

    def output(*parameters):
        how = {"need_weights": need_weights, "is_causal": True}
        return torch.func.functional_call(layer, dict(zip(leaves, parameters, strict=True)), (x, x, x), how)[0]

    assert len(leaves) == options[1]
    assert torch.autograd.gradcheck(output, tuple(leaves.values()), check_undefined_grad=False)
    slopes = torch.autograd.grad(output(*leaves.values()).square().sum(), list(leaves.values()))
    assert all(slope.abs().max() > 1e-6 for slope in slopes)


def test_a_swapped_layer_learns_a_metric_beside_frozen_weights():
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoderLayer(E, H, 8, batch_first=True).eval()
    x = torch.randn(B, L, E, generator=generator(2))
    before = encoder(x)
    nn.swap_attention(encoder, nn.GaussianMixtureAttention, metric="full", shift=True)
    assert_equal(encoder(x), before)
    encoder.self_attn.load_state_dict(encoder.self_attn.state_dict())
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_("metric" in name or "key_shift" in name)
    (encoder(x) * x).sum().backward()
    learned = {n: p.grad.abs().max() for n, p in encoder.named_parameters() if p.grad is not None}
    assert set(learned) == {"self_attn.metric_coordinates", "self_attn.key_shift"} and min(learned.values()) > 1e-4


# -- background ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", MASKS, ids=["", "causal", "padded", "both"])
def test_background_is_the_softmax_off_by_one(masks):
    layer, x = make(background="zero")
    with torch.no_grad():
        layer.background_log_weight.zero_()
    q, k, v = projected(layer, x)
    scores = (layer.log_key_precision.exp().view(1, H, 1, 1) * q @ k.mT).exp()
    allowed = torch.ones(L, L).tril() if "is_causal" in masks else torch.ones(L, L)
    scores = scores * (allowed * ~PADDING[:, None, None] if "key_padding_mask" in masks else allowed)
    expected = scores / (1 + scores.sum(-1, keepdim=True))
    output, weights = layer(x, x, x, average_attn_weights=False, **masks)
    assert_equal(weights[..., :-1], expected)
    assert_equal(weights[..., -1], 1 / (1 + scores.sum(-1)))
    answer = layer.out_proj((expected @ v).transpose(1, 2).flatten(-2))
    assert_equal(output, answer)
    assert_equal(layer(x, x, x, need_weights=False, **masks)[0], answer)


def test_background_starts_as_zero_attention():
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(E, H, batch_first=True, add_zero_attn=True)
    layer, x = make(background="learned", move=False)
    layer.load_state_dict(theirs.state_dict(), strict=False)
    for ours, expected in zip(layer(x, x, x), theirs(x, x, x), strict=True):
        assert_equal(ours, expected)


@linking
@pytest.mark.parametrize("background", ["zero", "learned"])
def test_background_is_that_of_the_model(linked, background):
    layer, x = make(linked=linked, background=background)
    without, _ = make(linked=linked, move=False)
    without.load_state_dict({n: p for n, p in layer.state_dict().items() if "background" not in n})
    model, queries = without.posterior_model(x, x, x)
    found = layer.constrained()
    units = 0.5 * found["key_precision"][:, 0, None] * model.keys.square().sum(-1) if linked else torch.zeros(B, H, L)
    weight = found["background_weight"] / (found["background_weight"] + units.exp().sum(-1))
    precision = found["key_precision"][:, 0] * found.get("background_precision", 1.0)
    value = found["background_value"].expand(B, -1, -1) if background == "learned" else None
    wide = model.with_background(weight, key_precision=precision.expand(B, -1), value=value)
    theirs, _ = layer.posterior_model(x, x, x)
    for ours, expected in ((theirs.attention, wide.attention), (theirs.log_evidence, wide.log_evidence), (theirs.expected_outputs, wide.expected_outputs)):  # fmt: skip
        assert_equal(ours(queries), expected(queries))


EXTRAS = {
    "softmax": (nn.SoftmaxAttention, {"add_zero_attn": True, "add_bias_kv": True}),
    "linear": (nn.LinearKeysAttention, {"add_zero_attn": True, "add_bias_kv": True}),
    "hopfield": (nn.HopfieldAttention, {"add_zero_attn": True, "num_steps": 2}),
    "background": (nn.GaussianMixtureAttention, {"background": "learned", "add_bias_kv": True}),
    "distances": (nn.GaussianMixtureAttention, {"background": "learned", "linked": False}),
    "keys": (nn.GaussianKeysAttention, {"background": "learned"}),
    "hard keys": (nn.GaussianKeysAttention, {"background": "zero", "assignment": "hard"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXTRAS.values(), ids=EXTRAS.keys())
@pytest.mark.parametrize("masks", MASKS[1:], ids=["causal", "padded", "both"])
def test_fused_extra_units_are_those_of_the_matrix(kind, masks):
    layer, x = make(kind[0], **kind[1])
    output, weights = layer(x, x, x, average_attn_weights=False, **masks)
    assert_equal(layer(x, x, x, need_weights=False, **masks)[0], output)
    assert_equal(weights.sum(-1), torch.ones(B, H, L))
    extra = weights.shape[-1] - L
    assert extra == sum(
        kind[1].get(name, False) is not False for name in ("add_zero_attn", "add_bias_kv", "background")
    )
    if "is_causal" in masks:
        assert (weights[..., :L].triu(1) == 0).all() and (weights[..., 0, L:].sum(-1) > 0).all()
        model, queries = layer.posterior_model(x, x, x, is_causal=True)
        if isinstance(model, models.GaussianMixture) and "key_padding_mask" not in masks:
            assert_equal(model.attention(queries), weights)


@pytest.mark.parametrize(
    ("make_layer", "message"),
    [
        (lambda: nn.GaussianMixtureAttention(8, 2, metric="scalar"), r"metric must be None or one of 'diagonal', 'full', not 'scalar'"),
        (lambda: nn.GaussianMixtureAttention(8, 2, background=True), r"background must be one of None, 'zero', 'learned', not True"),
        (lambda: nn.GaussianKeysAttention(8, 2, background="none"), r"background must be one of"),
        (lambda: nn.GaussianKeysAttention(8, 2, adapt=nn.Adapt(answers=True)), r"answers=True needs a GaussianMixtureAttention"),
        (lambda: nn.GaussianMixtureAttention(8, 2, adapt=nn.Adapt(1, ("shift",))), r"adapt: shift needs shift=True; or choose from keys, key_precision, weights"),
        (lambda: nn.GaussianMixtureAttention(8, 2, adapt=nn.Adapt(1, ("metric",))), r"adapt: metric needs metric='full'"),
        (lambda: nn.GaussianMixtureAttention(8, 2, adapt=nn.Adapt(1, ("values",)), metric="full"), r"adapt: values needs answers=True"),
        (lambda: nn.GaussianKeysAttention(8, 2, adapt=nn.Adapt(1, ("shift",))), r"adapt: shift needs a GaussianMixtureAttention"),
        (lambda: nn.GaussianMixtureAttention(8, 2, adapt=nn.Adapt(1, {"keys": 3.0})), r"parameters: keys=3.0 is no prior; give a Pyro distribution"),
        (lambda: nn.GaussianMixtureAttention(8, 2, adapt=nn.Adapt(1, {"keys": Normal})), r"parameters: keys=.* is no prior"),
    ],
)  # fmt: skip
def test_error_of_bad_options_names_the_option(make_layer, message):
    with pytest.raises(ValueError, match=message):
        make_layer()


def test_a_captured_metric_with_unequal_precisions_has_the_evidence_as_written_alone():
    layer, x = make(metric="full", linked=False, background="learned")
    (found,) = inspection.capture(layer, x, x, x).values()
    model, queries = layer.posterior_model(x, x, x)
    assert_equal(found.raw.log_evidence(), model.log_evidence(queries))
    with pytest.raises(ValueError, match=r"precisions differ .* captured\.raw"):
        found.log_evidence()

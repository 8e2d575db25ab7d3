"""Layers adapt as `inference.adapt` does, head by head, under any prior and with known answers; no later query matters."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from pyro.distributions import Dirichlet, Gamma, Laplace, LogNormal, Normal, Wishart
from strategies import generator
from tolerances import assert_equal

from probtx_pyro import inference, inspection, models, nn

B, L, E, H, D = 2, 5, 6, 2, 3
PADDING = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
OBSERVED = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 0, 0]], dtype=torch.bool)


def make(kind=nn.GaussianMixtureAttention, **options):
    torch.manual_seed(0)
    layer = kind(E, H, batch_first=True, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator(1))
    return layer, *torch.randn(2, B, L, E, generator=generator(2))


ALL = {"metric": "full", "shift": True, "background": "learned"}
TOLD = ("answers", "values", "everything")  # the cases in which some answers are known
CASES = {  # options of the layer, and what adapts
    "shift": ({"shift": True}, ("shift",)),
    "metric": ({"metric": "full"}, ("metric",)),
    "diagonal": ({"metric": "diagonal"}, ("metric",)),
    "weights": ({"background": "zero"}, ("weights",)),
    "all": (ALL | {"linked": False}, ("keys", "shift", "key_precision", "metric", "weights")),
    "answers": ({}, ("keys",)),
    "values": ({"linked": False}, ("values", "value_precision")),
    "everything": (ALL, ("keys", "shift", "key_precision", "metric", "values", "value_precision", "weights")),
}  # fmt: skip
QUICK = ("everything",)
cases = pytest.mark.parametrize(
    "case",
    [
        pytest.param((*x, name in TOLD), id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name, x in CASES.items()
    ],
)


def priors_by_hand(layer, head, model, adapted):
    """The prior of each parameter of one head: its mode is the parameter, its strength what the head has learned."""
    found = {}
    for name in adapted:
        s, x = float(getattr(layer, f"log_strength_{name}")[head].exp()), model.parameter(name)
        if name in ("keys", "shift", "values"):
            found[name] = Normal(x, s**-0.5)
        elif name == "metric" and layer.metric == "full":
            found[name] = Wishart(torch.tensor(D + 1 + s), x / s)
        elif name == "weights":
            found[name] = Dirichlet(1 + s * x)
        else:
            found[name] = Gamma(1 + torch.full_like(x, s), s / x)
    return found


def alone(model, b, h):
    """The mixture of one head of one example."""
    own = {name: x[b, h] for name, x in vars(model).items() if torch.is_tensor(x) and x.dim()}
    return model.with_parameters(own)


@cases
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@torch.no_grad()
def test_adaptation_is_inference_adapt_head_by_head(case, causal):
    options, adapted, told = case
    layer, x, known = make(adapt=nn.Adapt(2, adapted, answers=told), **options)
    answers = {"answers": known, "observed": OBSERVED} if told else {}
    masks = {"is_causal": causal, "key_padding_mask": None if causal else PADDING}
    output, weights = layer(x, x, x, average_attn_weights=False, **masks, **answers)
    model, queries = layer.posterior_model(x, x, x, **masks)
    values = layer.in_proj_weight.chunk(3)[2], layer.in_proj_bias.chunk(3)[2]
    outputs = (known @ values[0].T + values[1]).view(B, L, H, D).transpose(1, 2)
    found = torch.zeros(B, H, L, D)
    for b, h in itertools.product(range(B), range(H)):
        present = (~PADDING[b]).nonzero().squeeze(-1)
        for heard, asked in [(torch.arange(i + 1), [i]) for i in range(L)] if causal else [(present, present.tolist())]:
            mine = alone(model, b, h)
            mine = mine.replace(log_prior=mine.log_prior[: len(heard)]) if causal else mine
            data = (outputs[b, h][heard], OBSERVED[b][heard]) if answers else ()
            posterior = models.bayesian(mine, **priors_by_hand(layer, h, mine, adapted))
            fit = inference.adapt(posterior, queries[b, h][heard], *data, num_steps=2, progress=False).formulation
            places = [heard.tolist().index(i) for i in asked]
            expected = fit.attention(queries[b, h][heard], *data)[places]
            assert_equal(
                weights[b, h, asked], expected, operations=512
            )  # other sums, and a Cholesky factor in each step
            mean = fit.expected_outputs(queries[b, h][heard])[places]
            seen = OBSERVED[b, asked].unsqueeze(-1) & bool(answers)
            found[b, h, asked] = torch.where(seen, outputs[b, h, asked], mean)
    by_hand = found.transpose(1, 2).flatten(-2) @ layer.out_proj.weight.T + layer.out_proj.bias
    there = torch.ones(B, L, dtype=torch.bool) if causal else ~PADDING
    assert_equal(output[there], by_hand[there], operations=512)
    still, *_ = make(**options)
    still.load_state_dict({n: p for n, p in layer.state_dict().items() if n in still.state_dict()})
    moved = (output - still(x, x, x, **masks)[0])[there].abs().max()
    assert moved > 1e-4  # something does adapt


@torch.no_grad()
def test_one_step_written_out_with_known_answers():
    """PT eq. 31-35 in loops: the E-step hears the known answers, keys and values move to what is assigned to them."""
    layer, x, known = make(adapt=nn.Adapt(1, ("keys", "values"), answers=True), linked=False)
    output, _ = layer(x, x, x, answers=known, observed=OBSERVED)
    project = [(w, c) for w, c in zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)]
    q, k, v, known_v = ((y @ w.T + c).view(B, L, H, D) for y, (w, c) in zip((x, x, x, known), (*project, project[2]), strict=True))  # fmt: skip
    expected = torch.zeros(B, L, H, D)
    for b, h in itertools.product(range(B), range(H)):
        alpha, beta = float(layer.log_key_precision[h].exp()), float(layer.log_value_precision[h].exp())
        theta, phi = (float(getattr(layer, f"log_strength_{name}")[h].exp()) for name in ("keys", "values"))
        weights = torch.zeros(L, L)
        for i in range(L):
            logs = [-alpha / 2 * (q[b, i, h] - k[b, j, h]).square().sum() for j in range(L)]
            if OBSERVED[b, i]:
                logs = [s - beta / 2 * (known_v[b, i, h] - v[b, j, h]).square().sum() for j, s in enumerate(logs)]
            total = sum(math.exp(s) for s in logs)
            weights[i] = torch.tensor([math.exp(s) / total for s in logs])
        keys, values = torch.zeros(L, D), torch.zeros(L, D)
        for j in range(L):
            keys[j] = (theta * k[b, j, h] + alpha * sum(weights[i, j] * q[b, i, h] for i in range(L))) / (theta + alpha * weights[:, j].sum())  # fmt: skip
            told = [i for i in range(L) if OBSERVED[b, i]]
            values[j] = (phi * v[b, j, h] + beta * sum(weights[i, j] * known_v[b, i, h] for i in told)) / (phi + beta * sum(weights[i, j] for i in told))  # fmt: skip
        for i in range(L):
            if OBSERVED[b, i]:
                expected[b, i, h] = known_v[b, i, h]
                continue
            densities = [math.exp(-alpha / 2 * (q[b, i, h] - keys[j]).square().sum()) for j in range(L)]
            expected[b, i, h] = sum(w * values[j] for j, w in enumerate(densities)) / sum(densities)
    assert_equal(output, layer.out_proj(expected.flatten(-2)))


@pytest.mark.parametrize("adapted", ["keys", "shift"])
@torch.no_grad()
def test_one_causal_step_written_out(adapted):
    """PT eq. 27-29 in loops, at three positions: units in sight move to the queries up to that position."""
    layer, x, _ = make(adapt=nn.Adapt(1, adapted), linked=False, shift=adapted == "shift")
    output, _ = layer(x, x, x, is_causal=True)
    q, k, v = ((x @ w.T + c).view(B, L, H, D) for w, c in zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True))  # fmt: skip
    for b, i in itertools.product(range(B), (0, 2, 4)):
        answers = torch.zeros(H, D)
        for h in range(H):
            alpha = float(layer.log_key_precision[h].exp())
            theta = float(getattr(layer, f"log_strength_{adapted}")[h].exp())
            shift = layer.key_shift[h] if adapted == "shift" else torch.zeros(D)

            def weights(j, units, alpha=alpha, h=h, b=b):
                densities = [math.exp(-alpha / 2 * (q[b, j, h] - unit).square().sum()) for unit in units]
                return [density / sum(densities) for density in densities]

            w = [weights(j, [k[b, u, h] + shift for u in range(j + 1)]) for j in range(i + 1)]
            units = []
            for u in range(i + 1):
                drawn = range(u, i + 1)  # by the queries that see unit u
                if adapted == "keys":
                    counted = theta + alpha * sum(w[j][u] for j in drawn)
                    units.append((theta * k[b, u, h] + alpha * sum(w[j][u] * q[b, j, h] for j in drawn)) / counted)
            if adapted == "shift":
                away = sum(w[j][u] * (q[b, j, h] - k[b, u, h]) for j in range(i + 1) for u in range(j + 1))
                moved = (theta * shift + alpha * away) / (theta + alpha * (i + 1))
                units = [k[b, u, h] + moved for u in range(i + 1)]
            answers[h] = sum(p * v[b, u, h] for u, p in enumerate(weights(i, units)))
        assert_equal(output[b, i], layer.out_proj(answers.flatten()))


@torch.no_grad()
def test_no_later_query_or_answer_moves_an_earlier_output():
    names = ("keys", "shift", "key_precision", "metric", "values", "weights")
    layer, x, known = make(adapt=nn.Adapt(2, names, answers=True), **ALL)
    before = layer(x, x, x, is_causal=True, answers=known, observed=OBSERVED)[0]
    other, told, observed = x.clone(), known.clone(), OBSERVED.clone()
    other[:, 3:] += 2.0
    told[:, 3:] -= 1.0
    observed[:, 3:] = ~observed[:, 3:]
    after = layer(other, other, other, is_causal=True, answers=told, observed=observed)[0]
    assert_equal(after[:, :3], before[:, :3], operations=512)  # centred on other means
    assert ((after - before)[:, 3:].abs().amax(-1) > 1e-3).all()
    told = known.clone()
    told[:, 1] -= 1.0  # known in the second example only
    moved = (layer(x, x, x, is_causal=True, answers=told, observed=OBSERVED)[0] - before).abs().amax(-1)
    assert_equal(moved[0], torch.zeros(L))
    assert (moved[1, [0, 2]] == 0).all() and (moved[1, [1, 3, 4]] > 1e-4).all()  # 2 answers with what is known


# -- priors of one's own ------------------------------------------------------------------------------------------------------


class Near(torch.nn.Module):
    """A prior that the layer trains."""

    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.tensor(0.2))

    def forward(self, value):
        return Normal(value, self.log_scale.exp())


def test_own_priors_are_those_of_inference_adapt():
    module = Near()
    given = {"keys": lambda keys: Normal(0.9 * keys, 0.7), "shift": Normal(0.1, 2.0), "key_precision": None, "values": module}  # fmt: skip
    layer, x, known = make(adapt=nn.Adapt(3, given, answers=True), shift=True)
    output, _ = layer(x, x, x, answers=known)  # all are known, so that they are answered as they are
    parts = {name for name, _ in layer.named_parameters()}
    assert {"prior_of_values.log_scale", "log_strength_key_precision"} <= parts and "log_strength_keys" not in parts
    model, queries = layer.posterior_model(x, x, x)
    outputs = layer.heads(known, known, known)[2]
    strength = layer.log_strength_key_precision.exp().view(H, 1)
    priors = {"keys": Normal(0.9 * model.keys, 0.7), "shift": Normal(0.1, 2.0), "values": Normal(model.values, module.log_scale.exp())}  # fmt: skip
    priors["key_precision"] = Gamma((1 + strength).expand(B, H, L), strength / model.key_precision)
    fit = inference.adapt(models.bayesian(model, **priors), queries, outputs, num_steps=3).formulation
    assert_equal(output, layer.out_proj(outputs.transpose(1, 2).flatten(-2)))
    half = torch.arange(L).expand(B, L) < 3
    output, weights = layer(x, x, x, average_attn_weights=False, answers=known, observed=half)
    fit = inference.adapt(models.bayesian(model, **priors), queries, outputs, half.unsqueeze(1), num_steps=3)
    assert_equal(weights, fit.formulation.attention(queries, outputs, half.unsqueeze(1)), operations=512)
    (slope,) = torch.autograd.grad(output.square().sum(), module.log_scale)
    assert slope.abs() > 1e-6


def test_a_prior_without_closed_form_goes_to_gradient_map():
    layer, x, _ = make(adapt=nn.Adapt(5, {"keys": lambda keys: Laplace(keys, 0.5), "key_precision": LogNormal(0.0, 0.5)}))  # fmt: skip
    with torch.no_grad(), pytest.warns(UserWarning, match="gradient MAP"):
        weights = layer(x, x, x, average_attn_weights=False)[1]
    with torch.no_grad(), pytest.warns(UserWarning, match="gradient MAP"):
        model, queries = layer.posterior_model(x, x, x)
        posterior = models.bayesian(model, keys=Laplace(model.keys, 0.5), key_precision=LogNormal(0.0, 0.5))
        fit = inference.adapt(posterior, queries, num_steps=5).formulation
    assert torch.equal(weights, fit.attention(queries))  # the very same steps
    with pytest.raises(ValueError, match="gradient MAP is not differentiable"), pytest.warns(UserWarning):
        layer(x, x, x)
    with torch.no_grad(), pytest.raises(ValueError, match="causal adaptation needs closed-form updates"):
        layer(x, x, x, is_causal=True)


def test_keys_of_several_components_adapt_their_weights():
    adapted = ("keys", "weights", "component_weights")
    layer, x, _ = make(nn.GaussianKeysAttention, adapt=nn.Adapt(3, adapted), background="zero")
    weights = layer(x, x, x, average_attn_weights=False)[1]
    model, queries = layer.posterior_model(x, x, x)
    s = {name: getattr(layer, f"log_strength_{name}").exp().view(H, 1, 1) for name in adapted}
    priors = {
        "keys": Normal(model.keys, s["keys"].unsqueeze(-1) ** -0.5),
        "weights": Dirichlet(1 + s["weights"] * model.parameter("weights")),
        "component_weights": Dirichlet(1 + s["component_weights"] * model.component_weights),
    }
    fit = inference.adapt(models.bayesian(model, **priors), queries, num_steps=3).formulation
    assert_equal(weights, fit.attention(queries), operations=512)
    assert (weights - model.attention(queries)).abs().max() > 1e-3


# -- gradients ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "causal"])
def test_gradients_flow_through_every_prior_and_answer(causal):
    names = ("keys", "shift", "metric", "values", "weights")
    layer, x, known = make(adapt=nn.Adapt(2, names, answers=True), **ALL)
    own = ("log_strength", "metric", "key_shift", "log_value", "background")
    leaves = {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters() if n.startswith(own)}
    x, known, observed = x[:1, :3], known[:1, :3].clone().requires_grad_(), OBSERVED[:1, :3]

    def output(known, *parameters):
        how = {"need_weights": False, "is_causal": causal, "answers": known, "observed": observed}
        return torch.func.functional_call(layer, dict(zip(leaves, parameters, strict=True)), (x, x, x), how)[0]

    assert torch.autograd.gradcheck(output, (known, *leaves.values()), fast_mode=True, check_undefined_grad=False)
    slopes = torch.autograd.grad(output(known, *leaves.values()).square().sum(), [known, *leaves.values()])
    assert all(slope.abs().max() > 1e-6 for slope in slopes)
    assert (
        slopes[0][0, 0].abs().max() > 1e-6 and (slopes[0][0, 1] == 0).all()
    )  # of a known answer, and of one that is not


@pytest.mark.slow
def test_implicit_gradients_are_those_of_steps_that_settled():
    layer, x, known = make(adapt=nn.Adapt(200, ("keys", "shift"), answers=True), shift=True)
    with torch.no_grad():
        layer.log_strength_keys.fill_(1.0), layer.log_strength_shift.fill_(1.0)
    leaves = [layer.log_strength_keys, layer.log_strength_shift, layer.in_proj_weight]
    slopes = []
    for implicit in (False, True):
        layer.adapt = replace(layer.adapt, implicit=implicit)
        output = layer(x, x, x, need_weights=False, answers=known, observed=OBSERVED)[0]
        slopes.append(torch.autograd.grad(output.square().sum(), leaves))
    for unrolled, implicit in zip(*slopes, strict=True):
        # both are the same sum where the steps have settled; the linear solve of the implicit one stops at 1e-10 of its right side
        assert (unrolled - implicit).abs().max() < 1e-8 * unrolled.abs().max()


# -- bad input ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": torch.zeros(B, L - 1, E)}, r"answers have shape \(2, 4, 6\) .* give one for each query, with 6 features"),
        ({"answers": None, "observed": OBSERVED}, r"observed is given without answers"),
        ({"observed": OBSERVED.long()}, r"observed must be a boolean tensor \(2, 5\)"),
        ({"observed": OBSERVED[:, :-1]}, r"observed must be a boolean tensor \(2, 5\)"),
    ],
)  # fmt: skip
def test_error_of_bad_answers_names_the_argument(change, message):
    layer, x, known = make(adapt=nn.Adapt(answers=True))
    with pytest.raises(ValueError, match=message):
        layer(x, x, x, **{"answers": known, **change})


def test_a_function_that_returns_no_prior_is_refused():
    layer, x, _ = make(adapt=nn.Adapt(1, {"keys": lambda keys: keys}))
    with pytest.raises(ValueError, match=r"^adapt: the function for keys returned a Tensor, not a distribution$"):
        layer(x, x, x)


@pytest.mark.parametrize("kind", [nn.SoftmaxAttention, nn.GaussianMixtureAttention, nn.HopfieldAttention])
def test_layers_that_take_no_answers_refuse_them(kind):
    layer, x, known = make(kind)
    with pytest.raises(
        ValueError, match=r"this .*Attention takes none; make a GaussianMixtureAttention\(\.\.\., adapt="
    ):
        layer(x, x, x, answers=known)


def test_single_and_sequence_first_inputs_and_unknown_answers_that_are_nan():
    layer, x, known = make(adapt=nn.Adapt(2, answers=True))
    expected, _ = layer(x, x, x, answers=known, observed=OBSERVED)
    holes = torch.where(OBSERVED.unsqueeze(-1), known, torch.nan)
    assert_equal(layer(x, x, x, answers=holes, observed=OBSERVED)[0], expected)
    one = x[0], x[0], x[0]
    assert_equal(layer(*one, answers=known[0], observed=OBSERVED[0])[0], expected[0])
    layer.batch_first = False
    turned = x.transpose(0, 1)
    assert_equal(layer(turned, turned, turned, answers=known.transpose(0, 1), observed=OBSERVED)[0], expected.transpose(0, 1))  # fmt: skip


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.filterwarnings("ignore:best_equivalent. a head has")  # of few queries: it is small
@torch.no_grad()
def test_captured_attention_includes_the_known_answers(causal):
    layer, x, known = make(adapt=nn.Adapt(2, ("keys", "shift"), answers=True), shift=True)
    layer.float()
    how = {"is_causal": causal, "answers": known.float(), "observed": OBSERVED}
    (found,) = inspection.capture(layer, *[x.float()] * 3, **how).values()
    weights = layer(*[x.float()] * 3, average_attn_weights=False, **how)[1].double()
    unknown = ~OBSERVED.unsqueeze(1).expand(B, H, L)
    assert_equal(found.attention()[unknown].float(), weights[unknown].float())
    assert torch.isfinite(found.log_evidence()).all()
    del how["answers"], how["observed"]
    (deaf,) = inspection.capture(layer, *[x.float()] * 3, **how).values()
    assert (found.attention() - deaf.attention()).abs().max() > 1e-3

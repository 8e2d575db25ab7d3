"""Priors over what modules learn, and their density over a whole model."""

import math

import pyro.distributions
import pytest
import torch
from tolerances import assert_equal

from probtx_pyro import nn


def gaussian(**priors):
    return nn.GaussianMixtureAttention(8, 2, priors=priors or None)


def normal_log_density(x, scale):
    return (-0.5 * (x / scale).square() - math.log(scale * (2 * math.pi) ** 0.5)).sum()


@pytest.mark.parametrize("library", [pyro.distributions, torch.distributions], ids=["pyro", "torch"])
def test_distributions_of_both_libraries_count(library):
    layer = gaussian(key_precision=library.Exponential(torch.tensor(3.0)))
    precision = layer.log_key_precision.exp()
    assert_equal(nn.log_prior_density(layer), (math.log(3) - 3 * precision).sum())


ENCODERS = {
    "full": ({}, ["ternary"]),
    "low rank": ({"rank": 2}, ["left", "right"]),
    "shared": ({"rank": 2, "shared": True}, ["left", "right", "channels"]),
    "root and nodes": ({"root_labels": 3, "nodes": {"number": 2}}, ["ternary", "root_ternary", "memory"]),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_dependency_crf_encoder_counts_the_priors_on_its_potentials(kind):
    options, names = ENCODERS[kind]
    torch.manual_seed(0)
    scales = {name: 0.5 + i for i, name in enumerate(names)}
    priors = {name: torch.distributions.Normal(0.0, scale) for name, scale in scales.items()}
    encoder = nn.DependencyCRFEncoder(6, 2, priors=priors, **options)
    tagger = nn.WordTagger(10, encoder, 6, num_tags=(3,))
    values = encoder.constrained()
    assert sorted(values) == sorted({*names, "ternary"})
    expected = sum(normal_log_density(values[name], scale) for name, scale in scales.items())
    found = nn.log_prior_density(tagger)
    assert_equal(found, expected)
    (slope,) = torch.autograd.grad(found, [values[names[0]]])
    assert_equal(slope, -values[names[0]] / scales[names[0]] ** 2)


@pytest.mark.parametrize("shared", [False, True])
def test_a_prior_on_potentials_of_low_rank_is_one_on_their_product(shared):
    torch.manual_seed(0)
    encoder = nn.DependencyCRFEncoder(
        3, 2, rank=2, shared=shared, priors={"ternary": torch.distributions.Normal(0.1, 0.5)}
    )
    factors = {name: x.tolist() for name, x in encoder.named_parameters()}
    total = 0.0
    for c in range(2):
        for g in range(2):
            for a in range(3):
                for b in range(3):
                    left, right = (factors[x][g] if shared else factors[x][c][g] for x in ("left", "right"))
                    weights = factors["channels"][g][c] if shared else (1.0, 1.0)
                    score = sum(left[a][r] * right[b][r] * weights[r] for r in range(2))
                    total += -0.5 * ((score - 0.1) / 0.5) ** 2 - math.log(0.5 * math.sqrt(2 * math.pi))
    found = nn.log_prior_density(encoder)
    assert_equal(found, torch.tensor(total))
    assert all(bool((x != 0).all()) for x in torch.autograd.grad(found, list(encoder.parameters())))


def test_a_learned_temperature_of_retrieval_counts():
    layer = nn.HopfieldRetrieval(2, 4.0, learn_beta=True, priors={"beta": pyro.distributions.Exponential(1.0)})
    assert_equal(nn.log_prior_density(layer), torch.tensor(-8.0))


class Weighted(torch.nn.Module):
    """A module of a user's own, which knows nothing of the package."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def log_prior_density(self):
        return -self.weight.sum()


def test_a_module_of_your_own_counts_by_its_method():
    layer = gaussian(key_precision=pyro.distributions.Exponential(1.0))
    model = torch.nn.Sequential(Weighted(), torch.nn.Linear(2, 2), layer)
    assert_equal(nn.log_prior_density(model), -3 - layer.log_key_precision.exp().sum())


def test_a_layer_in_two_places_counts_once():
    layer = gaussian(key_precision=pyro.distributions.Exponential(1.0))
    assert_equal(nn.log_prior_density(torch.nn.ModuleList([layer, layer])), nn.log_prior_density(layer))


def test_a_layer_without_priors_adds_nothing_to_one_with():
    layer = gaussian(key_precision=pyro.distributions.Exponential(1.0))
    assert_equal(nn.log_prior_density(torch.nn.ModuleList([gaussian(), layer])), nn.log_prior_density(layer))
    assert gaussian().log_prior_density() == 0


NOTHING = {
    "encoder without priors": lambda: nn.DependencyCRFEncoder(4, 2),
    "layers without priors": lambda: torch.nn.ModuleList([gaussian(), nn.SoftmaxAttention(8, 2)]),
    "torch's own": lambda: torch.nn.TransformerEncoderLayer(8, 2),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_model_without_any_prior_is_an_error_and_not_zero(name):
    model = NOTHING[name]()
    with pytest.raises(ValueError, match=rf"no module of {type(model).__name__} has priors; give a layer priors="):
        nn.log_prior_density(model)


def assigned(priors):
    layer = gaussian()
    layer.priors = priors


WRONG = {
    "number": ({"key_precision": 1.0}, r"priors: 'key_precision' must be a Pyro or torch distribution, like .*, not float"),
    "class": ({"key_precision": torch.distributions.Gamma}, r"priors: 'key_precision' must be .*, not Gamma itself"),
    "list": ([torch.distributions.Gamma(2.0, 8.0)], r"priors must map names to distributions, but is of type list"),
    "one distribution": (torch.distributions.Gamma(2.0, 8.0), r"priors must map names to distributions, but is of type Gamma"),
}  # fmt: skip
TAKING = {
    "attention": lambda priors: nn.GaussianMixtureAttention(8, 2, priors=priors),
    "retrieval": lambda priors: nn.HopfieldRetrieval(priors=priors),
    "encoder": lambda priors: nn.DependencyCRFEncoder(4, 2, priors=priors),
    "assigned later": assigned,
}


@pytest.mark.parametrize("taking", TAKING)
@pytest.mark.parametrize("wrong", WRONG)
def test_priors_that_are_no_distributions_are_refused(taking, wrong):
    priors, message = WRONG[wrong]
    with pytest.raises(TypeError, match=message) as error:
        TAKING[taking](priors)
    assert "\n" not in str(error.value)


MISFITS = {
    "too long": torch.distributions.Gamma(torch.ones(5), 1.0),  # (2, 1) against (5,) would count five times
    "another axis": torch.distributions.Gamma(torch.ones(3, 2, 1), 1.0),
    "not to be broadcast": torch.distributions.Gamma(torch.ones(3, 1), 1.0),
    "event too long": torch.distributions.Dirichlet(torch.ones(4)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_prior_of_another_shape_is_refused(name):
    with pytest.raises(ValueError, match=r"the prior on 'key_precision' has shape .* does not broadcast to \(2, 1\)"):
        nn.log_prior_density(gaussian(key_precision=MISFITS[name]))


def test_a_prior_for_each_head_fits():
    rate = torch.tensor([[1.0], [2.0]])
    layer = gaussian(key_precision=torch.distributions.Exponential(rate))
    assert_equal(nn.log_prior_density(layer), (rate.log() - rate * layer.log_key_precision.exp()).sum())

"""Label switching: planted permutations are undone, and units that a prior tells apart are never touched."""

import itertools

import arviz_versions as versions
import numpy as np
import pytest
import torch
from draws_by_hand import DTYPE, bayesian, data, make, normal, samples
from pyro.distributions import Dirichlet, Gamma, Normal, TransformedDistribution
from torch.distributions import transforms

from probtx_pyro import models, results
from probtx_pyro.results._exchangeable import exchangeable


def shuffled(given, seed=5):
    """Every draw of every problem under a permutation of its own; all its parameters under the same."""
    shape = given["keys"].shape[:-1]
    permutation = torch.rand(shape, generator=torch.Generator().manual_seed(seed)).argsort(-1)
    return {
        "keys": given["keys"].gather(-2, permutation.unsqueeze(-1).expand(given["keys"].shape)),
        "values": given["values"].gather(-2, permutation.unsqueeze(-1)),
        "weights": given["weights"].gather(-1, permutation.unsqueeze(-2)),
    }


def switched(given):
    """Chain by chain: each in a mode of its own, the worst case for R-hat."""
    orders = list(itertools.permutations(range(3)))
    rows = [torch.tensor(orders[chain % 6]) for chain in range(len(given["keys"]))]
    return {
        name: torch.stack([x[i].index_select(-1 if name == "weights" else -2, row) for i, row in enumerate(rows)])
        for name, x in given.items()
    }


def same_up_to_one_permutation(found, truth):
    """Whether one permutation of the units, for each problem, maps all draws of ``truth`` to ``found``."""
    batch = truth["keys"].shape[2:-2]
    for index in np.ndindex(*batch):
        at = (slice(None), slice(None), *index)
        if not any(
            all(
                torch.equal(
                    found[name][at], truth[name][at].index_select(-1 if name == "weights" else -2, torch.tensor(o))
                )
                for name in truth
            )
            for o in itertools.permutations(range(3))
        ):
            return False
    return True


@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
@pytest.mark.parametrize("plant", [shuffled, switched])
def test_planted_permutations_are_undone(batch, plant):
    truth = samples(batch)
    draws = make(bayesian(batch), plant(truth), data(batch)[:2])
    assert not same_up_to_one_permutation(draws.samples, truth)
    found = results.relabel(draws)
    assert same_up_to_one_permutation(found.samples, truth)
    assert "exchangeable units relabelled" in found.record["labels"]


def test_rhat_comes_back():
    truth = samples()
    draws = make(bayesian(), switched(truth), data()[:2])
    broken = results.to_inference_data(draws, relabel=False)
    whole = results.to_inference_data(draws)
    reference = results.to_inference_data(make(bayesian(), truth, data()[:2]))
    assert versions.rhat(broken, "keys") > 2
    for name in ("keys", "values", "weights", "attention"):
        found, expected = (versions.rhat(x, name) for x in (whole, reference))
        assert found == pytest.approx(expected, abs=1e-12)  # the same numbers, in another order of the units
        assert found < 1.03  # independent draws: 600 leave R-hat within a few thousandths of 1


def test_a_second_time_changes_nothing():
    once = results.relabel(make(bayesian((2,)), shuffled(samples((2,))), data((2,))[:2]))
    twice = results.relabel(once)
    assert all(torch.equal(once.samples[name], twice.samples[name]) for name in once.samples)
    assert "0 of 600 draws changed" in twice.record["labels"]


def test_overlapping_units_too_are_idempotent():
    """Units half a spread apart, whose labels no one can know: the rule is still one rule."""
    given = {"keys": normal(1, 4, 100, 3, 2) + 0.5 * torch.arange(3).unsqueeze(-1)}
    mixture = models.GaussianMixture(torch.zeros(3, 2, dtype=DTYPE))
    prior = dict(keys=Normal(torch.zeros((), dtype=DTYPE), torch.ones((), dtype=DTYPE)))
    draws = make(models.bayesian(mixture, **prior), given, data()[:1])
    once = results.relabel(draws)
    assert not torch.equal(once.samples["keys"], given["keys"])
    assert torch.equal(results.relabel(once).samples["keys"], once.samples["keys"])
    start = divmod(int(draws.statistics["lp"].argmax()), 100)
    assert torch.equal(once.samples["keys"][start], given["keys"][start])  # the labels of the likeliest draw


def test_the_assignment_is_the_best_of_all():
    """Every draw against its centre: no permutation of the units comes nearer, distances scaled by the spread within units."""
    given = {"keys": normal(2, 2, 60, 3, 2) + torch.arange(3).unsqueeze(-1)}
    mixture = models.GaussianMixture(torch.zeros(3, 2, dtype=DTYPE))
    prior = dict(keys=Normal(torch.zeros((), dtype=DTYPE), torch.ones((), dtype=DTYPE)))
    found = results.relabel(make(models.bayesian(mixture, **prior), given, data()[:1])).samples["keys"].flatten(0, 1)
    center = found.mean(0)
    variance = (found - center).square().mean((0, 1))
    for draw in found:
        costs = [float(((draw[list(o)] - center).square() / variance).sum()) for o in itertools.permutations(range(3))]
        assert costs[0] <= min(costs) + 1e-12


def test_noise_in_many_features_does_not_hide_the_units():
    """Two units that only one of 21 features tells apart: distances count by the spread within units, not between them."""
    noise = normal(3, 4, 200, 2, 20)
    place = torch.tensor([-1.0, 1.0], dtype=DTYPE) + 0.05 * normal(4, 4, 200, 2)
    truth = torch.cat([place.unsqueeze(-1), noise], -1)
    planted = truth.clone()
    planted[:, ::3] = truth[:, ::3].flip(-2)
    mixture = models.GaussianMixture(torch.zeros(2, 21, dtype=DTYPE))
    prior = dict(keys=Normal(torch.zeros((), dtype=DTYPE), torch.ones((), dtype=DTYPE)))
    draws = make(models.bayesian(mixture, **prior), {"keys": planted}, (normal(5, 6, 21),))
    found = results.relabel(draws).samples["keys"]
    assert torch.equal(found, truth) or torch.equal(found, truth.flip(-2))


def test_labels_of_a_reference():
    truth = samples()
    draws = make(bayesian(), shuffled(truth), data()[:2])
    wanted = truth["keys"].mean((0, 1))[[2, 0, 1]]
    found = results.relabel(draws, {"keys": wanted})
    assert torch.equal(found.samples["keys"], truth["keys"][:, :, [2, 0, 1]])
    assert torch.equal(found.samples["weights"], truth["weights"][..., [2, 0, 1]])
    for reference, message in (
        ({"kees": wanted}, "kees is no parameter of units here"),
        ({"keys": wanted[:2]}, r"keys has shape \(2, 2\) but a draw has \(3, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            results.relabel(draws, reference)


def program(at=None, log_prior=None, values=None, **priors):
    """Three units in one dimension and what is said of them."""
    at = torch.zeros(3, 1, dtype=DTYPE) if at is None else at
    return models.bayesian(models.GaussianMixture(at, values, log_prior=log_prior), **priors)


ZERO, ONE, ORDERED = torch.zeros((), dtype=DTYPE), torch.ones((), dtype=DTYPE), torch.arange(3, dtype=DTYPE)
MASKED = torch.tensor([[0.5, 0.5, 0.0]], dtype=DTYPE).log()
ALIKE = {"keys": Normal(ZERO, ONE)}
COLUMN = ORDERED.unsqueeze(-1)


@pytest.mark.parametrize(
    ("given", "classes", "because"),
    [
        (program(**ALIKE), [0, 0, 0], ()),
        (program(keys=Normal(COLUMN, ONE)), [0, 1, 2], ("the prior on keys",)),
        (program(keys=Normal(COLUMN.clamp_min(1), ONE)), [0, 0, 1], ("the prior on keys",)),
        (program(keys=Normal(ZERO, COLUMN + 1)), [0, 1, 2], ("the prior on keys",)),
        (program(at=COLUMN, key_precision=Gamma(2 * torch.ones(3, dtype=DTYPE), ONE)), [0, 1, 2], ("keys, which are given",)),
        (program(key_precision=Gamma(2 * torch.ones(3, dtype=DTYPE), ORDERED + 1)), [0, 1, 2], ("the prior on key_precision",)),
        (program(log_prior=MASKED, **ALIKE), [1, 1, 0], ("weights, which are given",)),
        (program(log_prior=MASKED, weights=Dirichlet(torch.ones(1, 3, dtype=DTYPE)), **ALIKE), [1, 1, 0], ("the mask of weights",)),
        (program(weights=Dirichlet(torch.ones(1, 3, dtype=DTYPE) + ORDERED), **ALIKE), [0, 1, 2], ("the prior on weights",)),
        (program(values=COLUMN, **ALIKE), [0, 1, 2], ("values, which are given",)),
        (program(keys=TransformedDistribution(Normal(ZERO, ONE), [transforms.AffineTransform(COLUMN, ONE)])), [0, 1, 2], ("the prior on keys",)),
    ],
)  # fmt: skip
def test_units_that_may_change_places_are_found(given, classes, because):
    found = exchangeable(given, (torch.zeros(4, 1, dtype=DTYPE),))
    dims, numbers = found.classes["unit"]
    assert dims == ("unit",)
    np.testing.assert_array_equal(numbers[:, None] == numbers, np.array(classes)[:, None] == np.array(classes))
    assert found.separated_by["unit"] == because


def test_units_told_apart_are_never_permuted():
    for given in (bayesian(separated=True), bayesian((2,), separated=True)):
        batch = given.formulation.batch_shape
        draws = make(given, shuffled(samples(tuple(batch))), data(tuple(batch))[:2])
        found = results.relabel(draws)
        assert all(torch.equal(found.samples[name], draws.samples[name]) for name in draws.samples)
        assert (
            found.record["labels"] == "units are not exchangeable (they differ in the prior on keys): left as they are"
        )
        assert results.to_inference_data(draws).attrs["labels"] == found.record["labels"]


def test_only_units_of_one_kind_change_places():
    """Two units share a prior; the third sits apart, and draws that put it in their place are left with it there."""
    truth = normal(1, 2, 50, 3, 1) * 0.1 + torch.tensor([[-2.0], [2.0], [6.0]])
    planted = truth.clone()
    planted[1, :, :2] = truth[1, :, :2].flip(-2)
    planted[0, 7] = truth[0, 7, [2, 1, 0]]
    draws = make(
        program(keys=Normal(torch.tensor([[0.0], [0.0], [1.0]], dtype=DTYPE), ONE)),
        {"keys": planted},
        (truth[0, :4, 0],),
    )
    found = results.relabel(draws).samples["keys"]
    expected = truth.clone()
    expected[0, 7] = truth[0, 7, [2, 1, 0]]
    assert any(
        torch.equal(found[:, [*range(7), *range(8, 50)]][..., o, :], expected[:, [*range(7), *range(8, 50)]])
        for o in ([0, 1, 2], [1, 0, 2])
    )
    assert torch.equal(found[..., 2, :], planted[..., 2, :])


def test_components_of_keys_change_places_within_their_unit():
    center = torch.tensor([[-6.0, -4.0], [4.0, 6.0]], dtype=DTYPE).unsqueeze(-1)
    truth = center + 0.1 * normal(1, 3, 80, 2, 2, 1)
    share = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=DTYPE) + 0.01 * normal(2, 3, 80, 2, 1) * torch.tensor(
        [1.0, -1.0]
    )
    unit, inner = (
        torch.rand(3, 80, *n, generator=torch.Generator().manual_seed(4)).argsort(-1) for n in ((2,), (2, 2))
    )
    keys = truth.gather(2, unit[..., None, None].expand(truth.shape)).gather(3, inner.unsqueeze(-1))
    weights = share.gather(2, unit[..., None].expand(share.shape)).gather(3, inner)
    model = models.GaussianKeys(torch.zeros(2, 2, 1, dtype=DTYPE))
    priors = dict(keys=Normal(ZERO, ONE), component_weights=Dirichlet(torch.ones(2, dtype=DTYPE)))
    draws = make(models.bayesian(model, **priors), {"keys": keys, "component_weights": weights}, (normal(5, 6, 1),))
    found = results.relabel(draws)
    spread = found.samples["keys"].flatten(0, 1).std(0)
    assert (
        float(spread.max()) < 0.2
    )  # 0.1 but for sampling; one draw with a wrong label would leave 2 / sqrt(240) at the least
    order = found.samples["keys"].mean((0, 1)).flatten()
    assert set(order.round().tolist()) == {-6.0, -4.0, 4.0, 6.0}
    assert float(found.samples["component_weights"].flatten(0, 1).std(0).max()) < 0.02
    assert "exchangeable components relabelled" in found.record["labels"]
    again = results.relabel(found)
    assert torch.equal(again.samples["keys"], found.samples["keys"])


def test_weights_of_components_that_units_share_pin_the_components():
    model = models.GaussianKeys(
        torch.zeros(2, 2, 1, dtype=DTYPE), component_weights=torch.tensor([[0.5, 0.5]], dtype=DTYPE)
    )
    priors = dict(keys=Normal(ZERO, ONE), component_weights=Dirichlet(torch.ones(1, 2, dtype=DTYPE)))
    found = exchangeable(models.bayesian(model, **priors), (normal(5, 6, 1),))
    assert found.classes["component"][1].tolist() == [[0, 1], [0, 1]]
    assert found.classes["unit"][1].tolist() == [0, 0]


def test_units_change_places_where_no_parameter_of_components_is_drawn():
    model = models.GaussianKeys(torch.zeros(2, 3, 1, dtype=DTYPE))
    truth = torch.stack([normal(1, 2, 20, 1) - 3, normal(2, 2, 20, 1) + 3], -1).mul(0.3).softmax(-1)
    planted = truth.clone()
    planted[:, ::3] = truth[:, ::3].flip(-1)
    program = models.bayesian(model, weights=Dirichlet(torch.ones(1, 2, dtype=DTYPE)))
    found = results.relabel(make(program, {"weights": planted}, (normal(5, 6, 1),))).samples["weights"]
    assert torch.equal(found, truth) or torch.equal(found, truth.flip(-1))


def test_keys_shared_by_problems_are_relabelled_once():
    """Keys without the axis of the batch, precisions with it: one permutation for all problems."""
    keys = torch.tensor([[-3.0], [3.0]], dtype=DTYPE) + 0.1 * normal(1, 2, 40, 2, 1)
    precision = torch.tensor([1.0, 8.0], dtype=DTYPE) * (0.1 * normal(2, 2, 40, 3, 2)).exp()
    flip = torch.rand(2, 40, generator=torch.Generator().manual_seed(3)) < 0.5
    planted = {
        "keys": torch.where(flip[..., None, None], keys.flip(-2), keys),
        "key_precision": torch.where(flip[..., None, None], precision.flip(-1), precision),
    }
    mixture = models.GaussianMixture(torch.zeros(2, 1, dtype=DTYPE), key_precision=torch.ones(3, 2, dtype=DTYPE))
    priors = dict(keys=Normal(ZERO, ONE), key_precision=Gamma(2 * ONE, ONE))
    found = results.relabel(make(models.bayesian(mixture, **priors), planted, (normal(5, 3, 6, 1),))).samples
    if found["keys"][0, 0, 0] > 0:
        found = {"keys": found["keys"].flip(-2), "key_precision": found["key_precision"].flip(-1)}
    assert torch.equal(found["keys"], keys) and torch.equal(found["key_precision"], precision)


def test_files_are_relabelled_as_draws_are():
    draws = make(bayesian((2,)), shuffled(samples((2,))), data((2,))[:2])
    whole, broken = results.to_inference_data(draws), results.to_inference_data(draws, relabel=False)
    found = results.relabel(broken)
    for name in ("keys", "values", "weights"):
        np.testing.assert_array_equal(found["posterior"][name], whole["posterior"][name])
    np.testing.assert_allclose(found["posterior"]["attention"], whole["posterior"]["attention"], rtol=0, atol=1e-12)
    assert found.attrs["labels"] == whole.attrs["labels"] and "labels" not in broken.attrs
    assert found["sample_stats"].identical(broken["sample_stats"])


def test_errors_say_what_is_missing():
    draws = make(bayesian(), samples(), data()[:2])
    with pytest.raises(ValueError, match=r"not of a program made by models.bayesian"):
        results.relabel(draws._replace(program=None))
    elsewhere = versions.posterior_from({"keys": np.zeros((2, 5, 3))}, dims={"keys": ["unit"]})
    with pytest.raises(ValueError, match="exchangeable: the data do not say which units may change places"):
        results.relabel(elsewhere)
    broken = {**draws.samples, "keys": draws.samples["keys"] * torch.nan}
    with pytest.raises(ValueError, match="keys contains NaN or infinity"):
        results.relabel(draws._replace(samples=broken))

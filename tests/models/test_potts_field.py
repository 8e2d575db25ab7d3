"""The Potts field: mean field, Gibbs and enumeration agree, and the mean field is attention of a place over its neighbours."""

import itertools
import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from strategies import generator
from tolerances import rounding

from probtx_pyro import inference, models, results
from probtx_pyro.models import PottsField

SIDE = 3
GRID = [(i, i + 1) for i in range(SIDE**2) if (i + 1) % SIDE] + [(i, i + SIDE) for i in range(SIDE**2 - SIDE)]


def problems(number, labels=2, coupling=1.0, seed=0):
    """Pictures of 3 x 3 pieces, (number,) of them."""
    random = generator(seed)
    unary = torch.randn(number, SIDE**2, labels, generator=random, dtype=torch.float64)
    weights = coupling * torch.rand(number, len(GRID), generator=random, dtype=torch.float64)
    return PottsField(unary, torch.tensor(GRID), weights)


def by_hand(unary, coupling, allowed=None):
    """Log partition and marginals of one problem, by a loop over all labellings."""
    places, count = len(unary), len(unary[0])
    choices = allowed or [range(count)] * places
    total, marginals = 0.0, [[0.0] * count for _ in range(places)]
    for labels in itertools.product(*choices):
        log = sum(unary[i][z] for i, z in enumerate(labels))
        log += sum(w for (j, k), w in zip(GRID, coupling, strict=True) if labels[j] == labels[k])
        total += math.exp(log)
        for place, label in enumerate(labels):
            marginals[place][label] += math.exp(log)
    return math.log(total), torch.tensor(marginals, dtype=torch.float64) / total


@pytest.mark.parametrize("labels", [2, 3])
def test_enumeration_is_the_sum_over_all_labellings(labels):
    field = problems(2, labels)
    for n in range(2):
        total, marginals = by_hand(field.unary[n].tolist(), field.coupling[n].tolist())
        torch.testing.assert_close(field.log_partition()[n].item(), total)
        torch.testing.assert_close(field.marginals()[n], marginals)


def test_known_labels_are_summed_over_no_more():
    field = problems(1)
    labels, observed = torch.tensor([0, 1, 0, 0, 0, 0, 0, 0, 1]), torch.zeros(9, dtype=torch.bool)
    observed[[1, 8]] = True
    allowed = [[1] if i in (1, 8) else [0, 1] for i in range(9)]
    total, marginals = by_hand(field.unary[0].tolist(), field.coupling[0].tolist(), allowed)
    torch.testing.assert_close(field.log_partition(labels, observed).item(), total)
    torch.testing.assert_close(field.marginals(labels, observed)[0], marginals)
    found = field.mean_field(labels=labels, observed=observed)
    assert (found.label_marginals[0, [1, 8], 1] == 1).all()
    assert found.elbo <= total
    draws = inference.gibbs(field, labels, observed, num_samples=5, num_chains=20, num_warmup=1, seed=0)
    assert (draws.samples["label"][..., [1, 8]] == 1).all()


def test_mean_field_gibbs_and_enumeration_agree_on_50_problems(capsys):
    """Gibbs within four standard errors of 300 chains' last draws; the mean field bounds log Z and its gap is printed."""
    field = problems(50, coupling=0.8, seed=1)
    exact, found = field.marginals(), field.mean_field(history=True)
    assert found.converged.all()
    assert (found.objective.diff(dim=0) >= -rounding(found.objective[1:])).all()  # coordinate ascent
    gap = field.log_partition() - found.elbo
    assert (gap >= -rounding(found.elbo)).all()
    with capsys.disabled():
        error = (found.label_marginals - exact).abs()
        print(f"mean field: gap of log Z {gap.mean():.3f} (largest {gap.max():.3f}), of marginals {error.mean():.3f} ({error.max():.3f})")  # fmt: skip
    chains = 300
    latents, random = field.latents((None, None)), generator(2)
    state = latents.start(chains, random)
    for _ in range(20):
        state = latents.sweep(state, random)
    mean = (state["label"] == 1).double().mean(0)
    error = (exact[..., 1] * (1 - exact[..., 1]) / chains).sqrt()
    z = (mean - exact[..., 1]) / error
    # of 450 numbers, 0.03 are expected beyond four errors
    assert (z.abs() > 4).sum() <= 1
    assert z.square().mean() == pytest.approx(1, abs=5 * math.sqrt(2 / 50))  # problems are independent, places are not


def test_without_coupling_places_are_independent():
    field = problems(3, 3, coupling=0.0)
    expected = field.unary.softmax(-1)
    torch.testing.assert_close(field.mean_field().label_marginals, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(field.log_partition(), field.unary.logsumexp(-1).sum(-1))
    assert (field.attention() == 0).all()


def test_the_mean_field_is_attention_of_a_place_over_its_neighbours():
    """Couplings of colours and borders: `GaussianMixture`, the neighbours as units, has the attention and the answers."""
    random = generator(3)
    colours = torch.randn(9, 3, generator=random, dtype=torch.float64)
    border = torch.zeros(9, 9, dtype=torch.float64)
    for j, k in GRID:
        border[j, k] = border[k, j] = torch.rand((), generator=random, dtype=torch.float64) + 0.1
    j, k = torch.tensor(GRID).T
    coupling = border[j, k] * (-0.7 / 2 * (colours[j] - colours[k]).square().sum(-1)).exp()
    field = PottsField(torch.randn(9, 2, generator=random, dtype=torch.float64), torch.tensor(GRID), coupling)
    marginals = field.mean_field(num_steps=500, tol=1e-14).label_marginals
    log_prior = (border / border.sum(-1, keepdim=True)).log()
    pieces = models.GaussianMixture.categorical(colours, marginals, 0.7, log_prior)
    torch.testing.assert_close(field.attention(), pieces.attention(colours))
    strength = torch.zeros(9, dtype=torch.float64).index_add(0, j, coupling).index_add(0, k, coupling)
    asked = pieces.expected_outputs(colours)
    torch.testing.assert_close(marginals, (field.unary + strength.unsqueeze(-1) * asked).softmax(-1))


def test_programs_say_the_same():
    field = problems(1)
    one = PottsField(field.unary[0], field.edges, field.coupling[0])
    elbo = TraceEnum_ELBO(max_plate_nesting=0)
    assert -elbo.loss(one.enumerated, lambda *_: None) == pytest.approx(float(one.log_partition()))
    labels, observed = torch.ones(9, dtype=torch.long), torch.arange(9) < 3
    loss = elbo.loss(one.enumerated, lambda *_: None, labels, observed)
    assert -loss == pytest.approx(float(one.log_partition(labels, observed)))
    for own in (field, one):
        trace = poutine.trace(own.model).get_trace(labels, observed)
        trace.compute_log_prob()
        drawn = trace.nodes["label"]["value"]
        assert (drawn[..., :3] == 1).all()
        torch.testing.assert_close(trace.log_prob_sum(), own.log_joint(drawn).sum())


def test_the_guide_is_the_mean_field():
    field = problems(1, coupling=0.5)
    found = field.mean_field()
    pyro.set_rng_seed(0)
    drawn = torch.tensor([-Trace_ELBO().loss(field.model, lambda: field.guide(field=found)) for _ in range(400)])
    error = drawn.std() / 20
    assert abs(drawn.mean() - found.elbo.item()) < 4 * error


def test_importance_annealing_and_results_take_a_field():
    field = problems(2, coupling=0.5)
    exact = field.log_partition()
    for estimate in (
        inference.annealed_log_partition(field, num_temperatures=10, seed=0),
        inference.importance_log_partition(field, proposal=field.mean_field(), num_draws=2000, seed=0),
    ):
        assert ((estimate.log_partition - exact).abs() < 5 * estimate.standard_error).all()
    draws = inference.gibbs(field, num_samples=3, num_chains=2, num_warmup=1, seed=0)
    data = results.to_inference_data(draws)
    assert data["posterior"]["label"].dims == ("chain", "draw", "batch", "place")
    assert data["posterior"]["attention"].dims == ("chain", "draw", "batch", "place", "neighbour")
    point = results.to_inference_data(field.mean_field())["point_estimate"]
    assert point["label_marginals"].dims == ("batch", "place", "label")


def test_groups_are_found_once_and_hold_no_neighbours():
    field = problems(1)
    for group in field.edges.groups:
        places = set(group.places.tolist())
        assert not any(j in places and k in places for j, k in GRID)
    assert sorted(torch.cat([group.places for group in field.edges.groups]).tolist()) == [*range(9)]
    assert field.replace(unary=field.unary * 2).edges.groups is field.edges.groups
    assert field.replace(edges=field.edges.pairs[1:], coupling=0.1).edges.groups is not field.edges.groups


def test_a_field_is_moved_saved_and_read(tmp_path):
    field = problems(1).to(torch.float32)
    assert field.unary.dtype == torch.float32
    assert field.edges.pairs.dtype == torch.long
    torch.save(field, tmp_path / "field.pt")
    again = torch.load(tmp_path / "field.pt", weights_only=True)
    torch.testing.assert_close(again.mean_field().label_marginals, field.mean_field().label_marginals)


def test_gradients_unrolled_and_implicit_agree():
    field = problems(1, coupling=0.5)
    found = []
    for implicit in (False, True):
        unary = field.unary.clone().requires_grad_()
        own = field.replace(unary=unary).mean_field(num_steps=300, tol=1e-13, implicit=implicit)
        own.label_marginals[..., 1].sum().backward()
        found.append(unary.grad)
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unary": torch.zeros(3, 2, dtype=torch.long)}, "unary must"),
        ({"unary": torch.full((3, 2), torch.nan)}, "NaN"),
        ({"unary": torch.tensor([[0.0, 0], [-torch.inf, -torch.inf], [0, 0]])}, "all labels"),
        ({"edges": torch.tensor([[0, 3], [1, 2]])}, "from 0 to 2"),
        ({"edges": torch.tensor([[0, 0], [1, 2]])}, "two different"),
        ({"edges": torch.tensor([[0, 1], [1, 0]])}, "twice"),
        ({"edges": torch.tensor([[0.0, 1], [1, 2]])}, "long integers"),
        ({"coupling": torch.tensor([1.0, -1.0])}, "coupling must be >= 0"),
        ({"coupling": torch.ones(3)}, "3 edges"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    given = {"unary": torch.zeros(3, 2), "edges": torch.tensor([[0, 1], [1, 2]]), "coupling": torch.ones(2)} | changes
    with pytest.raises(ValueError, match=message):
        PottsField(**given)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ((torch.zeros(4, dtype=torch.long),), "shape"),
        ((torch.zeros(3),), "integers"),
        ((torch.tensor([0, 2, 0]),), "from 0 to 1"),
        ((None, torch.ones(3, dtype=torch.bool)), "without labels"),
    ],
)
def test_what_is_known_must_fit(known, message):
    field = PottsField(torch.zeros(3, 2), torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(ValueError, match=message):
        field.marginals(*known)


def test_large_tables_are_refused():
    field = PottsField(torch.zeros(30, 2), torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="2\\^30 labellings"):
        field.log_partition()

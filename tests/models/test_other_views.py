"""Boltzmann machines, maximum entropy, several heads, context vectors and doubly normalised attention as docs/mathematics.md,
section 4.4 (4.12 to 4.14), section 4.5 (4.15, 4.16), section 4.6 (4.17 to 4.19), section 4.7 (4.20 to 4.23) and section 6 (6.5, 6.6) derive them.

Each derivation against sums over all states by hand, loops, or an optimiser that knows nothing of it.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from strategies import generator
from tolerances import assert_equal, assert_never_falls

from probtx_pyro import models, nn
from probtx_pyro.inference import adapt

N, D = 4, 3


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed))


STATES = {  # what the hidden units may be together, and A, A' of one of them
    "softmax": (list(map(tuple, torch.eye(N).tolist())), None, None),
    "binary": (list(itertools.product([0.0, 1.0], repeat=N)), lambda t: math.log((1 + math.exp(t)) / 2), lambda t: 1 / (1 + math.exp(-t))),
    "spins": (list(itertools.product([-1.0, 1.0], repeat=N)), lambda t: math.log(math.cosh(t)), math.tanh),
}  # fmt: skip


@pytest.mark.parametrize("kind", STATES)
def test_hidden_units_sum_out_to_attention_or_to_a_layer_by_hand(kind):
    """A sum over all states of the hidden units, the measure of their sums, and the layer."""
    patterns, state = normal(N, D), normal(D, seed=1)
    states, log_moment, slope = STATES[kind]
    locations = torch.tensor([[sum(h * float(x[d]) for h, x in zip(hidden, patterns, strict=True)) for d in range(D)] for hidden in states])  # fmt: skip
    weights = [math.exp(sum(float(a * b) for a, b in zip(row, state, strict=True))) for row in locations]
    weights = [w / (len(states) if log_moment else 1) for w in weights]
    total = math.log(sum(weights))
    mean = sum(w * row for w, row in zip(weights, locations, strict=True)) / sum(weights)

    log_weights = torch.full((len(states),), -math.log(len(states)) if log_moment else 0.0)
    measure = models.LogNormalizer(locations, log_weights=log_weights)
    assert_equal(measure.log_normalizer(state[None])[0], torch.tensor(total))
    assert_equal(measure.mean(state[None])[0], mean)
    scores = [float(x @ state) for x in patterns]
    if log_moment:
        hidden, layer = [slope(t) for t in scores], sum(map(log_moment, scores))
    else:
        hidden, layer = torch.tensor(scores).softmax(0).tolist(), math.log(sum(map(math.exp, scores)))
    assert_equal(torch.tensor(layer), torch.tensor(total))
    assert_equal(sum(h * x for h, x in zip(hidden, patterns, strict=True)), mean)
    expected = [sum(w * s[n] for w, s in zip(weights, states, strict=True)) / sum(weights) for n in range(N)]
    assert_equal(torch.tensor(hidden), torch.tensor(expected))  # the mean of a hidden unit given the visible ones


def test_a_machine_with_one_softmax_unit_is_the_hopfield_energy():
    """-log p(s) less β E(s) is the same for all visible states."""
    patterns, states, beta = normal(N, D), normal(5, D, seed=1), 1.7
    hidden = torch.tensor([math.log(sum(math.exp(beta * float(x @ s)) for x in patterns)) for s in states])
    log_p = hidden - 0.5 * beta * states.square().sum(-1)
    apart = -log_p - beta * models.Hopfield(patterns, beta).energy(states)
    assert_equal(apart - apart[0], torch.zeros(5), log_p)


def test_gaussian_hidden_units_make_the_ising_energy_and_linear_attention():
    """The mean over Gaussian units by quadrature: exact for exp of these scores to far below rounding with 80 nodes."""
    patterns = 0.4 * normal(N, D)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for signs in itertools.product([-1.0, 1.0], repeat=D):
        s = torch.tensor(signs)
        scores = [float(x @ s) for x in patterns]
        found = [(weights * np.exp(nodes * t)) / math.sqrt(2 * math.pi) for t in scores]
        moments = [(terms.sum(), (terms * nodes).sum() / terms.sum()) for terms in found]
        assert_equal(torch.tensor(sum(math.log(m) for m, _ in moments)), 0.5 * s @ (patterns.T @ patterns) @ s, operations=256)  # fmt: skip
        linear = (s @ patterns.T) @ patterns  # attention without a softmax and a denominator, values = keys
        assert_equal(sum(mean * x for (_, mean), x in zip(moments, patterns, strict=True)), linear, operations=256)


def test_a_transformers_own_fully_connected_layer_is_no_gradient():
    """A gradient has a symmetric Jacobian, and that of a convex function rises: two matrices and the GELU break either."""
    widen, narrow, state = normal(N, D), normal(D, N, seed=1), normal(D, seed=2)

    def skew(out, activation):
        jacobian = torch.autograd.functional.jacobian(lambda s: out @ activation(widen @ s), state)
        return (jacobian - jacobian.T).abs().max()

    assert_equal(skew(widen.T, torch.sigmoid), torch.zeros(()))
    assert skew(narrow, torch.sigmoid) > 0.1
    grid = torch.linspace(-5, 5, 101)
    assert (torch.sigmoid(grid).diff() > 0).all() and torch.nn.functional.gelu(grid).diff().min() < -0.01
    units = torch.linspace(0, 6, 601)  # the best of them for each score is the ReLU, to half their distance
    best = units[(units * grid.unsqueeze(-1) - units.square() / 2).argmax(-1)]
    assert (best - torch.relu(grid)).abs().max() <= 0.005 + 1e-12


def ising_bound(couplings, means):
    up = (1 + means) / 2
    entropy = torch.special.entr(up) + torch.special.entr(1 - up)
    return 0.5 * means @ couplings @ means + 0.5 * (couplings.diagonal() * (1 - means**2)).sum() + entropy.sum()


def test_mean_field_of_the_ising_model_climbs_a_bound_by_tanh_of_linear_attention():
    """A bound of the sum over all states."""
    patterns = normal(N, D)
    couplings = patterns.T @ patterns
    energies = [0.5 * torch.tensor(s) @ couplings @ torch.tensor(s) for s in itertools.product([-1.0, 1.0], repeat=D)]
    total, means = torch.stack(energies).logsumexp(0), 0.1 * normal(D, seed=1)
    trace = [ising_bound(couplings, means)]
    for _ in range(200):
        for i in range(D):
            heard = (means @ patterns.T) @ patterns
            means = means.clone()
            means[i] = torch.tanh(heard[i] - couplings[i, i] * means[i])
            trace.append(ising_bound(couplings, means))
    assert_never_falls(torch.stack(trace), couplings)
    assert trace[0] + 1e-3 < trace[-1] < total  # it has climbed, and spins that depend on each other leave a gap
    means.requires_grad_()
    (slope,) = torch.autograd.grad(ising_bound(couplings, means), means)
    assert_equal(slope * (1 - means.detach() ** 2), torch.zeros(D), couplings)


@pytest.mark.parametrize("weighted", [True, False])
def test_attention_is_the_largest_entropy_of_its_mean_by_another_optimiser(weighted):
    """What the optimiser lacks in entropy is its divergence from attention; and it lacks next to nothing."""
    points, log_prior = normal(6, 2), normal(6, seed=1) if weighted else torch.zeros(6)
    base, eta = models.LogNormalizer(points, log_weights=log_prior), normal(1, 2, seed=2)
    attention, mean = base.weights(eta)[0], base.mean(eta)[0]

    def negative(p):
        return float((p * (np.log(p) - log_prior.numpy())).sum())

    constraints = [
        {"type": "eq", "fun": lambda p: points.numpy().T @ p - mean.numpy(), "jac": lambda p: points.numpy().T},
        {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones((1, 6))},
    ]
    found = minimize(
        negative, np.full(6, 1 / 6), jac=lambda p: np.log(p) - log_prior.numpy() + 1, method="SLSQP",
        bounds=[(1e-12, 1)] * 6, constraints=constraints, options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    violated = max(abs(c["fun"](found.x)).max() for c in constraints)
    p, largest = torch.tensor(found.x), base.entropy(eta)[0]
    divergence = (p * (p / attention).log()).sum()
    # off by what the weights miss of their mean and sum, times the multipliers of these, and by rounding
    slack = violated * float(eta.abs().sum() + base.log_normalizer(eta).abs()) + 64 * torch.finfo(p.dtype).eps
    assert abs(largest - divergence + negative(found.x)) < slack < 1e-10
    # its last step changed the entropy by less than 1e-14, and its steps shrink faster than geometrically; a hundred thousand for safety
    assert found.success and divergence < 1e-9
    dual = base.conjugate(mean[None])
    assert dual.converged.all() and abs(dual.value[0] + largest) < 1e-9
    uniform = torch.full((6,), 1 / 6)
    assert (uniform * (log_prior - uniform.log())).sum() != pytest.approx(float(largest))  # the mean does constrain


def test_a_sum_of_log_normalisers_is_one_of_all_sums_of_units():
    """Two heads of three units, and the nine sums of one unit from each."""
    keys, maps, eta = normal(2, 3, 2), normal(2, D, 2, seed=1), normal(5, D, seed=2)
    placed = [keys[c] @ maps[c].T for c in range(2)]
    heads = [models.LogNormalizer(x) for x in placed]
    joint = models.LogNormalizer(torch.stack([a + b for a, b in itertools.product(*placed)]))
    assert_equal(joint.log_normalizer(eta), sum(head.log_normalizer(eta) for head in heads))
    assert_equal(joint.mean(eta), sum(head.mean(eta) for head in heads))
    assert_equal(joint.covariance(eta), sum(head.covariance(eta) for head in heads), operations=256)
    mixture = models.LogNormalizer(torch.cat(placed))  # one softmax over both heads is another layer
    assert (mixture.mean(eta) - joint.mean(eta)).abs().max() > 0.1


def test_a_layer_of_several_heads_is_the_mean_of_a_product_of_assignments():
    """Every joint assignment of two heads, of a layer whose matrices are not tied."""
    torch.manual_seed(0)
    layer = nn.SoftmaxAttention(4, 2, bias=False, batch_first=True).double()
    x, units = normal(1, 2, 4), normal(1, 3, 4, seed=1)
    output, weights = layer(x, units, units, average_attn_weights=False)
    values = (units[0] @ layer.in_proj_weight[8:].T).unflatten(-1, (2, 2))
    maps = layer.out_proj.weight.unflatten(-1, (2, 2))
    for i in range(2):
        joint = list(itertools.product(range(3), repeat=2))
        probability = torch.stack([weights[0, 0, i, a] * weights[0, 1, i, b] for a, b in joint])
        answers = torch.stack([maps[:, 0] @ values[a, 0] + maps[:, 1] @ values[b, 1] for a, b in joint])
        assert_equal(output[0, i], probability @ answers)
        spread = torch.zeros(4, 4)
        for c in range(2):
            w, mu = weights[0, c, i], values[:, c]
            own = sum(w[j] * torch.outer(mu[j], mu[j]) for j in range(3)) - torch.outer(w @ mu, w @ mu)
            spread = spread + maps[:, c] @ own @ maps[:, c].T
        centered = answers - output[0, i]
        assert_equal(spread, (probability * centered.T) @ centered)


def test_descent_of_the_hopfield_energy_damps_what_a_residual_layer_adds():
    patterns, state, beta, rate = normal(N, D), normal(1, D, seed=1), 1.3, 0.3
    weights = [math.exp(beta * float(x @ state[0])) for x in patterns]
    attention = sum(w * x for w, x in zip(weights, patterns, strict=True)) / sum(weights)
    free = state.clone().requires_grad_()
    (slope,) = torch.autograd.grad(models.Hopfield(patterns, beta).energy(free).sum(), free)
    assert_equal(state - rate * slope, (1 - rate) * state + rate * attention)
    residual = models.LogNormalizer(patterns, torch.eye(D)).mean(beta * state)  # the quadratic term with the other sign
    assert_equal(residual, beta * state + attention)


def test_the_mode_of_a_context_explains_the_mean_of_its_words():
    """By an optimiser of the log posterior, in sums over words."""
    vectors, words, precision = normal(5, 2), [0, 3, 3, 1, 4, 3], 0.7

    def loss(c):
        scores = [math.exp(sum(float(a) * b for a, b in zip(x, c, strict=True))) for x in vectors]
        return -sum(math.log(scores[w] / sum(scores)) for w in words) + 0.5 * precision * sum(a * a for a in c)

    found = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
    context = torch.tensor(found.x)
    left = vectors[words].mean(0) - models.LogNormalizer(vectors).mean(context[None])[0]
    # the simplex ends where the loss is flat to rounding, 1e-15 of about 8: the square root of that off, with room for its slope
    torch.testing.assert_close(left, precision / len(words) * context, rtol=0, atol=1e-6)
    assert context.norm() > 0.1


def test_hidden_states_that_are_draws_have_the_normaliser_of_their_distribution_by_all_draws():
    """Every draw of three points from four."""
    points, shares, eta = normal(4, 2), torch.tensor([0.1, 0.2, 0.3, 0.4]), normal(1, 2, seed=1)
    terms = [math.exp(sum(float(a * b) for a, b in zip(x, eta[0], strict=True))) for x in points]
    draws = list(itertools.product(range(4), repeat=3))
    chances = [math.prod(float(shares[i]) for i in draw) for draw in draws]
    found = [sum(terms[i] for i in draw) / 3 for draw in draws]
    mean = sum(p * z for p, z in zip(chances, found, strict=True))
    variance = sum(p * (z - mean) ** 2 for p, z in zip(chances, found, strict=True))
    base = models.LogNormalizer(points, log_weights=shares.log())
    once, twice = base.log_normalizer(eta)[0].exp(), base.log_normalizer(2 * eta)[0].exp()
    assert_equal(once, torch.tensor(mean))
    assert_equal((twice / once**2 - 1) / 3, torch.tensor(variance / mean**2), twice / once**2)
    spread = torch.tensor([[2.0, 0.6], [0.6, 1.0]])
    one = models.LogNormalizer(normal(1, 2, seed=2), spread)
    bracket = one.log_normalizer(2 * eta) - 2 * one.log_normalizer(eta)
    assert_equal(bracket[0], eta[0] @ spread @ eta[0], one.log_normalizer(2 * eta))


WALK = 0.5 * torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 2.0], [1.0, 2.0, 3.0]], dtype=torch.float64)  # min(s, t)


@pytest.mark.parametrize("growth", [0.0, 0.4])
def test_contexts_that_walk_at_random_integrate_out_to_vector_spins(growth):
    """All sentences of three words of one feature; contexts by quadrature, exact for these to far below rounding with 50 nodes."""
    vectors, sentences = [-0.9, 0.3, 1.1], list(itertools.product(range(3), repeat=3))
    couplings = (WALK.inverse() + growth * torch.eye(3)).inverse()
    nodes, weights = np.polynomial.hermite_e.hermegauss(50)
    steps = torch.tensor(np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 3))
    mass = torch.tensor(np.einsum("i,j,k->ijk", weights, weights, weights).reshape(-1))
    contexts = steps @ torch.linalg.cholesky(WALK).T
    mass = mass * (-0.5 * growth * contexts.square().sum(-1)).exp()
    by_contexts = [float((mass * (contexts @ torch.tensor([vectors[w] for w in words])).exp()).sum()) for words in sentences]  # fmt: skip
    by_spins = [
        math.exp(0.5 * sum(float(couplings[s, t]) * vectors[a] * vectors[b] for s, a in enumerate(words) for t, b in enumerate(words)))
        for words in sentences
    ]  # fmt: skip
    shares = [torch.tensor(each) / sum(each) for each in (by_contexts, by_spins)]
    assert_equal(*shares, operations=1024)
    assert (shares[0].max() / shares[0].min()) > 2


def test_mean_field_of_vector_spins_is_attention_to_the_vocabulary():
    """A bound of the sum over all sentences, which one position after the other climbs."""
    vectors, positions = normal(4, 2), range(3)
    energy = [
        0.5 * sum(WALK[s, t] * (vectors[a] @ vectors[b]) for s, a in enumerate(words) for t, b in enumerate(words))
        for words in itertools.product(range(4), repeat=3)
    ]
    total = torch.stack(energy).logsumexp(0)
    units = [models.LogNormalizer(vectors, log_weights=0.5 * WALK[t, t] * vectors.square().sum(-1)) for t in positions]
    shares = [torch.full((4,), 0.25)] * 3
    trace = []
    for sweep in range(15):
        for t in positions:
            means = [share @ vectors for share in shares]
            field = sum(WALK[s, t] * means[s] for s in positions if s != t)
            if sweep:
                shares[t] = units[t].weights(field[None])[0]
                assert_equal(units[t].mean(field[None])[0], shares[t] @ vectors)
            pairs = sum(0.5 * WALK[s, r] * (shares[s] @ vectors) @ (shares[r] @ vectors) for s in positions for r in positions if s != r)  # fmt: skip
            own = sum(0.5 * WALK[s, s] * shares[s] @ vectors.square().sum(-1) for s in positions)
            trace.append(pairs + own + sum(torch.special.entr(share).sum() for share in shares))
    assert_never_falls(torch.stack(trace), total)
    assert trace[0] + 1e-3 < trace[-1] < total


def doubly_normalised(queries, keys, values, alpha):
    """Loops over scalars: first over the queries, then over the keys."""
    rows, columns = range(len(queries)), range(len(keys))
    score = [[math.exp(alpha * sum(float(a * b) for a, b in zip(q, k, strict=True))) for k in keys] for q in queries]
    share = [[score[i][j] / sum(score[l][j] for l in rows) for j in columns] for i in rows]  # noqa: E741
    weight = [[share[i][j] / sum(share[i]) for j in columns] for i in rows]
    answer = [[sum(weight[i][j] * float(values[j][d]) for j in columns) for d in range(values.shape[-1])] for i in rows]
    return torch.tensor(weight), torch.tensor(answer)


def test_doubly_normalised_attention_is_a_step_of_em_on_the_keys():
    """E-step and M-step of a mixture whose centers are the queries and whose points are the keys."""
    queries, keys, values, alpha = normal(3, D), normal(5, D, seed=1), normal(5, 2, seed=2), 0.8
    weight, answer = doubly_normalised(queries, keys, values, alpha)
    centers = models.GaussianMixture.linked(queries, queries, alpha, 0.0)
    share = centers.attention(keys).T
    found = share / share.sum(-1, keepdim=True)
    assert_equal(found, weight)
    assert_equal(found @ values, answer)
    posterior = models.bayesian(centers, keys=models.FLAT)
    moved = adapt(posterior, keys, num_steps=1, progress=False)
    assert_equal(moved.formulation.keys, doubly_normalised(queries, keys, keys, alpha)[1])
    assert moved.formulation.log_evidence(keys).sum() > centers.log_evidence(keys).sum()


def test_queries_of_unit_length_make_it_soft_k_means():
    queries, keys, gamma = torch.nn.functional.normalize(normal(3, D), dim=-1), normal(5, D, seed=1), 0.7
    moved = models.SoftKMeans(queries, gamma).fit(keys, num_steps=1)
    assert_equal(moved.centers, doubly_normalised(queries, keys, keys, 2 * gamma)[1])


def test_no_key_is_explained_away():
    """Softmax attention all but forgets a key that every query finds worse than another."""
    queries, keys = normal(4, D), torch.cat([normal(5, D, seed=1), torch.zeros(1, D)])
    queries, keys = torch.cat([queries, 3 + queries], -1), torch.cat([keys, torch.full((6, D), 2.0)], -1)
    keys[-1, D:] = -2.0
    weight, _ = doubly_normalised(queries, keys, keys, 1.0)
    softmax = (queries @ keys.T).softmax(-1)
    assert softmax.sum(0).min() < 1e-6 < 1 / 6 <= weight.sum(0).min()

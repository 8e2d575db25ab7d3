"""Every option of the authors' module (apple/ml-probabilistic-attention) has an equivalent here.

Their forward pass, from its description: weights ∝ π exp(-α_j|q_i - ξ_j|²/2 - β_j|v_i - μ_j|²/2), output Σ w μ, without the
normalisers of unequal precisions; so with unequal ones our prior carries ``-(D/2) log α_j`` to reproduce it (erratum 1).
Position terms enter theirs as further squared distances |q_i - r_ij|² and |ξ_j - s_ij|².
"""

import pytest
import torch
from pyro.distributions import Normal
from tolerances import assert_equal

from probtx_pyro import inference, models

G = torch.Generator().manual_seed(1)
N, D, M = 6, 3, 2
QUERIES, KEYS = torch.randn(N, D, generator=G, dtype=torch.float64), torch.randn(N, D, generator=G, dtype=torch.float64)
VALUES, ANSWERS = (
    torch.randn(N, M, generator=G, dtype=torch.float64),
    torch.randn(N, M, generator=G, dtype=torch.float64),
)
PRIOR = torch.randn(N, N, generator=G, dtype=torch.float64).log_softmax(-1)
ALPHA, BETA = (
    torch.rand(N, generator=G, dtype=torch.float64) + 0.5,
    torch.rand(N, generator=G, dtype=torch.float64) + 0.5,
)
ON_QUERIES, ON_KEYS = (
    torch.randn(N, N, D, generator=G, dtype=torch.float64),
    torch.randn(N, N, D, generator=G, dtype=torch.float64),
)
MASK = torch.rand(N, N, generator=G, dtype=torch.float64) < 0.7
MASK[:, 0] = True


def theirs(
    alpha, beta=None, v=None, log_prior=None, mask=None, keys=KEYS, values=VALUES, r=None, s=None, magnitude=False
):
    """Loops over pairs; no line of theirs."""
    out = []
    for i in range(N):
        row = []
        for j in range(N):
            a = float(alpha[j]) if alpha.dim() else float(alpha)
            e = -0.5 * a * (QUERIES[i] - keys[j]).square().sum()
            if r is not None:
                e = e - 0.5 * a * (QUERIES[i] - r[i, j]).square().sum()
            if s is not None:
                e = e - 0.5 * a * (keys[j] - s[i, j]).square().sum()
            if v is not None:
                b = float(beta[j]) if beta.dim() else float(beta)
                e = e - 0.5 * b * (v[i] - values[j]).square().sum()
            if log_prior is not None:
                e = e + log_prior[i, j]
            if magnitude:
                e = e + 0.5 * a * keys[j].square().sum()
                e = e + (0.5 * a * r[i, j].square().sum() if r is not None else 0)
                e = e + (0.5 * a * (keys[j].square().sum() + s[i, j].square().sum()) if s is not None else 0)
            row.append(e if mask is None or mask[i, j] else torch.tensor(-torch.inf))
        out.append(torch.stack(row).softmax(-1))
    w = torch.stack(out)
    return w, w @ values


def unnormalised(log_prior=PRIOR, alpha=ALPHA, beta=None):
    """A prior that undoes the normalisers of unequal precisions."""
    logits = log_prior - 0.5 * D * alpha.log() - (0.5 * M * beta.log() if beta is not None else 0)
    return logits.log_softmax(-1)


def test_shared_query_precision_and_a_given_prior():
    mixture = models.GaussianMixture(KEYS, VALUES, 0.7, log_prior=PRIOR)
    assert_equal(mixture.expected_outputs(QUERIES), theirs(torch.tensor(0.7), log_prior=PRIOR)[1])


def test_query_precision_for_each_unit():
    mixture = models.GaussianMixture(KEYS, VALUES, ALPHA, log_prior=unnormalised())
    assert_equal(mixture.expected_outputs(QUERIES), theirs(ALPHA, log_prior=PRIOR)[1])


@pytest.mark.parametrize("beta", [torch.tensor(0.6, dtype=torch.float64), BETA], ids=["shared", "per unit"])
def test_an_initial_answer_with_shared_or_unequal_value_precision(beta):
    per_unit = beta if beta.dim() else None
    mixture = models.GaussianMixture(KEYS, VALUES, ALPHA, beta, unnormalised(beta=per_unit))
    w, output = theirs(ALPHA, beta, ANSWERS, PRIOR)
    assert_equal(mixture.attention(QUERIES, ANSWERS), w)
    assert_equal(mixture.attention(QUERIES, ANSWERS) @ VALUES, output)
    if per_unit is None:  # then that output is one EM step; with unequal β the exact step weighs by β_j (PT 15)
        assert_equal(mixture.map_outputs(QUERIES, ANSWERS, num_steps=1), output)


def test_linked_prior_is_their_magnitude_term():
    mixture = models.GaussianMixture.linked(KEYS, VALUES, 0.7)
    assert_equal(mixture.expected_outputs(QUERIES), theirs(torch.tensor(0.7), magnitude=True)[1])


@pytest.mark.parametrize("theta", [0.0, 2.0])
def test_key_adaptation_without_and_with_a_prior(theta):
    alpha = torch.tensor(0.7)
    mixture = models.GaussianMixture(KEYS, VALUES, alpha, log_prior=PRIOR)
    priors = dict(keys=Normal(KEYS, theta**-0.5)) if theta else dict(keys=models.FLAT)
    adapted = inference.adapt(models.bayesian(mixture, **priors), QUERIES, num_steps=1).formulation
    w, _ = theirs(alpha, log_prior=PRIOR)
    weight = alpha if theta else 1.0
    keys = (theta * KEYS + weight * w.T @ QUERIES) / (theta + weight * w.sum(0)[:, None])
    assert_equal(adapted.keys, keys)
    assert_equal(adapted.expected_outputs(QUERIES), theirs(alpha, log_prior=PRIOR, keys=keys)[1])


@pytest.mark.parametrize("theta", [0.0, 2.0])
def test_annotated_answers_without_and_with_a_prior(theta):
    alpha, beta = torch.tensor(0.7), torch.tensor(1e-9)
    observed = torch.tensor([True, False, True, False, False, True])
    mixture = models.GaussianMixture(KEYS, VALUES, alpha, beta, PRIOR)
    # theirs leaves the answers out of the weights of this update: the limit β -> 0 of ours, the prior's strength in units of β
    priors = dict(values=Normal(VALUES, (theta * 1e-9) ** -0.5)) if theta else dict(values=models.FLAT)
    adapted = inference.adapt(models.bayesian(mixture, **priors), QUERIES, ANSWERS, observed, num_steps=1).formulation
    w, _ = theirs(alpha, log_prior=PRIOR)
    w = w * observed[:, None]
    values = (theta * VALUES + w.T @ ANSWERS) / (theta + w.sum(0)[:, None])
    assert (adapted.values - values).abs().max() < 1e-7  # first order in β = 1e-9


@pytest.mark.parametrize("magnitude", [False, True])
def test_position_terms_on_queries(magnitude):
    """|q - ξ_j|² + |q - r_ij|² = 2|q - (ξ_j + r_ij)/2|² + |ξ_j - r_ij|²/2: a mean that depends on (i, j), twice as precise."""
    alpha = torch.tensor(0.7)
    w, output = theirs(alpha, r=ON_QUERIES, magnitude=magnitude)
    if magnitude:  # α (ξ_j + r_ij)·q: the linked prior of those means
        mixture = models.GaussianMixture.linked(KEYS + ON_QUERIES, VALUES.expand(N, N, M), alpha)
    else:
        offset = -0.25 * alpha * (KEYS - ON_QUERIES).square().sum(-1)
        mixture = models.GaussianMixture(
            (KEYS + ON_QUERIES) / 2, VALUES.expand(N, N, M), 2 * alpha, log_prior=offset.log_softmax(-1).unsqueeze(-2)
        )
    asked = QUERIES.unsqueeze(-2)
    assert_equal(mixture.attention(asked).squeeze(-2), w)
    assert_equal(mixture.expected_outputs(asked).squeeze(-2), output)


@pytest.mark.parametrize("magnitude", [False, True])
def test_position_terms_on_keys(magnitude):
    """A term of (i, j) alone is a log prior: -α|ξ_j - s_ij|²/2, or α ξ_j·s_ij with the linked prior."""
    alpha = torch.tensor(0.7)
    if magnitude:
        mixture = models.GaussianMixture.linked(
            KEYS, VALUES, alpha, log_prior=alpha * torch.einsum("jd,ijd->ij", KEYS, ON_KEYS)
        )
    else:
        logits = -0.5 * alpha * (KEYS - ON_KEYS).square().sum(-1)
        mixture = models.GaussianMixture(KEYS, VALUES, alpha, log_prior=logits.log_softmax(-1))
    assert_equal(mixture.expected_outputs(QUERIES), theirs(alpha, s=ON_KEYS, magnitude=magnitude)[1])


@pytest.mark.parametrize("linked", [False, True])
def test_a_mask_hides_what_theirs_hides(linked):
    mask = torch.zeros(N, N).masked_fill(~MASK, -torch.inf)
    if linked:
        mixture = models.GaussianMixture.linked(KEYS, VALUES, 0.7, log_prior=mask)
    else:
        mixture = models.GaussianMixture(KEYS, VALUES, 0.7, log_prior=mask.log_softmax(-1))
    w, output = theirs(torch.tensor(0.7), mask=MASK, magnitude=linked)
    assert_equal(mixture.attention(QUERIES), w)
    assert_equal(mixture.expected_outputs(QUERIES), output)

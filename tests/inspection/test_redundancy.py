"""Diagnostics of attention against scipy, loops and cases known on paper."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial.distance
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from probtx_pyro import inspection

EPS = np.finfo(float).eps
CLOSE = {"rtol": 0, "atol": 1e-7}  # a square root of a difference of entropies that cancel: sqrt(64 eps)


def rows(seed, *shape, sharpness=1.0):
    logits = sharpness * np.random.default_rng(seed).normal(size=shape)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (2, 3, 4, 6)])
def test_spectrum_is_that_of_scipy(shape):
    attention = rows(0, *shape, sharpness=3.0)
    found = inspection.rank_spectrum(attention)
    for index in np.ndindex(*shape[:-2]):
        expected = scipy.linalg.svdvals(attention[index])
        np.testing.assert_allclose(found[index], expected / expected[0], atol=64 * EPS)


@given(seed=st.integers(0, 50), share=st.floats(0.01, 1.0))
def test_rank_is_the_first_approximation_that_explains_enough(seed, share):
    attention = rows(seed, 6, 5, sharpness=3.0)
    u, s, v = scipy.linalg.svd(attention, full_matrices=False)
    left = [((attention - (u[:, :k] * s[:k]) @ v[:k]) ** 2).sum() / (attention**2).sum() for k in range(6)]
    rank = int(inspection.attention_rank(attention, share))
    assert left[rank] <= 1 - share + 64 * EPS
    assert left[rank - 1] > 1 - share - 64 * EPS


def test_entropies_are_those_of_scipy():
    attention = rows(1, 2, 4, 6)
    spectra = inspection.rank_spectrum(attention)
    np.testing.assert_allclose(inspection.effective_keys(attention), np.exp(scipy.stats.entropy(attention, axis=-1)))
    np.testing.assert_allclose(inspection.effective_rank(attention), np.exp(scipy.stats.entropy(spectra, axis=-1)))


@pytest.mark.parametrize("size", [1, 4, 10, 33])
def test_uniform_attention_has_rank_one_and_the_identity_every_rank(size):
    uniform, identity = np.full((size, size), 1 / size), np.eye(size)
    for share in (0.3, 0.9, 1.0):
        assert inspection.attention_rank(uniform, share) == 1
        assert inspection.attention_rank(identity, share) == np.ceil(round(share * size, 9))
    np.testing.assert_allclose(inspection.effective_rank([uniform, identity]), [1, size], rtol=1e-6)
    np.testing.assert_allclose(inspection.effective_keys(uniform), size)
    np.testing.assert_allclose(inspection.effective_keys(identity), 1)


def test_two_kinds_of_queries_have_rank_two():
    two_kinds_of_queries = np.repeat(np.eye(2), 5, 0)
    assert inspection.attention_rank(two_kinds_of_queries) == 2
    np.testing.assert_allclose(inspection.effective_rank(two_kinds_of_queries), 2)


def test_distances_are_those_of_scipy_pair_by_pair():
    attention = rows(2, 2, 3, 4, 5, sharpness=2.0)
    found = inspection.head_distances(attention)
    for batch, one, other in np.ndindex(2, 3, 3):
        pairs = zip(attention[batch, one], attention[batch, other], strict=True)
        expected = np.mean([scipy.spatial.distance.jensenshannon(p, q, base=2) for p, q in pairs])
        np.testing.assert_allclose(found[batch, one, other], expected, **CLOSE)


def test_any_distance_between_rows():
    attention = rows(3, 3, 4, 5)
    found = inspection.head_distances(attention, lambda p, q: np.linalg.norm(p - q, axis=-1))
    expected = [[np.linalg.norm(p - q, axis=-1).mean() for q in attention] for p in attention]
    np.testing.assert_allclose(found, expected, atol=64 * EPS)


def test_equal_heads_are_at_distance_zero_and_strangers_at_one():
    one = rows(4, 6, 8)
    np.testing.assert_allclose(inspection.head_distances([one, one]), np.zeros((2, 2)), **CLOSE)
    left, right = np.pad(one, ((0, 0), (0, 8))), np.pad(one, ((0, 0), (8, 0)))
    np.testing.assert_allclose(inspection.head_distances([left, right]), 1 - np.eye(2))


@given(seed=st.integers(0, 30))
def test_jensen_shannon_is_a_metric(seed):
    p, q, r = rows(seed, 3, 6, sharpness=4.0)
    distance = inspection.jensen_shannon
    assert 0 <= distance(p, q) == distance(q, p) <= 1 + 64 * EPS
    assert distance(p, r) <= distance(p, q) + distance(q, r) + CLOSE["atol"]


def test_queries_without_units_do_not_count():
    attention = rows(5, 2, 4, 5)
    masked = attention.copy()
    masked[1, 0] = 0.0
    np.testing.assert_allclose(
        inspection.head_distances(masked), inspection.head_distances(attention[:, 1:]), atol=64 * EPS
    )
    assert inspection.effective_keys(masked)[1, 0] == 0
    nothing = np.zeros((2, 3, 4))
    assert (inspection.rank_spectrum(nothing) == 0).all()
    assert (inspection.attention_rank(nothing) == 0).all()
    assert (inspection.effective_rank(nothing) == 0).all()
    assert (inspection.head_distances(nothing) == 0).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_lower_precision_is_close(dtype):
    attention = rows(6, 2, 16, 16, sharpness=2.0)
    for function in (
        inspection.effective_rank,
        inspection.effective_keys,
        inspection.head_distances,
        inspection.rank_spectrum,
    ):
        expected, found = function(attention), function(attention.astype(dtype))
        np.testing.assert_allclose(found, expected, rtol=64 * np.finfo(dtype).eps, atol=64 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inspection.rank_spectrum([0.5, 0.5]), r"attention must have shape \(..., query, unit\)"),
        (lambda: inspection.head_distances(np.eye(2)), r"attention must have shape \(..., head, query, unit\)"),
        (lambda: inspection.effective_keys(np.ones((2, 2))), "non-negative rows that sum to 1"),
        (lambda: inspection.effective_rank([[1.5, -0.5]]), "non-negative rows that sum to 1"),
        (lambda: inspection.attention_rank([[np.nan, 1.0]]), "attention contains NaN"),
        (lambda: inspection.attention_rank(np.eye(2), 0.0), "share must be above 0"),
        (lambda: inspection.attention_rank(np.eye(2), 90), "share must be above 0"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_diagnostics_import_no_torch():
    code = "import sys; from probtx_pyro import inspection; inspection.rank_spectrum; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"

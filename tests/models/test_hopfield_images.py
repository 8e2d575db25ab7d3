"""Real images come back from what is left of them: 100 stored, a share of the pixels of each set to 0, one step."""

import os

import numpy as np
import pytest
import torch

from probtx_pyro import data, models

STORED = 100


def random_share(share):
    return lambda rng, size: rng.permutation(size)[: round(share * size)]


def lower_half(rng, size):
    return slice(size // 2, size)


def problem(images, seed, erase):
    """100 of the images at random, with pixels in [-1, 1] and then scaled to length 1, and the same with pixels set to 0."""
    rng = np.random.default_rng(seed)
    pixels = 2 * images[rng.permutation(len(images))[:STORED]].reshape(STORED, -1) - 1
    patterns = pixels / np.linalg.norm(pixels, axis=1, keepdims=True)
    queries = patterns.copy()
    for query in queries:
        query[erase(rng, len(query))] = 0.0
    return patterns, queries


def retrieved(patterns, queries, beta, dtype=torch.float64):
    """Which patterns one step finds again: largest error over the pixels of the scaled images below 1e-2."""
    found = models.Hopfield(torch.tensor(patterns, dtype=dtype), beta).retrieve(torch.tensor(queries, dtype=dtype))
    return abs(found.double().cpu().numpy() - patterns).max(1) < 1e-2


@pytest.fixture
def digits():
    pytest.importorskip("sklearn")
    return data.load_digits().images


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_with_a_quarter_erased(dtype, digits):
    """Measured with these seeds: 0.99 to 1, and 0.94 to 0.98 with a half erased, which leaves 32 pixels to tell 100 digits apart."""
    quarter = [retrieved(*problem(digits, seed, random_share(0.25)), 1e3, dtype).mean() for seed in range(8)]
    half = [retrieved(*problem(digits, seed, random_share(0.5)), 1e3, dtype).mean() for seed in range(8)]
    assert min(quarter) >= 0.99 and 0.94 <= np.mean(half) < np.mean(quarter)
    assert (
        retrieved(*problem(digits, 0, random_share(0.25)), 10.0, dtype).mean() == 0
    )  # averages of many, at a low beta


@pytest.mark.parametrize("erase", [random_share(0.5), lower_half])
@pytest.mark.parametrize("beta", [100.0, 1000.0])
def test_what_is_separated_is_retrieved(beta, erase, digits):
    """A rival whose score is lower by δ has at most exp(-β δ) of the own weight, and no pixel is further than 2 max|x| from another."""
    patterns, queries = problem(digits, 0, erase)
    scores = queries @ patterns.T
    own = scores.diagonal().copy()
    np.fill_diagonal(scores, -np.inf)
    bound = 2 * abs(patterns).max() * (STORED - 1) * np.exp(-beta * (own - scores.max(1)))
    certain = bound < 1e-2
    assert 0.05 < certain.mean() < 0.98  # the theorem says something here, and not all
    assert retrieved(patterns, queries, beta)[certain].all()


def test_fashion_images_with_a_half_erased():
    """The acceptance figure, at least 99 %; measured: all of them, with every seed. A lower half is harder: 81 to 97 %."""
    images = fashion()
    for seed in range(5):
        for dtype in (torch.float32, torch.float64):
            assert retrieved(*problem(images, seed, random_share(0.5)), 1e3, dtype).mean() >= 0.99
    assert retrieved(*problem(images, 0, random_share(0.5)), 10.0).mean() == 0
    lower = [retrieved(*problem(images, seed, lower_half), 1e3).mean() for seed in range(5)]
    assert 0.8 < np.mean(lower) < 0.97


def test_fashion_images_whose_lower_half_is_known_to_be_erased():
    """Distances between the upper halves leave no doubt: what misled the dot product is the length of other upper halves."""
    patterns, queries = (torch.tensor(x) for x in problem(fashion(), 0, lower_half))
    found = models.GaussianMixture(patterns[:, :392], patterns, 1e3).expected_outputs(queries[:, :392])
    assert ((found - patterns).abs().amax(-1) < 1e-2).all()


def fashion():
    if "PROBTX_DATA" not in os.environ:
        pytest.skip("needs $PROBTX_DATA")
    return data.load_fashion().images

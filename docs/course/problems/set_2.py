"""Problem set 2, adaptation and posteriors. Fill in the functions, then run ``python -m pytest test_set_2.py``.

Shapes: queries (Q, D), keys and prior means of keys (U, D), draws of keys (S, U, D), draws of a number (chain, draw). ``theta`` is the
precision of the prior of a key, ``alpha`` that of the noise of a query; units are equally likely beforehand.
"""

from torch import Generator, Tensor


def adapt_keys(queries: Tensor, attention: Tensor, prior_keys: Tensor, theta: float, alpha: float) -> Tensor:
    """Problem 2.1: the MAP keys given the attention (Q, U); theta = 0 is allowed, also where a unit has no query."""
    raise NotImplementedError("problem 2.1: adapt_keys is still to be written")


def gibbs_keys(
    queries: Tensor, prior_keys: Tensor, theta: float, alpha: float, num_draws: int, generator: Generator
) -> Tensor:
    """Problem 2.3: draws of the keys, (num_draws, U, D): assignments given keys and keys given assignments, in turn."""
    raise NotImplementedError("problem 2.3: gibbs_keys is still to be written")


def predictive_attention(query: Tensor, key_draws: Tensor, alpha: float) -> Tensor:
    """Problem 2.4: p(unit | new query (D,), the queries seen), (U,), from draws of the keys given the queries seen."""
    raise NotImplementedError("problem 2.4: predictive_attention is still to be written")


def split_rhat(draws: Tensor) -> Tensor:
    """Problem 2.5: R-hat of a number, every chain cut into two halves (an even number of draws)."""
    raise NotImplementedError("problem 2.5: split_rhat is still to be written")


def calibration_ranks(truths: Tensor, draws: Tensor) -> Tensor:
    """Problem 2.6: how many of the draws (problem, draw) of each problem lie below its truth (problem,)."""
    raise NotImplementedError("problem 2.6: calibration_ranks is still to be written")

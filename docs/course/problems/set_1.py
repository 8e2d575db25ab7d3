"""Problem set 1, responsibilities and EM. Fill in the functions, then run ``python -m pytest test_set_1.py``.

Shapes: points or queries (N, D), means or keys (K, D), log weights (K,), answers (M,) or (N, M), values (K, M). Precisions are
numbers: the inverse of a variance.
"""

from torch import Tensor


def log_joint(points: Tensor, means: Tensor, log_weights: Tensor, precision: float) -> Tensor:
    """Problem 1.2: log p(cluster) + log p(point | cluster), normalisers included, (N, K)."""
    raise NotImplementedError("problem 1.2: log_joint is still to be written")


def responsibilities(points: Tensor, means: Tensor, log_weights: Tensor, precision: float) -> Tensor:
    """Problem 1.2: p(cluster | point), (N, K), also for points so far away that all densities are zero in float64."""
    raise NotImplementedError("problem 1.2: responsibilities is still to be written")


def em_step(points: Tensor, means: Tensor, log_weights: Tensor, precision: float) -> tuple[Tensor, Tensor, Tensor]:
    """Problem 1.3: new means, log weights and precision (one for all clusters) after one E-step and one M-step."""
    raise NotImplementedError("problem 1.3: em_step is still to be written")


def elbo(guide: Tensor, points: Tensor, means: Tensor, log_weights: Tensor, precision: float) -> Tensor:
    """Problem 1.4: the evidence lower bound of a guide (N, K) in place of the responsibilities; entries may be 0."""
    raise NotImplementedError("problem 1.4: elbo is still to be written")


def linked_log_weights(keys: Tensor, precision: float) -> Tensor:
    """Problem 1.5: the log weights (K,), normalised, under which responsibilities are softmax(precision * keys @ query)."""
    raise NotImplementedError("problem 1.5: linked_log_weights is still to be written")


def em_answer(start: Tensor, attention: Tensor, values: Tensor, value_precision: float, num_steps: int) -> Tensor:
    """Problem 1.6: climb log p(answer | query) by EM from a start (M,), with the attention (K,) of the query alone as weights."""
    raise NotImplementedError("problem 1.6: em_answer is still to be written")

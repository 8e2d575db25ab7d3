"""Problem set 4, the dependency CRF and trained transformers. Fill in the functions, then run ``python -m pytest test_set_4.py``.

A sentence of N words has label scores ``unary`` (N, L) and one channel of arc scores ``ternary`` (L, L): row, the label of a word; column,
the label of its head. There is no root; a word is never its own head. Labels Q(Z) are (N, L), heads Q(H) are (N, N).
"""

from torch import Tensor


def head_update(labels: Tensor, ternary: Tensor) -> Tensor:
    """Problem 4.1: the best Q(H), (N, N), given Q(Z); the diagonal is 0 and rows sum to 1."""
    raise NotImplementedError("problem 4.1: head_update is still to be written")


def label_update(labels: Tensor, heads: Tensor, unary: Tensor, ternary: Tensor) -> Tensor:
    """Problem 4.1: Q(Z) of all words at once, (N, L), given Q(H) and the old Q(Z)."""
    raise NotImplementedError("problem 4.1: label_update is still to be written")


def log_partition(unary: Tensor, ternary: Tensor) -> Tensor:
    """Problem 4.2: log of the sum over all labels and heads, a number; heads summed out, so L ** N terms only."""
    raise NotImplementedError("problem 4.2: log_partition is still to be written")


def elbo(labels: Tensor, heads: Tensor, unary: Tensor, ternary: Tensor) -> Tensor:
    """Problem 4.2: expected score plus the entropies of labels and heads, a number."""
    raise NotImplementedError("problem 4.2: elbo is still to be written")


def tree_log_partition(scores: Tensor, root_scores: Tensor) -> Tensor:
    """Problem 4.3: log of the sum over trees of the product of exp(scores); any number of words may have the root as head.

    ``scores`` (N, N), row the word and column its head, the diagonal to be ignored; ``root_scores`` (N,).
    """
    raise NotImplementedError("problem 4.3: tree_log_partition is still to be written")


def equivalent(slopes: Tensor, log_mask: Tensor, shift: Tensor, precision: float) -> tuple[Tensor, Tensor]:
    """Problem 4.4: locations (U, D) and normalised log weights (U,), displaced by ``shift`` (D,).

    They belong to the mixture with this precision and the attention softmax(log_mask + slopes @ query).
    """
    raise NotImplementedError("problem 4.4: equivalent is still to be written")


def likeliest(queries: Tensor, slopes: Tensor, log_mask: Tensor) -> tuple[Tensor, float]:
    """Problem 4.5: the shift (D,) and the precision of the equivalent mixture under which the queries (Q, D) are likeliest."""
    raise NotImplementedError("problem 4.5: likeliest is still to be written")

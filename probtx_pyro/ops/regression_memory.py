"""Filters of a memory matrix that is a Bayesian regression: prequential moments, states and causal reads.

A memory W (M, F) turns features φ_t into values, ``v_t ~ N(W φ_t, I/β_t)``, and its rows share one covariance C (F, F).
Every function here takes pairs in the order of time and returns a `Filtered`. The chunk forms cost a small number of
matrix products for each chunk of c pairs; the array forms orthogonalise roots, step by step, and keep half of the
digits where the others lose all. docs/mathematics.md, section 8, has the recursions.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._numerics import known


class Pairs(NamedTuple):
    """Pairs of a memory, step by step, broadcast over the leading axes.

    features: (..., T, F). values: (..., T, M), any finite number where absent. precision: of the noise, β_t, (..., T),
    positive, 1 where absent. present: boolean (..., T).
    """

    features: Tensor
    values: Tensor
    precision: Tensor
    present: Tensor

    @property
    def length(self) -> int:
        """T."""
        return self.features.shape[-2]

    def between(self, first: int, last: int) -> "Pairs":
        """Some of the pairs, in the same order."""
        rows = slice(first, last)
        return Pairs(
            self.features[..., rows, :], self.values[..., rows, :], self.precision[..., rows], self.present[..., rows]
        )


class Filtered(NamedTuple):
    """Results of a filter.

    predicted: means of the values given the pairs before them, (..., T, M). variance: of each of their M numbers, (...,
    T). distance: squared error of a pair over its variance, (..., T), 0 where it is absent. mean: of the memory after
    the last pair, (..., M, F). covariance: of each of its rows, (..., F, F).
    reads: mean answers to queries after each pair, (..., T, M), and spread: their variance, (..., T), where there are
    queries. condition: a bound of the condition number that its rounding errors grow with, (...).
    """

    predicted: Tensor
    variance: Tensor
    distance: Tensor
    mean: Tensor
    covariance: Tensor
    reads: Tensor | None
    spread: Tensor | None
    condition: Tensor


def log_density(pairs: Pairs, found: Filtered) -> Tensor:
    """Return ``log N(v_t; predicted, variance I)`` of each pair, 0 where it is absent, (..., T)."""
    density = -0.5 * pairs.values.shape[-1] * (2 * math.pi * found.variance).log() - 0.5 * found.distance
    return torch.where(pairs.present, density, 0.0)


def ends_of_chunks(log_gamma: Tensor | None, length: int, size: int, lowest_log: float) -> Iterator[tuple[int, int]]:
    """Yield chunks of at most ``size`` steps, over which the log of what no problem forgets stays above a bound."""
    lowest = None
    if log_gamma is not None and log_gamma.numel():
        lowest = log_gamma.detach().reshape(-1, log_gamma.shape[-1]).amin(0).tolist()
    first, total = 0, 0.0
    for t in range(length):
        step = 0.0 if lowest is None else lowest[t if len(lowest) > 1 else 0]
        if t > first and (t - first == size or total + step < lowest_log):
            yield first, t
            first, total = t, 0.0
        total += step
    if length:
        yield first, length


def chunks(
    pairs: Pairs, log_gamma: Tensor | None, mean: Tensor, covariance: Tensor, queries: Tensor | None, size: int = 64
) -> Filtered:
    """Filter a memory that stands still, or whose certainty is discounted by γ at every step, by one Cholesky a chunk.

    Parameters
    ----------
    pairs
        T pairs.
    log_gamma
        (..., T or 1), at most 0; None where nothing is forgotten.
    mean, covariance
        Of the rows of the memory before the first step, (..., M, F) and (..., F, F).
    queries
        Features (..., T, F) that are asked after the pair of the same step, None for none.
    size
        Pairs of a chunk, at most.
    """
    rows, condition = Rows(), mean.new_ones(mean.shape[:-2])
    for part in factored(pairs, log_gamma, mean, covariance, size):
        precision, present = part.pairs.precision, part.pairs.present
        answers, doubt = part.read(part.pairs.features, 1)
        own = part.root.diagonal(dim1=-2, dim2=-1).square() / part.decay
        own = torch.where(present, own, doubt + precision.reciprocal())
        reads = None if queries is None else part.read(queries[..., part.steps, :])
        rows.add(answers, own, part.decay * part.scaled.square().sum(-1), reads)
        condition = torch.maximum(condition, part.condition)
        mean, covariance = part.after
    return rows.filtered(pairs, mean, covariance, condition)


class Chunk(NamedTuple):
    """Some steps of a memory that stands still or is discounted, with the Cholesky factor of ``φCφ' + diag(Γ/β)``.

    steps: which. pairs: those of these steps. mean, covariance: of the memory before them. root: the factor L, (..., c,
    c). scaled: ``L⁻¹(v - φm')``, (..., c, M). solved: ``L⁻¹φC``, (..., c, F). decay: Γ, (..., c). after: mean and
    covariance after these steps. condition: a bound of the condition number, inf where there is no factor, (...).
    """

    steps: slice
    pairs: Pairs
    mean: Tensor
    covariance: Tensor
    root: Tensor
    scaled: Tensor
    solved: Tensor
    decay: Tensor
    after: tuple[Tensor, Tensor]
    condition: Tensor

    def read(self, features: Tensor, diagonal: int = 0) -> tuple[Tensor, Tensor]:
        """Mean answers (..., c, M) and their variance (..., c), each from the pairs up to its own;
        with a diagonal of 1 from those before it.
        """
        weights = (self.solved @ features.mT).triu(diagonal)  # (pair s, query i)
        variance = ((features @ self.covariance) * features).sum(-1) - weights.square().sum(-2)
        return features @ self.mean.mT + weights.mT @ self.scaled, variance.clamp_min(0.0) / self.decay


def factored(
    pairs: Pairs, log_gamma: Tensor | None, mean: Tensor, covariance: Tensor, size: int = 64
) -> Iterator[Chunk]:
    """Yield the chunks of `chunks`, each with its Cholesky factor; arguments as there."""
    floor = math.log(1e-6 if mean.dtype == torch.float64 else 1e-2)
    for first, last in ends_of_chunks(log_gamma, pairs.length, size, floor):
        some = pairs.between(first, last)
        here = some.present.unsqueeze(-1)
        kept = torch.where(here, some.features, 0.0)
        decay = torch.ones_like(some.precision)
        if log_gamma is not None:
            part = log_gamma if log_gamma.shape[-1] == 1 else log_gamma[..., first:last]
            decay = part.expand(*part.shape[:-1], last - first).cumsum(-1).exp()
        noise = decay / some.precision
        across = kept @ covariance
        square = across @ kept.mT
        condition = 1 + (square.diagonal(dim1=-2, dim2=-1) / noise).sum(-1)
        root, failed = torch.linalg.cholesky_ex(square + torch.diag_embed(noise))
        error = torch.where(here, some.values - some.features @ mean.mT, 0.0)
        scaled, solved = (torch.linalg.solve_triangular(root, x, upper=False) for x in (error, across))
        condition = condition.masked_fill(failed > 0, math.inf)
        left = covariance - solved.mT @ solved
        after = mean + scaled.mT @ solved, 0.5 * (left + left.mT) / decay[..., -1, None, None]
        yield Chunk(slice(first, last), some, mean, covariance, root, scaled, solved, decay, after, condition)
        mean, covariance = after


def pull_back(
    pairs: Pairs, log_gamma: Tensor, mean: Tensor, precision: Tensor, queries: Tensor | None, size: int = 32
) -> Filtered:
    """Filter a memory that is pulled back to its prior: ``P̂ = γ P + (1 - γ) Λ``, a Cholesky of it at every step.

    Parameters
    ----------
    pairs, log_gamma, queries, size
        As in `chunks`.
    mean, precision
        W_0 (..., M, F) and Λ (..., F, F) of the prior.
    """
    values = pairs.values - pairs.features @ mean.mT
    moment, product = torch.zeros_like(precision), torch.zeros_like(mean)
    least = torch.linalg.eigvalsh(precision.detach())[..., 0]
    gathered, condition = mean.new_zeros(()), mean.new_ones(mean.shape[:-2])
    rows, solved = Rows(), None
    for first, last in ends_of_chunks(None, pairs.length, size, -math.inf):
        phi, residual = pairs.features[..., first:last, :], values[..., first:last, :]
        part = log_gamma if log_gamma.shape[-1] == 1 else log_gamma[..., first:last]
        total = part.expand(*part.shape[:-1], last - first).cumsum(-1)
        decay = total.exp()
        between = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril(-1).exp().tril(-1)  # Γ_is of pairs before
        present, noise = pairs.present[..., first:last], pairs.precision[..., first:last]
        strength = torch.where(present, noise, 0.0)
        kept = torch.where(present.unsqueeze(-1), phi, 0.0)
        error = torch.where(present.unsqueeze(-1), residual, 0.0)
        gathered = decay * gathered + (between * (strength * kept.square().sum(-1)).unsqueeze(-2)).sum(-1)
        weights = between * strength.unsqueeze(-2)
        moments = decay[..., None, None] * moment.unsqueeze(-3)
        moments = moments + torch.einsum("...is,...sf,...sg->...ifg", weights, kept, kept)
        products = decay[..., None, None] * product.unsqueeze(-3)
        products = products + torch.einsum("...is,...sm,...sf->...imf", weights, error, kept)
        root, failed = torch.linalg.cholesky_ex(moments + precision.unsqueeze(-3))
        condition = condition.masked_fill((failed > 0).any(-1), math.inf)
        means = torch.cholesky_solve(products.mT, root).mT  # of the memory around W_0, predicted, (..., c, M, F)
        spread = torch.cholesky_solve(phi.unsqueeze(-1), root).squeeze(-1)
        doubt = (spread * phi).sum(-1)
        own, answers = doubt + noise.reciprocal(), (means @ phi.unsqueeze(-1)).squeeze(-1)
        gain = torch.where(present.unsqueeze(-1), spread / own.unsqueeze(-1), 0.0)
        left = error - torch.where(present.unsqueeze(-1), answers, 0.0)
        now = means + left.unsqueeze(-1) * gain.unsqueeze(-2)
        reads = None
        if queries is not None:
            asked = queries[..., first:last, :]
            along = torch.cholesky_solve(asked.unsqueeze(-1), root).squeeze(-1)
            lost = (gain * asked).sum(-1) * (spread * asked).sum(-1)
            read = (now @ asked.unsqueeze(-1)).squeeze(-1) + asked @ mean.mT
            reads = read, ((along * asked).sum(-1) - lost).clamp_min(0.0)
        rows.add(answers + phi @ mean.mT, own, left.square().sum(-1) / own, reads)
        end, seen = strength[..., -1, None, None], kept[..., -1, :]
        moment = moments[..., -1, :, :] + end * seen.unsqueeze(-1) * seen.unsqueeze(-2)
        product = products[..., -1, :, :] + end * error[..., -1, :].unsqueeze(-1) * seen.unsqueeze(-2)
        gathered = gathered[..., -1:] + (strength * kept.square().sum(-1))[..., -1:]
        condition = torch.maximum(condition, 1 + gathered.squeeze(-1) / least)
        solved = now[..., -1, :, :]
    root, failed = torch.linalg.cholesky_ex(moment + precision)
    condition, covariance = condition.masked_fill(failed > 0, math.inf), torch.cholesky_inverse(root)
    mean = mean if solved is None else mean + solved
    return rows.filtered(pairs, mean, covariance, condition)


Predict = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


class Path(NamedTuple):
    """Moments of the memory at every step: before the pair and after it, (..., T, M, F) and (..., T, F, F)."""

    predicted_mean: Tensor
    predicted_covariance: Tensor
    mean: Tensor
    covariance: Tensor


def steps(
    predict: Predict,
    pairs: Pairs,
    mean: Tensor,
    covariance: Tensor,
    queries: Tensor | None,
    keep: bool = False,
    draw: bool = False,
) -> tuple[Filtered, Path | None]:
    """Filter step by step, in covariance form: any drift whose ``predict(t, mean, covariance)`` is given.

    ``keep``: the moments of all steps, too. ``draw``: the values of the pairs are standard normal numbers, from which
    each value is drawn given those before it; the values drawn are then what is ``predicted``.
    """
    rows, moments, condition = Rows(), [], mean.new_ones(())
    for t in range(pairs.length):
        mean, covariance = predict(t, mean, covariance)
        before = (mean, covariance)
        phi, beta, here = pairs.features[..., t, :], pairs.precision[..., t], pairs.present[..., t].unsqueeze(-1)
        spread = (covariance @ phi.unsqueeze(-1)).squeeze(-1)
        own = (spread * phi).sum(-1) + beta.reciprocal()
        answer = (mean @ phi.unsqueeze(-1)).squeeze(-1)
        gain = torch.where(here, spread / own.unsqueeze(-1), 0.0)
        error = own.sqrt().unsqueeze(-1) * pairs.values[..., t, :] if draw else pairs.values[..., t, :] - answer
        answer = answer + error if draw else answer
        error = torch.where(here, error, 0.0)
        mean = mean + error.unsqueeze(-1) * gain.unsqueeze(-2)
        covariance = covariance - gain.unsqueeze(-1) * torch.where(here, spread, 0.0).unsqueeze(-2)
        covariance = 0.5 * (covariance + covariance.mT)
        condition = torch.maximum(condition, own * beta)
        reads = None
        if queries is not None:
            asked = queries[..., t, :]
            doubt = ((covariance @ asked.unsqueeze(-1)).squeeze(-1) * asked).sum(-1, keepdim=True)
            reads = (mean @ asked.unsqueeze(-1)).mT, doubt
        rows.add(answer.unsqueeze(-2), own.unsqueeze(-1), (error.square().sum(-1) / own).unsqueeze(-1), reads)
        if keep:
            moments.append((*before, mean, covariance))
    found = rows.filtered(pairs, mean, covariance, condition)
    if not keep:
        return found, None
    return found, Path(*(torch.stack(torch.broadcast_tensors(*x), -3) for x in zip(*moments, strict=True)))


def orthogonal(
    pairs: Pairs, log_gamma: Tensor | None, mean: Tensor, root: Tensor, queries: Tensor | None, pulled: bool
) -> Filtered:
    """Filter step by step by orthogonal transformations of R, ``R'R = P``: half of the digits that P would lose.

    Parameters
    ----------
    pairs, log_gamma, mean, queries
        As in `chunks`.
    root
        Upper triangular, (..., F, F), ``R'R`` the precision of the rows of the memory before the first step.
    pulled
        True where what is forgotten is pulled back to the prior, as in `pull_back`.
    """
    features = root.shape[-1]
    prior = torch.cat([root, root @ mean.mT], -1)  # [R, R W'] (..., F, F + M)
    state, rows, condition = prior, Rows(), mean.new_ones(())
    for t in range(pairs.length):
        if log_gamma is not None:
            kept = log_gamma[..., min(t, log_gamma.shape[-1] - 1), None, None].exp()
            state = kept.sqrt() * state
            if pulled:
                state = _triangular(state, (1 - kept).sqrt() * prior)
        phi, beta, here = pairs.features[..., t, :], pairs.precision[..., t, None], pairs.present[..., t, None]
        row = beta.sqrt() * torch.cat([phi, pairs.values[..., t, :]], -1)
        across = _solved(state[..., :features], row[..., :features])  # R⁻ᵀ√βφ
        answer = (across.unsqueeze(-2) @ state[..., features:]).squeeze(-2)
        grown = 1 + across.square().sum(-1, keepdim=True)  # βS
        distance = (row[..., features:] - answer).square().sum(-1, keepdim=True) / grown
        state = _triangular(state, torch.where(here, row, 0.0).unsqueeze(-2))
        condition = torch.maximum(condition, grown.squeeze(-1))
        reads = None
        if queries is not None:
            along = _solved(state[..., :features], queries[..., t, :]).unsqueeze(-2)
            reads = along @ state[..., features:], along.square().sum(-1)
        rows.add((answer / beta.sqrt()).unsqueeze(-2), grown / beta, distance, reads)
    identity = torch.eye(features, dtype=root.dtype, device=root.device)
    inverse = torch.linalg.solve_triangular(state[..., :features], identity.expand_as(root), upper=True)
    return rows.filtered(pairs, (inverse @ state[..., features:]).mT, inverse @ inverse.mT, condition)


def _solved(root: Tensor, x: Tensor) -> Tensor:
    """``R⁻ᵀ x`` of an upper triangular R."""
    return torch.linalg.solve_triangular(root.mT, x.unsqueeze(-1), upper=False).squeeze(-1)


def _triangular(state: Tensor, rows: Tensor) -> Tensor:
    """The upper triangular factor of ``state`` with ``rows`` below it, columns beyond F carried along."""
    batch = torch.broadcast_shapes(state.shape[:-2], rows.shape[:-2])
    whole = torch.cat([x.expand(*batch, *x.shape[-2:]) for x in (state, rows)], -2)
    orthogonal, triangle = torch.linalg.qr(whole[..., : state.shape[-2]])
    return torch.cat([triangle, orthogonal.mT @ whole[..., state.shape[-2] :]], -1)


class Rows:
    """Results of some steps after others."""

    def __init__(self) -> None:
        self.found: list[tuple[Tensor, ...]] = []

    def add(self, predicted: Tensor, variance: Tensor, distance: Tensor, reads: tuple[Tensor, Tensor] | None) -> None:
        """Add those of some steps: (..., c, M), (..., c) twice, and answers with their variance."""
        self.found.append((predicted, variance, distance, *(reads or ())))

    def filtered(self, pairs: Pairs, mean: Tensor, covariance: Tensor, condition: Tensor) -> Filtered:
        """Return all steps, and the state after them."""
        none = (pairs.values, pairs.precision, pairs.precision)  # of no steps
        each = [torch.cat(x, -1 if i in (1, 2, 4) else -2) for i, x in enumerate(zip(*self.found, strict=True))] or none
        predicted, variance, distance, *reads = each
        answers, doubt = reads or (None, None)
        distance = torch.where(pairs.present, distance, 0.0)
        return Filtered(predicted, variance, distance, mean, covariance, answers, doubt, condition)


def conjugate_gradient(matrix: Tensor, right: Tensor, num_steps: int, tol: float = 1e-14) -> tuple[Tensor, Tensor]:
    """Solve ``P x = q`` of positive definite matrices by at most so many steps of conjugate gradients, from 0.

    Each problem stops by itself where ``|r| <= tol |q|``. ``q'x`` rises to ``q'P⁻¹q`` from below. Where values are hidden
    (``torch.export``, the meta device) the loop makes all steps, and does not refuse a matrix that is not positive definite.

    Parameters
    ----------
    matrix, right
        P (..., F, F) and q (..., F).
    num_steps
        At most so many.
    tol
        Of the residual.

    Returns
    -------
    (Tensor, Tensor)
        x (..., F), and the steps that each took, (...).
    """
    residual = right.expand(torch.broadcast_shapes(right.shape, matrix.shape[:-1]))
    x, direction = torch.zeros_like(residual), residual
    energy = residual.square().sum(-1, keepdim=True)
    least, taken = tol**2 * energy, torch.zeros_like(energy, dtype=torch.long)
    for _ in range(num_steps):
        going = energy > least
        if not known(going.any(), otherwise=True):
            break
        along = (matrix @ direction.unsqueeze(-1)).squeeze(-1)
        curvature = (direction * along).sum(-1, keepdim=True)
        if known((going & ~(curvature > 0)).any(), otherwise=False):
            raise ValueError("conjugate gradients met a matrix that is not positive definite; raise prior_precision")
        step = torch.where(going, energy / torch.where(going, curvature, 1.0), 0.0)
        x, residual = x + step * direction, residual - step * along
        new = residual.square().sum(-1, keepdim=True)
        ratio = torch.where(going, new / torch.where(going, energy, 1.0), 0.0)
        direction, energy = residual + ratio * direction, torch.where(going, new, energy)
        taken = taken + going
    return x, taken.squeeze(-1)

"""Hopfield memories and hash tables from 1e-150 to 1e150 against several hundred digits: shares, energies, answers and bounds."""

import math

import exact
import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from probtx_pyro import models

# A logit, less the best one, errs by at most C (D + 4) eps max(1, |logit|); C is ops._retrieval.LIMIT, up to which a product is rounded as
# it is. Beyond, what is left of twice the digits of float64, some D 2^-104 of the sum of the sizes of the product's terms.
C, LEFT = 2.0**12, 2.0**-100


@st.composite
def memories(draw, kind):
    """Patterns, states, β, a mask and a map."""
    number, width = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 3]))
    patterns, states = draw(exact.rows(kind, number, width)), draw(exact.rows(kind, 2, width))
    if draw(st.booleans()):  # a state at a pattern, another beside it
        states = [list(patterns[0]), [x * (1 + 8 * exact.EPS[kind]) for x in patterns[-1]]]
    mask = [True, *(draw(st.booleans()) for _ in range(number - 1))] if draw(st.booleans()) else None
    beta = draw(st.sampled_from([1.0, 0.3, 8.0])) * 10.0 ** draw(exact.magnitudes(kind))
    dtype = getattr(torch, kind)
    tensors = [torch.tensor(x, dtype=dtype) for x in (patterns, states, beta)]
    tensors.append(None if mask is None else torch.tensor(mask))
    return *tensors, draw(st.sampled_from(list(exact.MAPS)))


def error(kind, width, terms=0.0):
    return lambda x: C * (width + 4) * exact.EPS[kind] * max(1, abs(x)) + LEFT * terms


def terms(scale, state, rows):
    """The largest sum of the sizes of what a score adds up."""
    return scale * max(mpmath.fsum(abs(mpf(a) * b) for a, b in zip(state, row, strict=True)) for row in rows)


@pytest.mark.parametrize("kind", exact.EPS)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_memory_at_any_scale(kind, data):
    patterns, states, beta, mask, name = data.draw(memories(kind))
    memory = models.Hopfield(patterns, beta, mask=mask, transformation=name)
    eps, width, stored = (
        exact.EPS[kind],
        patterns.shape[1],
        range(len(patterns)) if mask is None else mask.nonzero()[:, 0].tolist(),
    )
    found = memory.attention(states), memory.retrieve(states), memory.energy(states), memory.effective_patterns(states)
    with mpmath.workdps(exact.DIGITS[kind]):
        b, rows = mpf(float(beta)), patterns.tolist()
        largest = max(exact.dot(rows[n], rows[n]) for n in stored)
        for q, state in enumerate(states.tolist()):
            scores = [b * exact.dot(state, row) if n in stored else None for n, row in enumerate(rows)]
            top = max(scores[n] for n in stored)
            logits = [None if x is None else x - top for x in scores]
            shares, ends = exact.MAPS[name](logits), exact.band(name, logits, error(kind, width, terms(b, state, rows)))
            for n, (low, high) in enumerate(ends):
                assert (
                    low * (1 - 64 * eps) - exact.TINY[kind] <= found[0][q, n].item() <= high * (1 + 64 * eps) + 1e-30
                ), (
                    n,
                    low,
                    high,
                )
            for d in range(width):
                right = mpmath.fsum(w * mpf(row[d]) for w, row in zip(shares, rows, strict=True))
                slack = mpmath.fsum(
                    (high - low + 64 * eps * high + exact.TINY[kind]) * abs(mpf(row[d]))
                    for (low, high), row in zip(ends, rows, strict=True)
                )
                assert abs(found[1][q, d].item() - right) <= slack + exact.TINY[kind]
            energy = (
                exact.dot(state, state) / 2
                + largest / 2
                + (mpmath.log(len(stored)) - exact.conjugate(name, scores)) / b
            )
            length = mpmath.sqrt(exact.dot(state, state) * largest)
            slack = (
                C * (width + 4) * eps * (energy + min(1 / b, length)) + LEFT * (length + largest) + mpf(10) ** -190 / b
            )  # logarithms have 200 digits
            slack += (
                8 * exact.LEAST[kind] / b
            )  # each of the few scores that are added is a multiple of the least number
            assert abs(found[2][q].item() - energy) <= slack + exact.TINY[kind], (
                found[2][q].item(),
                exact.to_float(energy),
            )
            assert 1 - 1e-6 <= found[3][q] <= len(stored) * (1 + 1e-6)


@pytest.mark.parametrize("kind", exact.EPS)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_separation_and_bounds_at_any_scale(kind, data):
    patterns, _, beta, mask, name = data.draw(memories(kind))
    memory = models.Hopfield(patterns, beta, mask=mask, transformation=name)
    eps, width, stored = (
        exact.EPS[kind],
        patterns.shape[1],
        range(len(patterns)) if mask is None else mask.nonzero()[:, 0].tolist(),
    )
    gaps, bounds = memory.separation(), memory.retrieval_error_bound()
    with mpmath.workdps(exact.DIGITS[kind]):
        b, rows = mpf(float(beta)), patterns.tolist()
        largest = mpmath.sqrt(max(exact.dot(rows[n], rows[n]) for n in stored))
        for n in stored:
            others = [exact.dot(rows[n], rows[m]) for m in stored if m != n]
            if not others:
                assert gaps[n] == math.inf and bounds[n] == 0
                continue
            gap = exact.dot(rows[n], rows[n]) - max(others)
            slack = C * (width + 4) * eps * max(1 / max(b, 1), abs(gap)) + LEFT * largest**2
            assert abs(gaps[n].item() - gap) <= slack + exact.TINY[kind]
            ends = []
            slack = error(kind, width, b * largest**2)(b * gap)
            for lead in (b * gap + slack, b * gap - slack):
                ends.append(2 * largest * (1 - exact.MAPS[name]([mpf(0)] + [-lead] * len(others))[0]))
            assert (
                ends[0] * (1 - 64 * eps) - largest * 64 * eps
                <= bounds[n].item()
                <= ends[1] * (1 + 64 * eps) + largest * 64 * eps + exact.TINY[kind]
            )


@pytest.mark.parametrize("kind", exact.EPS)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_hash_table_at_any_scale(kind, data):
    keys, queries, scale, _, _ = data.draw(memories(kind))
    values = torch.arange(1.0, 1 + len(keys), dtype=keys.dtype).unsqueeze(-1)
    eps, width, table = exact.EPS[kind], keys.shape[1], models.SoftHashTable(keys, values, scale)
    shares, answers, lookup = (
        table.attention(queries),
        table.read(queries),
        table.replace(scale=math.inf).attention(queries),
    )
    with mpmath.workdps(exact.DIGITS[kind]):
        b, rows = mpf(float(scale)), keys.tolist()
        for q, state in enumerate(queries.tolist()):
            scores = [b * exact.dot(state, row) for row in rows]
            logits = [x - max(scores) for x in scores]
            ends = exact.band("softmax", logits, error(kind, width, terms(b, state, rows)))
            for n, (low, high) in enumerate(ends):
                assert low * (1 - 64 * eps) - exact.TINY[kind] <= shares[q, n].item() <= high * (1 + 64 * eps) + 1e-30
            right = mpmath.fsum(w * (n + 1) for n, w in enumerate(exact.softmax(logits)))
            assert abs(answers[q, 0].item() - right) <= mpmath.fsum(
                (h - lo + 64 * eps) * (n + 1) for n, (lo, h) in enumerate(ends)
            )
            near = [x >= -b * error(kind, width, terms(1, state, rows))(mpf(0)) for x in logits]
            assert lookup[q].sum() == 1 and near[int(lookup[q].argmax())]


def test_the_energy_is_minus_the_log_density_and_falls_to_retrieval():
    """``β E(s) = -log p(s) + (D/2) log(β/2π) + log N - log Σ_n exp(β/2 (|x_n|² - max|x|²))``, in 60 digits; its gradient is ``s - retrieve(s)``."""
    patterns = 1e9 + torch.tensor([[0.0, 0.4, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    state = (patterns[:2] + 0.25).requires_grad_()
    memory = models.Hopfield(patterns, 2.0)
    energy = memory.energy(state)
    with mpmath.workdps(60):
        rows = patterns.tolist()
        link = [exact.dot(x, x) for x in rows]
        top = max(link)
        weights = [mpmath.exp(x - top) for x in link]  # β/2 = 1
        for e, s in zip(energy.tolist(), state.tolist(), strict=True):
            density = mpmath.fsum(
                w
                / mpmath.fsum(weights)
                * (1 / mpmath.pi) ** (mpf(3) / 2)
                * mpmath.exp(-mpmath.fsum((mpf(a) - b) ** 2 for a, b in zip(s, x, strict=True)))
                for w, x in zip(weights, rows, strict=True)
            )
            right = (
                -mpmath.log(density) - 1.5 * mpmath.log(mpmath.pi) + mpmath.log(3) - mpmath.log(mpmath.fsum(weights))
            )
            assert abs(2 * e - right) < 1e-12 * right
    (slope,) = torch.autograd.grad(energy.sum(), state)
    assert (state - slope - memory.retrieve(state)).abs().max() == 0  # 1e9 + x has no digits below 1e-7
    assert (energy >= 0).all() and (memory.settle(state.detach()).energy >= 0).all()


@pytest.mark.pairs
@pytest.mark.parametrize("size", [1e100, 1e200, 1e300])
@pytest.mark.parametrize("beta", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("name", exact.MAPS)
def test_what_overflows_is_infinite_and_never_nan(size, beta, name):
    patterns = size * torch.tensor([[1.0, -1.0], [0.5, 0.0], [0.0, 0.0]])
    memory = models.Hopfield(patterns, beta, transformation=name)
    for found in (memory.attention(patterns), memory.retrieve(patterns), memory.energy(patterns), memory.separation()):
        assert not found.isnan().any()
    assert (
        not memory.retrieval_error_bound(size).isnan().any() and not memory.effective_patterns(patterns).isnan().any()
    )
    assert memory.attention(patterns).sum(-1).sub(1).abs().max() < 1e-12
    table = models.SoftHashTable(patterns, torch.ones(3, 1), beta)
    assert not table.attention(patterns).isnan().any() and table.read(patterns).sub(1).abs().max() < 1e-12

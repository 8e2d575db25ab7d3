"""Dependency CRF and trees from 1e-150 to 1e150 against sums over all states in several hundred digits.

A score of a state is a sum of given numbers. It errs by at most C (terms + 4) eps of the sum of their sizes, which is what rounding every
number once would do; shares of states, log-sum-exps and expectations follow from scores that err so.
"""

import itertools
import math

import exact
import mpmath
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from probtx_pyro import models, ops
from probtx_pyro.ops.dependency_crf import relu_normalized

C = 16


@st.composite
def potentials(draw, kind):
    """A CRF of up to 3 words and 2 labels, full or of rank 1, with distance groups, root and mask, and labels that are known or not."""
    words, labels = draw(st.integers(1, 3)), 2
    dtype = getattr(torch, kind)
    distances = draw(st.sampled_from([(), (2,)]))
    groups = 2 * (len(distances) + 1)

    def tensor(*shape):
        rows = draw(exact.rows(kind, math.prod(shape[:-1]), shape[-1]))
        return torch.tensor(rows, dtype=dtype).reshape(shape)

    if draw(st.booleans()):
        ternary = [tensor(1, groups, labels, labels)]
    else:
        ternary = [tensor(1, groups, labels, 1), tensor(1, groups, labels, 1)]
    root = tensor(1, labels, 1) if words == 1 or draw(st.booleans()) else None
    mask = torch.tensor([True, *(draw(st.booleans()) for _ in range(words - 1))]) if root is not None else None
    own = tensor(words, labels), ternary, mask, distances, root
    known = torch.tensor([draw(st.integers(0, 1)) for _ in range(words)])
    observed = torch.tensor([draw(st.booleans()) for _ in range(words)])
    return own, {"labels": known, "observed": observed} if draw(st.booleans()) else {}


def built(unary, ternary, *rest):
    return models.DependencyCRF(unary, ternary[0] if len(ternary) == 1 else models.LowRank(*ternary), *rest)


def states(crf, known):
    """Every labelling with every choice of heads: labels, heads (None for a word without one), score and sum of sizes."""
    words = range(len(crf.unary))
    present = [i for i in words if crf.mask is None or crf.mask[i]]
    first = int(crf.root_ternary is not None)
    if isinstance(crf.ternary, models.LowRank):
        left, right = (x[0, :, :, 0].tolist() for x in (crf.ternary.left, crf.ternary.right))
        table = [[[mpf(a) * mpf(b) for b in v] for a in u] for u, v in zip(left, right, strict=True)]
    else:
        table = [[[mpf(x) for x in row] for row in group] for group in crf.ternary[0].tolist()]
    unary, root = crf.unary.tolist(), None if not first else crf.root_ternary[0, :, 0].tolist()

    def group(i, j):
        ring = sum(abs(i - j) >= s for s in crf.distances)
        return ring if j > i else ring + len(crf.distances) + 1

    free = [range(2) if i in present else [0] for i in words]
    if known:
        free = [[int(known["labels"][i])] if known["observed"][i] and i in present else free[i] for i in words]
    slots = [
        ([0] * first + [first + j for j in present if j != i]) or [None] if i in present else [None] for i in words
    ]
    for z in itertools.product(*free):
        for heads in itertools.product(*slots):
            terms = [mpf(unary[i][z[i]]) for i in present]
            for i in present:
                if heads[i] is not None:
                    j = heads[i] - first
                    terms.append(mpf(root[z[i]]) if j < 0 else table[group(i, j)][z[i]][z[j]])
            yield z, heads, mpmath.fsum(terms), mpmath.fsum(abs(x) for x in terms)


def ends(scores, errors, chosen):
    """Smallest and largest share of the chosen states, whose scores err by up to so much."""
    found = []
    for sign in (-1, 1):
        moved = [x + sign * (e if own else -e) for x, e, own in zip(scores, errors, chosen, strict=True)]
        found.append(mpmath.fsum(w for w, own in zip(exact.softmax(moved), chosen, strict=True) if own))
    return found


@pytest.mark.parametrize("kind", exact.EPS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_log_partition_and_marginals_at_any_scale(kind, data):
    own, known = data.draw(potentials(kind))
    crf = built(*own)
    eps, log, marginals = exact.EPS[kind], crf.log_partition(**known), crf.marginals(**known)
    with mpmath.workdps(exact.DIGITS[kind]):
        every = list(states(crf, known))
        scores = [score for *_, score, _ in every]
        errors = [C * (2 * len(crf.unary) + 4) * eps * max(1, size) for *_, size in every]
        total = exact.conjugate("softmax", scores)
        top = max(range(len(scores)), key=lambda n: scores[n] + errors[n])
        assert abs(log.item() - total) <= errors[top] + max(
            errors[n] for n in range(len(scores)) if scores[n] + errors[n] >= scores[top] - errors[top] - 50
        )
        for i in range(len(crf.unary)):
            for a in range(2):
                chosen = [z[i] == a and (crf.mask is None or bool(crf.mask[i])) for z, *_ in every]
                low, high = ends(scores, errors, chosen)
                assert (
                    low * (1 - 64 * eps) - exact.TINY[kind]
                    <= marginals.labels[i, a].item()
                    <= high * (1 + 64 * eps) + 1e-30
                )
            for slot in range(marginals.heads.shape[-1]):
                low, high = ends(scores, errors, [heads[i] == slot for _, heads, *_ in every])
                assert (
                    low * (1 - 64 * eps) - exact.TINY[kind]
                    <= marginals.heads[0, i, slot].item()
                    <= high * (1 + 64 * eps) + 1e-30
                )


def field_oracle(crf, labels, error):
    """Scores of heads for label marginals, with the sum of the sizes of their terms: of each word and slot."""
    words, first = range(len(crf.unary)), int(crf.root_ternary is not None)
    table = crf.full_ternary()[0].tolist()
    found = {}
    for i in words:
        for j in words:
            if i != j:
                ring = sum(abs(i - j) >= s for s in crf.distances)
                g = ring if j > i else ring + len(crf.distances) + 1
                terms = [
                    mpf(labels[i][a]) * mpf(table[g][a][b]) * mpf(labels[j][b]) for a in range(2) for b in range(2)
                ]
                found[i, first + j] = mpmath.fsum(terms), error * max(1, mpmath.fsum(abs(x) for x in terms))
        if first:
            terms = [mpf(labels[i][a]) * mpf(crf.root_ternary[0, a, 0].item()) for a in range(2)]
            found[i, 0] = mpmath.fsum(terms), error * max(1, mpmath.fsum(abs(x) for x in terms))
    return found


@pytest.mark.parametrize("kind", exact.EPS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_a_step_and_the_end_of_mean_field_at_any_scale(kind, data):
    crf = built(*data.draw(potentials(kind))[0])
    eps, first, words = exact.EPS[kind], int(crf.root_ternary is not None), len(crf.unary)
    start, end = crf.mean_field(num_steps=1), crf.mean_field(num_steps=4)
    assert not any(x.isnan().any() for x in (end.label_marginals, end.head_marginals, end.elbo, end.label_logits))
    present = [i for i in range(words) if crf.mask is None or crf.mask[i]]
    assert (end.label_marginals.sum(-1)[present] - 1).abs().max() < 16 * eps
    with mpmath.workdps(exact.DIGITS[kind]):
        error = C * (words + 8) * eps
        z = [exact.softmax([mpf(x) for x in row]) for row in crf.unary.tolist()]
        told = field_oracle(crf, z, error)
        for i in present:
            slots = [0] * first + [first + j for j in present if j != i]
            scores, errors = [told[i, s][0] for s in slots], [2 * told[i, s][1] for s in slots]
            for n, s in enumerate(slots):
                low, high = ends(scores, errors, [m == n for m in range(len(slots))])
                # what is less than eps² over the largest potential is 0
                assert (
                    low * (1 - 64 * eps) - 4 * eps**2
                    <= start.head_marginals[0, i, s].item()
                    <= high * (1 + 64 * eps) + 1e-30
                )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [None, 2])
def test_what_is_improbable_counts_where_its_potential_is_large(dtype, rank):
    """``F = q q' T`` with T of the size of 1 / (q q'): a share of eps³ is no zero where it is multiplied by 1e30."""
    gap, size = (45.0, 1e30) if dtype == torch.float32 else (120.0, 1e80)
    ternary = torch.zeros(1, 2, 2, 2, dtype=dtype)
    ternary[..., 1, 0] = size  # an improbable word that has a probable head
    if rank:
        left, right = torch.zeros(2, 1, 2, 2, 2, dtype=dtype)
        left[..., 1, 0], right[..., 0, 0] = size, 1.0
        ternary = models.LowRank(left, right)
    unary = torch.tensor([[0.0, -gap], [0.0, -gap]], dtype=dtype)
    field = models.DependencyCRF(unary, ternary).mean_field(num_steps=1)
    told = size * math.exp(-gap) / (1 + math.exp(-gap))  # from a word that has this one as its head
    assert abs(field.label_logits[0, 0].item() / told - 1) < 1e-4


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("unary", (2, 2), "unary"),
        ("ternary", (1, 2, 2, 2), "ternary"),
        ("root_ternary", (1, 2, 1), "root_ternary"),
        ("memory", (1, 1, 2), "memory"),
        ("factors", (1, 2, 2, 1), "ternary"),
    ],
)
def test_sums_that_would_overflow_are_refused(name, shape, said):
    given = {name: torch.full(shape, 1.7e308)}
    if name == "factors":
        given = {"ternary": models.LowRank(torch.full(shape, 1e200), torch.full(shape, 1e200))}
    with pytest.raises(ValueError, match=f"^{said} is so large.*scale the potentials down$"):
        models.DependencyCRF(**{"unary": torch.zeros(2, 2), "ternary": torch.zeros(1, 2, 2, 2)} | given)


def test_a_temperature_at_which_scores_overflow_is_refused():
    crf = models.DependencyCRF(torch.zeros(2, 2), 1e10 * torch.eye(2).expand(1, 2, 2, 2))
    with pytest.raises(ValueError, match=r"^label_temperature, head_temperature: scores over 1e-300"):
        crf.mean_field(3, label_temperature=1e-300)


@pytest.mark.parametrize("size", [1e-300, 1e-18, 1.0, 1e300])
def test_positive_parts_are_shares_at_any_scale(size):
    found = relu_normalized(size * torch.tensor([1.0, 3.0, -2.0, 0.0]), -1)
    assert (found - torch.tensor([0.25, 0.75, 0.0, 0.0])).abs().max() < 1e-15
    assert relu_normalized(torch.tensor([-size, 0.0]), -1).tolist() == [0.0, 0.0]


@given(data=st.data(), single_root=st.booleans())
@settings(max_examples=8, deadline=None)
def test_trees_at_any_scale(data, single_root):
    words = data.draw(st.integers(1, 3))
    rows = data.draw(exact.rows("float64", words, words + 1))
    rows = [[-math.inf if data.draw(st.integers(0, 7)) == 0 else x for x in row] for row in rows]
    arcs, trees = torch.tensor(rows), oracles.dependency_trees(words, single_root)
    trees = [t for t in trees if all(row[h] > -math.inf for row, h in zip(rows, t, strict=True))]
    log, shares = (
        ops.tree_log_partition(arcs, single_root=single_root),
        ops.tree_marginals(arcs, single_root=single_root),
    )
    if not trees:
        assert log == -math.inf and (shares == 0).all()
        with pytest.raises(ValueError, match="no tree"):
            ops.spanning_arborescence(arcs, single_root=single_root)
        return
    drawn = ops.draw_trees(arcs, 4, torch.Generator().manual_seed(0), single_root=single_root)
    best = {f.__name__: f(arcs, single_root=single_root).tolist() for f in (ops.spanning_arborescence,)}
    flat = [t for t in trees if oracles.is_projective(t)]
    if flat:
        best["eisner"] = ops.eisner(arcs, single_root=single_root).tolist()
    with mpmath.workdps(exact.DIGITS["float64"]):
        scores = {t: mpmath.fsum(mpf(row[h]) for row, h in zip(rows, t, strict=True)) for t in trees}
        # elimination adds up scores of arcs in other orders than trees do: the sizes of all arcs are what they err by
        error = (
            C
            * (words + 4)
            * exact.EPS["float64"]
            * max(1, mpmath.fsum(abs(mpf(x)) for row in rows for x in row if x > -math.inf))
        )
        values, errors = list(scores.values()), [error] * len(scores)
        assert abs(log.item() - exact.conjugate("softmax", values)) <= 2 * error
        for i, h in itertools.product(range(words), range(words + 1)):
            low, high = ends(values, errors, [t[i] == h for t in scores])
            # a share is an exponential of numbers that err by so much, and one word's shares sum to 1 whatever they are
            assert low - 2 * error <= shares[i, h].item() <= high + 2 * error and -1e-6 <= shares[i, h] <= 1 + 1e-6
        for name, found in best.items():
            among = flat if name == "eisner" else trees
            assert scores[tuple(found)] >= max(scores[t] for t in among) - error
        for tree in drawn.tolist():  # none of a probability below 1e-20 is drawn in four
            assert scores[tuple(tree)] >= max(values) - 2 * error - 60


@pytest.mark.parametrize(
    "rows",
    [
        [[1e32, 1e32, 5e31, 2e32], [1e-8, 1e32, 1e-8, 1e-8], [1e32, 1e-8, 5e-9, 1e32]],
        [[-1e150, 0.0, -1.0, 0.3], [-1e150, 2.0, 1e150, 1.0], [2e150, -1.7e150, 0.5, 1.0]],
    ],
)
def test_shares_of_heads_are_shares_where_an_ulp_of_the_scores_is_large(rows):
    for seed in range(20):
        ulps = 1 + 4 * exact.EPS["float64"] * torch.randint(
            -4, 5, (3, 4), generator=torch.Generator().manual_seed(seed)
        )
        for single_root in (True, False):
            shares = ops.tree_marginals(torch.tensor(rows) * ulps, single_root=single_root)
            assert (shares >= -1e-6).all() and (shares.sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "name", ["tree_log_partition", "tree_marginals", "tree_entropy", "argmax_heads", "spanning_arborescence", "eisner"]
)
def test_scores_of_trees_that_would_overflow_are_refused(name):
    with pytest.raises(ValueError, match=r"^arcs are so large"):
        getattr(ops, name)(1.7e308 * torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]))

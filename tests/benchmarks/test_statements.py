"""What the benchmark of the sources' statements measures, against loops; and that what it fixes is fixed."""

import math

import pytest
import torch
from strategies import generator
from tolerances import assert_equal

from benchmarks import statements
from benchmarks.statements import Fixed, matched, measured, moments


def problem(seed=0):
    """Two problems of two heads: queries, keys, and what is real of them."""
    g = generator(seed)
    queries, keys = torch.randn(2, 2, 6, 3, generator=g), 1 + 2 * torch.randn(2, 2, 7, 3, generator=g)
    present, real = torch.rand(2, 6, generator=g) < 0.8, torch.rand(2, 7, generator=g) < 0.8
    return queries, keys, present, real


def test_matched_queries_and_keys_have_one_mean_and_covariance_and_the_same_attention():
    queries, keys, present, real = problem()
    q, k = matched(queries, keys, present, real)
    assert_equal((q @ k.mT).softmax(-1), (queries @ keys.mT).softmax(-1), q @ k.mT, operations=256)
    for one, other in zip(moments(q.transpose(0, 1)[:, present]), moments(k.transpose(0, 1)[:, real]), strict=True):
        assert_equal(one, other, operations=1024)
    assert (
        moments(queries.transpose(0, 1)[:, present])[1] - moments(q.transpose(0, 1)[:, present])[1]
    ).abs().max() > 0.1


def softmax_by_hand(logits):
    weights = [math.exp(x - max(logits)) for x in logits]
    return [w / sum(weights) for w in weights]


def test_what_is_measured_of_a_retrieval_by_hand(monkeypatch):
    """Queries with two keys or more, one after the other, in loops."""
    monkeypatch.setattr(statements, "LEAST", 2)
    monkeypatch.setattr(statements, "STEPS", 200)
    queries, keys, present, real = problem(1)
    keys, beta = 1.5 * keys, 0.25
    allowed = real.unsqueeze(1).expand(2, 6, 7) & (torch.arange(7) < 4)
    found = measured(queries, keys, allowed, present, beta)
    left, alone, separated = [], [], []
    for head in range(2):
        for item in range(2):
            for i in range(6):
                units = [keys[item, head, j].tolist() for j in range(7) if allowed[item, i, j]]
                if not present[item, i] or len(units) < 2:
                    continue
                path = [queries[item, head, i].tolist()]
                for _ in range(statements.STEPS):
                    weights = softmax_by_hand(
                        [beta * sum(a * b for a, b in zip(u, path[-1], strict=True)) for u in units]
                    )
                    path.append([sum(w * u[d] for w, u in zip(weights, units, strict=True)) for d in range(3)])
                left.append(math.dist(path[1], path[-1]) / math.dist(path[0], path[-1]))
                alone.append(float(math.exp(-sum(w * math.log(w) for w in weights if w)) < statements.ALONE))
            units = [keys[item, head, j].tolist() for j in range(7) if allowed[item, 0, j]]
            if (n := len(units)) >= 2:
                largest = max(sum(a * a for a in u) for u in units)
                needed = 2 / (beta * n) + math.log(2 * (n - 1) * n * beta * largest) / beta
                for u in units:
                    own = sum(a * a for a in u)
                    others = [sum(a * b for a, b in zip(u, x, strict=True)) for x in units if x is not u]
                    separated.append(float(own - max(others) >= needed))
    # the loop of the benchmark stops when nothing moves by 1e-10; what is left of a geometric approach is of that order
    torch.testing.assert_close(found["left"].flatten(), torch.tensor(left), rtol=0, atol=1e-7)
    assert_equal(found["alone"].flatten(), torch.tensor(alone))
    assert_equal(found["separated"].flatten(), torch.tensor(separated))
    assert 0 < sum(alone) < len(alone) and 0 < sum(separated) < len(separated)


@pytest.mark.parametrize("row", statements.ROWS)
def test_what_a_row_fixes_is_not_trained_and_the_rest_is(row):
    torch.manual_seed(0)
    fixed = statements.ROWS[row]
    layer, x = (
        Fixed(8, 2, batch_first=True, fixed=fixed),
        torch.randn(2, 5, 8, generator=generator(0), requires_grad=True),
    )
    start = [w.detach().clone() for w in layer.in_proj_weight.chunk(3)]
    layer(x, x, x, need_weights=False)[0].square().sum().backward()
    slopes = dict(zip(statements.PARTS, layer.in_proj_weight.grad.chunk(3), strict=True)) if layer.in_proj_weight.grad is not None else {}  # fmt: skip
    cut = fixed.get("output") == "zero"  # nothing reaches the projections
    for part, begun in zip(statements.PARTS, start, strict=True):
        trained = part in slopes and bool(slopes[part].any())
        keys_without_queries = part == "keys" and fixed.get("queries") == "zero"
        assert trained == (part not in fixed and not cut and not keys_without_queries)
        if part in fixed:
            used = layer._projections()[statements.PARTS.index(part)][0]
            assert torch.equal(used, {"start": begun, "identity": torch.eye(8), "zero": torch.zeros(8, 8)}[fixed[part]])
    assert layer.out_proj.weight.requires_grad == ("output" not in fixed)


def test_a_grid_of_rates_goes_on_where_it_ends_at_the_best(monkeypatch):
    tried = []

    def trained(row, settings):
        tried.append(settings.lr)
        return {"nats": abs(math.log(settings.lr / 0.03))}

    monkeypatch.setattr(statements, "trained", trained)
    assert statements.rate_of(statements.ALL)["lr"] == 0.032
    assert tried == [0.002, 0.004, 0.008, 0.016, 0.032, 0.064]

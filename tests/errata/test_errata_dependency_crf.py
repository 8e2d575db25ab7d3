"""Erratum 24, published code of the dependency CRF: the diagonal is zeroed after the softmax instead of excluded before it.

The printed form stands here, as a schedule in plain torch, so that a reader can reproduce it; ``docs/errata.md`` explains.
"""

from dataclasses import replace

import pytest
import torch
from strategies import crf_problem, generator
from tolerances import assert_equal, assert_never_falls, rounding

from probtx_pyro.ops.dependency_crf import head_scores, label_messages


def printed(potentials, label, head, state, first):
    """Heads from a softmax over all words, the word itself among them with score 0, which is set to zero afterwards."""
    scores = head_scores(potentials, state["labels"])
    heads = scores.softmax(-1) * ~torch.eye(scores.shape[-1], dtype=torch.bool)
    logits = potentials.unary + label_messages(potentials, state["labels"], heads)
    return {"label_logits": logits, "labels": logits.softmax(-1), "head_logits": scores, "heads": heads}


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_24_rows_are_no_distribution(scale):
    crf = crf_problem(generator(1), batch=(20,), words=5, scale=scale)
    zeroed, excluded = crf.mean_field(5, printed).head_marginals, crf.mean_field(5).head_marginals
    assert_equal(excluded.sum(-1), torch.ones_like(excluded[..., 0]))
    assert (zeroed.sum(-1) < 0.95).all()
    assert 0.75 < zeroed.sum(-1).mean() < 0.9  # of five words, one is attended to and not heard


@pytest.mark.parametrize("level, rises", [(0.0, True), (-2.0, False)])
def test_24_head_update_is_no_maximum_of_the_objective(level, rises):
    """Rows divided by their sum are those of the exclusion. The objective of the same labels rises by it, or falls where all
    other words score low: a row that sums to c has c F - c log c in the place of F, and that bounds nothing.
    """
    crf = crf_problem(generator(2), batch=(20,), words=5, scale=0.5)
    crf = replace(crf, ternary=crf.ternary + level)
    field = crf.mean_field(1, printed)
    share = field.head_marginals.sum(-1)
    rows = field.head_marginals / share.unsqueeze(-1)
    assert_equal(rows, crf.mean_field(1).head_marginals)
    rise = replace(field, head_marginals=rows).elbo - field.elbo
    scores = head_scores(crf.potentials(), field.label_marginals)
    free = (rows * scores - torch.xlogy(rows, rows)).sum(-1)
    assert_equal(rise, ((1 - share) * free + torch.xlogy(share, share)).flatten(1).sum(1))
    assert ((rise > 0.1) == rises).all() and ((rise < -0.1) != rises).all()


def test_24_labels_found_have_a_lower_bound():
    """Messages of rows that sum to less are too weak: even with the best heads for its labels, its fixed point bounds log Z less well.

    Nothing is claimed of the distance to the exact marginals: weak messages are also less overconfident, which can bring it closer.
    """
    crf = crf_problem(generator(3), batch=(60,), words=4, labels=2, scale=0.7)
    zeroed, excluded = crf.mean_field(60, printed), crf.mean_field(60, "sequential", history=True)
    assert_never_falls(excluded.objective, excluded.label_logits)
    found = []
    for field in (
        zeroed,
        excluded,
    ):  # the best heads for the labels that each has found: what is compared is the labels
        scores = head_scores(crf.potentials(), field.label_marginals)
        best = scores.masked_fill(torch.eye(4, dtype=torch.bool), -torch.inf).softmax(-1)
        found.append(type(field)(**{**vars(field), "head_marginals": best}).elbo)
    assert (found[1] - found[0]).mean() > 0.01
    assert (found[1] - found[0] > -rounding(*found)).double().mean() > 0.9

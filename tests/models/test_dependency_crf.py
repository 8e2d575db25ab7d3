"""The dependency CRF as a model: what only it promises, in the terms of its mean field.

Its row in `tests/contract` asks what every formulation is asked; here labels are inferred with the heads, and the words are
queries, keys and data at once, so that batches, padding and schedules have clauses of their own.
"""

import pytest
import torch
from strategies import crf_problem, crf_sentence, generator
from tolerances import assert_equal

from probtx_pyro import models
from probtx_pyro.ops.dependency_crf import relu_normalized

SCHEDULES = ["asynchronous", "synchronous", "sequential"]
schedules = pytest.mark.parametrize("schedule", SCHEDULES)
LARGER = {
    "plain": {"words": 6},
    "distances": {"words": 6, "distances": (2, 4)},
    "everything": {"words": 6, "distances": (2,), "rank": 2, "root": 3, "nodes": 2, "node_channels": 1, "split": True},
}
larger = pytest.mark.parametrize("name", LARGER)


@larger
def test_attention_is_a_gradient(name):
    """The derivative of log Z with respect to the unary scores is the marginals of labels; with respect to T, of arcs."""
    crf = crf_problem(generator(5), **{**LARGER[name], "words": 4, "masked": name == "everything"})
    unary = crf.unary.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(crf.replace(unary=unary).log_partition(), unary)
    exact = crf.marginals()
    assert_equal(gradient, exact.labels)
    length = 4
    shift = torch.zeros(len(crf.full_ternary()), requires_grad=True, dtype=torch.float64)
    ternary = crf.full_ternary() + shift[:, None, None, None]
    (gradient,) = torch.autograd.grad(crf.replace(ternary=ternary).log_partition(), shift)
    first = int(crf.root_ternary is not None)
    assert_equal(gradient, exact.heads[..., first : first + length].sum((-2, -1)))


@schedules
@larger
def test_batch_is_the_stack_of_its_singles(name, schedule):
    crf = crf_problem(generator(6), batch=(2, 3), masked=True, **LARGER[name])
    field = crf.mean_field(4, schedule, tol=1e-3, history=True)
    assert field.label_marginals.shape[:2] == field.elbo.shape == field.converged.shape == (2, 3)
    for index in ((0, 0), (1, 2)):
        alone = crf_sentence(crf, *index).mean_field(4, schedule, tol=1e-3)
        for found in ("label_marginals", "head_marginals", "label_logits", "elbo", "num_steps", "converged"):
            assert_equal(getattr(field, found)[index].double(), getattr(alone, found).double())
    small = crf_problem(generator(6), batch=(2, 2), words=3, labels=2, masked=True, root=2)
    assert_equal(small.log_partition()[1, 0], crf_sentence(small, 1, 0).log_partition())
    assert_equal(small.marginals().heads[1, 0], crf_sentence(small, 1, 0).marginals().heads)


@schedules
@larger
def test_padding_at_the_end_is_absent_words(name, schedule):
    crf = crf_problem(generator(7), batch=(3,), **LARGER[name])
    mask = torch.arange(6) < 4
    short = crf.replace(unary=crf.unary[:, :4])
    padded, alone = (x.mean_field(4, schedule) for x in (crf.replace(mask=mask), short))
    first = int(crf.root_ternary is not None)
    keep = [s for s in range(padded.head_marginals.shape[-1]) if s - first not in (4, 5)]
    assert_equal(padded.label_marginals[:, :4], alone.label_marginals)
    assert_equal(padded.label_logits[:, :4], alone.label_logits)
    assert_equal(padded.head_marginals[:, :, :4, keep], alone.head_marginals)
    assert_equal(padded.elbo, alone.elbo)
    for nothing in (
        padded.label_marginals[:, 4:],
        padded.head_marginals[:, :, 4:],
        padded.head_marginals[..., first + 4 : first + 6],
    ):
        assert (nothing == 0).all()


@schedules
def test_permuting_words_permutes_everything_where_all_groups_share_a_potential(schedule):
    crf = crf_problem(generator(8), words=6, nodes=2, root=2)
    crf = crf.replace(ternary=crf.ternary[:, :1].expand(-1, 2, -1, -1))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    slots = torch.cat([torch.tensor([0]), order + 1, torch.tensor([7, 8])])
    moved = crf.replace(unary=crf.unary[order])
    # one word after the other has no order to permute until it has converged; 40 sweeps leave rounding
    steps = 40 if schedule == "sequential" else 4
    field, permuted = crf.mean_field(steps, schedule), moved.mean_field(steps, schedule)
    assert_equal(permuted.label_marginals, field.label_marginals[order])
    assert_equal(permuted.head_marginals, field.head_marginals[:, order][..., slots])


@schedules
@larger
def test_float32_is_close_to_float64(name, schedule):
    low = crf_problem(generator(9), batch=(3,), dtype=torch.float32, **LARGER[name])
    rough, fine = low.mean_field(4, schedule), low.to(torch.float64).mean_field(4, schedule)
    assert rough.label_marginals.dtype == rough.elbo.dtype == torch.float32
    # four sweeps, each of which may multiply the rounding of logits of order 10 by the size of the potentials
    assert (rough.label_marginals - fine.label_marginals).abs().max() < 1e-4
    assert (rough.head_marginals - fine.head_marginals).abs().max() < 1e-4


@pytest.mark.slow
@schedules
@pytest.mark.parametrize("rank", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_gradients_are_finite_differences(schedule, rank):
    crf = crf_problem(generator(10), words=3, labels=2, distances=(2,), rank=rank, root=2, nodes=1)
    factors = [crf.ternary] if rank is None else [crf.ternary.left, crf.ternary.right]
    inputs = [x.clone().requires_grad_() for x in (crf.unary, crf.root_ternary, crf.memory, *factors)]

    def outputs(unary, root, memory, *factors):
        ternary = factors[0] if rank is None else models.LowRank(*factors)
        new = crf.replace(unary=unary, root_ternary=root, memory=memory, ternary=ternary)
        field = new.mean_field(2, schedule, label_damping=0.2, head_step=0.8, head_temperature=0.7)
        return field.label_logits, field.head_marginals, field.root_logits, field.elbo

    assert torch.autograd.gradcheck(outputs, inputs)


def test_gradient_of_a_temperature():
    crf = crf_problem(generator(11))

    def elbo(x, y):
        return crf.mean_field(3, label_temperature=x, head_temperature=y).elbo

    assert torch.autograd.gradcheck(
        elbo, [torch.tensor(t, requires_grad=True, dtype=torch.float64) for t in (0.8, 1.3)]
    )


@pytest.mark.slow
@schedules
@larger
def test_unrolled_gradient_is_the_implicit_one_where_it_has_converged(name, schedule):
    crf = crf_problem(generator(12), batch=(2,), scale=0.5, **LARGER[name])
    gradients = []
    for implicit in (False, True):
        unary = crf.unary.clone().requires_grad_()
        field = crf.replace(unary=unary).mean_field(50, schedule, implicit=implicit)
        (gradient,) = torch.autograd.grad((field.label_marginals * torch.arange(3.0)).sum() + field.elbo.sum(), unary)
        gradients.append(gradient)
    # the adjoint iteration stops where it moves by 64 eps; what is left is that over 1 - the rate of contraction
    assert (gradients[0] - gradients[1]).abs().max() < 1e-11


@schedules
@larger
def test_nan_in_padding_leaks_nowhere(name, schedule):
    crf = crf_problem(generator(13), batch=(2,), **LARGER[name])
    mask = torch.tensor([[True, False, True, True, False, False]])
    found = []
    for filling in (0.0, torch.nan):
        unary = crf.unary.masked_fill(~mask.unsqueeze(-1), filling).requires_grad_()
        ternary = crf.full_ternary().clone().requires_grad_()
        new = crf.replace(unary=unary, ternary=ternary, mask=mask)
        field = new.mean_field(3, schedule, history=True)
        loss = (
            field.label_marginals.square().sum()
            + field.label_logits.sum()
            + field.elbo.sum()
            + new.log_partition().sum()
        )
        found.append([field.objective, field.head_marginals, loss, *torch.autograd.grad(loss, (unary, ternary))])
    for x, y in zip(*found, strict=True):
        assert_equal(x, y)
    assert (found[1][3][:, ~mask[0]] == 0).all()


@schedules
def test_a_single_word_has_no_heads_and_is_exact(schedule):
    crf = crf_problem(generator(14), words=1)
    field = crf.mean_field(3, schedule)
    assert_equal(field.label_marginals, crf.unary.softmax(-1))
    assert (field.head_marginals == 0).all()
    assert_equal(field.elbo, crf.log_partition())
    assert_equal(crf.log_partition(), crf.unary.logsumexp(-1).squeeze())


def test_marginals_of_a_thousand_words_are_distributions():
    crf = crf_problem(generator(15), words=1000, labels=4, distances=(2, 5), scale=0.5, dtype=torch.float32)
    field = crf.mean_field(3)
    assert_equal(field.head_marginals.sum(-1), torch.ones_like(field.head_marginals[..., 0]), operations=1000)
    assert_equal(field.label_marginals.sum(-1), torch.ones_like(field.label_marginals[..., 0]))
    assert torch.isfinite(field.elbo)


@pytest.mark.slow
def test_convergence_is_reported_for_each_sentence(capsys):
    crf = crf_problem(generator(16), batch=(40,), scale=1.0, masked=True)
    field = crf.mean_field(500, tol=1e-9, history=True, progress=True)
    assert "mean field" in capsys.readouterr().err
    assert field.converged.any() and len(field.num_steps.unique()) > 3
    assert len(field.objective) == field.num_steps.max() + 1
    settled = field.converged & (field.num_steps < field.num_steps.max())
    assert_equal(field.objective[-1], field.elbo)
    longer = crf.mean_field(int(field.num_steps.max()) + 200)
    # it moved by 1e-9 last; the rest of a geometric series of ratio up to 0.99 is a hundred times that
    moved = (longer.label_marginals - field.label_marginals).abs().amax((-2, -1))
    assert moved[settled].max() < 1e-7
    early = crf.mean_field(2, tol=1e-9, progress=False)
    assert not early.converged.all() and "mean field" not in capsys.readouterr().err
    assert early.num_steps.max() == 2 and crf.mean_field(2).objective is None


def test_relu_keeps_rows_on_the_simplex_or_empty():
    field = crf_problem(generator(17), batch=(5,)).mean_field(3, normalizer=relu_normalized)
    total = field.head_marginals.sum(-1)
    assert_equal(torch.minimum(total.abs(), (total - 1).abs()), torch.zeros_like(total))
    assert (field.head_marginals == 0).sum() > 5 * 2 * 4  # more than the diagonals: the sparsity that it is for


def test_every_tensor_moves_and_every_field_can_be_replaced():
    crf = crf_problem(generator(18), batch=(2,), rank=2, root=2, nodes=1, masked=True)
    low = crf.to(torch.float32)
    assert {low.unary.dtype, low.ternary.left.dtype, low.root_ternary.dtype, low.memory.dtype} == {torch.float32}
    assert low.mask.dtype == torch.bool
    assert crf.batch_shape == (2,) and crf.replace(distances=[]).distances == ()
    assert_equal(crf.full_ternary(), crf.ternary.left @ crf.ternary.right.mT)

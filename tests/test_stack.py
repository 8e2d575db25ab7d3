"""What bites in this stack and shaped the design, each held by a test; those of other files are named here.

1 ArviZ's converter falsifies the log likelihood of enumerated programs: results/test_convert_draws.py. 3 dot products far from the
origin: contract/test_contract.py. 4 rows that are masked everywhere: ops/test_attention.py. 7 layers that torch's encoder passes by:
nn/test_drop_in.py. 9 Pyro's R-hat and missing statistics: results/test_diagnose.py, inference/test_nuts.py. The rest is below.
"""

import pytest
import torch
from pyro import poutine
from pyro.distributions import Dirichlet, Gamma, Normal
from pyro.infer import infer_discrete
from strategies import generator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probtx_pyro import inference, models


def small(collapsed):
    g = generator(0)
    keys = torch.randn(3, 2, generator=g)
    mixture = models.GaussianMixture(keys, key_precision=torch.full((3,), 2.0))
    priors = dict(keys=Normal(keys, 0.5), key_precision=Gamma(3.0, 1.0), weights=Dirichlet(torch.ones(3)))
    return models.bayesian(mixture, **priors, collapsed=collapsed), torch.randn(5, 2, generator=g)


def test_2_units_given_a_draw_of_the_parameters_are_those_of_our_attention():
    """`infer_discrete` around the conditioned program; the other way round it would forget the draw."""
    program, queries = small(collapsed=False)
    draws = inference.gibbs(program, queries, num_samples=1, num_chains=1, seed=0)
    at = {name: x[0, 0] for name, x in draws.samples.items()}
    drawn = infer_discrete(poutine.condition(program, at), first_available_dim=-2)
    units = poutine.trace(drawn).get_trace(queries.repeat(2000, 1)).nodes["unit"]["value"].view(2000, -1)
    share = torch.stack([(units == j).double().mean(0) for j in range(3)], -1)
    attention = program.formulation.with_parameters(at).attention(queries)
    error = (attention * (1 - attention) / 2000).sqrt()
    assert ((share - attention).abs() <= 4.5 * error).all()


def test_5_the_explicit_path_gives_weights_and_log_evidence_and_a_second_derivative():
    program, queries = small(collapsed=True)
    mixture = program.formulation.replace(values=torch.eye(3))
    outputs, weights, evidence = mixture.explicit_outputs(queries.requires_grad_())
    torch.testing.assert_close(outputs, mixture.expected_outputs(queries))
    torch.testing.assert_close(weights, mixture.attention(queries))
    torch.testing.assert_close(evidence, mixture.log_evidence(queries))
    (slope,) = torch.autograd.grad(evidence.sum(), queries, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.square().sum(), queries)
    assert torch.isfinite(curvature).all() and curvature.abs().max() > 0


def test_5_the_fused_kernel_of_torch_has_no_second_derivative_and_the_attention_is_written_out_for_ours():
    """Where torch's has one, the backward pass by hand in `ops._fused` needs to write nothing out."""
    program, queries = small(collapsed=True)
    mixture = program.formulation.replace(values=torch.eye(3))

    def curvature(outputs):
        (slope,) = torch.autograd.grad(outputs[..., 0].sum(), queries, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), queries)[0]

    queries.requires_grad_()
    expected = curvature(mixture.explicit_outputs(queries)[0])
    torch.testing.assert_close(curvature(mixture.expected_outputs(queries)), expected)
    assert expected.abs().max() > 0
    x = queries.unsqueeze(0).unsqueeze(0)
    with pytest.raises(RuntimeError, match="not implemented"):
        curvature(torch.nn.functional.scaled_dot_product_attention(x, x, x).flatten(0, 1))


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        sizes = [
            x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(found) if isinstance(x, torch.Tensor)
        ]
        self.numbers = max([self.numbers, *sizes])
        return found


def test_6_the_collapsed_program_gathers_no_key_for_every_query_and_unit():
    mixture, queries = models.GaussianMixture(torch.randn(256, 32)), torch.randn(300, 32)
    with Largest() as collapsed:
        poutine.trace(mixture.collapsed).get_trace(queries).compute_log_prob()
    assert collapsed.numbers <= 300 * 256  # enumerated it would be 32 times as much


@pytest.mark.parametrize("collapsed", [True, False])
def test_8_no_site_has_the_name_of_a_plate(collapsed):
    program, queries = small(collapsed)
    nodes = poutine.trace(program).get_trace(queries.expand(2, 3, 5, 2)).nodes
    frames = {frame.name for node in nodes.values() if node["type"] == "sample" for frame in node["cond_indep_stack"]}
    sites = {
        name for name, node in nodes.items() if node["type"] == "sample" and not poutine.util.site_is_subsample(node)
    }
    assert {"query", "batch", "head", "units"} <= frames
    assert not frames & sites

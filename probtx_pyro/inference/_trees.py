"""Trees and labels together: draws of labels, each weighted by the probability that its heads make trees,
and a tree for each.

Given the labels Z, heads are independent, so that they make a tree in a channel with probability

    P(tree | Z) = Σ_trees Π_i exp T_{Z_i Z_{h_i}} / Π_i Σ_j exp T_{Z_i Z_j},

a determinant over a product of row sums (docs/mathematics.md, section 5.4). The posterior in which heads are trees is
``p(Z) P(tree | Z)`` for the labels, up to a constant, and a distribution over trees that is drawn from exactly. Draws
of ``p(Z)`` with weights P(tree | Z) are draws of it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.inference._draws import Draws
from probtx_pyro.inference._importance import log_mean
from probtx_pyro.inference._start import seeds
from probtx_pyro.models.formulation import Formulation


class TreeDraws(NamedTuple):
    """Trees for draws of labels, and the weights that make both draws of the posterior whose heads are trees.

    heads: (chain, draw, ..., channel, word), 0 for the root and j for the j-th word; -1 for padding, and where there is
    no tree.
    log_weights: log P(tree | labels), the channels together, (chain, draw, ...).
    log_probability: of the posterior that heads make trees, (...): log of the mean weight.
    effective_draws: ``(Σ w)² / Σ w²``, (...): the effective number of weights. The dependence of the draws of a chain
    is not counted.
    """

    heads: Tensor
    log_weights: Tensor
    log_probability: Tensor
    effective_draws: Tensor

    def average(self, x: Tensor) -> Tensor:
        """Weighted mean over chains and draws: of x (chain, draw, ..., *rest),
        the leading axes those of ``log_weights``, (..., *rest).
        """
        lead = self.log_weights.dim()
        if x.shape[:lead] != self.log_weights.shape:
            raise ValueError(
                f"x must begin with the axes {tuple(self.log_weights.shape)} of the draws, not {tuple(x.shape)}"
            )
        weights = self.log_weights.flatten(0, 1).softmax(0).reshape(*self.log_weights.shape, *(1,) * (x.dim() - lead))
        return (weights * x).sum((0, 1))

    def __repr__(self) -> str:
        chains, draws = self.log_weights.shape[:2]
        return f"TreeDraws {tuple(self.heads.shape[2:])}: {chains} chains of {draws}, worth {float(self.effective_draws.min()):.0f} equal weights"


def draw_trees(
    draws: Draws, *, channels: Sequence[int] | None = None, single_root: bool = True, seed: int
) -> TreeDraws:
    """Draw a tree in each channel for each draw of labels, with the weight by which it counts.

    Parameters
    ----------
    draws
        Of `inference.gibbs`, of labels and heads; the heads drawn there are not read. What was known then, is.
    channels
        Those whose heads are trees; the others stay unrestricted. None is all.
    single_root
        Whether exactly one word takes the root as its head; otherwise one or more.
    seed
        A non-negative integer.

    Returns
    -------
    TreeDraws
        Before its averages are believed, ``results.pareto_k(found.log_weights.flatten(0, 1))`` should not be above 0.7.

    Raises
    ------
    ValueError
        Draws that are not of latent choices with a root; channels that are not there; known heads that no tree has.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import inference, models
    >>> _ = torch.manual_seed(0)
    >>> crf = models.DependencyCRF(torch.randn(3, 2), torch.randn(1, 2, 2, 2), root_ternary=torch.randn(1, 2, 1))
    >>> draws = inference.gibbs(crf, num_samples=100, num_chains=10, num_warmup=20, seed=0)
    >>> found = inference.draw_trees(draws, seed=0)
    >>> found.heads.shape, int((found.heads == 0).sum(-1).max())
    (torch.Size([10, 100, 1, 3]), 1)
    >>> found.average(torch.nn.functional.one_hot(draws.samples["label"], 2)).shape         # label marginals
    torch.Size([3, 2])

    References
    ----------
    Koo et al. 2007, *Structured prediction models via the matrix-tree theorem*.
    """
    if not isinstance(draws, Draws) or not isinstance(draws.program, Formulation):
        kind = type(draws).__name__ if not isinstance(draws, Draws) else "Draws of parameters"
        raise ValueError(f"draws must be those of inference.gibbs(crf, ...), of labels and heads, not {kind}")
    formulation = draws.program
    data = formulation.bind(*draws.arguments)
    (own,) = seeds(seed, 1, "trees")
    like = next(iter(formulation.parameters().values()))
    generator = torch.Generator(like.device).manual_seed(own)
    rows = [  # chain by chain: the determinants of one take N times the memory of its attention
        formulation.draw_trees(
            data, {name: x[i] for name, x in draws.samples.items()}, generator, channels, single_root
        )
        for i in range(draws.num_chains)
    ]
    heads, log_weights = (torch.stack(x) for x in zip(*rows, strict=True))
    if (log_weights == -torch.inf).flatten(0, 1).all(0).any():
        raise ValueError("draws: no tree has the known heads of a sentence; mend them, or leave their channel out")
    log_probability, _, effective = log_mean(log_weights.flatten(0, 1))
    return TreeDraws(heads, log_weights, log_probability, effective)

"""The attention layer of a mixture of Gaussian keys (Nguyen et al.)."""

from typing import Any

import torch
from torch import Tensor

from probtx_pyro.nn._adaptation import Adapted
from probtx_pyro.nn._components import SeveralKeys, check_components
from probtx_pyro.nn._gaussian import GaussianAttention
from probtx_pyro.nn._options import arguments_of
from probtx_pyro.nn._priors import Priors
from probtx_pyro.nn.attention import Answers, Attention, Units
from probtx_pyro.ops._chunks import Reduction, log_sum, reduction


class GaussianKeysAttention(SeveralKeys, GaussianAttention):
    """Attention with a mixture of R Gaussian keys a unit, MGK (Nguyen et al. 2022,
    eq. 3-4 with the normalisers of erratum 9).

    Shapes: as ``torch.nn.MultiheadAttention``.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    head_dim, priors
        As for `Attention`. With half the heads give ``head_dim``, or each will be twice as wide.
    num_components
        R, the keys of a unit.
    share
        None: R projections of the input; ``"shift"``: one projection and R shifts a head (sMGK).
    assignment
        ``"soft"`` sums over the components, ``"hard"`` takes the largest (slower: not fused, chunked). Or any reduction
        of the last axis of a tensor of log probabilities.
    linked
        As for `GaussianMixtureAttention`, but False as in the paper. With ``linked=True`` and R = 1 the layer is scaled
        dot-product attention.
    unit_weights, unit_precision, adapt_steps, adapted, implicit, background
        As for `GaussianMixtureAttention`.

    Raises
    ------
    ValueError
        Options out of range or that exclude each other, and whatever `Attention` refuses.

    Examples
    --------
    >>> layer = GaussianKeysAttention(16, 2, batch_first=True, head_dim=4, share="shift")
    >>> output, weights = layer(*[torch.randn(3, 5, 16)] * 3)
    >>> output.shape, weights.shape
    (torch.Size([3, 5, 16]), torch.Size([3, 5, 5]))
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *, head_dim: int | None = None,
        priors: Priors | None = None, num_components: int = 2, share: str | None = None,
        assignment: str | Reduction = "soft", linked: bool = False, unit_weights: bool = False, unit_precision: bool = False,
        adapt_steps: int = 0, adapted: Adapted = ("keys",), implicit: bool = False, background: str | None = None,
    ):  # fmt: skip
        check_components(num_components, share)
        super().__init__(**arguments_of(Attention, locals()))
        self.num_components, self.share = num_components, share
        self.assignment, self.reduce = assignment, reduction(assignment)
        self._start(**arguments_of(self._start, locals()))
        self._make_components()

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """Return R keys for every unit."""
        units, several = super().units_of(keys, source), self.components(keys, source)
        return units._replace(keys=several.squeeze(-2) if self.num_components == 1 else several)

    @property
    def attention_options(self) -> dict[str, Any]:
        """The assignment of components, where it is not the sum over them."""
        return {} if self.num_components == 1 or self.reduce is log_sum else {"assignment": self.reduce}

    def ask(self, model: Any, queries: Tensor, need_weights: bool, *known: Tensor) -> Answers:
        """Return answers, and weights if asked for, under the layer's assignment of components."""
        if self.num_components == 1:
            return super().ask(model, queries, need_weights)
        weights = model.attention(queries, assignment=self.reduce) if need_weights else None
        return model.expected_outputs(queries, self.reduce), weights

"""The attention layer of one Gaussian key a unit (Movellan & Gabbur)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probtx_pyro.nn._gaussian import GaussianAttention
from probtx_pyro.nn._options import arguments_of
from probtx_pyro.nn._priors import Priors
from probtx_pyro.nn.attention import Answers, Attention
from probtx_pyro.ops._numerics import single


class GaussianMixtureAttention(GaussianAttention):
    """Attention as the posterior over Gaussian units (Movellan & Gabbur 2020): a trained ``MultiheadAttention`` is a special case.

    As it starts (``linked``, precision ``1/sqrt(head_dim)``) it *is* scaled dot-product attention, and stays so in exact
    arithmetic with the weights of a ``MultiheadAttention``; then precisions, unit weights and adaptation can depart from there.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    head_dim, priors
        As for `Attention`.
    linked
        True gives a unit a prior probability in proportion to ``exp(α|key|²/2)`` (paper eq. 16), with α the key precision, so that
        logits are dot products. False weighs units by Gaussian distance.
    unit_weights
        Learns, from the input that a key is projected from, how likely its unit is before any query is seen (starts at equal
        weights).
    unit_precision
        Learns a factor of each unit's precision in the same way (starts at 1); not with ``linked``, which needs equal ones.
    adapt_steps
        Number of ECM steps by which the units adapt to the queries of the call; 0 is none. Gradients flow through the steps. In a
        causal call query i meets units that adapted to queries up to i, in O(L² S) a step. Dropout then falls on the channels of
        the answers.
    adapted
        The parameters that adapt, of ``keys`` and ``key_precision``. The mode of the prior is the parameter as it was; each head
        learns how strong the prior is (``log_strength_keys`` and so on).
    map_steps
        Number of EM steps on the answer, to return the most probable one (paper eq. 14-15) instead of the mean; each head learns
        a value precision. 0 returns the mean, which does not depend on the value precision.

    Shapes: as ``torch.nn.MultiheadAttention``.

    Raises
    ------
    ValueError
        Options out of range or that exclude each other, and whatever `Attention` refuses.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> trained = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> layer = GaussianMixtureAttention(8, 2, batch_first=True)
    >>> layer.load_state_dict(trained.state_dict(), strict=False).unexpected_keys
    []
    >>> x = torch.randn(3, 5, 8)
    >>> bool((layer(x, x, x)[0] - trained(x, x, x)[0]).abs().max() < 1e-5)
    True
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *, head_dim: int | None = None,
        priors: Priors | None = None, linked: bool = True, unit_weights: bool = False,
        unit_precision: bool = False, adapt_steps: int = 0, adapted: Sequence[str] = ("keys",), map_steps: int = 0,
    ):  # fmt: skip
        if map_steps < 0:
            raise ValueError(f"map_steps must be 0 or more, not {map_steps}")
        super().__init__(**arguments_of(Attention, locals()))
        self._start(**arguments_of(self._start, locals()))
        self.map_steps = map_steps
        self.log_value_precision = nn.Parameter(torch.zeros((num_heads, 1), **self._made)) if map_steps else None

    @property
    def by_model(self) -> bool:
        """True if keys adapt or answers are MAP: the call then goes through the probability model itself."""
        return self.adapt_steps > 0 or self.map_steps > 0

    def constrained(self) -> dict[str, Tensor]:
        """Return the base's parameters and, where answers are MAP, ``value_precision`` (H, 1)."""
        values = super().constrained()
        own = self.log_value_precision
        return values if own is None else values | {"value_precision": own.exp()}

    def ask(self, model: Any, queries: Tensor, need_weights: bool) -> Answers:
        """Return the most probable answers where ``map_steps`` asks for them, else the mean; and weights if asked for."""
        if not self.map_steps or self.log_value_precision is None:
            return super().ask(model, queries, need_weights)
        precision = single(self.log_value_precision).exp().view(-1, *(1,) * (model.keys.dim() - 3))  # (H, [1,] 1)
        answers = model.with_parameters({"value_precision": precision}).map_outputs(queries, num_steps=self.map_steps)
        return answers, model.attention(queries) if need_weights else None

"""One causal step of ECM by running sums: the answers of `nn.GaussianMixtureAttention` without a matrix for every prefix."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from probtx_pyro import nn
from probtx_pyro.nn._heads import Masks, Units
from probtx_pyro.nn.attention import Answers


def keys_step(queries: Tensor, keys: Tensor, precision: Tensor, strength: Tensor, attention: Tensor) -> Tensor:
    """Return logits (..., L, S) of each query to keys that took one step with the queries up to it.

    With counts ``n_iu = Σ_{j<=i} w_ju`` and sums ``m_iu = Σ_{j<=i} w_ju q_j`` the key of prefix i is ``(θ k_u + α m_iu) / (θ + α n_iu)``
    (docs/mathematics.md, section 2.4, (2.11)). A logit asks for ``q_i · k`` and ``|k|²`` alone, which are running sums of numbers.

    Parameters
    ----------
    queries, keys
        (..., L, D) and (..., S, D).
    precision, strength
        α of the keys and θ of their prior, (..., 1, 1).
    attention
        w, (..., L, S), of the queries to the keys as they are, causal.
    """
    inner, across = queries @ queries.mT, queries @ keys.mT
    own = inner.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    pulled = inner.tril() @ attention  # q_i · m_iu
    # n_iu; k_u · m_iu; |m_iu|², by what each query adds. A product sums faster than cumsum goes down the columns
    added = torch.stack([attention, attention * across, attention * (2 * pulled - attention * own)])
    count, with_key, squared = queries.new_ones(inner.shape[-2:]).tril() @ added
    total = strength + precision * count
    stay, move = strength / total, precision / total
    size = stay.square() * keys.square().sum(-1).unsqueeze(-2) + 2 * stay * move * with_key + move.square() * squared
    return precision * (stay * across + move * pulled - 0.5 * size)


def shift_step(queries: Tensor, keys: Tensor, precision: Tensor, strength: Tensor, attention: Tensor) -> Tensor:
    """Return logits (..., L, S) of each query to keys whose shift took one step with the queries up to it.

    The shift of prefix i moves by ``α Σ_{j<=i} (q_j - Σ_u w_ju k_u) / (θ + α i)``. Arguments are those of `keys_step`, the queries
    less the shift as it is.
    """
    seen = torch.arange(1, queries.shape[-2] + 1, dtype=queries.dtype, device=queries.device).unsqueeze(-1)
    moved = precision * (queries - attention @ keys).cumsum(-2) / (strength + precision * seen)
    return precision * ((queries - moved) @ keys.mT - 0.5 * keys.square().sum(-1).unsqueeze(-2))


STEPS: Mapping[tuple[str, ...], Callable[..., Tensor]] = {("keys",): keys_step, ("shift",): shift_step}


def causal_softmax(logits: Tensor) -> Tensor:
    """Softmax over the units up to each query."""
    later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(later, -torch.inf).softmax(-1)


class OneStepAttention(nn.GaussianMixtureAttention):
    """`nn.GaussianMixtureAttention` that takes one causal step of its keys, or of its shift, in O(L S) memory.

    All prefixes of the queries start at the same keys, so one E-step serves them all. Whatever else a call asks for (several steps,
    masks, answers, weights, a linked prior, a metric) goes the library's way, where every prefix has an E-step of its own.
    """

    def attend(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Return the answers of every head; see `nn.Attention`."""
        own = all(prior is None for prior in self._given.values()) and tuple(self._given) in STEPS
        layer = (
            self.adapt is not None
            and self.adapt.steps == 1
            and own
            and not self.linked
            and self.metric is None
            and not self.map_steps
        )
        plain = masks == Masks(causal=True) and units[1:] == (
            None,
            None,
        )  # no tensor beside the causal mask and the keys
        if not layer or not plain or need_weights or self._rate:
            return super().attend(queries, units, values, masks, need_weights)
        (name,) = self._given
        queries, keys = self.whitened(queries, units.keys)
        precision, strength = (x.view(-1, 1, 1) for x in (self.log_key_precision.exp(), self._strengths()[name]))
        now = causal_softmax(precision * (queries @ keys.mT - 0.5 * keys.square().sum(-1).unsqueeze(-2)))
        return causal_softmax(STEPS[(name,)](queries, keys, precision, strength, now)) @ values, None


__all__ = ["OneStepAttention", "causal_softmax", "keys_step", "shift_step"]

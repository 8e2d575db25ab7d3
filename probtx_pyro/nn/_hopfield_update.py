"""The update rule of the Hopfield layers: states among patterns, step by step, in every head."""

import math

import torch
from torch import Tensor, nn

from probtx_pyro.models import GaussianMixture, Hopfield
from probtx_pyro.nn._masks import Masks
from probtx_pyro.nn.softmax import explicit, products
from probtx_pyro.ops._numerics import single
from probtx_pyro.ops._retrieval import POOLING, iterate


class StateUpdate(nn.Module):
    """Retrieval in every head, as both Hopfield layers do it.

    Shapes: states (B, H, L, D), patterns (B, H, S, D), values (B, H, S, M) -> (B, H, L, M), and weights (B, H, L, S) if asked for.

    Parameters
    ----------
    num_heads
        Number of heads; each has a β of its own where it learns.
    beta, learn_beta
        Inverse temperature β, and True if it is learned (as its logarithm, from this start); None is ``1/sqrt(D)`` for heads D
        wide.
    num_steps
        Steps in all: ``num_steps - 1`` of the states among the patterns, then one that reads the values out. 1 is attention.
    tol
        A state stops once it moves by no more than this times its largest magnitude; None takes all steps.
    transformation
        "softmax", "entmax15" or "sparsemax".
    device, dtype
        Of a β that is learned.
    """

    def __init__(
        self,
        num_heads: int,
        beta: float | None = None,
        *,
        learn_beta: bool = False,
        num_steps: int = 1,
        tol: float | None = None,
        transformation: str = "softmax",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if num_steps < 1:
            raise ValueError(f"num_steps must be 1 or more, not {num_steps}")
        if transformation not in POOLING:
            raise ValueError(f"transformation must be one of {', '.join(POOLING)}, not {transformation!r}")
        if beta is not None and not (0 < beta < math.inf):
            raise ValueError(f"beta must be positive and finite, not {beta}; it is an inverse temperature")
        self.beta, self.learn_beta, self.num_steps, self.tol = beta, learn_beta, num_steps, tol
        self.transformation = transformation
        self.log_beta = None
        if learn_beta:
            if beta is None:
                raise ValueError("learn_beta needs a number to start from; give beta")
            self.log_beta = nn.Parameter(torch.full((num_heads, 1), math.log(beta), device=device, dtype=dtype))

    def constrained(self) -> dict[str, Tensor]:
        """Return ``beta`` (H, 1) where it is learned."""
        return {} if self.log_beta is None else {"beta": self.log_beta.exp()}

    def inverse_temperature(self, width: int) -> Tensor | float:
        """Return β of heads of this width: a number, or (H, 1) where it is learned."""
        if self.log_beta is not None:
            return single(self.log_beta).exp()
        return width**-0.5 if self.beta is None else self.beta

    @property
    def is_attention(self) -> bool:
        """True if this is softmax attention: one step, of softmax."""
        return self.num_steps == 1 and self.transformation == "softmax"

    def forward(
        self,
        states: Tensor,
        patterns: Tensor,
        values: Tensor,
        masks: Masks,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what the states read out in the end and, if asked for, their last weights, the only ones that dropout falls on.

        With ``need_weights`` every step is explicit, which can be differentiated twice; else softmax is fused, which cannot on a CPU.

        Parameters
        ----------
        states, patterns, values
            (B, H, L, D), (B, H, S, D) and (B, H, S, M).
        masks
            The patterns that each state may retrieve.
        dropout
            Rate.
        need_weights
            Return weights (B, H, L, S), too.

        Returns
        -------
        Answers (B, H, L, M), and weights or None.
        """
        states = self.moved(states, patterns, masks, need_weights)
        return self._read(states, patterns, values, masks, dropout, need_weights)

    def moved(self, states: Tensor, patterns: Tensor, masks: Masks, explicitly: bool = False) -> Tensor:
        """Return the states after all steps among the patterns, (B, H, L, D): those that read the values out."""
        if self.num_steps == 1:
            return states

        def step(now: Tensor) -> Tensor:
            return self._read(now, patterns, patterns, masks, 0.0, explicitly)[0]

        found = iterate(step, states, problems=states.shape[:-1], num_steps=self.num_steps - 1, tol=self.tol)
        return found.state["state"]

    def formulation(
        self, states: Tensor, patterns: Tensor, values: Tensor, masks: Masks
    ) -> tuple[GaussianMixture | Hopfield, Tensor]:
        """Return the memory of every head, and the states of its last step; arguments as in `forward`.

        Softmax is the mixture that the memory is. A sparse transformation is a `Hopfield`, which takes no mask but 0 and -inf; with
        a mask for each state it has leading axes (B, H, L), and states (B, H, L, 1, D).
        """
        states, patterns, values = single(states), single(patterns), single(values)
        rows = masks.opened(states.shape[-2], values.shape[-2], values)
        states = self.moved(states, patterns, masks.written_out(states.shape[-2], values.shape[-2], values))
        beta = torch.as_tensor(self.inverse_temperature(states.shape[-1])).to(patterns)
        if self.transformation == "softmax":
            return GaussianMixture.linked(patterns, values, beta, 0.0, rows), states
        if rows is not None and ((rows != 0) & (rows > -torch.inf)).any():
            raise ValueError(
                "attn_mask adds numbers to the scores, which a sparse memory has no place for; give a boolean mask, or transformation='softmax'"
            )
        beta, how = beta.squeeze(-1) if beta.dim() else beta, self.transformation
        if rows is None or rows.shape[-2] == 1:
            return Hopfield(patterns, beta, values, None if rows is None else rows.squeeze(-2) == 0, how), states
        beta = beta.unsqueeze(-1) if beta.dim() else beta
        return Hopfield(patterns.unsqueeze(2), beta, values.unsqueeze(2), rows == 0, how), states.unsqueeze(-2)

    def _read(
        self, states: Tensor, patterns: Tensor, values: Tensor, masks: Masks, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        beta, how = self.inverse_temperature(states.shape[-1]), POOLING[self.transformation]
        asked = (single(states) if need_weights else states) * (
            beta.unsqueeze(-1) if isinstance(beta, Tensor) else beta
        )
        if need_weights:
            return explicit(products(asked, patterns), values, masks, dropout, how.function)
        return how.pool(asked, patterns, values, masks.log_prior, causal=masks.causal, dropout=dropout), None

    def extra_repr(self) -> str:
        """Return the settings, as modules print them."""
        return f"beta={self.beta}, learned={self.log_beta is not None}, num_steps={self.num_steps}, tol={self.tol}, transformation={self.transformation!r}"

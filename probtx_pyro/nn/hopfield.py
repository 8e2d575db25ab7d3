"""Hopfield layers: attention repeated, the state moving among the keys before it
reads the values out (Ramsauer et al. 2021).

Batch and heads keep their places throughout, (B, H, L, D): no item of a batch meets another (erratum 18).
"""

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from probtx_pyro.models import GaussianMixture, Hopfield
from probtx_pyro.nn._heads import Made, Masks, Shared, attended, combine
from probtx_pyro.nn._module import Priors, WithPriors, options, printed
from probtx_pyro.nn.attention import Answers, Attention, Units, explicit, products
from probtx_pyro.ops._chunks import Reduction
from probtx_pyro.ops._numerics import single
from probtx_pyro.ops._retrieval import POOLING, iterate


class StateUpdate(nn.Module):
    """Retrieval in every head, as both Hopfield layers do it.

    Shapes: states (B, H, L, D), patterns (B, H, S, D), values (B, H, S, M) -> (B, H, L, M), and weights (B, H, L, S) if
    asked for.

    Parameters
    ----------
    num_heads
        Number of heads; each has a β of its own where it learns.
    beta, learn_beta
        Inverse temperature β, and True if it is learned (as its logarithm, from this start); None is ``1/sqrt(D)`` for
        heads D wide.
    num_steps
        Steps in all: ``num_steps - 1`` of the states among the patterns, then one that reads the values out. 1 is
        attention.
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
        beta: float | None,
        learn_beta: bool,
        num_steps: int,
        tol: float | None,
        transformation: str,
        **made: Unpack[Made],
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
            self.log_beta = nn.Parameter(torch.full((num_heads, 1), math.log(beta), **made))

    def constrained(self) -> dict[str, Tensor]:
        """Return ``beta`` (H, 1) where it is learned."""
        return {} if self.log_beta is None else {"beta": self.log_beta.exp()}

    def inverse_temperature(self, width: int) -> Tensor | float:
        """Return β of heads of this width: a number, or (H, 1) where it is learned."""
        if self.log_beta is not None:
            return single(self.log_beta).exp()
        return width**-0.5 if self.beta is None else self.beta

    def forward(
        self,
        states: Tensor,
        patterns: Tensor,
        values: Tensor,
        masks: Masks,
        dropout: float = 0.0,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what the states read out in the end and, if asked for, their last weights,
        the only ones that dropout falls on.

        With ``need_weights`` every step is explicit, which can be differentiated twice; else softmax is fused, which
        cannot on a CPU.

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

        Softmax is the mixture that the memory is. A sparse transformation is a `Hopfield`, which takes no mask but 0
        and -inf; with a mask for each state it has leading axes (B, H, L), and states (B, H, L, 1, D).
        """
        states, patterns, values = single(states), single(patterns), single(values)
        rows = masks.opened(states.shape[-2], values.shape[-2], values)
        states = self.moved(states, patterns, masks.written_out(states.shape[-2], values.shape[-2], values))
        beta = torch.as_tensor(self.inverse_temperature(states.shape[-1])).to(patterns)
        if self.transformation == "softmax":
            return GaussianMixture.linked(patterns, values, beta, 0.0, rows), states
        if rows is not None and ((rows != 0) & (rows > -torch.inf)).any():
            repair = "give a boolean mask, or transformation='softmax'"
            raise ValueError(f"attn_mask adds numbers to the scores, which a sparse memory has no place for; {repair}")
        beta, how = beta.squeeze(-1) if beta.dim() else beta, self.transformation
        if rows is None or rows.shape[-2] == 1:
            return Hopfield(patterns, beta, values, None if rows is None else rows.squeeze(-2) == 0, how), states
        beta = beta.unsqueeze(-1) if beta.dim() else beta
        return Hopfield(patterns.unsqueeze(2), beta, values.unsqueeze(2), rows == 0, how), states.unsqueeze(-2)

    def _read(
        self, states: Tensor, patterns: Tensor, values: Tensor, masks: Masks, dropout: float, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        beta, how = self.inverse_temperature(states.shape[-1]), POOLING[self.transformation]
        beta = beta.unsqueeze(-1) if isinstance(beta, Tensor) else beta
        asked = (single(states) if need_weights else states) * beta
        if need_weights:
            return explicit(products(asked, patterns), values, masks, dropout, how.function)
        return how.pool(asked, patterns, values, masks.log_prior, causal=masks.causal, dropout=dropout), None

    def extra_repr(self) -> str:
        """Return the settings, as modules print them."""
        learned = f"beta={self.beta}, learned={self.learn_beta}"
        return f"{learned}, num_steps={self.num_steps}, tol={self.tol}, transformation={self.transformation!r}"


class HopfieldAttention(Attention):
    """Attention whose queries move among the keys for some steps before they read the values out.

    One step of softmax with ``beta=None``, that is ``1/sqrt(head_dim)``, is ``torch.nn.MultiheadAttention``. A β that
    does not learn is no part of the state, which then loads both ways with ``strict=True``.

    Shapes: as ``torch.nn.MultiheadAttention``.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    head_dim, priors
        As for `Attention`.
    num_steps
        Steps in all: ``num_steps - 1`` of the queries among the keys, then one that reads the values out.
    tol
        A query stops once it moves by no more than this times its largest magnitude; None takes all steps.
    beta, learn_beta
        Inverse temperature β, and True if each head learns one (as its logarithm, from this start); None is
        ``1/sqrt(head_dim)``.
    transformation
        ``"softmax"``, ``"entmax15"`` or ``"sparsemax"``: from scores to weights.

    Notes
    -----
    ``need_weights=False`` builds no L x S tensor, at any number of steps (sparse and causal together need a mask of
    that size). With ``tol`` the number of steps depends on the data, which a compiler cannot follow in one graph;
    ``torch.export`` takes all steps, with the same answers.

    Raises
    ------
    ValueError
        Options out of range, and whatever `Attention` refuses.

    Examples
    --------
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> trained = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> layer = HopfieldAttention.from_torch(trained)
    >>> x = torch.randn(3, 5, 8)
    >>> bool((layer(x, x, x)[0] - trained(x, x, x)[0]).abs().max() < 1e-5)
    True
    >>> deeper = HopfieldAttention.from_torch(trained, num_steps=3, transformation="entmax15")
    >>> deeper(x, x, x)[0].shape
    torch.Size([3, 5, 8])

    References
    ----------
    Ramsauer et al. 2021, *Hopfield Networks is All You Need*, arXiv 2008.02217.
    """

    def __init__(
        self,
        *torch: Any,
        num_steps: int = 1,
        tol: float | None = None,
        beta: float | None = None,
        learn_beta: bool = False,
        transformation: str = "softmax",
        **shared: Unpack[Shared],
    ):
        super().__init__(*torch, **shared)
        beta = self.head_dim**-0.5 if beta is None else beta
        self.update = StateUpdate(self.num_heads, beta, learn_beta, num_steps, tol, transformation, **self._made)

    def _options(self) -> dict[str, Any]:
        beta = None if self.update.beta == self.head_dim**-0.5 else self.update.beta
        return super()._options() | options(self.update, type(self)) | {"beta": beta}

    def constrained(self) -> dict[str, Tensor]:
        """Return ``beta`` (H, 1) where it is learned."""
        return self.update.constrained()

    def attend(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Take all steps but one among the keys, then one on the values. See `Attention.attend`."""
        return self.update(queries, units.keys, values, masks, self._rate, need_weights)

    def formulation(
        self, queries: Tensor, units: Units, values: Tensor, masks: Masks
    ) -> tuple[GaussianMixture | Hopfield, Tensor]:
        """Return the memory of every head, and the states of its last step. See `Attention.formulation`.

        Softmax is the mixture that the memory is; a sparse transformation is a `Hopfield`, which takes no mask but 0
        and -inf.
        """
        return self.update.formulation(queries, units.keys, values, masks)


class HopfieldRetrieval(WithPriors):
    """An associative memory as a layer without projections: states and stored patterns in, retrieved patterns out.

    Shapes: ``state`` (B, L, E), or (L, E) for a single one; ``patterns`` (B, S, E), or (S, E) for one memory that all
    items of the batch share; ``values`` (B, S, M) or (S, M), None for the patterns -> (B, L, M) or (L, M).

    Parameters
    ----------
    num_heads
        Heads among which the features are split, each a memory of its own.
    beta, learn_beta
        Inverse temperature β, and True if each head learns one (as its logarithm, from this start), which is then the
        only parameter; None is ``1/sqrt(D)`` for heads D wide.
    num_steps
        Steps in all: ``num_steps - 1`` of the states among the patterns, then one that reads the values out.
    tol
        A state stops once it moves by no more than this times its largest magnitude; None takes all steps.
    transformation
        ``"softmax"``, ``"entmax15"`` or ``"sparsemax"``: from scores to weights.
    patterns, values
        A memory (S, E) to hold as a buffer, and its answers (S, M) in place of the patterns; None if patterns come with
        each call.
    batch_first
        True for batches (B, L, E), False for (L, B, E), as in ``torch.nn.MultiheadAttention``.
    priors
        Pyro or torch distributions: a learned ``beta`` (H, 1) can have one; see `nn.log_prior_density`.

    Raises
    ------
    ValueError
        Settings out of range; in a call, shapes that do not fit, a width that the heads do not divide, no patterns
        anywhere.

    Examples
    --------
    >>> layer = HopfieldRetrieval(beta=8.0, patterns=torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))
    >>> layer(torch.tensor([[0.8, 0.0]])).round(decimals=3).tolist()
    [[1.0, 1.0]]

    References
    ----------
    Ramsauer et al. 2021, *Hopfield Networks is All You Need*, arXiv 2008.02217.
    """

    patterns: Tensor | None
    values: Tensor | None

    def __init__(
        self,
        num_heads: int = 1,
        beta: float | None = None,
        *,
        learn_beta: bool = False,
        num_steps: int = 1,
        tol: float | None = None,
        transformation: str = "softmax",
        patterns: Tensor | None = None,
        values: Tensor | None = None,
        batch_first: bool = False,
        priors: Priors | None = None,
    ):
        super().__init__(priors)
        if num_heads < 1:
            raise ValueError(f"num_heads must be 1 or more, not {num_heads}")
        if values is not None and patterns is None:
            raise ValueError("values to hold need the patterns that they answer; give both")
        self.num_heads, self.batch_first = num_heads, batch_first
        self.register_buffer("patterns", patterns)
        self.register_buffer("values", values)
        made: Made = {} if patterns is None else {"device": patterns.device, "dtype": patterns.dtype}
        self.update = StateUpdate(num_heads, beta, learn_beta, num_steps, tol, transformation, **made)

    def forward(
        self,
        state: Tensor,
        patterns: Tensor | None = None,
        values: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Return what the states retrieve; a state to which every pattern is forbidden gets 0.

        Parameters
        ----------
        state
            (B, L, E), (L, B, E) without ``batch_first``, or (L, E).
        patterns, values
            (B, S, E) and (B, S, M), or (S, E) and (S, M) for all items of the batch; None for those that the layer
            holds. Without values the patterns answer.
        key_padding_mask
            (B, S), True at patterns that no state may retrieve.
        attn_mask
            (L, S) or (B·H, L, S); True forbids, numbers are added to the logits.
        is_causal
            State i retrieves from patterns up to i.

        Returns
        -------
        (B, L, M), (L, B, M) without ``batch_first``, or (L, M).

        Raises
        ------
        ValueError
            Shapes that do not fit, a width that the heads do not divide, no patterns anywhere.
        """
        states, units, answers, masks = self.heads(state, patterns, values, key_padding_mask, attn_mask, is_causal)

        def read(states: Tensor, units: Units, answers: Tensor, masks: Masks, _: bool) -> Answers:
            return self.update(states, units.keys, answers, masks)

        retrieved = attended(read, states, units, answers, masks)[0].transpose(1, 2).flatten(-2)
        if state.dim() == 2:
            return retrieved.squeeze(0)
        return retrieved if self.batch_first else retrieved.transpose(0, 1)

    def heads(
        self,
        state: Tensor,
        patterns: Tensor | None = None,
        values: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Units, Tensor, Masks]:
        """Return states (B, H, L, D), patterns as units, values (B, H, S, M) and masks of every head;
        arguments as in `forward`.
        """
        if patterns is None:
            patterns, values = self.patterns, self.values if values is None else values
        if patterns is None:
            raise ValueError("there are no patterns; give them to the call, or to the layer, which then holds them")
        values = patterns if values is None else values
        single = state.dim() == 2
        if single and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        batch = 1 if single or state.dim() < 3 else state.shape[0 if self.batch_first else 1]
        states, keys, answers = (
            self._heads(name, x, batch) for name, x in (("state", state), ("patterns", patterns), ("values", values))
        )
        if states.shape[-1] != keys.shape[-1] or keys.shape[2] != answers.shape[2]:
            shapes = f"state {tuple(state.shape)}, patterns {tuple(patterns.shape)} and values {tuple(values.shape)}"
            raise ValueError(f"{shapes} disagree on features (state, patterns) or number (patterns, values)")
        masks = combine(attn_mask, key_padding_mask, is_causal, states, keys.shape[2])
        present = masks.present()
        if present is not None:
            keys, answers = torch.where(present, keys, 0.0), torch.where(present, answers, 0.0)
        return states, Units(keys), answers, masks

    def attending(
        self, queries: Tensor, units: Units, values: Tensor, masks: Masks
    ) -> tuple[GaussianMixture | Hopfield, Tensor]:
        """Return the memory of every head, and the states of its last step. See `HopfieldAttention.formulation`."""
        return self.update.formulation(queries, units.keys, values, masks)

    @property
    def attention_options(self) -> dict[str, Reduction]:
        """Arguments beyond the states by which the memory's ``attention`` is the layer's: none."""
        return {}

    def constrained(self) -> dict[str, Tensor]:
        """Return ``beta`` (H, 1) where it is learned."""
        return self.update.constrained()

    def extra_repr(self) -> str:
        """Return the sizes, and the options that differ from their defaults, as modules print them."""
        held = {name: tuple(x.shape) for name, x in self.named_buffers(recurse=False)}
        options = {"batch_first": self.batch_first, "priors": self.priors or None}
        return printed(self, {"num_heads": self.num_heads, **held}, options)

    def _heads(self, name: str, x: Tensor, batch: int) -> Tensor:
        """Split ``x`` into heads, (B, H, length, features of a head);
        without a batch axis it is shared by the batch.
        """
        if x.dim() == 3 and not self.batch_first:
            x = x.transpose(0, 1)
        if x.dim() not in (2, 3) or (x.dim() == 3 and x.shape[0] != batch) or x.shape[-1] % self.num_heads:
            wanted = f"batched (of {batch}, batch_first={self.batch_first}) or single, with features that num_heads"
            raise ValueError(f"{name} must be {wanted} {self.num_heads} divides, but has shape {tuple(x.shape)}")
        return x.expand(batch, *x.shape[-2:]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

"""The attention layer that is a memory: a regression from keys to values, learned pair by pair and read by queries.

An update says how pairs change the memory; `memory_updates` has those of the literature by name. Each is a function of
a `MemoryStream` and of the `MemoryState` before it. docs/mathematics.md, section 8.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.nn._heads import Masks, Shared, Units, _additive
from probtx_pyro.nn.attention import Answers, Attention
from probtx_pyro.ops import _memory_layers as layers
from probtx_pyro.ops._numerics import drop, known, single, unrounded
from probtx_pyro.ops.regression_memory import Pairs, factored

LEAST = 1e-4  # of both precisions
MOST = 8e3  # condition number up to which single precision keeps three digits: 1e-3 over its epsilon
FAINT = 1e-30  # strength below which a pair writes nothing: its inverse would overflow
Maybe = Tensor | None


class MemoryState(NamedTuple):
    """State of a memory after the pairs that it has read: its size does not depend on their number.

    mean: the memory (B, H, M, F); of `exact` with gates and of `conjugate_gradient` the sum of ``β v φ'`` that it
    follows from.
    spread: covariance of its rows (B, H, F, F), or the sum of ``β φ φ'`` in these two; variances (B, H, 1 or F) of the
    Kalman updates; None where an update keeps none.
    told: the sum of ``β |φ|²``, which bounds the condition number where nothing is forgotten, (B, H).
    """

    mean: Tensor
    spread: Maybe
    told: Tensor

    def to(self, dtype: torch.dtype) -> "MemoryState":
        """Return the state in another precision."""
        spread = None if self.spread is None else self.spread.to(dtype)
        return MemoryState(self.mean.to(dtype), spread, self.told.to(dtype))


class MemoryStream(NamedTuple):
    """Pairs in the order of time, and queries: all of the float32 or float64 that an update works in.

    features: φ of the keys, (B, H, T, F). values: (B, H, T, M). precision: β_t of each pair, 0 where it is absent, (B,
    H, T). log_forgetting: log γ_t, 0 where time stands still, (B, H, T); None where nothing is forgotten.
    prior_precision: λ, (B, H). queries: φ of the queries, (B, H, L, F). causal: True where query i is asked after pair
    i, and L = T; False where all are asked after the last pair. chunk_size: pairs that are written at once, at most.
    """

    features: Tensor
    values: Tensor
    precision: Tensor
    log_forgetting: Maybe
    prior_precision: Tensor
    queries: Tensor
    causal: bool
    chunk_size: int

    @property
    def asked(self) -> Maybe:
        """The queries, where each is asked after its pair."""
        return self.queries if self.causal else None

    @property
    def log_gamma(self) -> Tensor:
        """``log γ_t``, (B, H, T)."""
        return torch.zeros_like(self.precision) if self.log_forgetting is None else self.log_forgetting

    @property
    def moments(self) -> Tensor:
        """``β_t φ_t``, (B, H, T, F)."""
        return self.precision.unsqueeze(-1) * self.features

    def started(self, state: MemoryState | None, spread: Maybe = None) -> MemoryState:
        """The state, or the one before any pair; then with what these pairs tell."""
        if state is None:
            sizes = (*self.features.shape[:2], self.values.shape[-1], self.features.shape[-1])
            nothing = torch.zeros_like(self.prior_precision)
            state = MemoryState(self.values.new_zeros(sizes), spread, nothing)
        told = (self.precision * self.features.square().sum(-1)).sum(-1)
        state = state.to(self.values.dtype)
        return state._replace(told=state.told + told.detach())

    def in_double(self, state: MemoryState | None) -> tuple["MemoryStream", MemoryState | None]:
        """Return stream and state in double precision."""
        wide: dict[str, Any] = {name: x.double() for name, x in self._asdict().items() if isinstance(x, Tensor)}
        return self._replace(**wide), None if state is None else state.to(torch.float64)

    def holds(self, condition: Tensor) -> bool:
        """Return whether the precision at hand bears a condition number; refuse what double precision does not."""
        if self.features.dtype != torch.float64:
            return known((condition <= MOST).all(), otherwise=True)
        numbers = (self.features, self.values, self.precision, self.queries)
        if not known((condition < math.inf).all(), otherwise=True) and all(bool(x.isfinite().all()) for x in numbers):
            raise ValueError(
                "update: a memory lost its digits, no Cholesky factor is left; raise prior_precision or lower "
                "noise_precision, and of 'discount', whose doubt grows without bound, take 'exact' instead"
            )
        return True


class MemoryAnswers(NamedTuple):
    """Answers of a memory: their mean (B, H, L, M); their variance, without the noise of a value, (B, H, L);
    and the state after the last pair.
    """

    mean: Tensor
    spread: Tensor
    state: MemoryState


Update = Callable[[MemoryStream, MemoryState | None], MemoryAnswers]


def _covariance(stream: MemoryStream) -> Tensor:
    """``I/λ``, (B, H, F, F)."""
    eye = torch.eye(stream.features.shape[-1], dtype=stream.features.dtype, device=stream.features.device)
    return eye / stream.prior_precision[..., None, None]


def exact(stream: MemoryStream, state: MemoryState | None = None) -> MemoryAnswers:
    """The posterior mean of a memory that stands still; with gates, of one that is pulled back to its prior:
    MesaNet, solved by a Cholesky factor at every pair.
    """
    if stream.log_forgetting is None:
        return discount(stream, state)
    return _solved(layers.by_cholesky, stream, state)


def conjugate_gradient(stream: MemoryStream, state: MemoryState | None = None) -> MemoryAnswers:
    """MesaNet: as `exact`, by conjugate gradients; bands are a little too narrow."""
    return _solved(layers.by_conjugate_gradient, stream, state)


def discount(stream: MemoryStream, state: MemoryState | None = None) -> MemoryAnswers:
    """The posterior mean of a memory whose certainty is discounted by the gates: recursive least squares with
    forgetting, by one Cholesky factor a chunk.
    """
    before = stream.started(state, _covariance(stream))
    condition = torch.ones_like(before.told)
    if stream.log_forgetting is None:
        condition = 1 + before.told / stream.prior_precision.detach()
    if not stream.holds(condition):
        return discount(*stream.in_double(state))
    present = stream.precision > 0
    pairs = Pairs(stream.features, stream.values, torch.where(present, stream.precision, 1.0), present)
    mean, covariance = before.mean, before.spread
    assert covariance is not None
    reads = []
    for chunk in factored(pairs, stream.log_forgetting, mean, covariance, stream.chunk_size):
        if not stream.holds(chunk.condition):
            return discount(*stream.in_double(state))
        if stream.causal:
            reads.append(chunk.read(stream.queries[..., chunk.steps, :]))
        mean, covariance = chunk.after
    after = MemoryState(mean, covariance, before.told)
    if reads:
        answers, doubts = zip(*reads, strict=True)
        return MemoryAnswers(torch.cat(answers, -2), torch.cat(doubts, -1), after)
    spread = ((stream.queries @ covariance) * stream.queries).sum(-1)
    return MemoryAnswers(stream.queries @ mean.mT, spread, after)


def _solved(solve: layers.Solve, stream: MemoryStream, state: MemoryState | None) -> MemoryAnswers:
    """Keep N, the sum of ``β v φ'``, and H, that of ``β φ φ'``; the answer to q is ``N (H + λ I)⁻¹ q``."""
    before, prior, gamma, size = stream.started(state), stream.prior_precision, stream.log_gamma, stream.chunk_size
    given = stream.features, stream.precision, gamma, before.spread, prior, stream.causal, size
    queries = stream.queries.unsqueeze(-2 if stream.causal else -3)
    solved, moment = [], before.spread
    for system in layers.systems(*given):
        if not stream.holds(system.condition):
            return _solved(solve, *stream.in_double(state))
        x, failed = solve(system.matrix, queries[..., system.asked, :, :])
        if not stream.holds(system.condition.masked_fill(failed.any(-1), math.inf)):
            return _solved(solve, *stream.in_double(state))
        solved.append(x.flatten(-3, -2))
        moment = system.moment
    x = torch.cat(solved, -2)
    asked = x if stream.causal else None
    how = gamma, before.mean, asked, False, size
    reads, total = layers.recursion(stream.features, stream.moments, stream.values, *how)
    reads = x @ total.mT if reads is None else reads
    return MemoryAnswers(reads, (x * stream.queries).sum(-1), MemoryState(total, moment, before.told))


def linear(stream: MemoryStream, state: MemoryState | None = None) -> MemoryAnswers:
    """Linear attention, ``W = γ W + (β/λ) v φ'``; with gates RetNet and Mamba-2."""
    before, prior = stream.started(state), stream.prior_precision[..., None, None]
    return _recursive(stream, before, stream.moments / prior, False)


def delta(stream: MemoryStream, state: MemoryState | None = None) -> MemoryAnswers:
    """The delta rule, ``W = γ W + b (v - γ W φ) φ'`` with ``b = β/(λ + β |φ|²)``: DeltaNet, gated or not."""
    before, squares = stream.started(state), stream.features.square().sum(-1, keepdim=True)
    strength = stream.precision.unsqueeze(-1)
    gains = stream.moments / (stream.prior_precision[..., None, None] + strength * squares)
    return _recursive(stream, before, gains, True)


def kalman(stream: MemoryStream, state: MemoryState | None = None, diagonal: bool = True) -> MemoryAnswers:
    """Kalman delta networks: the filter of a stationary walk with decay γ that keeps one variance for each feature,
    or one for all. Variances go step by step, the memory by chunks.
    """
    prior, width = stream.prior_precision, stream.features.shape[-1] if diagonal else 1
    before = stream.started(state, (1 / prior).unsqueeze(-1).expand(*prior.shape, width))
    assert before.spread is not None
    gains, variances = layers.kalman_gains(stream.features, stream.precision, stream.log_gamma, before.spread, prior)
    last = variances[..., -1:, :]
    spread = ((variances if stream.causal else last) * stream.queries.square()).sum(-1)
    return _recursive(stream, before._replace(spread=last.squeeze(-2)), gains, True, spread)


def _recursive(
    stream: MemoryStream, before: MemoryState, gains: Tensor, errors: bool, spread: Maybe = None
) -> MemoryAnswers:
    """Write values, or errors, along gains; the variance of an answer is that of the prior where it is not given."""
    how = stream.values, stream.log_gamma, before.mean, stream.asked, errors, stream.chunk_size
    reads, mean = layers.recursion(stream.features, gains, *how)
    spread = stream.queries.square().sum(-1) / stream.prior_precision.unsqueeze(-1) if spread is None else spread
    return MemoryAnswers(stream.queries @ mean.mT if reads is None else reads, spread, before._replace(mean=mean))


memory_updates: Mapping[str, Update] = {
    "exact": exact,
    "discount": discount,
    "delta": delta,
    "linear": linear,
    "kalman_diagonal": kalman,
    "kalman_isotropic": partial(kalman, diagonal=False),
    "conjugate_gradient": conjugate_gradient,
}
"""Updates of a memory by the name that `RegressionMemoryAttention` takes. Where gates forget, ``exact`` and
``conjugate_gradient`` are pulled back to the prior, ``discount`` discounts certainty, the others decay the mean."""


class RegressionMemoryAttention(Attention):
    """Attention as a memory: a Bayesian regression from keys to values, which each query reads.

    ``v_s = W φ(k_s) + noise`` of precision β, under a normal prior of precision λ on W; the answer to a query is the
    mean of ``W φ(q)`` given the pairs up to it (causal), or given all. Keys and queries have norm 1 in each head. An
    answer costs the same however many pairs there were, and a state of fixed size goes on with a stream: see `step`.

    Shapes: as ``torch.nn.MultiheadAttention``.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    add_bias_kv, add_zero_attn
        Must be False: a memory has no unit beside its pairs.
    head_dim, priors
        As for `Attention`; the parameters are ``prior_precision`` λ and ``noise_precision`` β, (H,).
    update
        How pairs change the memory: a name of `memory_updates`, or a function like those.
    feature_map
        φ, (..., D) -> (..., F), of any sign; None is the identity.
    gates
        True: each head learns from its input how strong a pair is, ``b = sigmoid(W_b x)``, its precision being β b, and
        what is kept of the pairs before it, ``γ = exp(-exp(a) softplus(W_a x + c))``.
    chunk_size
        Pairs that are written at once, at most. It changes cost and rounding alone.

    Notes
    -----
    ``key_padding_mask`` hides pairs: nothing is written, and no time passes; numbers are added to the log of b. The one
    ``attn_mask`` that is taken is the causal one. Weights are the matrix whose product with the values is the answer:
    *signed*, and with rows of any sum. Dropout drops values, the same for all queries of a head.

    The mean depends on λ and β by their ratio alone; bands (see `bands`) depend on both. Memories work in single
    precision at least, and those that solve in double precision where a bound of the condition number, ``1 + Σ
    β|φ|²/λ``, passes 8,000. Nothing is ever added to a diagonal. With gates
    ``exact`` and ``conjugate_gradient`` hold an F x F matrix for each pair of a chunk, and for each pair of the stream
    in training.

    `remember` and `recall`, by which decoders go on word by word, keep the pairs and read all of them again at each
    word; `step` keeps a state.

    Raises
    ------
    ValueError
        Options out of range, another ``attn_mask``, and whatever `Attention` refuses; in a call, precisions so far
        apart that a Cholesky factor fails in double precision.

    Examples
    --------
    >>> import torch
    >>> layer = RegressionMemoryAttention(8, 2, batch_first=True, update="delta", gates=True).double()
    >>> x = torch.randn(3, 5, 8, dtype=torch.float64)
    >>> whole = layer(x, x, x, need_weights=False, is_causal=True)[0]
    >>> state = layer.prefill(x[:, :4])
    >>> last, state = layer.step(x[:, 4:], state)
    >>> bool((last - whole[:, 4:]).abs().max() < 1e-10)
    True

    References
    ----------
    von Oswald et al. 2025, *MesaNet*, arXiv 2506.05233 (exact and conjugate gradients, with gates); Yang et al. 2024,
    *Gated Delta Networks*, arXiv 2412.06464 (gates, delta); West & Harrison 1997 (discount); docs/mathematics.md,
    section 8.
    """

    def __init__(
        self,
        *torch: Any,
        update: str | Update = "exact",
        feature_map: Callable[[Tensor], Tensor] | None = None,
        gates: bool = False,
        chunk_size: int = 64,
        **shared: Unpack[Shared],
    ):
        super().__init__(*torch, **shared)
        if not callable(update) and update not in memory_updates:
            raise ValueError(f"update must be one of {', '.join(memory_updates)}, or a function, not {update!r}")
        if chunk_size < 1:
            raise ValueError(f"chunk_size must be 1 or more, not {chunk_size}")
        if self.add_bias_kv or self.add_zero_attn:
            raise ValueError("add_bias_kv, add_zero_attn: a memory has no unit beside its pairs; leave them False")
        self.update, self.feature_map, self.gates, self.chunk_size = update, feature_map, gates, chunk_size
        self._make_parameters()

    def _make_parameters(self) -> None:
        start = torch.full((self.num_heads,), math.log(math.expm1(1 - LEAST)), **self._made)
        self.raw_prior_precision, self.raw_noise_precision = nn.Parameter(start), nn.Parameter(start.clone())
        if self.gates:
            self.strength = nn.Linear(self.kdim, self.num_heads, bias=False, **self._made)
            self.forgetting = nn.Linear(self.kdim, self.num_heads, **self._made)
            self.log_rate = nn.Parameter(torch.zeros(self.num_heads, **self._made))
            with torch.no_grad():  # heads that forget half in some 7 to 700 pairs
                self.forgetting.bias.copy_(torch.logspace(-3, -1, self.num_heads).expm1().log())

    @property
    def prior_precision(self) -> Tensor:
        """λ of each head, (H,)."""
        return LEAST + F.softplus(single(self.raw_prior_precision))

    @property
    def noise_precision(self) -> Tensor:
        """β of each head, (H,)."""
        return LEAST + F.softplus(single(self.raw_noise_precision))

    def constrained(self) -> dict[str, Tensor]:
        """Return ``prior_precision`` and ``noise_precision``, (H,)."""
        return {"prior_precision": self.prior_precision, "noise_precision": self.noise_precision}

    def units_of(self, keys: Tensor, source: Tensor) -> Units:
        """Return the keys, with the logs of the gates where there are some."""
        if not self.gates:
            return Units(keys)
        rate = F.softplus(single(self.forgetting(source))) * single(self.log_rate).exp()
        return Units(keys, F.logsigmoid(single(self.strength(source))).mT, log_forgetting=-rate.mT)

    def _masked(
        self,
        queries: Tensor,
        units: Units,
        values: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
    ) -> tuple[Units, Tensor, Masks]:
        """Return what every layer does; the one ``attn_mask`` that is taken is the causal one."""
        if attn_mask is not None and not is_causal:
            shape = queries.shape[-2], values.shape[-2]
            of_heads = queries.shape[0] * queries.shape[1], *shape
            rows = _additive("attn_mask", attn_mask, [shape, of_heads], queries.dtype)
            causal = torch.full(shape, -math.inf, dtype=queries.dtype, device=queries.device).triu(1)
            assert rows is not None
            if not known((rows == causal).all(), otherwise=False):
                raise ValueError("attn_mask: a memory reads all pairs up to a query; use is_causal or key_padding_mask")
            attn_mask, is_causal = None, True
        return super()._masked(queries, units, values, attn_mask, key_padding_mask, is_causal)

    def _features(self, x: Tensor) -> Tensor:
        """φ of queries or keys (B, H, N, D), after they have norm 1."""
        x = F.normalize(single(x), dim=-1)
        return x if self.feature_map is None else self.feature_map(x)

    def stream(self, queries: Tensor, units: Units, values: Tensor, masks: Masks) -> MemoryStream:
        """Return what an update reads; arguments as of `Attention.attend`, values (B, H, S, M)."""
        prior, noise = self.prior_precision, self.noise_precision.unsqueeze(-1)
        log_strength = noise.new_zeros(values.shape[:3]) if units.log_weights is None else units.log_weights
        log_forgetting = units.log_forgetting
        if masks.log_prior is not None:
            rows = single(masks.log_prior).squeeze(-2)
            log_strength = log_strength + rows
            if log_forgetting is not None:
                log_forgetting = torch.where(rows.exp() > 0, log_forgetting, 0.0)
        precision = noise * log_strength.exp()
        precision = torch.where(precision < FAINT, 0.0, precision)
        features, asked = self._features(units.keys), self._features(queries)
        # causal: query i is asked after pair i, if there is one; else there is one pair at least, an absent one
        more = queries.shape[-2] - values.shape[-2] if masks.causal else max(0, 1 - values.shape[-2])
        features, values = (F.pad(x, (0, 0, 0, more)) for x in (features, values))
        precision = F.pad(precision, (0, more))
        log_forgetting = None if log_forgetting is None else F.pad(log_forgetting, (0, more))
        prior = prior.expand(values.shape[0], -1)
        return MemoryStream(
            features, single(values), precision, log_forgetting, prior, asked, masks.causal, self.chunk_size
        )

    def _answered(
        self, queries: Tensor, units: Units, values: Tensor, masks: Masks, state: MemoryState | None = None
    ) -> MemoryAnswers:
        update = memory_updates[self.update] if isinstance(self.update, str) else self.update
        with unrounded(values.device):
            return update(self.stream(queries, units, values, masks), state)

    def attend(self, queries: Tensor, units: Units, values: Tensor, masks: Masks, need_weights: bool) -> Answers:
        """Return what the queries read; weights are reads of one-hot values. See `Attention.attend`."""
        written = values
        if need_weights:
            one_hot = torch.eye(values.shape[2], dtype=values.dtype, device=values.device)
            written = one_hot.expand(*values.shape[:3], -1)
        if self._rate:
            written = written * drop(values.new_ones(*values.shape[:3], 1), self._rate)
        reads = self._answered(queries, units, written, masks).mean
        if not need_weights:
            return reads.to(values.dtype), None
        with unrounded(values.device):
            return (reads @ single(values).to(reads)).to(values.dtype), reads.to(values.dtype)

    def bands(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return what every head reads, before ``out_proj``, with the variance of a value there.

        Parameters
        ----------
        query, key, value, key_padding_mask, attn_mask, is_causal
            As in `Attention.forward`.

        Returns
        -------
        The mean (B, L, H, M), and the variance (B, L, H) of each of the M numbers of a value about it, the update's
        own: ``1/β + φ'Cφ``, in place of C what the update keeps; of `delta` and `linear`, which keep no certainty,
        that of the prior.
        """
        heads = self.heads(query, key, value, key_padding_mask, attn_mask, is_causal)
        found = self._answered(*heads)
        variance = found.spread + 1 / self.noise_precision.unsqueeze(-1)
        return tuple(x.transpose(1, 2).to(query.dtype) for x in (found.mean, variance))  # type: ignore[return-value]

    def step(self, x: Tensor, state: MemoryState | None = None) -> tuple[Tensor, MemoryState]:
        """Go on with a stream: causal self-attention of its next tokens, whose cost and state do not grow with it.

        Parameters
        ----------
        x
            The next tokens, (B, L, embed_dim), whatever ``batch_first`` is; in decoding L is 1.
        state
            After the tokens before them; None where there are none.

        Returns
        -------
        The output (B, L, embed_dim), and the state after these tokens.
        """
        self._validate(x, x, x)
        queries, units, values = self._project(x, x, x)
        masks = Masks(causal=True)
        found = self._answered(queries, units, values, masks, state)
        return self._output(found.mean.to(values.dtype), masks), found.state

    def prefill(self, x: Tensor, state: MemoryState | None = None) -> MemoryState:
        """Return the state after more tokens of a stream; arguments as in `step`."""
        return self.step(x, state)[1]

    def formulation(self, queries: Tensor, units: Units, values: Tensor, masks: Masks) -> NoReturn:
        """Refuse: a `Formulation` has its values inside, a memory is given its pairs."""
        raise NotImplementedError(
            "formulation: the weights of a memory are signed, the posterior of no assignment; ask bands for the "
            "uncertainty of what it reads, or give keys and values to models.RegressionMemory"
        )

"""The attention layer of one Gaussian key a unit (Movellan & Gabbur)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probtx_pyro.models._supports import CholeskyCoordinates
from probtx_pyro.models.gaussian_mixture import Metric
from probtx_pyro.nn._adaptation import Adapted
from probtx_pyro.nn._gaussian import GaussianAttention
from probtx_pyro.nn._options import arguments_of
from probtx_pyro.nn._priors import Priors
from probtx_pyro.nn.attention import Answers, Attention
from probtx_pyro.ops._numerics import single


class Coordinates(NamedTuple):
    """Parametrisation of a learned metric. count: how many coordinates, from D. root: its root,
    from coordinates (..., count).
    """

    count: Callable[[int], int]
    root: Callable[[Tensor], Metric]


def _diagonal(x: Tensor) -> Metric:
    """Take the logarithms of the root's diagonal, less their mean."""
    return Metric((x - x.mean(-1, keepdim=True)).exp(), True)


def _full(x: Tensor) -> Metric:
    """Take the lower triangle of the root by rows, its diagonal in logarithms, less their mean."""
    triangle = CholeskyCoordinates().root(x)
    diagonal = _diagonal(triangle.diagonal(dim1=-2, dim2=-1).log()).root
    return Metric(triangle.tril(-1) + diagonal.diag_embed(), False)


METRICS: Mapping[str, Coordinates] = MappingProxyType({
    "diagonal": Coordinates(lambda features: features, _diagonal),
    "full": Coordinates(lambda features: features * (features + 1) // 2, _full),
})  # fmt: skip


class GaussianMixtureAttention(GaussianAttention):
    """Attention as the posterior over Gaussian units (Movellan & Gabbur 2020):
    a trained ``MultiheadAttention`` is a special case.

    As it starts (``linked``, precision ``1/sqrt(head_dim)``) it *is* scaled dot-product attention, and stays so in
    exact arithmetic with the weights of a ``MultiheadAttention``; then precisions, unit weights and adaptation can
    depart from there.

    Shapes: as ``torch.nn.MultiheadAttention``.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for ``torch.nn.MultiheadAttention``.
    head_dim, priors
        As for `Attention`.
    linked
        True gives a unit a prior probability in proportion to ``exp(α|key|²/2)`` (paper eq. 16), with α the key
        precision, so that logits are dot products. False weighs units by Gaussian distance.
    unit_weights
        Learns, from the input that a key is projected from, how likely its unit is before any query is seen (starts at
        equal weights).
    unit_precision
        Learns a factor of each unit's precision in the same way (starts at 1); not with ``linked``, which needs equal
        ones.
    adapt_steps
        Number of ECM steps by which the units adapt to the queries of the call; 0 is none. Gradients flow through the
        steps. In a causal call query i meets units that adapted to queries up to i, in O(L² S) a step. Dropout then
        falls on the channels of the answers.
    adapted
        The parameters that adapt: names, each under a prior whose mode is the parameter as it was, of a strength that
        each head learns (``log_strength_keys`` and so on). Or a mapping from names to priors: any Pyro distribution
        that fits the parameter of every head, (B, H, ...); a function (or a module, which then trains with the layer)
        from its present value to a distribution; None for the layer's own. Names are ``keys``, ``key_precision`` and
        ``weights``, with ``shift=True`` ``shift``, with a metric ``metric``, with ``answers=True`` ``values`` and
        ``value_precision``.
    implicit
        Gradients of the adapted units by the implicit function theorem, for so many steps that they have settled,
        instead of through the steps.
    background
        One more unit, the last: attention to nothing. Its key is 0, its weight is learned by each head
        (``background_log_weight``), and where units are not linked its precision. ``"zero"`` answers with 0: linked,
        attention to the others is ``exp(s_j) / (1 + Σ exp(s))`` at the start. ``"learned"`` learns its answer, too.
    map_steps
        Number of EM steps on the answer, to return the most probable one (paper eq. 14-15) instead of the mean; each
        head learns a value precision. 0 returns the mean, which does not depend on the value precision.
    metric
        ``"diagonal"`` or ``"full"``: each head learns an inner product of queries and keys, from the identity. Its
        determinant is 1, since ``key_precision`` is its scale. None is the identity.
    shift
        Each head learns a displacement of all keys, from 0.
    answers
        True takes known answers of some queries (``answers``, ``observed`` of `forward`): by them the units adapt, so
        that they inform the other queries. A query whose answer is known answers with it. Each head learns a value
        precision.

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
        unit_precision: bool = False, adapt_steps: int = 0, adapted: Adapted = ("keys",), implicit: bool = False,
        background: str | None = None, map_steps: int = 0, metric: str | None = None, shift: bool = False,
        answers: bool = False,
    ):  # fmt: skip
        if map_steps < 0:
            raise ValueError(f"map_steps must be 0 or more, not {map_steps}")
        if metric is not None and metric not in METRICS:
            raise ValueError(f"metric must be None or one of {', '.join(map(repr, METRICS))}, not {metric!r}")
        if answers and not adapt_steps:
            raise ValueError(
                "answers=True needs adapt_steps=1 or more; answers inform other queries by the units that adapt"
            )
        super().__init__(**arguments_of(Attention, locals()))
        self.map_steps, self.metric, self.shift, self.answers = map_steps, metric, shift, answers
        self._start(**arguments_of(self._start, locals()))
        count = 0 if metric is None else METRICS[metric].count(self.head_dim)
        self.log_value_precision = self._per_head(1, where=map_steps > 0 or answers)
        self.metric_coordinates = self._per_head(count, where=metric is not None)
        self.key_shift = self._per_head(self.head_dim, where=shift)

    @property
    def by_model(self) -> bool:
        """True if keys adapt or answers are MAP: the call then goes through the probability model itself."""
        return self.adapt_steps > 0 or self.map_steps > 0

    @property
    def takes_answers(self) -> bool:
        """True if known answers of some queries inform the others."""
        return self.answers

    @property
    def lacking(self) -> dict[str, str]:
        """Parameters of the model that the layer does not have, and what it takes to have them."""
        needs = {"metric": "metric='full'", "shift": "shift=True", "values": "answers=True"}
        needs |= {"value_precision": "answers=True", "answer_probs": "labels, which a layer does not answer with"}
        there = {"metric": self.metric, "shift": self.shift, "values": self.answers, "value_precision": self.answers}
        return {name: repair for name, repair in needs.items() if not there.get(name)}

    def constrained(self) -> dict[str, Tensor]:
        """Return the base's parameters and, where the layer has them, ``value_precision`` (H, 1), ``metric`` (H,
        D) or (H, D, D) and ``shift`` (H, D).
        """
        values = super().constrained()
        if self.log_value_precision is not None:
            values["value_precision"] = self.log_value_precision.exp()
        if self.metric is not None:
            values["metric"] = self._lambda()
        return values if self.key_shift is None else values | {"shift": self.key_shift}

    def _root(self) -> Metric:
        """Root of the metric of every head."""
        assert self.metric is not None and self.metric_coordinates is not None
        return METRICS[self.metric].root(single(self.metric_coordinates))

    def _lambda(self) -> Tensor:
        """The metric of every head, (H, D) or (H, D, D)."""
        return self._root().times(self.log_key_precision.new_ones(1)).squeeze(-2 if self.metric == "diagonal" else -3)

    def whitened(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys where the metric is the plain inner product and the shift is 0."""
        if self.key_shift is not None:
            queries = queries - self.key_shift.unsqueeze(-2)
        if self.metric is None:
            return queries, keys
        root = self._root()
        root = root._replace(root=root.root.to(single(queries).dtype))
        return root.whiten(queries), root.whiten(keys)

    def shared(self, keys: Tensor) -> dict[str, Any]:
        """Return metric, shift and value precision of the mixture of every head."""
        own: dict[str, Any] = {"shift": self.key_shift, "metric": None if self.metric is None else self._lambda()}
        own["value_precision"] = None if self.log_value_precision is None else single(self.log_value_precision).exp()
        laid = {
            name: x.to(keys.dtype).expand(*keys.shape[:2], *x.shape[1:]) for name, x in own.items() if x is not None
        }
        return laid | ({} if self.metric is None else {"diagonal_metric": self.metric == "diagonal"})

    def ask(self, model: Any, queries: Tensor, need_weights: bool, *known: Tensor) -> Answers:
        """Return the most probable answers where ``map_steps`` asks for them, else the mean;
        and weights if asked for.
        """
        if not self.map_steps:
            return super().ask(model, queries, need_weights, *known)
        answers = model.map_outputs(queries, num_steps=self.map_steps)
        return answers, model.attention(queries, *known) if need_weights else None

"""The attention layer of one Gaussian key a unit (Movellan & Gabbur)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Unpack

from torch import Tensor

from probtx_pyro.models._supports import CholeskyCoordinates
from probtx_pyro.models.gaussian_mixture import Metric
from probtx_pyro.nn._gaussian import Adapt, GaussianAttention
from probtx_pyro.nn._heads import Shared
from probtx_pyro.nn.attention import Answers
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


METRICS: Mapping[str, Coordinates] = {
    "diagonal": Coordinates(lambda features: features, _diagonal),
    "full": Coordinates(lambda features: features * (features + 1) // 2, _full),
}


class GaussianMixtureAttention(GaussianAttention):
    """Attention as the posterior over Gaussian units (Movellan & Gabbur 2020):
    a trained ``MultiheadAttention`` is a special case.

    As it starts (``linked``, precision ``1/sqrt(head_dim)``) it *is* scaled dot-product attention, and stays so in
    exact arithmetic with the weights of a ``MultiheadAttention``; then precisions, metric and adaptation can
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
    adapt
        How the units adapt to the queries of a call, `Adapt` or a mapping of its fields; None: they do not.
    background
        One more unit, the last: attention to nothing. Its key is 0, its weight is learned by each head
        (``background_log_weight``), and where units are not linked its precision. Linked, the log weight is a logit,
        the same for every query and mask: attention to the others is ``exp(s_j) / (exp(s_0) + Σ exp(s))``, with s_0 = 0
        at the start. ``"zero"`` answers with 0, ``"learned"`` learns its answer, too.
    map_steps
        Number of EM steps on the answer, to return the most probable one (paper eq. 14-15) instead of the mean; each
        head learns a value precision. 0 returns the mean, which does not depend on the value precision.
    metric
        ``"diagonal"`` or ``"full"``: each head learns an inner product of queries and keys, from the identity. Its
        determinant is 1, since ``key_precision`` is its scale. None is the identity.
    shift
        Each head learns a displacement of all keys, from 0.

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
        self,
        *torch: Any,
        linked: bool = True,
        adapt: Adapt | Mapping[str, object] | None = None,
        background: str | None = None,
        map_steps: int = 0,
        metric: str | None = None,
        shift: bool = False,
        **shared: Unpack[Shared],
    ):
        if map_steps < 0:
            raise ValueError(f"map_steps must be 0 or more, not {map_steps}")
        if metric is not None and metric not in METRICS:
            raise ValueError(f"metric must be None or one of {', '.join(map(repr, METRICS))}, not {metric!r}")
        super().__init__(*torch, **shared)
        self.map_steps, self.metric, self.shift = map_steps, metric, shift
        self._start(linked, adapt, background)
        count = 0 if metric is None else METRICS[metric].count(self.head_dim)
        self.log_value_precision = self._per_head(1, where=map_steps > 0 or self.takes_answers)
        self.metric_coordinates = self._per_head(count, where=metric is not None)
        self.key_shift = self._per_head(self.head_dim, where=shift)

    @property
    def by_model(self) -> bool:
        """True if keys adapt or answers are MAP: the call then goes through the probability model itself."""
        return self.adapt is not None or self.map_steps > 0

    @property
    def takes_answers(self) -> bool:
        """True if known answers of some queries inform the others."""
        return self.adapt is not None and self.adapt.answers

    @property
    def lacking(self) -> dict[str, str]:
        """Parameters of the model that the layer does not have, and what it takes to have them."""
        needs = {"metric": "metric='full'", "shift": "shift=True", "values": "answers=True"}
        needs |= {"value_precision": "answers=True", "answer_probs": "labels, which a layer does not answer with"}
        there: dict[str, object] = dict.fromkeys(("values", "value_precision"), self.takes_answers)
        there |= {"metric": self.metric, "shift": self.shift}
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
        own = {"shift": self.key_shift, "metric": None if self.metric is None else self._lambda()}
        own["value_precision"] = None if self.log_value_precision is None else single(self.log_value_precision).exp()
        of_heads = {name: x.to(keys.dtype) for name, x in own.items() if x is not None}
        laid = {name: x.expand(*keys.shape[:2], *x.shape[1:]) for name, x in of_heads.items()}
        return {**laid, "diagonal_metric": self.metric == "diagonal"} if self.metric else laid

    def ask(self, model: Any, queries: Tensor, need_weights: bool, *known: Tensor) -> Answers:
        """Return the most probable answers where ``map_steps`` asks for them, else the mean;
        and weights if asked for.
        """
        if not self.map_steps:
            return super().ask(model, queries, need_weights, *known)
        answers = model.map_outputs(queries, num_steps=self.map_steps)
        return answers, model.attention(queries, *known) if need_weights else None

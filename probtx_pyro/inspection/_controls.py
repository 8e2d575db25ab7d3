"""Densities that know nothing of a head's keys, beside which its mixture is to be seen.

The mixture of a head is told from the mean and the spread of its queries, too, so that its evidence says little until
it is set beside that of a plain Gaussian with the same mean and spread, and of a mixture of keys that belong to other
queries.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from probtx_pyro.inspection._captured import Captured, stack_layers
from probtx_pyro.models import GaussianMixture


def controls(
    captured: Captured | Mapping[str, Captured], other: Captured | Mapping[str, Captured] | None = None
) -> dict[str, GaussianMixture]:
    """Fit densities to the captured queries that a head's mixture should beat, if its keys say anything of them.

    ``"one Gaussian, isotropic"`` has the mean and the mean square of the queries that count, by maximum likelihood.

    ``"one Gaussian, full"`` has their mean m and covariance ``(n S + D s² I) / (n + D)``, where S is the covariance of
    the n queries and ``s² = tr S / D``. That is the most probable one under the conjugate prior that is worth D more
    queries, as many as directions, spread evenly: with ``D/2 (log|Λ| - s² tr Λ)`` added to the log likelihood
    ``n/2 (log|Λ| - tr SΛ)``, the derivative by Λ vanishes where the inverse of Λ is this. It exists for two queries,
    has the mean square of the isotropic one, and tends to maximum likelihood as n grows.

    ``"keys of another text"`` is the mixture of the head with the keys of a text that the queries do not come from,
    told by its own best equivalent (of the metric of the mixture that it is compared with). Where an axis of the batch
    has two texts or more, each query asks the units that the query at its place in the next text may attend to, and in
    the last text those of the first: a causal mask is kept, padding is that of the text whose keys they are.

    Parameters
    ----------
    captured
        One `Captured`, or what `inspection.capture` returned, if its layers have one shape. Axes named ``batch`` are
        pooled. Of a `BestEquivalent` that was fitted on other text, controls are fitted on that text, too.
    other
        The same heads with another text of as many tokens, whose keys (and masks) are taken in place of those of the
        next text. Without it and without two texts, "keys of another text" is left out.

    Returns
    -------
    dict of GaussianMixture
        By name; candidates for `cross_validate`, and what `query_check` draws from beside the head's mixture.

    Raises
    ------
    ValueError
        A head whose queries are all the same, or none; ``other`` of another shape.

    Examples
    --------
    >>> from probtx_pyro.inspection import captured
    >>> _ = torch.manual_seed(0)
    >>> one = captured(torch.randn(2, 3, 40, 4), torch.randn(2, 3, 40, 4))
    >>> {name: density.num_units for name, density in controls(one).items()}
    {'one Gaussian, isotropic': 1, 'one Gaussian, full': 1, 'keys of another text': 40}

    References
    ----------
    Gelman et al. 2013, *Bayesian Data Analysis*, section 3.6: the conjugate prior of a covariance.
    """
    one, given = (x if isinstance(x, Captured) or x is None else stack_layers(x) for x in (captured, other))
    assert one is not None
    source = getattr(one, "fitted_on", None) or one
    counted, features = source.present.unsqueeze(-1).to(source.queries), source.queries.shape[-1]
    count, size = source._pooled(counted), source._pooled(counted * source.queries.square()).sum(-1)
    mean = source._pooled(counted * source.queries) / count
    away = counted * (source.queries - source._answered(source._beside(mean, 1).unsqueeze(-2), 1))
    second = source._pooled((away.mT @ away).unsqueeze(-3))  # n S, (*heads, D, D)
    spread = second.diagonal(dim1=-2, dim2=-1).mean(-1)  # n s²
    if not bool((spread > 64 * torch.finfo(spread.dtype).eps * size).all()):
        raise ValueError("captured has a head whose queries are all alike, or none; it has no controls, leave it out")
    even = features * (spread / count.squeeze(-1))[..., None, None] * torch.eye(features).to(spread)
    covariance = (second + even) / (count + features).unsqueeze(-1)
    metric = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    at, isotropic = one._beside(mean.unsqueeze(-2), 2), one._beside(count / spread.unsqueeze(-1), 1)
    found = {
        "one Gaussian, isotropic": GaussianMixture(at, None, isotropic),
        "one Gaussian, full": GaussianMixture(at, None, metric=one._beside(metric, 2)),
    }
    told = _of_another_text(source, one, given)
    return found if told is None else found | {"keys of another text": told}


def _of_another_text(source: Captured, one: Captured, other: Captured | None) -> GaussianMixture | None:
    """The mixture of other keys for the queries of ``one``, its b and P from those of ``source``;
    None where there is no other text, or where units differ in precision and have a metric besides.
    """
    written, precision = one.as_written, torch.atleast_1d(one.as_written.key_precision)
    if written.metric is not None and bool((precision != precision[..., :1]).any()):
        return None
    shown = _exchanged(one, other)
    fitted = shown if source is one else _exchanged(source, None)
    if shown is None or fitted is None:
        return None
    own = one.chosen
    if own is None or own.metric is None or own.metric is written.metric:
        metric = "scalar"
    else:
        metric = "diagonal" if own.diagonal_metric else "full"
    gauge = fitted.gauge(metric)
    return shown.equivalent(gauge.tilt, gauge.precision).chosen


def _exchanged(one: Captured, other: Captured | None) -> Captured | None:
    """The queries with what the other text, or the next one, was asked; None where there is none."""
    if other is not None:
        shapes = [(x.dims, *x.queries.shape, *x.keys.shape[-2:]) for x in (one, other)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"other has {_sizes(other)} but captured {_sizes(one)}; take a text of as many tokens")
        return one._plain(units=other.written, chosen=None)
    texts = [i for i, name in enumerate(one.dims) if name.startswith("batch") and one.queries.shape[i] > 1]
    if not texts:
        return None
    flat = one.as_written
    axis = texts[-1] - len(one.dims) - one._alone

    def next_text(x: Tensor | None, own: int) -> Tensor | None:
        return x if x is None or x.dim() < own - axis else x.roll(-1, axis - own)

    own = {"keys": 2, "key_precision": 1, "log_prior": 2, "shift": 1, "metric": 1 if flat.diagonal_metric else 2}
    turned = {name: next_text(getattr(flat, name), size) for name, size in own.items()}
    written = GaussianMixture(values=None, diagonal_metric=flat.diagonal_metric, **turned)  # type: ignore[arg-type]
    return one._plain(units=written, chosen=None)


def _sizes(one: Captured) -> str:
    units, sizes = one.keys.shape[-2], dict(zip(one.dims, one.queries.shape, strict=False))
    return f"{sizes}, {one.queries.shape[-2]} queries of {one.queries.shape[-1]} features, {units} units"

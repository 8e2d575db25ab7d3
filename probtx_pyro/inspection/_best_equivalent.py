"""The likeliest mixture for the queries of a captured head, among all that have its attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from probtx_pyro.inspection._captured import Captured
from probtx_pyro.inspection._stack import stack_layers


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BestEquivalent(Captured):
    """A captured head as the mixture of the likeliest tilt b and precision P. See `best_equivalent`.

    tilt: b, (*heads, D), heads the leading axes without those of the batch.
    precision: P, (*heads), (*heads, D) or (*heads, D, D).
    tilt_error, precision_error: their standard errors, from the observed information; of the posterior's Laplace
    approximation
        under priors.
    num_steps: Newton steps, (*heads).
    """

    tilt: Tensor
    precision: Tensor
    tilt_error: Tensor
    precision_error: Tensor
    num_steps: Tensor


def best_equivalent(
    captured: Captured | Mapping[str, Captured], metric: str = "scalar", *, tilt: Any = None, precision: Any = None
) -> BestEquivalent:
    """Find the mixture with the captured attention under which the captured queries are likeliest.

    Every mixture with keys ``P⁻¹(α k_j + b)``, precision P and the weights that go with them has the attention of
    logits ``α k_j·q``. The likelihood is concave in b and P, so there is one maximum; there the mean of the queries,
    and their mean squares as far as ``metric`` says, are those of the mixture. The mixture as written is one of them:
    the evidence of a head never falls.

    Parameters
    ----------
    captured
        One `Captured`, or what `inspection.capture` returned, if its layers have one shape. Axes named ``batch`` share
        b and P.
    metric
        ``"scalar"``, P a number; ``"diagonal"``, D numbers; ``"full"``, D(D + 1)/2 numbers. b has D more. The more
        numbers, the more queries it takes to know them.
    tilt
        Prior on b: a Normal. None is maximum likelihood.
    precision
        Prior on P: a Gamma of shape 1 or more, or, for a full metric, a Wishart of D + 1 or more degrees of freedom.
        None is maximum likelihood, which needs queries in general position: two for a scalar metric, D + 1 for a full
        one, and more to be of use.

    Returns
    -------
    BestEquivalent
        A `Captured` that goes wherever one does.

    Raises
    ------
    ValueError
        Too few queries, or queries in a subspace, without a prior; a metric or a prior that is not known; an attention
        that is the posterior of no density of queries.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro.inspection import captured
    >>> _ = torch.manual_seed(0)
    >>> keys, queries = torch.randn(6, 2), 3 + torch.randn(200, 2)
    >>> found = captured(queries, keys)
    >>> best = best_equivalent(found)
    >>> bool((best.mixture.attention(best.queries) - found.attention()).abs().max() < 1e-8)
    True
    >>> bool(best.log_evidence().sum() > found.raw.log_evidence().sum())
    True
    """
    one = captured if isinstance(captured, Captured) else stack_layers(captured)
    gauge = one.gauge(metric, tilt, precision)
    told = one.equivalent(gauge.tilt, gauge.precision)
    fields = {name: getattr(told, name) for name in Captured.__dataclass_fields__}
    return BestEquivalent(**fields, **gauge._asdict())

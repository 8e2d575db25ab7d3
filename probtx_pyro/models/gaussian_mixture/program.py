"""The Gaussian mixture as Pyro programs: enumerated (teaching, tests), collapsed (size), with priors, and the guide.

Plates: ``query`` at dim -1 and, left of it, the leading axes of the problem: ``batch``, ``head``. Parameters drawn from
priors sit in ``units`` at dim -1. A parameter that lacks an axis is shared along it and drawn outside that plate.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical, Normal
from pyro.ops.indexing import Vindex
from torch import Tensor

from probtx_pyro.models import validation as check
from probtx_pyro.models.distributions import IsotropicMixture
from probtx_pyro.models.gaussian_mixture import answers, checks
from probtx_pyro.models.priors import MixturePriors
from probtx_pyro.ops import safe_log

if TYPE_CHECKING:
    from probtx_pyro.models.gaussian_mixture.mixture import GaussianMixture

Maybe = Tensor | None  # an argument that may be left out
PARALLEL: Any = {"enumerate": "parallel"}


def plate_names(rank: int) -> list[str]:
    """Names of ``rank`` leading axes: ``batch``; ``batch, head``; further ones in front are ``batch_1``, ``batch_2``, ..."""
    return [f"batch_{i + 1}" for i in range(rank - 2)] + ["batch", "head"][: max(rank, 0)]


class Plates:
    """The plates of a problem, each created once and entered as often as sites need it."""

    def __init__(self, batch: torch.Size, **last: int):
        self.batch, self.sizes = batch, [*zip(plate_names(len(batch)), batch, strict=True)]
        self.last, self._made = last, dict[str, pyro.plate]()

    def enter(self, last: str, like: torch.Size | None = None) -> ExitStack:
        """Enter the leading axes and ``last``; only those along which ``like``, a batch shape, varies, if given."""
        stack = ExitStack()
        axes = [*self.sizes, (last, self.last[last])]
        like = torch.Size(n for _, n in axes) if like is None else torch.Size((1,) * (len(axes) - len(like))) + like
        for i, (name, n) in enumerate(axes):
            if like[i] == n:
                if name not in self._made:
                    self._made[name] = pyro.plate(name, n, dim=i - len(axes))
                stack.enter_context(self._made[name])
        return stack


def problem_shape(mixture: "GaussianMixture", queries: Tensor, **others: Maybe) -> torch.Size:
    """The leading axes that data and parameters broadcast to; ``others`` come with one axis after them."""
    shapes = {name: x.shape[:-1] for name, x in others.items() if x is not None}
    return check.broadcastable(queries=queries.shape[:-2], mixture=mixture.batch_shape, **shapes)


def _problem(
    mixture: "GaussianMixture", queries: Tensor, outputs: Maybe, observed: Maybe, query_weights: Maybe
) -> Plates:
    checks.data(mixture, queries, outputs, observed)
    answered = None if outputs is None else (outputs if mixture.answer_probs is not None else outputs[..., 0])
    batch = problem_shape(mixture, queries, outputs=answered, observed=observed, query_weights=query_weights)
    return Plates(batch, query=queries.shape[-2], units=mixture.num_units)


def _queries(plates: Plates, query_weights: Maybe) -> ExitStack:
    """The plate of the queries; weight 0 masks a query, other weights scale its log density."""
    stack = plates.enter("query")
    if query_weights is not None:
        present: Any = query_weights > 0
        stack.enter_context(poutine.mask(mask=present))
        if not bool(((query_weights == 1) | ~present).all()):
            stack.enter_context(poutine.scale(scale=torch.where(present, query_weights, 1.0)))
    return stack


def _given_unit(parameter: Tensor, unit: Tensor, event_dim: int) -> Tensor:
    """The parameter of the unit drawn; never plain ``parameter[unit]``, which breaks under extra batch axes."""
    if event_dim == 0:
        return Vindex(parameter.unsqueeze(-2))[..., unit] if parameter.dim() and parameter.shape[-1] > 1 else parameter
    return Vindex(parameter.unsqueeze(-3))[..., unit, :]


def _emission(mixture: "GaussianMixture", unit: Tensor):
    if mixture.answer_probs is not None:
        return Categorical(probs=_given_unit(mixture.answer_probs, unit, 1))
    return _isotropic(_given_unit(mixture.values, unit, 1), _given_unit(mixture.value_precision, unit, 0))


def _isotropic(mean: Tensor, precision: Tensor):
    return Normal(mean, precision.rsqrt().unsqueeze(-1) if precision.dim() else precision.rsqrt()).to_event(1)


def _answer(mixture: "GaussianMixture", distribution, outputs: Maybe, observed: Maybe) -> None:
    if outputs is None or observed is None:
        pyro.sample("outputs", distribution, obs=outputs)
        return
    marked = observed if mixture.answer_probs is not None else observed.unsqueeze(-1)
    pyro.sample("outputs", distribution.mask(observed), obs=torch.where(marked, outputs, torch.zeros_like(outputs)))


def model(
    mixture: "GaussianMixture",
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    *,
    query_weights: Maybe = None,
) -> None:
    """``unit ~ Categorical(π)``, ``queries | unit``, ``outputs | unit``: three sites in the plates of the problem (PT eq. 1-11).

    ``outputs`` is a latent site where answers have a density and none are given, absent where they have none; ``observed``
    marks the answers that count. A query of weight 0 is absent; other weights multiply its log density.
    """
    _enumerated(
        mixture, _problem(mixture, queries, outputs, observed, query_weights), queries, outputs, observed, query_weights
    )


def _enumerated(
    mixture: "GaussianMixture", plates: Plates, queries: Tensor, outputs: Maybe, observed: Maybe, query_weights: Maybe
) -> None:
    with _queries(plates, query_weights):
        unit = pyro.sample("unit", Categorical(logits=mixture.log_weights()), infer=PARALLEL)
        pyro.sample(
            "queries",
            _isotropic(_given_unit(mixture.keys, unit, 1), _given_unit(mixture.key_precision, unit, 0)),
            obs=queries,
        )
        if mixture.answer_density:
            _answer(mixture, _emission(mixture, unit), outputs, observed)


def collapsed(
    mixture: "GaussianMixture",
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    *,
    query_weights: Maybe = None,
) -> None:
    """The same joint density of queries and outputs with ``unit`` summed out: ``p(q)``, then ``p(v | q)``."""
    _marginal(
        mixture, _problem(mixture, queries, outputs, observed, query_weights), queries, outputs, observed, query_weights
    )


def _marginal(
    mixture: "GaussianMixture", plates: Plates, queries: Tensor, outputs: Maybe, observed: Maybe, query_weights: Maybe
) -> None:
    with _queries(plates, query_weights):
        asked = pyro.sample(
            "queries",
            IsotropicMixture(mixture.log_weights(), mixture.keys, mixture.key_precision, queries.shape[-2]),
            obs=queries,
        )
        if mixture.answer_density:
            if mixture.answer_probs is not None:
                answer = Categorical(probs=mixture.expected_outputs(asked))
            else:
                answer = answers.answer_mixture(mixture, mixture.log_joint(asked))
            _answer(mixture, answer, outputs, observed)


def guide(
    mixture: "GaussianMixture",
    queries: Tensor,
    outputs: Maybe = None,
    observed: Maybe = None,
    attention: Maybe = None,
    *,
    query_weights: Maybe = None,
) -> None:
    """``unit ~ Categorical(attention)``: with the exact E-step ELBO = log evidence, else it falls short by ``Σ_i KL(A_i || W_i)``.

    Answers that the model leaves latent are drawn from the unit's emission, their exact posterior given the unit.
    """
    if attention is None:
        attention = mixture.attention(queries, outputs, observed)
    else:
        expected = (queries.shape[-2], mixture.num_units)
        if attention.shape[-2:] != expected:
            raise ValueError(
                f"attention has shape {tuple(attention.shape)} but must end in {expected}: queries by units"
            )
        check.simplex("attention", attention)
    with _queries(_problem(mixture, queries, outputs, observed, query_weights), query_weights):
        unit = pyro.sample("unit", Categorical(logits=safe_log(attention)), infer=PARALLEL)
        if outputs is None and mixture.answer_density:
            pyro.sample("outputs", _emission(mixture, unit))


def bayesian(mixture: "GaussianMixture", priors: MixturePriors, collapsed: bool = True) -> Callable[..., None]:
    """A Pyro program whose parameters are drawn from ``priors``; the others stay as they are in ``mixture``.

    Returns
    -------
    Callable
        ``program(queries, outputs=None, observed=None, query_weights=None)`` with sites named as the parameters, then those
        of `GaussianMixture.collapsed` (default) or of `GaussianMixture.model`. Its log density is what `inference.adapt` climbs.

    Examples
    --------
    >>> import torch
    >>> from pyro import poutine
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.zeros(3, 2))
    >>> program = bayesian(mixture, models.MixturePriors(keys=Normal(0.0, 1.0)))
    >>> poutine.trace(program).get_trace(torch.ones(5, 2)).nodes["keys"]["value"].shape
    torch.Size([3, 2])
    """

    def program(queries: Tensor, outputs: Maybe = None, observed: Maybe = None, query_weights: Maybe = None) -> None:
        plates = _problem(mixture, queries, outputs, observed, query_weights)
        drawn = {}
        for name, (distribution, _) in priors.sites(mixture, plates.batch, queries.shape[-2]).items():
            with plates.enter("query" if name == "weights" else "units", like=distribution.batch_shape):
                drawn[name] = pyro.sample(name, distribution)
        (_marginal if collapsed else _enumerated)(
            mixture.with_parameters(drawn), plates, queries, outputs, observed, query_weights
        )

    return program


__all__ = ["bayesian", "collapsed", "guide", "model", "problem_shape"]

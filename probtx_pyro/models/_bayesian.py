"""A model with some of its parameters drawn from priors, as one Pyro program: what every posterior in the library is of.

Parameters sit in the plate ``units`` at dim -1, left of it the leading axes of the problem; what belongs to a unit beyond
that (coordinates, components) is event. A parameter that lacks an axis is shared along it and drawn outside that plate.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyro
from torch import Tensor

from probtx_pyro.models.priors import MixturePriors

if TYPE_CHECKING:
    from probtx_pyro.models.gaussian_keys import GaussianKeys
    from probtx_pyro.models.gaussian_mixture import GaussianMixture

Maybe = Tensor | None  # an argument that may be left out


@dataclass(frozen=True, eq=False)
class Bayesian:
    """A mixture with ``priors`` on some of its parameters: a Pyro program to be called with data. See `bayesian`."""

    mixture: "GaussianMixture | GaussianKeys"
    priors: MixturePriors
    collapsed: bool = True

    def __call__(
        self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None, query_weights: Maybe = None
    ) -> None:
        """The program: parameters from their priors, then the queries and answers of the mixture that they make."""
        plates = self.mixture.plates(queries, outputs, observed, query_weights)
        drawn = {}
        for name, (distribution, _) in self.priors.sites(self.mixture, plates.batch, queries.shape[-2]).items():
            with plates.enter("query" if name == "weights" else "units", like=distribution.batch_shape):
                drawn[name] = pyro.sample(name, distribution)
        adapted = self.mixture.with_parameters(drawn)
        (adapted.marginal if self.collapsed else adapted.enumerated)(plates, queries, outputs, observed, query_weights)


def bayesian(mixture: "GaussianMixture | GaussianKeys", priors: MixturePriors, collapsed: bool = True) -> Bayesian:
    """A Pyro program whose parameters are drawn from ``priors``; the others stay as they are in ``mixture``.

    Returns
    -------
    Bayesian
        ``program(queries, outputs=None, observed=None, query_weights=None)`` with sites named as the parameters, then those
        of the mixture's ``collapsed`` (default) or ``model``. Its log density is what `inference.adapt` climbs.

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
    return Bayesian(mixture, priors, collapsed)


__all__ = ["Bayesian", "bayesian"]

"""What every sampler returns: draws of a posterior, chain by chain, with the program and the data they belong to."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor


class Draws(NamedTuple):
    """Draws of a posterior.

    samples: by name of the Pyro site, (chain, draw, *shape of the parameter).
    statistics: by ArviZ's name of the sampler statistic, (chain, draw). ``lp``, the log density that the sampler climbs, is always
        there; `nuts` adds ``energy``, ``tree_depth``, ``n_steps``, ``step_size``, ``acceptance_rate`` and ``diverging``.
    program: the Pyro program whose latent sites these are, such as `models.bayesian`; None where there is none.
    arguments: what the program was called with; of `models.bayesian` in the order queries, outputs, observed, query_weights.
    method: "NUTS" or "Gibbs", Markov chains; anything else names the guide of variational inference, whose draws are independent.
    record: what belongs to the whole run: seed, num_warmup, seconds; numbers and text only.
    """

    samples: Mapping[str, Tensor]
    statistics: Mapping[str, Tensor]
    program: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    method: str
    record: Mapping[str, str | int | float]

    @property
    def num_chains(self) -> int:
        """Chains."""
        return len(next(iter(self.samples.values())))

    @property
    def num_draws(self) -> int:
        """Draws of each chain."""
        return next(iter(self.samples.values())).shape[1]


__all__ = ["Draws"]

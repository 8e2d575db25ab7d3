"""Draws from a Bayesian program before it has seen data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pyro import poutine
from pyro.poutine.util import site_is_subsample

from probtx_pyro.inference._program import require_counts, require_priors


def prior_predictive(
    program: Callable[..., Any], *args: Any, num_draws: int, seed: int, **kwargs: Any
) -> dict[str, NDArray]:
    """Draw parameters from their priors, then queries and outputs from the model that they make.

    Parameters
    ----------
    program
        Such as ``models.bayesian(mixture, keys=...)``.
    args, kwargs
        What it is called with; of observed values only the shapes count, everything observed is drawn anew.
    num_draws
        Runs of the program.
    seed
        The random state is restored afterwards.

    Returns
    -------
    dict
        By name of the Pyro site, parameters first, (num_draws, *shape of the site).

    Raises
    ------
    ValueError
        ``num_draws`` below 1, a prior that cannot be drawn from, such as a flat one.

    Examples
    --------
    >>> from pyro.distributions import Normal
    >>> from probtx_pyro import models
    >>> program = models.bayesian(models.GaussianMixture(torch.zeros(3, 2)), keys=Normal(5.0, 0.1))
    >>> draws = prior_predictive(program, torch.zeros(7, 2), num_draws=100, seed=0)
    >>> {name: x.shape for name, x in draws.items()}
    {'keys': (100, 3, 2), 'queries': (100, 7, 2)}
    >>> bool(abs(draws["queries"].mean() - 5) < 0.2)
    True
    """
    require_counts(num_draws=num_draws)
    require_priors(program)
    unobserved, draws = poutine.uncondition(program), dict[str, list[NDArray]]()
    with poutine.seed(rng_seed=seed), torch.no_grad():
        for _ in range(num_draws):
            try:
                trace = poutine.trace(unobserved).get_trace(*args, **kwargs)
            except NotImplementedError as missing:
                raise ValueError(
                    f"program has a prior that cannot be drawn from ({str(missing).splitlines()[0]}), such as a flat "
                    "one; give that parameter a proper prior"
                ) from missing
            for name, site in trace.nodes.items():
                if site["type"] == "sample" and not site_is_subsample(site):
                    draws.setdefault(name, []).append(torch.as_tensor(site["value"]).cpu().numpy())
    return {name: np.stack(each) for name, each in draws.items()}

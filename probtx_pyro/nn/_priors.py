"""Prior densities over what modules learn: the term that MAP training adds to its objective."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

Priors = Mapping[str, Distribution]


class WithPriors(nn.Module):
    """Base of the modules that take ``priors`` over parameters of their own.

    Parameters
    ----------
    priors
        Pyro or torch distributions, by the names of `constrained`. Each must broadcast to its parameter, not beyond it.

    Raises
    ------
    TypeError
        ``priors`` is not a mapping to distributions.
    """

    def __init__(self, priors: Priors | None = None):
        super().__init__()
        self.priors = {} if priors is None else priors

    @property
    def priors(self) -> Priors:
        """Distributions over parameters, by name."""
        return self._priors

    @priors.setter
    def priors(self, priors: Priors) -> None:
        if not isinstance(priors, Mapping):
            raise TypeError(f"priors must map names to distributions, but is of type {type(priors).__name__}")
        for name, prior in priors.items():
            if not isinstance(prior, Distribution):
                found = prior.__name__ + " itself" if isinstance(prior, type) else type(prior).__name__
                raise TypeError(
                    f"priors: {name!r} must be a Pyro or torch distribution, such as pyro.distributions.Gamma(2.0, 8.0), not {found}"
                )
        self._priors = dict(priors)

    def constrained(self) -> dict[str, Tensor]:
        """Return the parameters that ``priors`` may speak of, by name, on their natural scale."""
        return {}

    def log_prior_density(self) -> Tensor:
        """Return the log density of the parameters under ``priors``, a scalar; 0 without priors.

        Raises
        ------
        ValueError
            A prior on a name that the module does not have, or one of a shape that does not fit its parameter.
        """
        values = self.constrained()
        total = next(self.parameters(), torch.zeros(())).new_zeros(())
        for name, prior in self.priors.items():
            if name not in values:
                raise ValueError(f"priors: {type(self).__name__} has no {name!r}; it has {', '.join(values) or 'none'}")
            total = total + _log_prob(name, prior, values[name])
        return total


def _log_prob(name: str, prior: Distribution, value: Tensor) -> Tensor:
    shape, events = prior.batch_shape + prior.event_shape, prior.event_shape
    pairs = zip(reversed(shape), reversed(value.shape), strict=False)
    fits = len(shape) <= value.dim() and all(mine in (1, theirs) for mine, theirs in pairs)
    if not fits or value.shape[value.dim() - len(events) :] != events:
        raise ValueError(
            f"priors: the prior on {name!r} has shape {tuple(shape)}, which does not broadcast to that of the parameter, {tuple(value.shape)}"
        )
    return prior.log_prob(value).sum()


def log_prior_density(model: nn.Module) -> Tensor:
    """Return the log prior density of all parameters of a model, the sum over its modules that have priors.

    MAP training minimises ``nats_per_token - log_prior_density(model) / num_tokens``.

    Parameters
    ----------
    model
        Any module. Each of its modules with a method ``log_prior_density()`` counts once: the layers of
        `probtx_pyro.nn` that were given ``priors``, and modules of your own.

    Returns
    -------
    A scalar.

    Raises
    ------
    ValueError
        No module of the model has priors, or a prior does not fit its parameter.

    Examples
    --------
    >>> from pyro.distributions import Gamma
    >>> from probtx_pyro.nn import GaussianMixtureAttention
    >>> layer = GaussianMixtureAttention(8, 2, priors={"key_precision": Gamma(1.0, 2.0)})
    >>> round(log_prior_density(nn.Sequential(layer)).item(), 3)  # two heads of precision 1/2, each log 2 - 1
    -0.614
    """
    counted = (module for module in model.modules() if getattr(module, "priors", True))
    terms = [density() for module in counted if (density := getattr(module, "log_prior_density", None)) is not None]
    if not terms:
        raise ValueError(
            f"no module of {type(model).__name__} has priors; give priors={{name: distribution}} to a layer, or a module of your own a method log_prior_density()"
        )
    return torch.stack(terms).sum()

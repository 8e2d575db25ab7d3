"""Common parts of the modules: options, as constructors take and ``extra_repr`` prints them, and priors over what
they learn, whose density MAP training adds to its objective.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from probtx_pyro.ops._numerics import drop

Priors = Mapping[str, Distribution]
T = TypeVar("T")


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` by `ops._numerics.drop`."""

    def forward(self, input: Tensor) -> Tensor:
        return drop(input, self.p) if self.training else input


def made(kind: type[T], given: T | Mapping[str, Any]) -> T:
    """Return options of the class ``kind``, given as such or as a mapping of its fields, as settings files have it.

    Raises
    ------
    TypeError
        Something else, or names that are no fields.
    """
    if isinstance(given, Mapping):
        return kind(**given)
    if not isinstance(given, kind):
        raise TypeError(f"give {kind.__name__}(...), or a mapping of its fields, not {given!r}")
    return given


def options(module: nn.Module, constructor: Callable[..., object]) -> dict[str, Any]:
    """Return the attributes that have the names of a constructor's arguments."""
    names = inspect.signature(constructor).parameters
    return {name: getattr(module, name) for name in names if hasattr(module, name)}


def printed(module: nn.Module, sizes: Mapping[str, object], options: Mapping[str, object]) -> str:
    """Return what ``extra_repr`` prints: all ``sizes``, and the ``options`` that differ from their defaults."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(type(module)).parameters.items()}
    changed = {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}
    return ", ".join(
        f"{name}={getattr(value, '__name__', repr(value))}" for name, value in {**sizes, **changed}.items()
    )


def refuse_unknown(kind: type[nn.Module], given: Iterable[str], others: Iterable[type[nn.Module]]) -> None:
    """Refuse names that are no arguments of a class, with those of the ``others`` that have them.

    Raises
    ------
    TypeError
        The first such name.
    """
    parameters = inspect.signature(kind).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in given:
        if name not in parameters:
            have = [other.__name__ for other in others if name in inspect.signature(other).parameters]
            own = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
            repair = f"{' and '.join(have)} {'have' if have[1:] else 'has'}" if have else f"it has {', '.join(own)}"
            raise TypeError(f"{kind.__name__} has no option {name!r}; {repair}")


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
                raise TypeError(f"priors: {name!r} must be a Pyro or torch distribution, like Gamma(2, 8), not {found}")
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
        found, wanted = tuple(shape), tuple(value.shape)
        raise ValueError(f"priors: the prior on {name!r} has shape {found}, which does not broadcast to {wanted}")
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
        raise ValueError(f"no module of {type(model).__name__} has priors; give a layer priors={{name: distribution}}")
    return torch.stack(terms).sum()

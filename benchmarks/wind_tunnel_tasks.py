"""Tasks of `benchmarks.wind_tunnels`: contexts, and the exact predictive distribution at every position.

Each has a program whose posterior the prediction is: a Pyro program, or a model of the library. `inference` and Pyro take it, and
tests compare it with the closed form on small contexts.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import torch
from pyro.distributions import Bernoulli, Beta
from pyro.distributions import Categorical as PyroCategorical
from torch import Generator, Tensor
from torch.distributions import Categorical, Distribution, Normal
from torch.nn import functional as F

from probtx_pyro.models import RegressionMemory

# -- what the tasks draw from ----------------------------------------------------------------------------------------------

TRANSITION = torch.tensor([[0.95, 0.04, 0.01], [0.01, 0.95, 0.04], [0.04, 0.01, 0.95]], dtype=torch.float64)
EMISSION = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1]], dtype=torch.float64)
STATES, SYMBOLS = EMISSION.shape
VALUES, FEATURES = 8, 2
MEMORY = RegressionMemory(prior_precision=1.0, noise_precision=1.0)


class Contexts(NamedTuple):
    """Sequences of observations.

    observed: (context, position), numbers of outcomes or real numbers.
    inputs: (context, position, feature), of each observation; of no feature where there are none.
    """

    observed: Tensor
    inputs: Tensor


class Tunnel(NamedTuple):
    """A task whose answer is known.

    outcomes: of an observation; 0 are real numbers.
    draw: contexts of a number and a length.
    exact: the distribution of every observation, batch (context, position): given those before it and the inputs up to its own, or,
    where ``causal`` is False, given all inputs and no observation.
    program: whose posterior that is.
    exchangeable: whether the order of the pairs of inputs and observations is of no account.
    """

    outcomes: int
    draw: Callable[[Generator, int, int], Contexts]
    exact: Callable[[Contexts], Distribution]
    program: Any
    exchangeable: bool = True
    causal: bool = True


def _alone(observed: Tensor) -> Contexts:
    """Observations without inputs."""
    return Contexts(observed, torch.zeros(*observed.shape, 0))


# -- Beta-Bernoulli --------------------------------------------------------------------------------------------------------


def coin_flips(flips: Tensor) -> None:
    """Flips (position,) of a coin of which nothing is known: Pyro program."""
    chance = pyro.sample("chance", Beta(1.0, 1.0))
    with pyro.plate("flip", len(flips)):
        pyro.sample("flips", Bernoulli(chance), obs=flips)


def draw_flips(g: Generator, contexts: int, length: int) -> Contexts:
    """Flips of one coin in each context."""
    chance = torch.rand(contexts, 1, generator=g)
    return _alone((torch.rand(contexts, length, generator=g) < chance).long())


def laplace_rule(given: Contexts) -> Categorical:
    """Return ``(heads + 1) / (flips + 2)``, by the flips before."""
    before = F.pad(F.one_hot(given.observed, 2).double().cumsum(1)[:, :-1], (0, 0, 1, 0))
    return Categorical(before + 1)


# -- a bijection -----------------------------------------------------------------------------------------------------------


def bijection(keys: Tensor, values: Tensor, number: int = VALUES) -> None:
    """Values (position,) of keys (position,) under a bijection of which nothing is known: Pyro program.

    The image of each key is one of those that the keys before it have left.
    """
    free, images = torch.ones(number), []
    for key in range(number):
        image = pyro.sample(f"image_{key}", PyroCategorical(free))
        free = free * (1 - F.one_hot(image, number).to(free))
        images.append(image)
    for place, (key, value) in enumerate(zip(keys.tolist(), values, strict=True)):
        pyro.sample(f"value_{place}", PyroCategorical(F.one_hot(images[key], number).to(free)), obs=value)


def draw_bijections(g: Generator, contexts: int, length: int) -> Contexts:
    """Pairs of one bijection in each context, their keys drawn with replacement."""
    images = torch.rand(contexts, VALUES, generator=g).argsort(-1)
    keys = torch.randint(VALUES, (contexts, length), generator=g)
    return Contexts(images.gather(1, keys), F.one_hot(keys, VALUES).float())


def revealed(given: Contexts) -> Categorical:
    """Return the value that the key had before, or any of those that no key has had; any at all after pairs of no bijection."""
    keys, values = given.inputs.double(), F.one_hot(given.observed, VALUES).double()
    same = (keys @ keys.mT).tril(-1)  # (context, position, earlier position)
    recalled = (same @ values).clamp(max=1)
    free = 1 - F.pad(values.cumsum(1)[:, :-1].clamp(max=1), (0, 0, 1, 0))
    free = torch.where(free.any(-1, keepdim=True), free, 1.0)
    return Categorical(torch.where(same.any(-1, keepdim=True), recalled, free))


# -- Bayesian linear regression --------------------------------------------------------------------------------------------


def draw_regressions(g: Generator, contexts: int, length: int) -> Contexts:
    """Answers of one linear map in each context, with noise."""
    inputs = torch.randn(contexts, length, FEATURES, generator=g)
    weights = torch.randn(contexts, FEATURES, 1, generator=g)
    noise = torch.randn(contexts, length, generator=g) / math.sqrt(MEMORY.noise_precision)
    return Contexts((inputs @ weights).squeeze(-1) + noise, inputs)


def regression(given: Contexts) -> Normal:
    """Return the exact filter of `models.RegressionMemory`."""
    found = MEMORY.predictive(given.inputs.double(), given.observed.double().unsqueeze(-1))
    return Normal(found.mean.squeeze(-1), found.stddev.squeeze(-1))


# -- a hidden Markov model -------------------------------------------------------------------------------------------------


def hidden_markov(symbols: Tensor) -> None:
    """Symbols (context, position) of hidden states that are uniform at first: Pyro program."""
    with pyro.plate("context", len(symbols)):
        state = None
        for place in pyro.markov(range(symbols.shape[1])):
            chances = torch.full((STATES,), 1 / STATES) if state is None else TRANSITION[state]
            state = pyro.sample(f"state_{place}", PyroCategorical(chances), infer={"enumerate": "parallel"})
            pyro.sample(f"symbol_{place}", PyroCategorical(EMISSION[state]), obs=symbols[:, place])


def draw_states(g: Generator, contexts: int, length: int) -> tuple[Tensor, Tensor]:
    """States and symbols, each (context, position)."""
    states = [torch.randint(STATES, (contexts,), generator=g)]
    while len(states) < length:
        states.append(torch.multinomial(TRANSITION[states[-1]], 1, generator=g).squeeze(-1))
    path = torch.stack(states, 1)
    return path, torch.multinomial(EMISSION[path.flatten()], 1, generator=g).view_as(path)


def draw_symbols(g: Generator, contexts: int, length: int) -> Contexts:
    """Symbols, to be predicted."""
    return _alone(draw_states(g, contexts, length)[1])


def forward(symbols: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``p(state | symbols before)`` and ``p(state | symbols up to)``, each (context, position, state)."""
    belief = torch.full((len(symbols), STATES), 1 / STATES, dtype=torch.float64)
    before, after = [], []
    for likelihood in EMISSION.T[symbols].unbind(1):
        before.append(belief)
        joint = belief * likelihood
        after.append(joint / joint.sum(-1, keepdim=True))
        belief = after[-1] @ TRANSITION
    return torch.stack(before, 1), torch.stack(after, 1)


def filtered(given: Contexts) -> Categorical:
    """Return the next symbol by the forward recursion."""
    return Categorical(forward(given.observed)[0] @ EMISSION)


def draw_paths(g: Generator, contexts: int, length: int) -> Contexts:
    """States, to be told from all symbols."""
    states, symbols = draw_states(g, contexts, length)
    return Contexts(states, F.one_hot(symbols, SYMBOLS).float())


def smoothed(given: Contexts) -> Categorical:
    """Return the states by the forward and backward recursions."""
    before, after = forward(given.inputs.argmax(-1))
    found = [after[:, -1]]
    for place in range(after.shape[1] - 2, -1, -1):
        ratio = found[-1] / before[:, place + 1]
        found.append(after[:, place] * (ratio @ TRANSITION.T))
    return Categorical(torch.stack(found[::-1], 1))


TUNNELS = {
    "coin flips": Tunnel(2, draw_flips, laplace_rule, coin_flips),
    "bijection": Tunnel(VALUES, draw_bijections, revealed, bijection),
    "regression": Tunnel(0, draw_regressions, regression, MEMORY),
    "hidden Markov": Tunnel(SYMBOLS, draw_symbols, filtered, hidden_markov, exchangeable=False),
    "smoothing": Tunnel(STATES, draw_paths, smoothed, hidden_markov, exchangeable=False, causal=False),
}

"""Latent choices that no closed form sums over: how they are drawn,
and distributions of them that iterations have found.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


class Latents(Protocol):
    """Latent choices of a formulation given data, as Gibbs sampling and annealing draw them.

    A state is a mapping of tensors (chain, *problems, ...), by the names of Pyro's sites; those that have closed
    conditionals of all others may be absent until `complete`. β between 0 and 1 tempers the density: at 0 it can be
    drawn from exactly, 1 is the posterior.
    """

    def start(self, num_chains: int, generator: torch.Generator) -> dict[str, Tensor]:
        """An exact draw at β = 0 for every chain."""

    def sweep(self, state: Mapping[str, Tensor], generator: torch.Generator, beta: float = 1.0) -> dict[str, Tensor]:
        """The next state of every chain, by a step that leaves the density at β as it is."""

    def log_density(self, state: Mapping[str, Tensor], *betas: float) -> Tensor:
        """The unnormalised log density of every problem at some β, (len(betas), chain, *problems)."""

    def log_partition(self) -> Tensor:
        """The log normaliser at β = 0, (*problems)."""

    def complete(self, state: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The state with the choices drawn that sweeps sum out."""

    def attention(self, state: Mapping[str, Tensor]) -> Tensor:
        """The posterior of the assignment given the state, (chain, *problems, ...)."""


@runtime_checkable
class Field(Protocol):
    """A distribution of a formulation's latent choices that iterations have found: its marginals,
    and how they were found.

    objective: at the start and after every iteration, (iteration, *problems), or None. converged, num_steps:
    (*problems).
    """

    objective: Tensor | None
    converged: Tensor
    num_steps: Tensor

    @property
    def formulation(self) -> Any:
        """The formulation whose latent choices these are."""

    def marginals(self) -> dict[str, Tensor]:
        """Marginals, by names of the formulation's ``RESULTS``."""

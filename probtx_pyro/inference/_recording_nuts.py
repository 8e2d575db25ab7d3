"""Pyro's NUTS with what it forgets: statistics of each draw, and a state of tensors and numbers to go on from."""

from collections.abc import Mapping
from typing import Any

import pyro
from pyro.infer import NUTS
from torch import Tensor

COUNTERS = ("_t", "_accept_cnt", "_mean_accept_prob")
ADAPTATION = ("step_size", "_current_window")
AVERAGES = ("prox_center", "_x_avg", "_g_avg", "_t")  # of dual averaging
MOMENTS = ("_mean", "_m2", "n_samples")  # of Welford's covariance
PRIVATE = ("_build_tree", "_kinetic_energy", "_fetch_from_cache", "_cache", "_adapter", *COUNTERS)


class RecordingNUTS(NUTS):
    """Pyro's NUTS over unconstrained coordinates, which records each draw's statistics.

    ``statistics`` after each `sample`, by ArviZ's names: ``lp`` and ``energy``, the Hamiltonian, at the point drawn with the
    momentum that it had on the trajectory; ``tree_depth``, the doublings completed; ``n_steps``, leapfrog steps;
    ``acceptance_rate``, their mean acceptance probability; ``step_size``; ``diverging``. As CmdStan defines them.

    Raises
    ------
    RuntimeError
        A Pyro whose NUTS lacks the private names that this class reads.
    """

    def __init__(self, potential: Any, start: Mapping[str, Tensor], **options: Any):
        super().__init__(potential_fn=potential, **options)
        missing = [name for name in PRIVATE if not hasattr(self, name)]
        if missing:
            raise RuntimeError(
                f"pyro-ppl {pyro.__version__}: its NUTS has no {', '.join(missing)}, from which statistics are read; install pyro-ppl 1.9.1 or 1.9.2"
            )
        self.initial_params = dict(start)
        self.statistics: dict[str, float | int | bool] = {}

    def _build_tree(self, z, r, z_grads, log_slice, direction, tree_depth, energy_current):
        tree = super()._build_tree(z, r, z_grads, log_slice, direction, tree_depth, energy_current)
        if tree_depth == 0:
            self._steps += 1
            self._accepted += float(tree.sum_accept_probs)
            # a proposal that may still be drawn is alive, so that no later one takes its id
            self._energies[id(tree.z_proposal)] = tree.z_proposal_pe + self._kinetic_energy(tree.r_left_unscaled)
        self._last = tree, tree_depth, energy_current
        return tree

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The next draw; ``statistics`` are its own."""
        self._steps, self._accepted, self._energies = 0, 0.0, dict[int, Tensor]()
        step_size = self.step_size
        drawn = super().sample(params)
        point, potential, _ = self._fetch_from_cache()
        tree, depth, initial = self._last
        self.statistics = {
            "lp": -float(potential),
            "energy": float(self._energies.get(id(point), initial)),
            "tree_depth": depth + (not tree.turning and not bool(tree.diverging)),
            "n_steps": self._steps,
            "step_size": float(step_size),
            "acceptance_rate": self._accepted / self._steps,
            "diverging": bool(tree.diverging),
        }
        return drawn

    def _changing(self) -> list[tuple[Any, tuple[str, ...]]]:
        """The objects that a draw changes, each with the names of what changes in it."""
        adapter = self._adapter
        moments = [(block, MOMENTS) for block in adapter.mass_matrix_adapter._adapt_scheme.values()]
        return [(self, COUNTERS), (adapter, ADAPTATION), (adapter._step_size_adapt_scheme, AVERAGES), *moments]

    def state(self) -> dict[str, Any]:
        """All that the next draws depend on, but for the random numbers: tensors and numbers."""
        point, potential, gradient = self._fetch_from_cache()
        return {
            "cache": [dict(point), potential, dict(gradient)],
            "mass": list(self._adapter.mass_matrix_adapter.inverse_mass_matrix.values()),
            "changing": [[getattr(x, name) for name in names] for x, names in self._changing()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`, after ``setup``."""
        self._cache(*state["cache"])
        masses = self._adapter.mass_matrix_adapter
        masses.inverse_mass_matrix = dict(zip(masses.inverse_mass_matrix, state["mass"], strict=True))
        for (x, names), values in zip(self._changing(), state["changing"], strict=True):
            for name, value in zip(names, values, strict=True):
                setattr(x, name, value)

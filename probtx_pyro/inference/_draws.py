"""Draws of a posterior, chain by chain, as every sampler returns them, with the program and the data they belong to."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.formulation import Formulation


class Draws(NamedTuple):
    """Draws of a posterior.

    samples: by name of the Pyro site, (chain, draw, *shape of the parameter).
    statistics: by ArviZ's name of the sampler statistic, (chain, draw). ``lp``, the log density that the sampler
        climbs, is always there; `nuts` adds ``energy``, ``tree_depth``, ``n_steps``, ``step_size``, ``acceptance_rate``
        and ``diverging``.
    program: the Pyro program whose latent sites these are, such as `models.bayesian`, or the formulation whose latent
        choices they are; None where there is none.
    arguments: what the program was called with; of `models.bayesian` and of a formulation in the order of its table of
        data.
    method: "NUTS" or "Gibbs", Markov chains; anything else names the guide of variational inference, whose draws are
        independent.
    record: what belongs to the whole run: seed, num_warmup, seconds; numbers and text only.
    """

    samples: Mapping[str, Tensor]
    statistics: Mapping[str, Tensor]
    program: Callable[..., object] | Formulation | None
    arguments: tuple[Any, ...]
    method: str
    record: Mapping[str, str | int | float]

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(x.shape[2:])}" for name, x in self.samples.items())
        took = f", {self.record['seconds']:.3g} s" if "seconds" in self.record else ""
        kind = getattr(getattr(self.program, "formulation", None), "evidence_kind", "posterior")
        of = shapes if kind == "posterior" else f"a {kind} of {shapes}"
        return f"Draws of {of} by {self.method}: {self.num_chains} chains of {self.num_draws}{took}"

    def summary(self, most: int = 20) -> str:
        """Return a table of means, standard deviations and 5 % and 95 % quantiles,
        of the first ``most`` numbers of each parameter.

        Whether to believe them, `results.diagnose` says.
        """
        rows = [f"{'':24}{'mean':>11}{'sd':>11}{'5 %':>11}{'95 %':>11}"]
        for name, x in self.samples.items():
            flat = x.detach().double().flatten(0, 1).flatten(1) if x.dim() > 2 else x.detach().double().reshape(-1, 1)
            own = [list(index) or "" for index in np.ndindex(tuple(x.shape[2:]))]
            for i, index in enumerate(own[:most]):
                low, high = flat[:, i].quantile(flat.new_tensor([0.05, 0.95])).tolist()
                spread = float(flat[:, i].std()) if len(flat) > 1 else math.nan
                numbers = (float(flat[:, i].mean()), spread, low, high)
                rows.append(f"{f'{name}{index}':24}" + "".join(f"{number:11.4g}" for number in numbers))
            if len(own) > most:
                rows.append(f"... and {len(own) - most} more numbers of {name}")
        return f"{self!r}\n" + "\n".join(rows)

    def formulation(self, at: str | tuple[int, int] = "mean") -> Formulation:
        """Return the formulation with the parameters of one draw, or with their means.

        Parameters
        ----------
        at
            ``"mean"``, ``"highest"`` for the draw of the highest ``lp``, or (chain, draw), counted from the end where
            negative.

        Returns
        -------
        Formulation
            Parameters without a prior are as they were; of latent choices all are. It is one point: averages over the
            posterior are those of `results.predict`.

        Raises
        ------
        ValueError
            Draws of another program than `models.bayesian`, or a place that is not there.

        Notes
        -----
        Means mix units whose labels switch: take those of ``results.relabel(draws)``.
        """
        if isinstance(self.program, Formulation):
            return self.program
        if not isinstance(self.program, Bayesian):
            raise ValueError("only draws of a program made by models.bayesian have a formulation; take their samples")
        formulation = self.program.formulation
        drawn = {name: x for name, x in self.samples.items() if name in formulation.PARAMETERS}
        if at == "mean":
            return formulation.with_parameters({name: x.mean((0, 1)) for name, x in drawn.items()})
        place: Any = divmod(int(self.statistics["lp"].argmax()), self.num_draws) if at == "highest" else at
        number = (self.num_chains, self.num_draws)
        whole = isinstance(place, tuple | list) and len(place) == 2 and all(hasattr(i, "__index__") for i in place)
        if not whole or not all(-n <= operator.index(i) < n for i, n in zip(place, number, strict=True)):
            raise ValueError(f"at must be 'mean', 'highest' or (chain, draw) within {number}, not {at!r}")
        return formulation.with_parameters({name: x[tuple(place)] for name, x in drawn.items()})

    @property
    def num_chains(self) -> int:
        """Chains."""
        return len(next(iter(self.samples.values())))

    @property
    def num_draws(self) -> int:
        """Draws of each chain."""
        return next(iter(self.samples.values())).shape[1]

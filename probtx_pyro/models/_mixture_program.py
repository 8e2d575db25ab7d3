"""The Pyro programs of a mixture over units: the latent unit, the query and the answer it emits, and the guide that is attention."""

from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical, TorchDistribution
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._distributions import MixtureDensity
from probtx_pyro.models._plates import PARALLEL, Plates, weighted_queries
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.ops import safe_log

Maybe = Tensor | None  # an argument that may be left out


class MixtureProgram(Formulation):
    """Programs written with the distribution that a unit emits; data are ``queries, outputs, observed, query_weights``."""

    # -- what a subclass defines ------------------------------------------------------------------------------------------

    def emission(self, unit: Tensor) -> TorchDistribution:
        """Return the distribution of a query given its unit, for the program; ``unit`` has any shape."""
        raise NotImplementedError

    def answer(self, unit: Tensor) -> TorchDistribution:
        """Return the distribution of an answer given its unit, where answers have a density."""
        raise NotImplementedError

    @property
    def answer_density(self) -> bool:
        """True if answers have a density."""
        return False

    @property
    def num_units(self) -> int:
        """U."""
        raise NotImplementedError

    def log_weights(self) -> Tensor:
        """``log π``, shape (..., Q or 1, U)."""
        raise NotImplementedError

    @property
    def flat(self) -> Any:
        """The mixture whose density `collapsed` samples from."""
        raise NotImplementedError

    # -- sites ------------------------------------------------------------------------------------------------------------

    def model(  # type: ignore[override]
        self,
        queries: Maybe = None,
        outputs: Maybe = None,
        observed: Maybe = None,
        *,
        query_weights: Maybe = None,
        num_queries: int | None = None,
    ) -> None:
        """``unit ~ Categorical(π)``, ``queries | unit``, ``outputs | unit``: three sites in the plates of the problem.

        ``outputs`` is a latent site where answers have a density and none are given, and absent where they have none; ``observed``
        marks the answers that count. A query of weight 0 is absent; other weights multiply its log density. Without
        queries the program draws ``num_queries`` of them.
        """
        data = (queries, outputs, observed, query_weights)
        self.generate(self.plates(*data, num_queries=num_queries), data, collapsed=False)

    def collapsed(  # type: ignore[override]
        self,
        queries: Maybe = None,
        outputs: Maybe = None,
        observed: Maybe = None,
        *,
        query_weights: Maybe = None,
        num_queries: int | None = None,
    ) -> None:
        """The same joint density of queries and outputs with ``unit`` summed out: ``p(q)``, then ``p(v | q)``."""
        data = (queries, outputs, observed, query_weights)
        self.generate(self.plates(*data, num_queries=num_queries), data, collapsed=True)

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites of `model`, or of `collapsed`, within plates that the caller has made."""
        queries, outputs, observed, query_weights = data
        with weighted_queries(plates, query_weights):
            if collapsed:
                density = MixtureDensity(self.flat, plates.last["query"])
                asked = pyro.sample("queries", density, obs=queries)
                if self.answer_density:
                    _sample_outputs(self.output_distribution(asked), outputs, observed)
                return
            unit = self.draw_unit()
            pyro.sample("queries", self.emission(unit), obs=queries)
            if self.answer_density:
                _sample_outputs(self.answer(unit), outputs, observed)

    def sample(self, num_queries: int, *, seed: int) -> dict[str, Tensor]:
        """Draw queries and their answers from the program, by the name of the site.

        Parameters
        ----------
        num_queries
            Q, how many.
        seed
            A non-negative integer; the draws of the surrounding program go on as if nothing had been drawn.

        Returns
        -------
        dict
            ``queries`` (..., Q, D), the latent ``unit`` (..., Q), and ``outputs`` (..., Q, M) or labels (..., Q) where they have a density.
        """
        self.plates(None, num_queries=num_queries)  # refuses a bad number by itself, outside of the program
        with torch.random.fork_rng(), torch.no_grad(), poutine.block():
            torch.manual_seed(seed)
            trace = poutine.trace(self.model).get_trace(num_queries=num_queries)
        nodes: list[tuple[str, Any]] = list(trace.iter_stochastic_nodes())
        return {name: node["value"] for name, node in nodes if not site_is_subsample(node)}

    def draw_unit(self) -> Tensor:
        """Sample the latent site ``unit`` from its prior, for the program."""
        return pyro.sample("unit", Categorical(logits=self.log_weights()), infer=PARALLEL)

    def guide(
        self,
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
        plates = self.plates(queries, outputs, observed, query_weights)
        if attention is None:
            attention = self.attention(*self.observations((queries, outputs, observed, query_weights)))
        else:
            expected = (queries.shape[-2], self.num_units)
            if attention.shape[-2:] != expected:
                raise ValueError(
                    f"attention has shape {tuple(attention.shape)} but must end in {expected}: queries by units"
                )
            check.simplex("attention", attention)
        with weighted_queries(plates, query_weights):
            unit = self.guide_unit(attention, queries)
            if outputs is None and self.answer_density:
                pyro.sample("outputs", self.answer(unit))

    def guide_unit(self, attention: Tensor, queries: Tensor) -> Tensor:
        """Sample the latent site ``unit`` from ``attention`` (..., Q, U), for the guide."""
        return pyro.sample("unit", Categorical(logits=safe_log(attention)), infer=PARALLEL)


def _sample_outputs(distribution: TorchDistribution, outputs: Maybe, observed: Maybe) -> None:
    if outputs is None or observed is None:
        pyro.sample("outputs", distribution, obs=outputs)
        return
    marked = observed.reshape(observed.shape + (1,) * len(distribution.event_shape))
    pyro.sample("outputs", distribution.mask(observed), obs=torch.where(marked, outputs, torch.zeros_like(outputs)))

"""Formulations that reduce to a `GaussianMixture`, with parameters of their own."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pyro.distributions import TorchDistribution
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models.gaussian_mixture import GaussianMixture
from probtx_pyro.models.mixture import Centers, Maybe, Mixture
from probtx_pyro.ops import Factor
from probtx_pyro.ops._numerics import known

WITHOUT_DENSITY = ("attention", "expected_outputs", "plates", "guide")  # what the limit without a density still has


class ReducedMixture(Mixture):
    """Base of the formulations that are a Gaussian mixture in other words; data are those of a `Mixture`.

    A subclass defines `mixture`, from which everything else follows, and `limit` where its parameters may leave no
    density. Its units' prior is fixed, or follows from its parameters. Answers have no density.
    """

    INSTEAD: ClassVar[Mapping[str, str]] = {
        **Mixture.INSTEAD,
        "outputs": "drop them, or ask the mixture itself, formulation.mixture.replace(values=..., value_precision=...)",
        "conditional": "the weights of its units follow from its parameters, so that these have no conditional of a known family; draw with inference.nuts, or fit a guide with inference.variational",
        "output_distribution": "give the mixture itself a density of answers, formulation.mixture.replace(value_precision=...)",
    }
    SHARPNESS: ClassVar[str] = ""  # the parameter that may be infinite: attention is then the best match alone
    log_prior: Maybe = None

    @property
    def mixture(self) -> GaussianMixture:
        """The mixture that this is."""
        raise NotImplementedError

    @property
    def limit(self) -> str | None:
        """Why there is no density, with the repair; None where there is one."""
        return self.INSTEAD["log_evidence"] if self.hard else None

    @property
    def hard(self) -> bool:
        """True where the sharpness is infinite."""
        return bool(self.SHARPNESS) and known(getattr(self, self.SHARPNESS).isinf().any(), otherwise=False)

    def _validate_sharpness(self) -> None:
        sharpness = getattr(self, self.SHARPNESS)
        if check.violated(~(sharpness > 0)):
            raise ValueError(f"{self.SHARPNESS} must be > 0, not {float(sharpness.min())}; inf takes the best match")
        if self.hard and not bool(sharpness.isinf().all()):
            raise ValueError(f"{self.SHARPNESS} is infinite for some problems only; keep hard and soft ones apart")

    def require_density(self) -> None:
        """Refuse the limit in which there is no mixture."""
        if self.limit is not None:
            raise ValueError(self.limit)

    def lacks(self) -> Collection[str]:
        """All but `WITHOUT_DENSITY`, in the limit."""
        return super().lacks() if self.limit is None else {*dir(Mixture)} - {*WITHOUT_DENSITY}

    def check_prior(self, name: str) -> None:
        """Refuse a prior on a parameter that is not there, or that the data say nothing of."""
        self.require_density()
        super().check_prior(name)

    # -- what the mixture says -----------------------------------------------------------------------------------------

    @property
    def flat(self) -> Mixture:
        """The mixture itself."""
        return self.mixture

    def log_weights(self) -> Tensor:
        """``log π`` of the mixture, shape (..., 1, U)."""
        return self.mixture.log_weights()

    def origins(self) -> dict[str, Tensor]:
        """The mean key and value of the mixture."""
        return self.mixture.origins()

    def lowered(
        self, queries: Tensor, outputs: Maybe = None, observed: Maybe = None, centers: Centers = None, **how: Any
    ) -> tuple[Factor, Tensor]:
        """The factor and the log weights of the mixture."""
        return self.mixture.lowered(queries, outputs, observed, centers, **how)

    def emission(self, unit: Tensor) -> TorchDistribution:
        """Return the distribution of a query given its unit."""
        return self.mixture.emission(unit)

    def unit_answers(self) -> Tensor:
        """Return what the units answer, (..., U, M)."""
        return self.mixture.unit_answers()


def for_each(x: Tensor, axes: int) -> Tensor:
    """Append ``axes`` axes of size 1 to a number for each problem, (...)."""
    return x.reshape(*x.shape, *(1,) * axes) if x.dim() else x

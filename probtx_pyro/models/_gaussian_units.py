"""Gaussian units: a metric and a shift that they share, and answers, real or labels, whose parameters are learned as those of keys."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from pyro.distributions import Dirichlet, Gamma, Normal, Wishart
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models._gaussian_checks import validate_outputs
from probtx_pyro.models._gaussian_terms import gaussian_terms, key_terms
from probtx_pyro.models._metric import Metric
from probtx_pyro.models.formulation import DirichletTerms, Parameter, Terms
from probtx_pyro.models.mixture import WEIGHTS, Maybe, Mixture, Number, Seen
from probtx_pyro.ops._numerics import known

DIAGONAL = Parameter("feature", constraints.positive, Gamma, logarithmic=True, plate=False)  # a metric that is one
OF_KEYS = ("keys", "shift", "key_precision", "metric")  # parameters that queries inform, whatever is known of answers


class GaussianUnits(Mixture):
    """Base of the mixtures of Gaussian keys ``N(ξ + δ, (α Λ)⁻¹)`` whose units answer ``N(μ_j, I/β_j)``, or with a label."""

    keys: Tensor
    values: Maybe
    key_precision: Number
    value_precision: Number
    answer_probs: Maybe
    metric: Maybe
    shift: Maybe
    diagonal_metric: bool | None

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "keys": Parameter("unit feature", constraints.real, Normal),
        "shift": Parameter("feature", constraints.real, Normal, plate=False),
        "key_precision": Parameter("unit", constraints.positive, Gamma, logarithmic=True),
        "metric": Parameter("feature other_feature", constraints.positive_definite, Wishart, plate=False),
        "values": Parameter("unit answer", constraints.real, Normal),
        "value_precision": Parameter("unit", constraints.positive, Gamma, logarithmic=True),
        "answer_probs": Parameter("unit label", constraints.simplex, Dirichlet),
        **WEIGHTS,
    }

    def __post_init__(self) -> None:
        self._tensors("key_precision", "value_precision")
        if self.metric is not None and self.diagonal_metric is None:
            features = self.keys.shape[-1]
            object.__setattr__(self, "diagonal_metric", self.metric.shape[-2:] != (features, features))
        self._validate()
        self._validate_weights()

    def _validate(self) -> None:
        raise NotImplementedError

    @classmethod
    def categorical(
        cls,
        keys: Tensor,
        answer_probs: Tensor,
        key_precision: Tensor | float = 1.0,
        log_prior: Maybe = None,
        **options: Any,
    ) -> Self:
        """Units that answer with a label: ``v_i | u_i=j ~ Categorical(answer_probs_j)``; outputs are integers (..., Q).

        ``options`` are the other arguments of the class, such as ``metric``.
        """
        make: Any = cls
        return make(keys, key_precision=key_precision, log_prior=log_prior, answer_probs=answer_probs, **options)

    # -- parameters and data ------------------------------------------------------------------------------------------------

    @property
    def answer_density(self) -> bool:
        """True if answers have a density: categorical, or values with a positive precision."""
        if self.answer_probs is not None:
            return True
        return self.values is not None and known((self.value_precision > 0).all(), otherwise=True)

    def replace(self, **changes: Any) -> Self:
        """The mixture with some constructor arguments changed, validated; the kind of a new metric is told by its shape."""
        return super().replace(**({"diagonal_metric": None} if "metric" in changes else {}) | changes)

    def row(self, name: str) -> Parameter:
        """The row of a parameter; that of a diagonal metric has one axis and a Gamma prior."""
        return DIAGONAL if name == "metric" and self.diagonal_metric else super().row(name)

    def check_prior(self, name: str) -> None:
        """Refuse a prior on a parameter that the mixture does not have."""
        super().check_prior(name)
        if name == "value_precision" and self.values is None:
            raise ValueError(
                f"priors: there is a prior on value_precision, but the {type(self).__name__} has no values whose precision it is; give it values or drop the prior"
            )
        if name in ("values", "value_precision") and not self.answer_density:
            raise ValueError(
                f"priors: there is a prior on {name}, but value_precision is 0 (answers without a density), so that nothing would inform it; start from a positive one"
            )

    def axes(self, name: str) -> tuple[str, ...]:
        """Names of the own axes; answers that are labels have no coordinates."""
        if self.answer_probs is not None and name in ("outputs", "expected_outputs"):
            return ("query",) if name == "outputs" else ("query", "label")
        return super().axes(name)

    def _check_outputs(self, queries: Tensor, outputs: Tensor, observed: Maybe) -> None:
        validate_outputs(self, queries, outputs, observed)

    # -- closed forms -------------------------------------------------------------------------------------------------------

    def _root(self) -> Metric:
        assert self.metric is not None
        return Metric.of(self.metric, bool(self.diagonal_metric))

    def wide_root(self) -> Maybe:
        """The root of the metric as `ops._gaussian_attention.key_factor` takes it: (..., D, D), (..., 1, D) of a diagonal, None where there is none."""
        return None if self.metric is None else self._root().wide()

    def unit_answers(self) -> Tensor:
        """Answers of the units: values (..., U, M), or probabilities of labels (..., U, K)."""
        answers = self.values if self.answer_probs is None else self.answer_probs
        if answers is None:
            kind = type(self).__name__
            raise ValueError(
                f"values is None, so this {kind} has no answers; build it with values=, or with {kind}.categorical"
            )
        return answers

    def conditional(self, name: str, seen: Seen) -> Terms:
        """The likelihood of a parameter given the others and assignments: PT eq. 29, 30, 35, 37, 38 (errata 2, 3) are its modes."""
        if name == "weights":
            return super().conditional(name, seen)
        features = self.keys.shape[-1]
        if name in OF_KEYS:
            root = None if self.metric is None else self._root()
            return key_terms(
                name, self.keys, self.shift, self.key_precision, root, seen, seen.sums[..., : features + 1]
            )
        width = self.unit_answers().shape[-1]
        sums, answered = seen.sums[..., features + 1 :], seen.counts
        if seen.answers == "none":  # the prior alone decides
            answered = torch.zeros_like(answered)
            sums = answered.unsqueeze(-1).expand(*answered.shape, width + 1)
        elif seen.answers == "some":
            answered = sums[..., -1]
        if name == "answer_probs":
            return DirichletTerms(sums[..., :width])
        return gaussian_terms(
            name, self.unit_answers(), self.value_precision, seen.centers["values"], answered, sums[..., : width + 1]
        )

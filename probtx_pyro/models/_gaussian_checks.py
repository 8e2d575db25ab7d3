"""Checks of a Gaussian mixture's parameters and answers, each with its repair."""

from typing import Any

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check


def validate_units(mixture: Any) -> None:
    """Refuse parameters of `GaussianUnits` that do not fit each other; those of the keys' shape are left to the subclass."""
    given = {name: x for name, x in vars(mixture).items() if isinstance(x, Tensor)}
    check.same_dtype(**given)
    check.finite(**{name: x for name, x in given.items() if name != "log_prior"})
    _validate_metric(mixture)
    for name, answer in (("values", mixture.values), ("answer_probs", mixture.answer_probs)):
        if answer is not None:
            check.at_least(name, answer, 2, "(..., U, M)")
            check.same_size("keys", mixture.num_units, name, answer.shape[-2], "units")
    if mixture.values is not None and mixture.answer_probs is not None:
        raise ValueError(
            "values and answer_probs are both given; an answer is either real (values) or a label (answer_probs)"
        )
    if mixture.answer_probs is not None:
        check.simplex("answer_probs", mixture.answer_probs)
    validate_each(mixture, "value_precision")
    check.positive("key_precision", mixture.key_precision)
    if check.violated(mixture.value_precision < 0):
        raise ValueError("value_precision must be >= 0; it is an inverse variance, 0 the standard-attention limit")
    if check.violated((mixture.value_precision == 0).any() & (mixture.value_precision > 0).any()):
        raise ValueError(
            "value_precision mixes zero and positive entries; use 0 for all units (standard attention) or > 0 for all"
        )


def validate_each(mixture: Any, name: str) -> None:
    """Refuse a precision that is neither one number nor one for each unit."""
    precision = getattr(mixture, name)
    if precision.dim() and precision.shape[-1] not in (1, mixture.num_units):
        raise ValueError(
            f"{name} has {precision.shape[-1]} entries but there are {mixture.num_units} units (keys {tuple(mixture.keys.shape)}); give one for each unit or a scalar"
        )


def _validate_metric(mixture: Any) -> None:
    features = mixture.keys.shape[-1]
    if mixture.shift is not None:
        check.at_least("shift", mixture.shift, 1, "(..., D)")
        check.same_size("keys", features, "shift", mixture.shift.shape[-1], "features")
    if mixture.metric is None:
        return
    if mixture.diagonal_metric:
        check.at_least("metric", mixture.metric, 1, "(..., D) or (..., D, D)")
        check.same_size("keys", features, "metric", mixture.metric.shape[-1], "features")
        if check.violated(mixture.metric <= 0):
            raise ValueError("metric must be > 0; it is an inverse squared length for each feature")
        return
    check.positive_definite("metric", mixture.metric, features)


def validate_outputs(mixture: Any, queries: Tensor, outputs: Tensor, observed: Tensor | None) -> None:
    """Refuse answers that the mixture has no density for, or that do not fit the queries."""
    if not mixture.answer_density:
        raise ValueError(
            "outputs are given, but the answers of this mixture have no density (values is None or value_precision is 0); give value_precision > 0"
        )
    rank = len(mixture.axes("outputs"))
    check.at_least("outputs", outputs, rank, "(..., Q)" if rank == 1 else "(..., Q, M)")
    check.same_size("outputs", outputs.shape[-rank], "queries", queries.shape[-2], "rows")
    if mixture.answer_probs is not None:
        classes = mixture.answer_probs.shape[-1]
        seen = outputs if observed is None else torch.where(observed, outputs, 0)
        if outputs.is_floating_point():
            raise ValueError(
                f"outputs of a categorical mixture must be integer labels, not {outputs.dtype}; convert them with .long()"
            )
        if check.violated((seen < 0) | (seen >= classes)):
            raise ValueError(
                f"outputs contain a label outside 0..{classes - 1}; mark it unobserved or add the class to answer_probs"
            )
    elif mixture.values is not None:
        check.same_size("outputs", outputs.shape[-1], "values", mixture.values.shape[-1], "answer coordinates")
        check.same_dtype(outputs=outputs, keys=mixture.keys)
        check.finite(outputs=outputs if observed is None else torch.where(observed.unsqueeze(-1), outputs, 0.0))

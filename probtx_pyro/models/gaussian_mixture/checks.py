"""What a Gaussian mixture and its data must be, and what to do where they are not."""

import math
from dataclasses import fields
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check

if TYPE_CHECKING:
    from probtx_pyro.models.gaussian_keys import GaussianKeys
    from probtx_pyro.models.gaussian_mixture.mixture import GaussianMixture


def log_weights(log_prior: Tensor, num_units: int) -> Tensor:
    """Log weights over the units, normalised or not; masks may not forbid a whole row."""
    check.at_least("log_prior", log_prior, 2, "(..., Q or 1, U); use unsqueeze(-2) for one row")
    check.same_size("log_prior", log_prior.shape[-1], "keys", num_units, "units")
    if check.is_validation_enabled() and (log_prior == -math.inf).all(-1).any():
        raise ValueError("log_prior forbids every unit in some row; allow at least one, or drop that query")
    return log_prior


def parameters(mixture: "GaussianMixture") -> None:
    """Refuse parameters that do not make a mixture."""
    keys, values, probs, log_prior = mixture.keys, mixture.values, mixture.answer_probs, mixture.log_prior
    check.at_least("keys", keys, 2, "(..., U, D)")
    check.same_dtype(**{f.name: x for f in fields(mixture) if (x := getattr(mixture, f.name)) is not None})
    check.finite(
        keys=keys,
        values=values,
        key_precision=mixture.key_precision,
        value_precision=mixture.value_precision,
        answer_probs=probs,
    )
    for name, answer in (("values", values), ("answer_probs", probs)):
        if answer is not None:
            check.at_least(name, answer, 2, "(..., U, M)")
            check.same_size("keys", keys.shape[-2], name, answer.shape[-2], "units")
    if values is not None and probs is not None:
        raise ValueError(
            "values and answer_probs are both given; an answer is either real (values) or a label (answer_probs)"
        )
    if probs is not None:
        check.simplex("answer_probs", probs)
    for name in ("key_precision", "value_precision"):
        precision = getattr(mixture, name)
        if precision.dim() and precision.shape[-1] not in (1, keys.shape[-2]):
            raise ValueError(
                f"{name} has {precision.shape[-1]} entries but there are {keys.shape[-2]} units (keys {tuple(keys.shape)}); give one for each unit or a scalar"
            )
    check.positive("key_precision", mixture.key_precision)
    if check.is_validation_enabled():
        if (mixture.value_precision < 0).any():
            raise ValueError("value_precision must be >= 0; it is an inverse variance, 0 the standard-attention limit")
        if (mixture.value_precision == 0).any() and (mixture.value_precision > 0).any():
            raise ValueError(
                "value_precision mixes zero and positive entries; use 0 for all units (standard attention) or > 0 for all"
            )
    if log_prior is not None:
        log_weights(log_prior, keys.shape[-2])
        check.normalized_log("log_prior", log_prior)
    _ = mixture.batch_shape


def data(
    mixture: "GaussianMixture | GaussianKeys",
    queries: Tensor,
    outputs: Tensor | None = None,
    observed: Tensor | None = None,
) -> None:
    """Refuse data that the mixture cannot explain."""
    check.floating("queries", queries)
    check.at_least("queries", queries, 2, "(..., Q, D)")
    check.same_dtype(queries=queries, keys=mixture.keys)
    if queries.shape[-1] != mixture.keys.shape[-1]:
        raise ValueError(
            f"queries have {queries.shape[-1]} features but keys have {mixture.keys.shape[-1]} (queries {tuple(queries.shape)}, keys {tuple(mixture.keys.shape)}); project one of them first"
        )
    if mixture.log_prior is not None and mixture.log_prior.shape[-2] not in (1, queries.shape[-2]):
        raise ValueError(
            f"log_prior has rows for {mixture.log_prior.shape[-2]} queries but there are {queries.shape[-2]} queries; use one row, or one for each query"
        )
    check.finite(queries=queries)
    shapes = {"queries": queries.shape[:-2], "mixture": mixture.batch_shape}
    if observed is not None:
        if observed.dtype != torch.bool or observed.shape[-1:] != queries.shape[-2:-1]:
            raise ValueError(
                f"observed must be a boolean tensor (..., {queries.shape[-2]}), one entry for each query, not {observed.dtype} {tuple(observed.shape)}"
            )
        shapes["observed"] = observed.shape[:-1]
    if outputs is None:
        if observed is not None:
            raise ValueError("observed is given without outputs; pass the outputs that it marks")
    else:
        shapes["outputs"] = _outputs(cast("GaussianMixture", mixture), queries, outputs, observed)
    check.broadcastable(**shapes)


def _outputs(mixture: "GaussianMixture", queries: Tensor, outputs: Tensor, observed: Tensor | None) -> torch.Size:
    if not mixture.answer_density:
        raise ValueError(
            "outputs are given, but the answers of this mixture have no density (values is None or value_precision is 0); give value_precision > 0"
        )
    rank = 1 if mixture.answer_probs is not None else 2
    check.at_least("outputs", outputs, rank, "(..., Q)" if rank == 1 else "(..., Q, M)")
    check.same_size("outputs", outputs.shape[-rank], "queries", queries.shape[-2], "rows")
    if mixture.answer_probs is not None:
        classes = mixture.answer_probs.shape[-1]
        seen = outputs if observed is None else torch.where(observed, outputs, 0)
        if outputs.is_floating_point():
            raise ValueError(
                f"outputs of a categorical mixture must be integer labels, not {outputs.dtype}; convert them with .long()"
            )
        if check.is_validation_enabled() and ((seen < 0) | (seen >= classes)).any():
            raise ValueError(
                f"outputs contain a label outside 0..{classes - 1}; mark it unobserved or add the class to answer_probs"
            )
    else:
        check.same_size("outputs", outputs.shape[-1], "values", mixture.values.shape[-1], "answer coordinates")
        check.same_dtype(outputs=outputs, keys=mixture.keys)
        check.finite(outputs=outputs if observed is None else torch.where(observed.unsqueeze(-1), outputs, 0.0))
    return outputs.shape[:-rank]

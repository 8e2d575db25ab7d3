"""A model of one's own in the explorer: the JSON that ``probtx explore FILE`` loads into its views 1, 6 and 8."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pyro.distributions import Normal
from torch import Tensor

from probtx_pyro.models._bayesian import Bayesian
from probtx_pyro.models.dependency_crf import DependencyCRF
from probtx_pyro.models.gaussian_mixture import GaussianMixture
from probtx_pyro.models.priors import bare

MOST_UNITS, MOST_QUERIES, MOST_WORDS = 12, 60, 12  # that the views draw


def write_explorer_json(
    path: str | Path,
    model: GaussianMixture | Bayesian | DependencyCRF,
    queries: Tensor | None = None,
    *,
    words: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Path:
    """Write a model as the JSON that ``probtx explore FILE`` opens in the browser.

    A mixture goes to view 1 (attention is a posterior), a mixture with priors on its keys or shift to view 6 (keys
    adapt), a dependency CRF to view 8 (mean field on a sentence). The views draw one small problem in the plane; what
    they cannot draw is refused, never changed.

    Parameters
    ----------
    path
        File to write.
    model
        A `GaussianMixture` with 2 features, real answers of one coordinate with ``value_precision > 0``, one precision
        for all units, one row of ``log_prior``, no metric and no shift; masked units are left out. Or `bayesian` of a
        mixture with 2 features, one precision, equal weights and Normal priors on ``keys`` (around the present ones),
        ``shift`` (around 0) or both, each with one scale. Or a `DependencyCRF` of one sentence, without mask and global
        nodes.
    queries
        For a mixture the query (2,) or (1, 2), the middle of the keys if None; for `bayesian` all of the data, (Q, 2).
    words, labels
        Names for a CRF; numbers if None.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        A model that the view cannot draw, or arguments that belong to another.

    Examples
    --------
    >>> import tempfile, torch
    >>> mixture = GaussianMixture(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[-1.0], [1.0]]), 2.0, 9.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_explorer_json(f"{folder}/mixture.json", mixture, torch.tensor([0.5, 0.2]))
    ...     json.loads(file.read_text())["view"]
    'posterior'
    """
    if not isinstance(model, DependencyCRF) and (words is not None or labels is not None):
        raise ValueError("words and labels are names for a DependencyCRF; leave them out")
    if isinstance(model, GaussianMixture):
        view, state = "posterior", _mixture(model, queries)
    elif isinstance(model, Bayesian):
        view, state = "keys-adapt", _posterior(model, queries)
    elif isinstance(model, DependencyCRF):
        if queries is not None:
            raise ValueError("a DependencyCRF has words and no queries; leave queries out")
        view, state = "mean-field", {"crf": _crf(model, words, labels)}
    else:
        raise ValueError(
            f"the explorer has no view for a {type(model).__name__}; give a GaussianMixture, models.bayesian of one, or a DependencyCRF"
        )
    path = Path(path)
    path.write_text(json.dumps({"view": view, "state": state}), encoding="utf-8")
    return path


def _mixture(mixture: GaussianMixture, query: Tensor | None) -> Mapping[str, Any]:
    precision = _plane(mixture)
    if mixture.values is None or mixture.values.shape[-1] != 1:
        raise ValueError("view 1 draws answers on a line; give values of shape (U, 1)")
    answers = _one("value_precision", mixture.value_precision)
    if answers <= 0:
        raise ValueError(
            "value_precision is 0, so that answers have no density to draw; take replace(value_precision=...)"
        )
    log_prior = mixture.log_weights()
    if mixture.shift is not None or log_prior.shape[0] != 1:
        raise ValueError(
            "view 1 draws no shift and one prior for all queries; add the shift to the keys, give log_prior one row"
        )
    held = log_prior[0] > -torch.inf
    query = mixture.keys[held].mean(0) if query is None else query.reshape(-1)
    if query.shape != (2,):
        raise ValueError(f"view 1 has one query of 2 features, not {tuple(query.shape)}")
    return {
        "query": query.tolist(), "keys": mixture.keys[held].tolist(), "values": mixture.values[held, 0].tolist(),
        "precision": precision, "valuePrecision": answers, "weights": log_prior[0, held].exp().tolist(),
    }  # fmt: skip


def _posterior(posterior: Bayesian, queries: Tensor | None) -> Mapping[str, Any]:
    mixture = posterior.formulation
    if not isinstance(mixture, GaussianMixture):
        raise ValueError(f"view 6 draws a GaussianMixture, not a {type(mixture).__name__}")
    precision = _plane(mixture)
    if queries is None or queries.dim() != 2 or not 1 <= len(queries) <= MOST_QUERIES:
        raise ValueError(f"view 6 needs the data: queries (Q, 2), 1 to {MOST_QUERIES} of them")
    posterior.require_plain("view of the explorer")
    names = set(posterior.priors)
    kinds = {frozenset({"keys"}): "own", frozenset({"shift"}): "shift", frozenset({"keys", "shift"}): "both"}
    if frozenset(names) not in kinds:
        raise ValueError(f"view 6 has priors on keys, shift or both, not on {', '.join(sorted(names))}")
    weights = mixture.log_weights().exp()
    if not torch.allclose(weights, torch.full_like(weights, 1 / mixture.num_units)):
        raise ValueError("view 6 draws equal weights; leave log_prior out")
    sites, strengths = posterior.problem(queries).sites, {}
    for name in names:
        prior = bare(sites[name].distribution)
        middle = mixture.keys if name == "keys" else mixture.keys.new_zeros(2)
        if not isinstance(prior, Normal) or not torch.equal(prior.loc.expand(middle.shape), middle):
            raise ValueError(
                f"view 6 draws a Normal prior of {name} around {'the present keys' if name == 'keys' else '0'}"
            )
        strengths["keyStrength" if name == "keys" else "shiftStrength"] = _one(f"scale of {name}", prior.scale) ** -2
    if "shift" not in names and mixture.shift is not None:
        raise ValueError("view 6 draws a shift that has a prior; add this one to the keys")
    return {
        "queries": queries.tolist(), "keys": mixture.keys.tolist(), "query": queries.mean(0).tolist(),
        "precision": precision, "adapt": kinds[frozenset(names)], **strengths,
    }  # fmt: skip


def _crf(crf: DependencyCRF, words: Sequence[str] | None, labels: Sequence[str] | None) -> Mapping[str, Any]:
    if crf.unary.dim() != 2 or not 2 <= len(crf.unary) <= MOST_WORDS:
        raise ValueError(
            f"view 8 draws one sentence of 2 to {MOST_WORDS} words, unary (N, L), not {tuple(crf.unary.shape)}"
        )
    if crf.mask is not None or crf.memory is not None:
        raise ValueError("view 8 draws neither padding nor global nodes; leave mask and memory out")
    count, kinds = crf.unary.shape
    names = {"words": words, "labels": labels}
    for name, size in (("words", count), ("labels", kinds)):
        given = names[name]
        names[name] = [str(i + 1) for i in range(size)] if given is None else list(given)
        if len(names[name] or ()) != size:
            raise ValueError(f"{name} has {len(names[name] or ())} names but the CRF has {size}")
    ternary = crf.held("ternary")
    assert ternary is not None
    root = None if crf.root_ternary is None else crf.root_ternary.tolist()
    return {
        **names, "unary": crf.unary.tolist(), "ternary": ternary.tolist(), "distances": list(crf.distances), "root_ternary": root,
    }  # fmt: skip


def _plane(mixture: GaussianMixture) -> float:
    """The precision of a mixture that the plane can show."""
    if mixture.batch_shape or mixture.keys.shape[-1] != 2 or mixture.num_units > MOST_UNITS:
        raise ValueError(
            f"the explorer draws one mixture of up to {MOST_UNITS} units with 2 features, not keys {tuple(mixture.keys.shape)}"
        )
    if mixture.metric is not None or mixture.answer_probs is not None:
        raise ValueError("the explorer draws neither a metric nor labels; give keys, values and precisions alone")
    return _one("key_precision", mixture.key_precision)


def _one(name: str, number: Tensor) -> float:
    """The number that all entries share."""
    first = number.reshape(-1)[0]
    if (number != first).any():
        raise ValueError(f"{name} differs between units; the explorer has one for all of them")
    return float(first)

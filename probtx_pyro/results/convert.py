"""Inference results as ArviZ data: named dimensions by one table, EM iterations never disguised as draws.

=========================  ===========================================================================================
group                      what it holds
=========================  ===========================================================================================
``iterations``             of a fit: ``objective`` (iteration, problems), ``converged`` and ``num_steps`` (problems)
``point_estimate``         of a fit: the parameters; given queries also ``attention`` and ``log_evidence``
``posterior``              of draws: the parameters drawn and ``attention`` (chain, draw, .., query, unit)
``attention``              ``attention`` of every n-th draw, where only those are asked for
``posterior_predictive``   ``queries``, and ``outputs`` where they have a density, drawn anew for every draw
``prior``                  the parameters drawn from their priors, and ``prior_predictive``: the data these make
``log_prior``              log density of each parameter under its prior (chain, draw), for `results.prior_sensitivity`
``log_likelihood``         one variable, pointwise over the queries, the units summed out
``sample_stats``           what the sampler recorded (chain, draw)
``observed_data``          ``outputs``; of draws also the ``queries``, which the model explains
``constant_data``          ``observed`` and ``query_weights``; of draws also the parameters without a prior and which units
                           may change places (equal numbers in ``exchangeable_units``, ``exchangeable_components``)
=========================  ===========================================================================================
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from probtx_pyro.inference import Adaptation, Approximation, Draws
from probtx_pyro.models import GaussianKeys, GaussianMixture
from probtx_pyro.results._arviz import Variable, from_arrays
from probtx_pyro.results._convert_draws import DrawsOptions, draws_groups
from probtx_pyro.results._dims import Layout, parameters

Groups = dict[str, dict[str, Variable]]


def to_inference_data(
    fit: Adaptation | GaussianMixture | GaussianKeys | Draws | Approximation,
    queries: Tensor | None = None,
    outputs: Tensor | None = None,
    observed: Tensor | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    **options: Unpack[DrawsOptions],
) -> Any:
    """Convert a result of inference to ``arviz.InferenceData`` (``xarray.DataTree`` under ArviZ 1.x).

    Parameters
    ----------
    fit
        What `inference.adapt` returned, a mixture, the `Draws` of a sampler, or what `inference.variational` returned, which stands
        for its draws; `GaussianKeys` add the dimension ``component``.
    queries, outputs, observed
        (..., Q, D), (..., Q, M) or labels (..., Q), and a boolean (..., Q): as given to `inference.adapt`. Draws bring
        their own.
    coords
        Labels of dimensions, such as ``{"query": tokens, "unit": tokens}``; integers where none are given.
    dims
        Names of the axes of a variable in place of those of the table: ``{"keys": ["layer", "unit", "feature"]}``, without
        ``chain`` and ``draw``. The leading axes are called as the Pyro plates, ``batch`` and ``head``.
    options
        Of draws only, of a program made by `models.bayesian`:

        - ``attention=True``: whether attention is a variable of the posterior, (chain, draw, .., query, unit) numbers; a
          number n puts that of every n-th draw into a group ``attention``.
        - ``likelihood="joint"``: what LOO leaves out with a query. "joint" is ``log p(q_i, v_i)``, or ``log p(q_i)`` where
          no answer is observed; "answers" is ``log p(v_i | q_i)`` of the answers observed. None for no such group.
        - ``seed=None``: with a seed, every draw makes new queries and answers (with "answers": new answers to the same
          queries), the group ``posterior_predictive``.
        - ``prior=0``: how many draws from the priors, with the data that they make; needs a seed.
        - ``relabel=True``: `relabel` units that may change places.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        An axis along which a parameter is shared is absent. Attributes: method, inference_library and its version; of a fit
        converged (1 where all problems did) and num_steps (the largest); of draws the sampler's record, ``labels``, which
        says what became of exchangeable units, and ``approximation``, the guide, where draws are not of a Markov chain.

    Raises
    ------
    ValueError
        Outputs without queries; shapes, dims or coords that do not fit; options that this result cannot serve.

    Notes
    -----
    A query of weight 0 has no likelihood: where there are such (or unobserved answers, for "answers"), the others lie along
    ``observation``, whose labels say which they are, so that ``arviz.loo`` meets no NaN. Other weights multiply the log
    likelihood, as in the program.

    Examples
    --------
    >>> import torch
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[-1.0], [1.0]]))
    >>> data = to_inference_data(mixture, torch.zeros(3, 1), coords={"query": ["a", "cat", "sat"]})
    >>> data["point_estimate"]["attention"].sel(query="cat").values.round(4).tolist()
    [0.5, 0.5]

    References
    ----------
    Vehtari, Gelman & Gabry 2017, *Practical Bayesian model evaluation using leave-one-out cross-validation and WAIC*.
    """
    library = {"inference_library": "probtx_pyro", "inference_library_version": version("probtx_pyro")}
    fit = fit.draws if isinstance(fit, Approximation) else fit
    if isinstance(fit, Draws):
        if queries is not None or outputs is not None or observed is not None:
            raise ValueError("queries, outputs and observed: draws bring the data they were made from; leave these out")
        groups, attrs = draws_groups(fit, dims, **options)
        return from_arrays(groups, coords, library | attrs)
    if options:
        raise ValueError(f"{', '.join(options)}: an option of draws, but this is a {type(fit).__name__}; leave it out")
    if queries is None and (outputs is not None or observed is not None):
        raise ValueError("outputs and observed belong to queries, which are missing; give queries as well")
    groups, attrs = _point_groups(fit, (queries, outputs, observed), dims)
    return from_arrays(groups, coords, library | attrs)


def _point_groups(
    fit: Adaptation | GaussianMixture | GaussianKeys,
    data: tuple[Tensor | None, Tensor | None, Tensor | None],
    dims: Mapping[str, Sequence[str]] | None,
) -> tuple[Groups, dict[str, str | int | float]]:
    """The groups and attributes of one value of the parameters, with how it was found."""
    mixture = fit.mixture if isinstance(fit, Adaptation) else fit
    queries, outputs, observed = data
    layout = Layout(mixture, data, fit.converged.shape if isinstance(fit, Adaptation) else (), dims)
    groups: Groups = {"iterations": {}, "point_estimate": {}, "constant_data": {}, "observed_data": {}}
    attrs: dict[str, str | int | float] = {}
    if isinstance(fit, Adaptation):
        attrs |= {
            "method": fit.method,
            "converged": int(fit.converged.all()),
            "num_steps": int(fit.num_steps.max()) if fit.num_steps.numel() else 0,
        }
        groups["iterations"] = {name: layout.variable(name, getattr(fit, name)) for name in ("converged", "num_steps")}
        steps = [layout.variable("objective", row) for row in fit.objective]
        groups["iterations"]["objective"] = (("iteration", *steps[0][0]), np.stack([array for _, array in steps]))
    estimate = groups["point_estimate"]
    for name, x in parameters(mixture).items():
        estimate[name] = layout.variable(name, x)
    if queries is not None:
        with torch.no_grad():
            answers: tuple[Any, ...] = () if outputs is None else (outputs, observed)
            estimate["attention"] = layout.variable("attention", mixture.attention(queries, *answers))
            estimate["log_evidence"] = layout.variable("log_evidence", mixture.log_evidence(queries, *answers))
        groups["constant_data"]["queries"] = layout.variable("queries", queries)
        if observed is not None:
            groups["constant_data"]["observed"] = layout.variable("observed", observed)
        if outputs is not None:
            groups["observed_data"]["outputs"] = layout.variable("outputs", outputs)
    layout.finish()
    return groups, attrs


__all__ = ["to_inference_data"]

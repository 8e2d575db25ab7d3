"""Inference results as ArviZ data: named dimensions by one table, EM iterations never disguised as draws.

=========================  ===========================================================================================
group                      what it holds
=========================  ===========================================================================================
``iterations``             of a fit or a mean field: ``objective`` (iteration, problems), ``converged`` and ``num_steps`` (problems)
``point_estimate``         of a fit: the parameters; given queries also ``attention`` and ``log_evidence``. Of a mean field: its
                           marginals, such as ``attention`` and ``label_marginals``, and the parameters
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
from typing import Any

import numpy as np
import torch
from pyro.infer import MCMC
from pyro.infer.autoguide import AutoGuide
from torch import Tensor

from probtx_pyro.inference import Adaptation, Approximation, Draws
from probtx_pyro.models._latent_choices import Field
from probtx_pyro.models.formulation import Data, Formulation
from probtx_pyro.results._arviz import Variable, from_arrays
from probtx_pyro.results._convert_draws import draws_groups
from probtx_pyro.results._dims import Layout
from probtx_pyro.results._pyro import as_draws

Groups = dict[str, dict[str, Variable]]


def to_inference_data(
    fit: Adaptation | Formulation | Field | Draws | Approximation | MCMC | AutoGuide,
    *data: Tensor | None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    attention: bool | int = True,
    likelihood: str | None = "joint",
    seed: int | None = None,
    prior: int = 0,
    relabel: bool = True,
    **named: Any,
) -> Any:
    """Convert a result of inference to ``arviz.InferenceData`` (``xarray.DataTree`` under ArviZ 1.x).

    Parameters
    ----------
    fit
        What `inference.adapt` returned, a formulation, a mean field, the `Draws` of a sampler, or what `inference.variational`
        returned, which stands for its draws; or Pyro's own ``MCMC`` or ``AutoGuide``. Dimensions are called as the formulation's tables say.
    data, named
        The data, by place or by name: of a formulation or a fit as given to `inference.adapt`, such as queries (..., Q, D); of a mean
        field what was known when it was made, which it does not keep; of Pyro's own results what they were run on. Draws bring their own.
    coords
        Labels of dimensions, such as ``{"query": tokens, "unit": tokens}``; integers where none are given.
    dims
        Names of the axes of a variable in place of those of the table: ``{"keys": ["layer", "unit", "feature"]}``, without
        ``chain`` and ``draw``. The leading axes are called as the Pyro plates, ``batch`` and ``head``.
    attention
        Of draws, as all options below: True makes attention a variable of the posterior, (chain, draw, .., query, unit) numbers;
        a number n puts that of every n-th draw into a group ``attention``; False leaves it out.
    likelihood
        What LOO leaves out with a query: "joint" is ``log p(q_i, v_i)``, or ``log p(q_i)`` where no answer is observed; "answers" is
        ``log p(v_i | q_i)`` of the answers observed. None for no such group. Of a Pyro program of your own "joint" is one
        variable for each observed site, which takes a run of the program for each draw.
    seed
        With a seed, every draw makes new data (with "answers": new answers to the same queries), ``posterior_predictive``.
    prior
        How many draws from the priors, with the data that they make; needs a seed.
    relabel
        True numbers units that may change places alike in all draws, see `relabel`.

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
    Of a Pyro program of your own the plates name the axes, and masked observations lie outside ``site_observation`` as those of weight 0
    do below. Where a latent site has no draws, such as one that NUTS enumerates, the likelihood is left out; the attribute
    ``log_likelihood`` says so.

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
    options: dict[str, Any] = dict(attention=attention, likelihood=likelihood, seed=seed, prior=prior, relabel=relabel)
    fit = fit.draws if isinstance(fit, Approximation) else fit
    if isinstance(fit, MCMC | AutoGuide):
        fit, data, named = as_draws(fit, data, named, seed), (), {}
    if isinstance(fit, Draws):
        if data or named:
            raise ValueError("data: draws bring the data they were made from; leave them out")
        groups, attrs = draws_groups(fit, dims, **options)
        return from_arrays(groups, coords, library | attrs)
    formulation = fit.formulation if isinstance(fit, Adaptation | Field) else fit
    if not isinstance(formulation, Formulation):
        raise ValueError(
            f"fit must be a result of probtx_pyro.inference, a value of models, a mean field, or Pyro's MCMC or AutoGuide, not a {type(fit).__name__}"
        )
    defaults: Any = to_inference_data.__kwdefaults__
    for name, given in options.items():
        if given is not defaults[name]:
            raise ValueError(f"{name}: an option of draws, but this is a {type(fit).__name__}; leave it out")
    groups, attrs = _point_groups(fit, formulation, formulation.bind(*data, **named), dims)
    return from_arrays(groups, coords, library | attrs)


def _point_groups(
    fit: Any, formulation: Formulation, data: Data, dims: Mapping[str, Sequence[str]] | None
) -> tuple[Groups, dict[str, str | int | float]]:
    """The groups and attributes of one value of the parameters, with how it was found."""
    given = {name: x for name, x in zip(formulation.DATA, data, strict=True) if x is not None}
    latent = not data or next(iter(formulation.DATA.values())).role == "latent"
    if given and data[0] is None and not latent:
        first = next(iter(formulation.DATA))
        raise ValueError(f"{' and '.join(given)} belong to {first}, which are missing; give {first} as well")
    field = isinstance(fit, Field)
    layout = Layout(formulation, data, fit.converged.shape if isinstance(fit, Adaptation | Field) else (), dims)
    estimate = {name: layout.variable(name, x) for name, x in formulation.parameters().items()}
    groups: Groups = {"iterations": {}, "point_estimate": estimate, "constant_data": {}, "observed_data": {}}
    attrs: dict[str, str | int | float] = {}
    if isinstance(fit, Adaptation | Field):
        attrs |= {
            "method": fit.method if isinstance(fit, Adaptation) else "mean field",
            "converged": int(fit.converged.all()),
            "num_steps": int(fit.num_steps.max()) if fit.num_steps.numel() else 0,
        }
        groups["iterations"] = {name: layout.variable(name, getattr(fit, name)) for name in ("converged", "num_steps")}
        steps = [] if fit.objective is None else [layout.variable("objective", row) for row in fit.objective]
        if steps:
            groups["iterations"]["objective"] = (("iteration", *steps[0][0]), np.stack([array for _, array in steps]))
    if field:
        formulation.latents(data)  # refuses what cannot have been known
        estimate |= {name: layout.variable(name, x) for name, x in fit.marginals().items()}
    if latent or data[0] is not None:
        observations = formulation.observations(data)
        with torch.no_grad():
            for name in ("attention", "log_evidence"):
                if not field and formulation.offers(name) and (name == "attention" or formulation.explains(data)):
                    estimate[name] = layout.variable(name, getattr(formulation, name)(*observations))
        # what the estimate is conditional on, and the answers that it explains
        for i, (name, x) in enumerate(given.items()):
            role = formulation.DATA[name].role
            group = "observed_data" if role == "latent" or (role == "explained" and i) else "constant_data"
            groups[group][name] = layout.variable(name, x)
    layout.finish()
    return groups, attrs

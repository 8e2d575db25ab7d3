"""Label switching undone: units that may change places get the same number in every
draw. Files are relabelled without torch.

A posterior that is symmetric in its units has a mode for every permutation of them, and chains that sit in different
modes, or a chain that changes modes, look as if they had not converged. Each draw is renumbered by the permutation that
brings its parameters nearest to the centres of the units; centres and spreads follow from the renumbered draws, until
nothing moves.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from probtx_pyro.results._arviz import assemble, dataset, group_names
from probtx_pyro.results._matching import relabelled


def relabel(
    posterior: Any,
    reference: Mapping[str, ArrayLike] | None = None,
    *,
    exchangeable: Mapping[str, ArrayLike] | None = None,
) -> Any:
    """Number exchangeable units (and components of Gaussian keys) alike in every draw, before R-hat is asked.

    Units may change places where their priors are equal and so are the parameters that are not drawn; units that a
    prior separates are left alone. All variables with the axis ``unit`` move together, each problem of a batch by
    itself. Distances are squared differences of the parameters over their variance within a unit; of precisions those
    of the logarithm, as the attribute ``logarithmic`` of the file names them.

    Parameters
    ----------
    posterior
        `Draws` of a program made by `models.bayesian`, or ArviZ data with the group ``posterior``.
    reference
        Values of some of the parameters, without chain and draw, whose numbering the result takes:
        ``{"keys": fit.formulation.keys}``. By default it is that of the draw of the highest ``lp`` (without one, of the
        last draw).
    exchangeable
        Of ArviZ data made elsewhere: ``{"unit": [0, 0, 1]}``, equal numbers for units that may change places. Draws,
        and files of `to_inference_data`, know it by themselves: see ``constant_data["exchangeable_units"]``.

    Returns
    -------
    Draws or ArviZ data
        Of the type given. What was done is said in words, under ``labels``, in the record of draws or the attributes of
        a file.

    Raises
    ------
    ValueError
        Data that do not say which units may change places, NaN in a parameter, or a reference that does not fit.

    Examples
    --------
    >>> from probtx_pyro.results import from_arrays
    >>> keys = np.array([[[-1.0, 1.0], [1.1, -1.1], [-0.9, 1.0]]])
    >>> data = from_arrays({"posterior": {"keys": (("chain", "draw", "unit"), keys)}})
    >>> relabel(data, exchangeable={"unit": [0, 0]})["posterior"]["keys"].values[0].tolist()
    [[-1.0, 1.0], [-1.1, 1.1], [-0.9, 1.0]]

    References
    ----------
    Stephens 2000, *Dealing with label switching in mixture models*; Papastamoulis 2016, *label.switching*.
    """
    if hasattr(posterior, "program"):
        from probtx_pyro.results._exchangeable import draws_relabelled  # needs torch, which a file does not

        return draws_relabelled(posterior, reference)
    found = dataset(posterior, "posterior")
    groups = {name: dataset(posterior, name) for name in group_names(posterior)}
    classes: dict[str, Any] = {name: ((name,), np.asarray(x)) for name, x in (exchangeable or {}).items()}
    if exchangeable is None:
        constant: Mapping[Any, Any] = groups.get("constant_data", {})
        known = {name: f"exchangeable_{name}s" for name in ("unit", "component")}
        classes = {name: (constant[x].dims, constant[x].values) for name, x in known.items() if x in constant}
    if "unit" not in classes:
        raise ValueError(
            "exchangeable: the data do not say which units may change places; "
            "give exchangeable={'unit': numbers, equal where they may}"
        )
    variables: dict[Any, Any] = {name: (x.dims, x.values) for name, x in found.data_vars.items()}
    statistics: Mapping[Any, Any] = groups.get("sample_stats", {})
    lp = statistics["lp"].values if "lp" in statistics else None
    logarithmic = str(posterior.attrs.get("logarithmic", "")).split()
    moved, labels = relabelled(variables, classes, lp, reference, logarithmic, {})
    groups["posterior"] = found.assign(moved)
    return assemble(groups, {**posterior.attrs, "labels": labels})

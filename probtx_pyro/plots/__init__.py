"""Pictures: functions that return matplotlib axes, or a figure of several.

They take arrays (tensors and labelled ``xarray`` variables too), or the result that holds them: what `inference`,
`results` and `inspection` return, ArviZ data included. Those of one picture take ``ax=None``. They never call ``show``
and compute no inference; numpy, xarray and matplotlib only. Colours are safe for colour-blind readers and every series
carries its own label, so that the pictures survive a black-and-white printer.

>>> from probtx_pyro import plots
>>> ax = plots.attention_map([[0.9, 0.1], [0.2, 0.8]], ["cat", "sat"], ["cat", "sat"])
>>> [label.get_text() for label in ax.get_xticklabels()]
['cat', 'sat']
>>> from matplotlib import pyplot
>>> pyplot.close(ax.figure)
"""

from probtx_pyro.plots._style import UNIT_COLORS, unit_color
from probtx_pyro.plots.approximation import marginal_agreement, objective_trace
from probtx_pyro.plots.arcs import channel_arcs, dependency_arcs
from probtx_pyro.plots.attention import attention_map
from probtx_pyro.plots.captured import query_check, rank_spectra, sinks
from probtx_pyro.plots.images import image_rows, segmentation_overlay
from probtx_pyro.plots.plane import credible_ellipses, em_paths, energy_landscape, query_grid, responsibilities
from probtx_pyro.plots.posterior import (
    answer_band,
    attention_band,
    attention_uncertainty,
    calibration,
    martingale_check,
)
from probtx_pyro.plots.priors import prior_against_posterior, prior_posterior, prior_sensitivity

__all__ = ["attention_map", "responsibilities", "em_paths", "query_grid", "objective_trace"]
__all__ += ["segmentation_overlay", "energy_landscape", "credible_ellipses", "image_rows", "rank_spectra"]
__all__ += ["dependency_arcs", "channel_arcs", "marginal_agreement"]
__all__ += ["query_check", "sinks", "attention_band", "attention_uncertainty", "answer_band"]
__all__ += ["calibration", "martingale_check", "prior_posterior", "prior_against_posterior", "prior_sensitivity"]
__all__ += ["UNIT_COLORS", "unit_color"]

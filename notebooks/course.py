"""What every notebook of the course shares: sizes that shrink for a quick run, and a readable figure style."""

import os
from pathlib import Path

import matplotlib.pyplot as plt

SMOKE = os.environ.get("PROBTX_SMOKE") == "1"
COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000"]  # Okabe & Ito, colour-blind safe


def size(full, smoke):
    """``full``, or ``smoke`` in a quick run (environment variable ``PROBTX_SMOKE=1``)."""
    return smoke if SMOKE else full


def data_folder() -> Path | None:
    """The folder that the environment variable ``PROBTX_DATA`` names; None without it."""
    folder = os.environ.get("PROBTX_DATA")
    return Path(folder) if folder else None


def interact(**sliders):
    """``ipywidgets.interact``; in a quick run the function is called once, where its sliders start, and there are no widgets.

    Nor are there any where ``run.py`` makes the outputs to keep, which have none.
    """
    if os.environ.get("PROBTX_KEEP_OUTPUTS"):
        return lambda function: function
    if not SMOKE:
        from ipywidgets import interact as live

        return live(**sliders)

    def once(function):
        function(**{name: slider.value for name, slider in sliders.items() if hasattr(slider, "value")})
        return function

    return once


def style() -> None:
    """Fonts, colours and sizes of the course's figures."""
    plt.rcParams.update(
        {
            "figure.dpi": 90,
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.prop_cycle": plt.cycler(color=COLORS),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "image.cmap": "cividis",
            "legend.frameon": False,
        }
    )


__all__ = ["COLORS", "SMOKE", "data_folder", "interact", "size", "style"]

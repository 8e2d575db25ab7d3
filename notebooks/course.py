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


__all__ = ["COLORS", "SMOKE", "data_folder", "size", "style"]

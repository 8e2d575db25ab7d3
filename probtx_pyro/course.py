"""Shared tools of the course's notebooks: sizes that shrink for a quick run, checked claims, described figures,
one figure style.

Two environment variables change a run: ``PROBTX_SMOKE=1`` makes it quick, and ``PROBTX_CLAIMS=0`` lets claims that fail
print a line instead of stopping it, for those who change a text, a number or a seed. With ``PROBTX_CLAIMS=show`` claims
that hold are shown, too, as ``probtx tour`` does.
"""

import os
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt

moves: list[Callable[[], None]] = []  # of the sliders of a quick run
SMOKE = os.environ.get("PROBTX_SMOKE") == "1"
"""True in a quick run: the environment variable ``PROBTX_SMOKE`` is 1."""
FULL = not SMOKE
"""True in a run at the sizes that the text is about."""
COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000"]
"""Colours of the course's figures (Okabe & Ito), which colour-blind readers can tell apart."""
CLAIM = "text/x.probtx-claim"
"""Media type of a claim that holds, in the outputs of a cell."""


def size(full, smoke):
    """Choose a size by the kind of run.

    Parameters
    ----------
    full, smoke
        The size that the text is about, and that of a quick run (environment variable ``PROBTX_SMOKE=1``).

    Returns
    -------
    object
        One of the two.
    """
    return smoke if SMOKE else full


def claim(text: str, *conditions, when: bool = True) -> None:
    """Check what the text says: every condition has to hold.

    Parameters
    ----------
    text
        The claim, as a sentence.
    conditions
        Truth values, or tensors and arrays of one.
    when
        False in a run that the claim is not about, such as a quick one; the conditions have been computed, and no more
        is asked.

    Raises
    ------
    AssertionError
        With the sentence. With ``PROBTX_CLAIMS=0`` in the environment (``%env PROBTX_CLAIMS=0`` in a cell) it is
        printed instead.
    """
    asked = os.environ.get("PROBTX_CLAIMS")
    failed = [number for number, condition in enumerate(conditions, 1) if not bool(condition)]
    if when and not failed and asked == "show":
        from IPython.display import display

        display({CLAIM: text}, raw=True)
    if not failed or not when:
        return
    which = f" (condition {failed[0]} of {len(conditions)})" if len(conditions) > 1 else ""
    message = f"the text says: {text}. In this run it does not hold{which}."
    if asked not in ("0", "show"):
        raise AssertionError(f"{message} If you have changed something, go on with %env PROBTX_CLAIMS=0 in a cell")
    print(message[0].upper() + message[1:])


def data_folder() -> Path | None:
    """Folder that the environment variable ``PROBTX_DATA`` names; None without it."""
    folder = os.environ.get("PROBTX_DATA")
    return Path(folder) if folder else None


def interact(**sliders):
    """Run a function once for each move of its sliders, by ``ipywidgets.interact``.

    In a quick run the function is called once, where its sliders start, and there are no widgets. Nor are there any
    where ``notebooks/run.py`` makes the outputs to keep, which have none.
    """
    if os.environ.get("PROBTX_KEEP_OUTPUTS"):
        return lambda function: function
    if not SMOKE:
        from ipywidgets import interact as live

        return live(**sliders)

    def once(function):
        moves.append(lambda: function(**{name: x.value for name, x in sliders.items() if hasattr(x, "value")}))
        moves[-1]()
        return function

    return once


def move_sliders() -> None:
    """Call every function of `interact` once more, in a quick run: a reader moves sliders when all cells have run."""
    for move in moves:
        move()


def show_figure(alt: str) -> None:
    """Show the current figure with a description for readers who do not see it, and close it.

    Parameters
    ----------
    alt
        The description, in sentences; a notebook keeps it as the alternative text of the picture.
    """
    from IPython.display import display

    display(plt.gcf(), metadata={"image/png": {"alt": alt}})
    plt.close()


def style() -> None:
    """Set the fonts, colours and sizes of the course's figures."""
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


__all__ = [
    "CLAIM",
    "COLORS",
    "FULL",
    "SMOKE",
    "claim",
    "data_folder",
    "interact",
    "move_sliders",
    "show_figure",
    "size",
    "style",
]

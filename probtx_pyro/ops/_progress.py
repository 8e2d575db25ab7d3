"""The progress bar and the threads of every long run."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tqdm.auto import tqdm


def progress_bar(
    what: Iterable | None = None, *, label: str, progress: bool | None, total: int | None = None, initial: int = 0
) -> Any:
    """Return a ``tqdm`` bar over ``what``, or to be updated by hand; it leaves no trace when done.

    Parameters
    ----------
    what
        The items to go through, or None.
    label
        Text beside the bar.
    progress
        True shows it, False does not; None shows it on a terminal after a second.
    total, initial
        Number of items in all, and of those already done.

    Returns
    -------
    bar
        The bar.
    """
    hidden = None if progress is None else not progress
    return tqdm(what, desc=label, total=total, initial=initial, leave=False, delay=0 if progress else 1, disable=hidden)


@contextmanager
def computed_with(threads: int | None) -> Iterator[None]:
    """Compute with so many CPU threads inside the block; None leaves the number as it is."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            torch.set_num_threads(before)

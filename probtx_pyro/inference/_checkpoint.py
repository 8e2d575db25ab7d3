"""Long runs that go on where they stopped: one file, written whole or not at all, that knows which run it is of."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def fingerprint(what: object) -> str:
    """A digest of tensors (dtype, shape, numbers), nested mappings and sequences of them,
    and whatever else by its ``repr``.
    """
    digest = hashlib.sha256()
    _feed(digest, what)
    return digest.hexdigest()


def _feed(digest: "hashlib._Hash", x: object) -> None:
    if isinstance(x, Tensor):
        array = x.detach().cpu().clone(memory_format=torch.contiguous_format)
        digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
        digest.update(array.flatten().view(torch.uint8).numpy().tobytes())
    elif isinstance(x, Mapping):
        for key, value in sorted(x.items()):
            digest.update(f"{key}=".encode())
            _feed(digest, value)
    elif isinstance(x, (list, tuple)):
        digest.update(f"[{len(x)}".encode())
        for value in x:
            _feed(digest, value)
    else:
        digest.update(f"{type(x).__name__}:{x!r}".encode())


class Checkpoint:
    """The state of a run, in one file. Without a path nothing is kept and nothing found.

    Parameters
    ----------
    path
        Where; its folder is made if need be.
    run
        All that the run's numbers depend on, as `fingerprint` takes it.
    """

    def __init__(self, path: str | os.PathLike[str] | None, run: object):
        self.path = None if path is None else Path(path)
        self.run = "" if path is None else fingerprint(run)

    def load(self) -> dict[str, Any] | None:
        """The state saved last, tensors where they were, or on the CPU where there is no GPU; None if there is none.

        Raises
        ------
        ValueError
            A file that is no checkpoint, or one of another run.
        """
        if self.path is None or not self.path.exists():
            return None
        try:
            back = None if torch.cuda.is_available() else "cpu"  # tensors go on where they were, if that is here
            kept = torch.load(self.path, map_location=back, weights_only=True)
            run, state = kept["run"], kept["state"]
        except Exception as error:
            raise ValueError(
                f"checkpoint: {self.path} is no checkpoint ({error}); delete it or name another"
            ) from error
        if run != self.run:
            raise ValueError(
                f"checkpoint: {self.path} is of another run (model, data, options or seed differ); "
                "delete it or name another"
            )
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep tensors, numbers, text, and dicts and lists of them."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_name(self.path.name + ".unfinished")
        torch.save({"run": self.run, "state": dict(state)}, unfinished)
        os.replace(unfinished, self.path)

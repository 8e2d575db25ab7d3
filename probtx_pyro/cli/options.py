"""Options that several commands share, and what their values must be."""

import argparse


def seed(text: str) -> int:
    """A seed: a whole number from 0 to 2^32 - 1.

    >>> seed("7")
    7
    """
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; give a whole number from 0 to 4294967295")
    return int(text)


def add_device(parser: argparse.ArgumentParser) -> None:
    """``--device``."""
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, cuda:1 or mps")


def device(name: str) -> str:
    """A device that this machine has, by its torch name.

    Raises
    ------
    ValueError
        Not the name of a device, or one that is not here.
    """
    import torch

    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"--device {name}: this torch cannot use it here; try --device cpu") from None
    return str(found)


__all__ = ["add_device", "device", "seed"]

"""Readers, toy problems with known truth, and downloads with checksums."""

from probtx_pyro.data.images import Digits, load_digits

__all__ = ["Digits", "load_digits"]

"""Readers, toy problems with known truth, and downloads with checksums."""

from probtx_pyro.data.images import Digits, Photograph, load_digits, load_pagoda

__all__ = ["Digits", "load_digits", "Photograph", "load_pagoda"]

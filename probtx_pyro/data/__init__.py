"""Readers, toy problems with known truth, and downloads with checksums."""

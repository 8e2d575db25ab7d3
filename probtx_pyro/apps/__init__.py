"""Whole tasks on the public API."""

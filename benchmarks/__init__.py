"""Benchmarks: ratios to a reference measured in the same run. None of them is a test."""

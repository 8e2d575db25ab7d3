"""What the probabilistic view buys: one file a table, each with its protocol, `python -m benchmarks.evidence NAME`."""

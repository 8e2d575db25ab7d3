"""The guided run behind ``probtx tour``: all formulations on real data, with figures, ArviZ files and an HTML report."""

from probtx_pyro.tour._run import Written, run

__all__ = ["run", "Written"]

"""Tools of `probtx_pyro.course`, for notebooks that still import them from beside them."""

from probtx_pyro.course import *  # noqa: F403

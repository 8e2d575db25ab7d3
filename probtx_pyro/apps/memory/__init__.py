"""A memory of labelled points: classes with their evidence, adaptation to points without labels, and reasons.

`_learn` finds the units, `_held_out` what they say of points they have not seen, `_adapt` moves them, `_explain` names
them, and `_classifier` is scikit-learn's face of all of it.
"""

from probtx_pyro.apps.memory._adapt import Prevalence
from probtx_pyro.apps.memory._explain import Explanation

__all__ = ["Explanation", "Prevalence"]

"""The axes of the library, and the jaxtyping names of tensors that carry them.

============= ================================================================
axis          what it counts
============= ================================================================
``batch``     independent problems: examples, heads (any number of leading axes)
``query``     the questions asked of the memory, Q
``unit``      the memory units: components of the mixture, one key each, U
``feature``   coordinates of queries and keys, D
``component`` the keys that a unit mixes, R
``basis``     coordinates of a feature map's value, F
``answer``    coordinates of values and outputs, M
``label``     classes of a categorical answer, K
``stat``      coordinates of a sufficient statistic, T
============= ================================================================

Leading axes broadcast (``*#batch``). The annotations are executed in the tests and cost nothing elsewhere.
"""

from jaxtyping import Bool, Float
from torch import Tensor

QueryStatistics = Float[Tensor, "*#batch query stat"]
UnitParameters = Float[Tensor, "*#batch unit stat"]
Queries = Float[Tensor, "*#batch query feature"]
ComponentKeys = Float[Tensor, "*#batch unit component feature"]
ComponentWeights = Float[Tensor, "*#batch #unit component"]
QueryBasis = Float[Tensor, "*#batch query basis"]
UnitBasis = Float[Tensor, "*#batch unit basis"]
PerUnit = Float[Tensor, "*#batch unit"]
PerQuery = Float[Tensor, "*#batch query"]
Attention = Float[Tensor, "*#batch query unit"]
LogPrior = Float[Tensor, "*#batch rows unit"]
Values = Float[Tensor, "*#batch unit answer"]
Outputs = Float[Tensor, "*#batch query answer"]
Observed = Bool[Tensor, "*#batch query"]

__all__ = [
    "Attention", "ComponentKeys", "ComponentWeights", "LogPrior", "Observed", "Outputs", "PerQuery", "PerUnit", "Queries",
    "QueryBasis", "QueryStatistics", "UnitBasis", "UnitParameters", "Values",
]  # fmt: skip

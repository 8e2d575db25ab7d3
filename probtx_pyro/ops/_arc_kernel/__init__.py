"""The fast mean field of the dependency CRF: what `probtx_pyro.ops.dependency_crf` says,
without tensors of groups times pairs of words.

`distance_groups` lays out memory by distance group. `full_rank`, with the sums over arcs in `sums`, and `low_rank` make
scores and messages with their gradients, `compiled` those of either for a compiler; `arcs` chooses among them.
`channels` adds root and global nodes, `prepared` holds what is the same for all sweeps, and `schedules` visits the
channels. The updates of heads and labels given scores and messages are those of the readable module.
"""

from probtx_pyro.ops._arc_kernel.prepared import Prepared
from probtx_pyro.ops._arc_kernel.schedules import SCHEDULES, Sweep, Update, iterate, objective

__all__ = ["SCHEDULES", "Prepared", "Sweep", "Update", "iterate", "objective"]

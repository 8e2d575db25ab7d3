"""The fast mean field of the dependency CRF: what `probtx_pyro.ops.dependency_crf` says, without tensors of groups times pairs of words.

`distance_groups` lays out memory by distance group, `sums` adds up over arcs, `arcs` makes scores and messages with their gradients
of them (`compiled` does for a compiler), `channels` adds root and global nodes, `prepared` holds what is the same for all sweeps,
and `schedules` visits the channels. The updates of heads and labels given scores and messages are those of the readable module.
"""

from probtx_pyro.ops._arc_kernel.prepared import Prepared
from probtx_pyro.ops._arc_kernel.schedules import SCHEDULES, Sweep, Update, iterate, objective

__all__ = ["SCHEDULES", "Prepared", "Sweep", "Update", "iterate", "objective"]

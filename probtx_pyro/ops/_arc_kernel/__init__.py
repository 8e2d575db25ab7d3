"""The fast mean field of the dependency CRF: what `probtx_pyro.ops.dependency_crf` says,
without tensors of groups times pairs of words.

`distance_groups` lays out memory by distance group. `full_rank` and `low_rank` make scores and messages of arcs with
their gradients, and `arcs` chooses among them, or writes them out for a compiler. `schedules` adds root and global
nodes, and visits the channels. The updates of heads and labels given scores and messages are those of the readable
module.
"""

from probtx_pyro.ops._arc_kernel.schedules import SCHEDULES, Prepared, Sweep, Update, iterate, objective

__all__ = ["SCHEDULES", "Prepared", "Sweep", "Update", "iterate", "objective"]

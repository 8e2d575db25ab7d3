"""The potentials of a dependency CRF as the kernel takes them, with all that is the same in every sweep.

Sizes, here and in the other files: B sentences, N words, C channels, G distance groups, L labels, K labels of the root, S slots,
r the rank of the ternary potentials (L where they are full).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._arc_kernel.distance_groups import Groups
from probtx_pyro.ops.dependency_crf import Choices, Potentials

Factors = Sequence[Tensor]  # transposed, some channels at a time: (c, G, r, L)
AT_ONCE = 2**18  # numbers: channels are taken together as long as their features are few enough for a core's cache


class Prepared(NamedTuple):
    """The potentials of all channels, or of those that are worked on together.

    potentials: the CRF, whose root and memory are those of these channels, and whose ternary potentials are not looked at.
    left, right: factors of the ternary potentials, ``left right'``; ``left=None`` is the identity.
    choices: the slots that heads in these channels may take. groups: the distance groups that occur.
    """

    potentials: Potentials
    left: Factors | None
    right: Factors
    choices: Choices
    groups: Groups

    @classmethod
    def of(cls, potentials: Potentials) -> "Prepared":
        """All channels of a CRF."""
        unary, ternary = potentials.unary, potentials.ternary
        left, right = (None, ternary.mT) if isinstance(ternary, Tensor) else ternary
        factors = [None if x is None else _some_at_a_time(x, unary[..., 0].numel()) for x in (left, right)]
        groups = Groups.of(potentials.distances, unary.to(precision(unary)))
        return cls(potentials, factors[0], factors[1] or [], potentials.choices(), groups)

    def by_channels(self) -> Iterator[tuple[slice, "Prepared"]]:
        """Some channels at a time, and what belongs to them: what is done with them next finds them in the cache."""
        end, crf, choices = 0, self.potentials, self.choices
        left: Sequence[Tensor | None] = self.left or [None] * len(self.right)
        for u, v in zip(left, self.right, strict=True):
            channels = slice(end, end := end + len(v))
            root, memory = (None if x is None else x[channels] for x in (crf.root, crf.memory))
            own = choices if choices.bias.shape[1] == 1 else Choices(*(x[:, channels] for x in choices))
            some = crf._replace(root=root, memory=memory)
            yield channels, Prepared(some, None if u is None else [u], [v], own, self.groups)


def precision(x: Tensor) -> torch.dtype:
    """The dtype in which matrix products are made: under autocast, its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _some_at_a_time(x: Tensor, words: int) -> Factors:
    """Factors of all channels and groups (C, G, L, r), in the pieces that ``words`` words, batches together, are worked on."""
    return [some.contiguous() for some in x.mT.split(max(1, AT_ONCE // (words * x.shape[-1])))]

"""The potentials of a dependency CRF as the kernel takes them, with all that is the same in every sweep.

Sizes, here and in the other files: B sentences, N words, C channels, G distance groups, L labels, K labels of the root,
S slots, r the rank of the ternary potentials (L where they are full).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probtx_pyro.ops._arc_kernel.arcs import Weights
from probtx_pyro.ops._arc_kernel.distance_groups import Groups
from probtx_pyro.ops._arc_kernel.full_rank import FullRank
from probtx_pyro.ops._arc_kernel.low_rank import LowRank
from probtx_pyro.ops.dependency_crf import Choices, Potentials

AT_ONCE = 2**18  # numbers: channels are taken together as long as their features are few enough for a core's cache


class Prepared(NamedTuple):
    """The potentials of all channels, or of those that are worked on together.

    potentials: the CRF, whose root and memory are those of these channels, and whose ternary potentials are not looked
    at.
    weights: the ternary potentials, some channels at a time. choices: the slots that heads in these channels may take.
    groups: the distance groups that occur.
    """

    potentials: Potentials
    weights: Sequence[Weights]
    choices: Choices
    groups: Groups

    @classmethod
    def of(cls, potentials: Potentials) -> "Prepared":
        """All channels of a CRF."""
        unary, ternary = potentials.unary, potentials.ternary
        words, groups = unary[..., 0].numel(), Groups.of(potentials.distances, unary.to(precision(unary)))
        weights: list[Weights]
        if isinstance(ternary, Tensor):
            weights = [FullRank(x.contiguous()) for x in _some_at_a_time(ternary, words)]
        else:
            factors = zip(*(_some_at_a_time(x, words) for x in ternary), strict=True)
            weights = [LowRank.of(groups, *own) for own in factors]
        return cls(potentials, weights, potentials.choices(), groups)

    def by_channels(self) -> Iterator[tuple[slice, "Prepared"]]:
        """Yield the channels in pieces that stay in the cache, each with what belongs to it."""
        end, crf, choices = 0, self.potentials, self.choices
        for weights in self.weights:
            channels = slice(end, end := end + len(weights))
            root, memory = (None if x is None else x[channels] for x in (crf.root, crf.memory))
            own = choices
            if choices.bias.shape[1] > 1:
                own = choices._replace(bias=choices.bias[:, channels], some=choices.some[:, channels])
            yield channels, Prepared(crf._replace(root=root, memory=memory), [weights], own, self.groups)


def precision(x: Tensor) -> torch.dtype:
    """The dtype in which matrix products are made: under autocast, its own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _some_at_a_time(x: Tensor, words: int) -> Sequence[Tensor]:
    """Potentials or factors (C, G, L, r), in the pieces that ``words`` words, batches together, are worked on."""
    return x.split(max(1, AT_ONCE // (words * x.shape[-1])))

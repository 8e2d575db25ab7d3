"""Taught points, to which more can be added: sums of the points, with and without each fold, and points themselves."""

from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from probtx_pyro.apps.memory._held_out import HeldOut, folds_of, held_out
from probtx_pyro.apps.memory._learn import (
    Examples,
    Settings,
    Sums,
    class_sums,
    copies,
    every_point,
    learned_sums,
    memory_of,
)
from probtx_pyro.models import GaussianMixture

MOST_KEPT = 10_000  # points of partial_fit


class Training(NamedTuple):
    """Points and labels, taught at once or in parts.

    settings: how a memory is learned. num_folds: in which points are held out, 0 for none. counts: points of each class so far, (C,).
    points, shares: those that are kept, (N, D), and the shares of classes (N, C), times how often each counts. fold_of: (N,), -1 in none. ranks: (N,), uniform numbers; where
    not all points are kept, those of the lowest ranks are. sums: of all points, then of those outside each fold; none where every
    point is a unit.
    """

    settings: Settings
    num_folds: int
    counts: Tensor
    points: Tensor
    shares: Tensor
    fold_of: Tensor
    ranks: Tensor
    sums: tuple[Sums, ...]

    @classmethod
    def nothing(cls, settings: Settings, num_folds: int, like: Tensor) -> "Training":
        """Begin, with points like some (·, D)."""
        empty, whole = like.new_empty(0), torch.zeros(0).long()
        shares = like.new_empty(0, settings.num_classes)
        return cls(settings, num_folds, torch.zeros(settings.num_classes).long(), like[:0], shares, whole, empty, ())

    @property
    def complete(self) -> bool:
        """True if all points are kept."""
        return len(self.points) == int(self.counts.sum())

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """Points and shares that are kept."""
        return self.points, self.shares

    def taught(
        self, points: Tensor, shares: Tensor, most: int | None = None, dealt: Tensor | None = None
    ) -> "Training":
        """Add points.

        Parameters
        ----------
        points, shares
            (N, D), and the shares of classes (N, C), times how often each point counts.
        most
            Points to keep of all, drawn at random; None keeps all, as does a memory whose units they are.
        dealt
            Their folds, (N,). None deals them out by class, copies of a point to its own fold.
        """
        settings, labels = self.settings, shares.argmax(1)
        seen = int(self.counts.sum())
        dealt = self._deal(points, labels) if dealt is None else dealt
        ranks = torch.from_numpy(np.random.default_rng([settings.seed, seen]).random(len(points))).to(points)
        sums: tuple[Sums, ...] = ()
        if settings.units_per_class is not None:
            examples = Examples.of(points, shares)
            known = self.sums or (None,) * (1 + self.num_folds)
            outside = (examples.some(dealt[examples.rows] != fold) for fold in range(self.num_folds))
            sums = tuple(
                learned_sums(part, settings, own) for part, own in zip(chain([examples], outside), known, strict=True)
            )
        new = self._replace(
            counts=self.counts + labels.bincount(minlength=settings.num_classes),
            sums=sums,
            points=_joined(self.points, points),
            shares=_joined(self.shares, shares),
            fold_of=_joined(self.fold_of, dealt),
            ranks=_joined(self.ranks, ranks),
        )
        if most is None or settings.units_per_class is None or len(new.points) <= most:
            return new
        kept = new.ranks.argsort()[:most].sort().values
        return new._replace(
            points=new.points[kept], shares=new.shares[kept], fold_of=new.fold_of[kept], ranks=new.ranks[kept]
        )

    def _deal(self, points: Tensor, labels: Tensor) -> Tensor:
        """Return folds of new points, (N,)."""
        if not self.num_folds:
            return torch.zeros_like(labels)
        dealt = folds_of(labels, self.num_folds, self.counts.tolist(), self.settings.seed)
        every = _joined(self.fold_of, dealt)
        return every[copies(_joined(self.points, points))][len(self.points) :]

    def memory(self) -> GaussianMixture:
        """Learn the memory of all points."""
        if self.sums:
            return memory_of(self.sums[0], self.settings)
        return every_point(Examples.of(self.points, self.shares), self.settings)

    def held_out(self) -> HeldOut:
        """Score the points that are kept, each by a memory that was learned without its fold."""
        if not self.num_folds:
            return HeldOut(np.empty(0), 1.0, lambda _: torch.zeros_like(self.shares[0]))
        memories = [self._without(fold) for fold in range(self.num_folds)]
        return held_out(self.points, self.shares, self.fold_of, memories, self.settings.seed)

    def _without(self, fold: int) -> GaussianMixture | None:
        """Learn the memory of the points outside a fold; None where they do not vary."""
        if self.sums:
            sums = self.sums[1 + fold]
            return memory_of(sums, self.settings) if sums.vary() else None
        outside = self.fold_of != fold
        examples = Examples.of(self.points[outside], self.shares[outside])
        sums = class_sums(examples, self.settings.num_classes)
        return every_point(examples, self.settings) if sums.vary() else None


def _joined(before: Tensor, more: Tensor) -> Tensor:
    """Return one tensor, and no copy where it is the first."""
    return torch.cat([before, more]) if len(before) else more

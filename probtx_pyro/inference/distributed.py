"""Sums over the processes of a ``torch.distributed`` group:
what EM needs where each process holds a share of the queries.

The M-step sees only sums over queries, so that the sum over processes of each process's sums is all that travels: O(U
D) numbers a step, whatever the number of queries. Every process then takes the same step by itself.

Gradients: the backward pass of a sum over processes is a sum over processes. It is right where each process's loss is
its *share* of the loss: backward leaves on each process the whole gradient of its own queries, and of a tensor that all
hold a share of the gradient, to be added up (as data-parallel training does). A loss that every process computes alike,
such as ``objective`` itself, counts once for each process: divide it by their number. All processes must run the
backward pass. One that raises before the first sum (bad data of its own) leaves the others waiting for the group's
timeout.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models._problem import Problem
from probtx_pyro.models.priors import bare


class Together:
    """Sums and maxima over a process group; over this process alone, and so the identity, for ``None``."""

    def __init__(self, process_group: Any = None):
        if process_group is not None:
            if not (dist.is_available() and dist.is_initialized()):
                raise ValueError(
                    "process_group is given but torch.distributed is not initialized; "
                    "call torch.distributed.init_process_group first"
                )
            if not isinstance(process_group, dist.ProcessGroup):
                raise ValueError(
                    "process_group must be a torch.distributed.ProcessGroup that this process belongs to, not "
                    f"{type(process_group).__name__}; use torch.distributed.group.WORLD or new_group"
                )
        self.group = process_group

    def sum(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Each tensor summed over the processes, the same bits on all of them, in one message."""
        if self.group is None:
            return tensors
        flat = torch.cat([x.flatten() for x in tensors])
        parts = _Sum.apply(flat, self.group).split([x.numel() for x in tensors])
        return tuple(part.reshape(x.shape) for part, x in zip(parts, tensors, strict=True))

    def share(self, count: int) -> slice:
        """The part of ``count`` things that this process takes: as many as every other, or one more."""
        if self.group is None:
            return slice(count)
        processes, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        if count < processes:
            raise ValueError(f"process_group has {processes} processes for {count} chains or simulations; start fewer")
        return slice(rank * count // processes, (rank + 1) * count // processes)

    def rows(self, x: Tensor) -> Tensor:
        """The rows of all processes, in the order of their shares, without a gradient."""
        if self.group is None:
            return x
        every: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(every, x.detach().cpu(), group=self.group)
        return torch.cat(every).to(x.device)

    def largest(self, x: Tensor) -> Tensor:
        """The largest of each entry over the processes."""
        if self.group is None:
            return x
        x = x.detach().clone().contiguous()
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def agree(self, **facts: object) -> None:
        """Refuse, on every process, facts that are not the same on all;
        tensors are compared bit by bit. Only under validation.
        """
        if self.group is None or not check.is_validation_enabled():
            return
        own = {name: _fact(fact) for name, fact in facts.items()}
        every: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(every, own, group=self.group)
        for name in dict.fromkeys(name for each in every for name in each):
            # a process to which the fact does not apply leaves it out
            found = [each[name] for each in every if name in each]
            if any(other != found[0] for other in found):
                raise ValueError(
                    f"processes differ in {name}: {found}; "
                    "give every process of process_group the same, and its own share of the queries"
                )

    def agree_on(self, problem: Problem, **options: object) -> None:
        """Refuse a process group whose processes differ in what they must share: formulation, priors, options,
        kinds of data.
        """
        rows = {row.field or name: row.names for name, row in problem.formulation.PARAMETERS.items()}
        own = problem.formulation.axes("log_evidence")
        shared: dict[str, Any] = {}
        for field, x in vars(problem.formulation).items():
            local = rows.get(field, ())[:1] == own and x is not None and x.shape[-2] > 1
            if isinstance(x, Tensor) and not local:
                shared[f"formulation's {field}"] = x
        for name, site in problem.sites.items():
            prior = bare(site.distribution)
            if not problem.is_local(name):
                shared[f"prior on {name}"] = {key: getattr(prior, key) for key in prior.arg_constraints}
        kinds = {
            "adapted parameters": [(name, problem.is_local(name)) for name in problem.sites],
            "problems": tuple(problem.problems),
            "data": [name for name, x in zip(problem.formulation.DATA, problem.data, strict=True) if x is not None],
        }
        tensors = [x for x in (*problem.data, *vars(problem.formulation).values()) if isinstance(x, Tensor)]
        differentiable = (torch.is_grad_enabled(), [x.requires_grad for x in tensors])
        self.agree(**shared, **kinds, gradients=differentiable, **options)


def _fact(fact: object) -> object:
    if isinstance(fact, Mapping):
        return {name: _fact(x) for name, x in fact.items()}
    if not isinstance(fact, Tensor):
        return fact
    stored = fact.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return tuple(fact.shape), zlib.crc32(stored.numpy().tobytes()), fact.requires_grad


class _Sum(torch.autograd.Function):
    """The sum over processes, whose backward pass is the sum over processes of the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(gradients[0].contiguous(), ctx.group), None


__all__ = ["Together"]

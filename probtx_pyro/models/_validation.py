"""Bad input gets one clear error that names the argument and the repair. Off with ``pyro.enable_validation(False)``."""

import math
from typing import TypeVar

import torch
from pyro.distributions import is_validation_enabled
from torch import Tensor

from probtx_pyro.ops._numerics import common_shape, known

T = TypeVar("T")
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def unchecked(kind: type[T], **arguments: object) -> T:
    """A frozen dataclass made without its validation, from arguments that were computed from valid ones."""
    new = object.__new__(kind)
    vars(new).update(arguments)
    return new


def violated(condition: Tensor) -> bool:
    """True if any entry is, under validation; inside ``torch.func.vmap`` values cannot be checked."""
    return is_validation_enabled() and known(condition.any(), otherwise=False)


def finite(**tensors: Tensor | None) -> None:
    """Refuse NaN and infinity, naming the tensor."""
    for name, x in tensors.items():
        if x is None or not violated(~torch.isfinite(x.detach().sum())):
            continue  # a sum needs no memory, and neither NaN nor infinity can leave it finite
        if not torch.isfinite(x).all():
            kind = "NaN" if torch.isnan(x).any() else "infinity"
            raise ValueError(f"{name} contains {kind}; remove or mask such entries before they enter the model")


def tensor(name: str, x: object) -> None:
    """Refuse what is not a tensor."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, not {type(x).__name__}; wrap it in torch.as_tensor")


def floating(name: str, x: Tensor) -> None:
    """Refuse what is not a floating point tensor."""
    tensor(name, x)
    if not x.is_floating_point():
        raise ValueError(f"{name} must be a floating point tensor, not {x.dtype}; convert it with .float()")


def number(name: str, x: object, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """A number, or an array or lists of numbers, as a tensor; refuse what is none of these."""
    try:
        return torch.as_tensor(x, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError):  # of strings, of None and of lists that are no table, in this order
        raise ValueError(f"{name} must be a number or a tensor of numbers, not {x!r:.60}") from None


def at_least(name: str, x: Tensor, rank: int, axes: str) -> None:
    """Refuse a tensor with fewer axes than ``axes`` names."""
    tensor(name, x)
    if x.dim() < rank:
        raise ValueError(f"{name} must have shape {axes} but has shape {tuple(x.shape)}; add the missing axis")


def same_size(left: str, x: int, right: str, y: int, axis: str) -> None:
    """Refuse two tensors that disagree on the size of an axis."""
    if x != y:
        raise ValueError(f"{left} have {x} {axis} but {right} have {y}; give both the same number of {axis}")


def broadcastable(**shapes: torch.Size) -> torch.Size:
    """The common batch shape, or an error that names every shape."""
    try:
        return common_shape(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"batch axes do not broadcast: {listed}; make them equal or 1") from None


def same_dtype(**tensors: Tensor | None) -> None:
    """Refuse to promote silently."""
    given = {name: x for name, x in tensors.items() if x is not None}
    for name, x in given.items():
        tensor(name, x)
    kinds = {name: x.dtype for name, x in given.items()}
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in kinds.items())
        raise ValueError(f"tensors differ in dtype: {listed}; convert them to one with .to(dtype)")


def positive(name: str, precision: Tensor) -> None:
    """Refuse an inverse variance that is not positive."""
    if violated(precision <= 0):
        raise ValueError(f"{name} must be > 0; it is an inverse variance")


def positive_definite(name: str, matrix: Tensor, features: int) -> None:
    """Refuse what is no symmetric positive definite matrix (..., D, D)."""
    tensor(name, matrix)
    if matrix.shape[-2:] != (features, features):
        raise ValueError(f"{name} must end in ({features}, {features}) but has shape {tuple(matrix.shape)}")
    rounding = torch.finfo(matrix.dtype).eps ** 0.5 * matrix.abs().amax((-2, -1))  # as of an inverse
    if violated((matrix - matrix.mT).abs().amax((-2, -1)) > rounding):
        raise ValueError(f"{name} must be symmetric; the mean of it and its transpose is, 0.5 * ({name} + {name}.mT)")
    if violated(torch.linalg.cholesky_ex(matrix)[1] > 0):
        raise ValueError(f"{name} must be symmetric positive definite; add a multiple of the identity")


def log_weights(log_prior: Tensor, units: str, num_units: int) -> Tensor:
    """Log weights over the units, normalised or not;
    masks may not forbid a whole row. ``units`` is the argument that errors name.
    """
    at_least("log_prior", log_prior, 2, "(..., Q or 1, U); use unsqueeze(-2) for one row")
    same_size("log_prior", log_prior.shape[-1], units, num_units, "units")
    if violated((log_prior == -math.inf).all(-1)):
        raise ValueError("log_prior forbids every unit in some row; allow at least one, or drop that query")
    return log_prior


def normalized_log(name: str, log_probs: Tensor) -> None:
    """Refuse log probabilities whose rows do not sum to one, or that forbid everything."""
    if violated(torch.isnan(log_probs) | (log_probs == math.inf)):
        raise ValueError(f"{name} contains NaN or +infinity; use -inf for a mask and finite log weights elsewhere")
    total = log_probs.detach().logsumexp(-1)
    if violated(total == -math.inf):
        raise ValueError(f"{name} forbids every unit in some row; allow at least one, or drop that query")
    if violated(total.abs() > simplex_tolerance(log_probs)):
        raise ValueError(f"{name} is off the simplex by {float(total.abs().max()):.3g}; apply log_softmax(-1)")


def simplex(name: str, probs: Tensor) -> None:
    """Refuse rows that are negative or do not sum to one."""
    if violated((probs < 0).any() | ((probs.sum(-1) - 1).abs() > simplex_tolerance(probs)).any()):
        raise ValueError(f"{name} must have non-negative rows that sum to 1; divide them by their sum")


def simplex_tolerance(x: Tensor) -> float:
    """A sum of U rounded terms errs by at most U eps; 16 allows for the logarithm and exponential that made them."""
    return 16 * max(x.shape[-1], 8) * torch.finfo(x.dtype).eps


def whole(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse what is no tensor of integers, or ``observed`` that is none of booleans."""
    boolean = name == "observed"
    if isinstance(x, Tensor) and (x.dtype == torch.bool if boolean else x.dtype in INTEGERS):
        return
    what = x.dtype if isinstance(x, Tensor) else type(x).__name__
    if boolean:
        raise ValueError(f"observed must be a boolean tensor {shape}, True where the label is known, not {what}")
    repair = "convert it with .long()" if isinstance(x, Tensor) else f"wrap it by torch.as_tensor({name})"
    raise ValueError(f"{name} must be a tensor of integers {shape}, not {what}; {repair}")


def fitted(name: str, x: Tensor, shape: tuple[int, ...], own: int = 1) -> Tensor:
    """A tensor of whole numbers, or ``observed`` of booleans, at the shape that it must have;
    its last ``own`` axes may not be stretched.
    """
    whole(name, x, shape)
    sizes = zip(reversed(x.shape), reversed(shape), strict=False)
    fits = own <= x.dim() <= len(shape) and all(n == size or (n == 1 and k >= own) for k, (n, size) in enumerate(sizes))
    if not fits:
        raise ValueError(f"{name} has shape {tuple(x.shape)} but needs {shape}; give one for each")
    return x.expand(shape)


def known_labels(labels: Tensor | None, observed: Tensor | None, present: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Labels at the shape of ``present``, and where they are known: where observed and present."""
    if labels is None:
        raise ValueError("observed is given without labels; give labels, or leave it out")
    shape = tuple(present.shape)
    labels = fitted("labels", labels, shape)
    read = present if observed is None else present & fitted("observed", observed, shape)
    wrong = read & ((labels < 0) | (labels >= count))
    if violated(wrong):
        raise ValueError(
            f"labels must be from 0 to {count - 1}, but one that is observed is {int(labels[wrong][0])}; "
            "mark unknown ones in observed"
        )
    return labels, read

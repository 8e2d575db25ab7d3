"""The dependency CRF: words with labels and, in each channel, a head; attention is the mean-field marginal of the heads.

Model (CRF; mathematics as corrected in docs/errata.md): the unnormalised log density of labels Z and heads H is

    log φ(Z, H) = Σ_i S_{i,Z_i} + Σ_c Σ_i T^{(c, g(i, H^c_i))}_{Z_i, Z_{H^c_i}}

======== ==================== =================== ==================================================================
symbol   name                 shape               meaning
======== ==================== =================== ==================================================================
S        ``unary``            (..., N, L)         score of every label of every word
T        ``ternary``          (C, G, L, L)        score of an arc: channel, distance group, label of word, of its head
R        ``root_ternary``     (C, L, K)           score of the root as the head of a word, by their labels
B        ``memory``           (C', M, L)          score of a global node as the head of a word, first C' channels
Z_i      site ``label``       (..., N)            0..L-1
H^c_i    site ``head``        (..., C, N)         a slot: root, words, global nodes; never the word itself
Q(Z_i)   ``label_marginals``  (..., N, L)         rows on the simplex
Q(H^c_i) ``head_marginals``   (..., C, N, S)      rows on the simplex: the attention matrix
======== ==================== =================== ==================================================================

Distance groups g(i, j): ``|i - j|`` cut by ``distances`` into [1, s_1), [s_1, s_2), ..., [s_n, ∞), times the two directions, those to
the right (j > i) first: G = 2 (n + 1). Leading axes are independent sentences, which share T, R and B.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from probtx_pyro.models import _validation as check
from probtx_pyro.models.dependency_crf import checks, exact, program
from probtx_pyro.models.dependency_crf.field import MeanField
from probtx_pyro.models.dependency_crf.low_rank import LowRank
from probtx_pyro.models.formulation import Formulation
from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops import fixed_point
from probtx_pyro.ops.dependency_crf import Potentials, Rule, Schedule, State, start


@dataclass(frozen=True, eq=False)
class DependencyCRF(Formulation):
    """Sentences of N words with L labels and C channels of dependencies. Immutable.

    Parameters
    ----------
    unary, ternary, root_ternary, memory
        As in the table above; ``ternary`` may be a `LowRank`.
    mask
        (..., N), True for a word and False for padding, which sends and receives nothing; holes are fine.
    distances
        Where ``|i - j|`` is cut into groups: integers of 2 or more that rise.
    memory_split
        The global nodes are a choice of their own in each channel, beside that of a head.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, NaN or infinity in a word, a sentence without words.

    Examples
    --------
    Labels that want to be equal, and a second word that knows its own:

    >>> import torch
    >>> crf = DependencyCRF(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.eye(2).expand(1, 2, 2, 2))
    >>> field = crf.mean_field(num_steps=5)
    >>> field.head_marginals.tolist()
    [[[0.0, 1.0], [1.0, 0.0]]]
    >>> bool(field.elbo <= crf.log_partition()), field.label_marginals[0].argmax().item()
    (True, 0)

    References
    ----------
    Wu & Tu 2023, *Probabilistic Transformer: A Probabilistic Dependency Model for Contextual Word Representation*, ACL Findings.
    """

    unary: Tensor
    ternary: Tensor | LowRank
    mask: Tensor | None = None
    distances: tuple[int, ...] = ()
    root_ternary: Tensor | None = None
    memory: Tensor | None = None
    memory_split: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "distances", tuple(self.distances))
        checks.parameters(self)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move and convert every tensor, as ``torch.Tensor.to``; the mask stays boolean."""
        moved = {name: x.to(*args, **kwargs) for name, x in vars(self).items() if isinstance(x, Tensor | LowRank)}
        if self.mask is not None:
            moved["mask"] = self.mask.to(self.unary.to(*args, **kwargs).device)
        return check.unchecked(type(self), **{**vars(self), **moved})

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes: sentences."""
        return self.unary.shape[:-2]

    def full_ternary(self) -> Tensor:
        """T, (C, G, L, L)."""
        return self.ternary.full() if isinstance(self.ternary, LowRank) else self.ternary

    def potentials(self) -> Potentials:
        """Plain tensors, the sentences along one axis."""
        unary = self.unary.reshape(-1, *self.unary.shape[-2:])
        words = torch.ones_like(unary[..., 0], dtype=torch.bool)
        if self.mask is not None:
            words = self.mask.expand(self.unary.shape[:-1]).reshape(words.shape)
        ternary = (self.ternary.left, self.ternary.right) if isinstance(self.ternary, LowRank) else self.ternary
        return Potentials(unary, words, ternary, self.distances, self.root_ternary, self.memory, self.memory_split)

    def mean_field(
        self,
        num_steps: int,
        schedule: str | Schedule = "asynchronous",
        *,
        label_temperature: float | Tensor = 1.0,
        head_temperature: float | Tensor = 1.0,
        label_step: float = 1.0,
        head_step: float = 1.0,
        label_damping: float = 0.0,
        head_damping: float = 0.0,
        normalizer: Callable[[Tensor, int], Tensor] | None = None,
        tol: float | None = None,
        history: bool = False,
        implicit: bool = False,
        progress: bool | None = None,
    ) -> MeanField:
        """Iterate the mean-field equations (mathematics 5.2) from ``Q(Z) ∝ exp(S)`` and uniform heads.

        Parameters
        ----------
        num_steps
            Sweeps over all variables, at most.
        schedule
            ``"asynchronous"`` (heads, then labels), ``"synchronous"`` (both at once), ``"sequential"`` (heads, then one word after
            the other, which never lowers the objective), or a callable: those of
            `probtx_pyro.ops.dependency_crf` compute the same slowly, as the formulas stand.
        label_temperature, head_temperature
            λ_Z and λ_H; ``head_temperature = 1 / L`` is the scale of the published encoders.
        label_step, head_step
            1 is a full step; less mixes in the marginals before. The first asynchronous head update is always full.
        label_damping, head_damping
            0 is none; more mixes in the logits before.
        normalizer
            Like ``torch.softmax``, called with logits and an axis; None is softmax. `probtx_pyro.ops.dependency_crf.relu_normalized` is
            the published alternative.
        tol
            Stop each sentence where no marginal or logit moves by more than this share of the largest; None takes all the sweeps.
        history
            Keep the objective of every sweep.
        implicit
            Differentiate at the fixed point instead of through the sweeps: memory does not grow with them. Needs convergence.
        progress
            As `probtx_pyro.ops._fixed_point`.

        Raises
        ------
        ValueError
            An unknown schedule, a tolerance or temperature that is not positive, a step outside (0, 1] or damping outside [0, 1).
        """
        checks.options(
            num_steps=num_steps, tol=tol, schedule=schedule, temperatures=(label_temperature, head_temperature),
            steps=(label_step, head_step), damping=(label_damping, head_damping),
        )  # fmt: skip
        normalize = torch.softmax if normalizer is None else normalizer
        label = Rule(label_temperature, label_step, label_damping, normalize)
        head = Rule(head_temperature, head_step, head_damping, normalize)
        potentials, taken = self.potentials(), [0]
        prepared = kernel.Prepared.of(potentials)
        update: Callable = (
            partial(kernel.SCHEDULES[schedule], prepared)
            if isinstance(schedule, str)
            else partial(schedule, potentials)
        )

        def objective(state: State) -> Tensor:
            return kernel.objective(prepared, label, head, state)

        def step(state: State) -> tuple[State, Tensor | None]:
            taken[0] += 1
            return update(label, head, state, taken[0] == 1), objective(state) if history else None

        found = fixed_point(
            step, start(potentials, label, head, prepared.choices),
            problems=potentials.unary.shape[:1], num_steps=num_steps, tol=tol, objective=objective if history else None,
            implicit=implicit, progress=progress, label="mean field",
        )  # fmt: skip
        state = {name: x.reshape(*self.batch_shape, *x.shape[1:]) for name, x in found.state.items()}
        trace = found.objective
        return MeanField(
            self, state["labels"], state["heads"], state["label_logits"], state.get("root"), state.get("root_logits"),
            None if trace is None else trace.reshape(-1, *self.batch_shape),
            found.converged.reshape(self.batch_shape), found.num_steps.reshape(self.batch_shape),
            label_temperature, head_temperature,
        )  # fmt: skip

    log_joint = program.log_joint
    model = program.model
    guide = program.guide
    enumerated = program.enumerated
    enumerated_guide = program.enumerated_guide
    log_partition = exact.log_partition
    marginals = exact.marginals


__all__ = ["DependencyCRF"]

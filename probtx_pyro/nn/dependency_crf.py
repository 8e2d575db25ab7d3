"""The dependency CRF as an encoder: mean-field inference unrolled into a network (Wu & Tu)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from probtx_pyro.models import DependencyCRF, LowRank
from probtx_pyro.models._validation import unchecked
from probtx_pyro.models.dependency_crf import MeanField
from probtx_pyro.nn._module import Priors, WithPriors, made, options, printed
from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops._crf_potentials import softmax
from probtx_pyro.ops._numerics import drop
from probtx_pyro.ops.dependency_crf import Rule, relu_normalized

NORMALIZERS = {"softmax": softmax, "relu": relu_normalized}


@dataclass(frozen=True)
class MeanFieldOptions:
    """Rules by which the sweeps of a `DependencyCRFEncoder` update labels and heads.

    Parameters
    ----------
    schedule
        ``"asynchronous"``, ``"synchronous"`` or ``"sequential"``, as in `DependencyCRF.mean_field`.
    label_temperature, head_temperature
        λ_Z and λ_H; None is the published scale of the heads, ``1 / width``.
    label_step, head_step, label_damping, head_damping
        As in `DependencyCRF.mean_field`.
    normalizer
        ``"softmax"`` or ``"relu"``.

    Raises
    ------
    ValueError
        A schedule or normalizer of another name.
    """

    schedule: str = "asynchronous"
    label_temperature: float = 1.0
    head_temperature: float | None = None
    label_step: float = 1.0
    head_step: float = 1.0
    label_damping: float = 0.0
    head_damping: float = 0.0
    normalizer: str = "softmax"

    def __post_init__(self) -> None:
        for name, table in (("normalizer", NORMALIZERS), ("schedule", kernel.SCHEDULES)):
            if getattr(self, name) not in table:
                raise ValueError(f"{name} must be one of {', '.join(table)}, not {getattr(self, name)!r}")

    def rules(self, width: int) -> tuple[Rule, Rule]:
        """Return how labels, ``width`` of them, and heads are updated."""
        function = NORMALIZERS[self.normalizer]
        head_temperature = 1.0 / width if self.head_temperature is None else self.head_temperature
        label = Rule(self.label_temperature, self.label_step, self.label_damping, function)
        return label, Rule(head_temperature, self.head_step, self.head_damping, function)


@dataclass(frozen=True)
class GlobalNodes:
    """Global nodes of a `DependencyCRFEncoder`, the analogue of a feed-forward layer.

    Parameters
    ----------
    number
        M; 0 is none.
    channels
        The first channels only; None: in all.
    split
        Attended apart from the words, not together with them.

    Raises
    ------
    ValueError
        ``channels`` without a ``number``.
    """

    number: int = 0
    channels: int | None = None
    split: bool = False

    def __post_init__(self) -> None:
        if self.channels is not None and not self.number:
            raise ValueError("channels is given without nodes; give their number, or leave it out")


def default_rank(width: int) -> int | Literal["full"]:
    """Return the rank of ternary potentials that an encoder of ``width`` labels has unless it is told: an eighth,
    or ``"full"`` below 64.

    What was measured of it: docs/reports/small_treebanks.md.

    >>> default_rank(64), default_rank(16)
    (8, 'full')
    """
    return width // 8 if width >= 64 else "full"


class DependencyCRFEncoder(WithPriors):
    """Contextual scores of the labels of words:
    a transformer encoder that is a probability model of sentence structure.

    Shapes: x (B, N, L), key_padding_mask (B, N) with True at padding -> (B, N, L).

    Potentials start with a variance of ``1 / width``. At the published start, variance 1, every head begins with one
    word chosen.

    Parameters
    ----------
    width
        L, the labels of a word; the unary scores are the encoder's input.
    num_channels
        C, the dependency structures of a sentence (attention heads).
    num_steps
        Sweeps of mean field: layers, which share their parameters.
    distances
        Bounds that cut the distance of two words into groups, each with potentials of its own.
    rank, shared
        A number: ternary potentials of low rank ``U V'``; ``shared`` over the channels as well ("uvw"). ``"full"``:
        full ones. None: `default_rank`, an eighth of the width for 64 labels or more, else full.
    symmetric
        The score of two words is the same whichever of them is the head: the potential of a distance to the left is the
        transpose of that to the right. Half the parameters.
    root_labels
        K, the labels of a root that every word may have as its head; 0 is no root.
    nodes
        `GlobalNodes`, or a mapping of its fields.
    mean_field
        `MeanFieldOptions`, or a mapping of its fields.
    dropout
        Rate, on label logits and on the head marginals that send messages.
    priors
        Pyro or torch distributions over the potentials, by the names of `constrained`, which are those of
        `DependencyCRF.PARAMETERS` and of the factors; `nn.log_prior_density` is their log density.

    Raises
    ------
    ValueError
        Options out of range or that do not fit each other, as `DependencyCRF` refuses them.

    Examples
    --------
    >>> encoder = DependencyCRFEncoder(8, num_channels=2, distances=(2,))
    >>> encoder(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(
        self,
        width: int,
        num_channels: int = 8,
        *,
        num_steps: int = 4,
        distances: tuple[int, ...] = (),
        rank: int | Literal["full"] | None = None,
        shared: bool = False,
        symmetric: bool = False,
        root_labels: int = 0,
        nodes: GlobalNodes | Mapping[str, object] = GlobalNodes(),
        mean_field: MeanFieldOptions | Mapping[str, object] = MeanFieldOptions(),
        dropout: float = 0.0,
        priors: Priors | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(priors)
        self.nodes, self.mean_field = made(GlobalNodes, nodes), made(MeanFieldOptions, mean_field)
        if not (rank is None or rank == "full" or (isinstance(rank, int) and rank > 0)):
            raise ValueError(f"rank must be a positive whole number, 'full' or None, not {rank!r}")
        self.rank = default_rank(width) if rank is None else rank
        if shared and self.rank == "full":
            raise ValueError("shared is given with full potentials; give the rank of the factors, or leave it out")
        self.width, self.num_channels, self.num_steps, self.dropout = width, num_channels, num_steps, dropout
        self.distances, self.shared, self.symmetric, self.root_labels = tuple(distances), shared, symmetric, root_labels
        self.update = kernel.SCHEDULES[self.mean_field.schedule]
        self.label, self.head = self.mean_field.rules(width)
        self.groups = 2 * (len(self.distances) + 1)
        groups, how = self.groups // (1 + symmetric), dict[str, Any](device=device, dtype=dtype)

        def normal(*shape: int, factors: int = 1, rank: int = 1) -> nn.Parameter:
            """Potentials, or factors of them, so that a score between two labels has a variance of ``1 / width``."""
            return nn.Parameter(torch.randn(*shape, **how) * (rank * width) ** (-0.5 / factors))

        if self.rank == "full":
            self.ternary = normal(num_channels, groups, width, width)
        else:
            lead = (groups,) if shared else (num_channels, groups)
            factors = {"factors": 2 + shared, "rank": self.rank}
            self.left, self.right = (normal(*lead, width, self.rank, **factors) for _ in range(2))
            if shared:
                self.channels = normal(groups, num_channels, self.rank, **factors)
        self.root_ternary = normal(num_channels, width, root_labels) if root_labels else None
        channels = num_channels if self.nodes.channels is None else self.nodes.channels
        self.memory = normal(channels, self.nodes.number, width) if self.nodes.number else None
        given = vars(self.mean_field) | {"head_temperature": self.head.temperature, "normalizer": None}
        with torch.no_grad():  # the model says what does not fit
            self.crf(torch.zeros(1, 1, width, **how)).mean_field(num_steps, **given)

    def constrained(self) -> dict[str, Tensor]:
        """Return the potentials ``ternary``, ``root_ternary`` and ``memory``; of low rank also ``left``,
        ``right`` and ``channels``.
        """
        potential = self.potential()
        full = potential.full() if isinstance(potential, LowRank) else potential
        return {**dict(self.named_parameters()), "ternary": full}

    def extra_repr(self) -> str:
        """Return the sizes, and the options that differ from their defaults, as modules print them."""
        sizes = {"width": self.width, "num_channels": self.num_channels}
        rank = None if self.rank == default_rank(self.width) else self.rank
        return printed(self, sizes, options(self, type(self)) | {"rank": rank, "priors": self.priors or None})

    def potential(self) -> Tensor | LowRank:
        """Return the ternary potential."""
        if self.rank == "full":
            full = self.ternary
            return torch.cat([full, full.mT], 1) if self.symmetric else full
        left: Tensor = self.left
        right: Tensor = self.right
        if self.symmetric:
            left, right = torch.cat([left, right], -3), torch.cat([right, left], -3)
        if not self.shared:
            return LowRank(left, right)
        return LowRank.shared(left, right, torch.cat([self.channels] * 2) if self.symmetric else self.channels)

    def crf(self, x: Tensor, key_padding_mask: Tensor | None = None) -> DependencyCRF:
        """Return the model of sentences with unary scores ``x`` (B, N, L); ``key_padding_mask`` (B,
        N) is True at padding.
        """
        return DependencyCRF(**self._parameters_of(x, key_padding_mask))

    def _parameters_of(self, x: Tensor, key_padding_mask: Tensor | None) -> dict[str, Any]:
        words = None if key_padding_mask is None else ~key_padding_mask
        parts = {"root_ternary": self.root_ternary, "memory": self.memory, "memory_split": self.nodes.split}
        return {"unary": x, "ternary": self.potential(), "mask": words, "distances": self.distances, **parts}

    def field(self, x: Tensor, key_padding_mask: Tensor | None = None, heads: Tensor | None = None) -> MeanField:
        """Return the mean field of sentences; ``field.head_marginals`` (B, C, N, S) is the attention.

        Parameters
        ----------
        x
            Unary scores (B, N, L).
        key_padding_mask
            (B, N), True at padding.
        heads
            Slots (B, C, N) of the heads that are known, -1 where they are not, as `DependencyCRF.potentials` takes
            them.

        Raises
        ------
        ValueError
            Scores of another shape, no sentence or no word, heads that a word may not take.
        """
        if x.dim() != 3 or x.shape[-1] != self.width or 0 in x.shape:
            wanted = f"(B, N, {self.width}), of one sentence and one word at least"
            raise ValueError(f"unary scores must have shape {wanted}, but have shape {tuple(x.shape)}")
        crf = unchecked(DependencyCRF, **self._parameters_of(x, key_padding_mask))
        dropout = self._drop if self.training and self.dropout else None
        label, head = self.label._replace(dropout=dropout), self.head._replace(dropout=dropout)
        state = kernel.iterate(crf.potentials(heads=heads), label, head, self.update, self.num_steps)
        return unchecked(
            MeanField,
            crf=crf,
            label_marginals=state["labels"],
            head_marginals=state["heads"],
            label_logits=state["label_logits"],
            root_marginals=state.get("root"),
            root_logits=state.get("root_logits"),
            objective=None,
            converged=x.new_zeros(x.shape[:1], dtype=torch.bool),
            num_steps=x.new_full(x.shape[:1], self.num_steps, dtype=torch.long),
            label_temperature=label.temperature,
            head_temperature=head.temperature,
        )

    def _drop(self, x: Tensor) -> Tensor:
        return drop(x, self.dropout)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile in place, as `torch.nn.Module.compile`;
        the part that every sweep repeats for every channel is compiled once.

        The options are those of ``torch.compile``; ``dynamic=True`` serves every length beyond the last distance at
        once. The sequential schedule, which goes word by word, is unrolled. Torch's own backend needs a C++ compiler. A
        copy is not compiled.
        """
        if isinstance(self.update, kernel.Sweep):
            self.update = self.update.compiled(*args, **options)
        else:
            super().compile(*args, **options)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Return label logits (B, N, L) from unary scores ``x`` (B, N, L); ``key_padding_mask`` (B,
        N) is True at padding.
        """
        return self.field(x, key_padding_mask).label_logits

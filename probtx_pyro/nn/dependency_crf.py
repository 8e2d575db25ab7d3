"""The dependency CRF as an encoder: mean-field inference unrolled into a network (Wu & Tu)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probtx_pyro.models import DependencyCRF, LowRank
from probtx_pyro.models._validation import unchecked
from probtx_pyro.models.dependency_crf import MeanField
from probtx_pyro.nn._options import arguments_of, printed
from probtx_pyro.nn._priors import Priors, WithPriors
from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops._crf_potentials import softmax
from probtx_pyro.ops.dependency_crf import Rule, relu_normalized

NORMALIZERS: dict[str, Any] = {"softmax": softmax, "relu": relu_normalized}


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
    num_steps, schedule
        Sweeps of mean field (layers, which share their parameters), and their order, as in `DependencyCRF.mean_field`.
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
    num_nodes, node_channels, split
        M global nodes, in the first ``node_channels`` channels (None: in all), attended together with the words or
        ``split`` from them.
    label_temperature, head_temperature
        λ_Z and λ_H; None is the published scale of the heads, ``1 / width``.
    label_step, head_step, label_damping, head_damping
        As in `DependencyCRF.mean_field`.
    normalizer
        ``"softmax"`` or ``"relu"``.
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
        schedule: str = "asynchronous",
        distances: tuple[int, ...] = (),
        rank: int | Literal["full"] | None = None,
        shared: bool = False,
        symmetric: bool = False,
        root_labels: int = 0,
        num_nodes: int = 0,
        node_channels: int | None = None,
        split: bool = False,
        label_temperature: float = 1.0,
        head_temperature: float | None = None,
        label_step: float = 1.0,
        head_step: float = 1.0,
        label_damping: float = 0.0,
        head_damping: float = 0.0,
        normalizer: str = "softmax",
        dropout: float = 0.0,
        priors: Priors | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(priors)
        if normalizer not in NORMALIZERS:
            raise ValueError(f"normalizer must be one of {', '.join(NORMALIZERS)}, not {normalizer!r}")
        if not (rank is None or rank == "full" or (isinstance(rank, int) and rank > 0)):
            raise ValueError(f"rank must be a positive whole number, 'full' or None, not {rank!r}")
        if node_channels is not None and not num_nodes:
            raise ValueError("node_channels is given without num_nodes; give the number of nodes, or leave it out")
        self._given = arguments_of(DependencyCRFEncoder, locals()) | {"distances": tuple(distances)}
        self.rank = default_rank(width) if rank is None else rank
        if shared and self.rank == "full":
            raise ValueError("shared is given with full potentials; give the rank of the factors, or leave it out")
        self.width, self.num_channels, self.num_steps = width, num_channels, num_steps
        self.distances, self.shared, self.symmetric, self.split = tuple(distances), shared, symmetric, split
        if schedule not in kernel.SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(kernel.SCHEDULES)}, not {schedule!r}")
        self.update = kernel.SCHEDULES[schedule]
        self.groups = 2 * (len(self.distances) + 1)
        groups, made = self.groups // (1 + symmetric), dict[str, Any](device=device, dtype=dtype)

        def normal(*shape: int, factors: int = 1, rank: int = 1) -> nn.Parameter:
            """Potentials, or factors of them, so that a score between two labels has a variance of ``1 / width``."""
            return nn.Parameter(torch.randn(*shape, **made) * (rank * width) ** (-0.5 / factors))

        if self.rank == "full":
            self.ternary = normal(num_channels, groups, width, width)
        else:
            lead = (groups,) if shared else (num_channels, groups)
            factors = {"factors": 2 + shared, "rank": self.rank}
            self.left, self.right = (normal(*lead, width, self.rank, **factors) for _ in range(2))
            if shared:
                self.channels = normal(groups, num_channels, self.rank, **factors)
        self.root_ternary = normal(num_channels, width, root_labels) if root_labels else None
        nodes = num_channels if node_channels is None else node_channels
        self.memory = normal(nodes, num_nodes, width) if num_nodes else None
        self.label = Rule(label_temperature, label_step, label_damping, NORMALIZERS[normalizer])
        head_temperature = 1.0 / width if head_temperature is None else head_temperature
        self.head, self.rate = Rule(head_temperature, head_step, head_damping, NORMALIZERS[normalizer]), dropout
        rules = {name: x for name, x in self._given.items() if name.startswith(("label_", "head_"))}
        rules["head_temperature"] = head_temperature
        with torch.no_grad():  # the model says what does not fit
            self.crf(torch.zeros(1, 1, width, **made)).mean_field(num_steps, schedule, **rules)

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
        return printed(self, sizes, self._given | {"priors": self.priors or None, "device": None, "dtype": None})

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
        parts = {"root_ternary": self.root_ternary, "memory": self.memory, "memory_split": self.split}
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
            raise ValueError(
                f"unary scores must have shape (B, N, {self.width}), of one sentence and one word at least, but have shape {tuple(x.shape)}"
            )
        crf = unchecked(DependencyCRF, **self._parameters_of(x, key_padding_mask))
        drop = self._dropout if self.training and self.rate else None
        label, head = self.label._replace(dropout=drop), self.head._replace(dropout=drop)
        state = kernel.iterate(crf.potentials(heads=heads), label, head, self.update, self.num_steps)
        return unchecked(
            MeanField, crf=crf, label_marginals=state["labels"], head_marginals=state["heads"],
            label_logits=state["label_logits"], root_marginals=state.get("root"), root_logits=state.get("root_logits"),
            objective=None, converged=x.new_zeros(x.shape[:1], dtype=torch.bool),
            num_steps=x.new_full(x.shape[:1], self.num_steps, dtype=torch.long),
            label_temperature=label.temperature, head_temperature=head.temperature,
        )  # fmt: skip

    def _dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.rate)

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

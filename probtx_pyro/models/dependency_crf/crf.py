"""The dependency CRF: words with labels and, in each channel, a head;
attention is the mean-field marginal of the heads.

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

Distance groups g(i, j): ``|i - j|`` cut by ``distances`` into [1, s_1), [s_1, s_2), ..., [s_n, ∞), times the two
directions, those to the right (j > i) first: G = 2 (n + 1). Leading axes are independent sentences, which share T, R
and B.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pyro
import torch
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import Plates
from probtx_pyro.models.dependency_crf import _densities, _parameters
from probtx_pyro.models.dependency_crf._densities import EVIDENCE, Known, Latents, Marginals
from probtx_pyro.models.dependency_crf._mean_field import MeanField, structured
from probtx_pyro.models.dependency_crf._parameters import LowRank
from probtx_pyro.models.dependency_crf._programs import (
    Annotation,
    Choices,
    guide_words,
    sample_sentences,
    sample_words,
    sentence_axes,
)
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter
from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops import fixed_point
from probtx_pyro.ops.dependency_crf import PLAIN, Potentials, Rule, Schedule, State, start

Maybe = Tensor | None
Function = Callable[[Potentials, Known], tuple[Tensor, ...]]
NUM_SWEEPS, TOLERANCE = 100, 1e-6  # of the mean field that attention and guide take where nobody gives one
HELD = 2**24  # numbers of the tables of all problems that are computed at once
TENSORS = {"unary": 3, "ternary": 4, "root_ternary": 3, "memory": 3}  # own axes of each potential


def _labelled(crf: "DependencyCRF", likelihood: str) -> "LabelledCRF":
    """The same CRF with a likelihood; one sentence without an axis gets one."""
    own = {name: x for name, x in vars(crf).items() if name != "likelihood"}
    return LabelledCRF(**own | ({} if crf.sentences else {"unary": crf.unary.unsqueeze(0)}), likelihood=likelihood)


@dataclass(frozen=True, eq=False, repr=False)
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
    Wu & Tu 2023, *Probabilistic Transformer: A Probabilistic Dependency Model for Contextual Word Representation*, ACL
    Findings.
    """

    unary: Tensor
    ternary: Tensor | LowRank
    mask: Tensor | None = None
    distances: tuple[int, ...] = ()
    root_ternary: Tensor | None = None
    memory: Tensor | None = None
    memory_split: bool = False

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "unary": Parameter("word label", constraints.real),
        "ternary": Parameter("channel group label head_label", constraints.real),
        "root_ternary": Parameter("channel label root_label", constraints.real),
        "memory": Parameter("node_channel node label", constraints.real),
    }
    DATA: ClassVar[Mapping[str, Datum]] = {
        "labels": Datum("word", "latent"),
        "heads": Datum("channel word", "latent"),
        "observed": Datum("word", "mask"),
    }
    RESULTS: ClassVar[Mapping[str, str]] = {
        "attention": "channel word slot",
        "expected_outputs": "word label",
        "label": "word",
        "head": "channel word",
        "root_label": "",
        "node": "node_channel word",
        "label_marginals": "word label",
        "root_marginals": "root_label",
    }
    LIKELIHOODS: ClassVar[dict[str, Callable[["DependencyCRF"], Formulation]]] = {
        kind: partial(_labelled, likelihood=kind) for kind in EVIDENCE
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "": "its labels and heads are latent and it explains no data; give models.bayesian likelihood='exact' or "
        "'pseudo' for priors on its potentials; of labels and heads alone take inference.gibbs or "
        "inference.annealed_log_partition, crf.log_partition or crf.marginals of short sentences, "
        "crf.mean_field(...).elbo, or train nn.DependencyCRFEncoder"
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "distances", tuple(self.distances))
        _parameters.validate_parameters(**vars(self))

    def held(self, name: str) -> Tensor | None:
        """The tensor of a parameter; of factors of low rank their product."""
        return self.full_ternary() if name == "ternary" else super().held(name)

    @property
    def sentences(self) -> torch.Size:
        """The axes of the sentences."""
        return self.unary.shape[:-2]

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes: each sentence is a problem of its own."""
        return self.sentences

    @classmethod
    def problem_axes(cls, rank: int) -> list[str]:
        """Names of the leading axes: ``sentence``."""
        return sentence_axes(rank)

    def full_ternary(self) -> Tensor:
        """T, (C, G, L, L)."""
        return self.ternary.full() if isinstance(self.ternary, LowRank) else self.ternary

    def potentials(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Potentials:
        """Plain tensors, the sentences along one axis, with what is known of labels and heads.

        Parameters
        ----------
        labels, observed
            Labels (..., N) that are known where ``observed`` (..., N); None is everywhere. Those of padding are not
            read.
        heads
            Slots (..., C, N) of the heads that are known, -1 where they are not.

        Raises
        ------
        ValueError
            Labels out of range, heads that the word may not take, or shapes that are not those of the sentences.
        """
        unary = self.unary.reshape(-1, *self.unary.shape[-2:])
        words = torch.ones(unary.shape[:-1], dtype=torch.bool, device=unary.device)
        if self.mask is not None:
            words = self.mask.expand(self.unary.shape[:-1]).reshape(words.shape)
        ternary = (self.ternary.left, self.ternary.right) if isinstance(self.ternary, LowRank) else self.ternary
        own = Potentials(unary, words, ternary, self.distances, self.root_ternary, self.memory, self.memory_split)
        return _parameters.known(own, self.sentences, labels, heads, observed)

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
        labels: Maybe = None,
        heads: Maybe = None,
        observed: Maybe = None,
    ) -> MeanField:
        """Iterate the mean-field equations (docs/mathematics.md, section 5.2) from ``Q(Z) ∝ exp(S)`` and uniform heads.

        Parameters
        ----------
        num_steps
            Sweeps over all variables, at most.
        schedule
            ``"asynchronous"`` (heads, then labels), ``"synchronous"`` (both at once), ``"sequential"`` (heads, then one
            word after the other, which never lowers the objective), or a callable: those of
            `probtx_pyro.ops.dependency_crf` compute the same slowly, as the formulas stand.
        label_temperature, head_temperature
            λ_Z and λ_H; ``head_temperature = 1 / L`` is the scale of the published encoders.
        label_step, head_step
            1 is a full step; less mixes in the marginals before. The first asynchronous head update is always full.
        label_damping, head_damping
            0 is none; more mixes in the logits before.
        normalizer
            Like ``torch.softmax``, called with logits and an axis; None is softmax.
            `probtx_pyro.ops.dependency_crf.relu_normalized` is the published alternative.
        tol
            Stop each sentence where no marginal or logit moves by more than this share of the largest; None takes all
            the sweeps.
        history
            Keep the objective of every sweep.
        implicit
            Differentiate at the fixed point instead of through the sweeps: memory does not grow with them. Needs
            convergence.
        progress
            As `probtx_pyro.ops._fixed_point`.
        labels, heads, observed
            What is known, as `potentials` takes it: those marginals stay where they are, and the ELBO bounds
            ``log_partition(labels, heads, observed)``.

        Raises
        ------
        ValueError
            What is known does not fit; an unknown schedule, a tolerance or temperature that is not positive, a step
            outside (0, 1] or damping outside [0, 1).
        """
        temperatures, steps = (label_temperature, head_temperature), (label_step, head_step)
        _parameters.validate_options(num_steps, tol, schedule, temperatures, steps, (label_damping, head_damping))
        normalize = PLAIN.normalizer if normalizer is None else normalizer
        label = Rule(label_temperature, label_step, label_damping, normalize)
        head = Rule(head_temperature, head_step, head_damping, normalize)
        potentials, taken = self.potentials(labels, heads, observed), [0]
        prepared = kernel.Prepared.of(potentials)
        if isinstance(schedule, str):
            update: Callable[..., State] = partial(kernel.SCHEDULES[schedule], prepared)
        else:
            update = partial(schedule, potentials)

        def objective(state: State) -> Tensor:
            return kernel.objective(prepared, label, head, state)

        def step(state: State) -> tuple[State, Tensor | None]:
            taken[0] += 1
            return update(label, head, state, taken[0] == 1), objective(state) if history else None

        found = fixed_point(
            step,
            start(potentials, label, head, prepared.choices),
            problems=potentials.unary.shape[:1],
            num_steps=num_steps,
            tol=tol,
            objective=objective if history else None,
            implicit=implicit,
            progress=progress,
            label="mean field",
        )
        state = {name: x.reshape(*self.sentences, *x.shape[1:]) for name, x in found.state.items()}
        if check.violated(torch.stack([x.detach().isnan().any() for x in state.values()])):
            raise ValueError(
                f"label_temperature, head_temperature: scores over {float(label_temperature):.3g} and "
                f"{float(head_temperature):.3g} are out of the range of {self.unary.dtype}; raise the temperatures"
            )
        trace = None if found.objective is None else found.objective.reshape(-1, *self.sentences)
        root, root_logits = state.get("root"), state.get("root_logits")
        ended = found.converged.reshape(self.sentences), found.num_steps.reshape(self.sentences)
        marginals = state["labels"], state["heads"], state["label_logits"], root, root_logits
        return MeanField(self, *marginals, trace, *ended, *temperatures)

    def structured_mean_field(
        self,
        num_steps: int = 20,
        *,
        num_draws: int = 64,
        seed: int,
        labels: Maybe = None,
        heads: Maybe = None,
        observed: Maybe = None,
    ) -> MeanField:
        """Labels factorised, each head by its exact posterior given all labels (docs/mathematics.md, section 5.4).

        The bound that this climbs, ``E_Q[log φ(Z)] + H(Q(Z))`` with heads summed out, is
        `inference.importance_log_partition`'s; it is never below the ELBO of the same labels. The marginals of the
        heads are those of this Q, averages over its draws.

        Parameters
        ----------
        num_steps, num_draws
            Sweeps over all words, each as dear as a Gibbs sweep of so many chains. What is averaged over the draws is
            noisy, so that nothing converges to the last digit; four times the draws halve the noise.
        seed
            A non-negative integer, which fixes the result to the bit on one device.
        labels, heads, observed
            What is known, as `potentials` takes it.

        Raises
        ------
        ValueError
            What is known does not fit; no sweeps or draws, or a negative seed.
        """
        for name, number, least in (("num_steps", num_steps, 1), ("num_draws", num_draws, 1), ("seed", seed, 0)):
            if not isinstance(number, int) or number < least:
                raise ValueError(f"{name} must be an integer of {least} or more, not {number!r}")
        with torch.no_grad():
            return structured(self, self.latents((labels, heads, observed)), num_steps, num_draws, seed)

    def attention(
        self,
        labels: Maybe = None,
        heads: Maybe = None,
        observed: Maybe = None,
        num_steps: int = NUM_SWEEPS,
        tol: float | None = TOLERANCE,
    ) -> Tensor:
        """The mean-field marginals of the heads given what is known, (..., C, N, S),
        after at most so many asynchronous sweeps.
        """
        return self._settled((labels, heads, observed), num_steps, tol).head_marginals

    def expected_outputs(
        self,
        labels: Maybe = None,
        heads: Maybe = None,
        observed: Maybe = None,
        num_steps: int = NUM_SWEEPS,
        tol: float | None = TOLERANCE,
    ) -> Tensor:
        """The mean-field marginals of the labels given what is known, (..., N, L): the words in context."""
        return self._settled((labels, heads, observed), num_steps, tol).label_marginals

    def _settled(self, data: tuple[Maybe, ...], num_steps: int, tol: float | None) -> MeanField:
        known = dict(zip(self.DATA, data, strict=True))
        return self.mean_field(num_steps, tol=tol, progress=False, **known)  # type: ignore[arg-type]

    # -- exact inference -----------------------------------------------------------------------------------------------

    def log_partition(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Tensor:
        """``log Z = log Σ_Z Σ_H φ(Z, H)``, (...), over what is not known, by a sum over all labellings;
        refused where there are too many.

        The log probability of what is known is ``log_partition(labels, heads, observed) - log_partition()``; arguments
        as `potentials`.
        """
        return _densities.log_partition(self.potentials(labels, heads, observed)).reshape(self.sentences)

    def marginals(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Marginals:
        """Exact marginals of labels, heads and root given what is known, by the same sum; arguments as `potentials`."""
        found = _densities.marginals(self.potentials(labels, heads, observed))
        own, slots = (x.reshape(*self.sentences, *x.shape[1:]) for x in found[:2])
        return Marginals(own, slots, None if found.root is None else found.root.reshape(*self.sentences, -1))

    def latents(self, data: Data) -> Latents:
        """Labels and heads as Gibbs sampling and annealing draw them, given what is known."""
        return Latents(self.potentials(*data), self.sentences)

    def draw_trees(
        self, data: Data, state: State, generator: torch.Generator, channels: Sequence[int] | None, single_root: bool
    ) -> tuple[Tensor, Tensor]:
        """Draw a tree in each of some channels given labels, (chain, ..., channel, N),
        and return log P(tree | labels) of all, (chain, ...).
        """
        return self.latents(data).trees(state, generator, channels, single_root)

    # -- Pyro programs -------------------------------------------------------------------------------------------------

    def log_joint(self, labels: Tensor, heads: Maybe = None, root_label: Maybe = None, nodes: Maybe = None) -> Tensor:
        """``log φ(Z, H)``, (...): of labels (..., N), heads (..., C, N) as slot numbers, and what the CRF has of these:

        root_label (...), and nodes (..., C', N), the global node chosen in each channel with ``memory_split``. Heads
        (and nodes) that are None or -1 are summed out: ``log φ(Z)``. A word that has no head to choose (alone, without
        a root) counts nothing in that channel, whatever its number. Further axes in front of those of the sentences are
        taken, too.
        """
        split, rooted = self.memory_split, self.root_ternary is not None
        if (root_label is None) == rooted:
            raise ValueError("root_label must be given with a CRF that has a root, and only then")
        if (nodes is not None and not split) or (nodes is None and split and heads is not None):
            raise ValueError("nodes must be given with heads and memory_split=True, and only then")
        own = self.potentials()
        chosen = {"labels": labels, "heads": heads, "root_label": root_label, "nodes": nodes}
        _parameters.validate_choices(own, self.sentences, chosen)
        return _densities.log_joint(own, self.sentences, labels, heads, root_label, nodes)

    def model(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> None:
        """Labels, heads (the root's label, nodes) in plates, every choice allowed alike,
        and log φ as a `pyro.factor` a sentence.

        ``label`` has shape (N,), with leading axes (..., 1, N); ``head`` (..., C, N). What is known is allowed one
        choice; arguments as `potentials`.
        """
        sample_sentences(self.potentials(labels, heads, observed), self.sentences, collapsed=False)

    def collapsed(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> None:
        """The same with heads (and nodes) summed out: ``label``, ``root_label``, and ``log φ(Z)`` as the factor."""
        sample_sentences(self.potentials(labels, heads, observed), self.sentences, collapsed=True)

    def guide(
        self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None, field: MeanField | None = None
    ) -> None:
        """The factorised family: every label, head, root label and node by itself, with the marginals of ``field``.

        Without one, it is that of ``mean_field`` as `attention` takes it, given what is known; arguments as
        `potentials`.
        """
        field = self._settled((labels, heads, observed), NUM_SWEEPS, TOLERANCE) if field is None else field
        _parameters.require_own(field.label_marginals, self.unary)
        given = field.label_marginals, field.head_marginals, field.root_marginals
        Choices(self.potentials(), self.sentences).sample(*given, counted=True)

    def enumerated(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> None:
        """The CRF of one sentence, a site for every choice and a factor for every pair of words in a channel.

        ``TraceEnum_ELBO`` sums it out exactly: with an empty guide its ELBO is `log_partition`. For tiny problems. The
        values of a site count what is allowed to it, in order: slots of a head, labels of a word, one of what is known
        (`potentials`).
        """
        _parameters.require_one_sentence(self.sentences)
        sample_words(self.potentials(labels, heads, observed))

    def enumerated_guide(
        self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None, field: MeanField | None = None
    ) -> None:
        """The factorised family for `enumerated`: the marginals of ``field``, or free logits for SVI.

        Free logits are `pyro.param`, named by the site with ``_logits``; they start at the unary scores, and at 0 for
        heads.
        """
        _parameters.require_one_sentence(self.sentences)
        if field is not None:
            _parameters.require_own(field.label_marginals, self.unary)
        given = (None,) * 3 if field is None else (field.label_marginals, field.head_marginals, field.root_marginals)
        guide_words(self.potentials(labels, heads, observed), *given)


@dataclass(frozen=True, eq=False, repr=False)
class LabelledCRF(DependencyCRF):
    """A `DependencyCRF` whose sentences are observations: ``models.bayesian(crf, likelihood=...)`` makes it.

    Its potentials may have leading axes of independent problems, in front of those in the table of `DependencyCRF`; the
    methods that it has from there take potentials without them.

    Parameters
    ----------
    likelihood
        ``"exact"``: the normaliser by a sum over all labellings, of short sentences. ``"pseudo"``: the
        pseudo-likelihood, of sentences of any length, all of whose labels are known, or none.

    Raises
    ------
    ValueError
        As `DependencyCRF`; sentences too long for the exact likelihood, or along more than one axis.
    """

    likelihood: str = "exact"

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        **DependencyCRF.PARAMETERS,
        "unary": Parameter("sentence word label", constraints.real),
    }
    DATA: ClassVar[Mapping[str, Datum]] = {
        "labels": Datum("sentence word", integer=True),
        "heads": Datum("sentence channel word", integer=True),
        "observed": Datum("sentence word", "mask"),
    }
    RESULTS: ClassVar[Mapping[str, str]] = {
        **{name: f"sentence {axes}".strip() for name, axes in DependencyCRF.RESULTS.items()},
        "label_marginals": "sentence word label",
        "log_evidence": "sentence",
    }
    AT_DRAWS: ClassVar[tuple[str, ...]] = ("attention", "label_marginals")
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "conditional": "the normaliser ties all potentials together, so that none has a conditional of a known family; "
        "draw with inference.nuts, fit a guide with inference.variational, or climb with inference.adapt",
        "": "it is a density of labels and heads; take log_evidence, attention or expected_outputs, "
        "or what a DependencyCRF has",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "distances", tuple(self.distances))
        _parameters.validate_parameters(**{name: x for name, x in vars(self).items() if name != "likelihood"})
        if self.unary.dim() != 3:
            raise ValueError(
                f"unary has shape {tuple(self.unary.shape)} but sentences that are observations lie along one axis, "
                "(sentences, N, L); flatten their axes into one"
            )
        if self.likelihood == "exact":
            words = self.words()
            repair = "give shorter sentences, or likelihood='pseudo', which takes any length"
            _densities.require_small(self._first(), _densities.alike(words, words), repair)

    # -- the contract: sentences are no problems of their own ----------------------------------------------------------

    batch_shape = Formulation.batch_shape
    problem_axes = Formulation.problem_axes

    @property
    def evidence_kind(self) -> str:
        """``"posterior"``, or ``"pseudo-posterior"`` where the likelihood is none."""
        return "pseudo-posterior" if self.likelihood == "pseudo" else "posterior"

    def check_prior(self, name: str) -> None:
        """Refuse a prior on what is not there, and on the entries of a product."""
        super().check_prior(name)
        if name == "ternary" and isinstance(self.ternary, LowRank):
            raise ValueError(
                "priors: ternary is a LowRank, whose rank a prior on its entries would not keep; "
                "give crf.replace(ternary=crf.full_ternary())"
            )

    def sizes(self, *data: Any) -> dict[str, int]:
        """Number of entries of each axis, the slots of heads among them."""
        return super().sizes(*data) | {"slot": sum(self._first().parts)}

    @classmethod
    def bind(cls, *data: Any, **named: Any) -> Data:
        """The data in the order of the table; those of one sentence may lack its axis."""
        ranks = zip(super().bind(*data, **named), (1, 2, 1), strict=True)
        return tuple(x.unsqueeze(0) if isinstance(x, Tensor) and x.dim() == rank else x for x, rank in ranks)

    @classmethod
    def asked(cls, data: Data) -> Data:
        """All data: known labels and heads say what the others are."""
        return cls.observations(data)

    def counted(self, data: Data) -> Tensor:
        """True for the sentences of which something is known, (..., B)."""
        return self._known(data).some

    def plates(self, *data: Any, **sizes: int | None) -> Plates:
        """The plates of sentences and potentials, with the axes of the problems; what is known is checked."""
        if sizes:
            raise ValueError(f"{min(sizes)}: sentences are those of unary and no more can be drawn; leave it out")
        known, one = self._known(data), self._first()
        batch = check.broadcastable(potentials=self.batch_shape, data=known.labels.shape[:-2])
        nodes = {} if one.memory is None else {"node_channel": len(one.memory)}
        return Plates(batch, sentence=len(one.words), channel=one.channels, **nodes)

    # -- potentials and data of one problem ----------------------------------------------------------------------------

    def words(self) -> Tensor:
        """True where there is a word, (B, N)."""
        shape, every = self.unary.shape[-3:-1], torch.ones((), dtype=torch.bool, device=self.unary.device)
        return (every if self.mask is None else self.mask).expand(shape)

    def potentials(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Potentials:
        """Potentials as `DependencyCRF.potentials` gives them, of one problem."""
        if self.batch_shape:
            raise ValueError(f"potentials have leading axes {tuple(self.batch_shape)}; take those of one problem")
        return super().potentials(labels, heads, observed)

    def _potentials(self, tensors: Mapping[str, Tensor | None]) -> Potentials:
        """The potentials of one problem."""
        unary, ternary, root, memory = (tensors.get(name) for name in TENSORS)
        assert unary is not None and ternary is not None
        return Potentials(unary, self.words(), ternary, self.distances, root, memory, self.memory_split)

    def _first(self) -> Potentials:
        """The potentials of the first problem, whose sizes are those of all."""
        held = ((name, rank, self.held(name)) for name, rank in TENSORS.items())
        return self._potentials({name: x[(0,) * (x.dim() - rank)] for name, rank, x in held if x is not None})

    def _known(self, data: Data) -> Known:
        """Known labels and heads, checked, with the leading axes of the data."""
        labels, heads, observed = given = self.bind(*data)
        words, one, lead = self.words(), self._first(), {}
        for name, x, rank in zip(self.DATA, given, (2, 3, 2), strict=True):
            if isinstance(x, Tensor):
                if x.dim() < rank or x.shape[x.dim() - rank] != len(words):
                    raise ValueError(
                        f"{name} has shape {tuple(x.shape)} but there are {len(words)} sentences of "
                        f"{words.shape[-1]} words; give a row for each sentence"
                    )
                lead[name] = x.shape[: x.dim() - rank]
        many = torch.Size((*check.broadcastable(**lead), len(words)))
        rows = torch.arange(len(words), device=words.device).expand(many).flatten()
        found = _parameters.known(one.sentences(rows), many, labels, heads, observed)
        none = torch.full_like(found.words, -1, dtype=torch.long)
        own = (none if found.labels is None else found.labels).unflatten(0, many)
        free = (words & (own < 0)).flatten(0, -3).any(0) if len(many) > 1 else words & (own < 0)
        slots = None if found.heads is None else found.heads.unflatten(0, many)
        known = Known(own, slots, _densities.alike(words, words), _densities.alike(words, free))
        if self.likelihood == "pseudo":
            wrong = (words & (own < 0)).any(-1) & known.some
            if check.violated(wrong):
                raise ValueError(
                    f"observed: sentence {int(wrong.nonzero()[0, -1])} is known in part, but the pseudo-likelihood "
                    "conditions each label on all others; know all its labels or none, or take likelihood='exact'"
                )
        return known

    def _at_problems(self, function: Function, known: Known) -> tuple[Tensor, ...]:
        """``function`` of the potentials and of what is known in each problem, (*problems, ...);
        some problems at a time.
        """
        batch = check.broadcastable(potentials=self.batch_shape, data=known.labels.shape[:-2])
        given = {name: (self.held(name), rank) for name, rank in TENSORS.items()}
        given |= {"labels": (known.labels, 2), "heads": (known.heads, 3)}
        tensors, axes = dict[str, Tensor](), dict[str, int | None]()
        for name, (x, rank) in given.items():
            if x is not None:
                wide = x.dim() > rank
                tensors[name] = x.expand(*batch, *x.shape[x.dim() - rank :]).flatten(0, len(batch) - 1) if wide else x
                axes[name] = 0 if wide else None

        def of(one: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            return tuple(function(self._potentials(one), known._replace(labels=one["labels"], heads=one.get("heads"))))

        if not batch:
            return of(tensors)
        some = max(1, HELD // _densities.largest(self._first(), known, self.likelihood))
        found = torch.func.vmap(of, in_dims=(axes,), randomness="different", chunk_size=some)(tensors)
        return tuple(x.unflatten(0, batch) for x in found)

    # -- closed forms --------------------------------------------------------------------------------------------------

    def _evidence(self, data: Data) -> tuple[Tensor, ...]:
        """The log density of the labels, and that of the heads given these, (..., B) each."""
        return self._at_problems(EVIDENCE[self.likelihood], self._known(data))

    def log_evidence(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Tensor:
        """Log likelihood, exact or pseudo, of each sentence's known labels and heads, (..., B);
        0 where nothing is known.
        """
        of_labels, of_heads = self._evidence((labels, heads, observed))
        return of_labels + of_heads

    def marginals(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Marginals:
        """Exact marginals of labels (..., B, N, L), heads (..., B, C, N, S) and root (..., B,
        K) given what is known.
        """

        def of(potentials: Potentials, known: Known) -> tuple[Tensor, ...]:
            given = potentials._replace(labels=known.labels, heads=known.heads)
            return tuple(x for x in _densities.marginals(given, known.rest) if x is not None)

        found = self._at_problems(of, self._known((labels, heads, observed)))
        return Marginals(found[0], found[1], found[2] if len(found) > 2 else None)

    def attention(  # type: ignore[override]
        self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None
    ) -> Tensor:
        """The exact marginals of the heads given what is known, (..., B, C, N, S);
        of any length where all labels are known.
        """
        return self.marginals(labels, heads, observed).heads

    def expected_outputs(  # type: ignore[override]
        self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None
    ) -> Tensor:
        """The exact marginals of the labels given what is known, (..., B, N, L)."""
        return self.marginals(labels, heads, observed).labels

    label_marginals = expected_outputs

    # -- Pyro programs -------------------------------------------------------------------------------------------------

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites ``labels`` and, where some are given or no labels are, ``heads``, each sentence by itself;
        the rest is summed out.
        """
        labels, heads, observed = data = self.bind(*data)
        sentences, places = self.words().shape
        batch = torch.Size((*plates.batch, sentences))

        def some_labels() -> Tensor:
            return self._at_problems(_densities.draw_labels, self._known(data))[0]

        def some_heads() -> Tensor:
            (drawn,) = self._at_problems(_densities.draw_heads, self._known((own, None, None)))
            return drawn if heads is None else drawn.masked_fill(heads < 0, -1)

        with plates.enter("sentence"):
            shape = torch.Size((places,))
            site = Annotation(lambda x: self._evidence((x, None, observed))[0], some_labels, batch, shape)
            own = pyro.sample("labels", site, obs=labels)
            if heads is not None or labels is None:
                shape = torch.Size((plates.last["channel"], places))
                site = Annotation(lambda x: self._evidence((own, x, observed))[1], some_heads, batch, shape)
                pyro.sample("heads", site, obs=heads)

    def model(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> None:
        """Sites ``labels`` and ``heads``, observed where they are given, drawn without labels;
        what is unknown is summed out.
        """
        data = (labels, heads, observed)
        self.generate(self.plates(*data), data, collapsed=True)

    collapsed = model

    def guide(self, *data: Any, **named: Any) -> None:  # type: ignore[override]
        """Nothing: the program has no latent choices, because all that are unknown are summed out."""

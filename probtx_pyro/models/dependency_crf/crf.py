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
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar, NamedTuple, cast

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical
from pyro.ops.indexing import Vindex
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import PARALLEL
from probtx_pyro.models.dependency_crf import _checks, _exact
from probtx_pyro.models.dependency_crf._exact import Marginals
from probtx_pyro.models.dependency_crf._latents import Latents
from probtx_pyro.models.dependency_crf._mean_field import MeanField
from probtx_pyro.models.dependency_crf.low_rank import LowRank
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter
from probtx_pyro.ops import _arc_kernel as kernel
from probtx_pyro.ops import fixed_point
from probtx_pyro.ops._crf_potentials import softmax
from probtx_pyro.ops.dependency_crf import Potentials, Rule, Schedule, State, group_of, start

Known = Tensor | None
NUM_SWEEPS, TOLERANCE = 100, 1e-6  # of the mean field that attention and guide take where nobody gives one


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
        "attention": "channel word slot", "expected_outputs": "word label",
        "label": "word", "head": "channel word", "root_label": "", "node": "node_channel word",
        "label_marginals": "word label", "root_marginals": "root_label",
    }  # fmt: skip
    LIKELIHOODS: ClassVar[dict] = {}  # of its own: those that take its labels and heads for data
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "": "its labels and heads are latent and it explains no data; give models.bayesian likelihood='exact' or 'pseudo' for priors on its potentials; of labels and heads alone take inference.gibbs or inference.annealed_log_partition, crf.log_partition or crf.marginals of short sentences, crf.mean_field(...).elbo, or train nn.DependencyCRFEncoder",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "distances", tuple(self.distances))
        _checks.validate_parameters(**vars(self))

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

    def potentials(self, labels: Known = None, heads: Known = None, observed: Known = None) -> Potentials:
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
        return _checks.known(own, self.sentences, labels, heads, observed)

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
        labels: Known = None,
        heads: Known = None,
        observed: Known = None,
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
        _checks.validate_options(
            num_steps=num_steps, tol=tol, schedule=schedule, temperatures=(label_temperature, head_temperature),
            steps=(label_step, head_step), damping=(label_damping, head_damping),
        )  # fmt: skip
        normalize = softmax if normalizer is None else normalizer
        label = Rule(label_temperature, label_step, label_damping, normalize)
        head = Rule(head_temperature, head_step, head_damping, normalize)
        potentials, taken = self.potentials(labels, heads, observed), [0]
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
        state = {name: x.reshape(*self.sentences, *x.shape[1:]) for name, x in found.state.items()}
        if check.violated(torch.stack([x.detach().isnan().any() for x in state.values()])):
            raise ValueError(
                f"label_temperature, head_temperature: scores over {float(label_temperature):.3g} and {float(head_temperature):.3g} are out of the range of {self.unary.dtype}, and marginals are NaN; raise the temperatures, or look at normalizer"
            )
        trace = found.objective
        return MeanField(
            self, state["labels"], state["heads"], state["label_logits"], state.get("root"), state.get("root_logits"),
            None if trace is None else trace.reshape(-1, *self.sentences),
            found.converged.reshape(self.sentences), found.num_steps.reshape(self.sentences),
            label_temperature, head_temperature,
        )  # fmt: skip

    def structured_mean_field(
        self, num_steps: int = 20, *, num_draws: int = 64, seed: int,
        labels: Known = None, heads: Known = None, observed: Known = None,
    ) -> MeanField:  # fmt: skip
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
            found = structured(self.latents((labels, heads, observed)), num_steps, num_draws, seed)
        steps = torch.full(self.sentences, num_steps, device=self.unary.device)
        return MeanField(
            self, found.labels, found.heads, found.label_logits, found.root, found.root_logits, None,
            torch.zeros_like(steps, dtype=torch.bool), steps,
        )  # fmt: skip

    def attention(
        self, labels: Known = None, heads: Known = None, observed: Known = None,
        num_steps: int = NUM_SWEEPS, tol: float | None = TOLERANCE,
    ) -> Tensor:  # fmt: skip
        """The mean-field marginals of the heads given what is known, (..., C, N, S),
        after at most so many asynchronous sweeps.
        """
        return self._settled((labels, heads, observed), num_steps, tol).head_marginals

    def expected_outputs(
        self, labels: Known = None, heads: Known = None, observed: Known = None,
        num_steps: int = NUM_SWEEPS, tol: float | None = TOLERANCE,
    ) -> Tensor:  # fmt: skip
        """The mean-field marginals of the labels given what is known, (..., N, L): the words in context."""
        return self._settled((labels, heads, observed), num_steps, tol).label_marginals

    def _settled(self, data: tuple[Known, ...], num_steps: int, tol: float | None) -> MeanField:
        known = dict(zip(self.DATA, data, strict=True))
        return self.mean_field(num_steps, tol=tol, progress=False, **known)  # type: ignore[arg-type]

    # -- exact inference -----------------------------------------------------------------------------------------------

    def log_partition(self, labels: Known = None, heads: Known = None, observed: Known = None) -> Tensor:
        """``log Z = log Σ_Z Σ_H φ(Z, H)``, (...), over what is not known, by a sum over all labellings;
        refused where there are too many.

        The log probability of what is known is ``log_partition(labels, heads, observed) - log_partition()``; arguments
        as `potentials`.
        """
        return _exact.log_partition(self.potentials(labels, heads, observed)).reshape(self.sentences)

    def marginals(self, labels: Known = None, heads: Known = None, observed: Known = None) -> Marginals:
        """Exact marginals of labels, heads and root given what is known, by the same sum; arguments as `potentials`."""
        found = _exact.marginals(self.potentials(labels, heads, observed))
        own, slots = (x.reshape(*self.sentences, *x.shape[1:]) for x in found[:2])
        return Marginals(own, slots, None if found.root is None else found.root.reshape(*self.sentences, -1))

    def latents(self, data: Data) -> Latents:
        """Labels and heads as Gibbs sampling and annealing draw them, given what is known."""
        return Latents(self.potentials(*data), self.sentences)

    def draw_trees(
        self,
        data: Data,
        state: Mapping[str, Tensor],
        generator: torch.Generator,
        channels: Sequence[int] | None,
        single_root: bool,
    ) -> tuple[Tensor, Tensor]:
        """Draw a tree in each of some channels given labels, (chain, ..., channel, N),
        and return log P(tree | labels) of all, (chain, ...).
        """
        return self.latents(data).trees(state, generator, channels, single_root)

    # -- Pyro programs -------------------------------------------------------------------------------------------------

    def log_joint(self, labels: Tensor, heads: Known = None, root_label: Known = None, nodes: Known = None) -> Tensor:
        """``log φ(Z, H)``, (...): of labels (..., N), heads (..., C, N) as slot numbers, and what the CRF has of these:

        root_label (...), and nodes (..., C', N), the global node chosen in each channel with ``memory_split``. Heads
        (and nodes) that are None or -1 are summed out: ``log φ(Z)``. A word that has no head to choose (alone, without
        a root) counts nothing in that channel, whatever its number. Further axes in front of those of the sentences are
        taken, too.
        """
        split, rooted = self.memory_split, self.root_ternary is not None
        for name, given, held, needed in (
            ("root_label", root_label, rooted, rooted), ("nodes", nodes, split, split and heads is not None),
        ):  # fmt: skip
            if needed if given is None else not held:
                raise ValueError(
                    f"{name} must be given with a CRF that has one, and only then: {'give' if needed else 'leave out'} {name}"
                )
        own = self.potentials()
        _checks.validate_choices(own, self.sentences, labels=labels, heads=heads, root_label=root_label, nodes=nodes)
        return _exact.log_joint(own, self.sentences, labels, heads, root_label, nodes)

    def model(self, labels: Known = None, heads: Known = None, observed: Known = None) -> None:
        """Labels, heads (the root's label, nodes) in plates, every choice allowed alike,
        and log φ as a `pyro.factor` a sentence.

        ``label`` has shape (N,), with leading axes (..., 1, N); ``head`` (..., C, N). What is known is allowed one
        choice; arguments as `potentials`.
        """
        sample_sentences(self.potentials(labels, heads, observed), self.sentences, collapsed=False)

    def collapsed(self, labels: Known = None, heads: Known = None, observed: Known = None) -> None:
        """The same with heads (and nodes) summed out: ``label``, ``root_label``, and ``log φ(Z)`` as the factor."""
        sample_sentences(self.potentials(labels, heads, observed), self.sentences, collapsed=True)

    def guide(
        self,
        labels: Known = None, heads: Known = None, observed: Known = None, field: MeanField | None = None,
    ) -> None:  # fmt: skip
        """The factorised family: every label, head, root label and node by itself, with the marginals of ``field``.

        Without one, it is that of ``mean_field`` as `attention` takes it, given what is known; arguments as
        `potentials`.
        """
        field = self._settled((labels, heads, observed), NUM_SWEEPS, TOLERANCE) if field is None else field
        _checks.require_own(field, self.unary)
        Choices(self.potentials(), self.sentences).sample(
            field.label_marginals, field.head_marginals, field.root_marginals, True
        )

    def enumerated(self, labels: Known = None, heads: Known = None, observed: Known = None) -> None:
        """The CRF of one sentence, a site for every choice and a factor for every pair of words in a channel.

        ``TraceEnum_ELBO`` sums it out exactly: with an empty guide its ELBO is `log_partition`. For tiny problems. The
        values of a site count what is allowed to it, in order: slots of a head, labels of a word, one of what is known
        (`potentials`).
        """
        _checks.require_one_sentence(self.sentences)
        sample_words(self.potentials(labels, heads, observed))

    def enumerated_guide(
        self,
        labels: Known = None, heads: Known = None, observed: Known = None, field: MeanField | None = None,
    ) -> None:  # fmt: skip
        """The factorised family for `enumerated`: the marginals of ``field``, or free logits for SVI.

        Free logits are `pyro.param`, named by the site with ``_logits``; they start at the unary scores, and at 0 for
        heads.
        """
        _checks.require_one_sentence(self.sentences)
        if field is not None:
            _checks.require_own(field, self.unary)
        given = (None,) * 3 if field is None else (field.label_marginals, field.head_marginals, field.root_marginals)
        guide_words(self.potentials(labels, heads, observed), *given)


def sentence_axes(rank: int) -> list[str]:
    """Names of ``rank`` leading axes: ``sentence``, and further ones in front of it ``sentence_1``,
    ``sentence_2``, ...
    """
    return [*(f"sentence_{i + 1}" for i in range(rank - 1)), *["sentence"][:rank]]


class Choices:
    """The independent choices of all sentences, in plates: ``word`` at dim -1, ``channel`` (``node_channel`` of split
    global nodes) at -2, and left of them the sentences. Their own log probability is masked where log φ counts in its
    place.
    """

    def __init__(self, potentials: Potentials, batch: torch.Size):
        self.potentials = potentials
        names = sentence_axes(len(batch))
        self.sentences = [pyro.plate(names[i], n, dim=i - len(batch) - 2) for i, n in enumerate(batch)]
        self.word = pyro.plate("word", potentials.unary.shape[-2], dim=-1)

    def within(self, *plates: pyro.plate) -> ExitStack:
        """Inside the plates of the sentences and those given."""
        stack = ExitStack()
        for plate in (*self.sentences, *plates):
            stack.enter_context(plate)
        return stack

    def sample(self, labels: Tensor, heads: Tensor | None, root: Tensor | None, counted: bool) -> dict[str, Tensor]:
        """Choices from probabilities, rows of zeros where there is nothing to choose;
        ``counted`` ones have a log probability.

        Without ``heads`` only labels are chosen.
        """
        memory, parts = self.potentials.memory, self.potentials.parts
        given = {"label": (labels.unsqueeze(-3) if self.sentences else labels, [self.word])}
        for name, probs in zip(("head", "node"), () if heads is None else heads.split(parts, -1), strict=False):
            if name == "node" and memory is not None:
                probs = probs[..., : len(memory), :, :]
            given[name] = (
                probs,
                [pyro.plate(f"{'' if name == 'head' else 'node_'}channel", probs.shape[-3], dim=-2), self.word],
            )
        if root is not None:
            given["root_label"] = root[..., None, None, :] if self.sentences else root, []
        found = {}
        for name, (probs, plates) in given.items():
            some = probs.sum(-1, keepdim=True) > 0
            with self.within(*plates), poutine.mask(mask=cast(Any, some.squeeze(-1) & counted)):
                found[name] = pyro.sample(name, Categorical(torch.where(some, probs, 1.0)))
        return found


def sample_sentences(potentials: Potentials, batch: torch.Size, collapsed: bool) -> None:
    """Every choice that is allowed alike, and log φ as a factor of each sentence; ``collapsed``: labels alone,
    heads summed out.
    """
    choices = Choices(potentials, batch)

    def sentences(x: Tensor, *sizes: int) -> Tensor:
        return x.to(potentials.unary.dtype).expand(-1, *sizes).reshape(*batch, *sizes)

    words, labels = potentials.unary.shape[1:]
    heads = None if collapsed else sentences(potentials.allowed(), potentials.channels, words, sum(potentials.parts))
    root = None if potentials.root is None else potentials.unary.new_ones(*batch, potentials.root.shape[-1])
    found = choices.sample(sentences(potentials.allowed_labels(), words, labels), heads, root, False)
    label, head, above = found["label"], found.get("head"), found.get("root_label")
    if label.shape[-1] != words or (head is not None and head.shape[-2:] != (potentials.channels, words)):
        raise NotImplementedError(
            "DependencyCRF.model cannot be enumerated, because all its choices depend on each other; give crf.enumerated, which sums out one short sentence, or take crf.log_partition or crf.mean_field"
        )
    label = label.squeeze(-2) if label.dim() > 1 else label
    above = None if above is None else above.squeeze((-2, -1)) if above.dim() else above
    value = _exact.log_joint(potentials, batch, label, head, above, found.get("node"))
    with choices.within():
        pyro.factor("potential", value[..., None, None])


class _Site(NamedTuple):
    """A choice of one sentence. slots: the numbers it may take, among which the site counts."""

    name: str
    kind: str
    channel: int
    word: int
    slots: Tensor


def _listed(potentials: Potentials) -> list[_Site]:
    """The choices of one sentence that are there to make."""
    unary = potentials.unary[0]
    allowed = potentials.allowed()[0].expand(potentials.channels, -1, -1).split(potentials.parts, -1)
    words = potentials.words[0].nonzero()[:, 0].tolist()
    labels = potentials.allowed_labels()[0].expand_as(unary)
    found = [_Site(f"label_{i}", "label", 0, i, labels[i].nonzero()[:, 0]) for i in words]
    for kind, part in zip(("head", "node"), allowed, strict=False):
        for c, i in product(range(len(part)), words):
            if part[c, i].any():
                found.append(_Site(f"{kind}_{c}_{i}", kind, c, i, part[c, i].nonzero()[:, 0]))
    if potentials.root is not None:
        every = torch.arange(potentials.root.shape[-1], device=unary.device)
        found.append(_Site("root_label", "root", 0, 0, every))
    return found


def sample_words(potentials: Potentials) -> None:
    """A site for every choice of one sentence, and a factor for every pair of words in a channel."""
    ternary, unary, root, memory = potentials.full_ternary(), potentials.unary[0], potentials.root, potentials.memory
    length, first = unary.shape[0], int(root is not None)
    groups = group_of(potentials.distances, length, unary.device)
    sites, drawn = _listed(potentials), dict[str, Tensor]()
    for name, _, _, _, slots in sites:
        chosen = pyro.sample(name, Categorical(torch.ones_like(slots, dtype=ternary.dtype)), infer=PARALLEL)
        drawn[name] = slots[chosen]
    # undoes the uniform probabilities; a mask would, too, but Pyro has no marginals of masked sites
    pyro.factor("uniform", ternary.new_tensor([len(site.slots) for site in sites]).log().sum())
    words = [i for i in range(length) if f"label_{i}" in drawn]
    for i in words:
        label = drawn[f"label_{i}"]
        pyro.factor(f"unary_{i}", unary[i][label])
        for c in range(len(ternary)):
            if (head := drawn.get(f"head_{c}_{i}")) is not None:
                for j in (j for j in words if j != i):
                    arc = Vindex(ternary[c, groups[i, j]])[label, drawn[f"label_{j}"]]
                    pyro.factor(f"arc_{c}_{i}_{j}", torch.where(head == first + j, arc, 0.0))
                if root is not None:
                    above = Vindex(root[c])[label, drawn["root_label"]]
                    pyro.factor(f"root_{c}_{i}", torch.where(head == 0, above, 0.0))
            node = drawn.get(f"node_{c}_{i}") if potentials.split else head
            if memory is not None and c < len(memory) and node is not None:
                node = node if potentials.split else node - first - length
                score = Vindex(memory[c])[node.clamp(min=0), label]
                pyro.factor(f"memory_{c}_{i}", torch.where(node >= 0, score, 0.0))


def guide_words(potentials: Potentials, labels: Tensor | None, heads: Tensor | None, root: Tensor | None) -> None:
    """The factorised family for `model`: marginals of labels (N, L), heads (C, N, S) and root (K,),
    or free logits if labels are None.
    """
    parts = potentials.parts
    for name, kind, c, i, slots in _listed(potentials):
        if labels is None or heads is None:
            unary = potentials.unary[0]
            start = unary[i][slots].detach().clone() if kind == "label" else unary.new_zeros(len(slots))
            choice = Categorical(logits=pyro.param(f"{name}_logits", start))
        elif kind in ("label", "root"):
            choice = Categorical(labels[i][slots] if kind == "label" else root)
        else:
            choice = Categorical(heads.split(parts, -1)[kind == "node"][c, i][slots])
        pyro.sample(name, choice, infer=PARALLEL)


class Structured(NamedTuple):
    """Marginals of labels (..., N, L), heads (..., C, N, S) and the root (..., K),
    and the logits of labels and root.
    """

    labels: Tensor
    heads: Tensor
    label_logits: Tensor
    root: Tensor | None
    root_logits: Tensor | None


def structured(latents: Latents, num_steps: int, num_draws: int, seed: int) -> Structured:
    """Sweep so often over all words, from labels that do not depend on each other."""
    crf, batch = latents.potentials, latents.batch
    generator = torch.Generator(crf.unary.device).manual_seed(seed)
    state = latents.start(num_draws, generator)
    found = torch.zeros_like(crf.unary)
    above: list[Tensor] = []

    def averaged(logits: Tensor, word: int | None) -> Tensor:
        mean = logits.log_softmax(-1).mean(0)
        if word is None:
            above[:] = [mean.to(found.dtype)]
        else:
            found[:, word] = mean.to(found.dtype)
        return mean.expand(logits.shape).clone()

    for _ in range(num_steps):
        state = latents.sweep(state, generator, seen=averaged)
    labels = found.softmax(-1) * crf.words.unsqueeze(-1)
    root = above[0].reshape(*batch, -1) if above else None
    return Structured(
        labels.reshape(*batch, *labels.shape[1:]), latents.attention(state).mean(0),
        found.reshape(*batch, *found.shape[1:]), None if root is None else root.softmax(-1), root,
    )  # fmt: skip

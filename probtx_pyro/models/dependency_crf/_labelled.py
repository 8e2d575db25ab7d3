"""A dependency CRF as a density of annotations: sentences are observations that share its potentials,
labels and heads are data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import pyro
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import Plates
from probtx_pyro.models.dependency_crf import _checks, _exact
from probtx_pyro.models.dependency_crf.crf import DependencyCRF
from probtx_pyro.models.dependency_crf.low_rank import LowRank
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter
from probtx_pyro.ops._label_sweeps import gumbel
from probtx_pyro.ops._numerics import log_sum
from probtx_pyro.ops.dependency_crf import Potentials


class Evidence(NamedTuple):
    """Log densities, (B,) each. labels: of the labels that are known. heads: of the heads that are known,
    given those labels.
    """

    labels: Tensor
    heads: Tensor


class Known(NamedTuple):
    """Known labels and heads, and how sentences go together: by all their words,
    and by those words whose labels are not known.

    labels: (B, N), -1 where unknown. heads: (B, C, N), -1 where unknown, or None. every: buckets of all labellings.
    rest: buckets of those that agree with the known labels.
    """

    labels: Tensor
    heads: Tensor | None
    every: list[_exact.Bucket]
    rest: list[_exact.Bucket]

    @property
    def some(self) -> Tensor:
        """True for the sentences of which something is known, (B,)."""
        labels = (self.labels >= 0).any(-1)
        return labels if self.heads is None else labels | (self.heads >= 0).any((-2, -1))


Likelihood = Callable[[Potentials, Known], Evidence]


def exact(potentials: Potentials, known: Known) -> Evidence:
    """``log Z(labels) - log Z`` and ``log Z(labels, heads) - log Z(labels)``, by sums over all labellings."""
    total = _exact.log_partition(potentials, known.every)
    labelled = potentials._replace(labels=known.labels)
    some = _exact.log_partition(labelled, known.rest)
    if known.heads is None:
        return Evidence(some - total, torch.zeros_like(some))
    both = _exact.log_partition(labelled._replace(heads=known.heads), known.rest)
    return Evidence(some - total, both - some)


def pseudo(potentials: Potentials, known: Known) -> Evidence:
    """``Σ_i log p(Z_i | Z_-i)``, heads and the root's label summed out, and ``log p(H | Z)``;
    all labels of a sentence, or none.

    A sentence without a known label counts 0.
    """
    labels, count = known.labels.clamp(min=0), potentials.unary.shape[-1]
    rows, root = labels.unsqueeze(0), None
    if potentials.root is not None:  # one row for each label that the root may have
        root = torch.arange(potentials.root.shape[-1], device=labels.device).unsqueeze(-1).expand(-1, len(labels))
        rows = rows.expand(len(root), -1, -1)
    scores = potentials.slot_scores(rows, root)  # (K, B, C, N, S)
    each = torch.arange(count, device=labels.device)[:, None, None, None].expand(-1, *rows.shape)
    own = _exact.log_told(potentials, potentials.slot_scores(rows, root, of=each))  # (L, K, B, N)
    unary = potentials.unary.masked_fill(~potentials.words.unsqueeze(-1), 0.0)
    logits = unary.movedim(-1, 0).unsqueeze(1) + own + _heard(potentials, scores, rows, each)
    conditional = logits.logsumexp(1).log_softmax(0)  # (L, B, N)
    read = potentials.words & (known.labels >= 0)
    of_labels = conditional.gather(0, labels.unsqueeze(0)).squeeze(0).masked_fill(~read, 0.0).sum(-1)
    if known.heads is None:
        return Evidence(of_labels, torch.zeros_like(of_labels))
    chosen = known.heads.expand(*scores.shape[:-1])
    told, summed = (_exact.log_told(potentials, scores, x).sum(-1).logsumexp(0) for x in (chosen, None))
    return Evidence(of_labels, (told - summed).masked_fill(~read.any(-1), 0.0))


def _heard(potentials: Potentials, scores: Tensor, labels: Tensor, each: Tensor) -> Tensor:
    """Terms of ``log φ`` from the choices of all other words if word i has label a, (L, K, B, N)."""
    heads = scores.split(potentials.parts, -1)[0]
    first, places = int(potentials.root is not None), labels.shape[-1]
    place = torch.arange(first, first + places, device=labels.device)
    itself = torch.arange(heads.shape[-1], device=labels.device) == place.unsqueeze(-1)
    unread = torch.zeros_like(labels[..., 0])  # the root's label, whose slot is not among those of words
    told = potentials.slot_scores(each, unread, of=labels.expand_as(each))[
        ..., first : first + places
    ]  # (L, K, B, C, k, i)
    # the slots of word k but for word i, (K, B, C, k, i): summed anew, because a difference of sums loses its digits
    others = log_sum(heads.unsqueeze(-2).masked_fill(itself, -torch.inf)).expand_as(told)
    return log_sum(torch.stack([others, told], -1)).masked_fill(told == -torch.inf, 0.0).sum((-3, -2))


LIKELIHOODS: dict[str, Likelihood] = {"exact": exact, "pseudo": pseudo}


def largest(potentials: Potentials, known: Known, likelihood: str) -> int:
    """Numbers in the largest tensor that a problem needs."""
    if likelihood == "exact":
        sizes = [(*_exact.table_size(potentials, x.free), len(x.rows)) for x in known.every]
        return max(max(m * rows, n if known.heads is None else n * rows) for m, n, rows in sizes)
    sentences, places, count = potentials.unary.shape
    roots = 1 if potentials.root is None else potentials.root.shape[-1]
    return roots * sentences * potentials.channels * places * sum(potentials.parts) * max(places, count)


def marginals(potentials: Potentials, known: Known) -> _exact.Marginals:
    """Exact marginals given what is known: of any size where that is all labels."""
    return _exact.marginals(potentials._replace(labels=known.labels, heads=known.heads), known.rest)


def draw_labels(potentials: Potentials, known: Known) -> tuple[Tensor]:
    """Labels of all sentences, (B, N), an exact draw by the table of all labellings; -1 for padding."""
    return (_exact.draw_labels(potentials, known.every).masked_fill(~potentials.words, -1),)


def draw_heads(potentials: Potentials, known: Known) -> tuple[Tensor]:
    """Heads given all labels, (B, C, N) slots, an exact draw; -1 where there is none to choose."""
    labels, root = known.labels.clamp(min=0), None
    if potentials.root is not None:
        every = torch.arange(potentials.root.shape[-1], device=labels.device).unsqueeze(-1).expand(-1, len(labels))
        rows = labels.expand(len(every), -1, -1)
        log = _exact.log_density(potentials, rows, every, potentials.slot_scores(rows, every))
        root = (log + gumbel(log.shape, log, None)).argmax(0)
    heads = potentials.slot_scores(labels, root).split(potentials.parts, -1)[0]
    drawn = (heads + gumbel(heads.shape, heads, None)).argmax(-1)
    return (drawn.masked_fill((heads == -torch.inf).all(-1), -1),)


class Annotation(TorchDistribution):
    """Whole numbers of batch shape (..., B), the sentences, and event shape (N,) or (C, N).

    Parameters
    ----------
    log_density
        From values to their log densities (..., B); it says itself which of them it reads.
    draw
        One draw of all sentences.
    batch_shape, event_shape
        As above.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(
        self,
        log_density: Callable[[Tensor], Tensor],
        draw: Callable[[], Tensor],
        batch_shape: torch.Size,
        event_shape: torch.Size,
    ):
        self.log_density, self.draw = log_density, draw
        super().__init__(batch_shape, event_shape, validate_args=False)

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> constraints.Constraint:
        """Whole numbers; -1 is padding, or a head that is not known."""
        return constraints.independent(constraints.integer_interval(-1, 2**31), len(self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """``log p(value)``, (..., B)."""
        return self.log_density(value).expand(self.batch_shape)

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        """Draw all sentences anew, so often."""
        with torch.no_grad():
            drawn = [self.draw().expand(self.shape()) for _ in range(torch.Size(sample_shape).numel())]
        return torch.stack(drawn).reshape(torch.Size(sample_shape) + self.shape())


__all__ = ["Annotation"]


HELD = 2**24  # numbers of the tables of all problems that are computed at once
TENSORS = {"unary": 3, "ternary": 4, "root_ternary": 3, "memory": 3}  # own axes of each potential
Maybe = Tensor | None
Function = Callable[[Potentials, Known], tuple[Tensor, ...]]


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
        "label_marginals": "sentence word label", "log_evidence": "sentence",
    }  # fmt: skip
    AT_DRAWS: ClassVar[tuple[str, ...]] = ("attention", "label_marginals")
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "conditional": "the normaliser ties all potentials together, so that none has a conditional of a known family; draw with inference.nuts, fit a guide with inference.variational, or climb with inference.adapt",
        "": "it is a density of labels and heads; take log_evidence, attention or expected_outputs, or what a DependencyCRF has",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "distances", tuple(self.distances))
        _checks.validate_parameters(**{name: x for name, x in vars(self).items() if name != "likelihood"})
        if self.unary.dim() != 3:
            raise ValueError(
                f"unary has shape {tuple(self.unary.shape)} but sentences that are observations lie along one axis, (sentences, N, L); flatten their axes into one"
            )
        if self.likelihood == "exact":
            words = self.words()
            repair = "give shorter sentences, or likelihood='pseudo', which takes any length"
            _exact.require_small(self._first(), _exact.alike(words, words), repair)

    @classmethod
    def of(cls, crf: DependencyCRF, likelihood: str) -> "LabelledCRF":
        """The same CRF with a likelihood; one sentence without an axis gets one."""
        own = {name: x for name, x in vars(crf).items() if name != "likelihood"}
        return cls(**own | ({} if crf.sentences else {"unary": crf.unary.unsqueeze(0)}), likelihood=likelihood)

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
                "priors: ternary is a LowRank, whose rank a prior on its entries would not keep; give crf.replace(ternary=crf.full_ternary())"
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
            raise ValueError(
                f"the potentials have leading axes {tuple(self.batch_shape)}, problems of their own; take those of one problem"
            )
        return super().potentials(labels, heads, observed)

    def _potentials(self, tensors: Mapping[str, Tensor | None]) -> Potentials:
        """The potentials of one problem."""
        unary, ternary, root, memory = (tensors.get(name) for name in TENSORS)
        assert unary is not None and ternary is not None
        return Potentials(unary, self.words(), ternary, self.distances, root, memory, self.memory_split)

    def _first(self) -> Potentials:
        """The potentials of the first problem, whose sizes are those of all."""
        held = {name: self.held(name) for name in TENSORS}
        return self._potentials(
            {name: x[(0,) * (x.dim() - TENSORS[name])] for name, x in held.items() if x is not None}
        )

    def _known(self, data: Data) -> Known:
        """Known labels and heads, checked, with the leading axes of the data."""
        labels, heads, observed = given = self.bind(*data)
        words, one, lead = self.words(), self._first(), {}
        for name, x, rank in zip(self.DATA, given, (2, 3, 2), strict=True):
            if isinstance(x, Tensor):
                if x.dim() < rank or x.shape[x.dim() - rank] != len(words):
                    raise ValueError(
                        f"{name} has shape {tuple(x.shape)} but there are {len(words)} sentences of {words.shape[-1]} words; give a row for each sentence"
                    )
                lead[name] = x.shape[: x.dim() - rank]
        many = torch.Size((*check.broadcastable(**lead), len(words)))
        rows = torch.arange(len(words), device=words.device).expand(many).flatten()
        found = _checks.known(one.sentences(rows), many, labels, heads, observed)
        none = torch.full_like(found.words, -1, dtype=torch.long)
        own = (none if found.labels is None else found.labels).unflatten(0, many)
        free = (words & (own < 0)).flatten(0, -3).any(0) if len(many) > 1 else words & (own < 0)
        slots = None if found.heads is None else found.heads.unflatten(0, many)
        known = Known(own, slots, _exact.alike(words, words), _exact.alike(words, free))
        if self.likelihood == "pseudo":
            wrong = (words & (own < 0)).any(-1) & known.some
            if check.violated(wrong):
                raise ValueError(
                    f"observed: sentence {int(wrong.nonzero()[0, -1])} is known in part, but the pseudo-likelihood conditions each label on all others; let all its labels be known or nothing of it, or take likelihood='exact'"
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
        some = max(1, HELD // largest(self._first(), known, self.likelihood))
        found = torch.func.vmap(of, in_dims=(axes,), randomness="different", chunk_size=some)(tensors)
        return tuple(x.unflatten(0, batch) for x in found)

    # -- closed forms --------------------------------------------------------------------------------------------------

    def _evidence(self, data: Data) -> tuple[Tensor, ...]:
        """The log density of the labels, and that of the heads given these, (..., B) each."""
        return self._at_problems(LIKELIHOODS[self.likelihood], self._known(data))

    def log_evidence(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Tensor:
        """Log likelihood, exact or pseudo, of each sentence's known labels and heads, (..., B);
        0 where nothing is known.
        """
        of_labels, of_heads = self._evidence((labels, heads, observed))
        return of_labels + of_heads

    def marginals(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> _exact.Marginals:
        """Exact marginals of labels (..., B, N, L), heads (..., B, C, N, S) and root (..., B,
        K) given what is known.
        """

        def of(potentials: Potentials, known: Known) -> tuple[Tensor, ...]:
            return tuple(x for x in marginals(potentials, known) if x is not None)

        found = self._at_problems(of, self._known((labels, heads, observed)))
        return _exact.Marginals(found[0], found[1], found[2] if len(found) > 2 else None)

    def attention(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Tensor:  # type: ignore[override]
        """The exact marginals of the heads given what is known, (..., B, C, N, S);
        of any length where all labels are known.
        """
        return self.marginals(labels, heads, observed).heads

    def expected_outputs(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Tensor:  # type: ignore[override]
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
            return self._at_problems(draw_labels, self._known(data))[0]

        def some_heads() -> Tensor:
            (drawn,) = self._at_problems(draw_heads, self._known((own, None, None)))
            return drawn if heads is None else drawn.masked_fill(heads < 0, -1)

        with plates.enter("sentence"):
            site = Annotation(
                lambda x: self._evidence((x, None, observed))[0], some_labels, batch, torch.Size((places,))
            )
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


DependencyCRF.LIKELIHOODS.update({kind: partial(LabelledCRF.of, likelihood=kind) for kind in LIKELIHOODS})

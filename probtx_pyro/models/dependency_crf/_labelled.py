"""A dependency CRF as a density of annotations: sentences are observations that share its potentials, labels and heads are data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pyro
import torch
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import Plates
from probtx_pyro.models.dependency_crf import _checks, _exact, _likelihoods
from probtx_pyro.models.dependency_crf._annotation_site import Annotation
from probtx_pyro.models.dependency_crf._likelihoods import LIKELIHOODS, Known
from probtx_pyro.models.dependency_crf.crf import DependencyCRF
from probtx_pyro.models.dependency_crf.low_rank import LowRank
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter
from probtx_pyro.ops.dependency_crf import Potentials

HELD = 2**24  # numbers of the tables of all problems that are computed at once
TENSORS = {"unary": 3, "ternary": 4, "root_ternary": 3, "memory": 3}  # own axes of each potential
Maybe = Tensor | None
Function = Callable[[Potentials, Known], tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False, repr=False)
class LabelledCRF(DependencyCRF):
    """A `DependencyCRF` whose sentences are observations: ``models.bayesian(crf, likelihood=...)`` makes it.

    Its potentials may have leading axes of independent problems, in front of those in the table of `DependencyCRF`; the methods that
    it has from there take potentials without them.

    Parameters
    ----------
    likelihood
        ``"exact"``: the normaliser by a sum over all labellings, of short sentences. ``"pseudo"``: the pseudo-likelihood, of sentences
        of any length, all of whose labels are known, or none.

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
        "labels": Datum("sentence word", whole=True),
        "heads": Datum("sentence channel word", whole=True),
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

    # -- the contract: sentences are no problems of their own -------------------------------------------------------------------

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

    # -- potentials and data of one problem ---------------------------------------------------------------------------------------

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
        """``function`` of the potentials and of what is known in each problem, (*problems, ...); some problems at a time."""
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
        some = max(1, HELD // _likelihoods.largest(self._first(), known, self.likelihood))
        found = torch.func.vmap(of, in_dims=(axes,), randomness="different", chunk_size=some)(tensors)
        return tuple(x.unflatten(0, batch) for x in found)

    # -- closed forms ----------------------------------------------------------------------------------------------------------

    def _evidence(self, data: Data) -> tuple[Tensor, ...]:
        """The log density of the labels, and that of the heads given these, (..., B) each."""
        return self._at_problems(LIKELIHOODS[self.likelihood], self._known(data))

    def log_evidence(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Tensor:
        """Log likelihood, exact or pseudo, of each sentence's known labels and heads, (..., B); 0 where nothing is known."""
        of_labels, of_heads = self._evidence((labels, heads, observed))
        return of_labels + of_heads

    def marginals(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> _exact.Marginals:
        """Exact marginals of labels (..., B, N, L), heads (..., B, C, N, S) and root (..., B, K) given what is known."""

        def of(potentials: Potentials, known: Known) -> tuple[Tensor, ...]:
            return tuple(x for x in _likelihoods.marginals(potentials, known) if x is not None)

        found = self._at_problems(of, self._known((labels, heads, observed)))
        return _exact.Marginals(found[0], found[1], found[2] if len(found) > 2 else None)

    def attention(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Tensor:  # type: ignore[override]
        """The exact marginals of the heads given what is known, (..., B, C, N, S); of any length where all labels are known."""
        return self.marginals(labels, heads, observed).heads

    def expected_outputs(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> Tensor:  # type: ignore[override]
        """The exact marginals of the labels given what is known, (..., B, N, L)."""
        return self.marginals(labels, heads, observed).labels

    label_marginals = expected_outputs

    # -- Pyro programs -----------------------------------------------------------------------------------------------------------

    def generate(self, plates: Plates, data: Data, collapsed: bool) -> None:
        """Sites ``labels`` and, where some are given or no labels are, ``heads``, each sentence by itself; the rest is summed out."""
        labels, heads, observed = data = self.bind(*data)
        sentences, places = self.words().shape
        batch = torch.Size((*plates.batch, sentences))

        def draw_labels() -> Tensor:
            return self._at_problems(_likelihoods.draw_labels, self._known(data))[0]

        def draw_heads() -> Tensor:
            (drawn,) = self._at_problems(_likelihoods.draw_heads, self._known((own, None, None)))
            return drawn if heads is None else drawn.masked_fill(heads < 0, -1)

        with plates.enter("sentence"):
            site = Annotation(
                lambda x: self._evidence((x, None, observed))[0], draw_labels, batch, torch.Size((places,))
            )
            own = pyro.sample("labels", site, obs=labels)
            if heads is not None or labels is None:
                shape = torch.Size((plates.last["channel"], places))
                site = Annotation(lambda x: self._evidence((own, x, observed))[1], draw_heads, batch, shape)
                pyro.sample("heads", site, obs=heads)

    def model(self, labels: Maybe = None, heads: Maybe = None, observed: Maybe = None) -> None:
        """Sites ``labels`` and ``heads``, observed where they are given, drawn without labels; what is unknown is summed out."""
        data = (labels, heads, observed)
        self.generate(self.plates(*data), data, collapsed=True)

    collapsed = model

    def guide(self, *data: Any, **named: Any) -> None:  # type: ignore[override]
        """Nothing: the program has no latent choices, because all that are unknown are summed out."""


DependencyCRF.LIKELIHOODS.update({kind: partial(LabelledCRF.of, likelihood=kind) for kind in LIKELIHOODS})

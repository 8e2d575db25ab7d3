"""Potts field: labels of places that agree with their neighbours; its mean field is attention of a place over them.

Model: ``p(z) ∝ exp(Σ_i h_i(z_i) + Σ_e w_e [z_j = z_k])``, the edge e joining the places j and k.

======  ====================  ===========  ==================================================
symbol  name                  shape        support
======  ====================  ===========  ==================================================
h_i     ``unary``             (..., N, L)  real, -inf for a label that the place may not have
e       ``edges``             (E, 2)       0..N-1, each pair at most once
w_e     ``coupling``          (..., E)     >= 0, or one number
z_i     ``labels``            (..., N)     0..L-1
a_ij    ``attention``         (..., N, N)  rows on the simplex; zeros for a place without edges
======  ====================  ===========  ==================================================

The mean-field equation is ``Q_i = softmax(h_i + s_i Σ_j a_ij Q_j)`` with ``s_i = Σ_j w_ij`` and ``a_ij = w_ij / s_i``:
each place asks its neighbours for their labels and adds the answer to what it knows itself. Where the couplings are
``s_i π_ij exp(-α/2 |c_i - c_j|²)`` up to a factor of row i, a_ij is the attention of a Gaussian mixture whose units are
the neighbours. Several places that no edge joins are updated, or drawn, at once; so neither mean field nor Gibbs
sampling is a loop over places.

References
----------
Potts 1952, *Some generalized order-disorder transformations*; Geman & Geman 1984, *Stochastic relaxation, Gibbs
distributions, and the Bayesian restoration of images* (Gibbs sampling); Krähenbühl & Koltun 2011, *Efficient inference
in fully connected CRFs with Gaussian edge potentials* (mean field as filtering).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import pyro
import torch
from pyro.distributions import Categorical
from torch import Tensor
from torch.distributions import constraints

from probtx_pyro._brief import in_brief
from probtx_pyro.models import _validation as check
from probtx_pyro.models._plates import PARALLEL, Plates
from probtx_pyro.models.formulation import Data, Datum, Formulation, Parameter
from probtx_pyro.models.mixture import Maybe, Number
from probtx_pyro.ops import fixed_point
from probtx_pyro.ops._label_sweeps import gumbel

LARGEST = 2**22  # numbers in the table of all labellings
NUM_SWEEPS, TOLERANCE = 100, 1e-6


class Group(NamedTuple):
    """Places that no edge joins.

    places: (n,). neighbours: those of each place, (n, m). edges: the edge to each, (n, m), the number of edges where
    there are fewer than m.
    """

    places: Tensor
    neighbours: Tensor
    edges: Tensor


@dataclass(frozen=True, eq=False)
class Edges:
    """Which places are neighbours, checked, and in which order they are updated; fields over the same edges share it.

    Parameters
    ----------
    pairs
        (E, 2), two different places, no pair twice.
    places
        N.

    Raises
    ------
    ValueError
        Pairs of another shape or type, out of range, of one place, or given twice.
    """

    pairs: Tensor
    places: int

    def __post_init__(self) -> None:
        check.tensor("edges", self.pairs)
        if self.pairs.dim() != 2 or self.pairs.shape[-1] != 2 or self.pairs.dtype != torch.long:
            raise ValueError(f"edges must be long integers (E, 2), not {self.pairs.dtype} {tuple(self.pairs.shape)}")
        low, high = self.pairs.sort(-1).values.unbind(-1)
        if check.violated((low < 0) | (high >= self.places) | (low == high)):
            raise ValueError(f"edges must join two different places from 0 to {self.places - 1}")
        if len((low * self.places + high).unique()) < len(self.pairs):
            raise ValueError("edges gives a pair twice; give it once, with the sum of the couplings")

    def __len__(self) -> int:
        return len(self.pairs)

    def __reduce__(self) -> tuple[type["Edges"], tuple[Tensor, int]]:
        return Edges, (self.pairs, self.places)

    def to(self, *args: Any, **kwargs: Any) -> "Edges":
        """Move to the device that a floating tensor would go to; the numbers stay integers."""
        device = torch.empty(0, device=self.pairs.device).to(*args, **kwargs).device
        return check.unchecked(Edges, pairs=self.pairs.to(device), places=self.places)

    @cached_property
    def groups(self) -> list[Group]:
        """The places, cut into groups that no edge joins, the first fit in the order of the places."""
        neighbours: list[list[tuple[int, int]]] = [[] for _ in range(self.places)]
        for edge, (j, k) in enumerate(self.pairs.tolist()):
            neighbours[j].append((k, edge))
            neighbours[k].append((j, edge))
        number: list[int] = []
        for place, own in enumerate(neighbours):
            taken = {number[k] for k, _ in own if k < place}
            number.append(next(n for n in range(len(taken) + 1) if n not in taken))
        found, device = [], self.pairs.device
        for group in range(max(number, default=-1) + 1):
            places = [place for place, n in enumerate(number) if n == group]
            most = max(len(neighbours[place]) for place in places)
            rows = [neighbours[place] + [(0, len(self))] * (most - len(neighbours[place])) for place in places]
            table = torch.tensor(rows, dtype=torch.long, device=device).reshape(len(places), most, 2)
            found.append(Group(torch.tensor(places, device=device), *table.unbind(-1)))
        return found


@dataclass(frozen=True, eq=False, repr=False)
class PottsMeanField:
    """``Q(z) = Π_i Q_i(z_i)`` after some sweeps.

    Attributes
    ----------
    field : PottsField
        What it is of.
    label_marginals : Tensor
        Q, (..., N, L).
    objective : Tensor or None
        The ELBO at the start and after every sweep, (num_steps + 1, ...), with ``history=True``.
    converged, num_steps : Tensor
        Which problems met ``tol``, and how many sweeps each took, (...).
    elbo : Tensor
        ``E_Q[log φ] + H(Q)``, (...): at most ``log_partition(labels, observed)``.
    """

    field: "PottsField"
    label_marginals: Tensor
    elbo: Tensor
    objective: Tensor | None
    converged: Tensor
    num_steps: Tensor

    def __repr__(self) -> str:
        return in_brief(self)

    @property
    def formulation(self) -> Formulation:
        """The field, as results call it."""
        return self.field

    def marginals(self) -> dict[str, Tensor]:
        """``label_marginals`` and ``attention``, as results name them."""
        return {"label_marginals": self.label_marginals, "attention": self.field.attention()}

    def draw(self, num_draws: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Independent draws of ``label`` (draw, ..., N) from Q."""
        logs = self.label_marginals.log()
        return {"label": (logs + gumbel((num_draws, *logs.shape), logs, generator)).argmax(-1)}

    def log_prob(self, state: Mapping[str, Tensor]) -> Tensor:
        """``log Q`` of such draws, (draw, ...)."""
        logs = self.label_marginals.log().expand(*state["label"].shape, -1)
        return logs.gather(-1, state["label"].unsqueeze(-1)).squeeze(-1).sum(-1)


@dataclass(frozen=True, eq=False, repr=False)
class PottsField(Formulation):
    """A field of N places with L labels. Immutable.

    Parameters
    ----------
    unary, coupling
        As in the table above.
    edges
        As there; or `Edges` of another field, which is not checked again.

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit, a coupling below 0, edges that `Edges` refuses, a place without any label that
        it may have.

    Examples
    --------
    Three places in a row; the middle one does not know, and its neighbours contradict each other:

    >>> unary = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    >>> field = PottsField(unary, torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 1.0]))
    >>> field.attention()[1].tolist()
    [0.5, 0.0, 0.5]
    >>> [round(x, 2) for x in field.mean_field().label_marginals[:, 0].tolist()]
    [0.9, 0.61, 0.31]
    >>> [round(x, 2) for x in field.marginals()[:, 0].tolist()]
    [0.86, 0.57, 0.34]
    """

    unary: Tensor
    edges: Edges
    coupling: Number = Number(1.0)

    PARAMETERS: ClassVar[Mapping[str, Parameter]] = {
        "unary": Parameter("place label", constraints.real),
        "coupling": Parameter("edge", constraints.nonnegative),
    }
    DATA: ClassVar[Mapping[str, Datum]] = {
        "labels": Datum("place", "latent", integer=True),
        "observed": Datum("place", "mask"),
    }
    RESULTS: ClassVar[Mapping[str, str]] = {
        "attention": "place neighbour",
        "expected_outputs": "place label",
        "label": "place",
        "label_marginals": "place label",
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "": "its labels are latent and it explains no data; take inference.gibbs, inference.annealed_log_partition, "
        "field.mean_field, or of few places field.log_partition or field.marginals"
    }

    def __post_init__(self) -> None:
        check.floating("unary", self.unary)
        object.__setattr__(self, "coupling", check.number("coupling", self.coupling, self.unary.dtype))
        check.at_least("unary", self.unary, 2, "(..., N, L)")
        if not isinstance(self.edges, Edges):
            object.__setattr__(self, "edges", Edges(self.edges, self.unary.shape[-2]))
        if self.coupling.dim() and self.coupling.shape[-1] != len(self.edges):
            check.same_size("coupling", self.coupling.shape[-1], "edges", len(self.edges), "edges")
        check.finite(coupling=self.coupling)
        if check.violated(self.coupling < 0):
            raise ValueError("coupling must be >= 0; neighbours that are to differ are not served")
        if check.violated(self.unary.isnan() | (self.unary == torch.inf)):
            raise ValueError("unary contains NaN or infinity; -inf alone is allowed, for a label that cannot be")
        if check.violated((self.unary == -torch.inf).all(-1)):
            raise ValueError("unary is -inf for all labels of a place; leave it one")
        check.same_size("unary", self.unary.shape[-2], "edges", self.edges.places, "places")
        _ = self.batch_shape

    def _weights(self) -> list[Tensor]:
        """The coupling to each neighbour of each group, (..., n, m), 0 where there is none."""
        own = self.coupling.expand(*self.coupling.shape[:-1], len(self.edges))
        padded = torch.cat([own, own.new_zeros(*own.shape[:-1], 1)], -1)
        return [padded[..., group.edges] for group in self.edges.groups]

    def _known(self, labels: Maybe, observed: Maybe) -> Tensor:
        """The potentials (*problems, N, L), -inf for labels other than the known one."""
        unary = self.unary.expand(*self.batch_shape, *self.unary.shape[-2:])
        if labels is None and observed is None:
            return unary
        count, every = unary.shape[-1], torch.ones_like(unary[..., 0], dtype=torch.bool)
        labels, read = check.known_labels(labels, observed, every, count)
        other = torch.arange(count, device=unary.device) != labels.unsqueeze(-1)
        known = unary.masked_fill(read.unsqueeze(-1) & other, -torch.inf)
        if check.violated((known == -torch.inf).all(-1)):
            raise ValueError("labels gives a place a label that its unary potentials forbid")
        return known

    # -- inference -----------------------------------------------------------------------------------------------------

    def attention(self, *data: Any) -> Tensor:
        """``a_ij = w_ij / Σ_k w_ik``, (..., N, N): the share that each neighbour has in what a place is told."""
        places = self.unary.shape[-2]
        own = self.coupling.expand(*self.coupling.shape[:-1], len(self.edges))
        table = own.new_zeros(*own.shape[:-1], places, places)
        for j, k in (self.edges.pairs.T, self.edges.pairs.flip(-1).T):
            table[..., j, k] = own
        total = table.sum(-1, keepdim=True)
        return table / torch.where(total > 0, total, 1.0)

    def expected_outputs(
        self,
        labels: Maybe = None,
        observed: Maybe = None,
        num_steps: int = NUM_SWEEPS,
        tol: float | None = TOLERANCE,
    ) -> Tensor:
        """The mean-field marginals of the labels given what is known, (..., N, L); arguments as `mean_field`."""
        return self.mean_field(num_steps, tol=tol, labels=labels, observed=observed).label_marginals

    def mean_field(
        self,
        num_steps: int = NUM_SWEEPS,
        *,
        tol: float | None = TOLERANCE,
        history: bool = False,
        implicit: bool = False,
        start: Maybe = None,
        labels: Maybe = None,
        observed: Maybe = None,
    ) -> PottsMeanField:
        """Iterate the mean-field equation, one group of places after the other, which never lowers the ELBO.

        Parameters
        ----------
        num_steps, tol
            Sweeps over all places, at most; a problem stops where no marginal moves by more than ``tol``.
        history
            Keep the ELBO of every sweep.
        implicit
            Differentiate at the fixed point instead of through the sweeps.
        start
            Marginals (..., N, L) to begin with; None is ``softmax(h)``, independent places.
        labels, observed
            What is known: labels (..., N), where ``observed`` (..., N), everywhere if None.

        Raises
        ------
        ValueError
            What is known does not fit.
        """
        unary, weights = self._known(labels, observed), self._weights()

        def objective(state: Mapping[str, Tensor]) -> Tensor:
            return self._elbo(state["label_marginals"], unary)

        def step(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
            marginals = state["label_marginals"]
            for group, weight in zip(self.edges.groups, weights, strict=True):
                told = torch.einsum("...nm,...nml->...nl", weight, marginals[..., group.neighbours, :])
                new = (unary[..., group.places, :] + told).softmax(-1)
                marginals = marginals.index_copy(-2, group.places, new)
            return {"label_marginals": marginals}, objective(state) if history else None

        first = unary.softmax(-1) if start is None else start.expand(unary.shape)
        found = fixed_point(
            step,
            {"label_marginals": first},
            problems=self.batch_shape,
            num_steps=num_steps,
            tol=tol,
            objective=objective if history else None,
            implicit=implicit,
            progress=False,
        )
        marginals = found.state["label_marginals"]
        elbo = self._elbo(marginals, unary)
        return PottsMeanField(self, marginals, elbo, found.objective, found.converged, found.num_steps)

    def _elbo(self, marginals: Tensor, unary: Tensor) -> Tensor:
        """``E_Q[log φ] + H(Q)``, (...)."""
        own = torch.where(marginals > 0, marginals * unary, 0.0).sum((-2, -1))
        entropy = -torch.xlogy(marginals, marginals).sum((-2, -1))
        return own + entropy + self._agreement(marginals)

    def _agreement(self, marginals: Tensor) -> Tensor:
        """``Σ_e w_e Σ_l Q_j(l) Q_k(l)``, (...)."""
        j, k = self.edges.pairs.T
        return (self.coupling * (marginals[..., j, :] * marginals[..., k, :]).sum(-1)).sum(-1)

    def log_joint(self, labels: Tensor) -> Tensor:
        """``log φ(z)`` of labels (..., N), further axes in front being taken, too."""
        return self._log_joint(labels, self.unary)

    def _log_joint(self, labels: Tensor, unary: Tensor, beta: float = 1.0) -> Tensor:
        j, k = self.edges.pairs.T
        own = unary.expand(*labels.shape, unary.shape[-1]).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return own.sum(-1) + beta * (self.coupling * (labels[..., j] == labels[..., k])).sum(-1)

    def _table(self, labels: Maybe, observed: Maybe) -> tuple[Tensor, Tensor]:
        """All labellings, (T, N), and ``log φ`` of each, (T, ...)."""
        unary = self._known(labels, observed)
        places, count = unary.shape[-2:]
        if count**places * places * self.batch_shape.numel() > LARGEST:
            raise ValueError(
                f"exact inference over {count}^{places} labellings needs a table of more than {LARGEST} numbers; "
                "take mean_field, inference.gibbs or inference.annealed_log_partition"
            )
        each = torch.arange(count, device=unary.device)
        table = torch.cartesian_prod(*[each] * places).reshape(-1, places)
        rows = table.reshape(-1, *(1,) * len(self.batch_shape), places).expand(-1, *self.batch_shape, -1)
        return table, self._log_joint(rows, unary)

    def log_partition(self, labels: Maybe = None, observed: Maybe = None) -> Tensor:
        """``log Z``, (...), over what is not known, by a sum over all labellings; refused where there are too many.

        Parameters
        ----------
        labels, observed
            As in `mean_field`.
        """
        return self._table(labels, observed)[1].logsumexp(0)

    def marginals(self, labels: Maybe = None, observed: Maybe = None) -> Tensor:
        """Exact marginals of the labels, (..., N, L), by the same sum; arguments as there."""
        table, logs = self._table(labels, observed)
        one_hot = torch.nn.functional.one_hot(table, self.unary.shape[-1]).to(logs)
        return torch.einsum("t...,tnl->...nl", logs.softmax(0), one_hot)

    def latents(self, data: Data) -> "PottsLatents":
        """Labels as Gibbs sampling and annealing draw them, given what is known."""
        return PottsLatents(self, self._known(*data))

    # -- Pyro programs -------------------------------------------------------------------------------------------------

    def model(self, labels: Maybe = None, observed: Maybe = None) -> None:
        """The site ``label`` (..., N), places drawn by themselves, and what edges add as a `pyro.factor` a problem.

        What is known is allowed one label.
        """
        unary = self._known(labels, observed)
        plates = Plates(self.batch_shape, place=unary.shape[-2])
        with plates.enter("place"):
            label = pyro.sample("label", Categorical(logits=unary))
        if label.shape[-1] != unary.shape[-2]:
            raise NotImplementedError("PottsField.model cannot be enumerated; give field.enumerated of few places")
        value = self._log_joint(label, torch.zeros_like(unary)) + unary.logsumexp(-1).sum(-1)
        with plates.enter(None):
            pyro.factor("potential", value)

    def guide(self, labels: Maybe = None, observed: Maybe = None, field: PottsMeanField | None = None) -> None:
        """Every label by itself, with the marginals of ``field``; without one, those of `mean_field`."""
        found = self.mean_field(labels=labels, observed=observed) if field is None else field
        with Plates(self.batch_shape, place=self.unary.shape[-2]).enter("place"):
            pyro.sample("label", Categorical(found.label_marginals))

    def enumerated(self, labels: Maybe = None, observed: Maybe = None) -> None:
        """The field of one problem, a site for every place and a factor for every edge.

        ``TraceEnum_ELBO`` sums it out exactly: with an empty guide its ELBO is `log_partition`. For tiny problems.
        """
        if self.batch_shape:
            raise ValueError("enumerated takes one problem; take one of the batch")
        unary, drawn = self._known(labels, observed), []
        for place, own in enumerate(unary):
            drawn.append(pyro.sample(f"label_{place}", Categorical(logits=own), infer=PARALLEL))
        pyro.factor("unary", unary.logsumexp(-1).sum())
        for (j, k), coupling in zip(self.edges.pairs.tolist(), self.coupling.expand(len(self.edges)), strict=True):
            pyro.factor(f"edge_{j}_{k}", coupling * (drawn[j] == drawn[k]))


class PottsLatents:
    """Labels given what is known, as `probtx_pyro.models.formulation.Latents`.

    A state holds ``label`` (chain, ..., N). β multiplies the couplings, so that labels are independent at 0.
    """

    def __init__(self, field: PottsField, unary: Tensor):
        self.field, self.unary, self.weights = field, unary, field._weights()

    def _drawn(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        return (logits + gumbel(logits.shape, logits, generator)).argmax(-1)

    def _told(self, label: Tensor, number: int) -> Tensor:
        """``Σ_j w_ij [z_j = l]`` of the places of a group, (chain, ..., n, L)."""
        group, each = self.field.edges.groups[number], torch.arange(self.unary.shape[-1], device=self.unary.device)
        agree = (label[..., group.neighbours].unsqueeze(-1) == each).to(self.unary)
        return torch.einsum("...nm,...nml->...nl", self.weights[number], agree)

    def start(self, num_chains: int, generator: torch.Generator) -> dict[str, Tensor]:
        """An exact draw at β = 0 for every chain."""
        return {"label": self._drawn(self.unary.expand(num_chains, *self.unary.shape), generator)}

    def sweep(self, state: Mapping[str, Tensor], generator: torch.Generator, beta: float = 1.0) -> dict[str, Tensor]:
        """Draw each group of places given the others."""
        label = state["label"].clone()
        for number, group in enumerate(self.field.edges.groups):
            logits = self.unary[..., group.places, :] + beta * self._told(label, number)
            label[..., group.places] = self._drawn(logits, generator)
        return {"label": label}

    def log_density(self, state: Mapping[str, Tensor], *betas: float) -> Tensor:
        """``log φ_β(z)``, (len(betas), chain, ...)."""
        label, count = state["label"], self.unary.shape[-1]
        if check.violated((label < 0) | (label >= count)):
            raise ValueError(f"label must be from 0 to {count - 1}; draw it, or leave it out")
        return torch.stack([self.field._log_joint(label, self.unary, beta) for beta in betas])

    def log_partition(self) -> Tensor:
        """``log Z`` at β = 0, (...)."""
        return self.unary.logsumexp(-1).sum(-1)

    def complete(self, state: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        """The state: nothing is summed out."""
        return dict(state)

    def attention(self, state: Mapping[str, Tensor]) -> Tensor:
        """The attention of the field, the same for all draws, (chain, ..., N, N)."""
        own = self.field.attention()
        return own.expand(*state["label"].shape[:-1], *own.shape[-2:])

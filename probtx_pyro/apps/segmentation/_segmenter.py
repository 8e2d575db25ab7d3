"""Layer 3 and the entrance: a picture that answers marks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from pyro.distributions import Dirichlet
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import one_hot

from probtx_pyro import models
from probtx_pyro.apps.segmentation import _units
from probtx_pyro.apps.segmentation._units import Cells, PictureUnits, SegmentationSettings, lab_colours
from probtx_pyro.inference import adapt
from probtx_pyro.models import GaussianMixture

_MARKS_OF_A_CLASS = 4096  # more marked pixels of one class are thinned evenly, each standing for several
_ASKED_OF_A_CLASS = 512  # the same, where pixels attend to marked pixels


class Segmentation(NamedTuple):
    """The answer.

    mask: the most probable label of each pixel, in the marks' own values, shape (H, W).
    probabilities: calibrated p(class | picture, marks) of each pixel, shape (H, W, class), float32, rows on the
    simplex.
    classes: the label of each class, ascending, shape (class,).
    belief: what the mask is the mode of, before calibration, and the prior of the next answer, shape (H, W, class);
        without it the probabilities are.
    stood: how many reviews the label of a pixel has survived, shape (H, W); without it none.
    """

    mask: np.ndarray
    probabilities: np.ndarray
    classes: np.ndarray
    belief: np.ndarray | None = None
    stood: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class InteractiveSegmenter:
    """All that does not depend on the marks; build it with `from_image`, ask it with `segment` as often as you like.

    Examples
    --------
    >>> image = np.zeros((20, 30, 3), np.uint8)
    >>> image[:, 15:] = 200
    >>> marks = np.zeros((20, 30), int)
    >>> marks[10, 5], marks[10, 25] = 1, 2
    >>> answer = InteractiveSegmenter.from_image(image).segment(marks)
    >>> bool((answer.mask[:, :15] == 1).all() and (answer.mask[:, 15:] == 2).all())
    True
    """

    shape: tuple[int, int]
    cells: Cells
    units: PictureUnits
    settings: SegmentationSettings

    @classmethod
    def from_image(
        cls,
        image: np.ndarray,
        features: Callable[[np.ndarray], np.ndarray] = lab_colours,
        settings: SegmentationSettings | None = None,
    ) -> "InteractiveSegmenter":
        """Layers 1 and 2.

        Parameters
        ----------
        image
            (H, W, 3) or (H, W), integers 0..255 or floats 0..1.
        features
            From the image to real features (H, W, F), smooth where the picture is, and scaled so that ``colour_scale``
            of the settings is a clear difference; the position is appended here.
        settings
            `SegmentationSettings` of your own.

        Raises
        ------
        ValueError
            An image of another shape, or empty; features of another size, or not finite.
        """
        settings, image = settings or SegmentationSettings(), np.asarray(image)
        if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[-1] != 3) or image.size == 0:
            raise ValueError(f"image must be (H, W, 3) or (H, W) and not empty, not {image.shape}")
        colours = np.asarray(features(image), np.float32)
        if colours.ndim != 3 or colours.shape[:2] != image.shape[:2]:
            raise ValueError(f"features must be (H, W, F) with the image's {image.shape[:2]}, not {colours.shape}")
        if not np.isfinite(colours).all():
            raise ValueError("features hold NaN or infinity")
        height, width = image.shape[:2]
        cells = _units.cut(colours, settings.num_units, settings.colour_scale, settings.blur)
        return cls((height, width), cells, _units.find_units(cells, height, width, settings), settings)

    def segment(self, marks: np.ndarray, previous: Segmentation | None = None) -> Segmentation:
        """The class of every pixel given the marks.

        Parameters
        ----------
        marks
            Integers (H, W): 0 is unmarked, every other value a class; `marks_from_clicks` makes them from clicks.
        previous
            The answer to the marks before the last of them, where they come one after another. It is the prior: a new
            mark changes the mask only to its own class, only about itself, and only as far as it lies in the middle of
            what changes (`after` in this file). Without it the answer depends on the marks alone, not on their order.

        Raises
        ------
        ValueError
            Marks of another shape or type, negative, or of fewer than two classes; a previous answer of another
            picture, or with a class that the marks lack.
        """
        marks = np.asarray(marks)
        if marks.shape != self.shape or not np.issubdtype(marks.dtype, np.integer):
            given_as = f"{marks.dtype} {marks.shape}"
            raise ValueError(f"marks must be integers of the picture's shape {self.shape}, not {given_as}")
        if (marks < 0).any():
            raise ValueError("marks must be 0 (unmarked) or positive labels")
        classes = np.unique(marks[marks > 0])
        if len(classes) < 2:
            raise ValueError(f"marks need two classes or more, not {len(classes)}; mark a pixel of another class")
        numbers = np.searchsorted(classes, marks)
        given = self._marks(np.where(marks > 0, numbers, -1))
        belief = found = self._answer(*given, len(classes)).numpy()
        stood = np.zeros(self.shape, np.int32)
        if previous is not None:
            if previous.mask.shape != self.shape or not np.isin(previous.classes, classes).all():
                raise ValueError("previous is of another shape or has other classes than the marks; leave it out")
            before = np.zeros_like(found)
            believed = previous.probabilities if previous.belief is None else previous.belief
            before[..., np.searchsorted(classes, previous.classes)] = believed
            # a mark of before has probability 1
            told = np.take_along_axis(before, numbers.clip(0, len(classes) - 1)[..., None], -1)[..., 0] == 1
            fresh = np.where((marks > 0) & ~told, numbers, -1)
            belief = after(before, found, fresh, self.settings)
            reviews = (0 if previous.stood is None else previous.stood) + int((fresh >= 0).any())
            stood = np.where(classes[belief.argmax(-1)] == previous.mask, reviews, stood)
        probabilities = calibrated(belief, found, stood, self.settings)
        y, x = np.nonzero(marks)
        # a mark is kept, whatever its unit says
        belief[y, x] = probabilities[y, x] = np.eye(len(classes), dtype=np.float32)[numbers[y, x]]
        return Segmentation(classes[belief.argmax(-1)].astype(marks.dtype), probabilities, classes, belief, stood)

    def _marks(self, numbers: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return marked pixels, thinned where a class has very many: features, class numbers,
        and how many each stands for.
        """
        flat = self.cells.flat(torch.from_numpy(numbers)).masked_fill(~self.cells.inside, -1).flatten()
        marked = torch.nonzero(flat >= 0).squeeze(-1)
        kept = _thinned(marked, flat[marked], _MARKS_OF_A_CLASS)
        stands_for = flat[marked].bincount() / flat[kept].bincount()
        return self.cells.queries.flatten(0, 1)[kept], flat[kept], stands_for[flat[kept]].to(self.units.keys)

    def _answer(self, queries: Tensor, labels: Tensor, weights: Tensor, classes: int) -> Tensor:
        """Return class probabilities (H, W, class): layer 3, then each pixel asks the units, ``p_i = Σ_j w_ij P_j``.

        Parameters
        ----------
        queries, labels, weights
            As `_marks` returns them.
        classes
            Number of classes.
        """
        settings, keys = self.settings, self.units.keys
        # Answers and weights of the annotated units: one ECM step on the marked pixels only (PT 38).
        flat = keys.new_full((len(keys), classes), 1 / classes)
        blank = GaussianMixture.categorical(keys, flat, settings.key_precision)
        prior = Dirichlet(keys.new_full((classes,), settings.concentration))
        posterior = models.bayesian(blank, answer_probs=prior, weights=Dirichlet(keys.new_ones(1, len(keys))))
        fit = adapt(posterior, queries, labels, query_weights=weights, num_steps=1, progress=False).formulation
        answers, shares = fit.answer_probs, fit.parameter("weights")
        assert answers is not None and shares is not None
        counts = shares[0] * weights.sum()
        annotated = counts > min(settings.least_count, float(counts.max()) / 2)
        by_class = (counts.unsqueeze(-1) * answers).topk(2, -1).values
        torn = annotated & (by_class[:, 1] > settings.least_count) & settings.paths
        judge = self._judge(blank, queries, one_hot(labels, classes), torn)
        replies = self._ask_units(answers, counts, annotated, torn, judge) if settings.paths else answers

        # Pixels ask the units. A torn unit answers "ask the marks", one label more.
        replies = torch.where(torn.unsqueeze(-1), 0.0, replies)
        replies = torch.cat([replies, torn.to(replies).unsqueeze(-1)], -1)
        near, log_prior = self.units.near, self.units.log_prior
        memory = GaussianMixture(
            keys[near], key_precision=settings.key_precision, log_prior=log_prior, answer_probs=replies[near]
        )
        out = memory.expected_outputs(self.cells.queries)
        out, ask = out[..., :classes], out[..., classes:]
        if judge is not None:
            unsure = ask[..., 0] > 1e-6
            out[unsure] += ask[unsure] * judge.expected_outputs(self.cells.queries[unsure])
        return self.cells.picture(out / out.sum(-1, keepdim=True), *self.shape).contiguous()

    def _ask_units(
        self, answers: Tensor, counts: Tensor, annotated: Tensor, torn: Tensor, judge: GaussianMixture | None
    ) -> Tensor:
        """Return P (unit, class), the answers of all units: paths to the annotated units, colours, paths again.

        Parameters
        ----------
        answers, counts
            ρ (unit, class) and n (unit,) of the annotated units.
        annotated, torn
            (unit,) which units are annotated, and in which of them marks of two classes meet.
        judge
            Memory of the marked pixels that the torn units defer to.
        """
        settings, units = self.settings, self.units
        to, (j, k) = torch.nonzero(annotated)[:, 0].numpy(), torch.from_numpy(units.links.pairs.T)
        known = torch.where(torn.unsqueeze(-1), 0.0, answers)[annotated]
        deferred = 0.0 if judge is None else judge.expected_outputs(units.keys)

        def ask(further: np.ndarray | float) -> Tensor:
            energies = _units.path_energies(units.links, to, settings, further)
            attention = (counts[annotated].clamp_max(1).log() - settings.path_temperature * energies).softmax(-1)
            return attention @ known + attention @ torn[annotated].to(known).unsqueeze(-1) * deferred

        belief = ask(0.0)
        for _ in range(settings.colour_rounds):
            likely = self._colours(belief)
            apart = (likely[j] - likely[k]).square().sum(-1).double().numpy() / 2
            belief = ask(settings.learned_hop * apart) * (likely + settings.colour_floor)
            belief = belief / belief.sum(-1, keepdim=True)
        return belief

    def _judge(self, blank: GaussianMixture, queries: Tensor, answers: Tensor, torn: Tensor) -> GaussianMixture | None:
        """Make a memory of the marked pixels themselves, one pixel wide, for units in which marks of two classes meet.

        Parameters
        ----------
        blank
            Units without answers.
        queries, answers
            (mark, feature) and (mark, class) of the marked pixels.
        torn
            (unit,) True where marks of two classes meet.
        """
        if not torn.any():
            return None
        asking = blank.attention(queries)[:, torn].sum(-1)
        here = torch.nonzero(asking >= min(self.settings.least_count, float(asking.max()))).squeeze(-1)
        kept = _thinned(here, answers[here].argmax(-1), _ASKED_OF_A_CLASS)
        precision = max(self.settings.key_precision, float(self.cells.step**2))
        return GaussianMixture.categorical(queries[kept], answers[kept].to(queries), precision)

    def _colours(self, belief: Tensor) -> Tensor:
        """Return L (unit, class), each class's share of the evidence at a unit's colour,
        of mixtures with weights ∝ n_k P_kc.
        """
        settings, units = self.settings, self.units
        colours = (units.keys[:, :-2] * settings.colour_scale).unsqueeze(0)
        mass = (units.counts.unsqueeze(-1) * belief).mT  # (class, unit)
        total = mass.sum(-1, keepdim=True)
        present = total[:, 0] > 0
        log_prior = (mass[present] / total[present]).log().unsqueeze(-2)
        models = GaussianMixture(colours, key_precision=settings.colour_precision, log_prior=log_prior)
        shrink = total / (total + settings.class_mass * units.counts.sum())
        likely = torch.full_like(mass, -torch.inf)
        likely[present] = models.log_evidence(colours) + shrink[present].log()
        return likely.softmax(0).mT


def _thinned(index: Tensor, labels: Tensor, most: int) -> Tensor:
    """Return the entries of ``index``, by their labels;
    evenly chosen ones where more than ``most`` have the same label.
    """
    of_labels = (index[labels == label] for label in labels.unique())
    return torch.cat([some[:: -(-len(some) // most)] for some in of_labels])


def calibrated(belief: np.ndarray, found: np.ndarray, stood: np.ndarray, settings: SegmentationSettings) -> np.ndarray:
    """Return probabilities (H, W, class) for what the rules of the mask believe;
    the most probable class stays the same.

    With probability ε the region of a pixel is one of which the answer knows nothing, so that its class may be any:
    ``q_i = (1 - ε) belief_i + ε / C``. Where all marks together contradict the class that stands, the belief counts
    nothing and ``q_i = 1/C``. A person who sees an answer and marks another place says that what stands is right: each
    such review multiplies the odds of the class by ``exp(κ)``, ``p_ic ∝ q_ic exp(κ r_i [c stands])``.

    Parameters
    ----------
    belief, found
        (H, W, class) what the mask is the mode of, and the answer to all marks without regard to their order.
    stood
        (H, W) r_i, how many reviews the class of a pixel has survived.
    settings
        ε is ``region_error`` and κ ``review_gain``.
    """
    standing, error = belief.argmax(-1), settings.region_error
    contested = (found.argmax(-1) != standing) & (stood > 0)
    even = np.float32(1 / belief.shape[-1])
    result = np.where(contested[..., None], even, (1 - error) * belief + error * even).astype(belief.dtype)
    # odds beyond exp(30) are 1 in float32
    gain = np.exp(np.minimum(settings.review_gain * stood, 30)).astype(belief.dtype)
    own = np.take_along_axis(result, standing[..., None], -1) * gain[..., None]
    np.put_along_axis(result, standing[..., None], own, -1)
    return result / result.sum(-1, keepdims=True)


_SURE = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_LEAST = 1e-4
_AHEAD = 0.8  # the class that stays has (1 + 0.8) / 2 of what both have


def after(before: np.ndarray, found: np.ndarray, fresh: np.ndarray, settings: SegmentationSettings) -> np.ndarray:
    """Return the answer after new marks, given the one before them.

    The belief is ``p_i ∝ before_i^ω found_i``. Three rules bound what a mark of class c changes in the mask. It turns
    pixels to c and to nothing else. It turns those that one piece with the mark holds, of the pixels where p_ic > τ.
    And it lies in the middle of that piece, since people click in the middle of what is wrong: τ is the least of a few
    values for which the deepest pixel of the piece is at most κ times as deep as the mark (depth: distance from the
    border of the piece, the frame being one); where that is less, or no τ does, the piece of the least τ is taken, and
    ends at the mark's depth about it. Elsewhere, where the belief would change the class, the one before stays, and
    gets nine tenths of what both have.

    Parameters
    ----------
    before, found
        (H, W, class) answer to the marks before, and to all marks without regard to their order.
    fresh
        (H, W) class number of each new mark, -1 elsewhere.
    settings
        ω is ``previous_weight`` and κ ``middle_ratio``.
    """
    belief = before.clip(_LEAST, 1) ** np.float32(settings.previous_weight) * found
    belief /= belief.sum(-1, keepdims=True)
    old = before.argmax(-1)
    result = _held(belief, old)
    for number in np.unique(fresh[fresh >= 0]):
        marks = (fresh == number) & (old != number)
        if not marks.any():
            continue
        about = np.zeros_like(marks)
        for sure in _SURE:
            turned = _pieces((old != number) & ((belief[..., number] > sure) | marks), marks)
            depth = _depth(turned)
            reach = depth[marks].max()
            if depth.max() <= settings.middle_ratio * reach + 1:
                break
            if sure == _SURE[0]:
                about = turned & (ndimage.distance_transform_edt(~marks) <= reach)
        else:
            turned = about
        if about.sum() > turned.sum():
            turned = about
        result[turned] = belief[turned]
    return result


def _held(belief: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return the belief (H, W, class) with the classes (H, W) of before: where it prefers another,
    the old one gets the most of what both have.
    """
    result, contested = belief.copy(), belief.argmax(-1) != old
    rows, kept = belief[contested], old[contested]
    each, new = np.arange(len(rows)), rows.argmax(-1)
    half = (rows[each, new] + rows[each, kept]) / 2
    rows[each, new], rows[each, kept] = half * (1 - _AHEAD), half * (1 + _AHEAD)
    result[contested] = rows
    return result


def _pieces(region: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Return the 4-connected pieces of a region (H, W) that hold marks."""
    pieces, count = ndimage.label(region)
    kept = np.zeros(count + 1, bool)
    kept[pieces[marks]] = True
    return kept[pieces]


def _depth(region: np.ndarray) -> np.ndarray:
    """Return the distance of each pixel of a region (H, W) from its border; computed in its bounding box, for speed."""
    ((down, across),) = ndimage.find_objects(region.astype(np.int8))
    depth = np.zeros(region.shape)
    depth[down, across] = ndimage.distance_transform_edt(np.pad(region[down, across], 1))[1:-1, 1:-1]
    return depth

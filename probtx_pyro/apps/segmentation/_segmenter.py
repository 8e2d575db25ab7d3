"""The entrance: a picture that answers marks, by a field of its units' classes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy import ndimage
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn.functional import one_hot

from probtx_pyro.apps.segmentation import _units
from probtx_pyro.apps.segmentation._units import Cells, PictureUnits, SegmentationSettings, lab_colours
from probtx_pyro.models import GaussianMixture, PottsField
from probtx_pyro.ops._progress import computed_with

_MOST_PIXELS = 2_000_000  # a larger picture is worked on smaller
_POWER = 3  # of the distance of marks from the middle, for the class outside
_ROUNDS, _SWEEPS, _WEIGHT_STEPS = 3, 20, 10
_TOLERANCE = 1e-3  # of a probability, where the mean field stops


class Segmentation(NamedTuple):
    """The answer.

    mask: the most probable label of each pixel, in the marks' own values, shape (H, W).
    probabilities: calibrated p(class | picture, marks) of each pixel, shape (H, W, class), float32, rows on the
    simplex.
    classes: the label of each class, ascending, shape (class,).
    belief: what the mask is the mode of, before calibration, and the prior of the next answer, shape (H, W, class);
        without it the probabilities are.
    stood: how many reviews the label of a pixel has survived, shape (H, W); without it none.
    outside: probability of each class to go on outside the frame, shape (class,), zeros for none; None where it is not
        known.
    """

    mask: np.ndarray
    probabilities: np.ndarray
    classes: np.ndarray
    belief: np.ndarray | None = None
    stood: np.ndarray | None = None
    outside: np.ndarray | None = None


class Given(NamedTuple):
    """Marks that have been checked.

    numbers: class number of each pixel that is worked on, -1 where unmarked, shape (H, W).
    classes: label of each class, ascending, shape (class,).
    told: how many marks of each class a unit has, shape (unit, class).
    outside: probability of each class to go on outside the frame, shape (class,).
    """

    numbers: np.ndarray
    classes: np.ndarray
    told: np.ndarray
    outside: np.ndarray


@dataclass(frozen=True, eq=False)
class InteractiveSegmenter:
    """All that does not depend on the marks; build it with `from_image`, ask it with `segment` as often as you like.

    Both compute with one thread, since threads that wait for each other at small steps cost more than they save.

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
    stride: int
    cells: Cells
    units: PictureUnits
    settings: SegmentationSettings

    @classmethod
    @computed_with(1)
    def from_image(
        cls,
        image: np.ndarray,
        features: Callable[[np.ndarray], np.ndarray] = lab_colours,
        settings: SegmentationSettings | None = None,
    ) -> "InteractiveSegmenter":
        """Compute all that no mark touches.

        Parameters
        ----------
        image
            (H, W, 3) or (H, W), integers 0..255 or floats 0..1. Of more than two million pixels squares of n x n are
            averaged first and answered alike.
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
        shape = image.shape[:2]
        stride = int(np.ceil((shape[0] * shape[1] / _MOST_PIXELS) ** 0.5))
        image = image if stride == 1 else averaged(image, stride)
        colours = np.asarray(features(image), np.float32)
        if colours.ndim != 3 or colours.shape[:2] != image.shape[:2]:
            raise ValueError(f"features must be (H, W, F) with the image's {image.shape[:2]}, not {colours.shape}")
        if not np.isfinite(colours).all():
            raise ValueError("features hold NaN or infinity")
        cells = _units.cut(colours, settings.num_units, settings.colour_scale)
        units = _units.find_units(cells, image.shape[0], image.shape[1], settings)
        return cls((shape[0], shape[1]), stride, cells, units, settings)

    @computed_with(1)
    def segment(
        self, marks: np.ndarray, previous: Segmentation | None = None, background: int | None = None
    ) -> Segmentation:
        """The class of every pixel given the marks.

        Parameters
        ----------
        marks
            Integers (H, W): 0 is unmarked, every other value a class; `marks_from_clicks` makes them from clicks.
        previous
            The answer to the marks before the last of them, where they come one after another. It is the prior: a new
            mark changes the mask only to its own class, only about itself, and only as far as it lies in the middle of
            what changes (`after` in this file). Without it the answer depends on the marks alone, not on their order.
        background
            The class that goes on outside the frame, 0 for none. If None, each class may, by how far its marks lie from
            the middle of the picture and how like the colours along the frame they are, or as the previous answer had
            it.

        Raises
        ------
        ValueError
            Marks of another shape or type, negative, or of fewer than two classes; a previous answer of another
            picture, or with a class that the marks lack; a background that has no marks.
        """
        marks, given = np.asarray(marks), self._given(marks, previous, background)
        numbers, classes = given.numbers, given.classes
        belief = found = self._answer(given)
        stood = np.zeros(numbers.shape, np.int32)
        if previous is not None:
            before = np.zeros_like(found)
            believed = previous.probabilities if previous.belief is None else previous.belief
            before[..., np.searchsorted(classes, previous.classes)] = believed[:: self.stride, :: self.stride]
            # a mark of before has probability 1
            old = np.take_along_axis(before, numbers.clip(0)[..., None], -1)[..., 0] == 1
            fresh = np.where(old, -1, numbers)
            belief = after(before, found, fresh, self.settings)
            if previous.stood is not None:
                stood = previous.stood[:: self.stride, :: self.stride]
            label = previous.mask[:: self.stride, :: self.stride]
            stood = np.where(classes[belief.argmax(-1)] == label, stood + int((fresh >= 0).any()), 0).astype(np.int32)
        probabilities = calibrated(belief, found, stood, self.settings)
        own = numbers >= 0  # a mark is kept, whatever its unit says
        belief[own] = probabilities[own] = np.eye(len(classes), dtype=np.float32)[numbers[own]]
        mask, *rest = map(self._full, (classes[belief.argmax(-1)].astype(marks.dtype), probabilities, belief, stood))
        mask[marks > 0] = marks[marks > 0]
        return Segmentation(mask, rest[0], classes, rest[1], rest[2], given.outside)

    @computed_with(1)
    def field(self, marks: np.ndarray, background: int | None = None) -> PottsField:
        """The field of the units' classes given the marks, whose mean field `segment` answers with: a Pyro program.

        Places are units, `units.home` being that of each pixel; labels are the classes in ascending order. What is
        known is in the potentials: a marked unit has one class. Parameters and errors as in `segment`.
        """
        given = self._given(marks, None, background)
        return self._field(given.told, given.outside)

    def _given(self, marks: np.ndarray, previous: Segmentation | None, background: int | None) -> Given:
        """Check the marks, and find the class outside; parameters as in `segment`."""
        marks = np.asarray(marks)
        if marks.shape != self.shape or not np.issubdtype(marks.dtype, np.integer):
            given_as = f"{marks.dtype} {marks.shape}"
            raise ValueError(f"marks must be integers of the picture's shape {self.shape}, not {given_as}")
        if (marks < 0).any():
            raise ValueError("marks must be 0 (unmarked) or positive labels")
        classes = np.unique(marks[marks > 0])
        if len(classes) < 2:
            raise ValueError(f"marks need two classes or more, not {len(classes)}; mark a pixel of another class")
        if background and background not in classes:
            raise ValueError(f"background is {background}, but no pixel is marked so; mark one, or leave it out")
        if previous is not None and (previous.mask.shape != self.shape or not np.isin(previous.classes, classes).all()):
            raise ValueError("previous is of another shape or has other classes than the marks; leave it out")
        y, x = np.nonzero(marks)
        given = np.searchsorted(classes, marks[y, x])
        numbers = np.full([-(-size // self.stride) for size in self.shape], -1)
        numbers[y // self.stride, x // self.stride] = given
        told = np.zeros((len(self.units.keys), len(classes)))  # how many marks of each class are in a unit
        rows, columns = np.nonzero(numbers >= 0)
        np.add.at(told, (self.units.home[rows, columns], numbers[rows, columns]), 1)
        if background is not None:
            outside = (classes == background).astype(np.float64)
        elif previous is not None and previous.outside is not None:
            outside = np.zeros(len(classes))
            outside[np.isin(classes, previous.classes)] = previous.outside
        else:
            away = np.hypot((y + 0.5) / self.shape[0] - 0.5, (x + 0.5) / self.shape[1] - 0.5)
            outside = self._outside(told, np.bincount(given, away) / np.bincount(given))
        return Given(numbers, classes, told, outside)

    def _full(self, x: np.ndarray) -> np.ndarray:
        """Repeat the rows and columns of what is as large as the picture is worked on, as often as it was averaged."""
        height, width = self.shape
        return x if self.stride == 1 else x.repeat(self.stride, 0)[:height].repeat(self.stride, 1)[:, :width]

    def _answer(self, given: Given) -> np.ndarray:
        """Return class probabilities (H, W, class): the field of the units, then each pixel asks them,
        ``p_i = Σ_j w_ij Q_j``; in a unit where marks of several classes meet, the mark nearest in colour and place.
        """
        units, (numbers, _, told, outside) = self.units, given
        field = self._field(told, outside).mean_field(_SWEEPS, tol=_TOLERANCE).label_marginals
        torn = torch.from_numpy((told > 0).sum(1, keepdims=True) > 1)  # units where marks of several classes meet
        replies = torch.cat([field * ~torn, torn], -1)  # such a unit answers "ask the marks", one label more
        keys, probs = units.keys[units.near], replies[units.near]
        precision = self.settings.key_precision
        memory = GaussianMixture(keys, key_precision=precision, log_prior=units.log_prior, answer_probs=probs)
        queries = self.cells.queries
        out = self.cells.picture(memory.expected_outputs(queries), *numbers.shape).contiguous().numpy()
        out, share = out[..., :-1], out[..., -1:]
        if torn.any():
            pixels, asks = self.cells.picture(queries, *numbers.shape).numpy(), share[..., 0] > 1e-6
            marked = torn[units.home, 0].numpy() & (numbers >= 0)
            _, nearest = cKDTree(pixels[marked]).query(pixels[asks])
            out[asks] += share[asks] * np.eye(told.shape[1])[numbers[marked][nearest]]
        return out / out.sum(-1, keepdims=True)

    def _field(self, told: np.ndarray, outside: np.ndarray) -> PottsField:
        """Return the field of the units: paths, colours, agreement of neighbours, and what is known.

        Parameters
        ----------
        told
            (unit, class) how many marks are in a unit.
        outside
            (class,) probability of each class to go on outside the frame.
        """
        settings, units = self.settings, self.units
        lengths = np.stack([_units.path_lengths(units.hops, np.flatnonzero(own)) for own in told.T], 1)
        frame = _units.path_lengths(units.hops, units.rim) + settings.frame_cost
        lengths = np.minimum(lengths, frame[:, None] - np.log(np.maximum(outside, 1e-300)))
        nearest = np.sort(lengths, 1)[:, :2].sum(1, keepdims=True)
        paths = torch.from_numpy(-settings.path_evidence * lengths / np.maximum(nearest, 1e-9)).to(units.keys)
        known = _known(told).to(paths)
        paths = torch.where(known.sum(-1, keepdim=True) > 0, known.log(), paths)
        pixels = settings.colour_evidence * units.counts.sqrt().unsqueeze(-1)
        field, belief = PottsField(paths, units.edges, settings.coupling * units.coupling), paths.softmax(-1)
        for _ in range(_ROUNDS):
            field = field.replace(unary=paths + pixels * self._colours(known, belief))
            belief = field.mean_field(_SWEEPS, tol=_TOLERANCE).label_marginals
        return field.replace(unary=field.unary.masked_fill(self._strays(told, belief, outside), -torch.inf))

    def _outside(self, told: np.ndarray, away: np.ndarray) -> np.ndarray:
        """Return the probability of each class to go on outside the frame, (class,),
        ``∝ away_c³ exp(mean over the rim of log p(colour | c))``, the colours of a class those of its marks.

        Parameters
        ----------
        told
            (unit, class) how many marks are in a unit.
        away
            (class,) mean distance of the marks from the middle of the picture.
        """
        known = _known(told).to(self.units.keys)
        at_rim = self._colours(known, torch.full_like(known, 1 / len(away)))[self.units.rim].mean(0)
        return (_POWER * torch.from_numpy(away + 1e-9).log() + at_rim).softmax(0).numpy()

    def _colours(self, known: Tensor, belief: Tensor) -> Tensor:
        """Return the log density of each unit's colour under each class, (unit, class).

        A class has weights over the colour units of the picture: their mode given the units that are its own, under a
        Dirichlet prior about the weights of the picture, by EM.

        Parameters
        ----------
        known, belief
            (unit, class): 1 for the class of a marked unit, and what the field believes.
        """
        settings, units = self.settings, self.units
        best = belief.topk(2, -1).values
        sure = torch.where(known.sum(-1) > 0, 0.0, best[:, 0] - best[:, 1]).unsqueeze(-1)
        mass = (units.counts.unsqueeze(-1) * (known + settings.unmarked * sure * belief)).mT  # (class, unit)
        prior = settings.colour_prior * units.shares
        weights = units.shares.expand(len(mass), -1)
        for _ in range(_WEIGHT_STEPS):
            attention = (units.colours + weights.log().unsqueeze(-2)).softmax(-1)
            weights = torch.einsum("cu,cuk->ck", mass, attention) + prior
            weights = weights / weights.sum(-1, keepdim=True)
        return (units.colours + weights.log().unsqueeze(-2)).logsumexp(-1).mT

    def _strays(self, told: np.ndarray, belief: Tensor, outside: np.ndarray) -> Tensor:
        """Return which units have a class in one piece with no mark of it, (unit, class); the frame is a mark of the
        class outside.
        """
        labels, (j, k) = belief.argmax(-1).numpy(), self.units.edges.pairs.numpy().T
        same, size = labels[j] == labels[k], len(labels)
        graph = csr_matrix((np.ones(same.sum()), (j[same], k[same])), (size, size))
        _, piece = connected_components(graph, directed=False)
        held = told[np.arange(size), labels] > 0
        if outside.any():
            held[self.units.rim] |= labels[self.units.rim] == outside.argmax()
        stray = ~np.isin(piece, piece[held])
        return torch.from_numpy(stray).unsqueeze(-1) & one_hot(torch.from_numpy(labels), belief.shape[-1]).bool()


def averaged(image: np.ndarray, stride: int) -> np.ndarray:
    """Return the means of squares of ``stride`` x ``stride`` pixels, (h, w, ...); beyond the frame the last pixel
    counts.

    >>> averaged(np.arange(12, dtype=np.uint8).reshape(3, 4), 2).tolist()
    [[2, 4], [8, 10]]
    """
    more = image.ndim - 2
    size, origin = (stride, stride, *[1] * more), (-(stride // 2), -(stride // 2), *[0] * more)
    return ndimage.uniform_filter(image, size, mode="nearest", origin=origin)[::stride, ::stride]


def _known(told: np.ndarray) -> Tensor:
    """Return 1 for the class of each unit that has marks of one class only, else 0, (unit, class)."""
    some = told > 0
    return torch.from_numpy(some & (some.sum(1, keepdims=True) == 1))


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

    The belief is ``p_i ∝ sqrt(before_i) found_i``. Three rules bound what a mark of class c changes in the mask. It
    turns pixels to c and to nothing else. It turns those that one piece with the mark holds, of the pixels where p_ic >
    τ. And it lies in the middle of that piece, since people click in the middle of what is wrong: τ is the least of a
    few values for which the deepest pixel of the piece is at most κ times as deep as the mark (depth: distance from the
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
        κ is ``middle_ratio``.
    """
    belief = np.sqrt(before.clip(_LEAST, 1)) * found
    belief /= belief.sum(-1, keepdims=True)
    old = before.argmax(-1)
    result = _held(belief, old)
    for number in np.unique(fresh[fresh >= 0]):
        marks = (fresh == number) & (old != number)
        if not marks.any():
            continue
        about = np.zeros_like(marks)
        for sure in _SURE:
            pieces, _ = ndimage.label(marks | ((old != number) & (belief[..., number] > sure)))
            turned = np.isin(pieces, pieces[marks])
            depth = depths(turned)
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


def depths(region: np.ndarray) -> np.ndarray:
    """Return the distance of each pixel of a region (H, W) from its border; computed in its bounding box, for speed."""
    ((down, across),) = ndimage.find_objects(region.astype(np.int8))
    depth = np.zeros(region.shape)
    depth[down, across] = ndimage.distance_transform_edt(np.pad(region[down, across], 1))[1:-1, 1:-1]
    return depth

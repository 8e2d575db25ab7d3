"""Every number of the segmentation, and layers 1 and 2, which no mark touches: features of the pixels, the picture cut
into cells, units adapted to it, and energies of paths between them.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from pyro.distributions import Normal
from scipy import ndimage
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from probtx_pyro import models
from probtx_pyro.inference import adapt
from probtx_pyro.models import GaussianMixture

_MAY_BE_ZERO = "blur num_steps hop_cost frame_cost paths colour_rounds learned_hop previous_weight region_error".split()


@dataclass(frozen=True)
class SegmentationSettings:
    """Hyper-parameters; lengths are in grid steps, colours in the units of the features (CIE Lab by default).

    Parameters
    ----------
    num_units
        Units wanted on the grid; the step is the nearest whole number of pixels.
    blur
        Standard deviation of the smoothing of the features before anything else, in steps.
    colour_scale
        A colour difference of so much counts as one step of distance in the keys.
    key_precision
        α of layer 1: one key is 1/√α wide.
    key_strength
        θ of the prior ``keys ~ N(initial keys, I/θ)`` (PT 29).
    num_steps
        ECM steps of the keys.
    hop_precision, hop_shape, hop_spread
        Gamma prior of the precision of one hop between touching units (PT 30): its value is
        ``hop_precision (ν + 1) / (ν + mean squared hop / hop_spread)`` with ν = ``hop_shape``; a flat picture is read
        finely, a busy one coarsely.
    hop_cap
        Colour differences above this count as this in that mean only.
    hop_cost, frame_cost
        Energy of any hop, and of a hop across the picture's frame into the one unit that stands for all outside it.
    window
        A pixel attends to the units of so many rings about its cell.
    paths
        False leaves out layer 2 and the colours: a unit answers by the marks that attend to it and by no other (PT 31
        to 38 alone).
    path_temperature
        λ: the log prior of asking annotated unit k from unit j is ``-λ E_jk``.
    concentration
        θ_ρ of the Dirichlet prior on the answers of the annotated units; 1 is flat.
    least_count
        An annotated unit needs this much attention from the marks to answer, and a class this much in it to be in
        conflict.
    colour_precision
        Precision of the units' colours in the colour model of a class.
    class_mass
        A class with far less than this fraction of the picture has a shrunken colour model.
    colour_floor
        Probability, before normalising, that the colour says nothing about the class. It keeps layer 3 from being
        overruled.
    colour_rounds
        Rounds of the colour models and the paths that learn from them.
    learned_hop
        γ, the metric learned from the marks: a hop costs ``γ/2 Σ_c (L_jc - L_kc)²`` more, L the shares of the colour
        models.
    previous_weight
        ω: a previous answer is the prior to this power.
    middle_ratio
        κ: a new mark changes a region whose deepest pixel is at most κ times as deep as the mark, and one pixel more.
    region_error
        ε of the calibration: probability that the answer knows nothing of the region of a pixel.
    review_gain
        κ of the calibration: log of what each review that the class of a pixel survives multiplies its odds by.

    Notes
    -----
    Chosen on 8 pictures (the even half of the click benchmark's 16), the older ones also on 40 crops of them with other
    colours, contrast and noise, by pet-only IoU over 2 to 10 clicks and on scribbles; ``middle_ratio`` by the largest
    fall of that score in 20 clicks, on those 8 and on 16 crops. No number was fitted on the other half, though a first
    look at it prompted the crops. ``region_error`` and ``review_gain`` have the least log loss on those 8 and on 40
    crops (``benchmarks.segmentation_calibration``). Told apart on those data are neither 1 to 5 ECM steps nor 4 or 8
    pixels a side of a cell in the adaptation.
    """

    num_units: int = 700
    blur: float = 0.15
    colour_scale: float = 20.0
    key_precision: float = 4.0
    key_strength: float = 1.0
    num_steps: int = 3
    hop_precision: float = 0.015
    hop_shape: float = 0.5
    hop_spread: float = 70.0
    hop_cap: float = 30.0
    hop_cost: float = 0.03
    frame_cost: float = 0.6
    window: int = 1
    paths: bool = True
    path_temperature: float = 3.0
    concentration: float = 1.0
    least_count: float = 0.05
    colour_precision: float = 0.1
    class_mass: float = 0.05
    colour_floor: float = 0.02
    colour_rounds: int = 2
    learned_hop: float = 30.0
    previous_weight: float = 0.5
    middle_ratio: float = 1.2
    region_error: float = 0.05
    review_gain: float = 0.5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name in _MAY_BE_ZERO
            if not (value >= 0 if may_be_zero else value > 0):
                raise ValueError(f"{field.name} must be {'0 or more' if may_be_zero else 'positive'}, not {value}")
        if self.region_error >= 1:
            raise ValueError(f"region_error must be less than 1, it is a probability, not {self.region_error}")
        if self.concentration < 1:
            raise ValueError(f"concentration must be 1 or more, or the Dirichlet has no mode, not {self.concentration}")


_XYZ = np.array(
    [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]], np.float32
)
_WHITE = np.array([0.95047, 1.0, 1.08883], np.float32)


def lab_colours(image: np.ndarray) -> np.ndarray:
    """CIE Lab (D65) of an sRGB picture: (H, W, 3) or grey (H, W), integers 0..255 or floats 0..1 -> float32 (H, W, 3).

    A difference of about 2 is just noticeable, wherever it lies in the colour space.

    >>> lightness = lab_colours(np.full((1, 1, 3), 255, np.uint8))[0, 0, 0]
    >>> round(float(lightness))
    100
    """
    rgb = np.asarray(image, np.float32) / (255 if np.issubdtype(image.dtype, np.integer) else 1)
    rgb = np.repeat(rgb[..., None], 3, -1) if rgb.ndim == 2 else rgb[..., :3]
    linear = np.where(rgb > 0.04045, ((rgb.clip(0) + 0.055) / 1.055) ** np.float32(2.4), rgb / 12.92)
    xyz = linear @ _XYZ.T / _WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1).astype(np.float32)


class Cells(NamedTuple):
    """The picture cut into square cells, one unit in each; the last row and column are padded.

    queries: features (colour / colour_scale, y, x in steps), shape (cell, pixel of the cell, feature).
    inside: False for padding, shape (cell, pixel of the cell).
    shape: cells down and across.
    step: side of a cell in pixels.
    """

    queries: Tensor
    inside: Tensor
    shape: tuple[int, int]
    step: int

    def flat(self, picture: Tensor) -> Tensor:
        """Cut (H, W, ...) into (cell, pixel of the cell, ...), padded by the nearest pixel."""
        (down, across), step = self.shape, self.step
        rows = torch.arange(down * step).clamp_max(picture.shape[0] - 1)
        columns = torch.arange(across * step).clamp_max(picture.shape[1] - 1)
        padded = picture[rows][:, columns].unflatten(1, (across, step)).unflatten(0, (down, step))
        return padded.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def picture(self, cells: Tensor, height: int, width: int) -> Tensor:
        """Invert `flat`, from (cell, pixel of the cell, ...) to (H, W, ...).

        Parameters
        ----------
        cells
            (cell, pixel of the cell, ...).
        height, width
            Size of the picture.
        """
        padded = cells.unflatten(1, (self.step, self.step)).unflatten(0, self.shape).transpose(1, 2)
        return padded.flatten(2, 3).flatten(0, 1)[:height, :width]


def cut(colours: np.ndarray, num_units: int, colour_scale: float, blur: float) -> Cells:
    """Smooth the colours, append the position, and cut the picture into cells.

    Parameters
    ----------
    colours
        (H, W, F) features of the pixels.
    num_units
        Cells wanted, about.
    colour_scale
        Difference of colours that counts as one step.
    blur
        Standard deviation of the smoothing, in steps.
    """
    height, width = colours.shape[:2]
    step = max(1, round((height * width / num_units) ** 0.5))
    if blur * step > 0.3:  # less is no smoothing on a grid of pixels
        colours = ndimage.gaussian_filter(colours, (blur * step, blur * step, 0), truncate=2.5)
    shape = (-(-height // step), -(-width // step))
    empty = Cells(torch.empty(0), torch.empty(0), shape, step)
    colour = empty.flat(torch.from_numpy(np.ascontiguousarray(colours, np.float32)) / colour_scale)
    y, x = (torch.arange(cells * step, dtype=torch.float32) for cells in shape)
    position = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1)
    inside = (position[..., 0] < height) & (position[..., 1] < width)
    return Cells(torch.cat([colour, empty.flat(position / step)], -1), empty.flat(inside), shape, step)


def windows(shape: tuple[int, int], side: int, ring: int = 1) -> tuple[Tensor, Tensor]:
    """Cut the grid of units into blocks that overlap: ``side`` x ``side`` units,
    and a ring of their neighbours about them.

    Parameters
    ----------
    shape
        Units down and across.
    side
        Units of a block a side, without the ring.

    Returns
    -------
    The units of each block, the nearest one beyond the frame, (block, unit of the block); and a log prior, even over
    those inside the frame and -inf for the others, (block, 1, unit of the block).
    """

    def blocks(grid: Tensor) -> Tensor:
        return grid.unfold(0, side + 2 * ring, side).unfold(1, side + 2 * ring, side).flatten(0, 1).flatten(1)

    y, x = torch.meshgrid(*(torch.arange(-ring, -(-units // side) * side + ring) for units in shape), indexing="ij")
    down, across = y.clamp(0, shape[0] - 1), x.clamp(0, shape[1] - 1)
    inside = blocks((y == down) & (x == across)).to(torch.float32)
    return blocks(down * shape[1] + across), (inside / inside.sum(-1, keepdim=True)).log().unsqueeze(-2)


_PIXELS_AT_ONCE = 1 << 20
_SIDE = 4  # so many pixels of a cell a side take part in the adaptation; 8 scored alike and cost four times as much
_BLOCK = 4  # cells of a block a side
_FAR = 1e3  # energy where no path exists


class Links(NamedTuple):
    """Hops between units.

    units: how many units there are.
    pairs: units j < k that touch, shape (pair, 2).
    contact: length of their common border in pixels, shape (pair,).
    energy: what the difference of their colours costs, shape (pair,).
    rim: the units that touch the frame, shape (rim,).
    """

    units: int
    pairs: np.ndarray
    contact: np.ndarray
    energy: np.ndarray
    rim: np.ndarray


class PictureUnits(NamedTuple):
    """Units of a picture, before any mark.

    keys: ξ_j after adaptation, shape (unit, feature).
    counts: Σ_i w_ij over all pixels, shape (unit,).
    links: hops between units that touch.
    near: the units that a cell may attend to, shape (cell, 9).
    log_prior: log prior over those, shape (cell, 1, 9).
    """

    keys: Tensor
    counts: Tensor
    links: Links
    near: Tensor
    log_prior: Tensor


def adapt_units(cells: Cells, settings: SegmentationSettings) -> Tensor:
    """Return keys (unit, feature) of layer 1, the MAP of ``ξ_j ~ N(mean of cell j, I/θ)`` given the pixels (PT 29).

    One batch of small problems, as a unit moves by the pixels about it only: blocks of cells, each with a ring of its
    neighbours, of which the inner units are kept: an approximation, off the whole mixture by about a hundredth of a
    key's width 1/√α. Every r-th pixel of every r-th row stands for r² (``query_weights``).

    Parameters
    ----------
    cells
        Picture cut into cells.
    settings
        Precision and prior of the keys, and the number of ECM steps.
    """
    weights = cells.inside.to(cells.queries)
    initial = (cells.queries * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True)
    stride = -(-cells.step // _SIDE)
    raster = torch.arange(cells.step**2).reshape(cells.step, cells.step)
    sample = raster[stride // 2 :: stride, stride // 2 :: stride].reshape(-1)
    weights = weights[:, sample] * (cells.step**2 / len(sample))
    blocks, log_prior = windows(cells.shape, _BLOCK)
    there = log_prior.squeeze(-2).isfinite()
    units = blocks * there
    mixture = GaussianMixture(initial[units], key_precision=settings.key_precision, log_prior=log_prior)
    posterior = models.bayesian(mixture, keys=Normal(mixture.keys, settings.key_strength**-0.5))
    queries, weights = cells.queries[:, sample][units].flatten(1, 2), (weights[units] * there.unsqueeze(-1)).flatten(1)
    fit = adapt(posterior, queries, num_steps=settings.num_steps, query_weights=weights, progress=False)
    inner = torch.nn.functional.pad(torch.ones(_BLOCK, _BLOCK, dtype=torch.bool), (1, 1, 1, 1)).flatten() & there
    keys = torch.empty_like(initial)
    keys[blocks[inner]] = fit.formulation.keys[inner]
    return keys


def link_units(keys: Tensor, home: np.ndarray, settings: SegmentationSettings) -> Links:
    """Return the hops of layer 2: which units touch, and what a hop between them costs.

    A walker hops from unit j to a unit it touches with weight ``exp(-e_jk)``, ``e_jk = α/2 |c_j - c_k|² + hop_cost``. α
    is the Gamma-MAP of the precision of a hop (PT 30). One more unit stands for all outside the frame, so that two
    pieces of background that the object separates are near to each other.

    Parameters
    ----------
    keys
        (unit, feature) of layer 1.
    home
        (H, W) the unit of each pixel.
    settings
        Prior of a hop, and the costs.
    """
    colours = (keys[:, :-2] * settings.colour_scale).double().numpy()
    touching = ((home[:, 1:], home[:, :-1]), (home[1:], home[:-1]))
    both = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in touching])
    pairs, contact = np.unique(np.sort(both[both[:, 0] != both[:, 1]], 1), axis=0, return_counts=True)
    j, k = pairs.T
    squares = ((colours[j] - colours[k]) ** 2).sum(1)
    spread = np.minimum(squares, settings.hop_cap**2).mean() if len(squares) else 0.0
    shape = settings.hop_shape
    precision = settings.hop_precision * (shape + 1) / (shape + spread / settings.hop_spread)
    rim = np.unique(np.concatenate([home[0], home[-1], home[:, 0], home[:, -1]]))
    return Links(len(keys), pairs, contact, precision / 2 * squares, rim)


def path_energies(
    links: Links, to: np.ndarray, settings: SegmentationSettings, further: np.ndarray | float = 0.0
) -> Tensor:
    """Return energies (unit, target) of the most probable paths from all units to some, by Dijkstra's algorithm.

    The weight of a path is the product of its hops and its energy the sum of theirs: attention applied to itself hop
    after hop, with max for sum.

    Parameters
    ----------
    links
        Hops.
    to
        (target,) units.
    settings
        Costs of a hop and of the frame.
    further
        (pair,) more energy of each hop.
    """
    (j, k), rim, units = links.pairs.T, links.rim, links.units
    energy = np.r_[links.energy + further + settings.hop_cost, np.full(len(rim), settings.frame_cost)]
    ends = (np.r_[j, rim], np.r_[k, np.full(len(rim), units)])
    graph = csr_matrix((np.maximum(energy, 1e-9), ends), (units + 1, units + 1))
    paths = dijkstra(graph, directed=False, indices=to)[:, :units]
    return torch.from_numpy(np.minimum(paths, _FAR).astype(np.float32)).T


def find_units(cells: Cells, height: int, width: int, settings: SegmentationSettings) -> PictureUnits:
    """Compute both layers.

    Parameters
    ----------
    cells
        Picture cut into cells.
    height, width
        Size of the picture.
    settings
        Settings of both layers.
    """
    keys = adapt_units(cells, settings)
    near, log_prior = windows(cells.shape, 1, settings.window)
    counts, homes = keys.new_zeros(len(keys)), []
    some = max(1, _PIXELS_AT_ONCE // cells.step**2)
    parts = (near, log_prior, cells.queries, cells.inside)
    for units, prior, queries, inside in zip(*(part.split(some) for part in parts), strict=True):
        mixture = GaussianMixture(keys[units], key_precision=settings.key_precision, log_prior=prior)
        attention = mixture.attention(queries)
        homes.append(units.gather(1, attention.argmax(-1)))
        counts.index_add_(0, units.flatten(), (attention * inside.unsqueeze(-1)).sum(1).flatten())
    home = cells.picture(torch.cat(homes), height, width).numpy()
    return PictureUnits(keys, counts, link_units(keys, home, settings), near, log_prior)

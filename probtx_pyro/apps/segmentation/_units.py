"""Every number of the segmentation, and all that no mark touches: features of the pixels, the picture cut into cells,
units adapted to it, their colours as a mixture, which of them are neighbours, and what a hop between those costs.
"""

from dataclasses import dataclass
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
from probtx_pyro.models.potts_field import Edges
from probtx_pyro.models.soft_kmeans import kmeans_plus_plus

_MAY_BE_ZERO = "unmarked colour_evidence path_evidence coupling region_error".split()


@dataclass(frozen=True)
class SegmentationSettings:
    """Hyper-parameters. Colours are the features, CIE Lab by default, over ``colour_scale``; a step is a cell's side.

    Parameters
    ----------
    num_units
        Units wanted on the grid; the step is the nearest whole number of pixels.
    colour_scale
        A difference of features that counts as one step of distance in the keys.
    key_precision
        α of the units: one key is 1/√α wide.
    num_colours
        Colour units, which all classes share.
    colour_prior
        Strength of the Dirichlet prior of a class's weights over the colour units, in units of the picture.
    unmarked
        A unit that no mark names counts so much in the colours of the classes that it is believed to be of; a marked
        one counts 1.
    colour_evidence
        Power of the likelihood of a unit's colour: a unit is many pixels, but those are no independent evidence.
    path_evidence
        Power of what the paths to the marks say.
    hop_cost
        Length of any hop between neighbours, beside the difference of their colours.
    frame_cost
        Length of the way from the frame to a mark of the background outside of it.
    coupling
        Agreement of two equal units that share a whole side, in nats.
    middle_ratio
        κ: a new mark changes a region whose deepest pixel is at most κ times as deep as the mark, and one pixel more.
    region_error
        ε of the calibration: probability that the answer knows nothing of the region of a pixel.
    review_gain
        log of what each review that the class of a pixel survives multiplies its odds by.

    Notes
    -----
    The numbers up to ``coupling``, but for ``colour_scale``, are the best of 24 candidates on 16 photographs; the last
    three were kept from earlier layers (docs/reports/segmentation.md).
    """

    num_units: int = 1700
    colour_scale: float = 20.0
    key_precision: float = 3.3
    num_colours: int = 26
    colour_prior: float = 0.46
    unmarked: float = 0.11
    colour_evidence: float = 0.45
    path_evidence: float = 1.8
    hop_cost: float = 0.34
    frame_cost: float = 1.8
    coupling: float = 6.2
    middle_ratio: float = 1.2
    region_error: float = 0.05
    review_gain: float = 0.5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (value > 0 or (value == 0 and name in _MAY_BE_ZERO)):
                raise ValueError(f"{name} must be {'0 or more' if name in _MAY_BE_ZERO else 'positive'}, not {value}")
        if self.region_error >= 1:
            raise ValueError(f"region_error must be less than 1, it is a probability, not {self.region_error}")


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

    def picture(self, cells: Tensor, height: int, width: int) -> Tensor:
        """Put the cells together again, from (cell, pixel of the cell, ...) to (H, W, ...).

        Parameters
        ----------
        cells
            (cell, pixel of the cell, ...).
        height, width
            Size of the picture.
        """
        padded = cells.unflatten(1, (self.step, self.step)).unflatten(0, self.shape).transpose(1, 2)
        return padded.flatten(2, 3).flatten(0, 1)[:height, :width]


def cut(colours: np.ndarray, num_units: int, colour_scale: float) -> Cells:
    """Smooth the colours, append the position, and cut the picture into cells.

    Parameters
    ----------
    colours
        (H, W, F) features of the pixels.
    num_units
        Cells wanted, about.
    colour_scale
        Difference of colours that counts as one step.
    """
    height, width = colours.shape[:2]
    step = max(1, round((height * width / num_units) ** 0.5))
    if _BLUR * step > 0.3:  # less is no smoothing on a grid of pixels
        colours = ndimage.gaussian_filter(colours, (_BLUR * step, _BLUR * step, 0), truncate=2.5)
    down, across = -(-height // step), -(-width // step)
    more = (0, down * step - height), (0, across * step - width)

    def cells(picture: np.ndarray) -> Tensor:
        parts = picture.reshape(down, step, across, step, -1).swapaxes(1, 2)
        return torch.from_numpy(parts.reshape(down * across, step**2, -1))

    places = np.moveaxis(np.mgrid[:height, :width], 0, -1) / step
    pixels = np.concatenate([colours / colour_scale, places], -1, dtype=np.float32)
    inside = cells(np.pad(np.ones((height, width), bool), more)).squeeze(-1)
    return Cells(cells(np.pad(pixels, (*more, (0, 0)), "edge")), inside, (down, across), step)


def windows(shape: tuple[int, int], side: int) -> tuple[Tensor, Tensor]:
    """Cut the grid of units into blocks that overlap: ``side`` x ``side`` units,
    and a ring of their neighbours about them.

    Parameters
    ----------
    shape
        Units down and across.
    side
        Units of a block a side, without the ring of one unit.

    Returns
    -------
    The units of each block, the nearest one beyond the frame, (block, unit of the block); and a log prior, even over
    those inside the frame and -inf for the others, (block, 1, unit of the block).
    """

    def blocks(grid: Tensor) -> Tensor:
        return grid.unfold(0, side + 2, side).unfold(1, side + 2, side).flatten(0, 1).flatten(1)

    y, x = torch.meshgrid(*(torch.arange(-1, -(-units // side) * side + 1) for units in shape), indexing="ij")
    down, across = y.clamp(0, shape[0] - 1), x.clamp(0, shape[1] - 1)
    inside = blocks((y == down) & (x == across)).to(torch.float32)
    return blocks(down * shape[1] + across), (inside / inside.sum(-1, keepdim=True)).log().unsqueeze(-2)


_BLUR = 0.15  # standard deviation of the smoothing, in steps
_SIDE = 4  # so many pixels of a cell a side take part in the adaptation; 8 scored alike and cost four times as much
_BLOCK = 4  # cells of a block a side
_KEY_STEPS, _COLOUR_STEPS = 3, 12  # of ECM
_COLOUR_FLOOR, _FLOOR_WEIGHT = 0.0225, 3.0  # variance that colour units are shrunk to, as so many units would tell it
_FAR = 1e6  # length where no path exists


class PictureUnits(NamedTuple):
    """Units of a picture, before any mark.

    keys: ξ_j after adaptation, shape (unit, feature).
    counts: Σ_i w_ij over all pixels, of one unit on average, shape (unit,).
    near: the units that a cell may attend to, shape (cell, 9).
    log_prior: log prior over those, shape (cell, 1, 9).
    home: the unit that each pixel attends to most, shape (H, W).
    colours: log density of each colour unit at the colour of each unit, shape (unit, colour).
    shares: weights of the colour units in the picture, shape (colour,).
    edges: units that touch.
    coupling: what a hop's two units have in common, ``border_jk exp(-½ |c_j - c_k|²/σ²)``, shape (edge,).
    hops: lengths of hops between units that touch, a symmetric matrix (unit, unit).
    rim: the units that touch the frame, shape (rim,).
    """

    keys: Tensor
    counts: Tensor
    near: Tensor
    log_prior: Tensor
    home: np.ndarray
    colours: Tensor
    shares: Tensor
    edges: Edges
    coupling: Tensor
    hops: csr_matrix
    rim: np.ndarray


def adapt_units(cells: Cells, settings: SegmentationSettings) -> Tensor:
    """Return keys (unit, feature) of layer 1, the MAP of ``ξ_j ~ N(mean of cell j, I)`` given the pixels (PT 29).

    One batch of small problems, as a unit moves by the pixels about it only: blocks of cells, each with a ring of its
    neighbours, of which the inner units are kept: an approximation, off the whole mixture by about a hundredth of a
    key's width 1/√α. Every r-th pixel of every r-th row stands for r² (``query_weights``).

    Parameters
    ----------
    cells
        Picture cut into cells.
    settings
        Precision of the keys.
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
    posterior = models.bayesian(mixture, keys=Normal(mixture.keys, 1.0))
    queries, weights = cells.queries[:, sample][units].flatten(1, 2), (weights[units] * there.unsqueeze(-1)).flatten(1)
    fit = adapt(posterior, queries, num_steps=_KEY_STEPS, query_weights=weights, progress=False)
    inner = torch.nn.functional.pad(torch.ones(_BLOCK, _BLOCK, dtype=torch.bool), (1, 1, 1, 1)).flatten() & there
    keys = torch.empty_like(initial)
    keys[blocks[inner]] = fit.formulation.keys[inner]
    return keys


def mix_colours(colours: Tensor, counts: Tensor, num_colours: int) -> tuple[Tensor, Tensor]:
    """Return the log density of each colour unit at some colours, (unit, colour), and the weights of the colour units.

    A mixture of Gaussians, each with a metric of its own under a Wishart prior, by ECM from a start by k-means++: what
    `inference.adapt` does for ``GaussianMixture(keys, metric=...)`` given the attention to each
    (docs/mathematics.md, section 2.8).

    Parameters
    ----------
    colours
        (unit, feature).
    counts
        How often each counts, (unit,).
    num_colours
        Colour units wanted; no more than there are different colours.
    """
    number, features = min(num_colours, len(colours.unique(dim=0))), colours.shape[-1]
    keys = kmeans_plus_plus(colours, number, 0, counts, None)
    identity = torch.eye(features).to(colours)
    metric, shares = identity.expand(number, features, features) / 0.25, counts.new_full((number,), 1 / number)
    for step in range(_COLOUR_STEPS + 1):
        logs = GaussianMixture(keys.unsqueeze(-2), metric=metric).log_evidence(colours).mT
        if step == _COLOUR_STEPS:
            break
        weights = (logs + shares.log()).softmax(-1) * counts.unsqueeze(-1)
        each = weights.sum(0) + torch.finfo(weights.dtype).eps
        keys = weights.mT @ colours / each.unsqueeze(-1)
        away = colours.unsqueeze(-2) - keys
        scatter = torch.einsum("uc,ucf,ucg->cfg", weights, away, away) + _FLOOR_WEIGHT * _COLOUR_FLOOR * identity
        metric = (each + _FLOOR_WEIGHT)[:, None, None] * torch.cholesky_inverse(torch.linalg.cholesky(scatter))
        shares = (each + 0.5) / (each.sum() + number / 2)
    return logs, shares


def find_units(cells: Cells, height: int, width: int, settings: SegmentationSettings) -> PictureUnits:
    """Compute all that no mark touches.

    Parameters
    ----------
    cells
        Picture cut into cells.
    height, width
        Size of the picture.
    settings
        Settings.
    """
    keys, (near, log_prior) = adapt_units(cells, settings), windows(cells.shape, 1)
    attention = GaussianMixture(keys[near], key_precision=settings.key_precision, log_prior=log_prior).attention(
        cells.queries
    )
    home = cells.picture(near.gather(1, attention.argmax(-1)), height, width).numpy()
    masses = (attention * cells.inside.unsqueeze(-1)).sum(1).flatten()
    counts = keys.new_zeros(len(keys)).index_add_(0, near.flatten(), masses)
    counts = counts / counts.mean()
    pairs, sides = touching(home)
    colours = keys[:, :-2]
    (j, k), border = torch.from_numpy(pairs.T), torch.from_numpy(sides / cells.step).to(keys)
    squares = (colours[j] - colours[k]).square().sum(-1)
    spread = squares.mean() if len(squares) and bool(squares.any()) else 1.0
    hops = np.tile(squares.double().sqrt().numpy() + settings.hop_cost, 2)
    graph = csr_matrix((hops, (np.r_[pairs[:, 0], pairs[:, 1]], np.r_[pairs[:, 1], pairs[:, 0]])), (len(keys),) * 2)
    own = keys, counts, near, log_prior, home, *mix_colours(colours, counts, settings.num_colours)
    rim = np.unique(np.concatenate([home[0], home[-1], home[:, 0], home[:, -1]]))
    coupling = border * (-squares / spread / 2).exp()
    return PictureUnits(*own, Edges(torch.from_numpy(pairs), len(keys)), coupling, graph, rim)


def touching(home: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of units j < k that touch, (pair, 2), and the length of their border in pixels, (pair,).

    Parameters
    ----------
    home
        The unit of each pixel, (H, W).
    """
    sides = ((home[:, 1:], home[:, :-1]), (home[1:], home[:-1]))
    both = np.concatenate([np.stack([a.ravel(), b.ravel()], 1) for a, b in sides])
    pairs, border = np.unique(np.sort(both[both[:, 0] != both[:, 1]], 1), axis=0, return_counts=True)
    return pairs, border.astype(np.float32)


def path_lengths(hops: csr_matrix, origins: np.ndarray) -> np.ndarray:
    """Return the length of the shortest path from every unit to the nearest of some units, (unit,).

    The weight of a path is the product of ``exp(-hop)``: attention applied to itself hop after hop, with max for sum.

    Parameters
    ----------
    hops
        Lengths of hops.
    origins
        Numbers of units.
    """
    if not len(origins):
        return np.full(hops.shape[0], _FAR)
    return np.minimum(dijkstra(hops, directed=False, indices=origins, min_only=True), _FAR)

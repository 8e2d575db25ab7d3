"""Layers 1 and 2, which no mark touches: units adapted to the picture, and energies of paths between them."""

from typing import NamedTuple

import numpy as np
import torch
from pyro.distributions import Normal
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from probtx_pyro import models
from probtx_pyro.apps.segmentation._features import Cells, windows
from probtx_pyro.apps.segmentation._settings import SegmentationSettings
from probtx_pyro.inference import adapt
from probtx_pyro.models import GaussianMixture

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

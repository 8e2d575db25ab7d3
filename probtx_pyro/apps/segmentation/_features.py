"""Features of the pixels, and the picture cut into cells."""

from typing import NamedTuple

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

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

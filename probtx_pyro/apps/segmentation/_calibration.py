"""The calibration of an answer: whole regions may be wrong, and every review that a class survives speaks for it."""

import numpy as np

from probtx_pyro.apps.segmentation._settings import SegmentationSettings


def calibrated(belief: np.ndarray, found: np.ndarray, stood: np.ndarray, settings: SegmentationSettings) -> np.ndarray:
    """Return probabilities (H, W, class) for what the rules of the mask believe; the most probable class stays the same.

    With probability ε the region of a pixel is one of which the answer knows nothing, so that its class may be any:
    ``q_i = (1 - ε) belief_i + ε / C``. Where all marks together contradict the class that stands, the belief counts nothing and
    ``q_i = 1/C``. A person who sees an answer and marks another place says that what stands is right: each such review
    multiplies the odds of the class by ``exp(κ)``, ``p_ic ∝ q_ic exp(κ r_i [c stands])``.

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

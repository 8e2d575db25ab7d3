"""Interactive segmentation: a few marked pixels give every pixel its class,
by Gaussian-mixture attention of pixels to units and a field over the units.

Nothing is learned offline: the picture and the marks are all there is (docs/mathematics.md, sections 2.4, 2.5 and 9).

**Pixels ask units** (`_units.adapt_units`). A grid of about 1,700 units; the key of a unit is its colour and position,
``ξ_j ~ N(mean of cell j, I)``, adapted to the pixels by ECM (PT 29). A pixel's attention w_ij runs over the 3 x 3 units
about its cell, which is a log prior of -inf for all others.

**The classes of the units are a Potts field** (`InteractiveSegmenter.field`, a Pyro program; `models.PottsField`):
``p(z) ∝ exp(Σ_j h_j(z_j) + Σ_jk λ w_jk [z_j = z_k])`` over units that touch, marked units known. Its mean field is
attention of a unit over its neighbours, keys their colours: ``w_jk = border_jk exp(-½ |c_j - c_k|²/σ²)``, σ² the mean
of these squares. Three sources of evidence meet in it:

1. *Paths.* A hop between neighbours has the length ``|c_j - c_k|`` and a constant; D_jc is the length of the shortest
   path from a mark of class c, and ``h_j(c) = -γ D_jc / (D_j(1) + D_j(2))``, the two smallest below the line: how far
   is counted in the distance between the nearest marks of two classes. A class may also come from outside the frame, at
   a price: the length to the frame, a constant, and ``-log`` the probability that it is the background.
2. *Colours.* The colours of all units are a mixture of Gaussians with metrics of their own under a Wishart prior
   (`_units.mix_colours`), fitted once. A class has weights over these colour units, their mode under a Dirichlet prior
   about the weights of the picture, given the units that are marked and, less, those that the field believes in; so
   colours and field take turns, three times. ``h_j(c)`` has ``log p(c_j | c)``, to a power: neighbouring pixels are no
   independent evidence.
3. *Agreement* of neighbours, above.

Last, a class that no mark holds in one piece (the frame is a mark of the background) is not allowed there, and each
pixel's answer is ``p_i = Σ_j w_ij Q_j`` (PT 20).

**Marks one after another** (`_segmenter.after`). ``segment(marks, previous=answer)`` takes the answer before as the
prior of the new one and bounds what a mark changes: to its own class, in one piece with it, and as far as it lies in
the middle of that piece.

**Calibration** (`_segmenter.calibrated`). The mask is the mode of that belief; ``probabilities`` say how far to believe
it: with probability ε a region is one of which the answer knows nothing, and each review that a class survives
multiplies its odds by ``exp(κ)``.

Where it is not exact inference, on purpose: units adapt in blocks, mean field stands for the posterior of the field,
colours have a mode and not a posterior, and paths are no density. Where marks of two classes meet in one unit, its
pixels take the class of the mark nearest in colour and place. A marked pixel keeps its mark. A picture of more than
two million pixels is averaged first.

What it cannot do: it knows colours, edges and the frame, no objects. An animal in the colours of its surroundings,
strong texture or noise in a small picture, and an object cut by the frame take more clicks; where it is the background
that does not reach the frame, name it (``background=``).

References
----------
Movellan & Gabbur 2020, *Probabilistic Transformers*, arXiv 2010.15583 (attention of pixels to units); Rother,
Kolmogorov & Blake 2004, *GrabCut* (colour mixtures and agreement of neighbours); Bai & Sapiro 2007, *A geodesic
framework for fast interactive image and video segmentation* (paths as distances to marks); Achanta et al. 2012, *SLIC
superpixels* (units).
"""

from probtx_pyro.apps.segmentation._clicks import (
    LABEL_COLOURS,
    Click,
    ClickGame,
    first_clicks,
    marks_from_clicks,
    next_click,
    overlay,
    play_clicks,
    suggest_click,
    uncertainty,
)
from probtx_pyro.apps.segmentation._segmenter import InteractiveSegmenter, Segmentation
from probtx_pyro.apps.segmentation._units import SegmentationSettings, lab_colours

__all__ = ["InteractiveSegmenter", "Segmentation", "SegmentationSettings", "lab_colours", "LABEL_COLOURS", "overlay"]
__all__ += ["Click", "marks_from_clicks", "suggest_click", "uncertainty"]
__all__ += ["ClickGame", "first_clicks", "next_click", "play_clicks"]

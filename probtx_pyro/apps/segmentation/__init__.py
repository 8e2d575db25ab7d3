"""Interactive segmentation: a few marked pixels give every pixel its class,
by three layers of Gaussian-mixture attention.

Nothing is learned offline: the picture and the marks are all there is, and each layer adapts online
(docs/mathematics.md, sections 2.4 and 2.5).

**Layer 1, pixels ask units** (`_units.adapt_units`). A grid of about 700 units; the key of a unit is its colour and
position, ``ξ_j ~ N(mean of cell j, I/θ)``, adapted to the pixels by ECM (PT 29). A pixel's attention w_ij runs over the
3 x 3 units about its cell, which is a log prior of -inf for all others.

**Layer 2, units ask the units they touch, hop after hop** (`_units.link_units`). A hop costs
``e_jk = α/2 |c_j - c_k|² + hop_cost``, minus its log weight, with α the Gamma-MAP of a precision (PT 30); E_jk is the
cost of the cheapest path. This is attention applied to itself with max in the place of the sum, and Dijkstra's
algorithm computes it. No mark has been used so far.

**Layer 3, units ask the annotated units** (`_segmenter`). Their answers ρ_k and weights n_k come from one ECM step on
the marked pixels (PT 38 and its categorical form, Dirichlet priors). With the relative-position log prior of layer 2,

    P0_j = Σ_k softmax_k(log min(1, n_k) - λ E_jk) ρ_k.

A colour model for each class, a mixture over all units with weights ∝ n_k P_kc, has the share L_jc of the evidence at
the colour of unit j. Hops learn from it: between j and k one costs ``γ/2 Σ_c (L_jc - L_kc)²`` more, which is a metric
learned from the marks. ``P_jc ∝ P0_jc (L_jc + floor)`` with the new paths, and both once again. Last, each pixel's
answer is ``p_i = Σ_j w_ij P_j`` (PT 20).

**Marks one after another** (`_segmenter.after`). ``segment(marks, previous=answer)`` takes the answer before as the
prior of the new one and bounds what a mark changes: to its own class, in one piece with it, and as far as it lies in
the middle of that piece.

**Calibration** (`_segmenter.calibrated`). The mask is the mode of that belief; ``probabilities`` say how far to believe
it: with probability ε a region is one of which the answer knows nothing, and each review that a class survives
multiplies its odds by ``exp(κ)``.

Where it is not exact EM, on purpose: units adapt in blocks, the hops' mean is capped, n_k counts at most once, L is
normalised over classes with small classes shrunken and a floor added, and there are two rounds. Where marks of two
classes meet in one unit, that unit has no answer of its own: whoever attends to it asks the marked pixels themselves
(attention one pixel wide). A marked pixel keeps its mark.

What it cannot do: it knows colours and edges, no objects. An animal in the colours of its surroundings, strong texture
or noise in a small picture, and an object cut by the frame take more clicks. Unlike other units, the one outside the
frame favours no class, so a mark near the frame reaches along it.

References
----------
Movellan & Gabbur 2020, *Probabilistic Transformers*, arXiv 2010.15583 (layers 1 and 3); Bai & Sapiro 2007, *A geodesic
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

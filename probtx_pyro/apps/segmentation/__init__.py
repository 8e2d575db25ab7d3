"""Interactive segmentation (work in progress)."""

from probtx_pyro.apps.segmentation.features import lab_colours
from probtx_pyro.apps.segmentation.overlay import overlay
from probtx_pyro.apps.segmentation.picture import Picture, Segmentation
from probtx_pyro.apps.segmentation.settings import Settings

__all__ = ["Picture", "Segmentation", "Settings", "lab_colours", "overlay"]

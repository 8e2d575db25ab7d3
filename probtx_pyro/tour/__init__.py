"""The guided run behind ``probtx tour``: one file a chapter, each a function of a `Context` that calls the public API only."""

from probtx_pyro.tour.chapter import Chapter, Context, Number, Picture
from probtx_pyro.tour.run import CHAPTERS, Written, run

__all__ = ["run", "Written", "CHAPTERS", "Chapter", "Context", "Number", "Picture"]

"""Trained models from the folder of their run."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from probtx_pyro.data.text import Vocabulary
from probtx_pyro.nn.tasks import MaskedLanguageModel, TextClassifier, WordModel, WordTagger
from probtx_pyro.train.encoders import ENCODERS, EncoderSettings
from probtx_pyro.train.labelling import LabellingSettings
from probtx_pyro.train.loop import CHECKPOINT
from probtx_pyro.train.masked import MaskedSettings


class LoadedRun(NamedTuple):
    """A run on words.

    model: with the parameters that the run keeps, in evaluation mode. vocabulary: its words. labels: of each column, none of a
    masked language model. settings: of the run.
    """

    model: WordModel
    vocabulary: Vocabulary
    labels: tuple[tuple[str, ...], ...]
    settings: EncoderSettings


def load_run(folder: Path, device: str = "cpu") -> LoadedRun:
    """The tagger, masked language model or classifier that a run left in ``folder``.

    Raises
    ------
    ValueError
        A folder without a checkpoint, one that cannot be read, or one of another kind of run.
    """
    path = Path(folder) / CHECKPOINT
    if not path.exists():
        raise ValueError(f"there is no {path}; give the folder of a run of probtx train")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch, zipfile and pickle each have errors of their own for a damaged file
        raise ValueError(f"{path} cannot be read ({type(error).__name__}); train again") from None
    settings, weights = state["settings"], state["kept"]["weights"] if state["kept"] else state["model"]
    if "encoder" not in settings:
        raise ValueError(f"{path} is of a language model; give the run of a tagger, mlm or classifier")
    tokens, labels = tuple(state["tokens"]), tuple(tuple(column) for column in state["labels"])
    kind: type[EncoderSettings] = MaskedSettings if "mask" in settings else LabellingSettings
    made = kind(**settings)
    sizes = tuple(map(len, labels))
    parts: dict[str, Any] = {}
    head: type[WordModel] = MaskedLanguageModel
    if "categories.weight" in weights:
        parts = {"num_categories": sizes[0], "summary": ENCODERS[made.encoder].summary, "root": True}
        head = TextClassifier
    elif labels:
        head, parts = WordTagger, {"num_tags": sizes}
    model = made.model(head, len(tokens), **parts)
    model.load_state_dict(weights)
    return LoadedRun(model.to(device).eval(), Vocabulary("word", tokens), labels, made)


__all__ = ["LoadedRun", "load_run"]

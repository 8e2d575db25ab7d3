"""Trained models from the folder of their run."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from probtx_pyro.data import Tokenizer, Vocabulary
from probtx_pyro.nn import MaskedLanguageModel
from probtx_pyro.train._labelling import ClassifierSettings, LabellingSettings, text_classifier, word_tagger
from probtx_pyro.train._loop import CHECKPOINT
from probtx_pyro.train._task import EncoderSettings
from probtx_pyro.train.language_model import LanguageModelSettings
from probtx_pyro.train.masked import MaskedSettings
from probtx_pyro.train.translation import TranslationSettings


class LoadedRun(NamedTuple):
    """Model of a finished or interrupted run.

    model: with the parameters that the run keeps, in evaluation mode.
    vocabulary: its tokens; of a translation model, the tokenizer of both languages.
    labels: labels of each column; none of a language or translation model.
    settings: settings of the run.
    """

    model: torch.nn.Module
    vocabulary: Any
    labels: tuple[tuple[str, ...], ...]
    settings: LanguageModelSettings | TranslationSettings | EncoderSettings


def load_run(folder: Path, device: str = "cpu") -> LoadedRun:
    """Load the model that a run left in ``folder``: a language or translation model, tagger,
    masked language model or classifier.

    Parameters
    ----------
    folder
        Folder of the run, with its checkpoint.
    device
        Device of the model.

    Raises
    ------
    ValueError
        A folder without a checkpoint, or one that cannot be read.
    """
    path = Path(folder) / CHECKPOINT
    if not path.exists():
        raise ValueError(f"there is no {path}; give the folder of a run of probtx train")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch, zipfile and pickle each have errors of their own for a damaged file
        raise ValueError(f"{path} cannot be read ({type(error).__name__}); train again") from None
    settings, weights = state["settings"], state["kept"]["weights"] if state["kept"] else state["model"]
    tokens, labels = tuple(state["tokens"]), tuple(tuple(column) for column in state["labels"])
    made: Any
    if "smoothing" in settings:
        made = TranslationSettings(**settings)
        model = made.model(len(tokens))
    elif "encoder" not in settings:
        made = LanguageModelSettings(**settings)
        model = made.model(len(tokens))
    elif "mask" in settings:
        made = MaskedSettings(**settings)
        model = made.model(MaskedLanguageModel, len(tokens))
    else:
        kind, build = (
            (ClassifierSettings, text_classifier) if "summary" in settings else (LabellingSettings, word_tagger)
        )
        made = kind(**settings)
        model = build(made, len(tokens), tuple(map(len, labels)))
    model.load_state_dict(weights)
    words = Vocabulary(getattr(made, "level", "word"), tokens, getattr(made, "characters", 0))
    vocabulary = Tokenizer(state["tokenizer"]) if state.get("tokenizer") else words
    return LoadedRun(model.to(device).eval(), vocabulary, labels, made)

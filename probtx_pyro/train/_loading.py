"""Trained models from the folder of their run."""

import json
import os
from pathlib import Path
from typing import Any

from probtx_pyro.data import Tokenizer, Vocabulary
from probtx_pyro.train.labelling import ClassifierSettings, LabellingSettings
from probtx_pyro.train.language_model import LanguageModelSettings
from probtx_pyro.train.loop import CHECKPOINT, RESULTS, Run, read_checkpoint
from probtx_pyro.train.masked import MaskedSettings
from probtx_pyro.train.translation import TranslationSettings

# kinds of settings, each after a field that those below it do not have
KINDS: dict[str, Any] = {
    "smoothing": TranslationSettings,
    "mask": MaskedSettings,
    "summary": ClassifierSettings,
    "unknown": LabellingSettings,
    "map_training": LanguageModelSettings,
}


def load_run(folder: str | os.PathLike[str], device: str = "cpu") -> Run[Any, Any]:
    """Load what a run left in ``folder``: a language or translation model, tagger, masked language model or classifier.

    Parameters
    ----------
    folder
        Folder of the run, with its checkpoint.
    device
        Device of the model.

    Returns
    -------
    The run, finished or not; its results are empty where it was killed before it could write them.

    Raises
    ------
    ValueError
        A folder without a checkpoint, or one that cannot be read.
    """
    state = read_checkpoint(Path(folder) / CHECKPOINT, device)
    tokens, labels = tuple(state["tokens"]), tuple(tuple(column) for column in state["labels"])
    settings = next(kind for field, kind in KINDS.items() if field in state["settings"])(**state["settings"])
    model = settings.model(len(tokens), tuple(map(len, labels)))
    model.load_state_dict(state["kept"]["weights"] if state["kept"] else state["model"])
    words = Vocabulary(getattr(settings, "level", "word"), tokens, getattr(settings, "characters", 0))
    vocabulary = Tokenizer(state["tokenizer"]) if state.get("tokenizer") else words
    results = Path(folder) / RESULTS
    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    return Run(model.to(device).eval(), vocabulary, labels, settings, found)

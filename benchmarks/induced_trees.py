"""Dependency trees that are read from attention which never saw one: of a dependency CRF, and of a transformer beside it.

Used by `benchmarks.tasks` ("masked sentences"). A channel of the CRF is a channel of its last sweep; one of a transformer is a head
of a layer, what each word attends to being its head. Both go to the same decoders (`apps.DECODERS`), a word's attention to itself
left out. Scores are of the words that are no punctuation. "best channel" is chosen on the dev part, and scored on the test part: of
the channels of one layer, so that a pick is compared with a pick among as many. A CRF has one "layer", its last sweep.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probtx_pyro.apps import DECODERS, AttentionParser
from probtx_pyro.data import Sentence, Vocabulary
from probtx_pyro.metrics import attachment_score, baseline_scores, channel_scores
from probtx_pyro.nn import DependencyCRFEncoder, TransformerEncoder
from probtx_pyro.nn.tasks import WordModel
from probtx_pyro.ops import arc_scores

PUNCTUATION = "PUNCT"
SMALLEST = torch.finfo(torch.float32).eps ** 2  # of a probability, before its logarithm; as `AttentionParser` has it


def attention_of(model: WordModel, vocabulary: Vocabulary, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """How much each word attends to each, (C, N, N) of each sentence, the heads of a first layer before those of the next."""
    if isinstance(model.encoder, DependencyCRFEncoder):
        return AttentionParser(model, vocabulary).head_marginals(sentences)
    if not isinstance(model.encoder, TransformerEncoder):
        raise ValueError(f"a {type(model.encoder).__name__} has no attention that is read here")
    return [transformer_heads(model, row).numpy() for row in vocabulary.numbers(sentences)]


def transformer_heads(model: WordModel, words: Tensor) -> Tensor:
    """The attention of every head of every layer, (layers * heads, N, N), of one sentence (N,)."""
    found: list[Tensor] = []

    def keep(layer: nn.Module, args: Any, options: dict[str, Any], _: Any) -> None:
        given = {**options, "need_weights": True, "average_attn_weights": False}
        found.append(layer.forward(*args, **given)[1][0].detach())  # type: ignore[operator]

    layers: Any = model.encoder.layers
    hooks = [block.self_attn.register_forward_hook(keep, with_kwargs=True) for block in layers]
    training = model.training
    model.eval()
    try:
        with torch.enable_grad():  # without gradients torch takes a path of its own, which calls no layer of attention
            model.encoder(model.embedded(words[None]))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return torch.cat(found)


def channels_of(model: WordModel) -> int:
    """The channels of a CRF, or the heads of one layer."""
    layers = getattr(model.encoder, "layers", None)
    return model.encoder.num_channels if layers is None else layers[0].self_attn.num_heads


def decoded(marginals: np.ndarray, decoder: str) -> np.ndarray:
    """Heads (..., N) from attention (..., N, N), by a decoder of `DECODERS`."""
    p = torch.as_tensor(marginals, dtype=torch.float64).clamp_min(SMALLEST).log()
    words = p.shape[-1]
    rows = p.reshape(-1, words, words)
    # trees choose one root by the other arcs; word by word there is none to choose
    none = None if decoder != "word" or words == 1 else p.new_full((words,), -torch.inf)
    heads = torch.stack([DECODERS[decoder](arc_scores(x, none)) for x in rows])
    return heads.reshape(marginals.shape[:-1]).numpy()


def attachment(model: WordModel, vocabulary: Vocabulary, dev: list[Sentence], test: list[Sentence]) -> dict[str, Any]:
    """Unlabelled attachment scores of the test part, beside those of the baselines, which know no word."""
    gold, counted, marginals = {}, {}, {}
    for name, part in (("dev", dev), ("test", test)):
        gold[name] = [s.heads for s in part]
        counted[name] = [[tag != PUNCTUATION for tag in s.upos] for s in part]
        marginals[name] = attention_of(model, vocabulary, [s.words for s in part])
    scores: dict[str, Any] = baseline_scores(gold["test"], counted["test"], seed=0)
    channels = channels_of(model)
    for layer in range(len(marginals["test"][0]) // channels):
        own = slice(layer * channels, (layer + 1) * channels)
        shown = {name: [x[own] for x in part] for name, part in marginals.items()}
        where = f"layer {layer + 1}"
        for name in DECODERS:
            means = [decoded(x.mean(0), name) for x in shown["test"]]
            scores[f"{where}: mean of channels, {name}"] = attachment_score(means, gold["test"], counted["test"])
        for decoder in ("word", "projective"):
            of = {
                name: channel_scores(part, gold[name], lambda p, d=decoder: decoded(p, d), counted[name])
                for name, part in shown.items()
            }
            best = int(of["dev"].channels.argmax())
            scores[f"{where}: channels, {decoder}"] = of["test"].channels.tolist()
            scores[f"{where}: best channel, {decoder}"] = float(of["test"].channels[best])
            scores[f"{where}: any channel, {decoder}"] = of["test"].oracle
    return scores

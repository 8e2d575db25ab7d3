"""Train the small character-level transformer on Python's help topics, and write the checkpoint that the package carries.

``python tests/make_text_transformer.py`` makes `probtx_pyro.data.text_transformer`'s own; ``--help`` shows the options.
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path

import numpy as np

from probtx_pyro.data import load_text, text_transformer
from probtx_pyro.data.text_transformer import CHECKPOINT, CONTEXT, TextTransformer
from probtx_pyro.train.language_model import perplexity


def loss(model: TextTransformer, text: str) -> float:
    """Mean negative log probability of the next character, in nats, over windows of the context's length."""
    return math.log(perplexity(model, model.encode(text), CONTEXT))


def save(model: TextTransformer, path: Path) -> None:
    """Write weights in half precision, the alphabet as code points and the training record as JSON: plain arrays only."""
    arrays = {name: weight.detach().half().numpy() for name, weight in model.state_dict().items()}
    arrays["alphabet"] = np.array([ord(character) for character in model.alphabet], dtype=np.int32)
    arrays["training_record"] = np.frombuffer(json.dumps(model.training_record).encode(), dtype=np.uint8)
    np.savez_compressed(path, **arrays)


def main(argv: list[str] | None = None) -> None:
    """Train anew and write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000, help="AdamW steps (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the windows (default %(default)s)")
    shipped = Path(text_transformer.__file__).with_name(CHECKPOINT)
    parser.add_argument("--out", type=Path, default=shipped, help="the checkpoint")
    options = parser.parse_args(argv)
    parts = load_text("topics")
    training, validation = parts.training, parts.validation
    begin = time.perf_counter()
    model = text_transformer.train(training, num_steps=options.steps, seed=options.seed)
    seconds = time.perf_counter() - begin
    save(model, options.out)
    model = text_transformer.load(options.out)
    model.training_record = {
        "text": f"pydoc_data.topics of Python {platform.python_version()}",
        "steps": options.steps,
        "seed": options.seed,
        "seconds": round(seconds),
        "training_loss": round(loss(model, training), 4),
        "validation_loss": round(loss(model, validation), 4),
    }
    save(model, options.out)
    print(json.dumps(model.training_record))


if __name__ == "__main__":
    main()

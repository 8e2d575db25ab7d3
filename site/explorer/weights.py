"""The weights of the package's text transformer as a script, half precision in base64, for the page of view 13.

``python site/explorer/weights.py`` prints it; `site/build.py` writes it beside the page, which alone loads it.
"""

import base64
import json

import numpy as np

from probtx_pyro.data import text_transformer

MOST = 96  # characters that the page reads: positions beyond are left out


def script() -> str:
    """Return ``globalThis.WEIGHTS = {alphabet, arrays: name -> (first byte, count), data}``."""
    model = text_transformer.load()
    arrays, parts, start = {}, [], 0
    for name, tensor in model.state_dict().items():
        own = (tensor[:MOST] if name == "positions.weight" else tensor).numpy()
        kept = own.astype("<f2")
        if not np.array_equal(kept.astype(own.dtype), own):
            raise ValueError(f"{name} is not in half precision")
        arrays[name] = (start, kept.size)
        parts.append(kept.tobytes())
        start += kept.nbytes
    data = base64.b64encode(b"".join(parts)).decode()
    return f"globalThis.WEIGHTS = {json.dumps({'alphabet': list(model.alphabet), 'arrays': arrays, 'data': data})};\n"


if __name__ == "__main__":
    print(script(), end="")

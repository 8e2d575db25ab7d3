"""The first calls of torch's elementary functions, made by one thread when `probtx_pyro.ops` is imported."""

import json
import subprocess
import sys

import pytest

RECORD = """
import json
import torch
from torch.utils._python_dispatch import TorchDispatchMode

calls = []

class Record(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if args and isinstance(args[0], torch.Tensor):
            calls.append((function.overloadpacket.__name__, str(args[0].dtype), args[0].numel()))
        return function(*args, **(kwargs or {}))

with Record():
    import probtx_pyro.ops
print(json.dumps(calls))
"""

# What aten/src/ATen/cpu/vml.h gives to oneMKL, but for what is exact: abs, trunc
VECTORIZED = {
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma"),
    *("log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh"),
}


@pytest.mark.slow
def test_importing_calls_each_function_first_on_one_number():
    """A call of many numbers may be the threads' first, which oneMKL can get wrong (seen in 9 of 81 fresh processes)."""
    said = subprocess.run([sys.executable, "-c", RECORD], capture_output=True, text=True, check=True).stdout
    calls = [tuple(call) for call in json.loads(said)]
    for name in VECTORIZED:
        for dtype in ("torch.float32", "torch.float64"):
            sizes = [size for called, kind, size in calls if (called, kind) == (name, dtype)]
            assert sizes[:1] == [1], f"the first call of {name} in {dtype}"

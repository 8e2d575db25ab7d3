"""Interleaved timings, so that a busy machine slows all candidates alike, and peak memory in fresh processes."""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

RESULTS = Path(__file__).parent / "results"


def rounds(candidates: dict[str, Callable[[], object]], repeats: int = 9) -> dict[str, list[float]]:
    """Seconds of each candidate in every one of ``repeats`` rounds in which each runs once; one round before them warms up."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for trial in range(repeats + 1):
        for name, run in candidates.items():
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            if trial:
                times[name].append(time.perf_counter() - start)
    return times


def medians(candidates: dict[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
    """Median seconds of each candidate over `rounds`."""
    return {name: statistics.median(seconds) for name, seconds in rounds(candidates, repeats).items()}


def ratio(times: dict[str, list[float]], name: str, reference: str) -> float:
    """Median over the rounds of one candidate's time over another's: what slows a whole round cancels."""
    return statistics.median(x / y for x, y in zip(times[name], times[reference], strict=True))


class Largest(TorchDispatchMode):
    """Remembers in ``numbers`` how many numbers the largest tensor has that is made inside it, in backward passes, too.

    A fused kernel is one operation to it: what the kernel allocates for itself it cannot see, only measured memory shows.
    """

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and look at what it returns (storage, so that an expanded view counts as what it holds)."""
        found = function(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return found


def synchronize() -> None:
    """Wait for the accelerator, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory(code: str, repeats: int = 5) -> float:
    """MiB that ``code`` adds to the peak resident memory of a fresh process, the median of ``repeats`` of them.

    It calls ``ready()`` once its inputs exist. The allocator's threshold for giving blocks back is fixed at 1 MiB: by default
    it moves, and what is measured would be partly the heap's fragments, different in every run.
    """
    program = f"""
def peak():  # of this program alone: ru_maxrss would remember the parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
def ready():
    global base
    open("/proc/self/clear_refs", "w").write("5")  # the peak so far is forgotten
    base = peak()
{code}
print(peak() - base)
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    runs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(repeats)
    ]
    return statistics.median(float(printed.split()[-1]) for printed in runs)


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        name = next(
            (line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")),
            name,
        )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # processes that wanted to run
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def as_json(found: object) -> str:
    """JSON in which a list of numbers takes one line."""
    text = json.dumps(found, indent=1)
    return re.sub(r"\[[^][{}\"]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


def write(name: str, rows: list[dict[str, object]]) -> Path:
    """Results as JSON, with the machine named."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(as_json({"machine": machine(), "rows": rows}))
    return path


def keep(path: Path, row: dict[str, Any]) -> None:
    """One run as JSON, which is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(as_json(row))
    unfinished.replace(path)

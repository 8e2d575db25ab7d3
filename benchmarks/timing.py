"""Interleaved timings, so that a busy machine slows all candidates alike, and peak memory in fresh processes."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def medians(candidates: dict[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
    """Median seconds of each candidate over ``repeats`` rounds in which every one runs once; one round warms up."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for trial in range(repeats + 1):
        for name, run in candidates.items():
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            if trial:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def synchronize() -> None:
    """Wait for the accelerator, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory(code: str) -> float:
    """MiB that ``code`` adds to the peak resident memory of a fresh process, median of five.

    It calls ``ready()`` once its inputs exist. The allocator's threshold for giving blocks back is fixed at 1 MiB: by default
    it moves, and what is measured would be partly the heap's fragments, different in every run.
    """
    program = f"""
def peak():  # of this program alone: ru_maxrss would remember the parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
def ready():
    global base
    base = peak()
{code}
print(peak() - base)
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    runs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(5)
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
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write(name: str, rows: list[dict[str, object]]) -> Path:
    """Results as JSON, with the machine named."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return path

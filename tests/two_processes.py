"""A test file run by two processes (gloo, a file as meeting place), and what each of them found."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist


@contextmanager
def meeting(rank, folder):
    """The process group of both, and an empty table; what the block puts into it is kept for `found_by`."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {}
    yield dist.group.WORLD, found
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.barrier()  # gloo aborts a process whose partner has left before its own threads are done
    dist.destroy_process_group()


def found_by(file, folder, limit):
    """Run a file twice, with rank and folder as its arguments, for ``limit`` seconds at most; return both tables."""
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests.parent), str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    running = [subprocess.Popen([sys.executable, file, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE) for rank in (0, 1)]  # fmt: skip
    try:
        errors = [each.communicate(timeout=limit)[1].decode() for each in running]
    finally:
        for each in running:
            each.kill()
    assert [each.returncode for each in running] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]

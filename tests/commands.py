"""The command line for tests: in processes of its own, where they kill, resume and distribute and none can hang the suite; and in this one."""

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from probtx_pyro import cli


def calls(folder, monkeypatch, capsys):
    """A function that runs a command in this process, in a folder: from its words and standard input to code, output and errors."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(folder)

    def call(words, given=""):
        capsys.readouterr()
        content = given if isinstance(given, bytes) else given.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        code = cli.main(shlex.split(words))
        return code, *capsys.readouterr()

    return call


class Training:
    """``probtx train`` in a process of its own, or in several under torchrun.

    What it prints goes to files beside its ``--out``: the end of a pipe comes only when the last process that holds it is gone,
    workers of a killed one, too.
    """

    def __init__(self, *words, processes=1):
        head = ["-m", "probtx_pyro"]
        if processes > 1:
            head = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone", *head]
        folder = words[words.index("--out") + 1]
        self.printed, self.errors = Path(f"{folder}.printed"), Path(f"{folder}.errors")
        with self.printed.open("w") as printed, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *head, "train", *words, "--no-progress"],
                env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=printed, stderr=errors,
            )  # fmt: skip

    def kill(self):
        self.process.kill()
        self.process.wait()

    def finished(self, limit=120):
        """What it printed; the test fails if it fails, or takes more than ``limit`` seconds."""
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # torchrun ends its workers, then itself
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
            pytest.fail(f"not done after {limit} s:\n{self.errors.read_text()}")
        assert self.process.returncode == 0, self.errors.read_text()
        return self.printed.read_text()

"""The one training loop: AdamW through Lightning Fabric, on one process or many,
with checkpoints that resume to the same numbers.

Every random choice is a function of the seed and the step: a batch is drawn whole on every process, which then takes
its share of the rows. So a run gives the same numbers on one process or on many, but for the order of sums (and
dropout, which every process draws for itself), and a run that was stopped continues its curve.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from probtx_pyro._lazy import install_advice
from probtx_pyro.apps._batches import BUDGET, channels_of
from probtx_pyro.data.files import write_bytes
from probtx_pyro.ops._progress import progress_bar
from probtx_pyro.train._task import Task

CHECKPOINT, RESULTS = "checkpoint.pt", "results.json"
"""Files in the folder of a run: where it stands, and its settings and scores."""
# what stands for Fabric where none is running
ONE_PROCESS = SimpleNamespace(world_size=1, global_rank=0, to_device=lambda x: x)


def train_task(
    task: Task,
    out: Path | None = None,
    *,
    resume: bool = False,
    device: str = "cpu",
    precision: str = "32-true",
    checkpoint_every: int = 200,
    stop_after: int | None = None,
    progress: bool | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Train the model of a task; under ``torchrun``, one share of every batch on each process.

    Parameters
    ----------
    task
        Task to train.
    out, resume, device, precision, checkpoint_every, stop_after, progress
        As in `train_language_model`.

    Returns
    -------
    The model, with the parameters that the task keeps, and the results, as in the results file.

    Raises
    ------
    ValueError
        A batch that the processes cannot share evenly, no steps between checkpoints, a checkpoint of other settings or
        another text, or one that is there without ``resume``; a loss, gradient or validation that is not finite, before
        the checkpoint is touched.
    """
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be 1 or more, not {checkpoint_every}")
    fabric, settings = _fabric(device, precision), task.settings
    if settings.batch % fabric.world_size:
        raise ValueError(
            f"batch {settings.batch} does not divide among {fabric.world_size} processes; choose a multiple"
        )
    model, optimizer = fabric.setup(
        task.model,
        torch.optim.AdamW(task.model.parameters(), settings.lr, (0.9, 0.98), weight_decay=settings.weight_decay),
    )
    task.ready(model.module)
    digest = hashlib.sha256("\0".join(task.texts).encode()).hexdigest()  # a checkpoint belongs to one text
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "settings": asdict(settings), "step": 0,
                             "tokens": task.tokens, "labels": task.labels, "tokenizer": task.tokenizer, "text": digest, "losses": [], "validation": [],
                             "kept": None, "seconds": 0.0}  # fmt: skip
    if out is not None:
        _prepare(fabric, out, state, resume)
    last = settings.num_steps if stop_after is None else min(stop_after, settings.num_steps)
    progress, begin = False if fabric.global_rank else progress, time.perf_counter() - state["seconds"]
    with progress_bar(label=task.label, progress=progress, total=settings.num_steps, initial=state["step"]) as bar:
        while state["step"] < last:
            state["losses"].append(_step(fabric, task, model, optimizer, state["step"]))
            state["step"] += 1
            if state["step"] % settings.validate_every == 0 or state["step"] == settings.num_steps:
                found = task.evaluate(model, task.validated, fabric)[task.metric]
                if not math.isfinite(found):
                    raise ValueError(f"the validation {task.metric} is not finite at step {state['step']}; lower lr")
                bar.set_postfix({task.metric: f"{found:.4g}"})
                state["validation"].append([state["step"], found])
                if task.keep_best and (state["kept"] is None or found > state["kept"]["score"]):
                    weights = {name: x.detach().cpu().clone() for name, x in model.module.state_dict().items()}
                    state["kept"] = {"step": state["step"], "score": found, "weights": weights}
            bar.update()
            state["seconds"] = time.perf_counter() - begin
            if out is not None and (state["step"] % checkpoint_every == 0 or state["step"] == last):
                _save(fabric, out / CHECKPOINT, state)
    if state["kept"] is not None:
        model.module.load_state_dict(state["kept"]["weights"])
    results = _results(task, state, fabric, precision)
    if state["step"] == settings.num_steps and task.parts:
        score = task.score or task.evaluate
        results["metrics"] = {part: dict(score(model, part, fabric)) for part in task.parts}
    if out is not None and fabric.is_global_zero:
        write_bytes(out / RESULTS, (json.dumps(results, indent=1) + "\n").encode())
    return model.module, results


def _fabric(device: str, precision: Any) -> Any:
    try:
        from lightning.fabric import Fabric
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"training needs Lightning: {install_advice('train')}") from None
    import logging

    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    world, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    kind, _, index = device.partition(":")
    devices = [int(index)] if index and world == 1 and kind != "cpu" else local
    strategy = "ddp" if world > 1 else "auto"
    nodes = world // local
    fabric = Fabric(accelerator=kind, devices=devices, num_nodes=nodes, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def summed(fabric: Any, x: Tensor) -> Tensor:
    """Return the sum over the processes, on the CPU.

    Parameters
    ----------
    fabric
        Lightning Fabric of the run.
    x
        Tensor of this process.
    """
    return x if fabric.world_size == 1 else fabric.all_reduce(fabric.to_device(x), reduce_op="sum").cpu()


def _step(fabric: Any, task: Task, model: Any, optimizer: Any, step: int) -> float:
    """One AdamW step; the loss of a target of the whole batch, before it."""
    settings, (tensors, targets) = task.settings, task.batch(step)
    own = [x.chunk(fabric.world_size)[fabric.global_rank] for x in tensors]
    parts = divided(own, channels_of(model.module))
    if settings.dropout:
        torch.manual_seed((settings.seed * 1_000_003 + step) * fabric.world_size + fabric.global_rank)
    for group in optimizer.param_groups:
        group["lr"] = settings.rate(step)
    optimizer.zero_grad()
    loss = torch.zeros(())
    for i, part in enumerate(parts, 1):
        with fabric.no_backward_sync(model) if i < len(parts) else nullcontext():
            # the mean over the processes is that over targets
            value = task.loss(model, *map(fabric.to_device, part)) * fabric.world_size / targets
            fabric.backward(value - task.log_prior_density(model.module) if i == len(parts) else value)
        loss = loss.to(value) + value.detach()
    norm = fabric.clip_gradients(model, optimizer, max_norm=settings.clip, error_if_nonfinite=False)
    mean = float(fabric.all_reduce(loss, reduce_op="mean"))
    for name, number in (("loss", mean), ("gradient", float(norm))):
        if not math.isfinite(number):
            raise ValueError(f"the {name} is not finite at step {step + 1}; lower lr")
    optimizer.step()
    return mean


def divided(tensors: Sequence[Tensor], channels: int) -> list[tuple[Tensor, ...]]:
    """Return the rows of a batch in parts whose pairs of words are within `BUDGET`, or of one row.

    Parameters
    ----------
    tensors
        Each (row, word, ...).
    channels
        Of `channels_of`.
    """
    rows, longest = len(tensors[0]), max(x.shape[1] for x in tensors)
    size = max(1, BUDGET // (longest**2 * channels))
    return list(zip(*(x.chunk(math.ceil(rows / size)) for x in tensors), strict=True))


def _prepare(fabric: Any, out: Path, state: dict[str, Any], resume: bool) -> None:
    """Make the folder; with ``resume`` fill ``state`` from the checkpoint in it."""
    path = out / CHECKPOINT
    out.mkdir(parents=True, exist_ok=True)
    if path.exists() and not resume:
        raise ValueError(f"{path} is the checkpoint of an earlier run; resume it, or choose another folder")
    fabric.barrier()
    if not resume:
        return
    if not path.exists():
        raise ValueError(f"there is no {path} to resume; start without resume")
    try:
        saved = fabric.load(path)
    except Exception as error:  # torch, zipfile and pickle each have errors of their own for a damaged file
        raise ValueError(f"{path} cannot be read ({type(error).__name__}); remove it and start again") from None
    asked, had = (json.loads(json.dumps(of["settings"])) for of in (state, saved))  # where (2, 3) and [2, 3] are equal
    changed = [name for name, value in asked.items() if had.get(name) != value and name != "num_steps"]
    if changed or saved.get("text") != state["text"]:
        what = ", ".join(changed) or "text"
        raise ValueError(f"{path} is of a run with another {what}; resume with the same, or choose another folder")
    if asked["num_steps"] < saved["step"]:
        raise ValueError(f"num_steps is {asked['num_steps']}, and {saved['step']} are done; give more")
    for name in ("model", "optimizer"):
        state[name].load_state_dict(saved.pop(name))
    state.update(saved, settings=state["settings"])


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give the block another name to write under, whole or not at all: after an error nothing of it stays.

    Parameters
    ----------
    path
        File that the block moves it to.

    Raises
    ------
    ValueError
        It cannot be written, as on a full disk.
    """
    new = path.with_suffix(".new")
    try:
        yield new
    except BaseException as error:  # Ctrl-C, too
        new.unlink(missing_ok=True)
        if isinstance(error, (OSError, RuntimeError)):  # torch has no class of its own for a file
            why = str(error).splitlines()[0]
            raise ValueError(f"{path} cannot be written ({why}); what was there before stays") from None
        raise


def _save(fabric: Any, path: Path, state: dict[str, Any]) -> None:
    """Write the checkpoint atomically: a run killed while it writes keeps the one before."""
    with new_file(path) as new:
        fabric.save(new, state)
    if fabric.is_global_zero:
        new.replace(path)
    fabric.barrier()


def _results(task: Task, state: dict[str, Any], fabric: Any, precision: str) -> dict[str, Any]:
    validation, kept = state["validation"], state["kept"]
    return {
        "settings": state["settings"],
        "vocabulary": len(state["tokens"]),
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "steps": state["step"],
        **({"kept": kept["step"]} if kept else {}),
        task.metric: kept["score"] if kept else validation[-1][1] if validation else None,
        "validation": validation,
        "unknown": {part: round(share, 6) for part, share in task.unknown.items()},
        "losses": [round(x, 6) for x in state["losses"]],
        "seconds": round(state["seconds"], 1),
        "machine": {
            "device": torch.cuda.get_device_name() if fabric.device.type == "cuda" else "cpu",
            "processes": fabric.world_size,
            "threads": torch.get_num_threads(),
            "precision": precision,
            "torch": torch.__version__,
        },
    }

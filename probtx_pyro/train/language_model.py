"""Causal language models with any attention layer, trained by AdamW through Lightning Fabric.

Every random choice is a function of the seed and the step: a batch is drawn whole on every process, which then takes its share of
the rows. So a run gives the same numbers on one process or on many, but for the order of sums (and dropout, which every process
draws for itself), and a run that was stopped continues its curve.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm

from probtx_pyro import nn
from probtx_pyro.data.text import Text, Vocabulary

ATTENTIONS = {
    "softmax": nn.SoftmaxAttention,
    "gaussian": nn.GaussianMixtureAttention,
    "gaussian-keys": nn.GaussianKeysAttention,
    "linear-keys": nn.LinearKeysAttention,
}
CHECKPOINT, RESULTS = "checkpoint.pt", "results.json"


@dataclass(frozen=True)
class Settings:
    """What a run is; two runs with equal settings and text give equal numbers.

    attention, options: a name of `ATTENTIONS`, and further arguments of that layer.
    level, rarest: ``"char"`` or ``"word"`` tokens, and how often a token must occur to be in the vocabulary.
    num_steps, batch, context: AdamW steps, rows of a batch over all processes, tokens of a row.
    width, heads, head_dim, layers, dropout: of the transformer; ``head_dim=None`` is ``width // heads``.
    lr, warmup, weight_decay, clip: peak learning rate, the share of the steps that it rises over (it then falls by a cosine to a
        tenth), AdamW's weight decay, largest norm of a gradient.
    validate_every: steps between validations; the last step validates in any case.
    map_training: adds the log density of the layers' own parameters under `standard_priors` to the objective.
    seed: of weights, batches and dropout.
    """

    attention: str = "softmax"
    options: Mapping[str, Any] = field(default_factory=dict)
    level: str = "char"
    rarest: int = 1
    num_steps: int = 2000
    batch: int = 32
    context: int = 128
    width: int = 128
    heads: int = 8
    head_dim: int | None = None
    layers: int = 4
    dropout: float = 0.0
    lr: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.05
    clip: float = 1.0
    validate_every: int = 500
    map_training: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, not {self.attention!r}")
        for name in ("num_steps", "batch", "context", "width", "heads", "layers", "validate_every", "rarest"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, not {self.dropout}")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")

    def model(self, vocabulary: int) -> nn.TransformerLM:
        """The untrained model, the same for the same seed; the random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return nn.TransformerLM(
                vocabulary, self.context, width=self.width, num_heads=self.heads, num_layers=self.layers,
                attention=ATTENTIONS[self.attention], dropout=self.dropout, head_dim=self.head_dim, **self.options,
            )  # fmt: skip

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        rise = max(1, round(self.warmup * self.num_steps))
        if step < rise:
            return self.lr * (step + 1) / rise
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * (step - rise) / max(1, self.num_steps - rise)))


def standard_priors(layer: nn.Attention) -> dict[str, Any]:
    """Weak priors on whatever a layer learns beyond its projections, their modes where training starts."""
    start = layer.head_dim**-0.5
    priors = {
        "key_precision": Gamma(2.0, 1.0 / start),
        "strength_keys": Gamma(2.0, 1.0),
        "strength_key_precision": Gamma(2.0, 1.0),
        "component_weights": Dirichlet(layer.out_proj.weight.new_full((getattr(layer, "num_components", 1),), 2.0)),
        "shifts": Normal(0.0, 2 * start),
    }
    return {name: priors[name] for name in layer.constrained() if name in priors}


class LanguageModelRun(NamedTuple):
    """A finished run.

    model, vocabulary: the trained model (on the device it was trained on) and its tokens.
    results: settings, ``losses`` (nats a token at every step), ``validation`` ([step, perplexity] pairs), ``perplexity`` (the
        last), ``parameters``, ``seconds`` and the machine; as in the results file.
    """

    model: nn.TransformerLM
    vocabulary: Vocabulary
    results: dict[str, Any]


def train_language_model(
    settings: Settings,
    text: Text,
    out: Path | None = None,
    *,
    resume: bool = False,
    device: str = "cpu",
    precision: str = "32-true",
    checkpoint_every: int = 200,
    stop_after: int | None = None,
    progress: bool | None = None,
) -> LanguageModelRun:
    """Train a language model; under ``torchrun``, one share of every batch on each process.

    Parameters
    ----------
    settings, text
        What to train, and on what.
    out
        Folder for ``checkpoint.pt`` (every ``checkpoint_every`` steps and at the end) and ``results.json``; None writes nothing.
    resume
        Go on from the checkpoint in ``out``, with the same settings.
    device
        ``"cpu"`` or ``"cuda"``; with several processes each takes a device of its own.
    precision
        As Lightning Fabric names it: ``"32-true"``, ``"bf16-mixed"``, ...
    stop_after
        Stop (with a checkpoint) when this step is done, as if interrupted.
    progress
        As `probtx_pyro.ops.fixed_point`.

    Raises
    ------
    ValueError
        A text shorter than a row, a batch that the processes cannot share evenly, a checkpoint of other settings, or one that
        is there without ``resume``.
    """
    fabric = _fabric(device, precision)
    vocabulary = Vocabulary.of(text.training, settings.level, settings.rarest)
    training, validation = (vocabulary.encode(part) for part in text)
    for name, tokens in (("training", training), ("validation", validation)):
        if len(tokens) <= settings.context:
            raise ValueError(
                f"the {name} text has {len(tokens)} tokens; a row needs {settings.context + 1} (context + 1)"
            )
    if settings.batch % fabric.world_size:
        raise ValueError(
            f"batch {settings.batch} does not divide among {fabric.world_size} processes; choose a multiple"
        )
    model = settings.model(len(vocabulary.tokens))
    parameters = sum(p.numel() for p in model.parameters())
    model, optimizer = fabric.setup(
        model, torch.optim.AdamW(model.parameters(), settings.lr, (0.9, 0.98), weight_decay=settings.weight_decay)
    )
    for layer in model.module.modules() if settings.map_training else ():
        if isinstance(layer, nn.Attention):
            layer.priors = standard_priors(layer)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "settings": asdict(settings), "step": 0,
                             "tokens": vocabulary.tokens, "text": digest(text), "losses": [], "validation": [], "seconds": 0.0}  # fmt: skip
    if out is not None:
        _prepare(fabric, out, state, resume)
    last = settings.num_steps if stop_after is None else min(stop_after, settings.num_steps)
    delay = {
        "delay": 0 if progress else 1,
        "disable": True if fabric.global_rank else (None if progress is None else not progress),
    }
    saved, begin = state["seconds"], time.perf_counter()
    with tqdm(total=settings.num_steps, initial=state["step"], desc=settings.attention, leave=False, **delay) as bar:
        while state["step"] < last:
            state["losses"].append(_step(fabric, model, optimizer, training, settings, state["step"]))
            state["step"] += 1
            if state["step"] % settings.validate_every == 0 or state["step"] == settings.num_steps:
                found = perplexity(model, validation, settings.context, fabric=fabric)
                state["validation"].append([state["step"], found])
                bar.set_postfix(perplexity=f"{found:.2f}")
            bar.update()
            state["seconds"] = saved + time.perf_counter() - begin
            if out is not None and (state["step"] % checkpoint_every == 0 or state["step"] == last):
                _save(fabric, out / CHECKPOINT, state)
    results = _results(state, parameters, fabric, precision)
    if out is not None and fabric.is_global_zero:
        (out / RESULTS).write_text(json.dumps(results, indent=1) + "\n")
    return LanguageModelRun(model.module, vocabulary, results)


def _fabric(device: str, precision: Any) -> Any:
    try:
        from lightning.fabric import Fabric
    except ModuleNotFoundError:
        raise ModuleNotFoundError("training needs Lightning: pip install 'probtx_pyro[train]'") from None
    import logging

    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    world, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    kind, _, index = device.partition(":")
    devices = [int(index)] if index and world == 1 and kind != "cpu" else local
    strategy = "ddp" if world > 1 else "auto"
    fabric = Fabric(
        accelerator=kind,
        devices=devices,
        num_nodes=world // local,
        strategy=strategy,
        precision=precision,
    )
    fabric.launch()
    return fabric


def _step(fabric: Any, model: Any, optimizer: Any, tokens: Tensor, settings: Settings, step: int) -> float:
    """One AdamW step; the loss of the whole batch, before it."""
    draw = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    starts = torch.randint(len(tokens) - settings.context, (settings.batch, 1), generator=draw)
    own = starts.chunk(fabric.world_size)[fabric.global_rank]
    rows = fabric.to_device(tokens[own + torch.arange(settings.context + 1)])
    if settings.dropout:
        torch.manual_seed((settings.seed * 1_000_003 + step) * fabric.world_size + fabric.global_rank)
    for group in optimizer.param_groups:
        group["lr"] = settings.rate(step)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    penalty = nn.log_prior(model.module) / len(tokens)  # the objective is Σ log p(token) + log p(parameters), a token
    fabric.backward(loss - penalty)
    fabric.clip_gradients(model, optimizer, max_norm=settings.clip)
    optimizer.step()
    return float(fabric.all_reduce(loss.detach(), reduce_op="mean"))


@torch.no_grad()
def perplexity(model: Any, tokens: Tensor, context: int, *, fabric: Any = None, batch: int = 64) -> float:
    """``exp`` of the mean negative log probability of a token, over rows of ``context`` tokens side by side.

    Shapes: tokens (token,); the first of each row is given, and what does not fill a row is left out.
    """
    rows = tokens[: (len(tokens) - 1) // context * context + 1].unfold(0, context + 1, context)
    own = rows if fabric is None else rows[fabric.global_rank :: fabric.world_size]
    training, total = model.training, torch.zeros((), dtype=torch.float64)
    model.eval()
    for part in own.split(batch):
        part = part if fabric is None else fabric.to_device(part)
        logits = model(part[:, :-1]).flatten(0, 1).float()
        total += F.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum").double().cpu()
    model.train(training)
    total = total if fabric is None else fabric.all_reduce(total, reduce_op="sum")
    return math.exp(float(total) / (len(rows) * context))


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
    changed = [name for name, value in state["settings"].items() if saved["settings"].get(name) != value]
    if changed or saved.get("text") != state["text"]:
        what = ", ".join(changed) or "text"
        raise ValueError(f"{path} is of a run with another {what}; resume with the same, or choose another folder")
    for name in ("model", "optimizer"):
        state[name].load_state_dict(saved.pop(name))
    state.update(saved)


def digest(text: Text) -> str:
    """SHA-256 of both parts: a checkpoint belongs to one text."""
    return hashlib.sha256("\0".join(text).encode()).hexdigest()


def _save(fabric: Any, path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all: a run killed while it writes keeps the checkpoint before."""
    fabric.save(path.with_suffix(".new"), state)
    if fabric.is_global_zero:
        path.with_suffix(".new").replace(path)
    fabric.barrier()


def _results(state: dict[str, Any], parameters: int, fabric: Any, precision: str) -> dict[str, Any]:
    validation = state["validation"]
    return {
        "settings": state["settings"],
        "vocabulary": len(state["tokens"]),
        "parameters": parameters,
        "steps": state["step"],
        "perplexity": validation[-1][1] if validation else None,
        "validation": validation,
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


__all__ = ["ATTENTIONS", "LanguageModelRun", "Settings", "perplexity", "train_language_model"]

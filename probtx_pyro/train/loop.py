"""The one training loop: AdamW through Lightning Fabric, on one process or many,
with checkpoints that resume to the same numbers.

Every random choice is a function of the seed and the step: a batch is drawn whole on every process, which then takes
its share of the rows. So a run gives the same numbers on one process or on many, but for the order of sums (and
dropout, which every process draws for itself), and a run that was stopped continues its curve.
"""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from probtx_pyro._lazy import install_advice
from probtx_pyro.apps._batches import BUDGET, channels_of
from probtx_pyro.data.files import write_bytes
from probtx_pyro.data.text import Vocabulary
from probtx_pyro.data.tokenizer import Tokenizer
from probtx_pyro.nn import ATTENTIONS, ENCODERS
from probtx_pyro.nn.tasks import own_numbers
from probtx_pyro.ops._progress import computed_with, progress_bar


class Processes(Protocol):
    """Part of Lightning's Fabric that answers and scores need: which process this is, of how many."""

    world_size: int
    global_rank: int

    def to_device(self, obj: Tensor) -> Tensor:
        """The tensor on the device of the process."""

    def all_reduce(self, data: Tensor, *, reduce_op: str) -> Tensor:
        """The tensors of all processes, reduced."""


Model = TypeVar("Model", bound=nn.Module)
Tokens = TypeVar("Tokens", Vocabulary, Tokenizer)
CHECKPOINT, RESULTS = "checkpoint.pt", "results.json"
"""Files in the folder of a run: where it stands, and its settings and scores."""
# what stands for Fabric where none is running
ONE_PROCESS: Any = SimpleNamespace(world_size=1, global_rank=0, to_device=lambda x: x)
# multiplications of a product from which threads are worth it: some 5 ms of a core, as long as a thread may wait for
# its turn on a core that another program uses; smaller products, of which there are many, wait as long each
WORTH_THREADS = 2**28


# of a setting: when it holds, and what it must be in words; or the names that it chooses among
Rule = tuple[Callable[[Any], bool], str] | Mapping[str, Any]
Batch = tuple[tuple[Tensor, ...], int]
COUNT: Rule = (lambda value: value >= 1, "1 or more")


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Settings that the runs of all tasks have; two runs with equal settings and data give equal numbers.

    num_steps, batch: AdamW steps, rows of a batch over all processes.
    width, dropout: channels of the model, dropout rate.
    lr, warmup, weight_decay, clip: peak learning rate, the share of the steps that it rises over (it then falls by a
        cosine to a tenth), AdamW's weight decay, largest norm of a gradient.
    validate_every: steps between validations; the last step validates in any case.
    seed: of weights, batches and dropout.

    ``RULES`` has what the settings of a class must be.
    """

    num_steps: int = 2000
    batch: int = 32
    width: int = 128
    dropout: float = 0.0
    lr: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.05
    clip: float = 1.0
    validate_every: int = 500
    seed: int = 0

    RULES: ClassVar[Mapping[str, Rule]] = {
        **dict.fromkeys(("num_steps", "batch", "width", "validate_every"), COUNT),
        "dropout": (lambda value: 0 <= value < 1, "at least 0 and less than 1"),
        **dict.fromkeys(("lr", "clip"), (lambda value: value > 0, "positive")),
    }

    def __post_init__(self) -> None:
        for name, rule in self.RULES.items():
            holds, words = rule if isinstance(rule, tuple) else (rule.__contains__, f"one of {', '.join(rule)}")
            if not holds(getattr(self, name)):
                raise ValueError(f"{name} must be {words}, not {getattr(self, name)!r}")

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        rise = max(1, round(self.warmup * self.num_steps))
        if step < rise:
            return self.lr * (step + 1) / rise
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * (step - rise) / max(1, self.num_steps - rise)))

    def columns(self, model: nn.Module) -> int:
        """Columns of the largest matrix that a layer of the model multiplies the tokens of a batch with."""
        return 4 * self.width

    def draw(self, step: int) -> torch.Generator:
        """The random numbers of a step."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + step)


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(LoopSettings):
    """Settings of the tasks on words.

    encoder, options: a name of `nn.ENCODERS`, and further arguments of it; its width is ``width``.
    context: most words of a sentence, for an encoder with positions.
    rarest: how often a word must occur in training to be known.
    """

    encoder: str = "crf"
    options: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 5e-3
    context: int = 256
    rarest: int = 1

    RULES = {"encoder": ENCODERS, **LoopSettings.RULES, **dict.fromkeys(("context", "rarest"), COUNT)}

    def columns(self, model: nn.Module) -> int:
        """Columns of the largest matrix that a layer or sweep of the encoder multiplies the words of a batch with."""
        return ENCODERS[self.encoder].columns(model.encoder)

    def with_head(self, head: Callable[..., Model], vocabulary: int, root: bool = False, **parts: Any) -> Model:
        """Return the untrained model, the same for the same seed; the random state is left as it was.

        Parameters
        ----------
        head
            The model on the encoder: `nn.WordTagger`, `nn.MaskedLanguageModel` or `nn.TextClassifier`.
        vocabulary
            Number of words.
        root
            Whether the encoder needs a root, see `nn.Encoder`.
        parts
            Further arguments of ``head``.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            kind = ENCODERS[self.encoder]
            encoder = kind.build(self.width, context=self.context, dropout=self.dropout, root=root, **self.options)
            return head(vocabulary, encoder, self.width, dropout=self.dropout, start=kind.start, **parts)


@dataclass(frozen=True, kw_only=True)
class TransformerSettings(LoopSettings):
    """Settings of a language or translation model.

    attention, options: a name of `nn.ATTENTIONS`, and further arguments of that layer.
    context: most tokens of a row.
    heads, head_dim, layers: of the transformer; ``head_dim=None`` is ``width // heads``.

    ``KIND`` is the class of the model.
    """

    attention: str = "softmax"
    options: Mapping[str, Any] = field(default_factory=dict)
    context: int = 128
    heads: int = 8
    head_dim: int | None = None
    layers: int = 4

    KIND: ClassVar[Callable[..., nn.Module]]
    RULES = {"attention": ATTENTIONS, **LoopSettings.RULES, **dict.fromkeys(("context", "heads", "layers"), COUNT)}

    def model(self, tokens: int, labels: Sequence[int] = ()) -> Any:
        """The untrained model, the same for the same seed; the random state is left as it was."""
        layers: Any = self.RULES["attention"]
        sizes = {"width": self.width, "num_heads": self.heads, "head_dim": self.head_dim, "num_layers": self.layers}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            how = {"attention": layers[self.attention], "dropout": self.dropout, **self.options}
            return type(self).KIND(tokens, self.context, **sizes, **how)


@dataclass(frozen=True)
class Task:
    """Parts of a task that the loop needs.

    label: on the progress bar.
    settings, model: the settings, and the untrained model.
    texts: what the run reads; a checkpoint has its digest.
    vocabulary, labels: the tokens that the model knows, and the labels of each of its outputs, kept in the checkpoint.
    words: mean number of words of a row.
    batch: from a step to its batch, as drawn, whole: tensors, the first axis of each the rows, which the processes
        share; and how many predictions the loss is summed over. A function of the seed and the step.
    loss: from the model and a share of the tensors of a batch, the sum of the losses of its targets.
    evaluate: from the model, the name of a part of the data and Fabric, the metrics of the whole part.
    metric, validated: the names of the metric that is validated by, and of the part.
    keep_best: keeps the parameters of the validation with the largest metric, else the last.
    score: in the place of ``evaluate`` when the run is done, where it has metrics that take too long to validate by.
    ready: called with the model when it is on its device.
    log_prior_density: of the parameters, divided by the number of targets in the training part; added to the objective.
    unknown: share of the words of each other part of the data that the training part does not have; the metrics of
        these parts under the kept parameters go to the results when the run is done.
    """

    label: str
    settings: LoopSettings
    model: nn.Module
    texts: Iterable[str]
    vocabulary: Vocabulary | Tokenizer
    words: float
    batch: Callable[[int], Batch]
    loss: Callable[..., Tensor]
    evaluate: Callable[[nn.Module, str, Processes], Mapping[str, float]]
    metric: str = "perplexity"
    validated: str = "dev"
    keep_best: bool = False
    labels: tuple[tuple[str, ...], ...] = ()
    score: Callable[[Any, str, Processes], Mapping[str, float | str]] | None = None
    ready: Callable[[nn.Module], None] = lambda model: None
    log_prior_density: Callable[[nn.Module], Tensor | float] = lambda model: 0.0
    unknown: Mapping[str, float] = field(default_factory=dict)


class RunOptions(TypedDict, total=False):
    """Options of a run that every training function passes on to the loop; `train_language_model` explains them."""

    resume: bool
    device: str
    precision: str
    checkpoint_every: int
    stop_after: int | None
    progress: bool | None
    threads: int | None
    command: Mapping[str, object]


class Run(NamedTuple, Generic[Model, Tokens]):
    """A trained model, from the function that trained it or from `load_run`.

    model: with the parameters that the run keeps; from `load_run` in evaluation mode.
    vocabulary: its tokens, a `data.Vocabulary`; of a translation model the `data.Tokenizer` of both languages.
    labels: labels of each column, in the order of the logits: tags of words, or the one column of categories of texts;
    none of a language or translation model.
    settings: settings of the run.
    results: settings, ``losses`` (nats a target at every step), ``validation`` ([step, metric] pairs), ``kept`` (the
    step of the best, of a tagger or classifier), ``metrics`` of the parts that are not trained on, ``parameters``,
    ``seconds`` and the machine; as in the results file. Empty where `load_run` finds none.
    """

    model: Model
    vocabulary: Tokens
    labels: tuple[tuple[str, ...], ...]
    settings: LoopSettings
    results: dict[str, Any]


def require(name: str, given: object, kind: type | tuple[type, ...], repair: str) -> None:
    """Refuse an argument of another class.

    Parameters
    ----------
    name, given
        Of the argument.
    kind
        Its class, or classes.
    repair
        What to give in its place.

    Raises
    ------
    ValueError
        It is of another class.
    """
    if not isinstance(given, kind):
        raise ValueError(f"{name} is of the class {type(given).__name__}; give {repair}")


def threads_for(
    given: int | None, settings: LoopSettings, model: nn.Module, words: float, rows: int | None = None
) -> int | None:
    """Return the number of CPU threads: one where the largest product of a batch is too small for more.

    Parameters
    ----------
    given
        Number that is asked for; with None this rule chooses.
    settings, model
        Of the run.
    words
        Mean number of words of a row.
    rows
        Rows of a batch; None are those of training.

    Returns
    -------
    The number; None leaves torch's choice.
    """
    multiplications = (rows or settings.batch) * words * settings.width * settings.columns(model)
    return 1 if given is None and multiplications < WORTH_THREADS else given


def train_task(
    task: Task,
    out: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    device: str = "cpu",
    precision: str = "32-true",
    checkpoint_every: int = 200,
    stop_after: int | None = None,
    progress: bool | None = None,
    threads: int | None = None,
    command: Mapping[str, object] | None = None,
) -> Run[Any, Any]:
    """Train the model of a task; under ``torchrun``, one share of every batch on each process.

    Parameters
    ----------
    task
        Task to train.
    out, resume, device, precision, checkpoint_every, stop_after, progress, threads, command
        As in `train_language_model`.

    Returns
    -------
    The run; its model has the parameters that the task keeps, its results are those of the results file.

    Raises
    ------
    ValueError
        A batch that the processes cannot share evenly, float16, no steps between checkpoints, a checkpoint of other
        settings or another text, or one that is there without ``resume``; a loss, gradient or validation that is not
        finite, before the checkpoint is touched.
    """
    if checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be 1 or more, not {checkpoint_every}")
    fabric, settings = _fabric(device, precision), task.settings
    if settings.batch % fabric.world_size:
        raise ValueError(f"batch {settings.batch} does not divide among {fabric.world_size} processes")
    own, betas = task.model.parameters(), (0.9, 0.98)  # fused is one call for all parameters, on a CPU too
    adam = torch.optim.AdamW(own, settings.lr, betas, weight_decay=settings.weight_decay, fused=True)
    model, optimizer = fabric.setup(task.model, adam)
    task.ready(model.module)
    kept_too = {"settings": asdict(settings), "command": dict(command or {}), "labels": task.labels}
    digest = hashlib.sha256("\0".join(task.texts).encode()).hexdigest()  # a checkpoint belongs to one text
    done = {"step": 0, "losses": [], "validation": [], "kept": None, "seconds": 0.0}
    state = {"model": model, "optimizer": optimizer, **kept_too, **tokens_of(task.vocabulary), "text": digest, **done}
    folder = None if out is None else Path(out)
    if folder is not None:
        _prepare(fabric, folder, state, resume)
    last = settings.num_steps if stop_after is None else min(stop_after, settings.num_steps)
    progress, begin = False if fabric.global_rank else progress, time.perf_counter() - state["seconds"]
    with (
        computed_with(threads_for(threads, settings, model.module, task.words)),
        progress_bar(label=task.label, progress=progress, total=settings.num_steps, initial=state["step"]) as bar,
    ):
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
            if folder is not None and (state["step"] % checkpoint_every == 0 or state["step"] == last):
                _save(fabric, folder / CHECKPOINT, state)
        if state["kept"] is not None:
            model.module.load_state_dict(state["kept"]["weights"])
        results = _results(task, state, fabric, precision)
        if state["step"] == settings.num_steps and task.unknown:
            score = task.score or task.evaluate
            results["metrics"] = {part: dict(score(model, part, fabric)) for part in task.unknown}
    if folder is not None and fabric.is_global_zero:
        write_bytes(folder / RESULTS, (json.dumps(results, indent=1) + "\n").encode())
    return Run(model.module, task.vocabulary, task.labels, settings, results)


def tokens_of(vocabulary: Vocabulary | Tokenizer) -> dict[str, object]:
    """Return what a checkpoint keeps of a vocabulary: its tokens, and the text of a tokenizer."""
    text = vocabulary.text if isinstance(vocabulary, Tokenizer) else None
    return {"tokens": vocabulary.tokens, "tokenizer": text}


def _fabric(device: str, precision: Any) -> Any:
    if str(precision).startswith("16"):
        raise ValueError(f"precision must not be {precision!r}, in which gradients overflow; give 'bf16-mixed'")
    try:
        from lightning.fabric import Fabric
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"training needs Lightning: {install_advice('train')}") from None
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    world, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    kind, _, index = device.partition(":")
    devices = [int(index)] if index and world == 1 and kind != "cpu" else local
    strategy = "ddp" if world > 1 else "auto"
    nodes = world // local
    fabric = Fabric(accelerator=kind, devices=devices, num_nodes=nodes, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def summed(fabric: Processes, x: Tensor) -> Tensor:
    """Return the sum over the processes, on the CPU.

    Parameters
    ----------
    fabric
        Lightning Fabric of the run.
    x
        Tensor of this process.
    """
    return x if fabric.world_size == 1 else fabric.all_reduce(fabric.to_device(x), reduce_op="sum").cpu()


def _step(fabric: Any, task: Task, model: Any, optimizer: torch.optim.Optimizer, step: int) -> float:
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


def read_checkpoint(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Return the state that a run has kept.

    Parameters
    ----------
    path
        File in the folder of the run.
    device
        Device of the tensors.

    Raises
    ------
    ValueError
        It is not there, or cannot be read.
    """
    if not path.exists():
        raise ValueError(f"there is no {path}; give the folder of a run of probtx train")
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch, zipfile and pickle each have errors of their own for a damaged file
        raise ValueError(f"{path} cannot be read ({type(error).__name__}); remove it and train again") from None


def _prepare(fabric: Any, out: Path, state: dict[str, Any], resume: bool) -> None:
    """Make the folder; with ``resume`` fill ``state`` from the checkpoint in it."""
    path = out / CHECKPOINT
    out.mkdir(parents=True, exist_ok=True)
    if path.exists() and not resume:
        raise ValueError(f"{path} is the checkpoint of an earlier run; resume it, or choose another folder")
    fabric.barrier()
    if not resume:
        return
    saved = read_checkpoint(path)
    asked, had = (json.loads(json.dumps(of["settings"])) for of in (state, saved))  # where (2, 3) and [2, 3] are equal
    changed = [name for name, value in asked.items() if had.get(name) != value and name != "num_steps"]
    if changed or saved.get("text") != state["text"]:
        what = ", ".join(changed) or "text"
        raise ValueError(f"{path} is of a run with another {what}; resume with the same, or choose another folder")
    if asked["num_steps"] < saved["step"]:
        raise ValueError(f"num_steps is {asked['num_steps']}, and {saved['step']} are done; give more")
    for name in ("model", "optimizer"):
        state[name].load_state_dict(saved.pop(name))
    state.update(saved, settings=state["settings"], command=state["command"])


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
        "vocabulary": len(task.vocabulary.tokens),
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


def unknown_share(rows: Sequence[Tensor]) -> float:
    """Share of the words of all rows that are unknown, from their numbers."""
    return float(torch.cat([own_numbers(row, 1) for row in rows]).eq(0).double().mean())

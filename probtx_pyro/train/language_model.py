"""Causal language models with any attention layer."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from torch import Tensor
from torch.nn import functional as F

from probtx_pyro import nn
from probtx_pyro.data import Text, Vocabulary
from probtx_pyro.train import loop


@dataclass(frozen=True, kw_only=True)
class LanguageModelSettings(loop.TransformerSettings):
    """Settings of a causal language model, beside those of every run and of every transformer.

    level, rarest: ``"char"`` or ``"word"`` tokens, and how often a token must occur to be in the vocabulary.
    map_training: adds the log density of the layers' own parameters under `standard_priors` to the objective.
    """

    level: str = "char"
    rarest: int = 1
    map_training: bool = False

    KIND = nn.TransformerLM
    RULES = {**loop.TransformerSettings.RULES, "rarest": loop.COUNT}


def standard_priors(layer: nn.Attention) -> dict[str, torch.distributions.Distribution]:
    """Weak priors on whatever a layer learns beyond its projections, their modes where training starts."""
    start = layer.head_dim**-0.5
    priors = {
        "key_precision": Gamma(2.0, 1.0 / start),
        "beta": Gamma(2.0, 1.0 / start),
        "strength_keys": Gamma(2.0, 1.0),
        "strength_key_precision": Gamma(2.0, 1.0),
        "component_weights": Dirichlet(layer.out_proj.weight.new_full((getattr(layer, "num_components", 1),), 2.0)),
        "shifts": Normal(0.0, 2 * start),
        "background_weight": Gamma(2.0, 1.0),
        "background_precision": Gamma(2.0, 4.0),
        "background_value": Normal(0.0, 1.0),
    }
    return {name: priors[name] for name in layer.constrained() if name in priors}


def train_language_model(
    settings: LanguageModelSettings,
    text: Text,
    out: str | os.PathLike[str] | None = None,
    **run: Unpack[loop.RunOptions],
) -> loop.Run[nn.TransformerLM, Vocabulary]:
    """Train a language model; under ``torchrun``, one share of every batch on each process.

    Parameters
    ----------
    settings, text
        Settings of the run, and its text.
    out
        Folder for ``checkpoint.pt`` and ``results.json``; None writes nothing.
    run
        Options of the run:

        resume: go on from the checkpoint in ``out``, with the same settings (default False), or with more
        ``num_steps``: the rate then follows the schedule of the new length.
        device: ``"cpu"`` (default) or ``"cuda"``; with several processes each takes a device of its own.
        precision: arithmetic as Lightning Fabric names it: ``"32-true"`` (default), ``"bf16-mixed"``, ``"bf16-true"``
        or ``"64-true"``. Gradients overflow in float16, which is refused.
        checkpoint_every: steps between checkpoints (default 200); the last step writes one in any case.
        stop_after: stop with a checkpoint when this step is done, as if interrupted; None (default) trains to the end.
        progress: True shows a bar and False none; None (default) shows it on a terminal.
        threads: CPU threads; None (default) is one where all matrix products are small, else as many as torch chooses.
        command: what the checkpoint keeps besides, as the command line keeps its options.

    Returns
    -------
    The run; losses are nats a token, ``perplexity`` is the last of the validation part.

    Raises
    ------
    ValueError
        Settings or a text of another class; a text shorter than a row; float16; a batch that the processes cannot share
        evenly; a checkpoint of other settings, another text, or of more steps than asked for, or one that is there
        without ``resume``; a loss, gradient or validation that is not finite.
    ModuleNotFoundError
        Lightning is not installed.
    """
    loop.require("settings", settings, LanguageModelSettings, "train.LanguageModelSettings(...)")
    loop.require("text", text, Text, "data.Text(training, validation), or data.load_text(path)")
    vocabulary = Vocabulary.of(text.training, settings.level, settings.rarest)
    tokens_of = {name: vocabulary.encode(part) for name, part in text._asdict().items() if part or name != "test"}
    for name, tokens in tokens_of.items():
        if len(tokens) <= settings.context:
            raise ValueError(f"the {name} text has {len(tokens)} tokens; a row needs context + 1")
    return loop.train_task(task(settings, text, vocabulary, tokens_of), out, **run)


def task(
    settings: LanguageModelSettings, text: Text, vocabulary: Vocabulary, tokens_of: Mapping[str, Tensor]
) -> loop.Task:
    """Return the task: rows that start anywhere in the training text, of which every token but the first is predicted.

    Parameters
    ----------
    settings, text
        Settings of the run, and its text.
    vocabulary
        Tokens of the text.
    tokens_of
        (token,) numbers of the tokens of each part, ``"training"``, ``"validation"`` and perhaps ``"test"``.
    """
    training, others = tokens_of["training"], {name: x for name, x in tokens_of.items() if name != "training"}

    def set_priors(model: torch.nn.Module) -> None:
        for layer in model.modules() if settings.map_training else ():
            if isinstance(layer, nn.Attention):
                layer.priors = standard_priors(layer)

    def log_prior_density(model: torch.nn.Module) -> Tensor | float:
        return nn.log_prior_density(model) / len(training) if settings.map_training else 0.0

    def batch(step: int) -> loop.Batch:
        starts = torch.randint(len(training) - settings.context, (settings.batch, 1), generator=settings.draw(step))
        rows = training[starts + torch.arange(settings.context + 1)]
        return (rows,), settings.batch * settings.context

    def loss(model: torch.nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")

    def evaluate(model: torch.nn.Module, part: str, fabric: loop.Processes) -> dict[str, float]:
        return {"perplexity": perplexity(model, others[part], settings.context, fabric=fabric)}

    return loop.Task(
        label=settings.attention,
        settings=settings,
        model=settings.model(len(vocabulary.tokens)),
        texts=text,
        vocabulary=vocabulary,
        words=settings.context,
        batch=batch,
        loss=loss,
        log_prior_density=log_prior_density,
        evaluate=evaluate,
        validated="validation",
        ready=set_priors,
        unknown={name: loop.unknown_share([tokens]) for name, tokens in others.items()},
    )


@torch.no_grad()
def perplexity(
    model: torch.nn.Module, tokens: Tensor, context: int, *, fabric: loop.Processes = loop.ONE_PROCESS, batch: int = 64
) -> float:
    """Return ``exp`` of the mean negative log probability of a token, over rows of ``context`` tokens side by side.

    Parameters
    ----------
    model
        Language model, set to evaluation meanwhile.
    tokens
        (token,) numbers; the first of each row is given, and what does not fill a row is left out.
    context
        Tokens of a row that are predicted.
    fabric
        Lightning Fabric of the run, or one process without it.
    batch
        Rows at once.
    """
    rows = tokens[: (len(tokens) - 1) // context * context + 1].unfold(0, context + 1, context)
    training, total = model.training, torch.zeros((), dtype=torch.float64)
    model.eval()
    for part in rows[fabric.global_rank :: fabric.world_size].split(batch):
        part = fabric.to_device(part)
        logits = model(part[:, :-1]).flatten(0, 1).float()
        total += F.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum").double().cpu()
    model.train(training)
    return float((loop.summed(fabric, total) / (len(rows) * context)).exp())  # infinite, where math.exp would overflow

"""Which summary of a text should a dependency CRF be classified by? Banking77, 77 intents.

``python -m benchmarks.text_classification [--trials NAME ...] [--table]``, with $PROBTX_DATA set or a connection.

Protocol, written before any figure of it was known. The published train part is cut once, with a fixed seed, into 9,003 texts to
learn from and 1,000 for dev (`data.load_labelled`). Every choice (summary, scale, rates, dropout) is made here, on dev, by one seed and
runs of STEPS steps (3 epochs; a full run has 1,400, 10 epochs), with the words, batches, schedule and weight decay of `benchmarks.tasks`.
This file never reads the test part. A trial stands by the accuracy after its last step, not the best on the way; 1,000 texts give it
a standard error of 0.01 to 0.015, so a smaller difference decides nothing. Trials change one thing of "root", the setting that stood before, or of "mean".
The best summary then gets its learning rate among those tried here, and so do the transformers; `benchmarks.tasks` reads the test part
once at the end, with seeds 0, 1, 2 and 1,400 steps: the best, the one before, and the transformers.

All trials, in the order in which they were run, are lines of ``results/text_classification.jsonl``.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.tasks import CRF, ENCODERS, SHARED
from benchmarks.timing import RESULTS, machine
from probtx_pyro import train
from probtx_pyro.nn import ENCODERS as RECIPES
from probtx_pyro.nn import DependencyCRFEncoder, Encoder, mean_word, root_label
from probtx_pyro.train import classified_texts

STEPS, SEED, MEDIAN = 420, 0, 11
FILE = RESULTS / "text_classification.jsonl"
SOFT = {**CRF, "head_temperature": 1.0}


def mean_marginal(encoder: Any, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """The mean over words of Q(Z), times its width, less 1: 0 where nothing is known."""
    labels = encoder.field(x, key_padding_mask).label_marginals
    words = labels.shape[1] if key_padding_mask is None else (~key_padding_mask).sum(1, keepdim=True)
    return encoder.width * labels.sum(1) / words - 1


def mean_embedding(encoder: Any, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """The mean over words of S: a bag of words, no encoder at all."""
    return mean_word(lambda x, mask: x, x, key_padding_mask)


def root_marginal(encoder: Any, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Q(root), times its labels, less 1."""
    root = encoder.field(x, key_padding_mask).root_marginals
    return root.shape[-1] * root - 1


def root_normed(encoder: Any, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """The root's scores of variance 1 in each text: their scale does not matter."""
    return nn.functional.layer_norm(root_label(encoder, x, key_padding_mask), (encoder.width,))


def root_of_all(encoder: Any, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """The root's scores if every word had it as its head in every channel: Σ_c Σ_i Σ_a Q_i(a) R^c_ak."""
    labels = encoder.field(x, key_padding_mask).label_marginals
    return torch.einsum("zia,cak->zk", labels, encoder.root_ternary)


def crf(root: bool = False, scale: float = 1.0) -> Callable[..., nn.Module]:
    """Build a CRF, with a root or without; its potentials start ``scale`` times as large as by default."""

    def build(width: int, *, context: int, dropout: float, root: bool, **options: Any) -> nn.Module:
        encoder = DependencyCRFEncoder(width, dropout=dropout, root_labels=width if rooted else 0, **options)
        if encoder.root_ternary is not None:
            encoder.root_ternary.data *= scale
        return encoder

    rooted = root
    return build


class Trial(NamedTuple):
    """A trial. recipe: of the encoder, or the name of one. settings: beyond those that all share."""

    recipe: Encoder | str
    settings: dict[str, Any]


ROOT, MEAN = Encoder(crf(root=True), root_label, 0.3), Encoder(crf(), mean_word, 0.3)
OLD = {"options": SOFT, "lr": 1e-2}
TRIALS: dict[str, Trial] = {
    "root": Trial(ROOT, OLD),
    "mean": Trial(MEAN, OLD),
    "bag of words": Trial(MEAN._replace(summary=mean_embedding), OLD),
    "root, normed": Trial(ROOT._replace(summary=root_normed), OLD),
    "root, 8 times the start": Trial(ROOT._replace(build=crf(True, 8.0)), OLD),
    "mean, heads at 1 / width": Trial(MEAN, {**OLD, "options": CRF}),
    "mean, rate 0.005": Trial(MEAN, {**OLD, "lr": 5e-3}),
    "root of all words": Trial(ROOT._replace(summary=root_of_all), OLD),
    "mean marginal": Trial(MEAN._replace(summary=mean_marginal), OLD),
    "root's marginal": Trial(ROOT._replace(summary=root_marginal), OLD),
    "root, rate 0.03": Trial(ROOT, {**OLD, "lr": 3e-2}),
    "root, heads at 1 / width": Trial(ROOT, {**OLD, "options": CRF}),
    "root, words start at 1": Trial(ROOT._replace(start=1.0), OLD),
    "mean, 1 sweep": Trial(MEAN, {**OLD, "options": {**SOFT, "num_steps": 1}}),
    "mean, rank 16": Trial(MEAN, {**OLD, "options": {**SOFT, "rank": 16}}),
    "mean, no word dropout": Trial(MEAN, {**OLD, "unknown": 0.0}),
    "mean, dropout 0.3": Trial(MEAN, {**OLD, "dropout": 0.3}),
    "mean, words start at 1": Trial(MEAN._replace(start=1.0), OLD),
    **{f"{name}, rate {lr}": Trial("transformer", {"options": ENCODERS[name]["options"], "lr": lr})
       for name in ("transformer", "relative") for lr in (1e-3, 2e-3, 5e-3, 1e-2)},
}  # fmt: skip


def heard(done: Any, texts: list[tuple[list[str], str]]) -> dict[str, float]:
    """How much the summary differs from text to text, and the readout's weights; of a root, its share of the heads of the texts of MEDIAN words."""
    model, words = done.model.eval(), torch.stack(done.vocabulary.numbers([x for x, _ in texts if len(x) == MEDIAN]))
    with torch.no_grad():
        x = model.embedded(words)
        found = {"summary": model.summary(model.encoder, x, None).std(0).mean(), "weights": model.categories.weight.std()}
        if getattr(model.encoder, "root_ternary", None) is not None:
            found["root_share"] = model.encoder.field(x).head_marginals[..., 0].mean()
    return {key: float(f"{value:.3g}") for key, value in found.items()}


def run(name: str, parts: dict[str, Any]) -> dict[str, Any]:
    """The line of a trial."""
    trial = TRIALS[name]
    if isinstance(trial.recipe, Encoder):
        RECIPES[name] = trial.recipe  # type: ignore[index]
    settings = {**SHARED, "num_steps": STEPS, "validate_every": 140, "seed": SEED, **trial.settings}
    encoder = trial.recipe if isinstance(trial.recipe, str) else name
    given = train.LabellingSettings(encoder=encoder, **settings)
    first = train.train_classifier(given, parts, progress=False, stop_after=1)
    done = train.train_classifier(given, parts, progress=False)
    found = done.results
    return {"trial": name, "dev": [score for _, score in found["validation"]], "loss": round(statistics.fmean(found["losses"][-50:]), 4),
            "first": heard(first, parts["dev"]), "last": heard(done, parts["dev"]), "parameters": found["parameters"],
            "seconds": found["seconds"], "settings": settings, "on": machine()}  # fmt: skip


def lines() -> list[dict[str, Any]]:
    """The trials that are there."""
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", nargs="+", choices=TRIALS, default=list(TRIALS), metavar="NAME")
    parser.add_argument("--table", action="store_true", help="only the table of what is there")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    parts = {name: part for name, part in classified_texts("banking77").items() if name != "test"}
    for name in [] if args.table else args.trials:
        if name not in {line["trial"] for line in lines()}:
            line = run(name, parts)
            with FILE.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name}: {line['dev']}, {line['seconds']:.0f} s", flush=True)
    for line in lines():
        print(f"| {line['trial']} | {' | '.join(f'{x:.3f}' for x in line['dev'])} | {line['loss']:.2f} |")


if __name__ == "__main__":
    main()

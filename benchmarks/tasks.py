"""The dependency CRF beside a transformer of matched size on tagging, named entities, classification, masked words and COGS.

Run with ``python -m benchmarks.tasks [--only TASK ...] [--encoder crf transformer ...] [--seeds 0 1 2] [--table]``, with $PROBTX_DATA set or a connection.
Every finished run is a file of ``results/tasks/`` and is not run again; one that was interrupted goes on from its checkpoint in
``benchmarks/cache``. These are small settings, for two CPU cores: not those of the paper. All encoders have the same recipe (steps,
batches, schedule, dropout, word dropout), and a learning rate each, from a few trials on the dev part of EWT. "relative" is a
transformer with learned biases in place of positions, for the offsets 1, 2, 3 and all beyond: the distance groups of the CRF.
"words" is no encoder: each word by itself. "rooted" reads the root of a CRF, where a text is classified. How texts are
summarised, and the rates of that task, were chosen on its dev part: `benchmarks.text_classification`.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.timing import RESULTS, machine
from probtx_pyro import train
from probtx_pyro.apps import DECODERS, AttentionParser
from probtx_pyro.data import Text, load_text, load_treebank
from probtx_pyro.metrics import attachment_score, baseline_scores, channel_scores
from probtx_pyro.nn import ENCODERS as RECIPES
from probtx_pyro.nn import Encoder
from probtx_pyro.train import classified_texts, tagged_sentences

FOLDER, CACHE = RESULTS / "tasks", Path(__file__).parent / "cache"
CRF = {"num_channels": 4, "num_steps": 3, "distances": (2, 3, 4), "rank": "full"}
TRANSFORMER = {"num_heads": 4, "num_layers": 2}
SHARED = {"width": 64, "batch": 64, "dropout": 0.15, "weight_decay": 1e-4}
PUNCTUATION = "PUNCT"


class Words(nn.Module):
    """No encoder: words as they are."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:  # noqa: D102
        return x


RECIPES["words"] = Encoder(lambda width, context, dropout, root: Words(), lambda encoder: 0, RECIPES["crf"].start)


def tagger(source: str, column: str = "upos") -> Callable[..., dict[str, Any]]:
    """A task of tags."""

    def run(settings: train.LabellingSettings, out: Path, resume: bool) -> dict[str, Any]:
        data = tagged_sentences(source, column)
        settings = replace(settings, select=data.select)
        return train.train_tagger(settings, data.parts, out, metrics=data.metrics, resume=resume).results

    return run


def classifier(settings: train.ClassifierSettings, out: Path, resume: bool) -> dict[str, Any]:
    """Banking77."""
    return train.train_classifier(settings, classified_texts("banking77"), out, resume=resume).results


def masked(settings: train.MaskedSettings, out: Path, resume: bool) -> dict[str, Any]:
    """WikiText-2."""
    return train.train_masked_language_model(settings, load_text("wikitext2"), out, resume=resume).results


def trees(settings: train.MaskedSettings, out: Path, resume: bool) -> dict[str, Any]:
    """A masked language model of the words of EWT, and the trees in its attention, on the test part."""
    bank = load_treebank("ewt")
    lines = {name: "\n".join(" ".join(sentence.words) for sentence in getattr(bank, name)) for name in ("train", "dev")}
    done = train.train_masked_language_model(settings, Text(lines["train"], lines["dev"]), out, resume=resume)
    return {**done.results, **(attachment(done, bank.test) if settings.encoder == "crf" else {})}


def attachment(done: train.MaskedRun, sentences: list) -> dict[str, Any]:
    """Unlabelled attachment scores without punctuation, by decoder and channel, beside the baselines."""
    gold, words = [s.heads for s in sentences], [s.words for s in sentences]
    counted = [[tag != PUNCTUATION for tag in s.upos] for s in sentences]
    parser = AttentionParser(done.model, done.vocabulary)
    marginals = parser.head_marginals(words)
    scores: dict[str, Any] = baseline_scores(gold, counted, seed=0)
    for name in DECODERS:
        decode = AttentionParser(done.model, done.vocabulary, name).heads
        scores[f"mean of channels, {name}"] = attachment_score([decode(x) for x in marginals], gold, counted)
    own = channel_scores(marginals, gold, counted=counted)
    scores |= {"channels, word": own.channels.tolist(), "best channel, word": own.best, "any channel, word": own.oracle}
    return {"attachment": scores}


class Benchmark(NamedTuple):
    """A task. run: trains and evaluates. settings: beyond `SHARED`. seeds: how many. metric: part and name of the figure shown."""

    run: Callable[..., dict[str, Any]]
    settings: dict[str, Any]
    seeds: int
    metric: tuple[str, str]
    kind: type = train.LabellingSettings


WORDS = {"rarest": 3, "context": 64, "mask": 0.15, "dropout": 0.0}
TASKS = {
    "upos": Benchmark(tagger("ewt"), {"num_steps": 980, "validate_every": 196}, 3, ("test", "accuracy")),
    "entities": Benchmark(tagger("wnut17"), {"num_steps": 1060, "validate_every": 53, "rarest": 1}, 3, ("test", "span_f1")),
    "intents": Benchmark(classifier, {"num_steps": 700, "validate_every": 140}, 3, ("test", "accuracy"), train.ClassifierSettings),
    "xpos": Benchmark(tagger("ewt", "xpos"), {"num_steps": 980, "validate_every": 196}, 3, ("test", "accuracy")),
    "cogs": Benchmark(tagger("cogs"), {"num_steps": 1500, "validate_every": 375, "dropout": 0.0}, 3, ("gen", "sentence_accuracy")),
    "masked words": Benchmark(masked, {**WORDS, "rarest": 20, "rows": "fixed", "batch": 16, "num_steps": 1500, "validate_every": 500}, 3, ("", "perplexity"), train.MaskedSettings),
    "trees": Benchmark(trees, {**WORDS, "rows": "sentence", "num_steps": 1500, "validate_every": 500}, 1, ("", "perplexity"), train.MaskedSettings),
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "crf": {"encoder": "crf", "options": CRF, "lr": 1e-2},
    "transformer": {"encoder": "transformer", "options": TRANSFORMER, "lr": 2e-3},
    "relative": {"encoder": "transformer", "options": {**TRANSFORMER, "max_offset": 4}, "lr": 5e-3},
    "words": {"encoder": "words", "lr": 1e-2},
    "rooted": {"encoder": "crf", "options": {**CRF, "head_temperature": 1.0}, "lr": 1e-2},
}
OWN: dict[tuple[str, str], dict[str, Any]] = {  # what a task needs of an encoder beyond the above
    ("intents", "crf"): {"options": {**CRF, "head_temperature": 1.0}, "lr": 2e-2},
    ("intents", "words"): {"lr": 2e-2},
    ("intents", "relative"): {"num_steps": 1400},
    ("intents", "rooted"): {"summary": "root", "num_steps": 1400},
}


def settings_of(task: str, encoder: str, seed: int) -> Any:
    """The settings of a run."""
    benchmark = TASKS[task]
    given = {**SHARED, **ENCODERS[encoder], "seed": seed}
    return benchmark.kind(**{**given, **benchmark.settings, **OWN.get((task, encoder), {})})


def run(task: str, encoder: str, seed: int) -> dict[str, Any]:
    """The results of a run: read, or made."""
    settings = settings_of(task, encoder, seed)
    path = FOLDER / f"{task.replace(' ', '-')}-{encoder}-{settings.num_steps}-steps-seed-{seed}.json"
    if path.exists():
        found = json.loads(path.read_text())
        wanted = json.loads(json.dumps(asdict(settings)))
        changed = [name for name, value in wanted.items() if name != "select" and found["settings"].get(name) != value]
        if changed:
            raise ValueError(f"{path} was run with another {', '.join(changed)}; remove it to run again")
        return found
    out = CACHE / path.stem
    found = TASKS[task].run(settings, out, (out / "checkpoint.pt").exists())
    losses = found.pop("losses")
    every = max(1, len(losses) // 50)
    thin = [round(statistics.fmean(losses[i : i + every]), 4) for i in range(0, len(losses), every)]
    found = {"task": task, **found, "losses": thin, "steps_per_loss": every, "on": machine()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(out)
    return found


def figure(task: str, found: dict[str, Any]) -> float:
    """The number that the table shows."""
    part, name = TASKS[task].metric
    return found["metrics"][part][name] if part else found[name]


def table(tasks: list[str], encoders: list[str]) -> list[dict[str, Any]]:
    """Mean and spread over the seeds of the runs that are there."""
    rows = []
    for task in tasks:
        for encoder in encoders:
            steps = settings_of(task, encoder, 0).num_steps
            files = sorted(FOLDER.glob(f"{task.replace(' ', '-')}-{encoder}-{steps}-steps-*.json"))
            found = [json.loads(path.read_text()) for path in files]
            if not found:
                continue
            figures = [round(figure(task, x), 5) for x in found]
            row = {"task": task, "metric": " ".join(TASKS[task].metric).strip(), "encoder": encoder}
            row |= {"mean": round(statistics.fmean(figures), 5), "seeds": figures, "parameters": found[0]["parameters"]}
            rows.append({**row, "seconds": round(statistics.median(x["seconds"] for x in found))})
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK")
    parser.add_argument("--encoder", nargs="+", choices=ENCODERS, default=list(ENCODERS))
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of those of each task")
    parser.add_argument("--table", action="store_true", help="only the table of what is there")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    for task in [] if args.table else args.only:
        for seed in range(TASKS[task].seeds) if args.seeds is None else args.seeds:
            for encoder in [x for x in args.encoder if x != "rooted" or task == "intents"]:
                done = run(task, encoder, seed)
                print(f"{task}, {encoder}, seed {seed}: {figure(task, done):.4f}, {done['seconds']:.0f} s", flush=True)
    rows = table(args.only, args.encoder)
    for row in rows:
        print(
            f"  {row['task']:14s} {row['metric']:22s} {row['encoder']:12s} {row['mean']:9.4f} {row['seeds']}  {row['parameters']:8d}  {row['seconds']} s"
        )
    if set(args.only) == set(TASKS) and set(args.encoder) == set(ENCODERS):
        (RESULTS / "tasks.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Perplexity of softmax attention, mixtures of Gaussian keys and mixtures of linear keys, at an equal budget and three seeds.

Run with ``python -m benchmarks.language_modelling [--text tinyshakespeare] [--only NAME ...] [--seeds 0 1 2] [--device cuda]``.
Every finished run is a file of ``results/language_modelling/``, named by what it is, and is not run again; a run that was
interrupted goes on from its checkpoint in ``benchmarks/cache``. All runs share every setting but the attention.

Protocol, of 24 November 2026, before a test perplexity was seen: WikiText-2 by words, one pass over its training part, the last
parameters; the perplexity of the published test part is computed once, when a run is done, and nothing is chosen by it. The
settings are those of 20 November, of which none was tuned. What `benchmarks.redundancy` shows of the attention matrices is measured
with it.
"""

import argparse
import json
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.redundancy import redundancy
from benchmarks.reports import rows_of, write_table
from benchmarks.timing import RESULTS, machine
from probtx_pyro.data import load_text
from probtx_pyro.train import LanguageModelSettings, Run, train_language_model

FOLDER, CACHE = RESULTS / "language_modelling", Path(__file__).parent / "cache"
HALF = {"heads": 4, "head_dim": 16}  # of the 8 heads of 16 channels
MODELS: dict[str, dict[str, Any]] = {
    "softmax, 8 heads": {"attention": "softmax"},
    "MGK, 4 heads": {"attention": "gaussian-keys", **HALF},
    "softmax, 4 heads": {"attention": "softmax", **HALF},
    "one Gaussian key, 4 heads": {"attention": "gaussian", "options": {"linked": False}, **HALF},  # MGK with R = 1
    "MGK, 8 heads": {"attention": "gaussian-keys"},
    "shifted MGK, 8 heads": {"attention": "gaussian-keys", "options": {"share": "shift"}},
    "linear, 8 heads": {"attention": "linear-keys", "options": {"num_components": 1}},
    "MLK, 4 heads": {"attention": "linear-keys", **HALF},
    "MLK, 8 heads": {"attention": "linear-keys"},
    "linear, 4 heads": {"attention": "linear-keys", "options": {"num_components": 1}, **HALF},
    "MGK, 4 heads, hard E-step": {"attention": "gaussian-keys", "options": {"assignment": "hard"}, **HALF},
}
ROWS = 16  # of the validation text, side by side from its start, whose attention is looked at
TEXTS = ("tinyshakespeare", "wikitext2")  # of the report
SMALL = {
    "wikitext2": {"level": "word", "rarest": 20, "batch": 16, "context": 64}
}  # what a CPU can do; not the paper's setting


def file(text: str, name: str, settings: LanguageModelSettings) -> Path:
    """Where the results of a run are kept."""
    what = name.replace(", ", "-").replace(" ", "-").lower()
    return FOLDER / f"{text}-{what}-{settings.num_steps}-steps-seed-{settings.seed}.json"


def settings_of(name: str, base: LanguageModelSettings, seed: int) -> LanguageModelSettings:
    """What all runs share, with the attention of one of `MODELS`."""
    return LanguageModelSettings(**{**asdict(base), **MODELS[name], "seed": seed})


def attention_of(done: Run, text: str) -> torch.Tensor:
    """Attention (layer, row, head, query, unit) of a trained model on the first rows of the validation text."""
    tokens = done.vocabulary.encode(load_text(text).validation)
    context, device = done.model.context, next(done.model.parameters()).device
    return done.model.eval().attention_weights(tokens[: ROWS * context].view(ROWS, context).to(device)).float().cpu()


def read(path: Path, settings: LanguageModelSettings) -> dict[str, Any] | None:
    """The results of a finished run; refused if it was another run than the one asked for."""
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    wanted = json.loads(json.dumps(asdict(settings)))
    changed = [name for name, value in found["settings"].items() if wanted[name] != value]
    if changed:
        raise ValueError(f"{path} was run with another {', '.join(changed)}; remove it to run again")
    return found


def run(text: str, name: str, settings: LanguageModelSettings, device: str, precision: str) -> dict[str, Any]:
    """The results of a run: read, or made."""
    path = file(text, name, settings)
    found = read(path, settings)
    if found is None:
        out = CACHE / path.stem
        resume = (out / "checkpoint.pt").exists()
        done = train_language_model(settings, load_text(text), out, resume=resume, device=device, precision=precision)
        FOLDER.mkdir(parents=True, exist_ok=True)
        losses = done.results["losses"]
        every = max(1, len(losses) // 100)
        thin = [round(statistics.fmean(losses[i : i + every]), 5) for i in range(0, len(losses), every)]
        found = {"model": name, "text": text, **done.results, "losses": thin, "steps_per_loss": every, "on": machine()}
        found["redundancy"] = redundancy(attention_of(done, text).numpy())
        path.write_text(json.dumps(found, indent=1) + "\n")
        shutil.rmtree(out)
    return found


def perplexity_of(found: dict[str, Any]) -> float:
    """The perplexity of the test part, or of the validation part of a text that has none."""
    return found.get("metrics", {}).get("test", found)["perplexity"]


def table(text: str, settings: LanguageModelSettings, seeds: list[int], names: list[str]) -> list[dict[str, Any]]:
    """Mean, smallest and largest perplexity of the runs that are there, and their ratio to softmax with 8 heads seed by seed."""
    rows, reference = [], {}
    for name in names:
        found = {}
        for seed in seeds:
            wanted = settings_of(name, settings, seed)
            if (done := read(file(text, name, wanted), wanted)) is not None:
                found[seed] = done
        if not found:
            continue
        perplexities = {seed: perplexity_of(r) for seed, r in found.items()}
        reference = reference or perplexities
        ratios = [p / reference[seed] for seed, p in perplexities.items() if seed in reference]
        some = next(iter(found.values()))
        rows.append(
            {
                "model": name,
                "perplexity": round(statistics.fmean(perplexities.values()), 4),
                "spread": [round(min(perplexities.values()), 4), round(max(perplexities.values()), 4)],
                "ratio to the first": [round(x, 4) for x in ratios],
                "seeds": list(perplexities),
                "parameters": some["parameters"],
                "seconds": round(statistics.median(r["seconds"] for r in found.values())),
            }
        )
    return rows


def printed(rows: list[dict[str, Any]]) -> list[str]:
    """The table as the report has it; a text of words has larger perplexities, and fewer digits."""
    digits = 3 if max(row["perplexity"] for row in rows) < 10 else 1
    head = ["model", "parameters", "perplexity, mean", "smallest - largest", "over softmax with 8 heads, seed by seed", "seeds", "seconds"]  # fmt: skip
    cells = (
        [
            row["model"], f"{row['parameters']:,}", f"{row['perplexity']:.{digits}f}",
            " - ".join(f"{x:.{digits}f}" for x in row["spread"]), ", ".join(f"{x:.3f}" for x in row["ratio to the first"]),
            str(len(row["seeds"])), f"{row['seconds']:,}",
        ]
        for row in rows
    )  # fmt: skip
    return rows_of(head, *cells)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="tinyshakespeare")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--table", action="store_true", help="only the table of what is there")
    args = parser.parse_args(argv)
    base = LanguageModelSettings(num_steps=args.steps, **SMALL.get(args.text, {}))
    for seed in [] if args.table else args.seeds:
        for name in args.only:
            done = run(args.text, name, settings_of(name, base, seed), args.device, args.precision)
            print(f"{name}, seed {seed}: perplexity {perplexity_of(done):.4f}, {done['seconds']:.0f} s", flush=True)
    rows = table(args.text, base, args.seeds, args.only)
    print("\n".join(printed(rows) if rows else ["no run is finished"]))
    if rows and args.only == list(MODELS) and args.seeds == [0, 1, 2] and args.steps == 2000 and args.text in TEXTS:
        path = RESULTS / f"language_modelling_{args.text}.json"
        path.write_text(json.dumps({"settings": asdict(base), "rows": rows}, indent=1) + "\n")
        write_table("language_models.md", args.text, printed(rows))


if __name__ == "__main__":
    main()

"""BLEU of translation models that differ in their attention only, at an equal budget: the table of the MGK paper, small.

Run with ``python -m benchmarks.translation [--only NAME ...] [--seeds 0 1 2]``, after ``python -m benchmarks.translation --choose``.
Every finished run is a file of ``results/translation/``, named by what it is, and is not run again; a run that was interrupted goes on
from its checkpoint in ``benchmarks/cache``. ``--table`` prints what is there, and trains nothing.

Protocol, written before any test score was seen.

Data: Tatoeba English-German, 50,001 short pairs, split at random with seed 0, the same for every run
(`probtx_pyro.data.load_pairs`): pairs that share a sentence on either side stay together. Train has 45,000 pairs, dev 2,501, test 2,500.
(Until 26 November 2026 the split was by the English sentence alone, and 17 % of the test pairs had their German sentence among those of
train. All rows, and the choice of the rate, were made again on the split above, 27 November 2026; nothing else was changed.)
Tokens: one byte-pair encoding of both languages with 4,000 tokens, learned from train.
Model: encoder and decoder of 2 layers, width 128, pre-norm; the attention of the row in all self- and cross-attention layers.
Half the heads keep the width of a head: 8 heads of 16 channels or 4 of 16. "One Gaussian key" is MGK with R = 1, the control that the
paper's tables lack: a gain that it has, too, is not the second key's.
Budget, the same for all rows: 2,000 AdamW steps of 128 pairs (5.7 epochs), warm-up and cosine, dropout 0.1, label smoothing 0.1.
Dropout, smoothing, width and the other sizes were set beforehand and not tuned. The peak learning rate is chosen from 0.001, 0.002 and
0.004 by the dev perplexity of runs of 800 steps of one row, softmax with 8 heads, with seed 0 (``--choose``, kept in
``results/translation/choice.json``), which if anything favours that row.
Score: the last parameters; beam 4, length penalty 0.6; BLEU of sacreBLEU with its defaults (the signature is in every file) of the
distinct test sentences, all German translations of a sentence in the test part as its references. All seeds are shown. What each test
sentence adds is kept, and `benchmarks.verdicts` says what the differences are worth.

Not the paper's task (IWSLT'14 German-English, thirty times the text): a twentieth of its size, and sentences of four to ten words.
No run of that one was made.
"""

import argparse
import json
import shutil
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics import BLEU

from benchmarks.language_modelling import HALF, read
from benchmarks.reports import rows_of, write_table
from benchmarks.timing import RESULTS, machine
from benchmarks.verdicts import Items, bleu
from probtx_pyro.apps import translate
from probtx_pyro.data import load_pairs
from probtx_pyro.train import Run, TranslationSettings, train_translation

FOLDER, CACHE = RESULTS / "translation", Path(__file__).parent / "cache"
CHOICE = FOLDER / "choice.json"
MODELS: dict[str, dict[str, Any]] = {
    "softmax, 8 heads": {"attention": "softmax"},
    "softmax, 4 heads": {"attention": "softmax", **HALF},
    "MGK, 4 heads": {"attention": "gaussian-keys", **HALF},
    "shifted MGK, 4 heads": {"attention": "gaussian-keys", "options": {"share": "shift"}, **HALF},
    "one Gaussian key, 4 heads": {"attention": "gaussian", "options": {"linked": False}, **HALF},  # MGK with R = 1
}
BASE = TranslationSettings(layers=2)
RATES, TRIAL = (1e-3, 2e-3, 4e-3), 800
COLUMNS = (("test", "BLEU"), ("test", "perplexity"), ("dev", "BLEU"), ("dev", "perplexity"))


def file(name: str, seed: int) -> Path:
    """Where the results of a run are kept."""
    return FOLDER / f"{name.replace(', ', '-').replace(' ', '-').lower()}-seed-{seed}.json"


def choose() -> dict[str, Any]:
    """The learning rate with the least dev perplexity: read, or found. No test pair is looked at."""
    if CHOICE.exists():
        return json.loads(CHOICE.read_text())
    pairs = load_pairs()
    parts = pairs._replace(test=[])
    found = {}
    for rate in RATES:
        settings = replace(BASE, lr=rate, num_steps=TRIAL, validate_every=TRIAL)
        out = CACHE / f"translation-choice-{rate}"
        done = train_translation(settings, parts, out, resume=(out / "checkpoint.pt").exists())
        found[rate] = done.results["metrics"]["dev"]["perplexity"]
        print(f"learning rate {rate}: dev perplexity {found[rate]:.4f}, {done.results['seconds']:.0f} s", flush=True)
    chosen = {"lr": min(found, key=lambda rate: found[rate]), "dev perplexity": found, "steps": TRIAL, "on": machine()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    CHOICE.write_text(json.dumps(chosen, indent=1) + "\n")
    for rate in RATES:
        shutil.rmtree(CACHE / f"translation-choice-{rate}")
    return chosen


def settings_of(name: str, seed: int) -> TranslationSettings:
    """What all runs share, with the attention of one of `MODELS`."""
    if not CHOICE.exists():
        raise ValueError(f"there is no {CHOICE}; run python -m benchmarks.translation --choose first")
    return TranslationSettings(**{**asdict(BASE), **MODELS[name], "seed": seed, "lr": choose()["lr"]})


def run(name: str, seed: int) -> dict[str, Any]:
    """The results of a run: read, or made."""
    path, settings = file(name, seed), settings_of(name, seed)
    found = read(path, settings)
    if found is None:
        out = CACHE / f"translation-{path.stem}"
        done = train_translation(settings, load_pairs(), out, resume=(out / "checkpoint.pt").exists())
        done.results["items"] = items_of(done, settings).packed()
        losses = done.results["losses"]
        every = max(1, len(losses) // 100)
        thin = [round(statistics.fmean(losses[i : i + every]), 5) for i in range(0, len(losses), every)]
        found = {"model": name, **done.results, "losses": thin, "steps_per_loss": every, "on": machine()}
        path.write_text(json.dumps(found, indent=1) + "\n")
        shutil.rmtree(out)
    return found


def items_of(done: Run[Any, Any], settings: TranslationSettings) -> Items:
    """What each distinct test sentence adds to BLEU; they must add up to what training found."""
    references: dict[str, list[str]] = {}
    for source, target in load_pairs().test:
        references.setdefault(source, []).append(target)
    how = {"beam": settings.beam, "length_penalty": settings.length_penalty}
    metric, rows = BLEU(), []
    for found, right in zip(translate(done.model, done.vocabulary, list(references), **how), references.values(), strict=True):  # fmt: skip
        score = metric.corpus_score([found.text], [[text] for text in right])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    items = Items("bleu", np.array(rows, np.uint16))
    whole, kept = float(bleu(items.each.sum(0))), done.results["metrics"]["test"]["BLEU"]
    if abs(whole - kept) > 1e-6:
        raise ValueError(
            f"the items add up to a BLEU of {whole}, and training found {kept}; they are not of the same answers"
        )
    return items


def table(seeds: list[int]) -> list[dict[str, Any]]:
    """Means of the runs that are there, test BLEU of every seed, and its difference to softmax with 8 heads seed by seed."""
    rows, reference = [], {}
    for name in MODELS:
        found = {seed: json.loads(file(name, seed).read_text()) for seed in seeds if file(name, seed).exists()}
        if not found:
            continue
        scores = {seed: each["metrics"]["test"]["BLEU"] for seed, each in found.items()}
        reference = scores if name == "softmax, 8 heads" else reference
        means = {
            f"{part} {metric}": round(statistics.fmean(each["metrics"][part][metric] for each in found.values()), 3)
            for part, metric in COLUMNS
        }
        rows.append(
            {
                "model": name,
                "parameters": next(iter(found.values()))["parameters"],
                **means,
                "test BLEU by seed": {seed: round(score, 2) for seed, score in scores.items()},
                "to softmax, 8 heads": [
                    round(score - reference[seed], 2) for seed, score in scores.items() if seed in reference
                ],
                "seconds": round(statistics.median(each["seconds"] for each in found.values())),
                "signature": next(iter(found.values()))["metrics"]["test"]["signature"],
            }
        )
    return rows


def printed(rows: list[dict[str, Any]]) -> list[str]:
    """The table as the report has it."""
    names = ["model", "parameters", *(f"{part} {metric}" for part, metric in COLUMNS), "test BLEU by seed", "to softmax, 8 heads", "seconds"]  # fmt: skip
    lines = []
    for row in rows:
        cells = {
            **row,
            "parameters": f"{row['parameters']:,}",
            "test BLEU by seed": ", ".join(f"{score:.2f}" for score in row["test BLEU by seed"].values()),
            "to softmax, 8 heads": ", ".join(f"{difference:+.2f}" for difference in row["to softmax, 8 heads"]),
            "seconds": f"{row['seconds']:,}",
        }
        lines.append([str(cells[name]) for name in names])
    signatures = sorted({row["signature"] for row in rows})
    return [*rows_of(names, *lines), "", *(f"sacreBLEU: `{signature}`" for signature in signatures)]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--choose", action="store_true", help="only the learning rate")
    parser.add_argument("--table", action="store_true", help="only the table of what is there")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    if args.choose:
        print(choose())
        return
    for seed in [] if args.table else args.seeds:
        for name in args.only:
            done = run(name, seed)
            test = done["metrics"]["test"]
            print(f"{name}, seed {seed}: test BLEU {test['BLEU']:.2f}, perplexity {test['perplexity']:.3f}, {done['seconds']:.0f} s", flush=True)  # fmt: skip
    rows = table([0, 1, 2])
    print("\n".join(printed(rows) if rows else ["no run is finished"]))
    if rows:
        write_table("translation.md", "BLEU", printed(rows))
        (RESULTS / "translation.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

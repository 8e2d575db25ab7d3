"""How far mean field, and mean field with heads summed out, stay below log Z of a dependency CRF, and whether Pareto's k says so.

``python -m benchmarks.crf_bounds random``: random potentials by channels and scale, a batch of SENTENCES of 20 words each.

``python -m benchmarks.crf_bounds taggers [--only CHANNELS ...]``: taggers of EWT ($PROBTX_DATA), which are trained where
``benchmarks/cache/crf_bounds`` does not have them, as by ``probtx train tagger --data ewt --distances 2,3,4 --width 64 --iterations 4 --rank full
--steps 500 --validate-every 250 --seed S --channels C [--head-temperature 1]``. With 4 channels seeds 0, 1 and 2, each with the published
temperature of the heads, 1 / width, and with 1; with 2 and 8 channels seed 0 and the published one. The potentials of each, after
training and before it, meet the first SENTENCES sentences of 20 words of the dev part, and with 4 channels those of 40 words, too.
Self-attention is the encoder's own four sweeps at its own temperature (before training at either), and its ELBO that of temperatures of
1. Every batch that is measured is kept beside its run, and not measured again.

log Z is annealed. As a check of it, not a bound, the same chains go down from Gibbs draws, which are not exact. In order: the ELBO of each
field is below its bound with heads summed out and below that of structured mean field, and the bounds are below log Z, each within 4 of
the standard errors of both, and rounding.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import write
from probtx_pyro import inference, models, results
from probtx_pyro.models.dependency_crf import MeanField

SENTENCES, LABELS, SEED = 4, 17, 0
CHANNELS, SCALES = (1, 2, 4, 8), (0.5, 1.0, 2.0)
WIDTH, ITERATIONS, DISTANCES = 64, 4, (2, 3, 4)
HEADS = {"published": None, "one": 1.0}  # temperature of the heads of a tagger
CACHE = Path(__file__).parent / "cache" / "crf_bounds"


class Effort(NamedTuple):
    """What is spent on a batch.

    temperatures, chains: of annealing. draws: of each field. steps: of structured mean field. sweeps: Gibbs sweeps before the check; 0 is no check.
    """

    temperatures: int
    chains: int
    draws: int
    steps: int
    sweeps: int


ON_RANDOM = Effort(temperatures=400, chains=64, draws=4096, steps=20, sweeps=0)
ON_TAGGERS = {  # by words
    20: Effort(temperatures=80, chains=32, draws=2048, steps=5, sweeps=100),
    40: Effort(temperatures=60, chains=16, draws=1024, steps=5, sweeps=0),
}


class Taggers(NamedTuple):
    """Taggers of one number of channels: their seeds, names in `HEADS`, and the lengths of the sentences that they meet."""

    seeds: tuple[int, ...] = (0,)
    heads: tuple[str, ...] = ("published",)
    words: tuple[int, ...] = (20,)


TAGGERS = {4: Taggers((0, 1, 2), tuple(HEADS), (20, 40)), 2: Taggers(), 8: Taggers()}  # by channels


def random_crf(channels: int, scale: float) -> models.DependencyCRF:
    g = torch.Generator().manual_seed(SEED)
    unary = torch.randn(SENTENCES, 20, LABELS, generator=g)
    return models.DependencyCRF(
        unary, scale * torch.randn(channels, 8, LABELS, LABELS, generator=g), distances=DISTANCES
    )


def trained(channels: int, heads: str, seed: int) -> Path:
    """The folder of a tagger, trained if it is not there."""
    from probtx_pyro import train

    folder = CACHE / f"{channels}-channels-{heads}-seed-{seed}"
    if not (folder / train.RESULTS).exists():
        options: dict[str, Any] = {
            "num_channels": channels,
            "num_steps": ITERATIONS,
            "distances": DISTANCES,
            "rank": "full",
        }
        if (temperature := HEADS[heads]) is not None:
            options["mean_field"] = {"head_temperature": temperature}
        data = train.tagged_sentences("ewt")
        settings = train.LabellingSettings(
            options=options, width=WIDTH, num_steps=500, validate_every=250, seed=seed, select=data.select
        )
        resume = (folder / "checkpoint.pt").exists()
        train.train_tagger(settings, data.parts, folder, metrics=data.metrics, resume=resume)
    return folder


def potentials(folder: Path, words: int, before: bool) -> models.DependencyCRF:
    """The CRF that a tagger, trained or as it started, makes of sentences."""
    from probtx_pyro.data import load_treebank
    from probtx_pyro.train import load_run

    run: Any = load_run(folder)
    model = run.model
    if before:
        model = run.settings.model(len(run.vocabulary.tokens), [len(tags) for tags in run.labels])
    rows = [sentence.words for sentence in load_treebank("ewt").dev if len(sentence.words) == words][:SENTENCES]
    return model.encoder.crf(model.eval().embedded(torch.stack(run.vocabulary.numbers(rows))))


def attention(crf: models.DependencyCRF, heads: str) -> MeanField:
    """The encoder's own mean field, whose ELBO is then that of temperatures of 1."""
    temperature = HEADS[heads] or 1 / crf.unary.shape[-1]
    return replace(crf.mean_field(ITERATIONS, head_temperature=temperature), head_temperature=1.0)


def plain(crf: models.DependencyCRF) -> MeanField:
    """The better of two schedules, by the mean ELBO."""
    fields = [crf.mean_field(200, schedule, tol=1e-6) for schedule in ("asynchronous", "sequential")]
    return max(fields, key=lambda field: float(field.elbo.mean()))


def measured(crf: models.DependencyCRF, own: dict[str, MeanField], effort: Effort) -> dict[str, Any]:
    """Means over the sentences of log Z less each bound, with errors of the mean; k of every sentence."""
    fields = {**own, "mean field": plain(crf), "structured": crf.structured_mean_field(effort.steps, seed=SEED)}
    options = {"num_chains": effort.chains, "seed": SEED}
    estimate = inference.annealed_log_partition(crf, num_temperatures=effort.temperatures, **options)
    weighed = {
        name: inference.importance_log_partition(crf, proposal=field, num_draws=effort.draws, seed=SEED)
        for name, field in fields.items()
    }
    log_z, best = estimate.log_partition, weighed["structured"]
    slack = 16 * torch.finfo(log_z.dtype).eps * log_z.abs()  # rounding of sums as large as log Z
    found = {}
    for name, field in fields.items():
        seen = weighed[name]
        in_order = (
            (field.elbo < seen.bound + 4 * seen.bound_error + slack)
            & (field.elbo < best.bound + 4 * best.bound_error + slack)
            & (seen.bound < log_z + 4 * (seen.bound_error + estimate.standard_error) + slack)
        )
        found[name] = {
            "elbo_short": float((log_z - field.elbo).mean()),
            "bound_short": float((log_z - seen.bound).mean()),
            "bound_error": error_of_mean(seen.bound_error),
            "importance_short": float((log_z - seen.log_partition).mean()),
            "pareto_k": results.pareto_k(seen.log_weights).round(3).tolist(),
            "in_order": int(in_order.sum()),
        }
    return {
        "log_partition": float(log_z.mean()),
        "error": error_of_mean(estimate.standard_error),
        "fewest_chains": float(estimate.effective_chains.min()),
        "down_from_gibbs": downwards(crf, estimate, effort.sweeps) if effort.sweeps else None,
        "fields": found,
    }


def downwards(crf: models.DependencyCRF, up: inference.AnnealedLogPartition, sweeps: int) -> dict[str, float]:
    """The estimate by the same temperatures from Gibbs draws down, less the one upwards, and the standard error of the difference."""
    chains = len(up.log_weights)
    drawn = inference.gibbs(crf, num_samples=1, num_chains=chains, num_warmup=sweeps, seed=SEED).samples["label"][:, 0]
    down = inference.annealed_log_partition(  # by another seed, so that the errors are independent
        crf, temperatures=up.temperatures, exact={"label": drawn}, num_chains=chains, seed=SEED + 1
    )
    error = (up.standard_error.square() + down.standard_error.square()).sqrt()
    return {"difference": float((down.log_partition - up.log_partition).mean()), "error": error_of_mean(error)}


def error_of_mean(errors: torch.Tensor) -> float:
    return float(errors.square().sum().sqrt()) / len(errors)


def cells(found: dict[str, Any]) -> list[str]:
    down = found["down_from_gibbs"]
    said = [
        f"{found['log_partition']:.2f} ± {found['error']:.2f}",
        f"{found['fewest_chains']:.0f}",
        "" if down is None else f"{down['difference']:+.2f} ± {down['error']:.2f}",
    ]
    for name, field in found["fields"].items():
        ks = field["pareto_k"]
        said.append(
            f"{name}: {field['elbo_short']:.2f}, {field['bound_short']:.2f} ± {field['bound_error']:.2f}, {min(ks):.2f} to {max(ks):.2f}, {field['in_order']} of {len(ks)}"
        )
    return said


HEADER = "log Z | fewest effective chains | down from Gibbs draws, less that | each field: ELBO short by, bound with heads summed out short by, k, in order"


def random_rows() -> list[dict[str, Any]]:
    print(f"CRF | {HEADER}")
    rows = []
    for channels in CHANNELS:
        for scale in SCALES:
            found = measured(random_crf(channels, scale), {}, ON_RANDOM)
            rows.append({"crf": f"random, {channels} channels, scale {scale:g}", **found})
            print(" | ".join([rows[-1]["crf"], *cells(found)]), flush=True)
    return rows


def tagger_rows(only: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each tagger after training, and one for both temperatures before it, which share their potentials."""
    print(f"channels, seed, words, tagger | {HEADER}")
    rows = []
    for channels in only:
        some = TAGGERS[channels]
        for seed, words, state in product(some.seeds, some.words, ("before", *some.heads)):
            path = CACHE / f"{channels}-channels-seed-{seed}-{words}-words-{state}.json"
            if not path.exists():
                heads = tuple(HEADS) if state == "before" else (state,)
                crf = potentials(trained(channels, heads[0], seed), words, state == "before")
                fields = {f"attention, {name}": attention(crf, name) for name in heads}
                path.write_text(json.dumps(measured(crf, fields, ON_TAGGERS[words])))
            rows.append(
                {"channels": channels, "seed": seed, "words": words, "state": state, **json.loads(path.read_text())}
            )
            print(" | ".join([f"{channels}, {seed}, {words}, {state}", *cells(rows[-1])]), flush=True)
    return rows


def _nats(values: Sequence[float]) -> str:
    """Nats of every seed: two digits after the point, one of what is above 10."""
    return ", ".join(f"{x:.{1 if x > 10 else 2}f}" for x in values)


def _k(k: float) -> str:
    return "∞" if k == float("inf") else f"{k:.1f}"


def random_table(rows: list[dict[str, Any]]) -> list[str]:
    """What mean field and structured mean field lack of log Z, by channels and scale."""
    lines = []
    for row in rows:
        size = row["crf"].removeprefix("random, ").replace(" channels", "").replace("scale ", "")
        plain, structured = (row["fields"][name] for name in ("mean field", "structured"))
        ks = [" to ".join(dict.fromkeys(_k(x) for x in (min(field["pareto_k"]), max(field["pareto_k"])))) for field in (plain, structured)]  # fmt: skip
        lines.append([
            size, f"{row['log_partition']:.2f} ± {row['error']:.2f}", f"{row['fewest_chains']:.0f}", _nats([plain["elbo_short"]]),
            _nats([plain["bound_short"]]), ks[0], _nats([structured["bound_short"]]), ks[1],
        ])  # fmt: skip
    head = ["channels, scale", "log Z", "chains", "mean field: ELBO short by", "its bound with heads summed out short by", "k", "structured mean field: bound short by", "k"]  # fmt: skip
    return rows_of(head, *lines)


def taggers_table(rows: list[dict[str, Any]]) -> list[str]:
    """The same by tagger: the figure of every seed, the largest error of a mean, the largest k of each field."""
    lines = []
    for setting in dict.fromkeys((row["channels"], row["words"], row["state"]) for row in rows):
        own = [row for row in rows if (row["channels"], row["words"], row["state"]) == setting]
        for name in (name for name in own[0]["fields"] if name.startswith("attention")):
            fields = [[row["fields"][each] for row in own] for each in (name, "mean field", "structured")]
            shown = [
                _nats([x[key] for x in of])
                for of, key in zip(
                    (fields[0], fields[0], fields[1], fields[1], fields[2]),
                    ("elbo_short", "bound_short", "elbo_short", "bound_short", "bound_short"), strict=True,
                )
            ]  # fmt: skip
            errors = [(row["error"] ** 2 + x["bound_error"] ** 2) ** 0.5 for of in fields for row, x in zip(own, of, strict=True)]  # fmt: skip
            lines.append([
                str(setting[0]), str(setting[1]), "before" if setting[2] == "before" else "after",
                "1/64" if name.endswith("published") else "1", ", ".join(f"{row['log_partition']:.2f}" for row in own), *shown,
                f"{max(errors):.3f}", ", ".join(_k(max(max(x["pareto_k"]) for x in of)) for of in fields),
            ])  # fmt: skip
    head = [
        "channels", "words", "tagger", "heads at", "log Z", "self-attention: ELBO short by", "its bound short by", "mean field: ELBO short by",
        "its bound short by", "structured: bound short by", "error", "k",
    ]  # fmt: skip
    return rows_of(head, *lines)


def checks_table(rows: list[dict[str, Any]]) -> list[str]:
    """How often bounds are in order, and how far chains from Gibbs draws down are from those upwards, in standard errors."""
    counts = [(field["in_order"], len(field["pareto_k"])) for row in rows for field in row["fields"].values()]
    off = [down["difference"] / down["error"] for row in rows if (down := row["down_from_gibbs"]) is not None]
    square = (sum(x * x for x in off) / len(off)) ** 0.5
    said = f"{min(off):+.1f} to {max(off):+.1f}, root mean square {square:.1f}, {len(off)} batches"
    return rows_of(
        ["check", "found"],
        ["bounds in order", f"{sum(n for n, _ in counts)} of {sum(n for _, n in counts)}"],
        ["chains down from Gibbs draws less those up, in standard errors", said],
    )


def report_tables() -> Tables:
    """Tables of ``docs/reports/dependency_crf.md`` from the files of this benchmark."""
    return {
        "bounds, random": random_table(rows_kept("crf_bounds")),
        "bounds, taggers": taggers_table(rows_kept("crf_bounds_taggers")),
        "bounds, checks": checks_table(rows_kept("crf_bounds_taggers")),
    }


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("random", "taggers"))
    parser.add_argument(
        "--only", type=int, nargs="+", choices=tuple(TAGGERS), default=list(TAGGERS), metavar="CHANNELS"
    )
    given = parser.parse_args(arguments)
    if given.what == "random":
        print(write("crf_bounds", random_rows()))
    else:
        print(write("crf_bounds_taggers", tagger_rows(given.only)))
    write_tables("dependency_crf.md", report_tables())
    return 0


if __name__ == "__main__":
    main()

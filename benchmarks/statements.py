"""Statements of the sources that no table of theirs tests: a small measurement each, or the place of a derivation.

Run with ``python -m benchmarks.statements [--only languages translation text]``; ``--table`` trains nothing and writes the tables of
``docs/reports/statements_of_the_sources.md``. Every finished run is a file of ``results/statements/`` and is not run again.

Protocol, of 27 November 2026, before a result was seen. All runs on one thread. Four seeds were planned; it became three for
want of time, before a figure was looked at.

*Languages* (EF, appendix B: what the weights of queries and keys are good for, and which weights are easier to train). Causal models of
characters, 2 layers of width 64 with 4 heads, 600 steps of 16 x 64 characters of Tiny Shakespeare, seeds 0 to 2. What is fixed in a row is
not trained: it stays as it was at the start, or is the identity, or 0. Fixed parts have no bias. The rate of each row is the best of 0.002, 0.004
and 0.008 by trials of 300 steps with seed 100; where the best is at an end the grid goes on by a factor of 2. Figure: nats a character on the first 40,000
characters of the validation part, which the trials have seen, too. A row keeps the share (none - row) / (none - all) of what attention gains,
"none" being the model without attention. Claims: (1) without weights of queries and keys better than uniform attention; (2) without any weights of attention better than without attention;
(3) all trained better than without weights of queries and keys; (4) queries and keys fixed at their start better than values and output fixed there (as many weights).

*Translation* (EF, appendix B: the decoder's attention to the encoder meets the conditions of Hopfield retrieval, self-attention does not).
Encoder and decoder of 2 layers, width 64, 4 heads, 800 steps of 64 pairs of Tatoeba English-German, 2,000 tokens, rate 0.002, else the defaults, seeds 0 to 2; nothing
is chosen. Measured on the first 200 test pairs, over queries with at least 4 keys, with a head's keys as patterns, its query as the state
and the head's scale as beta: (1) *left*, how much of the way from the query to the fixed point is left after one update; (2) *alone*, the share of queries
whose fixed point is one pattern (exp of the entropy of its attention below 1.5); (3) *separated*, the share of keys that meet the condition of Ramsauer et al. 2021, theorem 3,
``Δ >= 2 / βN + log(2 (N - 1) N β M²) / β``. Means over heads and layers. Claims: cross-attention has less left, more alone and more separated than the decoder's self-attention.
Attention does not say how queries and keys divide its logits, and a retrieval depends on it. So everything is said twice: as trained, and *matched*, where one symmetric matrix and one shift for
each head, which leave attention as it is, give queries and keys the same mean and covariance. The claims are of the matched form.

*Text* (EF, appendix B: fast convergence may survive the transformations of queries and keys). The text transformer that the package carries, 16 windows of
128 characters of its validation text, queries with at least 4 keys. Claims: (1) as trained, at least half of the queries of a window have at most 5 % of the way left
after one update; (2) that share is not below what it is with the states before the projections as queries and keys (claimed: larger). The interval is over the windows.

*Existing files* (MGK): the validation column of the language models, and whether the advantage in time grows with length and width, from
``results/efficiency_width_cpu.json``: logarithm of the time of mixtures of two Gaussian keys in half the heads over that of softmax in all, forward and backward. Gains: by width, from 1,024 to 4,096 tokens; by doubling of the width, at
4,096 tokens. One timing of each, so the interval is over widths or doublings.

Verdicts: `benchmarks.verdicts`; the intervals cover the seeds, not the test items.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import RESULTS, machine
from probtx_pyro import nn
from probtx_pyro.data import Vocabulary, load_pairs, load_text, text_transformer
from probtx_pyro.data.tokenizer import START
from probtx_pyro.inspection import Captured, capture
from probtx_pyro.train import LanguageModelSettings, TranslationSettings, language_model, loop, train_translation
from probtx_pyro.train.rows import NO_TARGET

FOLDER = RESULTS / "statements"
SEEDS, TRIAL_SEED, RATES = range(3), 100, (2e-3, 4e-3, 8e-3)
LANGUAGE = LanguageModelSettings(num_steps=600, batch=16, context=64, width=64, heads=4, layers=2, validate_every=480)
VALIDATION = 40_000  # characters
TRANSLATION = TranslationSettings(
    num_steps=800, batch=64, width=64, heads=4, layers=2, vocabulary=2000, lr=2e-3, validate_every=800
)
PAIRS, WINDOWS, LEAST = 200, 16, 4  # test pairs, windows, and the least number of keys
NEAR, ALONE, STEPS = 0.05, 1.5, 2000
PARTS = ("queries", "keys", "values")
Found = dict[str, Any]

ALL, NONE = "all trained", "no attention (control)"
ROWS: dict[str, dict[str, str]] = {  # what is fixed, and how
    ALL: {},
    "queries and keys as at the start": {"queries": "start", "keys": "start"},
    "values and output as at the start": {"values": "start", "output": "start"},
    "no weights of queries and keys": {"queries": "identity", "keys": "identity"},
    "no weights at all": dict.fromkeys((*PARTS, "output"), "identity"),
    "uniform attention (control)": {"queries": "zero"},
    NONE: {"output": "zero"},
}


class Fixed(nn.SoftmaxAttention):
    """Softmax attention some of whose projections are not trained.

    Parameters
    ----------
    fixed
        "start", "identity" or "zero", by the names of `PARTS` and "output".
    """

    def __init__(self, *sizes: Any, fixed: Mapping[str, str], **options: Any):
        super().__init__(*sizes, **options)
        assert self.in_proj_weight is not None
        starts = dict(zip((*PARTS, "output"), (*self.in_proj_weight.chunk(3), self.out_proj.weight), strict=True))
        self.fixed = {part: self._weight(starts[part], how) for part, how in fixed.items()}
        if "output" in fixed:
            self.out_proj.requires_grad_(False).weight.copy_(self.fixed["output"])

    @staticmethod
    def _weight(start: Tensor, how: str) -> Tensor:
        made = {"start": start.detach().clone(), "identity": torch.eye(len(start)), "zero": torch.zeros_like(start)}
        return made[how].detach()

    def _projections(self) -> list[tuple[Tensor, Tensor | None]]:
        trained = dict(zip(PARTS, super()._projections(), strict=True))
        return [(self.fixed[part], None) if part in self.fixed else trained[part] for part in PARTS]

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Any:
        inputs = zip((query, key, value), self._projections(), strict=True)
        queries, keys, values = (self._split(F.linear(x, *how)) for x, how in inputs)
        return queries, self.units_of(keys, key), values


def kept(name: str, make: Callable[[], Found]) -> Found:
    """The contents of a file: read, or made and written."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**make(), "on": machine()}, indent=1) + "\n")
        print(f"written to {path}", flush=True)
    return json.loads(path.read_text())


def slug(name: str) -> str:
    """Name of a file for the name of a row."""
    return name.replace(" (control)", "").replace(" ", "-")


# -- language models with fixed weights --------------------------------------------------------------------------------


def trained(row: str, settings: LanguageModelSettings) -> Found:
    """A finished run of one of `ROWS`."""
    text = load_text("tinyshakespeare")
    text = text._replace(validation=text.validation[:VALIDATION], test="")
    vocabulary = Vocabulary.of(text.training, settings.level, settings.rarest)
    tokens = {part: vocabulary.encode(getattr(text, part)) for part in ("training", "validation")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        sizes = {"width": settings.width, "num_heads": settings.heads, "num_layers": settings.layers}
        model = nn.TransformerLM(
            len(vocabulary.tokens), settings.context, attention=partial(Fixed, fixed=ROWS[row]), **sizes
        )
    done = loop.train_task(
        replace(language_model.task(settings, text, vocabulary, tokens), model=model), progress=False, threads=1
    )
    results = {name: done.results[name] for name in ("settings", "validation", "seconds")}
    return {"row": row, "fixed": ROWS[row], "nats": math.log(done.results["validation"][-1][1]), **results}


def rate_of(row: str) -> Found:
    """Trials of a row, half as long, on a grid that does not end at the best."""
    half = replace(LANGUAGE, num_steps=LANGUAGE.num_steps // 2, validate_every=LANGUAGE.num_steps // 2, seed=TRIAL_SEED)
    nats: dict[float, float] = {}
    rates = list(RATES)
    while rates:
        rate = rates.pop(0)
        nats[rate] = trained(row, replace(half, lr=rate))["nats"]
        best = min(nats, key=lambda rate: nats[rate])
        if not rates and best in (min(nats), max(nats)):
            rates = [best * 2 if best == max(nats) else best / 2]
    return {"row": row, "lr": best, "nats": nats, "steps": half.num_steps}


def languages() -> None:
    """All trials and runs of the language models."""
    for row in ROWS:
        kept(f"rate-{slug(row)}", partial(rate_of, row))
    for seed in SEEDS:
        for row in ROWS:
            chosen = kept(f"rate-{slug(row)}", partial(rate_of, row))["lr"]
            kept(f"{slug(row)}-seed-{seed}", partial(trained, row, replace(LANGUAGE, lr=chosen, seed=seed)))


# -- heads as memories -------------------------------------------------------------------------------------------------


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (head, D) and covariance (head, D, D) of the rows of x (head, N, D)."""
    mean = x.mean(1)
    centered = x - mean.unsqueeze(1)
    return mean, centered.mT @ centered / x.shape[1]


def power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of positive definite matrices."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.pow(exponent).unsqueeze(-2) @ vectors.mT


def matched(queries: Tensor, keys: Tensor, present: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys (batch, head, row, D) of equal mean and covariance, and of the same attention.

    With covariances A of queries and B of keys, and P the symmetric matrix that solves P A P = B, queries become P^(1/2) q and keys
    P^(-1/2) k: their products stay, both covariances are P^(1/2) A P^(1/2). A shift of all keys changes no attention.

    Parameters
    ----------
    queries, keys
        Of one layer.
    present, real
        (batch, row), which of them count.
    """
    mean_q, cov_q = moments(queries.transpose(0, 1)[:, present])
    mean_k, cov_k = moments(keys.transpose(0, 1)[:, real])
    root = power(cov_q, 0.5)
    metric = power(cov_q, -0.5) @ power(root @ cov_k @ root, 0.5) @ power(cov_q, -0.5)
    towards, back = power(metric, 0.5), power(metric, -0.5)
    shift = (towards @ mean_q.unsqueeze(-1) - back @ mean_k.unsqueeze(-1)).mT
    return queries @ towards, keys @ back + shift


def measured(queries: Tensor, keys: Tensor, allowed: Tensor, present: Tensor, beta: float) -> dict[str, Tensor]:
    """What retrieval does from the queries (batch, head, Q, D) among the keys (batch, head, U, D).

    Returns "left" and "alone" of the present queries with `LEAST` keys or more, (head, query), and "separated" of the keys, (head, key).

    Parameters
    ----------
    queries, keys, beta
        States, patterns, and the scale of their products.
    allowed
        (batch, Q, U), the keys of each query.
    present
        (batch, Q), the queries that count.
    """
    barred = ~allowed.unsqueeze(1)

    def weights(state: Tensor) -> Tensor:
        return (beta * state @ keys.mT).masked_fill(barred, -math.inf).softmax(-1)

    first = end = weights(queries) @ keys
    for _ in range(STEPS):
        end, before = weights(end) @ keys, end
        if (end - before).abs().max() < 1e-10:
            break
    left = (first - end).norm(dim=-1) / (queries - end).norm(dim=-1)
    alone = torch.special.entr(weights(end)).sum(-1).exp() < ALONE
    asked = present & (allowed.sum(-1) >= LEAST)
    found = {"left": left.transpose(0, 1)[:, asked], "alone": alone.transpose(0, 1)[:, asked].double()}
    return {**found, "separated": separated(keys, allowed.any(-2), beta)}


def separated(keys: Tensor, real: Tensor, beta: float) -> Tensor:
    """Which keys (batch, head, U, D) meet the condition of the theorem among the real ones (batch, U): (head, key)."""
    products = keys @ keys.mT
    others = ~torch.eye(keys.shape[-2], dtype=torch.bool) & real[:, None, None, :]
    squares = products.diagonal(dim1=-2, dim2=-1)
    gaps = squares - products.masked_fill(~others, -math.inf).amax(-1)
    number = real.sum(-1)[:, None]
    largest = squares.masked_fill(~real.unsqueeze(1), -math.inf).amax(-1)
    needed = 2 / (beta * number) + (2 * (number - 1) * number * beta * largest).log() / beta
    counted = real & (number >= LEAST)
    return (gaps >= needed.unsqueeze(-1)).double().transpose(0, 1)[:, counted]


def heads_of(layer: Captured, padded: Tensor | None = None) -> dict[str, dict[str, float]]:
    """Means of `measured` of a layer, as trained and matched; ``padded`` (batch, Q) are queries that do not count."""
    queries, keys = layer.queries, layer.keys
    shape = (len(queries), queries.shape[-2], keys.shape[-2])
    mask = torch.zeros(shape) if layer.mask is None else layer.mask[:, 0].expand(shape)
    allowed = mask > -math.inf
    present = allowed.any(-1) if padded is None else allowed.any(-1) & ~padded
    ways = {"as trained": (queries, keys), "matched": matched(queries, keys, present, allowed.any(-2))}
    return {
        name: {what: float(x.mean()) for what, x in measured(*way, allowed, present, float(layer.scale)).items()}
        for name, way in ways.items()
    }


def translation(seed: int) -> Found:
    """A trained translation model, its heads measured as memories: a mean for each kind of attention."""
    pairs = load_pairs()
    settings = replace(TRANSLATION, seed=seed)
    few = pairs._replace(dev=pairs.dev[:PAIRS], test=[])
    done = train_translation(settings, few, progress=False, threads=1)
    tokens, test = done.vocabulary, pairs.test[:PAIRS]
    pad = torch.nn.utils.rnn.pad_sequence
    source = pad([tokens.encode(pair.source) for pair in test], batch_first=True, padding_value=NO_TARGET)
    target = [torch.cat([torch.tensor([START]), tokens.encode(pair.target)]) for pair in test]
    before = pad(target, batch_first=True, padding_value=NO_TARGET)
    with torch.no_grad():
        layers = capture(done.model.eval(), source.clamp(min=0), before.clamp(min=0), source == NO_TARGET)
    found: dict[str, list[dict[str, dict[str, float]]]] = {}
    for name, layer in layers.items():
        kind = "cross" if name.endswith("cross") else "decoder" if name.startswith("decoder") else "encoder"
        padded = source == NO_TARGET if kind == "encoder" else before == NO_TARGET
        found.setdefault(kind, []).append(heads_of(layer, padded))
    means = {
        kind: {
            way: {what: statistics.fmean(one[way][what] for one in each) for what in each[0][way]} for way in each[0]
        }
        for kind, each in found.items()
    }
    return {"settings": asdict(settings), "metrics": done.results["metrics"], "layers": list(layers), "kinds": means}


def text() -> Found:
    """Windows of text read by the carried transformer: the share of queries that are nearly at their fixed point after one update."""
    model, validation, size = text_transformer.load(), load_text("topics").validation, text_transformer.CONTEXT
    allowed = torch.ones(text_transformer.LAYERS, size, size, dtype=torch.bool).tril()
    present = allowed.any(-1)
    windows = []
    for i in range(WINDOWS):
        window = validation[i * size : (i + 1) * size]
        heads, states = model.heads(window), []
        with torch.no_grad():
            x = model.characters(model.encode(window)) + model.positions.weight
            for block in list(model.blocks):
                states.append(block.attention_norm(x))
                x = block(x)
        raw = heads.queries.double(), heads.keys.double()
        state = torch.stack(states).double().unsqueeze(1)
        ways = {"as trained": raw, "states, no projections": (state, state)}
        row: dict[str, dict[str, float]] = {}
        for name, (queries, keys) in ways.items():
            found = measured(queries, keys, allowed, present, queries.shape[-1] ** -0.5)
            row[name] = {
                "near": float((found["left"] <= NEAR).double().mean()),
                **{what: float(x.mean()) for what, x in found.items()},
            }
        windows.append(row)
    return {"windows": windows}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("languages", "translation", "text")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--table", action="store_true", help="only the tables of what is there")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    only = () if args.table else args.only
    if "text" in only:
        kept("text-transformer", text)
    if "translation" in only:
        for seed in SEEDS:
            kept(f"translation-seed-{seed}", partial(translation, seed))
    if "languages" in only:
        languages()


if __name__ == "__main__":
    main()

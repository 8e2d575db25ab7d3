"""Statements of the sources that no table of theirs tests: a small measurement each, or the place of a derivation.

Run with ``python -m benchmarks.statements [--only languages translation text]``; ``--table`` trains nothing and writes the tables of
``docs/reports/statements_of_the_sources.md``. Every finished run is a file of ``results/statements/`` and is not run again.

Protocol, of 27 November 2026, before a result was seen. All runs on one thread. Planned were four seeds, and 600 steps of language models; it became three and 500 for
want of time, before a figure of theirs was looked at.

*Languages* (EF, appendix B: what the weights of queries and keys are good for, and which weights are easier to train). Causal models of
characters, 2 layers of width 64 with 4 heads, 500 steps of 16 x 64 characters of Tiny Shakespeare, seeds 0 to 2. What is fixed in a row is
not trained: it stays as it was at the start, or is the identity, or 0. Fixed parts have no bias. The rate of each row is the best of 0.002, 0.004
and 0.008 by trials of 250 steps with seed 100; where the best is at an end the grid goes on by a factor of 2. Figure: nats a character on the first 40,000
characters of the validation part, which the trials have seen, too. A row keeps the share (none - row) / (none - all) of what attention gains,
"none" being the model without attention. Claims: (1) without weights of queries and keys better than uniform attention; (2) without any weights of attention better than without attention;
(3) all trained better than without weights of queries and keys; (4) queries and keys fixed at their start better than values and output fixed there (as many weights).

*Translation* (EF, appendix B: the decoder's attention to the encoder meets the conditions of Hopfield retrieval, self-attention does not).
Encoder and decoder of 2 layers, width 64, 4 heads, 800 steps of 64 pairs of Tatoeba English-German, 2,000 tokens, rate 0.002, else the defaults, seeds 0 to 2; nothing
is chosen. Measured on the first 200 test pairs, over queries with at least 4 keys, with a head's keys as patterns, its query as the state
and the head's scale as beta: (1) *left*, how much of the way from the query to the fixed point is left after one update; (2) *alone*, the share of queries
whose fixed point is one pattern (exp of the entropy of its attention below 1.5); (3) *separated*, the share of keys that meet the condition of Ramsauer et al. 2021 for well separated patterns,
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
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.language_modelling import MODELS
from benchmarks.reports import rows_of, write_table
from benchmarks.timing import RESULTS, machine
from benchmarks.verdicts import Gains, gains, holm, still_rose, verdict
from probtx_pyro import nn
from probtx_pyro.data import load_pairs, load_text, text_transformer
from probtx_pyro.inspection import Captured, capture
from probtx_pyro.train import LanguageModelSettings, TranslationSettings, train_language_model, train_translation

FOLDER = RESULTS / "statements"
SEEDS, TRIAL_SEED, RATES = range(3), 100, (2e-3, 4e-3, 8e-3)
LANGUAGE = LanguageModelSettings(num_steps=500, batch=16, context=64, width=64, heads=4, layers=2, validate_every=400)
VALIDATION = 40_000  # characters
TRANSLATION = TranslationSettings(
    num_steps=800, batch=64, width=64, heads=4, layers=2, vocabulary=2000, lr=2e-3, validate_every=800
)
PAIRS, WINDOWS, LEAST = 200, 16, 4  # test pairs, windows, and the least number of keys
NEAR, ALONE, STEPS = 0.05, 1.5, 2000
PADDED = -1
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
    cast("dict[str, Any]", nn.ATTENTIONS)["fixed"] = Fixed
    own = replace(settings, attention="fixed", options={"fixed": ROWS[row]})
    done = train_language_model(own, text, progress=False, threads=1)
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
    start = torch.tensor([1])  # the number of the token that a target begins with
    pad = torch.nn.utils.rnn.pad_sequence
    source = pad([tokens.encode(pair.source) for pair in test], batch_first=True, padding_value=PADDED)
    target = [torch.cat([start, tokens.encode(pair.target)]) for pair in test]
    before = pad(target, batch_first=True, padding_value=PADDED)
    with torch.no_grad():
        layers = capture(done.model.eval(), source.clamp(min=0), before.clamp(min=0), source == PADDED)
    found: dict[str, list[dict[str, dict[str, float]]]] = {}
    for name, layer in layers.items():
        kind = "cross" if name.endswith("cross") else "decoder" if name.startswith("decoder") else "encoder"
        padded = source == PADDED if kind == "encoder" else before == PADDED
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


# -- tables ------------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """A statement that is tested.

    source, said, tested: which, what, and how.
    gains: of the side that is said to be better.
    rose: of either side, whether its score still rose.
    unit: of the gains.
    """

    source: str
    said: str
    tested: str
    gains: Gains
    unit: str
    rose: tuple[bool, bool] = (False, False)


class Place(NamedTuple):
    """A statement that is derived, or why it has no row.

    source, said, tested, where: which, what, how, and the place or the reason.
    """

    source: str
    said: str
    tested: str
    where: str


def files(pattern: str) -> list[Found]:
    """The contents of files of `FOLDER`."""
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"{pattern}.json"))]


def runs_of(row: str) -> list[Found]:
    """The finished runs of one of `ROWS`."""
    return files(f"{slug(row)}-seed-*")


def nats(row: str) -> dict[int, float]:
    """Nats a character of each seed."""
    return {run["settings"]["seed"]: run["nats"] for run in runs_of(row)}


def of_languages(first: str, second: str, said: str) -> Claim:
    """A claim on two rows of the language models."""
    pair = runs_of(first), runs_of(second)
    rose = tuple(bool(runs) and still_rose(runs, lower=True)[1] for runs in pair)
    tested = f"small language models, {first}, better than {second.removesuffix(' (control)')}"
    return Claim(
        "EF", said, tested, gains(nats(first), nats(second), lower=True), "nats a character", (rose[0], rose[1])
    )


def of_heads(what: str, said: str, lower: bool = False) -> Claim:
    """A claim on cross-attention and the decoder's self-attention."""
    by_kind = {
        kind: {run["settings"]["seed"]: run["kinds"][kind]["matched"][what] for run in files("translation-seed-*")}
        for kind in ("cross", "decoder")
    }
    tested = f"trained translation models, *{what}*: cross-attention beside the decoder's self-attention"
    return Claim("EF", said, tested, gains(by_kind["cross"], by_kind["decoder"], lower=lower), f"of *{what}*")


def by_window(way: str) -> dict[int, float]:
    """The share of queries near their fixed point, of each window."""
    return {i: window[way]["near"] for run in files("text-transformer") for i, window in enumerate(run["windows"])}


def over_softmax() -> dict[tuple[int, int], float]:
    """Logarithm of the time of two keys in half the heads over softmax in all, by width and number of tokens."""
    rows = json.loads((RESULTS / "efficiency_width_cpu.json").read_text())["rows"]
    rows = [row for row in rows if row.get("pass") == "forward + backward"]
    return {(row["width"], row["N"]): math.log(row["over softmax, all heads"]["MGK, half the heads"]) for row in rows}


def runs_of_wikitext(model: str) -> list[Found]:
    """The language models of WikiText-2 by words."""
    name = model.replace(", ", "-").replace(" ", "-").lower()
    paths = (RESULTS / "language_modelling").glob(f"wikitext2-{name}-2000-steps-seed-*.json")
    return [json.loads(path.read_text()) for path in sorted(paths)]


def perplexities(model: str, part: str) -> dict[int, float]:
    """Of the language models of WikiText-2, by seed."""
    return {run["settings"]["seed"]: run["metrics"][part]["perplexity"] for run in runs_of_wikitext(model)}


def statements() -> list[Claim | Place]:
    """All rows of the first table."""
    identity, start = "no weights of queries and keys", "queries and keys as at the start"
    time, mgk, softmax = over_softmax(), "MGK, 8 heads", "softmax, 8 heads"
    widths = sorted({width for width, _ in time})
    decoder = "the decoder's attention to the encoder meets Hopfield's conditions, self-attention does not"
    easier = "weights of queries and keys are less sensitive than those of values (*easier to train*, the other reading, says the contrary of this row)"
    survives = "fast convergence may survive the transformations of queries and keys"
    near, half = (
        by_window("as trained"),
        f"at least half of the queries of a window have at most {NEAR:.0%} of the way left after one update",
    )
    page = "../mathematics.md"
    return [
        of_heads("left", decoder, lower=True),
        of_heads("alone", "the same"),
        of_heads("separated", "the same"),
        Place("EF", "the same: in cross-attention the patterns are fixed", "by construction: all target words and steps ask one memory for each layer; in self-attention patterns move with the states",
              f"[mathematics 4.2]({page}#42-hopfield-memories)"),
        of_languages(identity, "uniform attention (control)", "else language models would do fairly well without weights"),
        of_languages("no weights at all", NONE, "the same, values and output included"),
        of_languages(ALL, identity, "the knowledge must be in these weights"),
        of_languages(start, "values and output as at the start", easier),
        Claim("EF", survives, f"carried text transformer: {half}", gains(near, dict.fromkeys(near, 0.5)), "of the queries"),
        Claim("EF", survives, "the same share, larger than of the states before the projections", gains(near, by_window("states, no projections")), "of the queries"),
        Place("EF", "a fully connected layer or linear attention is a classical Hopfield layer; Boltzmann machines, Ising", "derived; sums over all states",
              f"true with one matrix for in and out, and not of GELU or ReLU: [mathematics 4.4]({page}#44-classical-memories-boltzmann-machines-ising)"),
        Place("EF", "the free energy is dual to maximum entropy", "derived; another optimiser", f"true: [mathematics 4.5]({page}#45-maximum-entropy)"),
        Place("EF", "the quadratic term of the energy fulfils the duty of the skip connection", "derived; a gradient", f"only damped: a layer with a residual has the quadratic term of the other sign: [mathematics 4.2]({page}#42-hopfield-memories)"),
        Place("EF", "hidden states stand for a continuous distribution", "derived; all draws of three points", f"where keys are far more than the exponential of the variance of their logits: [mathematics 4.7]({page}#47-words-around-a-context-vector-and-mean-field)"),
        Place("EF", "Arora's random walk of a context vector may be equivalent to McBal's mean field", "derived; sums over all sentences, contexts by quadrature",
              f"one model, where log Z is quadratic, and its mean field; its softmax runs over words and not over positions: [mathematics 4.7]({page}#47-words-around-a-context-vector-and-mean-field)"),
        Place("EF, CRF", "neither theory explains several heads", "derived; sums over all joint assignments",
              f"a product of assignments, one for each head; why heads differ stays open: [mathematics 4.6]({page}#46-several-heads)"),
        Claim("MGK", "its advantage in time grows with the length", "half the heads over softmax, 4,096 beside 1,024 tokens; interval over 5 widths",
              gains({w: time[w, 4096] for w in widths}, {w: time[w, 1024] for w in widths}, lower=True), "log ratio"),
        Claim("MGK", "and with the size of the model", "the same by doubling of the width, at 4,096 tokens; interval over 4 doublings",
              gains({w: time[2 * w, 4096] for w in widths[:-1]}, {w: time[w, 4096] for w in widths[:-1]}, lower=True), "log ratio"),
        Claim("MGK", "8 heads better than softmax on the validation part, too", "WikiText-2 by words",
              gains(perplexities(mgk, "validation"), perplexities(softmax, "validation"), lower=True), "of perplexity",
              (still_rose(runs_of_wikitext(mgk), lower=True)[1], still_rose(runs_of_wikitext(softmax), lower=True)[1])),
        Place("MGK", "medium models", "no row: WikiText-103 by models of that size is beyond two cores", "small ones stand in [the papers' tables](the_papers_tables.md#mixtures-of-gaussian-keys-nguyen-et-al-2022)"),
        Place("MGK", "future work: nonparametric regression, Fourier integral attention", "derived; loops and dense solutions", f"layers and what they lack: [mathematics 8.5]({page}#85-attention-as-nonparametric-regression)"),
        Place("PT [4-6]", "axial attention, disentangled attention, the Lipschitz constant of attention", "no statement: listed among the references, cited nowhere in the text", "nothing to test"),
        Place("PT [7]", "attention that does not explain away", "derived; loops over scalars", f"doubly normalised attention is no E-step: it is a step of EM on the keys: [mathematics 6]({page}#6-soft-k-means)"),
        Place("PT", "a deep network may produce queries for all the units (segmentation)", "no row: no trained network for pictures is here",
              "`InteractiveSegmenter.from_image(image, features=)` takes its features as queries (`tests/apps/test_segmentation.py`); what they buy is [the follow-up paper's](segmentation.md#the-follow-up-paper) question, whose networks are not here"),
    ]  # fmt: skip


def statements_table() -> list[str]:
    """The first table: every statement, its figure, its verdict or place."""
    rows = statements()
    found = {i: verdict(row.gains, row.rose) for i, row in enumerate(rows) if isinstance(row, Claim)}
    corrected = dict(zip(found, holm([each.p for each in found.values()]), strict=True))
    body = []
    for i, row in enumerate(rows):
        if isinstance(row, Place):
            body.append([row.source, row.said, row.tested, "", "", row.where])
            continue
        each = found[i]
        figure = "" if math.isnan(each.low) else f"{each.mean:+.3f} ({each.low:+.3f} to {each.high:+.3f}) {row.unit}"
        p = "" if math.isnan(each.p) else f"{each.p:.2g}, {corrected[i]:.2g}"
        body.append(
            [row.source, row.said, row.tested, figure, p, f"**{each.word}**{f' ({each.more})' if each.more else ''}"]
        )
    said = f"{len(found)} claims; of as many without a difference chance would call {0.05 * len(found):.1f} decided."
    head = [
        "source",
        "statement",
        "how tested",
        "gain of the side that is said to be better (95 %)",
        "p, Holm's p",
        "verdict, or place",
    ]
    return [said, "", *rows_of(head, *body)]


def spread(values: list[float], digits: int = 3) -> str:
    """Mean and standard deviation."""
    if len(values) < 2:
        return "not run yet"
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def languages_table() -> list[str]:
    """The language models with fixed weights."""
    all_, none = nats(ALL), nats(NONE)
    body = []
    for row in ROWS:
        by_seed = nats(row)
        share = [(none[i] - x) / (none[i] - all_[i]) for i, x in by_seed.items() if i in all_ and i in none]
        rate = [f"{found['lr']:g}" for found in files(f"rate-{slug(row)}")]
        trials = [[x for rate, x in found["nats"].items() if float(rate) in RATES] for found in files(f"rate-{slug(row)}")]  # fmt: skip
        steady = [f"{max(each) - min(each):.3f}" for each in trials]
        rose = f"{still_rose(runs_of(row), lower=True)[0]:.1%}" if by_seed else "-"
        body.append([row, *(rate or ["-"]), *(steady or ["-"]), spread(list(by_seed.values())), spread(share, 2), rose, str(len(by_seed))])  # fmt: skip
    head = [
        "row",
        "rate",
        f"worst less best of rates {RATES[0]:g} to {RATES[-1]:g}, trials",
        "nats a character",
        "share of attention's gain",
        "perplexity still fell, last fifth",
        "seeds",
    ]
    return rows_of(head, *body)


def heads_table() -> list[str]:
    """Heads as memories: the translation models, then the text transformer."""
    names = {"cross": "decoder to encoder", "decoder": "decoder to itself", "encoder": "encoder to itself"}
    runs, what = files("translation-seed-*"), ("left", "alone", "separated")
    body = [
        ["translation, " + name, way, *(spread([run["kinds"][kind][way][x] for run in runs]) for x in what), "-"]
        for kind, name in names.items()
        for way in ("matched", "as trained")
    ]
    for way in ("as trained", "states, no projections"):
        windows = [window[way] for run in files("text-transformer") for window in run["windows"]]
        body.append(["text transformer", way, *(spread([window[x] for window in windows]) for x in (*what, "near"))])
    dev = [run["metrics"]["dev"] for run in runs]
    said = f"The translation models: dev BLEU {spread([x['BLEU'] for x in dev], 1)}, perplexity {spread([x['perplexity'] for x in dev], 1)}."
    return [*rows_of(["attention", "queries and keys", *what, f"left at most {NEAR:g}"], *body), "", said]


THEIRS = {  # perplexity of the small models, validation and test
    "softmax, 8 heads": ("33.15", "34.29"), "MGK, 4 heads": ("33.28", "34.21"), "shifted MGK, 8 heads": ("32.92", "33.99"),
    "MGK, 8 heads": ("32.74", "33.93"), "softmax, 4 heads": ("34.80", "35.85"), "linear, 8 heads": ("38.07", "39.08"),
    "MLK, 4 heads": ("38.49", "39.46"), "MLK, 8 heads": ("37.78", "38.99"), "linear, 4 heads": ("39.32", "40.17"),
}  # fmt: skip


def validation_table() -> list[str]:
    """Validation and test perplexity of MGK's table, theirs and ours."""
    body = [
        [model, *THEIRS.get(model, ("-", "-")), *(spread(list(perplexities(model, part).values()), 2) for part in ("validation", "test"))]
        for model in MODELS
    ]  # fmt: skip
    return rows_of(["model", "theirs: validation", "theirs: test", "ours: validation", "ours: test"], *body)


MADE = {
    "statements": statements_table,
    "fixed weights": languages_table,
    "heads as memories": heads_table,
    "validation": validation_table,
}


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
    for name, made in MADE.items():
        write_table("statements_of_the_sources.md", name, made())


if __name__ == "__main__":
    main()

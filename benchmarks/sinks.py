"""Attention sinks in training: small language models that may attend to nothing, beside softmax, which may not.

    python -m benchmarks.sinks [--quick] [--table] [--only NAME ...] [--seeds N ...] [--pretrained]

Protocol, written before any figure of these models was seen.

**Models** (`MODELS`), which differ in one thing: what a query may attend to beside the tokens before it. Softmax: nothing. Softmax plus
one: a unit of logit 0 that answers 0, ``add_zero_attn`` (docs/mathematics.md (2.25) with s_0 = 0). Learned temperature: nothing again,
but each head learns its temperature, as the next two do; the control of both. Learned sink: a background whose logit each head
learns, and whose answer is 0. Background with a prior: the same with a learned answer; the objective adds the log density of weight,
answer and temperature under `train.language_model.standard_priors`, as MAP estimation does: the priors are worth about one observation
beside a million characters.

**Training.** Tiny Shakespeare by characters, the last tenth held out; four blocks of width 64 with four heads, contexts of 128 that
start anywhere, no token that marks a start; 2,000 AdamW steps of 16 rows, rate 0.002, as in `benchmarks.language_modelling`, of which
nothing was tuned for any model: "short trials" of rule 3. Three seeds. Nothing is chosen by the held-out part.

**Scores**, on the held-out part: perplexity over all its rows; on its first 64 rows the mean attention, by layer and head, of queries
16 to 127 to the first token and to the unit beside the tokens; and by layer the kurtosis (E(x - m)⁴ / sd⁴ over the channels of one
token, mean over tokens) of what a block puts out, of first tokens and of those from 16 on. 3 is Gaussian.

**Sinks appear** if some head of softmax gives the first token more than 0.3 of its attention on average over the seeds
(`benchmarks.real_transformers` calls that a sink head; even attention would give 0.02). If none does, no claim about them is tried: a
model without sinks says nothing of what avoids them.

**Claims** (`CLAIMS`): each model that may attend to nothing has a lower perplexity, and a lower kurtosis (mean over layers, tokens from
16 on), than its control; and where sinks appear, gives the first token less (mean over layers and heads). Intervals by
`benchmarks.verdicts`: perplexity over seeds and over the held-out text in 32 blocks, the others over seeds; Holm's correction beside.

**Trained models of others.** Of SmolLM2 the figures are those of `benchmarks.real_transformers`, and one more: the first token's
logit replaced by a constant a head in every layer, the largest change of the other tokens' attention after renormalisation, which is 0
but for rounding if a sink is a background. Of the text transformer of the library: mass and logit of the first character by head, over
16 pieces of 128 characters of text that it was not trained on, queries from 16 on.

A run is a file of ``results/sinks`` and is not run again; one that was killed goes on from its checkpoint in ``benchmarks/cache``.
``--quick`` is one seed of 200 steps, in files of its own. ``--pretrained`` measures the last paragraph, which needs the extra ``real``.
"""

import argparse
import math
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.language_modelling import read
from benchmarks.reports import Tables, rows_of, whole_file, write_tables
from benchmarks.timing import RESULTS, as_json, keep, machine
from benchmarks.verdicts import Items, Verdict, gains, holm, still_rose, verdict
from probtx_pyro import inspection
from probtx_pyro.data import load_text, text_transformer
from probtx_pyro.train import LanguageModelSettings, train_language_model

FOLDER, CACHE = RESULTS / "sinks", Path(__file__).parent / "cache"
PRETRAINED = RESULTS / "sinks_pretrained.json"
SEEDS, STEPS, QUICK_STEPS = (0, 1, 2), 2000, 200
FIRST, ROWS, BLOCKS, SINK, PIECES = 16, 64, 32, 0.3, 16
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"attention": "softmax"},
    "softmax plus one": {"attention": "softmax", "options": {"add_zero_attn": True}},
    "learned temperature": {"attention": "gaussian"},
    "learned sink": {"attention": "gaussian", "options": {"background": "zero"}},
    "background with a prior": {"attention": "gaussian", "options": {"background": "learned"}, "map_training": True},
}
CONTROLS = {
    "softmax plus one": "softmax",
    "learned sink": "learned temperature",
    "background with a prior": "learned temperature",
}


class Claim(NamedTuple):
    """A model is lower than its control in a score."""

    model: str
    score: str


CLAIMS = [Claim(model, score) for score in ("perplexity", "kurtosis", "first") for model in CONTROLS]


def settings_of(model: str, seed: int, quick: bool = False) -> LanguageModelSettings:
    steps = QUICK_STEPS if quick else STEPS
    small = {"width": 64, "heads": 4, "batch": 16, "num_steps": steps, "validate_every": steps // 10}
    return LanguageModelSettings(**small, **MODELS[model], seed=seed)


def file_of(model: str, settings: LanguageModelSettings) -> Path:
    return FOLDER / f"{model.replace(' ', '-')}-{settings.num_steps}-steps-seed-{settings.seed}.json"


# -- scores ----------------------------------------------------------------------------------------------------------------


def kurtosis(x: Tensor) -> Tensor:
    """``E(x - m)⁴ / sd⁴`` over the last axis."""
    away = x.double() - x.double().mean(-1, keepdim=True)
    return away.pow(4).mean(-1) / away.square().mean(-1).square()


def blocks_put_out(model: Any, tokens: Tensor) -> Tensor:
    """What each block of a language model puts out, (layer, row, token, channel)."""
    found: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, x: found.append(x)) for block in model.blocks]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


@torch.no_grad()
def scores_of(model: Any, tokens: Tensor) -> dict[str, Any]:
    """What the file of a run says of its model, from the held-out tokens (token,)."""
    context = model.context
    rows = tokens[: (len(tokens) - 1) // context * context + 1].unfold(0, context + 1, context)
    nats = torch.cat([F.cross_entropy(model(x[:, :-1]).mT, x[:, 1:], reduction="none") for x in rows.split(ROWS)])
    some = rows[:ROWS, :-1]
    attention = model.attention_weights(some)[..., FIRST:, :].double().mean((1, 3))  # (layer, head, unit)
    spread = kurtosis(blocks_put_out(model, some)).mean(1)  # (layer, token)
    return {
        "blocks": [[float(x.double().sum()), x.numel()] for x in nats.tensor_split(BLOCKS)],
        "first": attention[..., 0].tolist(),
        "beside": attention[..., context:].sum(-1).tolist(),
        "kurtosis": spread[:, FIRST:].mean(-1).tolist(),
        "kurtosis of the first": spread[:, 0].tolist(),
    }


def run(model: str, settings: LanguageModelSettings, **how: Any) -> dict[str, Any]:
    """What the file of a run says, which is made if it is not there: trained on from its checkpoint."""
    path = file_of(model, settings)
    found = read(path, settings)
    if found is None:
        out, text = CACHE / f"sinks-{path.stem}", load_text("tinyshakespeare")
        resume = (out / "checkpoint.pt").exists()
        done = train_language_model(settings, text, out, resume=resume, progress=False, **how)
        kept = ("parameters", "steps", "perplexity", "validation", "seconds")
        found = {"model": model, "settings": asdict(settings), **{name: done.results[name] for name in kept}}
        found |= {**scores_of(done.model.eval(), done.vocabulary.encode(text.validation)), "on": machine()}
        keep(path, found)
        shutil.rmtree(out)
    return found


def runs_of(model: str, quick: bool = False) -> dict[int, dict[str, Any]]:
    """The runs of a model that are there, by seed."""
    found = {seed: read(file_of(model, one), one) for seed in SEEDS if (one := settings_of(model, seed, quick))}
    return {seed: done for seed, done in found.items() if done is not None}


@torch.no_grad()
def pretrained() -> dict[str, Any]:
    """Sinks of trained models of others."""
    from benchmarks.real_transformers import constants, every_layer, language_model, without_first

    one = without_first(every_layer(language_model().tried))
    plain, replaced = one.attention(), one.with_background(torch.as_tensor(constants().logit), instead_of=0).attention()
    others = [x[..., FIRST:, 1:] / x[..., FIRST:, 1:].sum(-1, keepdim=True) for x in (plain, replaced)]
    carried, text = text_transformer.load(), load_text("topics").validation
    size = text_transformer.CONTEXT
    heads = [carried.heads(text[i * size : (i + 1) * size]) for i in range(PIECES)]
    queries, keys = (torch.stack([getattr(x, name) for x in heads], 1) for name in ("queries", "keys"))
    future = torch.full((size, size), -torch.inf).triu(1)
    layers = inspection.captured(queries, keys, None, future, dims=("layer", "batch", "head"))
    found = inspection.sinks(layers.without(torch.arange(size) < FIRST))
    return {
        "SmolLM2": {"largest change of the others": float((others[0] - others[1]).abs().max())},
        "text transformer": {name: getattr(found, name).tolist() for name in ("mass", "logit", "logit_sd", "rest_sd")},
        "on": machine(),
    }


# -- tables ----------------------------------------------------------------------------------------------------------------


def score(done: dict[str, Any], name: str) -> float:
    """The figure of a run that a claim is about."""
    return float(done[name]) if name == "perplexity" else float(np.mean(done[name]))


def spread(values: list[float], digits: int) -> str:
    sd = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{sd}"


def largest_first(runs: dict[int, dict[str, Any]]) -> float:
    """Attention of the head that gives the first token most, by the mean over the seeds."""
    return float(np.mean([done["first"] for done in runs.values()], 0).max())


def appear() -> bool | None:
    """Whether sinks appear in softmax, by the rule of the protocol; None before all its seeds have been run."""
    runs = runs_of("softmax")
    return largest_first(runs) > SINK if len(runs) == len(SEEDS) else None


def models_table(quick: bool) -> list[str]:
    """Every score of every model."""
    body = []
    for model in MODELS:
        runs = runs_of(model, quick)
        each = list(runs.values())
        if not each:
            continue
        body.append([
            model, f"{each[0]['parameters']:,}", spread([x["perplexity"] for x in each], 3), f"{still_rose(each, lower=True)[0]:.1%}",
            spread([score(x, "first") for x in each], 3), f"{largest_first(runs):.3f}",
            spread([score(x, "beside") for x in each], 3) if np.size(each[0]["beside"]) and model in CONTROLS else "",
            spread([score(x, "kurtosis") for x in each], 2), spread([score(x, "kurtosis of the first") for x in each], 2), f"{len(each)}",
        ])  # fmt: skip
    head = ["model", "parameters", "perplexity", "its fall over the last fifth", "first token's mass", "largest of a head", "mass beside the tokens", "kurtosis", "of first tokens", "seeds"]  # fmt: skip
    return rows_of(head, *(body or [["none has been run yet", *[""] * 9]]))


def heads_table() -> list[str]:
    """Mass of the first token, and of the unit beside the tokens, by layer and head."""
    body = []
    for model in MODELS:
        runs = list(runs_of(model).values())
        for name, label in (("first", "first token"), ("beside", "beside the tokens")):
            if runs and (name == "first" or model in CONTROLS):
                mean = np.mean([x[name] for x in runs], 0)
                body.append([model, label, *(", ".join(f"{x:.2f}" for x in layer) for layer in mean)])
    return rows_of(["model", "mass of", *(f"layer {i}" for i in range(4))], *(body or [["none has been run yet", *[""] * 5]]))  # fmt: skip


def verdict_on(claim: Claim) -> Verdict:
    """The verdict on a claim, of the runs that are there."""
    pair = [runs_of(claim.model), runs_of(CONTROLS[claim.model])]
    figures = [{seed: score(done, claim.score) for seed, done in runs.items()} for runs in pair]
    items, rose = [], [False, False]
    if claim.score == "perplexity":
        items = [{s: Items("perplexity", np.array(x["blocks"])) for s, x in runs.items()} for runs in pair]
        rose = [bool(runs) and still_rose(list(runs.values()), lower=True)[1] for runs in pair]
    return verdict(gains(figures[0], figures[1], items, lower=True), rose)


def verdicts_table() -> list[str]:
    """Each claim, with its interval and Holm's correction over the page."""
    names = {"perplexity": "perplexity", "kurtosis": "kurtosis", "first": "mass of the first token"}
    claims = [x for x in CLAIMS if x.score != "first" or appear()]
    found = [verdict_on(claim) for claim in claims]
    body = []
    for claim, x, p in zip(claims, found, holm([x.p for x in found]), strict=True):
        interval = "" if math.isnan(x.mean) else f"{x.mean:+.3f}"
        interval += "" if math.isnan(x.low) else f" ({x.low:+.3f} to {x.high:+.3f})"
        word = ": ".join(filter(None, (x.word, x.more))) + " (short trials)"
        body.append([f"{claim.model}, lower {names[claim.score]} than {CONTROLS[claim.model]}", interval, "" if math.isnan(p) else f"{p:.2g}", word])  # fmt: skip
    return rows_of(["claim", "lower by, 95 % interval", "Holm's p", "verdict"], *body)


def pretrained_tables() -> Tables:
    """SmolLM2 and the text transformer."""
    known, kept = whole_file("real_transformers"), whole_file("sinks_pretrained")
    of_sinks = known["in sink heads"]
    rows = [
        ["heads that give the first token more than 0.3", f"{known['sink heads']} of 270"],
        *([label, f"{of_sinks[name]:.2f}"] for label, name in (
            ("in these, median: mass of the first token", "mass"), ("log mass of the background, s_0, mean over queries", "logit"),
            ("its sd over queries", "logit_sd"), ("sd of the log-sum-exp of the others", "rest_sd"),
            ("variance of the log odds explained by a constant s_0", "explained"), ("total variation of a row under a constant s_0", "constant_logit"),
        )),
        ["a constant s_0 in all heads: largest change of the others' attention, renormalised", f"{kept['SmolLM2']['largest change of the others']:.0e}"],
    ]  # fmt: skip
    heads = []
    for layer in range(2):
        for head in range(4):
            x = [kept["text transformer"][name][layer][head] for name in ("mass", "logit", "logit_sd", "rest_sd")]
            heads.append([f"{layer}.{head}", *(f"{value:.2f}" for value in x)])
    return {
        "SmolLM2": rows_of(["SmolLM2", ""], *rows),
        "text transformer": rows_of(
            ["head", "mass of the first character", "s_0, mean", "sd of s_0", "sd of the rest"], *heads
        ),
    }


def report_tables() -> Tables:
    """Tables of ``docs/reports/sinks.md``."""
    own = {"models": models_table(False), "heads": heads_table(), "claims": verdicts_table(), "quick": models_table(True)}  # fmt: skip
    return own | pretrained_tables()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, help="all three, or, quickly, the first")
    parser.add_argument("--quick", action="store_true", help="one seed of few steps")
    parser.add_argument("--pretrained", action="store_true", help="only the trained models of others")
    parser.add_argument("--table", action="store_true", help="only the tables of what is there")
    options = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    if options.pretrained:
        PRETRAINED.write_text(as_json(pretrained()))
    elif not options.table:
        for seed in options.seeds or ([0] if options.quick else SEEDS):
            for model in options.only:
                done = run(model, settings_of(model, seed, options.quick))
                print(f"{model}, seed {seed}: perplexity {done['perplexity']:.3f}, first token {score(done, 'first'):.3f}, {done['seconds']:.0f} s", flush=True)  # fmt: skip
    write_tables("sinks.md", report_tables())


if __name__ == "__main__":
    main()

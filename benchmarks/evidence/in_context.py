"""In context: do keys that adapt causally help a small language model, on its own text and on another's?

    PROBTX_DATA=... python -m benchmarks.evidence in-context [--steps N] [--only NAME ...] [--seeds N ...] [--cache FOLDER] [--quick]

Protocol, written before any test number was seen.

**Texts.** Tiny Shakespeare by characters: the first 90 % to train, the next 5 % to choose settings (validation), the last 5 % the test
("own"). Another text: the topics of ``pydoc_data.topics`` of the Python that runs ("other"), never trained or tuned on. A run of
characters that the training part does not have (digits, brackets, underscores, backquotes, ...) is one space there; the share of characters so replaced is
in the results. Rows of 32 characters side by side, the character before them given; blocks are 32 rows in a line of the own text, and
a topic of the other, of which the first 24 rows count (shorter ones than a row do not).

**Models.** `TransformerLM` of 2 layers, width 64, 4 heads of 16 channels, context 32; AdamW, 32 rows a step, 700 steps, for all:
the budget is equal in steps; seconds, and the time of a step over that of softmax, are reported. (A context of 128 with 8 rows and 600 steps was tried first, on the validation
part: all models stayed at the perplexity of pairs of characters, 10.6 to 11.7, where attention does nothing.)

- ``softmax``.
- ``Gaussian``: one Gaussian key a unit (``linked=False``), no adaptation.
- ``keys``: the same, with one causal step of ECM of the keys in every call, trained with it (prior strength learned by head).
- ``shift``: the same, with one causal step of the shift of all keys alone.
- ``keys, off`` and ``shift, off``: those two, read without their step.
- ``keys afterwards`` and ``shift afterwards``: the ``Gaussian`` model, read with a step it was not trained with. The prior is worth 1, 8,
  64, 512 or infinitely many queries (its strength over the key precision), in all heads; the number is chosen on the
  validation part, seed by seed. Infinitely many is no adaptation. What the other numbers do on the test texts is reported as well; it
  chooses nothing.

The learning rate of each trained model is chosen on the validation part at seed 0 from 0.005 and 0.01, and kept for seeds 1 and 2.

**Scores.** Perplexity of a character, its standard error over blocks (clusters; delta method), every seed; expected calibration error of
the likeliest next character (15 bins of equal width). Gain: nats a character less than ``Gaussian`` of the same seed, its
standard error over blocks of the mean of the seeds. A step helps on a text if all three seeds gain and the mean gain is more than two
standard errors; it harms if all three lose and the mean loss is; else nothing is shown. Position: the same in 16 bins of 2 positions, and whether
the gain of positions 25 to 32 exceeds that of positions 1 to 8.

**Reasons**, by the library's own layers (`attending`), on 32 rows of each text, spread evenly: log evidence of a query, layer by layer and head
by head, under the units as they are; under the units adapted to the queries up to it, which holds the query itself; and under those adapted to
the queries before it ("next": has the past said anything of the query to come?). How far the units have moved at the last position, in
standard deviations of their prior, and beside the spread of the keys of the head; how many queries the prior of each head is worth.

Runs stay in ``--cache`` (not in the repository) with their checkpoints, and so do scores; what is there is not run again.
"""

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.evidence.in_context_figure import draw
from benchmarks.evidence.in_context_scores import by_position, calibration_error, clustered
from benchmarks.evidence.one_step import OneStepAttention
from benchmarks.reports import Tables, rows_kept, short, write_tables
from benchmarks.reports import rows_of as table_of
from benchmarks.timing import ratio, rounds, write
from probtx_pyro import nn
from probtx_pyro.data import Text, Vocabulary, load_text
from probtx_pyro.train import LanguageModelSettings, train_language_model

LAYERS = {"softmax": nn.SoftmaxAttention, "gaussian": OneStepAttention, "library": nn.GaussianMixtureAttention}
UNLINKED: dict[str, Any] = {"linked": False}
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"attention": "softmax"},
    "Gaussian": {"attention": "gaussian", "options": UNLINKED},
    "keys": {"attention": "gaussian", "options": UNLINKED | {"adapt": {"steps": 1}}},
    "shift": {"attention": "gaussian", "options": UNLINKED | {"shift": True, "adapt": {"parameters": ["shift"]}}},
}
STEPS = ("keys", "shift")  # the models that adapt, named by what adapts
TEXTS = ("validation", "own", "other")
CACHE = Path("~/.cache/probtx_pyro/in_context").expanduser()


@dataclass(frozen=True, kw_only=True)
class Settings(LanguageModelSettings):
    """Settings of a run, with the layers of this benchmark."""

    RULES = {**LanguageModelSettings.RULES, "attention": LAYERS}


@dataclass(frozen=True)
class Size:
    """Sizes of the whole benchmark; ``worth`` are the queries that a prior is worth, beside infinitely many."""

    settings: Settings = Settings(num_steps=700, batch=32, width=64, heads=4, layers=2, context=32, validate_every=700)
    rates: tuple[float, ...] = (5e-3, 1e-2)
    seeds: tuple[int, ...] = (0, 1, 2)
    worth: tuple[float, ...] = (1.0, 8.0, 64.0, 512.0)
    block: int = 32
    most: int = 24
    looked_at: int = 32


QUICK = Size(
    Settings(num_steps=2, batch=2, width=8, heads=2, layers=1, context=8, validate_every=2), (5e-3,), (0,), (4.0,)
)


class Corpus(NamedTuple):
    """Texts of the benchmark: what is trained on, rows (row, context + 1) with their blocks (row,) by name, and the share replaced."""

    text: Text
    vocabulary: Vocabulary
    rows: dict[str, tuple[Tensor, Tensor]]
    replaced: float


def in_alphabet(text: str, alphabet: Sequence[str]) -> tuple[str, int]:
    """Return the text with every run of characters that are not in the alphabet as one space, and how many were replaced.

    >>> in_alphabet("a[10]b c", "abc ")
    ('a b c', 4)
    """
    known, found, foreign = set(alphabet), [], 0
    for i, x in enumerate(text):
        if x in known:
            found.append(x)
        else:
            foreign += 1
            if i == 0 or text[i - 1] in known:
                found.append(" ")
    return "".join(found), foreign


def rows_of(documents: Sequence[Tensor], context: int, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Return rows (row, context + 1) side by side, ``most`` of each document at most, and the number of its document (row,)."""
    rows = [x.unfold(0, context + 1, context)[:most] for x in documents if len(x) > context]
    return torch.cat(rows), torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(x) for x in rows]))


def corpus(size: Size, quick: bool) -> Corpus:
    """The texts; in a quick run the help of Python alone, a little of it."""
    from pydoc_data.topics import topics

    training, rest, _ = load_text() if quick else load_text("tinyshakespeare")
    if quick:
        training, rest = training[:20_000], rest[:2_000]
    half, context = len(rest) // 2, size.settings.context
    vocabulary = Vocabulary.of(training)
    parts = {"validation": vocabulary.encode(rest[:half]), "own": vocabulary.encode(rest[half:])}
    step = size.block * context
    documents = {name: [x[i : i + step + 1] for i in range(0, len(x), step)] for name, x in parts.items()}
    other = [in_alphabet(topics[name], vocabulary.tokens[1:]) for name in sorted(topics)][: 4 if quick else None]
    rows = {name: rows_of(x, context) for name, x in documents.items()}
    rows["other"] = rows_of([vocabulary.encode(x) for x, _ in other], context, size.most)
    foreign = sum(count for _, count in other) / sum(len(topics[name]) for name in sorted(topics)[: len(other)])
    return Corpus(Text(training, rest[:half]), vocabulary, rows, foreign)


# -- models ---------------------------------------------------------------------------------------------------------------------


def trained(name: str, seed: int, rate: float, size: Size, texts: Corpus, cache: Path) -> tuple[nn.TransformerLM, dict]:
    """The model of a run, and its results: as kept, or trained (further)."""
    settings = replace(size.settings, **MODELS[name], seed=seed, lr=rate)
    out = cache / f"{name}-{settings.num_steps}-steps-rate-{rate:g}-seed-{seed}"
    resume = (out / "checkpoint.pt").exists()
    done = train_language_model(settings, texts.text, out, resume=resume, progress=False)
    return done.model.eval(), done.results


def chosen_rate(name: str, size: Size, texts: Corpus, cache: Path) -> tuple[float, dict[str, Any]]:
    """The rate with the smallest validation perplexity at the first seed, and the row of all."""
    found = {rate: trained(name, size.seeds[0], rate, size, texts, cache)[1]["perplexity"] for rate in size.rates}
    best = min(found, key=lambda rate: found[rate])
    rates, perplexities = list(found), [round(x, 4) for x in found.values()]
    return best, {"what": "rate", "model": name, "rates": rates, "validation perplexity": perplexities, "chosen": best}


def without_step(model: nn.TransformerLM, name: str, size: Size) -> nn.TransformerLM:
    """The trained model read without its step; a shift that it learned stays."""
    options = {key: x for key, x in MODELS[name]["options"].items() if key != "adapt"}
    return _with_weights(replace(size.settings, attention="gaussian", options=options), model)


def with_step(model: nn.TransformerLM, name: str, worth: float, size: Size) -> nn.TransformerLM:
    """The model read with a step that it was not trained with, under a prior worth so many queries in every head."""
    new = _with_weights(replace(size.settings, **MODELS[name]), model)
    with torch.no_grad():
        for block in new.blocks:
            layer: Any = block.attention
            getattr(layer, f"log_strength_{name}").copy_(layer.log_key_precision[:, 0] + math.log(worth))
    return new


def _with_weights(settings: Settings, model: nn.TransformerLM) -> nn.TransformerLM:
    new = settings.model(model.tokens.num_embeddings)
    new.load_state_dict(model.state_dict(), strict=False)
    return new.eval()


def cost(size: Size, texts: Corpus) -> dict[str, Any]:
    """Time of a training step over that of softmax, interleaved; of keys also by the library's layer, a matrix for every prefix."""
    rows = texts.rows["validation"][0][: size.settings.batch]

    def step(name: str, **changed: Any) -> Callable[[], None]:
        model = replace(size.settings, **(MODELS[name] | changed)).model(len(texts.vocabulary.tokens))
        return lambda: cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()

    times = rounds({name: step(name) for name in MODELS} | {"keys, library": step("keys", attention="library")}, 5)
    return {"what": "cost", **{f"{name} / softmax": round(ratio(times, name, "softmax"), 2) for name in times}}


# -- what is measured -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def scores(model: nn.TransformerLM, rows: Tensor) -> dict[str, np.ndarray]:
    """Nats of every character (row, position), the largest probability, and whether it was right."""
    logs = torch.cat([model(part[:, :-1]).log_softmax(-1) for part in rows.split(32)])
    top, guess = logs.max(-1)
    nats = -logs.gather(-1, rows[:, 1:].unsqueeze(-1)).squeeze(-1)
    return {"nats": nats.numpy(), "top": top.exp().numpy(), "right": (guess == rows[:, 1:]).numpy()}


@torch.no_grad()
def reasons(model: nn.TransformerLM, rows: Tensor, name: str) -> dict[str, np.ndarray]:
    """Evidence, movement and prior of each layer and head, (layer, head), while the model reads the rows.

    before, own, next: nats of a query under the units as they are, adapted to the queries up to it, and to the queries before it.
    moved: root mean square of what a coordinate of the units in sight has moved at the last position, in standard deviations of
    its prior; beside_keys: the same over that of the keys about their mean. worth: strength of the prior over the key precision.
    """
    inputs: list[Tensor] = []
    hooks = [
        block.attention.register_forward_pre_hook(lambda layer, given: inputs.append(given[0]))  # type: ignore[union-attr]
        for block in model.blocks
    ]
    model(rows[:, :-1])
    for hook in hooks:
        hook.remove()
    found: dict[str, list[Tensor]] = {}
    for block, x in zip(model.blocks, inputs, strict=True):
        layer: Any = block.attention
        given = layer.heads(x, x, x, is_causal=True)
        (before, queries), (after, alone) = layer.formulation(*given), layer.attending(*given)
        start, end = before.held(name).unsqueeze(2), after.held(name)  # (B, H, 1, ...) and, by prefix, (B, H, L, ...)
        past = after.with_parameters({name: torch.cat([start, end[:, :, :-1]], 2)})
        strength, keys = layer.constrained()[f"strength_{name}"], before.keys
        moved = (end[:, :, -1] - start[:, :, 0]).square().flatten(2).mean((0, 2)).sqrt()
        spread = (keys - keys.mean(2, keepdim=True)).square().mean((0, 2, 3)).sqrt()
        evidence = [before.log_evidence(queries), *(x.log_evidence(alone).squeeze(-1) for x in (after, past))]
        values = {what: x.mean((0, 2)) for what, x in zip(("before", "own", "next"), evidence, strict=True)}
        values |= {"moved": moved * strength.sqrt(), "beside_keys": moved / spread}
        values |= {"worth": strength / layer.log_key_precision.exp().squeeze(-1)}
        for what, x in values.items():
            found.setdefault(what, []).append(x)
    return {what: torch.stack(x).numpy() for what, x in found.items()}


def kept(path: Path, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays from a file; made, and written to it, where it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path.with_suffix(".new.npz"), **make())
        path.with_suffix(".new.npz").replace(path)
    with np.load(path) as found:
        return dict(found)


class Readings:
    """Scores of every way to read a text, by name of the way, seed and text."""

    def __init__(self, size: Size, texts: Corpus, cache: Path):
        self.size, self.texts, self.cache = size, texts, cache
        self.scores: dict[tuple[str, int, str], dict[str, np.ndarray]] = {}
        self.rows: list[dict[str, Any]] = []

    def read(self, way: str, seed: int, model: nn.TransformerLM, step: str | None = None) -> None:
        """Score a model on all texts; with the name of its step, look for reasons as well."""
        steps = self.size.settings.num_steps
        place = self.cache / "scores" / f"{way}-{steps}-steps-seed-{seed}".replace(" ", "-").replace(",", "")
        for text, (rows, _) in self.texts.rows.items():
            path = place.with_name(f"{place.name}-{text}.npz")
            self.scores[way, seed, text] = kept(path, lambda rows=rows: scores(model, rows))  # type: ignore[misc]
            if step is not None and text != "validation":
                some = rows[:: max(1, len(rows) // self.size.looked_at)][: self.size.looked_at]
                path = place.with_name(f"{place.name}-{text}-reasons.npz")
                arrays = kept(path, lambda some=some: reasons(model, some, step))  # type: ignore[misc]
                row = {"what": "reasons", "way": way, "seed": seed, "text": text}
                self.rows.append(row | {name: np.round(x.astype(float), 4).tolist() for name, x in arrays.items()})

    def nats(self, way: str, text: str, seed: int | None = None) -> np.ndarray:
        """Nats (row, position) of a seed, or their mean over the seeds."""
        seeds = self.size.seeds if seed is None else (seed,)
        return np.mean([self.scores[way, s, text]["nats"] for s in seeds], 0)

    def table(self, way: str, text: str) -> dict[str, Any]:
        """Row of a way to read a text: perplexity, calibration, and the gain over the Gaussian model without adaptation."""
        block = self.texts.rows[text][1].numpy()
        each = [self.scores[way, seed, text] for seed in self.size.seeds]
        gains = [self.nats("Gaussian", text, seed) - self.nats(way, text, seed) for seed in self.size.seeds]
        gain = np.mean(gains, 0)
        quarter = gain.shape[1] // 4
        nats = [clustered(x["nats"].mean(1), block) for x in each]
        late = clustered(gain[:, -quarter:].mean(1) - gain[:, :quarter].mean(1), block)
        mean_gain, error = clustered(gain.mean(1), block)
        signs = {np.sign(x.mean()) for x in gains}
        shown = len(signs) == 1 and abs(mean_gain) > 2 * error
        return {
            "what": "scores", "way": way, "text": text, "rows": len(block), "blocks": len(np.unique(block)),
            "perplexity": [round(math.exp(mean), 4) for mean, _ in nats],
            "standard error": [round(math.exp(mean) * own, 4) for mean, own in nats],
            "calibration error": [round(calibration_error(x["top"], x["right"]), 5) for x in each],
            "gain": [round(float(x.mean()), 5) for x in gains], "mean gain": round(mean_gain, 5),
            "standard error of the gain": round(error, 5), "late less early": [round(x, 5) for x in late],
            "verdict": "-" if way == "Gaussian" else ("helps" if mean_gain > 0 else "harms") if shown else "not shown",
            "nats by position": [np.round(by_position(x["nats"]), 4).tolist() for x in each],
        }  # fmt: skip


def afterwards(readings: Readings, name: str, seed: int, model: nn.TransformerLM) -> None:
    """Read the Gaussian model with a step under every prior, and choose one on the validation part."""
    ways = {math.inf: "Gaussian"} | {worth: f"{name} afterwards, worth {worth:g}" for worth in readings.size.worth}
    for worth in readings.size.worth:
        readings.read(ways[worth], seed, with_step(model, name, worth, readings.size), name)
    row: dict[str, Any] = {"what": "prior", "step": name, "seed": seed, "worth": [str(worth) for worth in ways]}
    for text in TEXTS:
        nats = [float(readings.nats(way, text, seed).mean()) for way in ways.values()]
        row[f"gain, {text}"] = [round(nats[0] - x, 5) for x in nats]
    best = list(ways)[int(np.argmax(row["gain, validation"]))]  # the first of equals, no adaptation before any
    readings.rows.append(row | {"chosen": str(best)})
    for text in TEXTS:
        readings.scores[f"{name} afterwards", seed, text] = readings.scores[ways[best], seed, text]


def _joined(numbers: Sequence[float], digits: int, sign: str = "") -> str:
    """Numbers side by side."""
    return ", ".join(short(x, digits, sign) for x in numbers)


def scores_table(rows: Sequence[dict[str, Any]], text: str, digits: int) -> list[str]:
    """Perplexity, calibration and gain of every way to read a text."""
    lines = []
    for row in rows:
        if row["what"] == "scores" and row["text"] == text:
            error = short(max(row["standard error"]), digits)
            gain = f"{short(row['mean gain'], 4, '+')} ± {short(row['standard error of the gain'], 4)}"
            late, late_error = row["late less early"]
            lines.append([
                row["way"], f"{_joined(row['perplexity'], digits)} (± {error})", _joined(row["calibration error"], 3), gain,
                _joined(row["gain"], 3, "+"), f"{short(late, 3, '+')} ± {short(late_error)}", row["verdict"],
            ])  # fmt: skip
    return table_of([f"{text} text", "perplexity", "calibration error", "mean gain", "each seed", "late less early", "verdict"], *lines)  # fmt: skip


def priors_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The step switched on afterwards: gains of every seed, the rise of the evidence of the next query, and how far the units move."""
    lines = []
    for step in STEPS:
        chosen = [row for row in rows if row["what"] == "prior" and row["step"] == step]
        for place, worth in enumerate(chosen[0]["worth"]):
            if worth == "inf":
                continue
            way, digits = f"{step} afterwards, worth {float(worth):g}", 3 if float(worth) < 64 else 4
            gains = [_joined([row[f"gain, {text}"][place] for row in chosen], digits, "+") for text in TEXTS]
            looks = [[row for row in rows if row["what"] == "reasons" and (row["way"], row["text"]) == (way, text)] for text in TEXTS[1:]]  # fmt: skip
            rise = [np.mean([np.subtract(row["next"], row["before"]) for row in own]) for own in looks]
            moved = [np.mean([row["beside_keys"] for row in own]) for own in looks]
            lines.append([step, f"{float(worth):g}", *gains, _joined(rise, 2, "+"), _joined(moved, 2)])
    return table_of(["step", "worth", *TEXTS, "evidence of the next query: own, other", "moved, of the spread: own, other"], *lines)  # fmt: skip


def trained_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The models trained with their step: what their priors are worth, the rise of the evidence of the next query, and how far the units move."""
    lines = []
    for step in STEPS:
        looks = [[row for row in rows if row["what"] == "reasons" and (row["way"], row["text"]) == (step, text)] for text in TEXTS[1:]]  # fmt: skip
        worth = np.array([row["worth"] for row in looks[0]])
        rise = [np.mean([np.subtract(row["next"], row["before"]) for row in own]) for own in looks]
        moved = [np.mean([row["beside_keys"] for row in own]) for own in looks]
        lines.append([step, f"{worth.min():.0f} to {worth.max():.0f}", _joined(rise, 2, "+"), _joined(moved, 2)])
    return table_of(["trained with the step", "priors worth, queries", "evidence of the next query: own, other", "moved, of the spread: own, other"], *lines)  # fmt: skip


def costs_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Time of a training step over that of softmax."""
    (row,) = (row for row in rows if row["what"] == "cost")
    ratios = {name.removesuffix(" / softmax"): x for name, x in row.items() if name != "what"}
    return table_of(list(ratios), [f"{x:.2f}" for x in ratios.values()])


def rates_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Validation perplexity at each learning rate, seed 0."""
    found = [row for row in rows if row["what"] == "rate"]
    head = ["validation perplexity", *(f"rate {rate:g}" for rate in found[0]["rates"])]
    return table_of(head, *([row["model"], *(f"{x:.2f}" for x in row["validation perplexity"])] for row in found))


def report_tables() -> Tables:
    """Tables of ``docs/reports/in_context.md``."""
    rows = rows_kept("evidence_in_context")
    return {
        "rates": rates_table(rows), "own text": scores_table(rows, "own", 2), "other text": scores_table(rows, "other", 1),
        "priors": priors_table(rows), "trained": trained_table(rows), "time": costs_table(rows),
    }  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="NAME", help="train these models, and stop")
    parser.add_argument("--seeds", nargs="+", type=int, help="read the models of these seeds, and stop")
    parser.add_argument("--steps", type=int, default=Size().settings.num_steps, help="of training")
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--quick", action="store_true", help="a few steps on Python's help; writes nothing")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    if args.quick:
        with tempfile.TemporaryDirectory() as cache:
            return run(QUICK, corpus(QUICK, True), Path(cache), quick=True)
    size = replace(Size(), settings=replace(Size().settings, num_steps=args.steps, validate_every=args.steps))
    run(size, corpus(size, False), args.cache, args.only, args.seeds)


def run(
    size: Size,
    texts: Corpus,
    cache: Path,
    only: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    quick: bool = False,
) -> None:
    """Train, choose, read, and write down."""
    rows: list[dict[str, Any]] = []
    readings, models = Readings(size, texts, cache), {}
    for name in only or MODELS:
        rate, row = chosen_rate(name, size, texts, cache)
        rows.append(row)
        for seed in size.seeds:
            models[name, seed], results = trained(name, seed, rate, size, texts, cache)
            some = {key: results[key] for key in ("perplexity", "seconds", "parameters")}
            rows.append({"what": "run", "model": name, "seed": seed, "rate": rate} | some)
            print(rows[-1], flush=True)
    if only:
        return
    for seed in seeds or size.seeds:
        for name in MODELS:
            readings.read(name, seed, models[name, seed], name if name in STEPS else None)
        for name in STEPS:
            readings.read(f"{name}, off", seed, without_step(models[name, seed], name, size))
            afterwards(readings, name, seed, models["Gaussian", seed])
            print(readings.rows[-1], flush=True)
    if seeds:
        return
    rows.append(cost(size, texts))
    ways = [*MODELS, *(f"{name}, off" for name in STEPS), *(f"{name} afterwards" for name in STEPS)]
    table = [readings.table(way, text) for text in TEXTS[1:] for way in ways]
    for row in table:
        print({key: x for key, x in row.items() if key != "nats by position"})
    if not quick:
        rows.append({"what": "other text", "share of characters replaced": round(texts.replaced, 4)})
        print(f"written to {write('evidence_in_context', [*rows, *table, *readings.rows])}")
        draw(table)
        write_tables("in_context.md", report_tables())


if __name__ == "__main__":
    main()

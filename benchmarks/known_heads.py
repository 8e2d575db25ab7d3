"""Whether half of the heads of a sentence, when they are known, help to find the others: ``probtx parse --keep head``.

``python -m benchmarks.known_heads`` writes ``benchmarks/results/known_heads.json``. Protocol, fixed before any number was seen:

- The small treebank, dev part. Every word's head is known with probability 1/2, HALVES times; the others are scored, in trees
  (`ops.spanning_arborescence`), a share of all scored words.
- Nothing known; known in the decoder alone, where they rule out arcs; and known to mean field as well, as ``--keep head`` does.
- Models, each with SEEDS: masked words and tags as `probtx train mlm` and `tagger` train them on the train part (STEPS steps, width 32, two
  channels, their mean is read), which never saw a head; and an encoder with a root and one channel that was trained to find heads: Adam
  on the log marginals of tags and heads, STEPS steps at 0.02, a word in five unknown.
- float32. Spread: standard deviation over the seeds of a model, and of the difference that the evidence makes.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.reports import Tables, rows_of, whole_file, write_tables
from benchmarks.timing import write
from probtx_pyro import apps, data, metrics, nn, train

SEEDS, HALVES, STEPS = range(5), 20, 300
OPTIONS: dict[str, Any] = {"num_channels": 2, "num_steps": 4, "distances": (2, 3, 5), "rank": "full"}
SETTINGS: dict[str, Any] = {"options": OPTIONS, "width": 32, "num_steps": STEPS, "batch": 8, "validate_every": STEPS}


def masked(treebank: Any, seed: int) -> tuple[Any, data.Vocabulary]:
    text = data.Text(*("\n".join(" ".join(s.words) for s in part) for part in (treebank.train, treebank.dev)))
    done = train.train_masked_language_model(
        train.MaskedSettings(**SETTINGS, seed=seed, rows="sentence"), text, progress=False
    )
    return done.model, done.vocabulary


def tagger(treebank: Any, seed: int) -> tuple[Any, data.Vocabulary]:
    parts = {
        name: [train.Example(s.words, tuple((tag,) for tag in s.upos)) for s in part]
        for name, part in (("train", treebank.train), ("dev", treebank.dev))
    }
    done = train.train_tagger(train.LabellingSettings(**SETTINGS, seed=seed), parts, progress=False)
    return done.model, done.vocabulary


def parser_of_heads(treebank: Any, seed: int) -> tuple[Any, data.Vocabulary]:
    """Trained on trees, where attention is syntax."""
    torch.manual_seed(seed)
    vocabulary = data.Vocabulary("word", ("<unk>", *sorted({word for s in treebank.train for word in s.words})))
    tags = sorted({tag for s in treebank.train for tag in s.upos})
    encoder = nn.DependencyCRFEncoder(
        32, 1, num_steps=4, distances=(2, 3, 5), rank="full", root_labels=1, mean_field={"head_temperature": 1.0}
    )
    model = nn.WordTagger(len(vocabulary.tokens), encoder, 32, (len(tags),), start=0.5)
    words = pad_sequence(vocabulary.numbers([s.words for s in treebank.train]), True, -1)
    given = [torch.tensor([[tags.index(t), h] for t, h in zip(s.upos, s.heads, strict=True)]) for s in treebank.train]
    right = pad_sequence(given, True, -1)
    real, optimizer = words >= 0, torch.optim.Adam(model.parameters(), lr=0.02)

    def logs(x: Tensor, column: int) -> Tensor:
        return x[real].gather(-1, right[..., column][real].unsqueeze(-1))

    for _ in range(STEPS):
        optimizer.zero_grad()
        kept = words.clamp(min=0) * (torch.rand(words.shape) > 0.2)
        field = encoder.field(model.embedded(kept), ~real)
        found = logs(model.tags(field.label_logits).log_softmax(-1), 0) + logs(
            field.head_marginals[:, 0].clamp_min(1e-12).log(), 1
        )
        (-found.mean()).backward()
        optimizer.step()
    return model.eval(), vocabulary


MODELS = {"masked words": masked, "tags": tagger, "tags and heads": parser_of_heads}


def scores(parser: apps.AttentionParser, sentences: Sequence[data.Sentence], seed: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    words, gold = [s.words for s in sentences], [s.heads for s in sentences]
    free, found = parser.head_marginals(words), {"nothing": [], "in the decoder": [], "in mean field, too": []}  # type: ignore[var-annotated]
    for _ in range(HALVES):
        told = [[h if torch.rand((), generator=generator) < 0.5 else None for h in row] for row in gold]
        others = [
            [h if k is None else -1 for h, k in zip(row, known, strict=True)]
            for row, known in zip(gold, told, strict=True)
        ]
        ways = [
            [parser.heads(x) for x in free],
            [parser.heads(x, known) for x, known in zip(free, told, strict=True)],
            parser.parse(words, told),
        ]
        for name, heads in zip(found, ways, strict=True):
            found[name].append(metrics.attachment_score(heads, others))  # type: ignore[arg-type]
    return {name: statistics.mean(x) for name, x in found.items()}


def report_tables() -> Tables:
    """The table of ``docs/reports/dependency_crf.md``."""
    found = whole_file("known_heads")["rows"]
    lines = []
    for name, each in found.items():
        gain = [row["in mean field, too"] - row["in the decoder"] for row in each]
        columns = [*([row[way] for row in each] for way in each[0]), gain]
        lines.append([name, *(f"{statistics.mean(x):.3f} ± {statistics.stdev(x):.3f}" for x in columns)])
    head = ["trained on", "no head known", "known to the decoder alone", "known to mean field, too", "what mean field adds"]  # fmt: skip
    return {"known heads": rows_of(head, *lines)}


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args(arguments)
    treebank, rows = data.load_treebank(), {}
    for name, build in MODELS.items():
        each = [scores(apps.AttentionParser(*build(treebank, seed)), treebank.dev, seed) for seed in SEEDS]
        rows[name] = each
        print(name, each, flush=True)
    write("known_heads", rows)
    write_tables("dependency_crf.md", report_tables())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

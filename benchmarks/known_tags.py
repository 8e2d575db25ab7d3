"""Whether tags that are known help a trained tagger with the others, as evidence about labels: the reason why they are refused.

``python -m benchmarks.known_tags --runs FOLDER ...``: taggers of ``probtx train tagger --data ewt``; SENTENCES of the dev part of EWT, each
word's tag known with probability 1/2 (seed 0). The tags of the other words are read by the tagger itself from its label scores, after
``log M[a, t]`` was added to the unary scores of the known words, for M = p(tag t | label a)

- of the readout at one label, ``softmax(W e_a + b)``;
- of ``Σ_i Q_i(a) p_i(t)`` over the words of these sentences (none of their tags known), with Q their labels and p the tagger's predictions,
  normalised; and after STEPS steps of expectation maximisation of ``Σ_i Σ_t p_i(t) log Σ_a Q_i(a) M[a, t]`` from there.

Fixed after a first look at 60 of these sentences and one of the runs, which pointed the same way.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.reports import Tables, rows_of, whole_file, write_tables
from benchmarks.task_runs import only_new
from benchmarks.timing import write
from probtx_pyro.data import Sentence, load_treebank
from probtx_pyro.train import load_run

SENTENCES, STEPS, LEAST = 300, (10, 100), 1e-8


def judged() -> list[Sentence]:
    """The first sentences of dev that train has not."""
    return list(only_new(load_treebank("ewt")._asdict(), lambda sentence: sentence.words)["dev"][:SENTENCES])


@torch.no_grad()
def scores(run: Any) -> dict[str, Any]:
    model, encoder, tags = run.model, run.model.encoder, {tag: i for i, tag in enumerate(run.labels[0])}
    sentences = judged()
    x = [model.embedded(words.unsqueeze(0)) for words in run.vocabulary.numbers([s.words for s in sentences])]
    fields = [encoder.field(one) for one in x]
    labels = torch.cat([field.label_marginals[0] for field in fields])
    said = torch.cat([model.tags(field.label_logits)[0].softmax(-1) for field in fields])
    given: Tensor = labels.T @ said
    emissions = {"at one label": (model.tags.weight.T + model.tags.bias).softmax(-1)}
    for step in range(max(STEPS) + 1):
        given = given / given.sum(1, keepdim=True)
        if step in (0, *STEPS):
            emissions[f"{step} steps"] = given
        given = given * (labels.T @ (said / (labels @ given).clamp_min(LEAST)))
    generator = torch.Generator().manual_seed(0)
    known = [torch.rand(len(s.words), generator=generator) < 0.5 for s in sentences]
    right = [torch.tensor([tags.get(tag, -1) for tag in s.upos]) for s in sentences]
    entropy = -(labels * labels.clamp_min(LEAST).log()).sum(-1).mean()
    found: dict[str, Any] = {"labels at once": float(entropy.exp())}
    for name, m in {"none": torch.ones_like(given), **emissions}.items():
        hits = []
        for one, told, true in zip(x, known, right, strict=True):
            evidence = m.clamp_min(LEAST).log()[:, true.clamp(min=0)].T * (told & (true >= 0)).unsqueeze(-1)
            best = model.tags(encoder(one + evidence))[0].argmax(-1)
            hits.append((best == true)[~told])
        found[name] = float(torch.cat(hits).double().mean())
    return found


NAMES = {
    "none": "none: no tag known",
    "at one label": "the readout at one label",
    "0 steps": "mean prediction of the words by their labels",
    "10 steps": "the same, 10 steps of expectation maximisation",
    "100 steps": "100 steps",
}


def report_tables() -> Tables:
    """The table of ``docs/reports/dependency_crf.md``."""
    found = whole_file("known_tags")["rows"]
    lines = [[said, *(f"{row[name]:.3f}" for row in found.values())] for name, said in NAMES.items()]
    spread = ["labels at once", *(f"{row['labels at once']:.1f}" for row in found.values())]
    return {"known tags": rows_of(["p(tag given label)", *(name.replace("_", " ") for name in found)], *lines, spread)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", nargs="+", type=Path, required=True)
    rows = {}
    for folder in parser.parse_args(arguments).runs:
        rows[folder.name] = scores(load_run(folder))
        print(folder.name, {name: round(x, 4) for name, x in rows[folder.name].items()}, flush=True)
    write("known_tags", rows)
    write_tables("dependency_crf.md", report_tables())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

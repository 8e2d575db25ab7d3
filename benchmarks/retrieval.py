"""Retrieval from Hopfield memories: corrupted images over β and load, capacity against D, steps until nothing moves.

Run with ``python -m benchmarks.retrieval [--quick]``; Fashion images from ``$PROBTX_DATA`` or downloaded once. Images have pixels in
[-1, 1] and are scaled to length 1, since β times a difference of dot products is what retrieval goes by: patterns of one length are
their own best match, and one β means the same for all. An erased pixel is 0, mid-grey. **The error is the largest over the pixels of
these scaled images**, whose pixels are 0.036 (Fashion, 784 of them) or 0.125 (digits, 64) in root mean square, and an image is
retrieved where it stays below 1e-2. That is 0.15 to 0.27 of a pixel in [-1, 1] for Fashion and 0.06 to 0.08 for digits; so it is also
said how many are retrieved to 1e-2 of a pixel in [-1, 1] ("exactly").
"""

import argparse
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.capacity import capacity
from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.retrieval_figure import draw
from benchmarks.timing import write
from probtx_pyro import models
from probtx_pyro.data import load_digits, load_fashion
from probtx_pyro.ops.entmax import ENTMAX

NEAR = 1e-2
Corruption = Callable[[Tensor, torch.Generator], Tensor]


def scaled(images: np.ndarray) -> tuple[Tensor, Tensor]:
    """Images (N, H, W) with pixels in [0, 1] as patterns of length 1, (N, H W), and their lengths before, (N,)."""
    pixels = 2 * torch.from_numpy(images).flatten(1) - 1
    lengths = pixels.norm(dim=-1)
    return pixels / lengths.unsqueeze(-1), lengths


def erased(share: float) -> Corruption:
    """Exactly this share of the pixels, others in every image, set to 0."""

    def corrupt(patterns: Tensor, generator: torch.Generator) -> Tensor:
        order = torch.rand(patterns.shape, generator=generator, dtype=patterns.dtype).argsort(-1)
        return patterns.masked_fill(order < round(share * patterns.shape[-1]), 0.0)

    return corrupt


def lower_half(patterns: Tensor, generator: torch.Generator) -> Tensor:
    return patterns * (torch.arange(patterns.shape[-1]) < patterns.shape[-1] // 2)


def noise(length: float) -> Corruption:
    """Gaussian noise whose root mean square length is this many times an image's."""

    def corrupt(patterns: Tensor, generator: torch.Generator) -> Tensor:
        draws = torch.randn(patterns.shape, generator=generator, dtype=patterns.dtype)
        return patterns + length / patterns.shape[-1] ** 0.5 * draws

    return corrupt


CORRUPTIONS: dict[str, Corruption] = {
    "random half erased": erased(0.5),
    "lower half erased": lower_half,
    **{f"noise of {size:g} lengths": noise(size) for size in (0.5, 1.0, 2.0, 4.0)},
}


class Size(NamedTuple):
    """How much is measured.

    seeds: choices of images and of what is erased. betas: of the curves. loads, erased, load_betas: of the tables.
    settle_loads, settle_betas: of the steps until nothing moves.
    """

    seeds: range = range(10)
    betas: tuple[float, ...] = tuple(np.logspace(0, 5, 25))
    loads: tuple[int, ...] = (10, 30, 100, 300, 900, 1797)
    erased: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
    load_betas: tuple[float, ...] = (30.0, 100.0, 300.0, 1000.0, 1e5)
    settle_loads: tuple[int, ...] = (10, 100, 900)
    settle_betas: tuple[float, ...] = tuple(np.logspace(0, 4, 17))


QUICK = Size(range(2), (10.0, 100.0, 1e3), (10, 100), (0.0, 0.5), (100.0,), (10, 100), (10.0, 100.0))


def chosen(images: np.ndarray, count: int, seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """``count`` of the images at random, scaled, their lengths, and a generator for what is done to them."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(images), generator=generator)[:count]
    return *scaled(images[some.numpy()]), generator


def shares(good: list[Tensor]) -> dict[str, Any]:
    """Means and least values over seeds of what is (seed, ...) of shares."""
    table = torch.stack(good)
    return {"retrieved": _rounded(table.mean(0)), "least": _rounded(table.amin(0))}


def over(betas: tuple[float, ...], good: list[Tensor]) -> dict[str, Any]:
    """`shares` for every β, the largest, and from which β on 99 % are retrieved on average."""
    found = shares(good)
    enough = [beta for beta, share in zip(betas, found["retrieved"], strict=True) if share >= 0.99]
    summary = {"best": max(found["retrieved"]), "99 % from beta": round(enough[0]) if enough else None}
    return {"beta": [round(beta, 2) for beta in betas], **found, **summary}


def _rounded(x: Tensor) -> Any:
    return [_rounded(row) for row in x] if x.dim() else round(float(x), 4)


def over_beta(name: str, images: np.ndarray, size: Size, count: int = 100) -> list[dict[str, Any]]:
    """100 stored images, each corrupted once: the share retrieved for every β."""
    rows = []
    variants = [("softmax", torch.float64, 1), ("softmax", torch.float32, 1), ("softmax", torch.float64, 5)]
    variants += [(other, torch.float64, 1) for other in ENTMAX if other != "softmax"]
    for what, corrupt in CORRUPTIONS.items():
        for transformation, dtype, steps in variants:
            good, exact, margins = [], [], []
            for seed in size.seeds:
                patterns, lengths, generator = chosen(images, count, seed)
                query = corrupt(patterns, generator)
                products = query @ patterns.T
                rivals = products.masked_fill(torch.eye(count, dtype=torch.bool), -math.inf).amax(-1)
                margins.append(products.diagonal() - rivals)
                errors = torch.stack(
                    [
                        models.Hopfield(patterns.to(dtype), beta, transformation=transformation).retrieve(query.to(dtype), steps)
                        for beta in size.betas
                    ]
                ).double().sub(patterns).abs().amax(-1)  # fmt: skip
                good.append((errors < NEAR).double().mean(-1))
                exact.append((errors * lengths < NEAR).double().mean(-1))
            own = torch.cat(margins)
            row = {"what": "beta", "data": name, "stored": count, "corruption": what, "transformation": transformation}
            row |= {"type": str(dtype).removeprefix("torch."), "steps": steps, "seeds": len(size.seeds)}
            row |= {**over(size.betas, good), "exactly": _rounded(torch.stack(exact).mean(0))}
            rows.append(row | {"margin": _rounded(own.quantile(torch.tensor([0.0, 0.1, 0.5], dtype=own.dtype)))})
    return rows


def known_half(name: str, images: np.ndarray, size: Size, count: int = 100) -> dict[str, Any]:
    """The same for a lower half of which it is known that it is erased: distances between the upper halves, images as values."""
    good = []
    for seed in size.seeds:
        patterns, _, generator = chosen(images, count, seed)
        seen = patterns.shape[-1] // 2
        query = lower_half(patterns, generator)[:, :seen]
        found = [
            models.GaussianMixture(patterns[:, :seen], patterns, beta).expected_outputs(query) for beta in size.betas
        ]
        good.append(((torch.stack(found) - patterns).abs().amax(-1) < NEAR).double().mean(-1))
    row = {"what": "beta, lower half known to be erased", "data": name, "stored": count, "seeds": len(size.seeds)}
    return row | over(size.betas, good)


def over_load(name: str, images: np.ndarray, size: Size, asked: int = 100) -> list[dict[str, Any]]:
    """The share of (up to 100) stored images retrieved in one step: (load, share erased), for each map and β."""
    rows, loads = [], [load for load in size.loads if load <= len(images)]
    for transformation in ENTMAX:
        for beta in size.load_betas:
            good = []
            for seed in size.seeds[: len(size.seeds) // 2]:
                table = []
                for load in loads:
                    patterns, _, generator = chosen(images, load, seed)
                    own = patterns[:asked]
                    query = torch.stack([erased(share)(own, generator) for share in size.erased])
                    found = models.Hopfield(patterns, beta, transformation=transformation).retrieve(query)
                    table.append(((found - own).abs().amax(-1) < NEAR).double().mean(-1))
                good.append(torch.stack(table))
            row = {"what": "load", "data": name, "transformation": transformation, "beta": beta, "seeds": len(good)}
            rows.append(row | {"stored": loads, "erased": list(size.erased), **shares(good)})
    return rows


def settled(name: str, images: np.ndarray, size: Size, asked: int = 100) -> list[dict[str, Any]]:
    """Steps until a state moves by less than 1e-6, and what it is then, by the effective number of patterns ``exp(entropy)``.

    Alone: below 1.5, so that no second pattern has an equal part. Global average: more than half of all. Metastable: between.
    """
    rows = []
    for load in size.settle_loads:
        for beta in size.settle_betas:
            steps, ends, own = [], [], []
            for seed in size.seeds[:3]:
                patterns, _, generator = chosen(images, load, seed)
                memory = models.Hopfield(patterns, beta)
                found = memory.settle(erased(0.5)(patterns[:asked], generator), num_steps=5000, tol=1e-6)
                attention = memory.attention(found.state)
                steps.append(torch.where(found.converged, found.num_steps, 5000))
                ends.append(torch.special.entr(attention).sum(-1).exp())
                own.append(attention.argmax(-1) == torch.arange(len(attention)))
            taken, number = torch.cat(steps).double(), torch.cat(ends)
            alone, everywhere = number < 1.5, number > load / 2
            kinds = {
                "alone, the right one": alone & torch.cat(own),
                "alone, another": alone & ~torch.cat(own),
                "metastable average": ~alone & ~everywhere,
                "global average": ~alone & everywhere,
            }
            row = {"what": "steps", "data": name, "stored": load, "beta": round(beta, 2), "seeds": len(steps)}
            row |= {"median steps": float(taken.median()), "most steps": float(taken.max())}
            row |= {"effective number, median": round(float(number.median()), 3)}
            rows.append(row | {kind: round(float(share.double().mean()), 4) for kind, share in kinds.items()})
    return rows


def corruption_table(rows: list[dict[str, Any]]) -> list[str]:
    """How many images one step of softmax brings back, by corruption."""
    plain = {"transformation": "softmax", "type": "float64", "steps": 1}
    found = {
        (row["data"], row.get("corruption", "lower half, known to be erased (distances on what is seen)")): row
        for row in rows
        if row["what"].startswith("beta") and plain.items() <= {**plain, **row}.items()
    }
    lines = []
    for what in dict.fromkeys(what for _, what in found):
        cells = []
        for name in ("fashion", "digits"):
            row = found[name, what]
            worst = row["least"][row["retrieved"].index(row["best"])]
            cells += [f"{100 * row['best']:.1f} % ({100 * worst:.0f} %)", str(row["99 % from beta"] or "never")]
        lines.append([what, *cells])
    head = [x for name in ("Fashion", "digits") for x in (f"{name}, best β: mean (worst seed)", "99 % from β =")]
    return rows_of(["corruption", *head], *lines)


def capacity_table(rows: list[dict[str, Any]]) -> list[str]:
    """Laws N = a cᴰ of the number of patterns on a sphere that a memory holds."""
    lines = [
        [
            f"{row['noise']:g}", f"{row['K']:g}", f"{row['D'][0]} to {row['D'][-1]}", f"{row['a']:.2g}", f"{row['c']:.3f}",
            " to ".join(f"{x:.3f}" for x in row["95 % interval of c"]), f"{row['c for large beta and D']:.3f}",
        ]
        for row in rows if row["what"] == "capacity"
    ]  # fmt: skip
    return rows_of(["noise, lengths", "K", "D", "a", "c", "95 % interval", "theory for large D"], *lines)


def report_tables() -> Tables:
    """Tables of ``docs/reports/retrieval.md`` from the file of this benchmark."""
    rows = rows_kept("retrieval")
    return {"corruptions": corruption_table(rows), "capacity": capacity_table(rows)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few seeds and values; writes nothing")
    quick = parser.parse_args(argv).quick
    size, rows = QUICK if quick else Size(), []
    for name, images in (("fashion", load_fashion().images), ("digits", load_digits().images)):
        rows += [*over_beta(name, images, size), known_half(name, images, size)]
        rows += [*over_load(name, images, size), *settled(name, images, size)]
    rows += capacity(quick)
    for row in rows:
        whole = row["what"].startswith(
            "capacity"
        )  # the curves and tables of the others are in the file and the picture
        print(" ", {key: value for key, value in row.items() if whole or not isinstance(value, list)})
    if not quick:
        print(f"written to {write('retrieval', rows)}")
        draw(rows)
        write_tables("retrieval.md", report_tables())


if __name__ == "__main__":
    main()

"""What layers lose of the exact filter of a stream, how calibrated filters are, and how many digits each form keeps.

``python -m benchmarks.memory`` runs all and writes ``docs/reports/memory.md``; ``--table`` writes it from the file of results.

Streams have 256 pairs of 16 features and 4 answers, λ = 1, β = 25, keys of norm 1, ``correlated`` with standard deviations
from 1 to 10^-1.5 before. Ten problems of seed 0 are scored; whatever a layer has to tune is chosen from a grid by its evidence
on six others, of seed 1000. Predictions are made before the value is seen.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from mpmath import mp, mpf
from pyro.distributions import Gamma
from torch import Tensor

from benchmarks.reports import rows_of, write_table
from probtx_pyro import inference, models, nn
from probtx_pyro.models import layers
from probtx_pyro.ops import regression_memory as filters

RESULTS = Path(__file__).parent / "results" / "memory.json"
STEPS, FEATURES, ANSWERS, BETA, DECAY = 256, 16, 4, 25.0, 0.99
SETTINGS = ("static", "static, correlated", "walk", "walk, correlated")
LEVEL = 0.9
NORMAL = 1.6448536269514722  # its quantile
Stream = tuple[Tensor, Tensor, Tensor]


def streams(setting: str, problems: int, seed: int, noise: str = "normal") -> Stream:
    """Keys (problem, step, feature), values (problem, step, answer) and the values without noise."""
    g = torch.Generator().manual_seed(seed)
    keys = torch.randn(problems, STEPS, FEATURES, generator=g, dtype=torch.float64)
    if "correlated" in setting:
        keys = keys * torch.logspace(0, -1.5, FEATURES, dtype=torch.float64)
    keys = keys / keys.norm(dim=-1, keepdim=True)
    memory = torch.randn(problems, ANSWERS, FEATURES, generator=g, dtype=torch.float64)
    clean = []
    for t in range(STEPS):
        if "walk" in setting:
            moved = torch.randn(memory.shape, generator=g, dtype=torch.float64)
            memory = DECAY * memory + math.sqrt(1 - DECAY**2) * moved
        clean.append((memory @ keys[:, t, :, None]).squeeze(-1))
    answers = torch.stack(clean, 1)
    error = torch.randn(answers.shape, generator=g, dtype=torch.float64)
    if noise == "t":  # Student's t of three degrees of freedom, of variance 1
        chi = torch.randn(3, *answers.shape, generator=g, dtype=torch.float64).square().sum(0)
        error = error / chi.sqrt()
    elif noise == "uneven":
        scale = 0.25 + 1.5 * torch.rand(*answers.shape[:-1], 1, generator=g, dtype=torch.float64)
        error = error * scale / math.sqrt(0.25**2 + 0.25 * 1.5 + 0.75)  # mean square 1
    return keys, answers + error / math.sqrt(BETA), answers


# -- what each layer has to tune -----------------------------------------------------------------------------------------

Make = Callable[..., Any]
STEP_SIZES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
FORGET = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)
DECAYS = (0.8, 0.9, 0.95, 0.97, 0.99, 1.0)
SPREADS = (0.0, 0.003, 0.01, 0.02, 0.03, 0.06, 0.1, 0.2)
SCALES = (0.03, 0.05, 0.07, 0.1, 0.2, 0.4)


def memory(drift: models.Drift | None = None) -> models.RegressionMemory:
    return models.RegressionMemory(1.0, BETA, drift)


def mesa(steps: int) -> Make:
    return lambda gamma: layers.mesa(1.0, BETA, gamma, steps)


def kalman(diagonal: bool, scale: float) -> Make:
    return lambda decay, spread: layers.kalman(1.0, BETA, decay, spread, diagonal, scale)


CANDIDATES: dict[str, tuple[Make, Mapping[str, tuple[float, ...]], bool]] = {
    "Discount": (lambda gamma: memory(models.Discount(gamma)), {"γ": FORGET}, False),
    "PullBack = MesaNet": (lambda gamma: memory(models.PullBack(gamma)), {"γ": FORGET}, False),
    **{f"Mesa, {k} CG": (mesa(k), {"γ": FORGET}, False) for k in (1, 2, 4, 8, 16)},
    "linear": (lambda c: layers.linear(c, noise_precision=BETA), {"c": SCALES}, True),
    "GLA, RetNet": (lambda c, g: layers.linear(c, g, BETA), {"c": SCALES, "γ": DECAYS}, True),
    "delta": (lambda b: layers.delta(b, 1.0, BETA), {"b": STEP_SIZES}, True),
    "gated delta": (lambda b, g: layers.delta(b, g, BETA), {"b": STEP_SIZES, "γ": DECAYS}, True),
    "KDN isotropic, s = 1": (kalman(False, 1.0), {"a": (0.99, 1.0), "ω": SPREADS}, False),
    "KDN isotropic, s = F": (kalman(False, FEATURES), {"a": (0.99, 1.0), "ω": SPREADS}, False),
    "KDN diagonal, s = 1": (kalman(True, 1.0), {"a": (0.99, 1.0), "ω": SPREADS}, False),
    "KDN diagonal, s = F": (kalman(True, FEATURES), {"a": (0.99, 1.0), "ω": SPREADS}, False),
    "softmax": (
        lambda s, beta, rate: layers.softmax(s, beta, rate),
        {"scale": (4.0, 8.0, 16.0, 32.0), "β": (1.0, 2.0, 4.0), "λ": (1.0, 2.0, 4.0)},
        False,
    ),
}  # fmt: skip
"""By name: what makes a layer, its grids, and whether its variance is one number that is fitted (else it implies one)."""


def densities(layer: Any, constant: bool, data: Stream, fitted: Stream) -> Any:
    """The predictive distribution of a layer on a stream."""
    if not constant:
        return layer.predictive(*data[:2])
    return layer.predictive(*data[:2], density="constant", variance=layer.fitted_variance(*fitted[:2]).mean())


def tuned(make: Make, grids: Mapping[str, tuple[float, ...]], constant: bool, other: Stream) -> tuple[float, ...]:
    """The point of the grids at which the evidence of other streams is largest."""

    def evidence(point: tuple[float, ...]) -> float:
        return float(densities(make(*point), constant, other, other).log_prob(other[1]).sum())

    return max(itertools.product(*grids.values()), key=evidence)


def covered(said: Any, values: Tensor) -> Tensor:
    """Share of the numbers of each problem inside the central band of 90 %, (problem,)."""
    if hasattr(said, "base_dist") and hasattr(said.base_dist, "scale"):
        inside = (values - said.mean).abs() <= NORMAL * said.base_dist.scale
    else:  # by draws, of a mixture or a Student's t
        with torch.random.fork_rng():
            torch.manual_seed(0)
            below = sum((said.sample((100,)) < values).double().mean(0) for _ in range(10)) / 10
        inside = 2 * (below - 0.5).abs() < LEVEL
    return inside.double().mean((-2, -1))


def scored(exact: Any, said: Any, data: Stream) -> dict[str, list[float]]:
    """Nats lost, squared error of the mean over the exact filter's, and coverage, each a number for every problem."""
    errors = [(x.mean - data[2]).square().mean((-2, -1)) for x in (said, exact)]
    lost = exact.log_prob(data[1]).sum(-1) - said.log_prob(data[1]).sum(-1)
    return {
        "lost": lost.tolist(),
        "error": (errors[0] / errors[1]).tolist(),
        "coverage": covered(said, data[1]).tolist(),
    }


def compare(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Every layer on every setting."""
    for setting in SETTINGS[:1] if quick else SETTINGS:
        data, other = streams(setting, 3 if quick else 10, 0), streams(setting, 2 if quick else 6, 1000)
        exact = memory(models.Walk(DECAY) if "walk" in setting else None).predictive(*data[:2])
        alone = torch.distributions.Normal(torch.zeros_like(data[1]), math.sqrt(1 + 1 / BETA))
        rows = {"exact filter": (exact, {}), "prior predictive": (torch.distributions.Independent(alone, 1), {})}
        for name, (make, grids, constant) in CANDIDATES.items():
            grids = {key: grid[-2:] for key, grid in grids.items()} if quick else grids
            point = tuned(make, grids, constant, other)
            rows[name] = densities(make(*point), constant, data, other), dict(zip(grids, point, strict=True))
        for name, (said, chosen) in rows.items():
            yield {"setting": setting, "layer": name, "tuned": chosen, **scored(exact, said, data)}


# -- noise that is known, wrong, or unknown --------------------------------------------------------------------------------


def fitted_early(data: Stream) -> models.RegressionMemory:
    """λ and β by EM on the first 64 pairs of each problem, under priors that are flat but far out."""
    start = models.RegressionMemory(
        torch.ones(len(data[0]), 1, dtype=torch.float64), torch.full((len(data[0]),), 4.0).double()
    )
    posterior = models.bayesian(start, prior_precision=Gamma(1.0, 1e-6), noise_precision=Gamma(1.0, 1e-6))
    return inference.adapt(posterior, *(x[:, :64] for x in data[:2]), num_steps=500, progress=False).formulation


FILTERS: dict[str, Callable[[Stream], Any]] = {
    "λ, β known": lambda data: memory(),
    "β 4 x too large": lambda data: models.RegressionMemory(1.0, 4 * BETA),
    "β 4 x too small": lambda data: models.RegressionMemory(1.0, BETA / 4),
    "λ 10 x too large": lambda data: models.RegressionMemory(10.0, BETA),
    "λ 10 x too small": lambda data: models.RegressionMemory(0.1, BETA),
    "Normal-Gamma(1, 1/25)": lambda data: models.RegressionMemory(
        1 / BETA, Gamma(torch.tensor(1.0).double(), torch.tensor(1 / 25).double()), relative=True
    ),
    "EM on the first 64 pairs": fitted_early,
}  # fmt: skip


def calibration(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Coverage and nats lost of filters whose precisions are known, wrong or learned, under three kinds of noise."""
    for noise in ("normal", "t", "uneven"):
        data = streams("static, correlated", 3 if quick else 10, 0, noise)
        exact = memory().predictive(*data[:2])
        for name, make in FILTERS.items():
            yield {"noise": noise, "filter": name, **scored(exact, make(data).predictive(*data[:2]), data)}


# -- digits --------------------------------------------------------------------------------------------------------------


def exactly(keys: Tensor, values: Tensor, beta: float) -> list[mpf]:
    """Log densities of a memory of prior precision 1 by 80 digits of mpmath, step by step; one answer."""
    size = keys.shape[-1]
    covariance, mean, found = mp.eye(size), mp.zeros(size, 1), []
    for key, value in zip(keys.tolist(), values[:, 0].tolist(), strict=True):
        phi = mp.matrix(key)
        spread = covariance * phi
        own = (phi.T * spread)[0] + 1 / mpf(beta)
        error = mpf(value) - (phi.T * mean)[0]
        found.append(-mp.log(2 * mp.pi * own) / 2 - error**2 / (2 * own))
        mean, covariance = mean + spread * (error / own), covariance - spread * spread.T / own
    return found


def digits(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Largest error of a step's log density, nats over 1 + |log p|, by form and dtype, as β grows."""
    mp.dps = 80
    g = torch.Generator().manual_seed(3)
    length, size = 48, 4
    keys = torch.randn(length, size, generator=g, dtype=torch.float64) * torch.logspace(
        0, -2, size, dtype=torch.float64
    )
    keys = (keys / keys.norm(dim=-1, keepdim=True)).float().double()
    truth = torch.randn(1, size, generator=g, dtype=torch.float64)
    for power in (2, 6) if quick else (2, 4, 6, 8, 10, 12, 14):
        beta = 10.0**power
        noise = torch.randn(length, 1, generator=g, dtype=torch.float64)
        values = (keys @ truth.mT + noise / math.sqrt(beta)).float().double()
        exact = exactly(keys, values, beta)
        condition = 1 + beta * length
        row: dict[str, Any] = {"condition": condition}
        for dtype in (torch.float64, torch.float32):
            data = (keys.to(dtype), values.to(dtype), torch.full((length,), beta, dtype=dtype))
            pairs = filters.Pairs(*data, torch.ones(length, dtype=torch.bool))
            eye, zero = torch.eye(size, dtype=dtype), torch.zeros(1, size, dtype=dtype)
            ways = {
                "chunk": lambda p=pairs, e=eye, z=zero: filters.chunks(p, None, z, e, None),
                "steps": lambda p=pairs, e=eye, z=zero: filters.steps(lambda t, m, c: (m, c), p, z, e, None)[0],
                "orthogonal": lambda p=pairs, e=eye, z=zero: filters.orthogonal(p, None, z, e, None, False),
            }
            for name, way in ways.items():
                found = filters.log_density(pairs, way()).double().tolist()
                errors = [
                    abs(mpf(x) - y) / (1 + abs(y)) if math.isfinite(x) else mpf("inf")
                    for x, y in zip(found, exact, strict=True)
                ]
                row[f"{name}, {str(dtype)[6:]}"] = float(f"{float(max(errors)):.1e}")
        yield row


def solver(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Steps of conjugate gradients until the error is 1e-3 and 1e-6, worst of 64 queries, by spectrum of the keys."""
    size = 32
    for low in (0.0, -0.5, -1.0, -1.5):
        g = torch.Generator().manual_seed(5)
        keys = torch.randn(256, size, generator=g, dtype=torch.float64) * torch.logspace(
            0, low, size, dtype=torch.float64
        )
        keys = keys / keys.norm(dim=-1, keepdim=True)
        matrix = 25 * keys.mT @ keys + torch.eye(size, dtype=torch.float64)
        asked = torch.nn.functional.normalize(torch.randn(64, size, generator=g, dtype=torch.float64), dim=-1)
        exact = torch.linalg.solve(matrix, asked.mT).mT
        row: dict[str, Any] = {"condition": float(f"{float(torch.linalg.cond(matrix)):.2g}")}
        for bound in (1e-3, 1e-6):
            for steps in range(1, 10 * size):
                found = filters.conjugate_gradient(matrix, asked, steps)[0]
                if float(((found - exact).norm(dim=-1) / exact.norm(dim=-1)).max()) <= bound:
                    break
            row[f"to {bound:g}"] = steps
        yield row


# -- associative recall ----------------------------------------------------------------------------------------------------

VOCABULARY = 64
TASKS = {"16 keys": (16, 16), "32 keys": (32, 32), "48 writings of 16 keys": (16, 48)}  # keys, writings
RECALLED: dict[str, tuple[str, bool]] = {  # the update, and whether it learns to forget
    "linear": ("linear", False), "GLA": ("linear", True), "delta": ("delta", False), "gated delta": ("delta", True),
    "KDN diagonal": ("kalman_diagonal", True), "ridge": ("exact", False), "PullBack": ("exact", True),
    "Discount": ("discount", True), "softmax": ("softmax", True),
}  # fmt: skip


class Recall(torch.nn.Module):
    """Embeddings of keys and values, one memory, and a linear reading of what it answers."""

    def __init__(self, update: str, forgets: bool):
        super().__init__()
        self.update, self.forgets = update, forgets
        self.keys = torch.nn.Embedding(VOCABULARY, FEATURES)
        self.values = torch.nn.Embedding(VOCABULARY, FEATURES)
        self.head = torch.nn.Linear(FEATURES, VOCABULARY)
        self.log_prior, self.scale = (torch.nn.Parameter(torch.tensor(x)) for x in (0.0, 3.0))
        self.keep = torch.nn.Parameter(torch.tensor(3.0))  # γ = sigmoid: .95

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
        """Logits of the value of each query, after all pairs; tokens (B, T) and (B, Q)."""
        phi, asked = (torch.nn.functional.normalize(self.keys(x), dim=-1).unsqueeze(1) for x in (keys, queries))
        written, length = self.values(values).unsqueeze(1), keys.shape[1]
        if self.update == "softmax":
            recent = torch.arange(length) * torch.nn.functional.softplus(-self.keep)
            scores = self.scale.exp() * asked @ phi.mT + recent
            return self.head((scores.softmax(-1) @ written).squeeze(1))
        ones = torch.ones(len(keys), 1, length)
        forgetting = torch.nn.functional.logsigmoid(self.keep) * ones if self.forgets else None
        prior = self.log_prior.exp() * ones[..., 0]
        stream = nn.MemoryStream(phi, written, ones, forgetting, prior, asked, False, 64)
        answers = nn.memory_updates[self.update](stream, None).mean.squeeze(1)
        return self.head(answers.to(written.dtype))  # from double precision, where a condition number asks for it


def sequences(task: str, number: int, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and values (B, T), queries and the values last written for them (B, Q)."""
    distinct, writings = TASKS[task]
    queries = torch.rand(number, VOCABULARY, generator=g).argsort(-1)[:, :distinct]
    rounds = writings // distinct
    order = torch.cat([torch.rand(number, distinct, generator=g).argsort(-1) for _ in range(rounds)], -1)
    order = order.gather(-1, torch.rand(number, writings, generator=g).argsort(-1))  # mixed, each key as often
    values = torch.randint(VOCABULARY, (number, writings), generator=g)
    when = torch.where(order.unsqueeze(1) == torch.arange(distinct)[:, None], torch.arange(writings), -1).amax(-1)
    return queries.gather(-1, order), values, queries, values.gather(-1, when)


def recall(quick: bool = False) -> Iterator[dict[str, Any]]:
    """Share of the values that are recalled by embeddings that are learned with the memory; 3 seeds."""
    for (task, _), (name, made) in itertools.product(TASKS.items(), RECALLED.items()):
        shares = []
        for seed in range(1 if quick else 3):
            torch.manual_seed(seed)
            g, model = torch.Generator().manual_seed(seed), Recall(*made)
            num_steps = 5 if quick else 600 if made[0] != "kalman_diagonal" else 200
            optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
            for _ in range(num_steps):
                *given, wanted = sequences(task, 64, g)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(*given).flatten(0, 1), wanted.flatten()).backward()
                optimizer.step()
                schedule.step()
            with torch.no_grad():
                *given, wanted = sequences(task, 500, torch.Generator().manual_seed(1000 + seed))
                shares.append(float((model(*given).argmax(-1) == wanted).double().mean()))
        yield {"task": task, "memory": name, "recalled": shares}


PARTS: dict[str, Callable[[bool], Iterator[dict[str, Any]]]] = {
    "compare": compare, "calibration": calibration, "digits": digits, "solver": solver, "recall": recall,
}  # fmt: skip


# -- tables --------------------------------------------------------------------------------------------------------------


def number(x: float) -> str:
    """Three digits, 0 for what rounding leaves."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}" if abs(x) > 1e-4 else "0"


def told(xs: list[float]) -> str:
    """Mean and standard error over problems."""
    x = torch.tensor(xs).double()
    return f"{number(float(x.mean()))} ({number(float(f'{float(x.std() / math.sqrt(len(xs))):.2g}'))})"


def tables(found: Mapping[str, list[dict[str, Any]]]) -> Iterator[tuple[str, list[str]]]:
    """Each table of the report by name."""
    by = {(row["setting"], row["layer"]): row for row in found["compare"]}
    settings = [x for x in SETTINGS if (x, "exact filter") in by]
    head = ["layer", *settings]

    def cell(row: dict[str, Any]) -> str:
        chosen = ", ".join(f"{key} {x:g}" for key, x in row["tuned"].items())
        cover = 100 * sum(row["coverage"]) / len(row["coverage"])
        error = sum(row["error"]) / len(row["error"])
        return f"{told(row['lost'])} / {error:.3g} / {cover:.1f}{f'; {chosen}' if chosen else ''}"

    names = dict.fromkeys(layer for _, layer in by)
    yield "nats lost", rows_of(head, *([name, *(cell(by[x, name]) for x in settings)] for name in names))
    kinds = list(dict.fromkeys(row["noise"] for row in found["calibration"]))
    own = {(row["filter"], row["noise"]): row for row in found["calibration"]}
    body = [
        [name, *(f"{told([100 * x for x in own[name, kind]['coverage']])}, {told(own[name, kind]['lost'])}" for kind in kinds)]
        for name in dict.fromkeys(row["filter"] for row in found["calibration"])
    ]  # fmt: skip
    yield "noise", rows_of(["filter", *kinds], *body)
    of = {(row["memory"], row["task"]): row["recalled"] for row in found["recall"]}
    body = [[name, *(" ".join(f"{x:.2f}" for x in of[name, task]) for task in TASKS)] for name in RECALLED]
    yield "recall", rows_of(["memory", *TASKS], *body)
    for name, part in (("digits", "digits"), ("conjugate gradients", "solver")):
        columns = list(found[part][0])
        yield name, rows_of(columns, *([f"{row[key]:g}" for key in columns] for row in found[part]))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="write the report from the results that are there")
    parser.add_argument("--quick", action="store_true", help="few problems and grids, nothing written")
    parser.add_argument("--part", choices=PARTS, help="only this part, kept with the others that are there")
    options = parser.parse_args(arguments)
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.quick else {}
    if not options.table:
        for name in [options.part] if options.part else PARTS:
            found[name] = []
            for row in PARTS[name](options.quick):
                found[name].append(row)
                print({key: told(x) if isinstance(x, list) else x for key, x in row.items()}, flush=True)
            if not options.quick:
                RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if not options.quick:
        for name, lines in tables(found):
            write_table("memory.md", name, lines)


if __name__ == "__main__":
    main()

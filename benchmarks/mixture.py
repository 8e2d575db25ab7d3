"""The Gaussian mixture beside ``scaled_dot_product_attention``: forward, training, EM on v, one ECM step, memory, small problems.

Run with ``python -m benchmarks.mixture [--quick] [--device cuda] [--dtype bfloat16]``. Every ratio is to SDPA on the same
shapes, dtype, device and threads, interleaved in the same run; medians.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from pyro.distributions import Dirichlet, Gamma, Normal
from torch.nn.functional import scaled_dot_product_attention as sdpa

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import machine, medians, peak_memory, write
from probtx_pyro import inference, models

HEADS, WIDTH, STEPS = 8, 64, 4
ECM = "one ECM step of keys, precisions and weights"
TARGETS = {
    "forward, shared precision": 1.15,
    "forward, precision for each unit": 1.25,
    "forward + backward, shared precision": 1.3,
    "forward + backward, precision for each unit": 1.3,
    f"EM on v, {STEPS} steps, D + M = {WIDTH}": 1.25 * STEPS,
    f"EM on v, {STEPS} steps, D + M = {WIDTH}, unequal precisions": 1.25 * STEPS,
    ECM: 2.5,
}


def candidates(units: int, device: str, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """The timed calls; ``units`` queries ask ``units`` units in 8 heads."""
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(1, HEADS, units, WIDTH, device=device, dtype=dtype) for _ in range(3))
    shared = torch.full((1, HEADS, 1), WIDTH**-0.5, device=device, dtype=dtype)
    each = shared * (1 + 0.2 * torch.rand(1, HEADS, units, device=device, dtype=dtype))
    half, leaves = WIDTH // 2, [x.clone().requires_grad_() for x in (queries, keys, values)]

    def forward(precision: torch.Tensor) -> torch.Tensor:
        return models.GaussianMixture(keys, values, precision).expected_outputs(queries)

    def backward(attention: Callable[..., torch.Tensor]) -> None:
        torch.autograd.grad(attention(*leaves).sum(), leaves)

    def em(value_precision: torch.Tensor) -> torch.Tensor:
        mixture = models.GaussianMixture(keys[..., :half], values[..., :half], shared, value_precision)
        return mixture.map_outputs(queries[..., :half], init=values[..., :half], num_steps=STEPS)

    priors = dict(
        keys=Normal(keys, 1.0),
        key_precision=Gamma(2.0, 1.0),
        weights=Dirichlet(torch.full((1, units), 1.5, device=device, dtype=dtype)),
    )

    def ecm(num_steps: int) -> object:
        return inference.adapt(
            models.bayesian(models.GaussianMixture(keys, values, each), **priors), queries, num_steps=num_steps
        )

    names = iter(TARGETS)
    return {
        "SDPA forward": lambda: sdpa(queries, keys, values),
        "SDPA forward + backward": lambda: backward(sdpa),
        next(names): lambda: forward(shared),
        next(names): lambda: forward(each),
        next(names): lambda: backward(lambda q, k, v: models.GaussianMixture(k, v, shared).expected_outputs(q)),
        next(names): lambda: backward(lambda q, k, v: models.GaussianMixture(k, v, each).expected_outputs(q)),
        next(names): lambda: em(shared),
        next(names): lambda: em(each),
        "adapt, 1 step": lambda: ecm(1),
        "adapt, 3 steps": lambda: ecm(3),
    }


# standard deviations of keys and queries at precision 1
FAR = {"products in double precision": 1e2, "differences": 1e4}


def far_apart(units: int, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Ratios to SDPA where points lie so far apart that squares are not expanded as they are, and where they are."""
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(1, HEADS, units, WIDTH, device=device, dtype=dtype) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (queries, keys, values)]

    def near(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return models.GaussianMixture(k, v, WIDTH**-0.5).expected_outputs(q)

    def far(scale: float, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return models.GaussianMixture(scale * k, v, 1.0).expected_outputs(scale * q)

    routes = {"SDPA": sdpa, "products": near} | {name: partial(far, scale) for name, scale in FAR.items()}
    forward = {name: partial(route, queries, keys, values) for name, route in routes.items()}
    backward = {
        name: lambda route=route: torch.autograd.grad(route(*leaves).sum(), leaves) for name, route in routes.items()
    }
    timed = {"forward": medians(forward, repeats=3), "forward + backward": medians(backward, repeats=3)}
    return {
        f"{said} from {name}, N = {units}": found[name] / found["SDPA"]
        for name in list(routes)[1:]
        for said, found in timed.items()
    }


MEMORY = """
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from probtx_pyro import models
torch.manual_seed(0)
q, k, v = (torch.randn(1, 8, {units}, 64) for _ in range(3))
small = [x[:, :, :64] for x in (q, k, v)]
{warm}
ready()
{run}
"""
MEMORY_CASES = {
    "SDPA": ("sdpa(*small)", "sdpa(q, k, v)"),
    "shared precision": (
        "models.GaussianMixture(small[1], small[2], 0.125).expected_outputs(small[0])",
        "models.GaussianMixture(k, v, 0.125).expected_outputs(q)",
    ),
    "precision for each unit": (
        "models.GaussianMixture(small[1], small[2], torch.full((64,), 0.125)).expected_outputs(small[0])",
        "models.GaussianMixture(k, v, torch.full(({units},), 0.125)).expected_outputs(q)",
    ),
}


def memory(units: int) -> dict[str, float]:
    """Peak MiB above the inputs, each case in a process of its own."""
    return {
        name: peak_memory(MEMORY.format(units=units, warm=warm, run=run.format(units=units)))
        for name, (warm, run) in MEMORY_CASES.items()
    }


def small_problems(count: int = 512) -> float:
    """How many times faster one call of ``adapt`` is than a loop of ``count`` calls."""
    torch.manual_seed(0)
    keys, queries = torch.randn(count, 6, 3), torch.randn(count, 20, 3)

    def adapt(k: torch.Tensor, q: torch.Tensor) -> object:
        return inference.adapt(models.bayesian(models.GaussianMixture(k), keys=Normal(k, 1.0)), q, num_steps=5)

    seconds = medians(
        {"one call": lambda: adapt(keys, queries), "loop": lambda: [adapt(keys[i], queries[i]) for i in range(count)]},
        repeats=3,
    )
    return seconds["loop"] / seconds["one call"]


def report_tables() -> Tables:
    """Tables of ``docs/reports/performance.md``: ratios to SDPA on the processor and on a GPU."""

    def ratios(name: str) -> dict[str, dict[str, object]]:
        return {row["what"]: row for row in rows_kept(name)}

    here = ratios("mixture_cpu_float32")
    there = [ratios(f"mixture_cuda_{dtype}") for dtype in ("float32", "bfloat16")]
    said = [[what, f"{row['ratio']:.2f}", str(row["target"])] for what, row in here.items()]
    on_gpu = [
        [what, *(f"{row[what]['ratio']:,.1f}" for row in there), str(there[0][what]["target"])] for what in there[0]
    ]
    return {
        "mixtures": rows_of(["what", "ratio to SDPA", "target"], *said),
        "mixtures on a GPU": rows_of(["what", "float32", "bfloat16", "target"], *on_gpu),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="N = 512 and few repeats, to try the benchmark itself")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    args = parser.parse_args(argv)
    units, repeats = (512, 3) if args.quick else (4096, 9)
    print(
        f"Gaussian mixture against SDPA, N = {units}, B = 1, H = {HEADS}, D = {WIDTH}, {args.dtype} on {args.device}: {machine()}"
    )
    seconds = medians(candidates(units, args.device, getattr(torch, args.dtype)), repeats)
    seconds[ECM] = (
        seconds["adapt, 3 steps"] - seconds["adapt, 1 step"]
    ) / 2  # less what a call costs however many steps
    rows: list[dict[str, object]] = []
    for name, target in TARGETS.items():
        reference = seconds["SDPA forward + backward" if "backward" in name else "SDPA forward"]
        rows.append(
            {
                "what": name,
                "ratio": round(seconds[name] / reference, 3),
                "target": target,
                "milliseconds": round(1e3 * seconds[name], 2),
            }
        )
    whole = round(seconds["adapt, 1 step"] / seconds["SDPA forward"], 3)
    rows.append({"what": "adapt with one step, objective at both ends", "ratio": whole, "target": "-"})
    if args.device == "cpu":
        size = 2048 if args.quick else 16384
        used = memory(size)
        rows += [
            {
                "what": f"peak memory at N = {size}, {name}",
                "ratio": round(used[name] / max(used["SDPA"], 1e-9), 3),
                "target": 1.5,
                "MiB": round(used[name], 1),
            }
            for name in used
            if name != "SDPA"
        ]
        rows.append(
            {
                "what": "512 small problems, loop over one call",
                "ratio": round(small_problems(64 if args.quick else 512), 1),
                "target": ">= 20",
            }
        )
    apart = far_apart(512, args.device, torch.float32)
    rows += [{"what": what, "ratio": round(ratio, 2), "target": "-"} for what, ratio in apart.items()]
    for row in rows:
        print(f"  {row['what']:66s} {row['ratio']:8.2f}   target {row['target']}")
    if not args.quick:
        print(f"written to {write(f'mixture_{args.device}_{args.dtype}', rows)}")
        write_tables("performance.md", report_tables())


if __name__ == "__main__":
    main()

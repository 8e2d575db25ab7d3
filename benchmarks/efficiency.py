"""Time, memory and parameters against the number of tokens and the width: softmax attention, mixtures of Gaussian keys, linear keys.

Run with ``python -m benchmarks.efficiency [--quick] [--figure] [--width] [--memory]``. Whole layers of 512 channels with heads of 64, B = 1, on the
threads that torch has; and the attention alone, given projected heads, for the two ratios that have a target. With ``--width``
instead: layers of 128 to 2048 channels, heads of 64 or half as many of them, at 1024 and 4096 tokens; with ``--memory``: a memory
that is a regression beside torch's fused softmax, 1024 to 4096 pairs. Candidates are interleaved, ratios are medians over rounds.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from torch.nn import functional as F

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import RESULTS, Largest, machine, medians, peak_memory, ratio, rounds, write
from probtx_pyro import nn
from probtx_pyro.plots import unit_color

WIDTH, HEADS, HEAD_DIM = 512, 8, 64
LAYERS: dict[str, tuple[type[nn.Attention], int, dict[str, Any]]] = {  # what the heads are divided by, and options
    "softmax, 8 heads": (nn.SoftmaxAttention, 1, {}),
    "softmax, 4 heads": (nn.SoftmaxAttention, 2, {}),
    "MGK, 4 heads": (nn.GaussianKeysAttention, 2, {}),
    "MGK, 8 heads": (nn.GaussianKeysAttention, 1, {}),
    "shifted MGK, 8 heads": (nn.GaussianKeysAttention, 1, {"share": "shift"}),
    "linear, 8 heads": (nn.LinearKeysAttention, 1, {"num_components": 1}),
    "MLK, 4 heads": (nn.LinearKeysAttention, 2, {}),
}
MEMORY_LAYER = "memory, 8 heads"
LINEAR = ("linear, 8 heads", "MLK, 4 heads")
REFERENCE, HALF = "softmax, 8 heads", "MGK, 4 heads"
WIDTHS = {128: 9, 256: 9, 512: 7, 1024: 5, 2048: 3}
REPEATS = {256: 9, 512: 9, 1024: 7, 2048: 5, 4096: 3, 8192: 1, 16384: 1}
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "efficiency.png"
Call = Callable[[], object]


def layer(name: str, width: int = WIDTH) -> nn.Attention:
    """One of `LAYERS`, with the same weights every time."""
    torch.manual_seed(0)
    kind, divided, options = LAYERS[name] if name in LAYERS else (nn.RegressionMemoryAttention, 1, {})
    return kind(width, width // HEAD_DIM // divided, batch_first=True, head_dim=HEAD_DIM, **options)


def whole(name: str, tokens: int, causal: bool, backward: bool, width: int = WIDTH) -> Call:
    """A call of the layer, in self-attention."""
    module = layer(name, width)
    x = torch.randn(1, tokens, width, requires_grad=backward)
    leaves, out = [x, *module.parameters()], torch.randn(1, tokens, width)

    def run() -> object:
        with torch.set_grad_enabled(backward):
            answers = module(x, x, x, need_weights=False, is_causal=causal)[0]
        return torch.autograd.grad(answers, leaves, out) if backward else answers

    return run


def kernel(name: str, tokens: int, causal: bool, backward: bool) -> Call:
    """The attention of the layer alone, given queries, keys and values of every head."""
    module = layer(name)
    with torch.no_grad():
        queries, units, values, masks = module.heads(*[torch.randn(1, tokens, WIDTH)] * 3, is_causal=causal)
    queries, keys, values = (x.contiguous().requires_grad_(backward) for x in (queries, units.keys, values))
    out = torch.randn_like(values)

    def run() -> object:
        with torch.set_grad_enabled(backward):
            answers = module.attend(queries, units._replace(keys=keys), values, masks, need_weights=False)[0]
        return torch.autograd.grad(answers, (queries, keys, values), out) if backward else answers

    return run


def against_tokens(sizes: list[int]) -> list[dict[str, object]]:
    """Milliseconds of whole layers; training steps of quadratic layers up to N = 8192."""
    rows: list[dict[str, object]] = []
    for tokens in sizes:
        for causal in (False, True):
            for backward in (False, True):
                names = [name for name in LAYERS if name in LINEAR or not backward or tokens <= 8192]
                seconds = medians({name: whole(name, tokens, causal, backward) for name in names}, REPEATS[tokens])
                what = {"N": tokens, "causal": causal, "pass": "forward + backward" if backward else "forward"}
                rows.append({**what, "milliseconds": {name: round(1e3 * x, 2) for name, x in seconds.items()}})
                print(" ", rows[-1], flush=True)
    return rows


def against_width(widths: dict[int, int], sizes: tuple[int, ...]) -> list[dict[str, object]]:
    """Whole causal layers: milliseconds, ratios to softmax with all heads (medians over rounds), parameters."""
    rows: list[dict[str, object]] = []
    said = {name: name.replace("8 heads", "all heads").replace("4 heads", "half the heads") for name in LAYERS}
    for tokens in sizes:
        for width, repeats in widths.items():
            parameters = {said[name]: sum(x.numel() for x in layer(name, width).parameters()) for name in LAYERS}
            rows.append({"width": width, "parameters": parameters})
            for backward in (False, True):
                times = rounds({said[name]: whole(name, tokens, True, backward, width) for name in LAYERS}, repeats)
                found = {name: round(ratio(times, name, said[REFERENCE]), 3) for name in times}
                milliseconds = {name: round(1e3 * statistics.median(x), 2) for name, x in times.items()}
                kind = "forward + backward" if backward else "forward"
                what = {"width": width, "N": tokens, "causal": True, "pass": kind, "rounds": repeats}
                rows.append({**what, "milliseconds": milliseconds, "over softmax, all heads": found})
                print(" ", rows[-1], flush=True)
    return rows


def width_table(rows: list[dict[str, Any]]) -> list[str]:
    """Time of each layer over that of softmax with all heads, forward / forward and backward, as the report has it."""
    timed = [row for row in rows if "N" in row]
    names = list(timed[0]["milliseconds"])
    lines = []
    for tokens, width in dict.fromkeys((row["N"], row["width"]) for row in timed):
        forward, training = (row for row in timed if (row["N"], row["width"]) == (tokens, width))
        softmax = " / ".join(f"{row['milliseconds'][names[0]]:,.1f}" for row in (forward, training))
        over = (
            " / ".join(f"{row['over softmax, all heads'][name]:.2f}" for row in (forward, training))
            for name in names[1:]
        )
        lines.append([f"{tokens:,}", f"{width:,}", softmax, *over])
    return rows_of(["N", "width", f"{names[0]}, ms", *names[1:]], *lines)


def targets_table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows that have a target."""
    lines = []
    for row in rows:
        if "target" in row:
            least = f" ({' - '.join(f'{x:.2f}' for x in row['rounds'])})" if isinstance(row.get("rounds"), list) else ""
            lines.append([row["what"], f"{row['ratio']:.2f}{least}", f"{row['target']}"])
    return rows_of(["what", "ratio (smallest and largest round)", "target"], *lines)


SIZES = (256, 1024, 4096, 16384)


def layers_table(rows: list[dict[str, Any]]) -> list[str]:
    """Causal layers: parameters, milliseconds by the number of tokens, memory."""
    by = {(row["N"], row["pass"], unit): row[unit] for row in rows if row.get("causal") for unit in ("milliseconds", "MiB") if unit in row}  # fmt: skip
    counts = next(row["parameters"] for row in rows if "parameters" in row)
    lines = []
    for name, count in counts.items():
        times = []
        for part in ("forward", "forward + backward"):
            each = [by[tokens, part, "milliseconds"].get(name) for tokens in SIZES]
            times.append(" / ".join("-" if x is None else f"{x:,.0f}" if x >= 100 else f"{x:.1f}" for x in each))
        used = (by[tokens, part, "MiB"][name] for tokens, part in ((4096, "forward + backward"), (16384, "forward")))
        lines.append([name, f"{count / 1e6:.2f} M", *times, *(f"{x:.0f}" for x in used)])
    return rows_of(["layer", "parameters", "forward, ms", "forward + backward, ms", "training MiB, N = 4096", "forward MiB, N = 16384"], *lines)  # fmt: skip


def report_tables() -> Tables:
    """Tables of ``docs/reports/performance.md``."""
    rows = rows_kept("efficiency_cpu")
    return {
        "mixtures of keys": targets_table(rows),
        "layers": layers_table(rows),
        "width": width_table(rows_kept("efficiency_width_cpu")),
    }


def memory_tables() -> Tables:
    """The table of ``docs/reports/memory.md``."""
    rows = rows_kept("regression_memory_cpu")
    used = next(row["MiB"] for row in rows if "MiB" in row)
    lines = []
    for row in rows:
        if "N" in row:
            times = (f"{row['milliseconds'][name]:.0f}" for name in ("memory", "softmax"))
            lines.append([f"{row['N']:,}", *times, f"{row['ratio']:.1f}", f"{used[str(row['N'])]:.0f}"])
    return {"cost": rows_of(["pairs", "memory, ms", "softmax, ms", "ratio", "peak MiB above the inputs"], *lines)}


def targets(tokens: int, long: int, repeats: int) -> list[dict[str, object]]:
    """The rows that have one."""
    rows: list[dict[str, object]] = []
    for what, made in (("attention given heads", kernel), ("whole layers", whole)):
        for causal in (False, True):
            times = rounds({name: made(name, tokens, causal, True) for name in (REFERENCE, HALF)}, repeats)
            title = f"{HALF} (R = 2) over {REFERENCE}, N = {tokens}, forward + backward"
            title += f", {what}{', causal' if causal else ''}"
            each = sorted(x / y for x, y in zip(times[HALF], times[REFERENCE], strict=True))
            rows.append({"what": title, "ratio": round(ratio(times, HALF, REFERENCE), 3), "target": 1.2,
                         "rounds": [round(each[0], 3), round(each[-1], 3)]})  # fmt: skip
    for backward in (False, True):
        times = rounds({str(n): whole(LINEAR[1], n * long, True, backward) for n in (1, 2)}, repeats)
        what = f"MLK causal, {'forward + backward' if backward else 'forward'}, time(2N) / time(N), N = {long}"
        rows.append({"what": what, "ratio": round(ratio(times, "2", "1"), 3), "target": 2.3})
    return rows


def fused(tokens: int) -> Call:
    """Torch's causal ``scaled_dot_product_attention`` of as many heads."""
    queries, keys, values = torch.randn(3, 1, HEADS, tokens, HEAD_DIM)
    return lambda: F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def regression_memory(sizes: dict[int, int]) -> list[dict[str, object]]:
    """Causal forward passes of a memory, given heads: time against fused softmax and the number of pairs, peak MiB."""
    rows: list[dict[str, object]] = []
    short, long = min(sizes), max(sizes)
    for tokens, repeats in sizes.items():
        times = rounds({"memory": kernel(MEMORY_LAYER, tokens, True, False), "softmax": fused(tokens)}, repeats)
        found = {name: round(1e3 * statistics.median(seconds), 1) for name, seconds in times.items()}
        target = {short: 2.5, long: 1.0}.get(tokens)
        rows.append({"what": "memory over softmax, causal, forward", "N": tokens, "milliseconds": found,
                     "ratio": round(ratio(times, "memory", "softmax"), 3), "target": target, "rounds": repeats})  # fmt: skip
    grown = rounds({str(n): kernel(MEMORY_LAYER, n, True, False) for n in (short, long)}, sizes[long])
    rows.append({"what": f"memory, time({long}) / time({short})", "ratio": round(ratio(grown, str(long), str(short)), 3),
                 "target": [3.2, 5.0]})  # fmt: skip
    code = MEMORY.replace("whole", "kernel")
    used = {n: peak_memory(code.format(name=MEMORY_LAYER, tokens=n, backward=False), repeats=3) for n in sizes}
    rows.append({"what": "memory, peak MiB above the inputs", "MiB": {str(n): round(x, 1) for n, x in used.items()}})
    return rows


MEMORY = """
import torch
from benchmarks.efficiency import whole
whole({name!r}, 64, True, {backward})()
run = whole({name!r}, {tokens}, True, {backward})
ready()
run()
"""


def memory(training: list[int], forward: int) -> list[dict[str, object]]:
    """Peak MiB above the inputs of causal layers, each in a process of its own, and the largest tensor by name of operation."""
    rows: list[dict[str, object]] = []
    for backward, tokens in [*((True, n) for n in training), (False, forward)]:
        what = {"N": tokens, "causal": True, "pass": "forward + backward" if backward else "forward"}
        used = {
            name: peak_memory(MEMORY.format(name=name, tokens=tokens, backward=backward), repeats=1) for name in LAYERS
        }
        rows.append({**what, "MiB": {name: round(x, 1) for name, x in used.items()}})
        print(" ", rows[-1], flush=True)
    largest = {}
    for name in LAYERS:
        run = whole(name, training[-1], True, True)
        with Largest() as made:
            run()
        largest[name] = round(made.numbers / training[-1], 1)
    rows.append({"N": training[-1], "causal": True, "numbers in the largest tensor, over N": largest})
    print(" ", rows[-1], flush=True)
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time of a causal forward pass and of a training step, and memory, against N."""
    figure, panels = pyplot.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    kinds = (("milliseconds", "forward"), ("milliseconds", "forward + backward"), ("MiB", "forward + backward"))
    for ax, (unit, part) in zip(panels, kinds, strict=True):
        chosen = [row for row in rows if unit in row and row["causal"] and row["pass"] == part]
        for i, name in enumerate(LAYERS):
            points = [(row["N"], row[unit][name]) for row in chosen if name in row[unit]]
            style = {"color": unit_color(i), "marker": "os^Dv<>"[i], "linestyle": ("-", "--", "-.", ":")[i % 4]}
            ax.plot(*zip(*points, strict=True), markersize=4, linewidth=1.4, label=name, **style)
        ax.set_xscale("log", base=2)
        ax.set(yscale="log", xlabel="tokens N", ylabel=unit, title=f"{part}, causal")
        ax.spines[["top", "right"]].set_visible(False)
    panels[2].set(ylabel="peak MiB above the inputs")
    counts = next(row["parameters"] for row in rows if "parameters" in row)
    handles, names = panels[0].get_legend_handles_labels()
    named = [f"{name} ({counts[name] / 1e6:.2f} M parameters)" for name in names]
    figure.legend(handles, named, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few tokens, to try the benchmark itself")
    parser.add_argument("--figure", action="store_true", help="only draw the figure from the results that are there")
    parser.add_argument("--width", action="store_true", help="against the width instead")
    parser.add_argument("--memory", action="store_true", help="a memory beside torch's fused softmax instead")
    args = parser.parse_args(argv)
    if args.memory:
        rows = regression_memory({128: 1, 512: 1} if args.quick else {1024: 15, 2048: 9, 4096: 7})
        for row in rows:
            print(" ", row, flush=True)
        if not args.quick:
            print(f"written to {write('regression_memory_cpu', rows)}")
            write_tables("memory.md", memory_tables())
        return
    if args.width:
        rows = against_width({128: 1} if args.quick else WIDTHS, (64,) if args.quick else (1024, 4096))
        if not args.quick:
            print(f"written to {write('efficiency_width_cpu', rows)}")
            write_tables("performance.md", report_tables())
        return
    kept = RESULTS / "efficiency_cpu.json"
    if args.figure:
        return draw(json.loads(kept.read_text())["rows"], FIGURE)
    print(f"Layers of {WIDTH} channels, heads of {HEAD_DIM}, B = 1, float32: {machine()}")
    rows = [{"parameters": {name: sum(x.numel() for x in layer(name).parameters()) for name in LAYERS}}]
    rows += targets(512, 1024, 3) if args.quick else targets(4096, 16384, 5)
    for row in rows[1:]:
        print(f"  {row['what']:110s} {row['ratio']:6.2f}   target {row['target']}", flush=True)
    rows += memory([256, 512], 1024) if args.quick else memory([1024, 4096, 8192], 16384)
    rows += against_tokens([256, 512] if args.quick else list(REPEATS))
    if not args.quick:
        print(f"written to {write('efficiency_cpu', rows)}")
        write_tables("performance.md", report_tables())
        draw(rows, FIGURE)


if __name__ == "__main__":
    main()

"""Time and memory of mean field in the dependency CRF, beside its own GEMMs, a plain einsum version, and a transformer encoder.

Run with ``python -m benchmarks.dependency_crf [--threads 1] [--quick]``. The setting is that of the published encoder's tagger:
256 labels, 8 channels, distances (2, 3, 4) and so 8 distance groups, 6 asynchronous iterations, 16 sentences of 64 words. Mean field
is measured as it is and compiled (`DependencyCRFEncoder.compile`, a minute before the first round). Candidates are interleaved in one
run, ratios are medians over rounds; subnormal numbers are flushed to zero for all of them.
"""

import argparse
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benchmarks.reports import Tables, rows_kept, rows_of, write_tables
from benchmarks.timing import machine, peak_memory, ratio, rounds, write
from probtx_pyro import nn
from probtx_pyro.ops import dependency_crf
from probtx_pyro.ops._arc_kernel import full_rank
from probtx_pyro.ops._arc_kernel.distance_groups import Groups, Rows

LABELS, CHANNELS, DISTANCES, SWEEPS, WORDS, BATCH = 256, 8, (2, 3, 4), 6, 64, 16
GROUPS = 2 * (len(DISTANCES) + 1)
OURS, GEMMS, PLAIN, TRANSFORMER = "mean field", "its two GEMM families alone", "plain einsum", "nn.TransformerEncoder"
LOW_RANK, IN_PLACE, COMPILED = "mean field, rank 64", "its GEMMs in its own memory", "mean field, compiled"
ROUNDS = {False: 21, True: 7}  # on a shared machine medians of 7 forward passes scatter by 4 %
LAYERS = 5  # of the transformer: as many parameters as the potentials have, within a tenth


def problem(backward: bool) -> tuple[Tensor, Tensor]:
    """Unary and ternary potentials."""
    draw = torch.Generator().manual_seed(0)
    unary = torch.randn(BATCH, WORDS, LABELS, generator=draw)
    ternary = 0.1 * torch.randn(CHANNELS, GROUPS, LABELS, LABELS, generator=draw)
    return unary.requires_grad_(backward), ternary.requires_grad_(backward)


@cache
def encoder(rank: int | str = "full", compiled: bool = False) -> nn.DependencyCRFEncoder:
    """The encoder, whose potentials the problem gives."""
    found = nn.DependencyCRFEncoder(
        LABELS, CHANNELS, num_steps=SWEEPS, distances=DISTANCES, mean_field={"head_temperature": 1.0}, rank=rank
    )
    if compiled:
        found.compile()
    return found


def ours(unary: Tensor, ternary: Tensor) -> Tensor:
    """Label logits after the sweeps."""
    return torch.func.functional_call(encoder(), {"ternary": ternary}, (unary,))


def compiled(unary: Tensor, ternary: Tensor) -> Tensor:
    """The same, compiled."""
    return torch.func.functional_call(encoder(compiled=True), {"ternary": ternary}, (unary,))


def low_rank(unary: Tensor, ternary: Tensor) -> Tensor:
    """The same with potentials of rank 64, cut out of the full ones."""
    factors = {"left": ternary[..., :64], "right": ternary[..., 64:128]}
    return torch.func.functional_call(encoder(64), factors, (unary,))


def gemms(unary: Tensor, ternary: Tensor) -> Tensor:
    """The matrix products with the potentials that mean field needs, and nothing else: forth and back in every sweep, in place."""
    x, weights = unary.flatten(0, 1), ternary.flatten(0, 1).unbind(0)
    for _ in range(SWEEPS):
        total = torch.zeros_like(x)
        for w in weights:
            total.addmm_(x @ w.mT, w)
        x = 1e-3 * total  # stays in range
    return x


def gemms_in_place(unary: Tensor, ternary: Tensor) -> Tensor:
    """Products of the same sizes by the kernel's own functions: into its stack of all groups, 8 MiB a channel. Forward only."""
    x, groups = unary, Groups.of(DISTANCES, unary)
    for _ in range(SWEEPS):
        words, total = Rows(x.view(-1, LABELS), x, {}), torch.zeros_like(x)
        rows = groups.scratch(words, "sums").of_channels(1)
        rows[0].copy_(words.flat)  # memory never written would be pages of zeros
        for channel in ternary.split(1):
            full_rank.products(words, channel, groups, "stack")
            for weights in full_rank.by_place(channel, groups):
                full_rank.add_products(total.view(-1, LABELS), rows, weights)
        x = 1e-3 * total
    return x


def plain(unary: Tensor, ternary: Tensor) -> Tensor:
    """The readable form, by einsum: three families of products, with masks of the groups."""
    words = torch.ones(unary.shape[:-1], dtype=torch.bool)
    potentials = dependency_crf.Potentials(unary, words, ternary, DISTANCES)
    return dependency_crf.mean_field(potentials, SWEEPS)["label_logits"]


CANDIDATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    GEMMS: gemms, IN_PLACE: gemms_in_place, OURS: ours, COMPILED: compiled, PLAIN: plain, LOW_RANK: low_rank,
}  # fmt: skip


def call(name: str, backward: bool) -> Callable[[], object]:
    """A candidate on the problem."""
    unary, ternary = problem(backward)
    if name == TRANSFORMER:
        layer = torch.nn.TransformerEncoderLayer(LABELS, 8, 4 * LABELS, dropout=0.0, batch_first=True, norm_first=True)
        stack = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        leaves, run = [unary, *stack.parameters()], lambda: stack(unary)
    else:
        leaves, run = [unary, ternary], lambda: CANDIDATES[name](unary, ternary)

    def timed() -> object:
        with torch.set_grad_enabled(backward):
            out = run()
        return torch.autograd.grad(out.square().sum(), leaves) if backward else out

    return timed


def memory(name: str) -> float:
    """MiB that a forward and backward pass adds."""
    return peak_memory(
        f"from benchmarks.dependency_crf import call\nimport torch\ntorch.set_flush_denormal(True)\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        f"run = call({name!r}, True)\n{'run()' if name == COMPILED else ''}\nready()\nrun()",
        repeats=3,
    )


def report_tables() -> Tables:
    """The table of ``docs/reports/performance.md``."""
    one, two = (
        {(row["what"], row["candidate"]): row for row in rows_kept(name) if "candidate" in row}
        for name in ("dependency_crf_cpu_1", "dependency_crf_cpu")
    )
    shown = [(one, OURS), (two, OURS), (two, COMPILED)]
    both, back = ("forward", "forward + backward"), "forward + backward"
    lines = [
        *([f"mean field over its own two GEMM families alone, {what}", *(f"{x[what, who]['over GEMMs']:.2f}" for x, who in shown), "1.3"] for what in both),
        ["those GEMMs in the kernel's own memory, over the same in a core's cache, forward", "", f"{two['forward', IN_PLACE]['over GEMMs']:.2f}", "", ""],
        *([f"plain einsum with three families over mean field, {what}", *(f"{1 / x[what, who]['over plain']:.1f}" for x, who in shown), "1.6"] for what in both),
    ]  # fmt: skip
    memory = f"peak memory of {back}"
    used = [(x[memory, who]["MiB"], x[memory, PLAIN]["MiB"]) for x, who in shown]
    lines.append([f"{memory} over that of plain einsum (compiled: after a first call)", *(f"{a / b:.2f} ({a:,.0f} of {b:,.0f} MiB)" for a, b in used), "0.33"])  # fmt: skip
    for title, name in (
        (f"`{TRANSFORMER}` with as many parameters ({LAYERS} layers)", TRANSFORMER),
        (LOW_RANK, LOW_RANK),
    ):
        cells = (f"{x[back, name]['over GEMMs'] / x[back, who]['over GEMMs']:.2f}" for x, who in shown)
        lines.append([f"{title}, over mean field, {back}", *cells, ""])
    return {"mean field": rows_of(["what", "one thread", "two threads", "two threads, compiled", "target"], *lines)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="of the CPU (default: one for each core)")
    parser.add_argument("--quick", action="store_true", help="two rounds, no memory, nothing written")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    torch.set_num_threads(args.threads or torch.get_num_threads())
    torch.manual_seed(0)
    unary, ternary = problem(False)
    error = (ours(unary, ternary) - plain(unary, ternary)).abs().max() / plain(unary, ternary).abs().max()
    print(f"largest difference of mean field from plain einsum, over the largest logit: {float(error):.1e}")
    rows: list[dict[str, object]] = [{"check": "ours against plain", "relative difference": float(error)}]
    names = [*CANDIDATES, TRANSFORMER]
    for backward in (False, True):
        what = "forward + backward" if backward else "forward"
        timed = [name for name in names if not (backward and name == IN_PLACE)]
        times = rounds({name: call(name, backward) for name in timed}, 2 if args.quick else ROUNDS[backward])
        for name in timed:
            row = {"what": what, "candidate": name, "seconds": round(sorted(times[name])[len(times[name]) // 2], 4)}
            row |= {
                "over GEMMs": round(ratio(times, name, GEMMS), 3),
                "over plain": round(ratio(times, name, PLAIN), 3),
            }
            rows.append(row)
            print(
                f"  {what:18s} {name:30s} {row['seconds']:8.3f} s  {row['over GEMMs']:6.2f} x its GEMMs  {row['over plain']:6.2f} x plain"
            )
    if args.quick:
        return
    for name in timed:
        rows.append({"what": "peak memory of forward + backward", "candidate": name, "MiB": round(memory(name), 1)})
        print(f"  {name:30s} {rows[-1]['MiB']:8.1f} MiB")
    print(write(f"dependency_crf_cpu{f'_{args.threads}' if args.threads else ''}", rows), machine())
    write_tables("performance.md", report_tables())


if __name__ == "__main__":
    main()

"""What `inference.nuts` meets in the funnel of notebook 07, for the test of the page's sampler: ``python site/explorer/funnel_draws.py``.

64 chains of 300 draws in each of the coordinates, with the step and the scales that they found in 300 steps of warmup; four minutes.
"""

import json
import tempfile
from pathlib import Path

import torch
from cases_of_inference import HERE, funnels

from probtx_pyro import inference

FILE = Path(__file__).with_name("funnel_draws.json")
RUN = {"num_samples": 300, "num_warmup": 300, "num_chains": 64, "seed": 0}


def run(units, program, name):
    """The statistics of a run, each by chain, and the step and scales that all its chains share."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "run.pt"  # the scales are in no statistic
        draws = inference.nuts(program, HERE, **RUN, checkpoint=kept, progress=False)
        found = torch.load(kept)["state"]["adaptation"]
    [scales] = {tuple(row.tolist()) for row in found["scale"].flatten(0, 1)}
    named = (
        {"key_precision": slice(0, 1), name: slice(1, 3)}
        if units
        else {name: slice(0, 2), "key_precision": slice(2, 3)}
    )
    assert list(named) == list(draws.samples)  # the order of the coordinates
    by_chain = {key: draws.statistics[key].double().mean(1).tolist() for key in ("diverging", "n_steps")}
    return {
        "units": units, "step": float(draws.statistics["step_size"][0, 0]),
        "scales": [*scales[named["key_precision"]], *scales[named[name]]], **by_chain,
        "tip": (draws.samples["key_precision"][..., 0] > 1000).double().mean(1).tolist(),
    }  # fmt: skip


if __name__ == "__main__":
    runs = [run(*one) for one in funnels()]
    FILE.write_text(json.dumps({**RUN, "runs": runs}) + "\n")
    for one in runs:
        means = {key: sum(x) / len(x) for key, x in one.items() if key in ("diverging", "n_steps", "tip")}
        print(one["units"], one["step"], one["scales"], means)

"""How far amortised guides are from the exact posterior, on handwritten digits: ``python -m benchmarks.amortised_guides``.

A Gaussian mixture of 20 units is fitted by `inference.adapt` to 1,297 digits (scikit-learn's, 8 x 8 pixels, 1,797 in all); guides
from a digit to its unit are trained on them, and their gap is measured on the other 500.
"""

import argparse
import time

import torch
from pyro.distributions import Dirichlet, Gamma
from sklearn.datasets import load_digits

from probtx_pyro import inference, models, results

UNITS, HELD_OUT = 20, 500
RATES = {"perceptron": 0.01, "quadratic": 0.1}
CASES = [
    ("perceptron", True, 10),
    ("perceptron", False, 10),
    ("quadratic", True, 10),
    ("perceptron", True, 0),
]  # 0 components: pixels


def digits(seed, components):
    """Training and held-out queries: pixels between 0 and 1, or their first principal components (of the training digits)."""
    pixels = torch.tensor(load_digits().data / 16.0)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
    train, held_out = pixels[order[HELD_OUT:]], pixels[order[:HELD_OUT]]
    if not components:
        return train, held_out
    center = train.mean(0)
    axes = torch.linalg.svd(train - center, full_matrices=False).Vh[:components].mT
    return (train - center) @ axes, (held_out - center) @ axes


def fitted(queries, seed):
    """The mixture at its MAP: keys flat, a precision and a weight for each unit."""
    keys = models.SoftKMeans.plus_plus(queries, UNITS, gamma=10.0, seed=seed).centers
    precision = 1 / queries.var(0).mean()
    mixture = models.GaussianMixture(keys, key_precision=precision.expand(UNITS))
    priors = {
        "keys": models.FLAT,
        "key_precision": Gamma(2.0, 2.0 / float(precision)),
        "weights": Dirichlet(torch.full((1, UNITS), 2.0)),
    }
    return inference.adapt(models.bayesian(mixture, **priors), queries, num_steps=500, tol=1e-6).formulation


class Scaled(torch.nn.Module):
    """A network of the standardised query, with its squared length beside it if asked."""

    def __init__(self, queries, network, squares=False):
        super().__init__()
        self.network, self.squares = network, squares
        self.center, self.scale = queries.mean(0), queries.std(0).mean()
        lengths = queries.square().sum(-1, keepdim=True)
        self.length = lengths.mean(), lengths.std()

    def forward(self, queries):  # noqa: D102
        features = (queries - self.center) / self.scale
        if self.squares:
            lengths = (queries.square().sum(-1, keepdim=True) - self.length[0]) / self.length[1]
            features = torch.cat([features, lengths], -1)
        return self.network(features)


def encoder(kind, queries):
    """Linear with the squared length (the family of the exact posterior), or a perceptron with one hidden layer."""
    features = queries.shape[-1]
    if kind == "quadratic":
        return Scaled(queries, torch.nn.Linear(features + 1, UNITS), squares=True)
    hidden = [torch.nn.Linear(features, 256), torch.nn.SiLU()]
    return Scaled(queries, torch.nn.Sequential(*hidden, torch.nn.Linear(256, UNITS)))


def trained(mixture, queries, guide, seed, annealed, rate):
    """4,000 steps: at once, or 1,000 each with the precisions times 0.03, 0.1, 0.3 and 1."""
    for temperature in (0.03, 0.1, 0.3, 1.0) if annealed else (1.0,):
        tempered = mixture.replace(key_precision=mixture.key_precision * temperature)
        fit = inference.variational(
            models.bayesian(tempered, collapsed=False), queries, guide=guide,
            num_steps=1000 if annealed else 4000, learning_rate=rate, num_samples=1, seed=seed,
        )  # fmt: skip
        guide = fit.guide
    return fit


def measure(kind, annealed, seed, components):
    train, held_out = digits(seed, components)
    mixture = fitted(train, seed)
    torch.manual_seed(seed)
    guide = inference.AttentionGuide(models.bayesian(mixture, collapsed=False), encoder(kind, train))
    began = time.process_time()
    fit = trained(mixture, train, guide, seed, annealed, RATES[kind])
    took = time.process_time() - began
    gaps = [
        results.gap(fit.applied(data, num_samples=1, seed=0), seed=0).assignments.detach() for data in (train, held_out)
    ]
    entropy = torch.special.entr(mixture.attention(held_out)).sum(-1).mean()
    numbers = [f"{float(x):.4f}" for x in (*(g.mean() for g in gaps), gaps[1].max(), (gaps[1] > 0.05).double().mean())]
    space = f"{components} components" if components else "64 pixels"
    return [
        space, kind, "annealed" if annealed else "at once", str(seed), *numbers, f"{float(entropy):.3f}",
        f"{float(mixture.log_evidence(held_out).mean()):.2f}", f"{took:.0f}",
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)), help="by place in CASES")
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    print(
        "| space | encoder | trained | seed | gap, training | held out | largest | share above 0.05 | entropy | log evidence | CPU s |"
    )
    print("|" + " --- |" * 11)
    for place in options.cases:
        kind, annealed, components = CASES[place]
        for seed in options.seeds:
            print("| " + " | ".join(measure(kind, annealed, seed, components)) + " |", flush=True)


if __name__ == "__main__":
    main()

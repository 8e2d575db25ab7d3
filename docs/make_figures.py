"""Makes the picture of the README: three units, their attention over a plane of queries, and the posterior of one answer.

Run from the project's folder: ``python docs/make_figures.py``.
"""

from pathlib import Path

import torch
from matplotlib import pyplot

from probtx_pyro import models, plots

KEYS = torch.tensor([[-1.2, -0.4], [0.9, -0.8], [0.3, 1.1]])
VALUES = torch.tensor([[-1.0, -0.2], [1.0, -0.5], [0.5, 1.0]])


def main() -> None:
    """Write ``docs/figures/readme.png``."""
    mixture = models.GaussianMixture(KEYS, VALUES, torch.tensor([1.5, 3.0, 6.0]), torch.tensor([9.0, 6.0, 12.0]))
    query = torch.tensor([[0.35, 0.15]])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")

    plane = plots.query_grid(KEYS.numpy(), num=160, margin=0.6)
    attention = mixture.attention(torch.as_tensor(plane, dtype=torch.float32).reshape(-1, 2))
    shares = attention.reshape(*plane.shape[:-1], -1).numpy()
    plots.responsibilities(plane, shares, KEYS.numpy(), mixture.key_precision.numpy(), ax=left, queries=query.numpy())
    left.set_title("attention over a plane of queries")

    answers = plots.query_grid(VALUES.numpy(), num=160, margin=0.4)
    density = (
        mixture.output_distribution(query)
        .log_prob(torch.as_tensor(answers, dtype=torch.float32).reshape(-1, 1, 2))
        .exp()
    )
    starts = torch.stack(
        torch.meshgrid(torch.linspace(-1.2, 1.2, 5), torch.linspace(-0.8, 1.2, 5), indexing="ij"), -1
    ).reshape(-1, 1, 2)
    paths = [starts]
    for _ in range(40):
        paths.append(mixture.map_outputs(query, init=paths[-1], num_steps=1))
    modes = mixture.output_modes(query)
    plots.em_paths(
        torch.stack(paths, 1).squeeze(2).numpy(),
        answers,
        density.reshape(answers.shape[:-1]).numpy(),
        ax=right,
        modes=modes.locations[0][modes.is_mode[0]].numpy(),
        mean=mixture.expected_outputs(query)[0].numpy(),
    )
    right.set_title("the answer to the marked query")
    path = Path(__file__).parent / "figures" / "readme.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()

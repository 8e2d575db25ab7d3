"""Shares of the classes where points come from, drawn by Gibbs sampling, together with how uneven such shares are.

``c ~ p(c)`` on a grid, ``π | c ~ Dirichlet(c, ..., c)``, ``z_i | π ~ Categorical(π)``, and ``x_i | z_i=k`` has the density ``L_ik``. A
sweep draws the classes z of the points, then c with π summed out, then π:

    ``p(c | n) ∝ p(c) Γ(Kc) / Γ(Kc + N) Π_k Γ(c + n_k) / Γ(c)``,   ``π | c, n ~ Dirichlet(c + n)``,   n_k points of class k.

c is drawn without π, since shares of absent classes, as small as 1e-100, would hold it where it is.
"""

import torch
from torch import Tensor

from probtx_pyro.models._conditionals import draw

#: concentrations that are equally probable where none is given: from one class that has nearly all to nearly even shares
CONCENTRATIONS = tuple(10 ** (step / 8) for step in range(-16, 9))
_WARMUP = 100  # sweeps
_NUMBERS_AT_ONCE = 1 << 22  # of a tensor over chains, points and classes


def draw_shares(
    log_likelihood: Tensor, concentrations: Tensor, num_samples: int, num_chains: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw shares of the classes, (draw, K), and concentrations, (draw,), chain after chain.

    Parameters
    ----------
    log_likelihood
        ``log p(x_i | k)`` of the points, (N, K), up to a number for each point.
    concentrations
        Those that are possible, equally probable, (G,).
    num_samples, num_chains, seed
        Draws of each chain, chains, and the seed of all.
    """
    generator = torch.Generator().manual_seed(seed)
    likelihood = (log_likelihood - log_likelihood.amax(-1, keepdim=True)).exp()
    num_points, num_classes = likelihood.shape
    blocks = likelihood.split(max(1, _NUMBERS_AT_ONCE // (num_chains * num_classes)))
    total = num_classes * concentrations
    constant = total.lgamma() - (total + num_points).lgamma() - num_classes * concentrations.lgamma()
    shares = likelihood.new_full((num_chains, num_classes), 1 / num_classes)
    allowed = torch.ones_like(shares, dtype=torch.bool)
    kept: list[tuple[Tensor, Tensor]] = []
    for sweep in range(_WARMUP + num_samples):
        counts = torch.stack([_draw_counts(some, shares, generator) for some in blocks]).sum(0)
        terms = (concentrations.unsqueeze(-1) + counts.unsqueeze(1)).lgamma().sum(-1)
        picked = torch.multinomial((constant + terms).softmax(-1), 1, generator=generator)
        shares = draw(generator).dirichlet(concentrations[picked] + counts, allowed, shares)
        if sweep >= _WARMUP:
            kept.append((shares, concentrations[picked.squeeze(-1)]))
    drawn_shares, drawn = (torch.stack(of, 1).flatten(0, 1) for of in zip(*kept, strict=True))
    return drawn_shares, drawn


def _draw_counts(likelihood: Tensor, shares: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the classes of points, (N, K), under the shares of each chain, (chain, K), and count them, (chain, K)."""
    num_chains, num_classes = shares.shape
    cumulative = (likelihood * shares.unsqueeze(1)).cumsum(-1)
    uniform = torch.rand(*cumulative.shape[:-1], 1, generator=generator, dtype=shares.dtype)
    classes = torch.searchsorted(cumulative, uniform * cumulative[..., -1:], right=True).squeeze(-1)
    before = torch.arange(num_chains).unsqueeze(-1) * num_classes  # a number for each class of each chain
    numbers = (before + classes.clamp_max(num_classes - 1)).flatten()
    return torch.bincount(numbers, minlength=num_chains * num_classes).view_as(shares).to(shares)

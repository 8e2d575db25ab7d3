"""Problem set 3, solved."""

import math

import torch
from torch import Tensor


def joint_responsibilities(queries: Tensor, keys: Tensor, log_component_weights: Tensor, precisions: Tensor) -> Tensor:
    """Normalise over units and components together."""
    squares = (queries[:, None, None] - keys).square().sum(-1)
    scores = log_component_weights + queries.shape[-1] / 2 * precisions.log() - precisions / 2 * squares
    return scores.flatten(1).softmax(-1).view(scores.shape)


def _scores(eta: Tensor, means: Tensor, covariances: Tensor, log_weights: Tensor) -> Tensor:
    return log_weights + means @ eta + 0.5 * (covariances @ eta) @ eta


def log_normalizer(eta: Tensor, means: Tensor, covariances: Tensor, log_weights: Tensor) -> Tensor:
    """Sum the moment generating functions of the Gaussians."""
    return _scores(eta, means, covariances, log_weights).logsumexp(0)


def tilted_mean(eta: Tensor, means: Tensor, covariances: Tensor, log_weights: Tensor) -> Tensor:
    """Average the moved means under the tilted weights."""
    return _scores(eta, means, covariances, log_weights).softmax(0) @ (means + covariances @ eta)


def tilted_covariance(eta: Tensor, means: Tensor, covariances: Tensor, log_weights: Tensor) -> Tensor:
    """Add the covariance within the Gaussians and that between them."""
    weights = _scores(eta, means, covariances, log_weights).softmax(0)
    moved = means + covariances @ eta
    around = moved - weights @ moved
    return torch.einsum("n,nde->de", weights, covariances) + torch.einsum("n,nd,ne->de", weights, around, around)


def settle(state: Tensor, patterns: Tensor, beta: float, num_steps: int) -> tuple[Tensor, Tensor]:
    """Repeat attention, and keep what it passes through."""
    states = [state]
    for _ in range(num_steps):
        states.append((beta * patterns @ states[-1]).softmax(0) @ patterns)
    found = torch.stack(states)
    return found, found.square().sum(-1) / 2 - (beta * found @ patterns.T).logsumexp(-1) / beta


def train_guide(features: Tensor, log_joint: Tensor, num_steps: int) -> Tensor:
    """Climb the ELBO with Adam."""
    coefficients = torch.zeros(features.shape[-1], log_joint.shape[-1], dtype=features.dtype, requires_grad=True)
    optimizer = torch.optim.Adam([coefficients], lr=0.1)
    for _ in range(num_steps):
        log_guide = (features @ coefficients).log_softmax(-1)
        loss = -(log_guide.exp() * (log_joint - log_guide)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return coefficients.detach()


def importance_bound(log_row: Tensor, log_joint: Tensor, units: Tensor) -> Tensor:
    """Average, over trials, the logarithm of the mean weight."""
    log_weights = (log_joint - log_row)[units]
    return (log_weights.logsumexp(-1) - math.log(units.shape[-1])).mean()

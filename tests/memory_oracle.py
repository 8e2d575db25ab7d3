"""The joint normal density of a drifting memory's rows and the values it makes, by explicit matrices: an oracle in NumPy."""

import numpy as np


def transitions(kind, numbers, keys, betas, precision, moves):
    """A_t and Q_t of every step, from a textbook filter of the covariance alone; kinds and numbers as in the table."""
    size, covariance, found = keys.shape[1], np.linalg.inv(precision), []
    identity = np.eye(size)
    for t, key in enumerate(keys):
        if not moves[t] or kind == "static":
            along, noise = identity, np.zeros((size, size))
        elif kind == "discount":
            along, noise = identity, (1 / numbers[t] - 1) * covariance
        elif kind == "pull back":
            gamma, own = numbers[t], np.linalg.inv(covariance)
            back = np.linalg.inv(gamma * own + (1 - gamma) * precision)
            along = gamma * back @ own
            noise = (1 - gamma) * back @ (gamma * own + precision) @ back
        elif kind == "walk":
            along, noise = np.diag(numbers[0]), np.diag(numbers[1])
        elif kind == "reset":
            along, noise = numbers[t] * identity, np.linalg.inv(precision) - numbers[t] ** 2 * covariance
        found.append((along, noise))
        covariance = along @ covariance @ along.T + noise
        if betas[t] > 0:
            spread = covariance @ key
            covariance = covariance - np.outer(spread, spread) / (key @ spread + 1 / betas[t])
    return found


def joint(kind, numbers, keys, betas, precision, mean, moves):
    """Means (M, (T + 1) F) and covariance of a row's path w_0..w_T, and the matrix (T, (T + 1) F) that reads it."""
    length, size = keys.shape
    steps = transitions(kind, numbers, keys, betas, precision, moves)
    means, covariance = [mean], np.zeros(((length + 1) * size,) * 2)
    covariance[:size, :size] = np.linalg.inv(precision)
    for t, (along, noise) in enumerate(steps):
        offset = mean @ (np.eye(size) - along).T if kind == "pull back" else 0.0
        means.append(means[-1] @ along.T + offset)
        here, last, past = slice((t + 1) * size, (t + 2) * size), slice(t * size, (t + 1) * size), slice((t + 1) * size)
        covariance[here, past] = along @ covariance[last, past]
        covariance[past, here] = covariance[here, past].T
        covariance[here, here] = along @ covariance[last, last] @ along.T + noise
    reader = np.zeros((length, (length + 1) * size))
    for t in range(length):
        reader[t, (t + 1) * size : (t + 2) * size] = keys[t]
    return np.concatenate(means, 1), covariance, reader


def conditioned(means, covariance, reader, values, betas):
    """Log density of the values that are there (betas > 0), and the path's means and covariance given them."""
    there = betas > 0
    read = reader[there]
    spread = read @ covariance @ read.T + np.diag(1 / betas[there])
    left = values[there].T - means @ read.T
    solved = np.linalg.solve(spread, left.T).T
    density = -0.5 * ((left * solved).sum() + len(left) * np.linalg.slogdet(2 * np.pi * spread)[1])
    gain = np.linalg.solve(spread, read @ covariance).T
    return density, means + left @ gain.T, covariance - gain @ read @ covariance

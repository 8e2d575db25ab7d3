"""The three kinds of tolerance, each with its derivation; no test sets another without a sentence of its own."""

import torch

FALSE_ALARM_RATE = 1e-5  # goodness of fit: a correct simulator fails once in 100,000 runs, and seeds are fixed


def rounding(*tensors, operations=64):
    """Algebra that is equal on paper: the errors of some 64 operations on numbers as large as the largest involved."""
    largest = max(float(x.detach().abs().max()) for x in tensors if x.numel())
    eps = max(torch.finfo(x.dtype).eps for x in tensors)
    return operations * eps * max(largest, 1.0)


def assert_equal(actual, expected, *scale, operations=64):
    """Equal but for rounding; ``scale`` names intermediate quantities that are larger than the result."""
    bound = rounding(actual, expected, *scale, operations=operations)
    torch.testing.assert_close(actual.cpu(), expected.expand_as(actual).cpu(), atol=bound, rtol=0.0)


def assert_never_falls(trace, *scale, operations=64):
    """A trace over steps (axis 0) that may lose no more than rounding of the terms that are summed into it."""
    loss = float((trace[:-1] - trace[1:]).max()) if len(trace) > 1 else 0.0
    bound = rounding(trace, *scale, operations=operations)
    assert loss <= bound, f"fell by {loss:.3e}, rounding explains {bound:.3e}"


def assert_frequency(count, trials, probability, sigmas=5):
    """A binomial count within five of its standard deviations (false alarm 6e-7) plus the grain of one count."""
    sd = (trials * probability * (1 - probability)) ** 0.5
    assert abs(count - trials * probability) <= sigmas * sd + 1, (
        f"{count} of {trials}, expected {trials * probability:.1f} ± {sd:.1f}"
    )

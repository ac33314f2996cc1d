"""Logits → probabilities, and what counts as probabilities. Pure; serving and training use both."""

import numpy as np

from services.model_runtime.mapping import Array

sum_tolerance = 1e-6


def softmax(logits: Array) -> Array:
    """Probabilities FP64 [n, labels] of logits; not finite where the logits are not."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        probabilities: Array = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


def are_probabilities(probabilities: Array) -> Array:
    """Per row: every one in [0, 1] and their sum 1 within the tolerance. False for NaN."""
    sums = np.abs(probabilities.sum(axis=1) - 1.0) <= sum_tolerance
    bounded = ((probabilities >= 0.0) & (probabilities <= 1.0)).all(axis=1)
    both: Array = sums & bounded
    return both

"""How good predictions are, and the references they are held against. Plain numpy; scikit-learn
only for the reference that is asked for."""

from collections.abc import Sequence

import numpy as np

from services.jobs.dataset import Dataset
from services.model_runtime.mapping import Array

prior_rows = 20
"""A route and hour counts as if this many further flights had the overall rate."""


def area_under_curve(is_positive: Array, scores: Array) -> float:
    """The chance that a positive row scores higher than a negative one, ties counting half.

    Source: the Mann–Whitney U statistic over midranks.
    """
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    midranks = ends - (counts - 1) / 2
    positives = int(is_positive.sum())
    negatives = len(is_positive) - positives
    rank_sum = midranks[places[is_positive]].sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))


def measure(is_positive: Array, probabilities: Array) -> dict[str, float]:
    """AUC, log loss and Brier score, to six digits (the seventh differs between machines)."""
    chance = np.where(is_positive, probabilities, 1 - probabilities)
    return {
        "auc": round(area_under_curve(is_positive, probabilities), 6),
        "log_loss": round(float(-np.log(np.clip(chance, 1e-12, 1)).mean()), 6),
        "brier": round(float(((probabilities - is_positive) ** 2).mean()), 6),
    }


def historic_rates(keys: Sequence[Array], is_positive: Array, train: Array) -> Array:
    """Each row's rate of positives among the training rows with the same keys."""
    joined = np.stack([np.unique(key, return_inverse=True)[1] for key in keys], axis=1)
    _, group = np.unique(joined, axis=0, return_inverse=True)
    size = int(group.max()) + 1
    positives = np.bincount(group[train], is_positive[train], size)
    counts = np.bincount(group[train], minlength=size)
    overall = is_positive[train].mean()
    rates: Array = (positives + prior_rows * overall) / (counts + prior_rows)
    return rates[group]


def boosted_trees(dataset: Dataset, is_positive: Array, seed: int) -> Array:
    """Probabilities of scikit-learn's HistGradientBoosting on the same inputs (needs the `dev`
    extra)."""
    # Imported here because the product does not depend on it.
    from sklearn.ensemble import HistGradientBoostingClassifier

    inputs = np.concatenate([dataset.numbers, dataset.categories], axis=1)
    first_category = dataset.numbers.shape[1]
    trees = HistGradientBoostingClassifier(
        max_iter=200,
        learning_rate=0.08,
        early_stopping=False,
        random_state=seed,
        categorical_features=list(range(first_category, inputs.shape[1])),
    )
    trees.fit(inputs[dataset.train], is_positive[dataset.train])
    probabilities: Array = trees.predict_proba(inputs)[:, 1]
    return probabilities

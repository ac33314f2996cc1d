"""Trains one network of the allow-list: seeded, on one thread, deterministic.

The forward is the one that serves (`architectures.Tabular`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from contracts.errors import MeshError
from contracts.pack import Architecture
from services.jobs.dataset import Dataset
from services.jobs.training_config import NetworkTable, TrainingTable
from services.model_runtime.backends.architectures import Tabular
from services.model_runtime.mapping import Array

warmup_share = 0.15
"""Of the steps; the learning rate climbs, then falls along a cosine (OneCycleLR)."""
table_deviation = 0.05
"""Of the initial category rows: small beside the numbers' part, so that rare values stay mild."""
evaluation_rows = 65_536
"""Rows evaluated at once, so that hidden layers stay small."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The epoch that was best on the validation rows. `logits` FP32 [n, labels] of every row."""

    architecture: Architecture
    tensors: dict[str, Array]
    epoch: int
    logits: Array


def fit(
    dataset: Dataset,
    network: NetworkTable,
    training: TrainingTable,
    *,
    targets: Array,
    on_epoch: Callable[[int, float, float], None],
) -> Fitted:
    """Minimise cross entropy against `targets` (probabilities FP32 [n, labels]: the labels, or a
    teacher's). `on_epoch` is told epoch, training loss, validation log loss against the labels.

    Raises MeshError OUTPUT_INVALID when the training diverges.
    """
    architecture = _architecture(dataset, network)
    generator = torch.Generator().manual_seed(training.seed)
    torch.manual_seed(training.seed)  # dropout draws from the global generator
    tensors = _initial(architecture, generator)
    model = Tabular(architecture.configuration, tensors)
    inputs = (torch.from_numpy(dataset.numbers), torch.from_numpy(dataset.categories))
    goal = torch.from_numpy(targets)
    rows = torch.from_numpy(np.flatnonzero(dataset.train))
    steps = training.epochs * math.ceil(len(rows) / training.batch_rows)
    optimiser = torch.optim.AdamW(
        tensors.values(), lr=training.learning_rate, weight_decay=training.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, training.learning_rate, total_steps=steps, pct_start=warmup_share
    )
    best_loss, best = math.inf, None
    for epoch in range(1, training.epochs + 1):
        losses = []
        for batch in _batches(rows, training.batch_rows, generator):
            numbers, categories = (part[batch] for part in inputs)
            logits = model.logits(numbers, categories, dropout=training.dropout)
            loss = functional.cross_entropy(logits, goal[batch])
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        every_logit = _evaluate(model, inputs)
        validate_loss = _log_loss(every_logit, dataset)
        on_epoch(epoch, sum(losses) / len(losses), validate_loss)
        if validate_loss < best_loss:
            best_loss = validate_loss
            arrays = {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}
            best = Fitted(architecture, arrays, epoch, every_logit)
    if best is None:
        raise MeshError("OUTPUT_INVALID", "no epoch ended with a finite validation loss")
    return best


def _architecture(dataset: Dataset, network: NetworkTable) -> Architecture:
    cardinalities = [
        len(encoder.values) + 1 for encoder in dataset.encoders if encoder.kind == "category"
    ]
    return Architecture(
        name="tabular",
        configuration={
            "numbers": dataset.numbers.shape[1],
            "cardinalities": cardinalities,
            "widths": network.widths,
            "clip": network.clip,
        },
    )


def _initial(architecture: Architecture, generator: torch.Generator) -> dict[str, Tensor]:
    """Kaiming for layers behind a ReLU, zero biases, small category rows."""
    tensors = {}
    for name, shape in Tabular.shapes(architecture.configuration).items():
        if name.endswith(".bias"):
            tensor = torch.zeros(shape)
        else:
            is_table = name == "categories.weight"
            deviation = table_deviation if is_table else math.sqrt(2 / shape[1])
            tensor = torch.randn(shape, generator=generator) * deviation
        tensors[name] = tensor.requires_grad_()
    return tensors


def _batches(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    shuffled = rows[torch.randperm(len(rows), generator=generator)]
    for start in range(0, len(rows), size):
        yield shuffled[start : start + size]


def _evaluate(model: Tabular, inputs: tuple[Tensor, Tensor]) -> Array:
    numbers, categories = inputs
    with torch.inference_mode():
        parts = [
            model(
                numbers[start : start + evaluation_rows],
                categories[start : start + evaluation_rows],
            )[0]
            for start in range(0, len(numbers), evaluation_rows)
        ]
        logits: Array = torch.cat(parts).numpy()
    return logits


def _log_loss(logits: Array, dataset: Dataset) -> float:
    chosen = torch.from_numpy(logits[dataset.validate])
    labels = torch.from_numpy(dataset.labels[dataset.validate])
    return float(functional.cross_entropy(chosen, labels))

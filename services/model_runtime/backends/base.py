"""The contract between the runtime and whatever computes a model.

numpy arrays in, numpy arrays out: a backend's own tensors never leave it, so swapping one changes
nothing upstream.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from contracts.pack import Manifest
from services.model_runtime.config import inline_s

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Lane:
    """A forward of a fixed number of rows from one tensor to one, between fixed memory: fill
    `input`, call `forward` (whatever the model raises passes through), read `output` before any
    lane of the model is filled again. `numbers` are the output's, flat."""

    input: memoryview
    output: memoryview
    numbers: Array
    forward: Callable[[], None]


class Backend(Protocol):
    """A loaded model. One thread at a time calls it; which one may change between calls.

    docs/backends.md says how to write one; `services/jobs/backend_checks.py` tries what it asks.
    """

    @classmethod
    def load(
        cls, manifest: Manifest, tensors: Mapping[str, Array], files: Mapping[str, bytes]
    ) -> Self:
        """From mapped, read-only tensors and the content of the pack's other files by name (the
        view's SQL is none of them). Raises PACK_INVALID, or ValueError, when the pack does not
        fit."""
        ...

    def warm(self) -> None:
        """Run until steady, and measure what a batch costs."""
        ...

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Inputs of `rows` rows in the contract's order (for a model with a view: numbers FP32
        [rows, D], categories INT64 [rows, K]) → outputs in the contract's order, fresh arrays.
        Whatever the model raises passes through."""
        ...

    def lane(self, rows: int) -> Lane | None:
        """The same numbers as `forward`, bit for bit, for less; None where only `forward` can."""
        ...

    def cost(self, rows: int) -> float:
        """Expected seconds of a forward of this many rows, as measured by `warm`."""
        ...

    @property
    def waits(self) -> bool:
        """Its forward blocks its thread without computing; it never runs on the loop."""
        ...

    def close(self) -> None:
        """Let go of the weights' maps."""
        ...


def is_cheap(backend: Backend, rows: int) -> bool:
    """Whether a batch of this many rows costs less on the loop than the way to another thread."""
    return not backend.waits and backend.cost(rows) <= inline_s

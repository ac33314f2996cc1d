"""The contract between the runtime and whatever computes a model.

numpy arrays in, numpy arrays out: a backend's own tensors never leave it, so swapping one changes
nothing upstream.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from contracts.pack import Manifest

Array = np.ndarray[Any, np.dtype[Any]]


class Backend(Protocol):
    """A loaded model. One thread at a time calls it; which one may change between calls."""

    @classmethod
    def load(cls, manifest: Manifest, tensors: Mapping[str, Array]) -> Self:
        """From mapped, read-only tensors. Raises PACK_INVALID when the pack does not fit."""
        ...

    def warm(self) -> None:
        """Run until steady, and measure what a batch costs."""
        ...

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Inputs of `rows` rows in the contract's order (for a model with a view: numbers FP32
        [rows, D], categories INT64 [rows, K]) → outputs in the contract's order, fresh arrays.
        Whatever the model raises passes through."""
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

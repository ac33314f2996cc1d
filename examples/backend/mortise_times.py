"""A backend for Mortise that needs nothing of Mortise: y = x times the pack's `factor`."""

import time

import numpy as np


class Times:
    """One loaded model. One thread at a time calls it; which one may change between calls."""

    waits = False  # its forward computes; True: it blocks without computing, as a remote call

    def __init__(self, factor):
        self.factor = factor
        self.row_s = 0.0

    @classmethod
    def load(cls, manifest, tensors, files):
        """`tensors` are read-only maps, shared by all replicas; `files` the pack's other files."""
        if set(tensors) != {"factor"}:
            raise ValueError(
                f"the pack has the tensors {sorted(tensors)}, one named factor is expected"
            )
        return cls(tensors["factor"])

    def warm(self):
        """Run until steady, and measure."""
        x = np.zeros((32, len(self.factor)), np.float32)
        started_s = time.monotonic()
        self.forward([x], 32)
        self.row_s = (time.monotonic() - started_s) / 32

    def forward(self, inputs, rows):
        """Inputs in the contract's order → fresh outputs; what is raised fails these rows."""
        return [inputs[0] * self.factor]

    def lane(self, rows):
        """No shortcut for small batches."""
        return None

    def cost(self, rows):
        """Seconds that a forward of so many rows takes."""
        return self.row_s * rows

    def close(self):
        """Let go of the maps."""
        self.factor = None

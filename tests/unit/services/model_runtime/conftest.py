"""What the runtime's tests share: a fake backend, batches of `x`, packs in a home."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from contracts.execution import Execute
from contracts.inference import Tensor
from contracts.pack import Architecture, Manifest, ModelContract, Provenance, TensorContract
from services.model_runtime.mapping import Array
from services.model_runtime.model import Model
from shared.clock import ManualClock

NOTHING = "sha256:" + "0" * 64


class FakeBackend:
    """Calls `compute` with the first input; remembers how many rows each forward had."""

    waits = True

    def __init__(self, compute: Callable[[Array], Array]) -> None:
        self.compute = compute
        self.forwards: list[int] = []
        self.is_closed = False

    @classmethod
    def load(
        cls, manifest: Manifest, tensors: Mapping[str, Array], files: Mapping[str, bytes]
    ) -> "FakeBackend":
        """Doubles."""
        return cls(lambda x: x * 2)

    def warm(self) -> None:
        """Nothing to do."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """One forward."""
        self.forwards.append(rows)
        return [self.compute(inputs[0])]

    def lane(self, rows: int) -> None:
        """It has none."""

    def cost(self, rows: int) -> float:
        """Nothing."""
        return 0.0

    def close(self) -> None:
        """Remembered."""
        self.is_closed = True


def manifest(task: str = "tensor") -> Manifest:
    """A model from x FP32 [n, 2] to y FP32 [n, 2]."""
    return Manifest(
        format=1,
        contract=ModelContract(
            name="fake",
            task=task,  # type: ignore[arg-type]
            inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, 2])],
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 2])],
            labels=["a", "b"] if task == "classifier" else [],
        ),
        architecture=Architecture(name="fake"),
        files=[],
        tensors=[],
        weights=NOTHING,
        provenance=Provenance(code=NOTHING),
    )


@pytest.fixture
def clock() -> ManualClock:
    """Moves when told."""
    return ManualClock()


@pytest.fixture
def make_model(clock: ManualClock) -> Callable[..., tuple[Model, FakeBackend]]:
    """A model around a fake backend."""

    def make(
        compute: Callable[[Array], Array] = lambda x: x * 2, task: str = "tensor"
    ) -> tuple[Model, FakeBackend]:
        backend = FakeBackend(compute)
        return Model(manifest(task), backend, None, clock), backend

    return make


@pytest.fixture
def make_batch() -> Callable[..., Execute]:
    """A batch of `x`, counting up, for these row counts."""

    def make(rows: list[int], model: str = "fake", columns: int = 2, **parts: Any) -> Execute:
        count = sum(rows)
        x = np.arange(count * columns, dtype="<f4")
        fields: dict[str, Any] = {
            "model_name": model,
            "model_version": "1",
            "rows": rows,
            "risk_levels": [2] * len(rows),
            "deadlines_us": [1_000_000] * len(rows),
            "tensors": [
                Tensor(
                    name="x",
                    datatype="FP32",
                    shape=[count, columns],
                    data=memoryview(x.tobytes()),
                )
            ],
            "trace_ids": [f"{index:032x}" for index in range(len(rows))],
        }
        return Execute(**fields | parts)

    return make

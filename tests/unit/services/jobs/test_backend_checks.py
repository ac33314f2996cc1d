"""The checks find what they are for: for each of them a backend that breaks exactly that rule."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from contracts.errors import MeshError
from contracts.pack import Architecture, Manifest, ModelContract, Provenance, TensorContract
from services.jobs.backend_checks import CHECKS, Subject, run_checks
from services.model_runtime.backends.base import Array, Lane

NOTHING = "sha256:" + "0" * 64
LEFT: list[object] = []


class Right:
    """y = 2 x, as it should be."""

    waits: Any = False

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = dict(tensors)

    @classmethod
    def load(
        cls, manifest: Manifest, tensors: Mapping[str, Array], files: Mapping[str, bytes]
    ) -> "Right":
        """Holds the tensors."""
        return cls(tensors)

    def warm(self) -> None:
        """Nothing to do."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Doubles."""
        (x,) = inputs
        if x.shape != (rows, 2):
            raise ValueError("shape")
        return [x * np.float32(2)]

    def lane(self, rows: int) -> Lane | None:
        """None."""
        return None

    def cost(self, rows: int) -> float:
        """A microsecond a row."""
        return rows * 1e-6

    def close(self) -> None:
        """Lets go."""
        self.tensors = {}


class WrongShape(Right):
    """One row too many."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """[n + 1, 2]."""
        return [np.zeros((rows + 1, 2), np.float32)]


class Infinite(Right):
    """Infinity from finite numbers."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Overflows."""
        return [inputs[0] * np.float32("inf")]


class Random(Right):
    """Other numbers each time."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Noise."""
        return [np.random.default_rng().standard_normal((rows, 2)).astype(np.float32)]


class Mixing(Right):
    """Takes the mean of all rows off."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """x − mean."""
        return [inputs[0] - inputs[0].mean(axis=0)]


class Spreading(Right):
    """Rows are their own unless one is NaN."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Zeros beside a NaN."""
        (x,) = inputs
        return [x * 0 if np.isnan(x).any() else x * 2]


class Reusing(Right):
    """Answers out of one buffer."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """The same memory again and again."""
        buffer = self.tensors.setdefault("buffer", np.zeros((2_000, 2), np.float32))
        buffer[:rows] = inputs[0]
        return [buffer[:rows]]


class Strict(Right):
    """Takes aligned arrays only."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Refuses others."""
        if not inputs[0].flags.aligned:
            return [inputs[0] * 3]
        return super().forward(inputs, rows)


class Writing(Right):
    """Changes its weights while it warms."""

    def warm(self) -> None:
        """Writes."""
        self.tensors["w"][0] = 9


class WrongLane(Right):
    """A lane for every number of rows."""

    def lane(self, rows: int) -> Lane | None:
        """Even for none."""
        memory = memoryview(bytearray(8))
        return Lane(memory, memory, np.zeros(2, np.float32), lambda: None)


class Cheaper(Right):
    """More rows cost less."""

    def cost(self, rows: int) -> float:
        """Falls."""
        return 1 / rows


class Homely(Right):
    """Works on the thread that made it only."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Refuses others."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("another thread")
        return super().forward(inputs, rows)


class Lenient(Right):
    """Computes whatever comes."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Any shape."""
        return [inputs[0] * np.float32(2)]


class Resentful(Right):
    """Gives other numbers once a forward has failed."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Remembers the failure."""
        if inputs[0].shape != (rows, 2):
            self.tensors["failed"] = inputs[0]
        (y,) = super().forward(inputs, rows)
        return [y * np.float32(2) if "failed" in self.tensors else y]


class Probable(Right):
    """Ends in a softmax."""

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """Probabilities."""
        powers = np.exp(inputs[0] * np.float32(2))
        return [powers / powers.sum(axis=1, keepdims=True)]


class Clinging(Right):
    """Keeps its weights for ever."""

    def close(self) -> None:
        """Does not let go."""
        LEFT.append(self)


def subject(kind: type[Right]) -> Subject:
    """A pack of this backend."""
    shape = [-1, 2]
    manifest = Manifest(
        format=1,
        contract=ModelContract(
            name="fake",
            task="tensor",
            inputs=[TensorContract(name="x", datatype="FP32", shape=shape)],
            outputs=[TensorContract(name="y", datatype="FP32", shape=shape)],
        ),
        architecture=Architecture(name="fake"),
        files=[],
        tensors=[],
        weights=NOTHING,
        provenance=Provenance(code=NOTHING),
    )
    return Subject(
        manifest=manifest,
        kind=kind,
        tensors={"w": np.ones(2, np.float32)},
        files={},
        reference=lambda inputs: [inputs[0] * 2],
    )


BREAKS: dict[str, type[Right]] = {
    "shapes": WrongShape,
    "finite": Infinite,
    "determinism": Random,
    "rows are alone": Mixing,
    "NaN stays in its row": Spreading,
    "answers are fresh": Reusing,
    "views of frames": Strict,
    "weights are read-only": Writing,
    "lanes": WrongLane,
    "cost": Cheaper,
    "other threads": Homely,
    "failures pass": Resentful,
    "closing": Clinging,
    "reference": Mixing,
}


@pytest.mark.parametrize("check", BREAKS)
def test_a_check_finds_what_it_is_for(check: str) -> None:
    """And finds nothing where all is right."""
    assert CHECKS[check](subject(Right)) is None
    assert CHECKS[check](subject(BREAKS[check]))
    LEFT.clear()


def test_a_model_that_computes_any_shape_is_no_fault() -> None:
    """The runtime refuses other shapes before it: see `Preprocess`."""
    assert CHECKS["failures pass"](subject(Lenient)) is None


def test_a_classifier_that_gives_probabilities_is_refused() -> None:
    """The mesh would take the softmax of them; of a tensor model they are what it gives."""
    found = subject(Probable)
    assert CHECKS["logits"](found) is None
    contract = msgspec.structs.replace(
        found.manifest.contract, task="classifier", labels=["no", "yes"]
    )
    found = replace(found, manifest=msgspec.structs.replace(found.manifest, contract=contract))
    fault = CHECKS["logits"](found)
    assert fault is not None
    assert "y of all 7 rows is at least 0 and sums to 1" in fault
    assert CHECKS["logits"](replace(found, kind=Right)) is None


def test_the_first_fault_ends_the_run_with_the_checks_name() -> None:
    """A fault, and an exception, are PACK_INVALID; what ran is told."""
    ran: list[str] = []
    run_checks(subject(Right), ran.append)
    assert ran == list(CHECKS)
    with pytest.raises(MeshError, match=r"PACK_INVALID: check 'rows are alone': y of a row alone"):
        run_checks(subject(Mixing), ran.append)

    class Raising(Right):
        """Never computes."""

        def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
            """Raises."""
            raise RuntimeError("no device")

    with pytest.raises(MeshError, match="check 'shapes': RuntimeError: no device"):
        run_checks(subject(Raising), ran.append)

"""The commonest batch in the fewest steps: one tensor in, one out, every deadline ahead, cheap
enough for the loop.

Whatever is not exactly so, or does not end well, is left to `Model.run`: it alone judges, and its
answers are the measure of these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from contracts.errors import ErrorBody
from contracts.execution import Execute, Executed
from contracts.inference import Tensor
from contracts.pack import ModelContract, TensorContract
from contracts.types import UNSET
from services.model_runtime.backends.base import Array, Backend, is_cheap
from services.model_runtime.config import credits_batches

_NO_PREDICTIONS: Final[list[msgspec.Raw]] = []
_NO_ERRORS: Final[dict[int, ErrorBody]] = {}
_judge_finite = np.isfinite


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What is the same for every batch of one row count. `outputs` lie in the lane's memory;
    `finite` says of each of its `numbers` whether it is, in the bytes of `finite_bytes`."""

    shape: list[int]
    bytes: int
    input: memoryview
    forward: Callable[[], None]
    numbers: Array
    finite: Array
    finite_bytes: bytearray
    outputs: list[Tensor]


class Quick:
    """Of one model whose backend has lanes. Belongs to the loop's thread, and to whoever primes
    the model before it serves."""

    __slots__ = ("_backend", "_fixed", "_input", "_now_us", "_output")

    def __init__(
        self,
        received: TensorContract,
        sent: TensorContract,
        backend: Backend,
        now_us: Callable[[], int],
    ) -> None:
        self._input, self._output = received, sent
        self._backend = backend
        self._now_us = now_us
        self._fixed: dict[int, _Fixed] = {}

    @classmethod
    def of(
        cls, contract: ModelContract, backend: Backend, now_us: Callable[[], int]
    ) -> "Quick | None":
        """For a model of plain tensors, one in and one out, whose backend has lanes; else None."""
        if (
            contract.task == "classifier"
            or contract.view is not UNSET
            or len(contract.inputs) != 1
            or len(contract.outputs) != 1
            or backend.lane(1) is None
        ):
            return None
        return cls(contract.inputs[0], contract.outputs[0], backend, now_us)

    def run(self, batch: Execute, received_us: int) -> Executed | None:
        """The answer, to be encoded before the next call; None: `Model.run` has to see it.

        No other batch is pending.
        """
        started_us = self._now_us()
        counts, deadlines_us, tensors = batch.rows, batch.deadlines_us, batch.tensors
        rows = sum(counts)
        fixed = self._fixed.get(rows) or self._fix(rows)
        if (
            fixed is None
            or not len(counts) == len(deadlines_us) == len(batch.risk_levels)
            or min(counts) < 1
            or min(deadlines_us) <= started_us - received_us
            or len(tensors) != 1
        ):
            return None
        tensor, contract = tensors[0], self._input
        data = tensor.data
        if (
            tensor.shape != fixed.shape
            or type(data) is not memoryview
            or len(data) != fixed.bytes
            or tensor.name != contract.name
            or tensor.datatype != contract.datatype
        ):
            return None
        fixed.input[:] = data
        prepared_us = self._now_us()
        try:
            fixed.forward()
        except Exception:  # noqa: BLE001 — `Model.run` meets it again, and names it
            return None
        forwarded_us = self._now_us()
        _judge_finite(fixed.numbers, fixed.finite)
        if 0 in fixed.finite_bytes:
            return None
        sent_us = self._now_us()
        return Executed(
            fixed.outputs,
            _NO_PREDICTIONS,
            _NO_ERRORS,
            received_us,
            sent_us,
            max(0, started_us - received_us),
            prepared_us - started_us,
            forwarded_us - prepared_us,
            sent_us - forwarded_us,
            credits_batches,
        )

    def _fix(self, rows: int) -> _Fixed | None:
        lane = self._backend.lane(rows) if is_cheap(self._backend, rows) else None
        if lane is None:
            return None
        contract = self._output
        output = Tensor(
            name=contract.name,
            datatype=contract.datatype,
            shape=[rows, *contract.shape[1:]],
            data=lane.output,
        )
        finite_bytes = bytearray(lane.numbers.size)
        fixed = self._fixed[rows] = _Fixed(
            shape=[rows, *self._input.shape[1:]],
            bytes=lane.input.nbytes,
            input=lane.input,
            forward=lane.forward,
            numbers=lane.numbers,
            finite=np.frombuffer(finite_bytes, dtype=bool),
            finite_bytes=finite_bytes,
            outputs=[output],
        )
        return fixed

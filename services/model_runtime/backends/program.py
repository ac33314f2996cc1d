"""An exported program (`torch.export`), rebuilt from data: `program.json` and the pack's tensors.

No pickle, no code from the pack: see decision 0021. The operators are the module's own, so its
numbers are the module's own. Numerics are pinned as for torch modules (`pin_numerics`).
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from contracts.errors import MeshError
from contracts.pack import Manifest, TensorContract
from services.model_runtime.backends.base import Array, Lane
from services.model_runtime.backends.plan import Plan
from services.model_runtime.backends.program_rules import invalid, read_program
from services.model_runtime.backends.torch_memory import (
    TORCH_TYPES,
    InputBuffer,
    as_tensor,
    fit_cost,
    is_out_of_memory,
)
from services.model_runtime.config import lane_rows_max
from services.model_runtime.encoding import input_shapes

tried_rows = (1, 2, 3)
"""Batches that a program must pass when it is loaded: one row, and more than one size of several,
so that a size that was written down as a number shows."""


class ExportedProgram:
    """A `Backend`."""

    waits = False

    def __init__(
        self, plan: Plan, buffers: list[InputBuffer], weights: Sequence[Tensor], is_matrix: bool
    ) -> None:
        self._plan: Plan | None = plan
        self._buffers = buffers
        self._weights = frozenset(_storage(weight) for weight in weights)
        self._is_matrix = is_matrix
        self._batch_s = self._row_s = math.inf

    @classmethod
    def load(
        cls, manifest: Manifest, tensors: Mapping[str, Array], files: Mapping[str, bytes]
    ) -> "ExportedProgram":
        """Check the graph, rebuild it over the arrays without copying them, and try it."""
        inputs = input_shapes(manifest)
        program = read_program(files, manifest, inputs)
        bits = {tensor.name for tensor in manifest.tensors if tensor.datatype == "BF16"}
        weights = {name: as_tensor(array, name in bits) for name, array in tensors.items()}
        buffers = [InputBuffer(contract) for contract in inputs]
        outputs = manifest.contract.outputs
        is_matrix = _is_matrix(inputs) and _is_matrix(outputs)
        backend = cls(Plan(program, weights), buffers, list(weights.values()), is_matrix)
        for rows in tried_rows:
            backend.try_out(manifest, rows)
        return backend

    def try_out(self, manifest: Manifest, rows: int) -> None:
        """Run zeros and compare what comes out with the contract. Raises MeshError PACK_INVALID."""
        assert self._plan is not None, "closed"
        with torch.inference_mode():
            inputs = [torch.from_numpy(buffer.zeros(rows)) for buffer in self._buffers]
            outputs = self._plan.try_out(inputs)
        is_classifier = manifest.contract.task == "classifier"
        for index, (output, contract) in enumerate(
            zip(outputs, manifest.contract.outputs, strict=True)
        ):
            expected = [rows, *contract.shape[1:]]
            if not isinstance(output, Tensor) or list(output.shape) != expected:
                found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise invalid(
                    f"output {contract.name[:80]} is {found} for {rows} rows, the contract says"
                    f" {expected}; export it with a dynamic number of rows: mortise pack"
                )
            is_scores = is_classifier and index == 0 and output.is_floating_point()
            is_fit = is_scores or output.dtype == TORCH_TYPES.get(contract.datatype)
            if output.dtype == torch.bfloat16 or not is_fit:  # numpy has no bfloat16
                raise invalid(
                    f"output {contract.name[:80]} is {str(output.dtype).removeprefix('torch.')},"
                    f" the contract says {contract.datatype}; convert it inside the model"
                )

    def warm(self) -> None:
        """See `Backend.warm`."""
        self._batch_s, self._row_s = fit_cost(self._run_zeros)

    def recall(self, batch_s: float, row_s: float) -> None:
        """See `costs.Recalls`."""
        self._batch_s, self._row_s = batch_s, row_s

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """See `Backend.forward`."""
        assert self._plan is not None, "closed"
        try:
            with torch.inference_mode():
                tensors = [
                    buffer.fill(array, rows)
                    for buffer, array in zip(self._buffers, inputs, strict=True)
                ]
                shared = self._weights.union(map(_storage, tensors))
                return [_fresh(output, shared) for output in self._plan.run(tensors)]
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise MeshError("MEMORY_EXHAUSTED", f"a forward of {rows} rows") from error
            raise

    def lane(self, rows: int) -> Lane | None:
        """See `Backend.lane`: for one FP32 matrix in and one out."""
        if not self._is_matrix or not 1 <= rows <= lane_rows_max:
            return None
        plan = self._plan
        assert plan is not None, "closed"
        x = torch.from_numpy(self._buffers[0].zeros(rows))
        # No tensor here requires a gradient, so inference mode would leave nothing out.
        y = plan.run([x])[0].clone(memory_format=torch.contiguous_format)
        output = y.numpy()
        inputs = [x]

        def run() -> None:
            y.copy_(plan.run(inputs)[0])

        return Lane(
            input=x.numpy().data.cast("B"),
            output=output.data.cast("B"),
            numbers=output.reshape(-1),
            forward=run,
        )

    def cost(self, rows: int) -> float:
        """See `Backend.cost`."""
        return self._batch_s + rows * self._row_s

    def close(self) -> None:
        """Drop the plan, and with it the last references to the maps."""
        self._plan = None
        self._buffers = []

    def _run_zeros(self, rows: int) -> None:
        self.forward([buffer.zeros(rows) for buffer in self._buffers], rows)


def _fresh(output: Tensor, shared: frozenset[int]) -> Array:
    """The output's numbers in memory that no weight and no later batch uses."""
    if _storage(output) in shared:
        output = output.clone()
    array: Array = output.numpy()
    return array


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_matrix(tensors: Sequence[TensorContract]) -> bool:
    return [(t.datatype, len(t.shape)) for t in tensors] == [("FP32", 2)]

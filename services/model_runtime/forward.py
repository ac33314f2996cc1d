"""A batch's forward, and what is saved of one that failed: `isolation` decides, this computes."""

from collections.abc import Callable, Sequence

import numpy as np

from contracts.errors import MeshError
from contracts.execution import Execute
from services.model_runtime.backends.base import Array, Backend
from services.model_runtime.config import (
    alone_rows_max,
    failed_requests_logged_max,
    poisoned_batches,
)
from services.model_runtime.isolation import (
    Isolated,
    forwards_max,
    forwards_per_row_max,
    isolate,
)
from services.model_runtime.postprocess import Postprocess
from shared import logs

log = logs.get("services.model_runtime")
Stop = Callable[[], MeshError | None]
"""Why no further forward of a batch begins, or None."""


class Forward:
    """The forward of one model version. One thread at a time uses it; any may read `begun`, the
    number of forwards that have.

    `poisoned` counts batches in a row that used up the halving's bound without a single good row.
    """

    def __init__(self, backend: Backend, postprocess: Postprocess) -> None:
        self.poisoned = 0
        self.begun = 0
        self._backend = backend
        self._postprocess = postprocess

    def run(self, inputs: Sequence[Array], batch: Execute, rows: int) -> list[Array]:
        """Outputs of the contract's shapes. Raises MeshError FORWARD_FAILED, OUTPUT_INVALID, and
        what the backend named itself."""
        self.begun += 1
        try:
            outputs = self._backend.forward(inputs, rows)
        except MeshError:
            raise
        except Exception as error:
            what = f"{batch.model_name} version {batch.model_version}, {rows} rows"
            raise MeshError("FORWARD_FAILED", f"{what}: {type(error).__name__}") from error
        self._postprocess.check_shapes(outputs, batch, rows)
        return outputs

    def isolate(
        self,
        inputs: Sequence[Array],
        batch: Execute,
        live: Array,
        error: MeshError,
        stop: Stop,
    ) -> tuple[list[Array] | None, Isolated]:
        """The outputs of the good ones of the `live` rows (indices), zeros for the others, after a
        forward of all rows raised `error`; None when no row is good. No forward begins once `stop`
        has a reason; the undecided rows then fail with it."""
        total = sum(batch.rows)
        merged: list[Array] = []

        def attempt(rows: Array) -> MeshError | None:
            if (reason := stop()) is not None:
                return reason
            try:
                outputs = self.run([array[rows] for array in inputs], batch, len(rows))
            except MeshError as failure:
                return _without_frames(failure)
            if not merged:
                merged.extend(np.zeros((total, *out.shape[1:]), out.dtype) for out in outputs)
            for whole, output in zip(merged, outputs, strict=True):
                whole[rows] = output
            return None

        if live.size == total == 1:
            found = Isolated({int(live[0]): error})  # it failed alone already
        else:
            is_poisoned = self.poisoned >= poisoned_batches
            budget = (forwards_per_row_max if is_poisoned else forwards_max)(live.size)
            found = isolate(live, error, attempt, budget, 0 if is_poisoned else alone_rows_max)
            if merged:
                self.poisoned = 0
            elif found.forwards >= budget:
                self.poisoned += 1
        _log_failures(batch, found, error)
        _without_frames(error)
        return merged or None, found


def _without_frames(error: MeshError) -> MeshError:
    """Its frames hold the batch's arrays and, through their callers, the error itself: a cycle
    that would outlive the batch until a garbage collection."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _log_failures(batch: Execute, found: Isolated, error: MeshError) -> None:
    """The exception under the first failed request's trace id; the others point there."""
    record = log.bind(model_name=batch.model_name, model_version=batch.model_version)
    trace_ids = np.repeat(batch.trace_ids or [""] * len(batch.rows), batch.rows)
    failed = list(dict.fromkeys(str(trace_ids[row]) for row in sorted(found.failed)))
    first, *others = failed or [str(trace_ids[0])]
    record.error(
        "forward_failed",
        trace_id=first,
        requests=len(batch.rows),
        rows=len(trace_ids),
        rows_failed=len(found.failed),
        forwards=found.forwards,
        reason=str(error),
        exc_info=error.__cause__,
    )
    for trace_id in others[: failed_requests_logged_max - 1]:
        record.error("forward_failed", trace_id=trace_id, exception_under=first)

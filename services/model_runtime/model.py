"""A loaded model version: one batch in, its outcome out. Runs on whichever thread computes.

Every row of a batch gets an output or an error; a batch that fails as a whole fails in each row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from contracts.errors import ErrorBody, MeshError
from contracts.execution import Execute
from contracts.inference import Tensor
from contracts.pack import Manifest
from contracts.types import UNSET
from services.model_runtime.backends.base import Array, Backend, is_cheap
from services.model_runtime.forward import Forward, Stop
from services.model_runtime.padding import TokenPreprocess
from services.model_runtime.postprocess import Checked, Postprocess
from services.model_runtime.preprocess import Preprocess, TensorPreprocess, ViewPreprocess
from services.model_runtime.quick import Quick
from services.model_runtime.watch import forward_s_max
from shared.clock import Clock
from shared.deadline import exceeded

_ample_us = 3_600_000_000
_hop = "model_runtime"


def _never() -> bool:
    return False


@dataclass(slots=True)
class Times:
    """Microseconds: when the work began (monotonic), and how long its parts took; and what it took
    to isolate bad rows."""

    started: int
    tokenize: int = 0
    forward: int = 0
    postprocess: int = 0
    extra_forwards: int = 0
    isolated_rows: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch came to. `errors` by the row's index in the batch."""

    outputs: list[Tensor]
    predictions: list[msgspec.Raw]
    times: Times
    errors: dict[int, ErrorBody] = field(default_factory=dict)


class Model:
    """A backend with the pack's pre- and postprocessing; one thread at a time uses it."""

    def __init__(
        self, manifest: Manifest, backend: Backend, view_sql: str | None, clock: Clock
    ) -> None:
        contract = manifest.contract
        self._name = contract.name
        self._backend = backend
        self._clock = clock
        self._preprocess: Preprocess
        self._has_tokens = contract.tokens is not UNSET
        if contract.tokens is not UNSET:
            self._preprocess = TokenPreprocess(contract, contract.tokens)
        elif contract.view is UNSET:
            self._preprocess = TensorPreprocess(contract)
        else:
            assert view_sql is not None, "a pack with a view was read with it"
            self._preprocess = ViewPreprocess(contract.view.digest, view_sql, manifest.encoders)
        self._postprocess = Postprocess(contract)
        self._forward = Forward(backend, self._postprocess)
        self.forward_s_max = forward_s_max(contract)
        self.quick = Quick.of(contract, backend, clock.monotonic_us)
        """For the commonest batches, where nothing else is pending; the same answers as `run`."""

    @property
    def forwards(self) -> int:
        """How many forwards have begun; any thread may ask."""
        return self._forward.begun

    def is_inline(self, rows: int) -> bool:
        """Whether this batch is cheaper than handing it to the compute thread. What a token model's
        costs is not in its rows."""
        return not self._has_tokens and is_cheap(self._backend, rows)

    def close(self) -> None:
        """Let go of the weights."""
        self.quick = None
        self._backend.close()

    def prime(self) -> None:
        """Run one row through everything on the calling thread, so that the first real batch on
        it finds what torch and numpy set up per thread and at first use."""
        tensors, blocks = self._preprocess.example()
        batch = Execute(
            model_name=self._name,
            model_version="(warm-up)",
            rows=[1],
            risk_levels=[1],
            deadlines_us=[_ample_us],
            tensors=tensors,
            blocks=blocks,
            lengths=[1] if self._has_tokens else [],
        )
        self.run(batch, self._clock.monotonic_us())
        if self.quick is not None:
            self.quick.run(batch, self._clock.monotonic_us())

    def run(
        self, batch: Execute, received_us: int, is_unwanted: Callable[[], bool] = _never
    ) -> Outcome:
        """Compute what is still wanted.

        A request whose deadline has passed fails with DEADLINE_EXCEEDED; when all have, nothing
        is computed. A row that makes the forward fail does so alone (see `isolation`), for which
        no forward begins once nobody waits any more: `is_unwanted`, or every deadline passed.
        """
        times = Times(self._clock.monotonic_us())
        rows = sum(batch.rows)
        is_live = _live_rows(batch, times.started - received_us)
        failures = _expired(is_live)
        checked = None
        if len(failures) < rows:
            ends_us = received_us + max(batch.deadlines_us)
            try:
                checked = self._compute(
                    batch, rows, is_live, times, lambda: self._stop(ends_us, is_unwanted)
                )
            except MeshError as error:
                live = range(rows) if is_live is None else np.flatnonzero(is_live).tolist()
                failures |= dict.fromkeys(live, error)
        if checked is None:
            checked = self._postprocess.nothing(batch, rows)
        failures |= checked.failed
        return Outcome(checked.outputs, checked.predictions, times, _bodies(batch, failures))

    def _compute(
        self, batch: Execute, rows: int, is_live: Array | None, times: Times, stop: Stop
    ) -> Checked:
        inputs = self._preprocess.arrays(batch, rows)
        prepared_us = self._clock.monotonic_us()
        times.tokenize = prepared_us - times.started
        failed: dict[int, MeshError] = {}
        outputs: Sequence[Array] | None
        try:
            outputs = self._forward.run(inputs, batch, rows)
        except MeshError as error:
            live = np.arange(rows) if is_live is None else np.flatnonzero(is_live)
            outputs, found = self._forward.isolate(inputs, batch, live, error, stop)
            failed, times.extra_forwards = found.failed, found.forwards
            times.isolated_rows = len(failed)
            is_live = np.isin(np.arange(rows), live)
            is_live[list(failed)] = False
        forwarded_us = self._clock.monotonic_us()
        times.forward = forwarded_us - prepared_us
        if outputs is None:
            checked = self._postprocess.nothing(batch, rows)
        else:
            checked = self._postprocess.check(outputs, batch, rows, is_live)
        times.postprocess = self._clock.monotonic_us() - forwarded_us
        checked.failed.update(failed)
        return checked

    def _stop(self, ends_us: int, is_unwanted: Callable[[], bool]) -> MeshError | None:
        """Why no further forward of a batch begins, or None."""
        if is_unwanted():
            return MeshError("CANCELLED", "every caller of the batch left")
        if self._clock.monotonic_us() >= ends_us:
            return exceeded("the deadline passed while rows were isolated", "forward", _hop)
        return None


def _live_rows(batch: Execute, waited_us: int) -> Array | None:
    """Per row of the batch: its request's deadline is still ahead. None: all are."""
    if min(batch.deadlines_us) > waited_us:
        return None
    return np.repeat([left_us > waited_us for left_us in batch.deadlines_us], batch.rows)


def _expired(is_live: Array | None) -> dict[int, MeshError]:
    if is_live is None:
        return {}
    late = exceeded("the deadline passed before the model ran", "batch", _hop)
    return dict.fromkeys(np.flatnonzero(~is_live).tolist(), late)


def _bodies(batch: Execute, failures: dict[int, MeshError]) -> dict[int, ErrorBody]:
    """Each failed row's error under its own request's trace id."""
    if not failures:
        return {}
    requests = np.repeat(np.arange(len(batch.rows)), batch.rows)
    return {
        row: error.body(batch.trace_ids[requests[row]] if batch.trace_ids else "")
        for row, error in failures.items()
    }

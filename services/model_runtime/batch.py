"""One `execute` call on its way through the runtime: queued, computed or cancelled, answered."""

from contracts.errors import MeshError
from contracts.execution import Execute, Executed
from contracts.limits import rows_per_request_max
from services.model_runtime.generations import Generation
from services.model_runtime.model import Model, Outcome
from shared.rpc.server import Call


class Batch:
    """`compute` may run on the compute thread; everything else belongs to the loop."""

    __slots__ = (
        "_call", "_model", "_received_us", "_work", "generation", "is_cancelled", "is_given_up"
    )  # fmt: skip

    def __init__(self, call: Call, generation: Generation[Model]) -> None:
        """The body has passed `check_counts`."""
        assert generation.model is not None, "an acquired generation is ready"
        self.generation = generation
        self.is_cancelled = self.is_given_up = False
        self._model = generation.model
        self._call = call
        self._work: Execute = call.body
        self._received_us = int(call.received_s * 1e6)
        call.on_cancel = self._cancel

    @property
    def rows(self) -> int:
        """Rows of all its requests."""
        return sum(self._work.rows)

    def is_inline(self) -> bool:
        """Whether it is cheaper to compute it here than to hand it over."""
        return self._model.is_inline(self.rows)

    @property
    def forwards(self) -> int:
        """See `Watched`."""
        return self._model.forwards

    @property
    def forward_s_max(self) -> float:
        """See `Watched`."""
        return self._model.forward_s_max

    def give_up(self, error: MeshError) -> None:
        """End the call while its forward runs on; what that comes to is dropped."""
        self.is_given_up = True
        self._call.fail(error)

    @property
    def trace_ids(self) -> list[str]:
        """Of its requests."""
        return self._work.trace_ids or [self._call.trace_id]

    def compute(self) -> Outcome | None:
        """The outcome, or None when nobody waits for it any more (a cancelled batch that had not
        begun is not computed; a forward in progress is not interrupted)."""
        if self.is_cancelled:
            return None
        return self._model.run(self._work, self._received_us, self._is_unwanted)

    def answer(self, outcome: Outcome, sent_us: int, credits: int) -> None:
        """Reply, unless the caller is gone (the call drops it)."""
        times = outcome.times
        self._call.reply(
            Executed(
                outputs=outcome.outputs,
                predictions=outcome.predictions,
                errors=outcome.errors,
                received_us=self._received_us,
                sent_us=sent_us,
                wait_us=max(0, times.started - self._received_us),
                tokenize_us=times.tokenize,
                forward_us=times.forward,
                postprocess_us=times.postprocess,
                credits=credits,
            )
        )

    def fail(self, error: MeshError) -> None:
        """End the call with an error."""
        self._call.fail(error)

    @property
    def trace_id(self) -> str:
        """The call's, for logs."""
        return self._call.trace_id

    def _is_unwanted(self) -> bool:
        return self.is_cancelled

    def _cancel(self) -> None:
        self.is_cancelled = True


def check_counts(work: Execute) -> None:
    """Raises MeshError INVALID_REQUEST unless there is one row count, risk level and deadline a
    request, every request has rows, and no more than `rows_per_request_max` are announced: rows
    are counted one by one before anything looks at their data."""
    requests = len(work.rows)
    if not len(work.risk_levels) == len(work.deadlines_us) == requests:
        raise MeshError(
            "INVALID_REQUEST",
            f"{requests} requests have {len(work.risk_levels)} risk levels and"
            f" {len(work.deadlines_us)} deadlines",
        )
    if min(work.rows) < 1:
        raise MeshError("INVALID_REQUEST", f"a request has {min(work.rows)} rows")
    if sum(work.rows) > rows_per_request_max:
        raise MeshError(
            "INVALID_REQUEST",
            f"the batch has {sum(work.rows)} rows, rows_per_request_max is {rows_per_request_max};"
            " send fewer at once",
        )

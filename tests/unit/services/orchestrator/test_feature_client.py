"""The client of the data fabric, without a fabric: what becomes of the parts of one request."""

from pathlib import Path
from typing import Any

from msgspec import Raw

from contracts.errors import MeshError
from contracts.features import FeatureBatchItem, RefusedRow
from services.orchestrator.deadlines import Awaited, Wheel
from services.orchestrator.feature_client import FeatureClient
from services.orchestrator.micro_batch import FeatureCall, take_item
from services.orchestrator.request import Outcome, Part
from shared.clock import ManualClock
from tests.unit.services.orchestrator.making import classifier, plan_for, rows_request, work_for

DELAY = plan_for(classifier())


class Sent:
    """Stands for the RPC client: remembers calls and cancels."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.cancelled: list[int] = []

    def call_nowait(self, method: str, body: Any, on_answer: Any, **_: Any) -> int:
        """See `RpcClient`."""
        self.calls.append((body, on_answer))
        return len(self.calls)

    def cancel(self, msgid: int) -> None:
        """See `RpcClient`."""
        self.cancelled.append(msgid)


class Case:
    """A client whose fabric is there, a request of two parts, and what was reported of them."""

    def __init__(self) -> None:
        clock = ManualClock()
        wheel: Wheel[Awaited] = Wheel(0.005, lambda when_s: None)
        self.client = FeatureClient(Path("none.sock"), clock, wheel, self._on_done)
        self.client._client = self.sent = Sent()  # type: ignore[assignment]
        self.client.is_there = True
        self.client._wake = lambda: None  # type: ignore[method-assign] — no loop runs here
        self.clock = clock
        self.work = work_for(DELAY, rows_request(2), deadline_s=clock.monotonic() + 5)
        self.parts = [Part(self.work, row, 1, 10) for row in (0, 1)]
        self.work.parts = self.parts
        self.ends: list[tuple[Part, str]] = []
        self.errors: list[MeshError] = []

    def _on_done(self, part: Part, error: MeshError | None) -> None:
        """As the pipeline does: an error ends the request and forgets its other parts."""
        self.ends.append((part, "" if error is None else error.name))
        if error is not None:
            self.errors.append(error)
            self.work.end(Outcome.FAILED)
            for other in self.parts:
                self.client.forget(other)

    def send(self) -> FeatureCall:
        """Both parts in one call."""
        for part in self.parts:
            part.raw_rows = self.work.body.rows
            self.client.submit(part, self.clock.monotonic())
        self.client._pump()
        call = self.parts[0].asked
        assert call is not None
        return call


def test_a_request_that_ends_with_one_part_is_not_tried_again_with_the_other() -> None:
    """One part has used up its retry: nothing of the request waits any more."""
    case = Case()
    call = case.send()
    case.parts[0].retries = 1
    call.answered(None, MeshError("UNAVAILABLE", "gone"))
    assert case.ends == [(case.parts[0], "UNAVAILABLE")]
    lane = case.client._lane(DELAY.view)  # type: ignore[arg-type]
    assert lane.waiting == {}


def test_a_silent_fabric_ends_a_request_once() -> None:
    """Both parts were asked for; the first one's end is the request's."""
    case = Case()
    call = case.send()
    call.expire()
    assert case.ends == [(case.parts[0], "DEADLINE_EXCEEDED")]
    assert case.sent.cancelled == [call.msgid]
    call.expire()
    call.answered(None, MeshError("UNAVAILABLE", "late"))
    assert len(case.ends) == 1


def test_a_silent_fabric_is_named_with_its_share() -> None:
    """The violation says which stage and process used up how much, as one of the whole does."""
    case = Case()
    case.client.instance = "data_fabric.0-1234abcd"
    case.send().expire()
    assert case.errors[0].details == {
        "stage": "features", "hop": "data_fabric.0-1234abcd", "deadline_ms": 1_000,
    }  # fmt: skip


def test_a_call_that_nobody_waits_for_is_cancelled() -> None:
    """Only when the last of its parts leaves."""
    case = Case()
    call = case.send()
    case.client.forget(case.parts[0])
    assert case.sent.cancelled == []
    case.client.forget(case.parts[1])
    assert case.sent.cancelled == [call.msgid]
    assert case.client._lanes == {}


def test_a_lost_call_waits_for_the_next_fabric_once() -> None:
    """Both parts go again, in the same order; the second loss is the end."""
    case = Case()
    case.send().answered(None, MeshError("CANCELLED", "drain"))
    assert case.ends == []
    case.client._pump()
    call = case.parts[1].asked
    assert call is not None
    assert call.parts == case.parts
    call.answered(None, MeshError("CANCELLED", "drain"))
    assert case.ends == [(case.parts[0], "UNAVAILABLE")]


def item(*refused: int, **fields: Any) -> FeatureBatchItem:
    """What a fabric says of one request."""
    error = MeshError("FEATURE_INVALID", "hour is 25").body("0" * 32)
    return FeatureBatchItem(refused=[RefusedRow(row=row, error=error) for row in refused], **fields)


def part_of(rows: int) -> Part:
    """A part that waits for features."""
    return Part(work_for(DELAY, rows_request(rows)), 0, rows, 10)


def test_good_rows_keep_their_block_and_bad_ones_their_reason() -> None:
    """Two of three rows are good."""
    part = part_of(3)
    assert take_item(part, item(1, block=Raw(b"\x80"), freshness_s=2.0)) is None
    assert (part.good_rows, part.freshness_s) == (2, 2.0)
    assert [refused.row for refused in part.refused] == [1]


def test_a_request_without_a_good_row_is_no_error_of_the_call() -> None:
    """Its rows say why; another error is its own."""
    stale = MeshError("FEATURE_STALE", "10 h old").body("0" * 32)
    part = part_of(2)
    assert take_item(part, item(0, 1, error=stale)) is None
    assert part.good_rows == 0
    error = take_item(part_of(2), item(error=stale))
    assert error is not None
    assert error.name == "FEATURE_STALE"


def test_a_fabric_that_breaks_its_contract_costs_the_request_not_the_process() -> None:
    """Rows that are not there, a row twice, neither features nor an error."""
    for broken in (item(2, block=Raw(b"\x80")), item(0, 0, block=Raw(b"\x80")), item(0)):
        error = take_item(part_of(2), broken)
        assert error is not None
        assert error.name == "INTERNAL"

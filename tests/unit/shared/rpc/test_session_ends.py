"""How a call ends: once, by its handler, the caller, a disconnect or its deadline."""

import asyncio
from typing import Any

import msgpack
import msgspec
import pytest

from contracts.errors import MeshError
from contracts.inference import Models
from shared.rpc.call import DEFERRED, Call
from tests.unit.shared.rpc.fakes import INSTANCE, Held, Stage, notification, request

BODY = {"model_name": "tiny", "text": ["a"]}
ANSWER = msgspec.Raw(msgpack.packb({"answer": 1}))


def test_a_call_ends_once() -> None:
    """A handler that ends it twice is wrong, and learns it."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY))
    held.calls[0].reply(ANSWER)
    with pytest.raises(AssertionError, match="a call ends once"):
        held.calls[0].reply(ANSWER)
    with pytest.raises(AssertionError, match="an item after the end"):
        held.calls[0].stream({})
    stage.loop.turn()
    assert len(transport.messages()) == 1


def test_cancel_ends_the_call_and_tells_its_handler() -> None:
    """The caller gets CANCELLED; what the handler says later is dropped."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY) + notification("cancel", 1))
    assert transport.messages()[0][2]["name"] == "CANCELLED"
    assert held.cancelled == [1]
    held.calls[0].reply(ANSWER)
    held.calls[0].fail(MeshError("OVERLOADED", "late"))
    assert held.calls[0].stream({}) is False
    stage.loop.turn()
    assert transport.messages() == []
    assert stage.counts["cancelled"] == 1
    assert stage.conserves()


@pytest.mark.parametrize(
    "message",
    [
        notification("cancel", 99),
        notification("cancel", "1"),
        notification("cancel"),
        notification("stream", 1, 0, {}),
        notification("unheard_of", 1, 2, 3),
        msgpack.packb([1, 1, None, {}]),
        msgpack.packb([1, 99, {"code": 1}, None]),
    ],
)
def test_unknown_notifications_and_unsolicited_responses_are_ignored(message: bytes) -> None:
    """The call in flight and the connection are untouched."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY) + message)
    assert (transport.messages(), list(session.calls)) == ([], [1])
    assert not transport.is_closing()


@pytest.mark.parametrize(
    "message",
    [b"\x93\x07\x01\x90", msgpack.packb([0, -1, "ping", [{}]]), b"GET /", b"\x94\x00\xc1"],
)
def test_what_is_no_message_closes_the_connection(message: bytes) -> None:
    """After the answers to what came before; counted."""
    stage = Stage()
    session, transport = stage.connect()
    session.data_received(request(1, "ping") + message + request(2, "ping"))
    assert transport.messages() == [[1, 1, None, {}]]
    assert transport.is_closed
    assert stage.counts["frame_errors"] == 1


def test_a_disconnect_cancels_what_is_in_flight() -> None:
    """Nobody waits any more, so the handler is told."""
    held = Held()
    stage = Stage({"infer": held})
    session, _ = stage.connect()
    session.data_received(request(1, "infer", BODY) + request(2, "infer", BODY))
    session.connection_lost(None)
    assert held.cancelled == [1, 2]
    assert (stage.counts["cancelled"], stage.serving.counters.in_flight) == (2, 0)
    assert not stage.serving.sessions


def test_a_cancel_callback_that_raises_does_not_harm_the_connection(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Logged, and the next request is answered."""

    def infer(call: Call) -> Any:
        call.on_cancel = lambda: 1 / 0
        return DEFERRED

    stage = Stage({"infer": infer})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY) + notification("cancel", 1))
    session.data_received(request(2, "ping"))
    assert [m[1] for m in transport.messages()] == [1, 2]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_coroutine_runs_in_a_task_with_its_deadline_as_timer() -> None:
    """The answer cancels the timer."""

    async def models(_: Call) -> Models:
        return Models(models=[])

    stage = Stage({"models": models})
    session, transport = stage.connect()
    session.data_received(request(1, "models", {}, {"deadline_ms": 40}))
    (timer,) = stage.loop.timers
    assert timer.delay_s == pytest.approx(0.04)
    assert transport.messages() == []
    stage.loop.tasks[0].step()
    stage.loop.turn()
    assert transport.messages() == [[1, 1, None, {"models": []}]]
    assert timer.is_cancelled


def test_a_coroutine_past_its_deadline_is_answered_and_cancelled() -> None:
    """The error names the hop; the task's late answer is dropped."""

    async def models(_: Call) -> Models:
        return Models(models=[])

    stage = Stage({"models": models})
    session, transport = stage.connect()
    session.data_received(request(1, "models", {}, {"deadline_ms": 40}))
    stage.loop.timers[0].fire()
    stage.loop.turn()
    error = transport.messages()[0][2]
    assert (error["name"], error["details"]) == ("DEADLINE_EXCEEDED", {"hop": INSTANCE})
    assert "40 ms" in error["message"]
    assert stage.loop.tasks[0].is_cancelled
    stage.loop.tasks[0].step()
    stage.loop.turn()
    assert transport.messages() == []
    assert stage.conserves()


async def test_a_cancelled_coroutine_stops_where_it_waits() -> None:
    """Its `finally` runs; the caller has its answer already."""
    seen: list[str] = []

    async def models(_: Call) -> Models:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("stopped")
        raise AssertionError("unreachable")

    stage = Stage({"models": models})
    session, transport = stage.connect()
    session.data_received(request(1, "models") + notification("cancel", 1))
    assert transport.messages()[0][2]["name"] == "CANCELLED"
    coroutine = stage.loop.tasks[0].coroutine
    with pytest.raises(StopIteration):
        _run_until_waiting_then_cancel(coroutine)
    assert seen == ["stopped"]


def _run_until_waiting_then_cancel(coroutine: Any) -> None:
    coroutine.send(None)
    try:
        coroutine.throw(asyncio.CancelledError())
    except asyncio.CancelledError:
        raise StopIteration from None

"""The client on real sockets: dialling, reconnecting, retrying, time-outs."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from contracts.control import Promote, Promoted, PromoteStep, Rollback
from contracts.errors import MeshError
from contracts.inference import InferenceRequest, Models
from contracts.methods import METHODS
from contracts.types import Empty
from shared.access import Access
from shared.rpc.call import DEFERRED, Call
from shared.rpc.client import NOT_SENT, RpcClient
from shared.rpc.dial import dial
from shared.rpc.server import Server
from tests.unit.shared.rpc.fakes import Held, handlers, unexpected

BODY = InferenceRequest(model_name="tiny", text=["a"])
MODELS = Models(models=[])


def orchestrator(**given: Any) -> Server:
    """A server with these handlers."""
    return Server(
        "orchestrator", handlers(**given), instance="orchestrator.0-00", access=Access.owner()
    )


@asynccontextmanager
async def connected(path: str, server: Server, **options: Any) -> AsyncIterator[RpcClient]:
    """A client of a server that runs at the path; both are stopped at the end."""
    await server.start_path(path)
    client = RpcClient(path, "orchestrator", **options)
    await client.connect(5)
    try:
        yield client
    finally:
        await client.close()
        await server.drain(0)


async def test_a_call_returns_the_typed_response(socket_path: str) -> None:
    """Both sides know the row."""
    async with connected(socket_path, orchestrator(models=lambda _: MODELS)) as client:
        assert await client.call("models", Empty()) == MODELS


async def test_an_error_is_raised_with_its_fields(socket_path: str) -> None:
    """As the handler raised it, with the call's trace id."""

    def infer(_: Call) -> Any:
        raise MeshError("QUOTA_EXCEEDED", "requests_per_s is 5", retry_after_ms=40)

    async with connected(socket_path, orchestrator(infer=infer)) as client:
        with pytest.raises(MeshError) as caught:
            await client.call("infer", BODY, trace_id="0" * 31 + "1")
    error = caught.value
    assert (error.name, error.retry_after_ms, error.trace_id) == (
        "QUOTA_EXCEEDED",
        40,
        "0" * 31 + "1",
    )


async def test_without_a_socket_a_call_is_unavailable_and_says_why(socket_path: str) -> None:
    """Within the time-out, not before: the service may be starting."""
    client = RpcClient(socket_path, "orchestrator")
    with pytest.raises(MeshError, match=r"UNAVAILABLE.*No such file"):
        await client.call("ping", Empty(), timeout_s=0.05)
    with pytest.raises(MeshError, match="UNAVAILABLE"):
        await client.connect(0.01)
    await client.close()


async def test_a_call_waits_for_a_service_that_starts_late(socket_path: str) -> None:
    """Dialling goes on in the background."""
    client = RpcClient(socket_path, "orchestrator")
    call = asyncio.ensure_future(client.call("models", Empty(), timeout_s=10))
    await asyncio.sleep(0)
    server = orchestrator(models=lambda _: MODELS)
    await server.start_path(socket_path)
    assert await call == MODELS
    await client.close()
    await server.drain(0)


async def test_the_deadline_travels_and_ends_the_call(socket_path: str) -> None:
    """The server sees what remains; a silent handler is cancelled there too."""
    held = Held()
    async with connected(socket_path, orchestrator(infer=held)) as client:
        with pytest.raises(MeshError, match="DEADLINE_EXCEEDED") as late:
            await client.call("infer", BODY, timeout_s=0.05)
        assert late.value.details == {"hop": "orchestrator"}
        assert held.calls[0].deadline_s - held.calls[0].received_s <= 0.051
        await client.call("ping", Empty())
        assert held.cancelled == [held.calls[0].msgid]


async def test_cancelling_the_caller_cancels_the_request(socket_path: str) -> None:
    """The task's cancellation reaches the handler."""
    held = Held()
    async with connected(socket_path, orchestrator(infer=held)) as client:
        call = asyncio.ensure_future(client.call("infer", BODY))
        await client.call("ping", Empty())
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await client.call("ping", Empty())
        assert len(held.cancelled) == 1


async def test_call_nowait_answers_by_callback(socket_path: str) -> None:
    """No future, no task; cancel means silence."""
    held = Held()
    server = orchestrator(infer=held, models=lambda _: MODELS)
    answers: list[Any] = []
    async with connected(socket_path, server) as client:
        silent = client.call_nowait("infer", BODY, lambda *a: answers.append(a), deadline_ms=900)
        client.call_nowait("models", Empty(), lambda *a: answers.append(a))
        await client.call("ping", Empty())
        client.cancel(silent)
        await client.call("ping", Empty())
        assert answers == [(MODELS, None)]
        assert held.cancelled == [silent]


async def test_call_nowait_without_a_connection_answers_in_a_later_turn(socket_path: str) -> None:
    """Never inside the call itself, so that the caller has its msgid first."""
    server = orchestrator()
    answers: list[Any] = []
    async with connected(socket_path, server) as client:
        await client.close()
        msgid = client.call_nowait("ping", Empty(), lambda *a: answers.append(a))
        assert (msgid, answers) == (NOT_SENT, [])
        await asyncio.sleep(0)
    ((nothing, error),) = answers
    assert nothing is None
    assert error.name == "UNAVAILABLE"


async def test_an_idempotent_call_is_retried_once_on_a_lost_connection(socket_path: str) -> None:
    """The first connection is cut after the request arrived; the second answers."""
    seen: list[Call] = []

    def models(call: Call) -> Any:
        seen.append(call)
        if len(seen) == 1:
            cut(call)
            return DEFERRED
        return MODELS

    async with connected(socket_path, orchestrator(models=models)) as client:
        assert await client.call("models", Empty()) == MODELS
    assert len(seen) == 2


def cut(call: Call) -> None:
    """Abort the connection that the call came over."""
    session: Any = call.wire
    session.transport.abort()


async def test_a_second_loss_is_unavailable(socket_path: str) -> None:
    """One retry, not two."""
    seen: list[Call] = []

    def models(call: Call) -> Any:
        seen.append(call)
        cut(call)
        return DEFERRED

    async with connected(socket_path, orchestrator(models=models)) as client:
        with pytest.raises(MeshError, match="UNAVAILABLE: models: connection lost"):
            await client.call("models", Empty())
    assert len(seen) == 2


def control_plane(**given: Any) -> Server:
    """A control plane with these handlers."""
    every = dict.fromkeys(METHODS["control_plane"], unexpected) | given
    own = {name: every.pop(name) for name in ("ping", "describe")}
    assert own
    return Server("control_plane", every, instance="control_plane.0-00", access=Access.owner())


async def test_a_call_that_is_not_idempotent_is_not_retried(socket_path: str) -> None:
    """Nobody knows how far it got."""
    seen: list[Call] = []

    def rollback(call: Call) -> Any:
        seen.append(call)
        cut(call)
        return DEFERRED

    server = control_plane(rollback=rollback)
    await server.start_path(socket_path)
    client = RpcClient(socket_path, "control_plane")
    with pytest.raises(MeshError, match="UNAVAILABLE"):
        await client.call("rollback", Rollback(to=1))
    assert len(seen) == 1
    await client.close()
    await server.drain(0)


async def test_a_stream_delivers_its_items_before_its_response(socket_path: str) -> None:
    """Progress of a promotion."""

    async def promote(call: Call) -> Promoted:
        assert call.wants_stream
        call.stream(PromoteStep(step="deploying"))
        call.stream(PromoteStep(step="active"))
        return Promoted(model="m", version="2", policy_version=3)

    server = control_plane(promote=promote)
    await server.start_path(socket_path)
    client = RpcClient(socket_path, "control_plane")
    items: list[PromoteStep] = []
    body = Promote(model="m", version="2")
    answer = await client.call("promote", body, on_item=items.append)
    assert [item.step for item in items] == ["deploying", "active"]
    assert answer.policy_version == 3
    await client.close()
    await server.drain(0)


async def test_goaway_moves_new_calls_to_a_new_connection(socket_path: str) -> None:
    """The successor gets them, the predecessor finishes what is in flight."""
    held = Held()
    told: list[str] = []
    reconnected = asyncio.Event()

    def on_connected() -> None:
        told.append("connected")
        if "lost" in told:
            reconnected.set()

    first = orchestrator(infer=held)
    await first.start_path(socket_path)
    client = RpcClient(
        socket_path,
        "orchestrator",
        on_connected=on_connected,
        on_lost=lambda: told.append("lost"),
    )
    await client.connect(5)
    old = asyncio.ensure_future(client.call("infer", BODY))
    await client.call("ping", Empty())
    first.stop_accepting()
    successor = orchestrator(models=lambda _: MODELS)
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    os.unlink(socket_path)
    sock.bind(socket_path)
    await successor.start(sock)
    draining = asyncio.ensure_future(first.drain(10))
    await reconnected.wait()
    assert told == ["connected", "lost", "connected"]
    assert await client.call("models", Empty()) == MODELS
    held.calls[0].fail(MeshError("MODEL_UNKNOWN", "from the predecessor"))
    with pytest.raises(MeshError, match="from the predecessor"):
        await old
    await draining
    assert successor.statistics()["connections"] == 1
    await client.close()
    await successor.drain(0)


async def test_close_gives_everybody_an_answer(socket_path: str) -> None:
    """Waiting calls get UNAVAILABLE, later ones too."""
    held = Held()
    async with connected(socket_path, orchestrator(infer=held)) as client:
        call = asyncio.ensure_future(client.call("infer", BODY))
        await client.call("ping", Empty())
        await client.close()
        with pytest.raises(MeshError, match="UNAVAILABLE"):
            await call
        with pytest.raises(MeshError, match="the client is closed"):
            await client.call("ping", Empty())


async def test_dial_waits_out_a_full_backlog(socket_path: str) -> None:
    """EAGAIN is retried until there is room."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(socket_path)
    sock.listen(0)
    filler = socket.socket(socket.AF_UNIX)
    filler.setblocking(False)
    filler.connect(socket_path)
    dialling = asyncio.ensure_future(dial(socket_path, asyncio.Protocol))
    await asyncio.sleep(0)
    assert not dialling.done()
    accepted, _ = sock.accept()
    protocol = await dialling
    assert isinstance(protocol, asyncio.Protocol)
    for each in (accepted, filler, sock):
        each.close()

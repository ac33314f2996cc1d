"""The asyncio client against the same scripted service."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import mortise
from mortise.async_client import AsyncClient
from mortise.retry import Lost, MeshDown
from tests.unit.mortise.fake_server import FakeServer, Step, echo, item
from tests.unit.mortise.test_client import TROUBLE, once_then_echo


async def test_calls_share_a_connection_and_get_their_own_answers() -> None:
    """A hundred calls at once, answered out of order, over one connection."""
    held: list[Step] = []

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        held.extend(echo(number, frame))
        if number == 100:
            yield from reversed(held)

    with FakeServer(behaviour) as server:
        async with AsyncClient(server.path) as client:
            calls = [client.infer("delay", rows=[{"n": n}]) for n in range(100)]
            answers = await asyncio.gather(*calls)
        assert [answer.body.rows[0].n for answer in answers] == list(range(100))
        assert len(server.connections) == 1
        assert len({answer.body.id for answer in answers}) == 100


@pytest.mark.parametrize("first", TROUBLE.values(), ids=TROUBLE)
async def test_one_retry_hides_a_restart(first: Callable[[list[Any]], Step]) -> None:
    """An idempotent call is tried once more with the same body and trace id."""
    with FakeServer(once_then_echo(first)) as server:
        async with AsyncClient(server.path) as client:
            answer = await client.infer("delay", rows=[{"a": 1}])
    assert answer.number == 2
    assert server.requests[0][3][0] == server.requests[1][3][0]
    assert server.requests[1][3][1]["trace_id"] == answer.context.trace_id


async def test_what_is_not_idempotent_is_never_sent_twice() -> None:
    """`apply` fails with UNAVAILABLE when the connection breaks."""
    with FakeServer(lambda number, frame: [None]) as server:
        async with AsyncClient(server.path, service="control_plane") as client:
            with pytest.raises(Lost):
                await client.call("apply")
        assert len(server.requests) == 1


async def test_a_silent_service_ends_at_the_deadline() -> None:
    """The client's own DEADLINE_EXCEEDED, and a cancel to the service."""
    with FakeServer(lambda number, frame: []) as server:
        async with AsyncClient(server.path) as client:
            with pytest.raises(mortise.DeadlineExceeded, match="hop client"):
                await client.call("ping", timeout_s=0.02)
        assert server.ended.wait(5.0)
        assert server.notices == [[2, "cancel", [server.requests[0][1]]]]


async def test_cancelling_the_task_cancels_the_call() -> None:
    """The service is told, and the connection serves the next call."""
    with FakeServer(lambda number, frame: echo(number, frame) if number > 1 else []) as server:
        async with AsyncClient(server.path) as client:
            task = asyncio.create_task(client.call("ping"))
            await asyncio.to_thread(server.began.wait, 5.0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.call("ping")).number == 2
        assert server.notices == [[2, "cancel", [server.requests[0][1]]]]
        assert len(server.connections) == 1


async def test_a_stream_yields_its_items_then_its_answer() -> None:
    """More items than may wait arrive in order, on a connection of their own."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield from (item(frame, n, {"index": n}) for n in range(200))
        yield from echo(number, frame)

    with FakeServer(behaviour) as server:
        async with AsyncClient(server.path) as client, client.stream("lm", text="x") as stream:
            assert [part.index async for part in stream] == list(range(200))
            assert (await stream.wait()).context.stream is True
        assert len(server.connections) == 1


async def test_items_nobody_asked_for_are_dropped() -> None:
    """A call without an item reader gets only its answer."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield from (item(frame, n, {"index": n}) for n in range(200))
        yield from echo(number, frame)

    with FakeServer(behaviour) as server:
        async with AsyncClient(server.path) as client:
            assert (await client.call("ping")).number == 1


async def test_leaving_a_stream_cancels_it() -> None:
    """Breaking out of the loop closes its connection."""
    with FakeServer(lambda number, frame: [item(frame, 0, {"index": 0})]) as server:
        async with AsyncClient(server.path) as client:
            async with client.stream("lm", text="x") as stream:
                async for _ in stream:
                    break
            assert await asyncio.to_thread(server.ended.wait, 5.0)


async def test_a_connection_that_goes_away_is_left() -> None:
    """After `goaway` the next call dials anew."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield b"\x93\x02\xa6goaway\x91\xa5drain"
        yield from echo(number, frame)

    with FakeServer(behaviour) as server:
        async with AsyncClient(server.path) as client:
            await client.call("ping")
            await client.call("ping")
        assert len(server.connections) == 2


async def test_calls_wait_for_a_place_within_their_deadline() -> None:
    """With every place taken the deadline ends the wait, with its reason."""
    with FakeServer(lambda number, frame: []) as server:
        async with AsyncClient(server.path, in_flight_max=1) as client:
            busy = asyncio.create_task(client.call("ping"))
            await asyncio.to_thread(server.began.wait, 5.0)
            with pytest.raises(mortise.DeadlineExceeded, match="in flight"):
                await client.call("ping", timeout_s=0.02)
            busy.cancel()
            await asyncio.wait([busy])


async def test_nobody_listening_is_said_at_once() -> None:
    """MeshDown, with the line that starts the mesh."""
    async with AsyncClient(home="/nowhere") as client:
        with pytest.raises(MeshDown) as caught:
            await client.call("ping")
    assert caught.value.remedy == "mortise init /nowhere --example flights"


async def test_a_closed_client_says_so() -> None:
    """Using it afterwards is a programmer's error."""
    client = AsyncClient("/nowhere.sock")
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.call("ping")

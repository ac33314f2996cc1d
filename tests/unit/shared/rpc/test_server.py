"""A server on a real socket: accepting, capping, draining."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import msgspec
import pytest

from contracts.description import describe
from contracts.inference import Models
from contracts.methods import METHODS
from shared.access import Access
from shared.rpc.dispatch import dispatch_table
from shared.rpc.server import Server, connection_cap, descriptors_reserved
from tests.unit.shared.rpc.fakes import Held, handlers, request

BODY = {"model_name": "tiny", "text": ["a"]}
INSTANCE = "orchestrator.0-0123abcd"


def server(**given: Any) -> Server:
    """An orchestrator with these handlers."""
    connections_max = given.pop("connections_max", 100)
    return Server(
        "orchestrator",
        handlers(**given),
        instance=INSTANCE,
        access=Access.owner(),
        connections_max=connections_max,
    )


class RawClient:
    """A client that only knows msgpack."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._unpacker = msgpack.Unpacker()

    async def receive(self) -> Any:
        """The next message; None at the end."""
        while True:
            for message in self._unpacker:
                return message
            chunk = await self.reader.read(65_536)
            if not chunk:
                return None
            self._unpacker.feed(chunk)


@asynccontextmanager
async def raw(path: str) -> AsyncIterator[RawClient]:
    """A connection."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_describe_answers_from_the_method_rows(socket_path: str) -> None:
    """The socket documents itself; the second call is answered from the first's bytes."""
    it = server()
    await it.start_path(socket_path)
    async with raw(socket_path) as client:
        client.writer.write(request(1, "describe") + request(2, "describe"))
        first, second = await client.receive(), await client.receive()
    await it.drain(1)
    assert first[3] == second[3]
    assert first[3]["service"] == "orchestrator"
    assert first[3]["instance"] == INSTANCE
    assert list(first[3]["methods"]) == list(METHODS["orchestrator"])
    assert first[3]["limits"] == describe("orchestrator").limits


async def test_the_peer_is_known_by_its_uid(socket_path: str) -> None:
    """SO_PEERCRED of a real connection."""
    held = Held()
    it = server(infer=held)
    await it.start_path(socket_path)
    async with raw(socket_path) as client:
        client.writer.write(request(1, "infer", BODY) + request(2, "ping"))
        await client.receive()
        assert (held.calls[0].peer.uid, held.calls[0].peer.pid) == (os.getuid(), os.getpid())
    await it.drain(0)


async def test_a_socket_bound_by_someone_else_is_served_and_its_path_kept(
    socket_path: str,
) -> None:
    """Accepting starts when told, and the path outlives the server."""
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    sock.bind(socket_path)
    sock.listen(8)
    keeper = sock.dup()
    it = server()
    await it.start(sock, serving=False)
    async with raw(socket_path) as client:
        client.writer.write(request(1, "ping"))
        await asyncio.sleep(0)
        assert it.statistics()["accepted"] == 0
        await it.start_serving()
        assert await client.receive() == [1, 1, None, {}]
    await it.drain(1)
    assert os.path.exists(socket_path)  # noqa: ASYNC240 — one stat in a test
    keeper.close()


async def test_drain_finishes_what_is_in_flight(socket_path: str) -> None:
    """New clients are not accepted, the old one gets its answer, then its connection ends."""
    held = Held()
    it = server(infer=held)
    await it.start_path(socket_path)
    async with raw(socket_path) as client:
        client.writer.write(request(1, "infer", BODY) + request(2, "ping"))
        assert (await client.receive())[1] == 2
        draining = asyncio.ensure_future(it.drain(5))
        await asyncio.sleep(0)
        with pytest.raises(OSError, match="refused"):
            await asyncio.open_unix_connection(socket_path)
        held.calls[0].reply(msgspec.Raw(b"\x80"))
        assert await client.receive() == [1, 1, None, {}]
        assert await client.receive() is None
    await draining
    assert it.statistics()["connections"] == 0


async def test_drain_answers_what_had_already_arrived(socket_path: str) -> None:
    """A request in the socket's buffer when the drain begins is not lost."""
    it = server(models=lambda _: Models(models=[]))
    await it.start_path(socket_path)
    async with raw(socket_path) as client:
        client.writer.write(request(1, "ping"))
        await client.receive()
        client.writer.write(request(2, "models"))
        await it.drain(5)
        assert await client.receive() == [1, 2, None, {"models": []}]


async def test_drain_aborts_after_its_budget(socket_path: str) -> None:
    """A call that never ends does not hold the process."""
    held = Held()
    it = server(infer=held)
    await it.start_path(socket_path)
    async with raw(socket_path) as client:
        client.writer.write(request(1, "infer", BODY) + request(2, "ping"))
        await client.receive()
        await it.drain(0)
        assert held.cancelled == [1]
    assert it.statistics()["last_fault"] == "drain budget"


async def test_drain_of_a_server_that_never_started_is_nothing() -> None:
    """Stopping is safe at any time."""
    await server().drain(1)


async def test_over_the_cap_a_client_is_refused_and_the_others_served(socket_path: str) -> None:
    """On a real socket: OVERLOADED under its msgid, then the end."""
    it = server(connections_max=1)
    await it.start_path(socket_path)
    async with raw(socket_path) as first:
        first.writer.write(request(1, "ping"))
        await first.receive()
        async with raw(socket_path) as second:
            second.writer.write(request(9, "ping"))
            refused = await second.receive()
            assert (refused[1], refused[2]["name"]) == (9, "OVERLOADED")
            assert await second.receive() is None
        first.writer.write(request(2, "ping"))
        assert (await first.receive())[1] == 2
    await it.drain(1)


def test_the_cap_stays_below_the_descriptor_limit() -> None:
    """Our refusal comes before the kernel's."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connection_cap(10) == 10
    assert connection_cap(10**9) == soft - min(descriptors_reserved, soft // 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"infer": None}, "no handler for infer"), ({"guess": print}, "without a method row: guess")],
)
def test_the_table_has_exactly_the_rows_handlers(change: dict[str, Any], words: str) -> None:
    """A missing or an extra handler stops the process at its start."""
    given = {k: v for k, v in {**handlers(), **change}.items() if v is not None}
    with pytest.raises(AssertionError, match=words):
        dispatch_table("orchestrator", given, instance=INSTANCE)

"""Hostile bytes against a real server: a declared error or a closed connection, at little cost."""

import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from contracts.errors import ERRORS
from contracts.limits import frame_bytes_max
from tests.integration.wire.raw import RawClient
from tests.integration.wire.toy import Toy

RSS_GROWTH_BYTES_MAX = 64 * 1024 * 1024
STALL_MS_MAX = 50.0

BODY = {"model_name": "tiny"}
WHOLE = frame_bytes_max - 64


def infer(body: bytes) -> bytes:
    """A request around an encoded body."""
    return b"\x94\x00\x05\xa5infer\x91" + body


def with_field(name: str, value: bytes) -> bytes:
    """A request whose body has one more field, encoded."""
    return infer(b"\x82" + msgpack.packb("model_name") + b"\xa4tiny" + msgpack.packb(name) + value)


def array(count: int, items: bytes) -> bytes:
    """An array 32 that announces `count` items."""
    return b"\xdd" + struct.pack(">I", count) + items


TENSOR = {"name": "x", "datatype": "FP32", "shape": [1], "data": b"\0\0\0\0"}

HOSTILE: dict[str, bytes] = {
    "16 MiB of numbers where rows belong": with_field("rows", array(WHOLE, b"\x01" * WHOLE)),
    "16 MiB of empty arrays in rows": with_field("rows", array(WHOLE, b"\x90" * WHOLE)),
    "16 MiB of numbers in an unknown field": with_field("mode", array(WHOLE, b"\x01" * WHOLE)),
    "16 MiB of numbers as a tensor": with_field(
        "inputs", b"\x91\x81\xa4data" + array(WHOLE, b"\x01" * WHOLE)
    ),
    "half a MiB of numbers in rows": with_field("rows", array(500_000, b"\x01" * 500_000)),
    "16 MiB of a name": with_field("x" * WHOLE, b"\x01"),
    "16 MiB of keys": with_field(
        "parameters", b"\xdf" + struct.pack(">I", WHOLE // 3) + b"\xa1a\x01" * (WHOLE // 3)
    ),
    "half a MiB of different keys": with_field(
        "parameters",
        msgpack.packb({f"{n:04x}": 1 for n in range(60_000)}),
    ),
    "arrays nested 1,000 deep": with_field("rows", b"\x91" * 1_000 + b"\x01"),
    "arrays nested 1,000,000 deep": with_field("rows", b"\x91" * 1_000_000 + b"\x01"),
    "maps nested 1,000,000 deep": with_field("rows", b"\x81\xa1a" * 1_000_000 + b"\x01"),
    "an array of 4 G items announced": with_field("rows", array(2**32 - 1, b"\x01" * 10)),
    "a bin of 4 GiB announced": with_field("rows", b"\xc6\xff\xff\xff\xff" + b"\0" * 100_000),
    "a bin of 4 GiB, 20 MiB of it sent": b"\x94\x00\x05\xc6\xff\xff\xff\xff" + b"\0" * 20_971_520,
    "one byte more than a frame may have": infer(b"\xc6" + struct.pack(">I", frame_bytes_max)
                                                 + b"\0" * frame_bytes_max),
    "a body that is a number": infer(b"\x05"),
    "duplicate keys": infer(b"\x83" + b"\xaamodel_name\xa1a" * 3),
    "NaN where a number is bounded": infer(
        msgpack.packb({**BODY, "sampling": {"temperature": float("nan")}})
    ),
    "an integer of 64 bits as a dimension": infer(
        msgpack.packb({**BODY, "inputs": [{**TENSOR, "shape": [2**64 - 1]}]})
    ),
    "a float that is infinite": infer(
        msgpack.packb({**BODY, "sampling": {"top_p": float("inf")}})
    ),
    "invalid UTF-8": infer(b"\x81\xaamodel_name\xa2\xff\xfe"),
    "a timestamp out of range": with_field("rows", b"\xc7\x0c\xff" + b"\xff" * 12),
    "the byte that is never used": infer(b"\xc1"),
    "a negative msgid": msgpack.packb([0, -1, "infer", [BODY]]),
    "a msgid of 64 bits": msgpack.packb([0, 2**63, "infer", [BODY]]),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "zeros": b"\0" * 100_000,
    "an answer to nobody": msgpack.packb([1, 5, None, {}]),
    "a method of 64 KiB": msgpack.packb([0, 5, "x" * 65_536, [BODY]]),
    "a method that breaks lines": msgpack.packb([0, 5, "a\nb\x1b[2J", [BODY]]),
}  # fmt: skip


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> bytes:
    """One row of the table."""
    return HOSTILE[request.param]


def outcome(client: RawClient) -> list[Any]:
    """Everything that comes back until a ping is answered or the connection ends."""
    messages: list[Any] = []
    try:
        client.send([0, 4_000_000_000, "ping", [{}]])
        client.sock.shutdown(1)
    except (BrokenPipeError, ConnectionResetError):
        pass  # closed already: what it sent before can still be read
    while (message := client.receive()) is not None:
        messages.append(message)
    return messages


def send_all(client: RawClient, chunks: Iterator[bytes]) -> None:
    """Until the server has had enough."""
    try:
        for chunk in chunks:
            client.sock.sendall(chunk)
    except (BrokenPipeError, ConnectionResetError):
        return


def check(toy: Toy, before: dict[str, float], messages: list[Any]) -> None:
    """Only declared errors came back; the server lives, grew little and never stalled."""
    for message in messages:
        assert message[0] == 1
        if message[2] is not None:
            assert ERRORS[message[2]["name"]].code == message[2]["code"]
            assert message[2]["name"] != "INTERNAL"
            assert len(msgpack.packb(message)) < 2_000
    after = toy.statistics()
    assert after["rss_bytes"] - before["rss_bytes"] <= RSS_GROWTH_BYTES_MAX
    assert after["stall_ms"] <= STALL_MS_MAX
    assert after["internal_errors"] == 0


def test_at_full_speed(toy: Toy, hostile: bytes) -> None:
    """As fast as the socket takes it."""
    before = toy.statistics()
    with RawClient(toy.path) as client:
        send_all(client, iter([hostile]))
        check(toy, before, outcome(client))


def test_one_byte_at_a_time(toy: Toy, hostile: bytes) -> None:
    """The first 2,000 bytes each in a write of its own, then the rest."""
    before = toy.statistics()
    with RawClient(toy.path) as client:
        pieces = [hostile[n : n + 1] for n in range(min(2_000, len(hostile)))]
        send_all(client, iter([*pieces, hostile[2_000:]]))
        check(toy, before, outcome(client))


def test_a_peer_that_begins_many_frames_and_never_ends_them(toy: Toy) -> None:
    """Incomplete frames of all connections share one bound; the others go on being served."""
    with RawClient(toy.path) as bystander:
        begun = [RawClient(toy.path) for _ in range(40)]
        part = b"\x94\x00\x05\xc6\xff\xff\xff\xff" + b"\0" * (frame_bytes_max - 1_000)
        try:
            for client in begun:
                send_all(client, iter([part]))
                assert bystander.call("ping") == (None, {})
            assert all(client.receive() is None for client in begun[-10:])
            assert "incomplete frames" in str(toy.statistics()["last_fault"])
        finally:
            for client in begun:
                client.sock.close()
    assert toy.statistics()["connections"] <= 1

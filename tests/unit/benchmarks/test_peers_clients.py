"""The generator's raw clients: what is an answer, and what is an error."""

import json
import struct
from typing import Any

import pytest

from benchmarks.generator import Load, row_of
from benchmarks.peers.envelopes import json_lists, open_inference
from benchmarks.peers.h2_client import H2Client, frame, message
from benchmarks.peers.http_client import HttpClient, Pool, request_of
from benchmarks.peers.processes import EXAMPLE
from benchmarks.peers.truth import Truth, weights_path

ROW = struct.pack("<2f", 1.5, -2.0)
OTHER = struct.pack("<2f", 1.5, 2.0)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, sent: bytes) -> None:
        """Keep it."""
        self.written.append(sent)


def http(load: Load, pool: Pool | None = None, **more: Any) -> tuple[HttpClient, Wire]:
    """A connected HTTP client that expects ROW."""
    client, wire = HttpClient(load, pool or Pool(), b"request", ROW, **more), Wire()
    client.connection_made(wire)
    return client, wire


def answer(body: bytes, status: str = "200 OK") -> bytes:
    """An HTTP answer."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_an_answer_in_any_pieces_is_one_answer() -> None:
    """Byte by byte, as a slow server writes it."""
    load = Load()
    client, wire = http(load)
    client.send(load.take(0.0))
    for byte in answer(ROW):
        client.data_received(bytes([byte]))
    assert (load.errors, load.sent_s, wire.written) == (0, {}, [b"request"])


@pytest.mark.parametrize(
    "wrong", [answer(OTHER), answer(b""), answer(ROW, "503 Busy"), b"HTTP/1.1 200 OK\r\n\r\n"]
)
def test_another_row_or_status_is_an_error(wrong: bytes) -> None:
    """Counted, and not among the latencies."""
    load = Load()
    client, _ = http(load)
    client.send(load.take(load.began_s + 1))
    client.data_received(wrong)
    assert (load.errors, len(load.latencies_s), load.sent_s) == (1, 0, {})


def test_a_busy_connection_takes_no_second_request() -> None:
    """It goes to a free one, or waits for the first that gets free."""
    load, pool = Load(), Pool()
    first, one = http(load, pool)
    second, two = http(load, pool)
    second.send(load.take(0.0))
    second.data_received(answer(ROW))
    for _ in range(3):
        first.send(load.take(0.0))
    assert (len(one.written), len(two.written), len(pool.waiting)) == (1, 2, 1)
    first.data_received(answer(ROW))
    assert (len(one.written), len(pool.waiting)) == (2, 0)


def test_a_json_answer_is_read_as_a_row() -> None:
    """Lists become the same bytes as raw answers are."""
    load = Load()
    client, _ = http(load, read=json_lists("tiny", row_of(0)).read)
    client.send(load.take(0.0))
    client.data_received(answer(json.dumps([[1.5, -2.0]]).encode()))
    client.send(load.take(0.0))
    client.data_received(answer(b"[[1.5]"))
    assert load.errors == 1


def test_a_request_is_one_http_message() -> None:
    """Its length is the body's."""
    head, _, body = request_of("/tiny", {"A": "b"}, b"xyz").partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /tiny HTTP/1.1", b"Host: localhost", b"Content-Length: 3", b"A: b",
    ]  # fmt: skip
    assert body == b"xyz"


def h2(load: Load) -> tuple[H2Client, Wire]:
    """A connected gRPC client that expects ROW."""
    client, wire = H2Client(load, "/Peer/tiny", b"row", ROW), Wire()
    client.connection_made(wire)
    return client, wire


def test_a_unary_call_is_answered_by_its_message() -> None:
    """Headers, message and trailers, whatever the pieces; two streams out of order."""
    load = Load()
    client, _ = h2(load)
    client.send(load.take(0.0))
    client.send(load.take(0.0))
    received = b"".join(
        frame(1, 4, stream, b"\x88") + frame(0, 0, stream, message(ROW)) + frame(1, 5, stream, b"x")
        for stream in (3, 1)
    )
    for start in range(0, len(received), 7):
        client.data_received(received[start : start + 7])
    assert (load.errors, load.sent_s) == (0, {})


def test_trailers_without_a_message_are_an_error() -> None:
    """A gRPC error is trailers alone."""
    load = Load()
    client, _ = h2(load)
    client.send(load.take(0.0))
    client.data_received(frame(1, 5, 1, b"\x88"))
    assert load.errors == 1


def test_settings_and_pings_are_acknowledged() -> None:
    """A server ends a connection that does not."""
    load = Load()
    client, wire = h2(load)
    client.data_received(frame(4, 0, 0, b"") + frame(6, 0, 0, b"12345678") + frame(6, 1, 0, b"y"))
    assert wire.written[1:] == [frame(4, 1, 0, b""), frame(6, 1, 0, b"12345678")]


def test_what_a_client_must_get_is_what_torch_computes() -> None:
    """The weights of the pack, by definition, against a forward of the same network."""
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    path = weights_path(EXAMPLE)
    tensors = safetensors.load_file(path)
    row = torch.frombuffer(bytearray(row_of(7)), dtype=torch.float32)
    hidden = torch.relu(tensors["layers.0.weight"] @ row + tensors["layers.0.bias"])
    found = tensors["layers.1.weight"] @ hidden + tensors["layers.1.bias"]
    given = struct.unpack("<2f", Truth(path).of(7, "tiny"))
    assert given == pytest.approx(found.tolist(), abs=1e-5)
    assert struct.unpack("<f", Truth(path).of(7, "sleepy"))[0] == pytest.approx(
        struct.unpack("<f", row_of(7, "sleepy"))[0] * 2
    )


def test_the_open_inference_request_is_protobuf() -> None:
    """model_name is field 1, the tensor 5, raw contents 7; a long row's length has two bytes."""
    body = open_inference("tiny", bytes(256)).body
    assert body.startswith(b"\x0a\x04tiny\x2a")
    assert body.endswith(b"\x3a\x80\x02" + bytes(256))

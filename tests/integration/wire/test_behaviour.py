"""RPC on a real server process and its loop: pipelining, streams, cancel, drain."""

import signal
import socket
from collections.abc import Callable

from contracts.limits import in_flight_per_connection_max, write_buffer_bytes_max
from tests.integration.wire.raw import RawClient
from tests.integration.wire.toy import Toy

TRACE_ID = "0123456789abcdef0123456789abcdef"


def infer(msgid: int, name: str, context: dict[str, object] | None = None) -> list[object]:
    """A request for the model whose name says what happens."""
    params: list[object] = [{"model_name": name, "text": ["a"]}]
    return [0, msgid, "infer", params if context is None else [*params, context]]


def test_pipelined_requests_are_answered_out_of_order(toy: Toy) -> None:
    """A slow one first: the others do not wait for it."""
    with RawClient(toy.path) as client:
        client.send(infer(1, "later"), *(infer(n, "tiny") for n in range(2, 50)))
        order = [client.receive()[1] for _ in range(49)]
    assert order == [*range(2, 50), 1]


def test_an_error_and_a_deadline_carry_the_trace_id(toy: Toy) -> None:
    """With the declared code and the hop."""
    with RawClient(toy.path) as client:
        error, _ = client.call("infer", {"model_name": "unknown"}, {"trace_id": TRACE_ID})
        assert (error["code"], error["trace_id"]) == (301, TRACE_ID)
        expired, _ = client.call("infer", {"model_name": "tiny"}, {"deadline_ms": 0})
        assert expired["name"] == "DEADLINE_EXCEEDED"
        assert expired["details"]["hop"].startswith("orchestrator.0-")


def test_cancel_and_disconnect_free_what_was_in_flight(toy: Toy) -> None:
    """Counters conserve: every request ended once."""
    with RawClient(toy.path) as client:
        client.send(infer(1, "never"), infer(2, "never"), [2, "cancel", [1]])
        assert client.receive()[2]["name"] == "CANCELLED"
        assert toy.statistics()["in_flight"] >= 1
    counted = toy.statistics()
    while counted["in_flight"]:
        counted = toy.statistics()
    ended = sum(counted[name] for name in ("answered", "refused", "failed", "cancelled"))
    assert counted["received"] == ended + 1  # the statistics call itself


def test_one_more_in_flight_than_allowed_is_refused(toy: Toy) -> None:
    """And only that one."""
    with RawClient(toy.path) as client:
        count = in_flight_per_connection_max + 1
        client.send(*(infer(n, "never") for n in range(count)))
        refused = client.receive()
        assert (refused[1], refused[2]["name"]) == (count - 1, "OVERLOADED")


def test_a_stream_arrives_whole_though_its_reader_is_slow(toy: Toy) -> None:
    """It pauses at 256 KiB unsent and goes on when read: 20,000 items, in order."""
    with RawClient(toy.path) as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.send(infer(1, "stream", {"stream": True}))
        for sequence in range(20_000):
            method, params = client.receive()[1:]
            assert (method, params[:2]) == ("stream", [1, sequence])
        assert client.receive()[:3] == [1, 1, None]


def test_a_reader_that_never_reads_is_aborted_at_the_bound(toy: Toy) -> None:
    """Answers of 4 MB each that nobody takes: the memory is bounded, the others are served."""
    before = toy.statistics()
    with RawClient(toy.path) as client, RawClient(toy.path) as bystander:
        for n in range(100):
            try:
                client.send(infer(n, "large"))
            except (BrokenPipeError, ConnectionResetError):
                break
            assert bystander.call("ping") == (None, {})
        assert 4_000_000 * n >= write_buffer_bytes_max
    after = toy.statistics()
    assert after["aborted_slow_readers"] == before["aborted_slow_readers"] + 1
    assert after["rss_bytes"] - before["rss_bytes"] <= 2 * write_buffer_bytes_max


def test_drain_tells_those_who_understand_and_closes_the_others(
    start_toy: Callable[..., Toy],
) -> None:
    """What is in flight is answered, then every connection ends, then the process."""
    toy = start_toy()
    told, plain = RawClient(toy.path), RawClient(toy.path)
    with told, plain:
        told.call("ping", {}, {"protocol_version": 1})
        plain.call("ping")
        for client in (told, plain):
            client.send(infer(7, "later"))
        while toy.statistics()["in_flight"] < 2:
            continue
        toy.process.send_signal(signal.SIGTERM)
        assert told.receive() == [2, "goaway", ["drain"]]
        assert told.receive()[:3] == [1, 7, None]
        assert plain.receive()[:3] == [1, 7, None]
        assert (told.receive(), plain.receive()) == (None, None)
    assert toy.wait() == 0

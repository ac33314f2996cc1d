"""The blocking client against a scripted service."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import mortise
from mortise.client import Client
from mortise.connection import dial
from mortise.retry import Lost, MeshDown
from tests.unit.mortise.fake_server import FakeServer, Step, echo, item, refuse, reply


def test_a_call_carries_its_body_and_context() -> None:
    """Method, body, trace id, remaining time and protocol version arrive as sent."""
    with FakeServer() as server, Client(server.path) as client:
        answer = client.call("statistics", {"a": [1, "b"]}, trace_id="1" * 32, timeout_s=2.0)
    assert answer.method == "statistics"
    assert answer.body == {"a": [1, "b"]}
    assert answer.context.trace_id == "1" * 32
    assert 1_000 < answer.context.deadline_ms <= 2_000
    assert answer["context"]["protocol_version"] == 1


def test_infer_always_sends_an_id() -> None:
    """The id is the trace id unless the caller gives one."""
    with FakeServer() as server, Client(server.path) as client:
        plain = client.infer("delay", rows=[{"a": 1}])
        named = client.infer("delay", rows={"a": 1}, id="mine", tenant_id="t")
    assert plain.body.id == plain.context.trace_id
    assert named.body == {"model_name": "delay", "id": "mine", "tenant_id": "t", "rows": [{"a": 1}]}


def test_the_home_leads_to_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """`home=`, MORTISE_HOME and the current directory select it, in this order."""
    with FakeServer() as server:
        with Client(home=server.home) as client:
            assert client.call("ping").method == "ping"
        monkeypatch.chdir(server.home)
        with Client() as client:
            assert client.call("ping").method == "ping"
        monkeypatch.setenv("MORTISE_HOME", "/nowhere")
        with Client() as client, pytest.raises(MeshDown, match="nowhere"):
            client.call("ping")


def test_run_dir_of_the_home_is_obeyed() -> None:
    """A home that moved its sockets is still found by its path."""
    with FakeServer() as server:
        elsewhere = server.home / "other"
        elsewhere.mkdir()
        (elsewhere / "mortise.toml").write_text(f'run_dir = "{server.path.parent}"')
        with Client(home=elsewhere) as client:
            assert client.call("ping").method == "ping"


def test_a_path_too_long_for_a_socket_is_refused_with_the_remedy() -> None:
    """The limit and the way out are named before any system call."""
    with pytest.raises(ValueError, match=r"socket_path_bytes_max is 107.*run_dir"):
        Client(home="/tmp/" + "x" * 120)


def test_errors_are_exceptions_of_the_vocabulary() -> None:
    """Class, code, hint, details and trace id come with the error, by either spelling."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield refuse(frame, "OVERLOADED", 461, retry_after_ms=7, details={"limit": 3})

    with FakeServer(behaviour) as server, Client(server.path) as client:
        with pytest.raises(mortise.Overloaded) as caught:
            client.infer("delay", rows=[])
        with pytest.raises(mortise.OVERLOADED):
            client.infer("delay", rows=[])
    assert (caught.value.code, caught.value.name, caught.value.retryable) == (
        461,
        "OVERLOADED",
        True,
    )
    assert caught.value.retry_after_ms == 7
    assert caught.value.details == {"limit": 3}
    assert len(caught.value.trace_id) == 32
    assert str(caught.value) == "OVERLOADED: no"
    assert len(server.requests) == 2


def test_an_error_of_a_newer_mesh_keeps_its_name() -> None:
    """A name that this SDK does not know is the base class, with what the peer said."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield refuse(frame, "NEWER", 999, retryable=True)

    with (
        FakeServer(behaviour) as server,
        Client(server.path) as client,
        pytest.raises(mortise.MortiseError, match="NEWER: no") as caught,
    ):
        client.call("ping")
    assert (caught.value.code, caught.value.retryable) == (999, True)


def once_then_echo(first: Callable[[list[Any]], Step]) -> Any:
    """The first request is treated so, the others are echoed."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        if number == 1:
            yield first(frame)
        else:
            yield from echo(number, frame)

    return behaviour


TROUBLE: dict[str, Callable[[list[Any]], Step]] = {
    "killed": lambda frame: None,
    "garbage": lambda frame: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "truncated": lambda frame: reply(frame, {"a": 1})[:-1] + b"\xc1",
    "unavailable": lambda frame: refuse(frame, "UNAVAILABLE", 465, retry_after_ms=1),
}


@pytest.mark.parametrize("first", TROUBLE.values(), ids=TROUBLE)
def test_one_retry_hides_a_restart(first: Callable[[list[Any]], Step]) -> None:
    """An idempotent call is tried once more with the same body, id and trace id."""
    with FakeServer(once_then_echo(first)) as server, Client(server.path) as client:
        answer = client.infer("delay", rows=[{"a": 1}])
    assert answer.number == 2
    (_, _, _, [body, context]), (_, _, _, [body_again, context_again]) = server.requests
    assert body == body_again
    assert context["trace_id"] == context_again["trace_id"] == answer.context.trace_id
    assert context_again["deadline_ms"] <= context["deadline_ms"]


@pytest.mark.parametrize("first", TROUBLE.values(), ids=TROUBLE)
def test_what_is_not_idempotent_is_never_sent_twice(
    first: Callable[[list[Any]], Step],
) -> None:
    """`apply` fails with UNAVAILABLE instead, and so does a method nobody knows."""
    for method in ("apply", "unheard_of"):
        with (
            FakeServer(once_then_echo(first)) as server,
            Client(server.path, service="control_plane") as client,
            pytest.raises(mortise.Unavailable),
        ):
            client.call(method)
        assert len(server.requests) == 1


def test_a_second_loss_is_reported() -> None:
    """There is one retry, not two."""
    with (
        FakeServer(lambda number, frame: [None]) as server,
        Client(server.path) as client,
        pytest.raises(Lost),
    ):
        client.call("ping")
    assert len(server.requests) == 2


def test_no_retry_after_the_deadline() -> None:
    """A hint longer than what remains is not waited for."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield refuse(frame, "UNAVAILABLE", 465, retry_after_ms=60_000)

    with (
        FakeServer(behaviour) as server,
        Client(server.path) as client,
        pytest.raises(mortise.Unavailable),
    ):
        client.call("ping", timeout_s=1.0)
    assert len(server.requests) == 1


def test_a_silent_service_ends_at_the_deadline() -> None:
    """The client's own DEADLINE_EXCEEDED names the hop, and the call is cancelled by closing."""
    with FakeServer(lambda number, frame: []) as server, Client(server.path) as client:
        started_s = time.monotonic()
        with pytest.raises(mortise.DeadlineExceeded, match=r"within 0\.05 s, hop client"):
            client.call("ping", timeout_s=0.05)
        assert time.monotonic() - started_s < 2.0
        assert server.ended.wait(5.0)


def test_connections_that_died_while_idle_are_not_used() -> None:
    """The first call after a restart succeeds without a retry, even one that may not be retried."""
    with FakeServer() as server, Client(server.path, service="control_plane") as client:
        client.call("apply")
        server.break_connections()
        assert client.call("apply").number == 2
    assert len(server.requests) == 2


def test_an_idle_connection_is_used_again() -> None:
    """Sequential calls share one connection."""
    with FakeServer() as server, Client(server.path) as client:
        for _ in range(5):
            client.call("ping")
        assert len(server.connections) == 1


def test_a_connection_that_goes_away_is_left() -> None:
    """After `goaway` the answer in flight is read, and the next call dials anew."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield b"\x93\x02\xa6goaway\x91\xa5drain"
        yield from echo(number, frame)

    with FakeServer(behaviour) as server, Client(server.path) as client:
        client.call("ping")
        client.call("ping")
        assert len(server.connections) == 2


def test_many_threads_share_a_client() -> None:
    """Forty threads get their own answers over at most `connections_max` connections."""
    with FakeServer() as server, Client(server.path, connections_max=8) as client:
        with ThreadPoolExecutor(40) as threads:
            answers = list(threads.map(lambda n: client.call("ping", {"n": n}).body.n, range(400)))
        assert answers == list(range(400))
        assert len(server.connections) <= 8


def test_a_call_waits_for_a_place_within_its_deadline() -> None:
    """With every connection in use the deadline ends the wait, with its reason."""
    release = threading.Event()

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        release.wait(5.0)
        yield from echo(number, frame)

    with FakeServer(behaviour) as server, Client(server.path, connections_max=1) as client:
        busy = threading.Thread(target=client.call, args=("ping",))
        busy.start()
        assert server.began.wait(5.0)
        with pytest.raises(mortise.DeadlineExceeded, match="every connection"):
            client.call("ping", timeout_s=0.02)
        release.set()
        busy.join()


def test_a_full_backlog_is_waited_for() -> None:
    """EAGAIN is not an error: the dial goes on until the service accepts."""
    server = FakeServer(backlog=0)
    waiting = []
    for _ in range(8):  # fill the backlog; nobody accepts yet
        connection = socket.socket(socket.AF_UNIX)
        waiting.append(connection)
        connection.setblocking(False)
        try:
            connection.connect(str(server.path))
        except BlockingIOError:
            break
    with pytest.raises(Lost, match="backlog is full"):
        dial(str(server.path), time.monotonic() + 0.02)
    accepting = threading.Timer(0.05, server.__enter__)
    accepting.start()
    with Client(server.path) as client:
        assert client.call("ping").method == "ping"
    accepting.join()
    for connection in waiting:
        connection.close()
    server.__exit__()


def test_nobody_listening_names_the_line_that_starts_the_mesh() -> None:
    """MeshDown comes at once, for a missing socket and for one left behind."""
    server = FakeServer()
    (server.home / "mortise.toml").touch()
    with Client(server.path) as client:
        server.stop_listening()
        for _ in ("refused", "missing"):
            with pytest.raises(MeshDown, match="nothing listens") as caught:
                client.call("ping")
            assert caught.value.remedy == f"mortise start --detach --home {server.home}"
            server.path.unlink(missing_ok=True)
    shutil.rmtree(server.home)


def test_a_stream_yields_its_items_then_its_result() -> None:
    """Items come in order; the answer is there afterwards."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield from (item(frame, n, {"index": n, "text": "ab"[n]}) for n in range(2))
        yield from echo(number, frame)

    with FakeServer(behaviour) as server, Client(server.path) as client:
        with client.stream("lm", text="hello") as stream:
            assert [part.text for part in stream] == ["a", "b"]
            assert stream.result.context.stream is True
            assert stream.result.body.text == ["hello"]
        seen: list[str] = []
        client.call("promote", on_item=lambda part: seen.append(part.text))
        assert seen == ["a", "b"]
        assert len(server.connections) == 1


def test_a_stream_that_began_is_not_tried_again() -> None:
    """After the first item a lost connection is an error: the items would come twice."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield item(frame, 0, {"text": "a"})
        yield None

    with FakeServer(behaviour) as server, Client(server.path) as client:
        stream = client.stream("lm", text="hello")
        assert next(iter(stream)).text == "a"
        with pytest.raises(Lost):
            next(iter(stream))
        assert len(server.requests) == 1


def test_leaving_a_stream_cancels_it() -> None:
    """Closing a stream early closes its connection, which the service takes as a cancel."""

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield item(frame, 0, {"text": "a"})

    with FakeServer(behaviour) as server, Client(server.path) as client:
        with client.stream("lm", text="hello") as stream:
            next(iter(stream))
        assert server.ended.wait(5.0)


def test_a_body_over_the_frame_limit_is_refused_here() -> None:
    """The limit and the size are named; nothing is sent."""
    with (
        FakeServer() as server,
        Client(server.path) as client,
        pytest.raises(mortise.InvalidRequest, match="frame_bytes_max is 16777216"),
    ):
        client.infer("delay", text="x" * (17 * 1024 * 1024))
    assert not server.requests


def test_a_forked_child_dials_its_own_connection() -> None:
    """Two processes never read from one socket."""
    with FakeServer() as server, Client(server.path) as client:
        client.call("ping")
        parent, client._process = client._process, 1  # as a child finds it after fork
        client.call("ping")
        assert len(server.connections) == 2
        assert client._process == parent == os.getpid()


def test_a_closed_client_says_so() -> None:
    """Using it afterwards is a programmer's error."""
    with FakeServer() as server:
        client = Client(server.path)
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.call("ping")

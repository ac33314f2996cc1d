"""What each message does to the calls of one connection."""

import itertools
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ERRORS, MeshError
from contracts.inference import Models
from contracts.limits import in_flight_per_connection_max
from shared.rpc.call import DEFERRED, Call
from tests.unit.shared.rpc.fakes import Held, Stage, notification, request

TRACE_ID = "0123456789abcdef0123456789abcdef"
BODY = {"model_name": "tiny", "text": ["a"]}
ANSWER = msgspec.Raw(msgpack.packb({"answer": 1}))


def test_a_synchronous_answer_leaves_with_the_chunk() -> None:
    """No task, no timer, one write."""
    stage = Stage({"models": lambda _: Models(models=[])})
    session, transport = stage.connect()
    session.data_received(request(7, "models"))
    assert transport.messages() == [[1, 7, None, {"models": []}]]
    assert (transport.writes, stage.loop.tasks, stage.loop.timers) == (1, [], [])


def test_pipelined_requests_are_answered_with_one_write() -> None:
    """Sixteen in a chunk, in order."""
    stage = Stage({"models": lambda _: Models(models=[])})
    session, transport = stage.connect()
    session.data_received(b"".join(request(n, "models") for n in range(16)))
    assert [message[1] for message in transport.messages()] == list(range(16))
    assert transport.writes == 1


def test_answers_of_one_turn_are_written_together_and_in_any_order() -> None:
    """Deferred calls end in the order in which their handler ends them."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(b"".join(request(n, "infer", BODY) for n in range(3)))
    for call in reversed(held.calls):
        call.reply(ANSWER)
    assert transport.writes == 0
    stage.loop.turn()
    assert [message[1] for message in transport.messages()] == [2, 1, 0]
    assert transport.writes == 1
    assert stage.conserves()
    assert not session.calls


def test_a_handler_sees_the_typed_body_the_context_and_the_peer() -> None:
    """With the deadline as an absolute time and the caller's trace id."""
    held = Held()
    stage = Stage({"infer": held})
    session, _ = stage.connect()
    context = {"trace_id": TRACE_ID, "deadline_ms": 250, "stream": True}
    session.data_received(request(1, "infer", BODY, context))
    call = held.calls[0]
    assert (call.body.model_name, call.trace_id, call.wants_stream) == ("tiny", TRACE_ID, True)
    assert call.deadline_s == pytest.approx(stage.clock.monotonic() + 0.25)
    assert (call.peer.uid, call.row.name, call.msgid) == (1001, "infer", 1)


def test_without_a_context_the_methods_time_out_and_a_new_trace_id_hold() -> None:
    """Every call has both."""
    held = Held()
    stage = Stage({"infer": held})
    session, _ = stage.connect()
    session.data_received(request(1, "infer", BODY) + request(2, "infer", BODY))
    first, second = held.calls
    assert first.deadline_s == pytest.approx(stage.clock.monotonic() + 5.0)
    assert len(first.trace_id) == 32
    assert first.trace_id != second.trace_id


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (request(1, "nothing"), "METHOD_UNKNOWN"),
        (request(1, "infer", {"model_name": "a", "mode": 1}), "INVALID_REQUEST"),
        (request(1, "infer", [1]), "INVALID_REQUEST"),
        (request(1, "infer", BODY, {"deadline_ms": 0}), "DEADLINE_EXCEEDED"),
        (msgpack.packb([0, 1, "infer", {}]), "INVALID_REQUEST"),
        (msgpack.packb([0, 1, "x" * 65, [{}]]), "INVALID_REQUEST"),
        (msgpack.packb([0, 1, 5, [{}]]), "INVALID_REQUEST"),
        (msgpack.packb([0, 1, "infer"]), "INVALID_REQUEST"),
    ],
)
def test_a_broken_request_is_refused_under_its_msgid_and_no_handler_sees_it(
    frame: bytes, name: str
) -> None:
    """The connection lives on."""
    stage = Stage()
    session, transport = stage.connect()
    session.data_received(frame + request(2, "ping"))
    (refused, answered) = transport.messages()
    assert (refused[1], refused[2]["name"], refused[3]) == (1, name, None)
    assert refused[2]["code"] == ERRORS[name].code
    assert answered == [1, 2, None, {}]
    assert stage.conserves()


def test_a_refusal_carries_the_callers_trace_id() -> None:
    """Also when the body is broken."""
    stage = Stage()
    session, transport = stage.connect()
    session.data_received(request(1, "infer", {"mode": 1}, {"trace_id": TRACE_ID}))
    assert transport.messages()[0][2]["trace_id"] == TRACE_ID


@pytest.mark.parametrize(
    "frame",
    [
        request(1, "infer", BODY),
        request(1, "infer", BODY, {"trace_id": TRACE_ID}),
        request(1, "infer", BODY, {"trace_id": TRACE_ID, "deadline_ms": 0}),
        request(1, "infer", {"model_name": "a", "mode": 1}, {"trace_id": TRACE_ID}),
        request(1, "infer", BODY, {"mode": 1}),
        request(1, "inference", BODY),
        request(1, "ping"),
        msgpack.packb([1, 1, None, [BODY]]),
        msgpack.packb([2, "infer", [BODY]]),
        msgpack.packb([0, 1, "infer", [BODY], 5]),
        msgpack.packb([0, 1, b"infer", [BODY]]),
        msgpack.packb([0, -1, "infer", [BODY]]),
    ],
)
@pytest.mark.parametrize("roles", [frozenset(), frozenset({"client"})])
def test_a_chunk_that_is_one_message_is_judged_as_among_others(
    frame: bytes, roles: frozenset[str]
) -> None:
    """The commonest request is decoded in one pass then; what it is not, the envelope says."""
    answer = msgspec.Raw(msgspec.msgpack.encode({"answered": True}))
    seen = []
    for chunk in (frame, frame + request(2, "ping")):
        stage = Stage({"infer": lambda _call: answer}, roles=roles)
        session, transport = stage.connect()
        session.data_received(chunk)
        messages = [message for message in transport.messages() if message[1] != 2]
        for message in messages:
            if message[2] is not None and message[2]["trace_id"] != TRACE_ID:
                message[2]["trace_id"] = "a new one"
        counters = stage.serving.counters
        seen.append((messages, session.fault, counters.ignored, counters.frame_errors))
        assert stage.conserves()
    assert seen[0] == seen[1]


@pytest.mark.parametrize("roles", [frozenset(), frozenset({"client"})])
def test_a_peer_without_the_role_is_refused(roles: frozenset[str]) -> None:
    """metrics needs the role service; ping needs client."""
    stage = Stage(roles=roles)
    session, transport = stage.connect()
    session.data_received(request(1, "metrics") + request(2, "ping"))
    metrics, ping = transport.messages()
    assert metrics[2]["name"] == "PERMISSION_DENIED"
    assert "uid 1001" in metrics[2]["message"]
    assert (ping[2] is None) == ("client" in roles)


@pytest.mark.parametrize(("count", "refused"), [(0, 0), (1, 1)])
def test_one_more_in_flight_than_allowed_is_overloaded(count: int, refused: int) -> None:
    """At the limit all are taken, one above is refused with a hint, and room comes back."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    total = in_flight_per_connection_max + count
    for n in range(total):
        session.data_received(request(n, "infer", BODY))
    messages = transport.messages()
    assert [m[2]["name"] for m in messages] == ["OVERLOADED"] * refused
    assert all(m[2]["retry_after_ms"] > 0 for m in messages)
    held.calls[0].reply(ANSWER)
    session.data_received(request(total, "infer", BODY))
    assert len(held.calls) == in_flight_per_connection_max + 1


def test_a_msgid_in_flight_cannot_be_used_again() -> None:
    """The first call goes on."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(request(5, "infer", BODY) + request(5, "infer", BODY))
    assert transport.messages()[0][2]["message"] == "msgid 5 is in flight already"
    held.calls[0].reply(ANSWER)
    stage.loop.turn()
    assert transport.messages() == [[1, 5, None, {"answer": 1}]]


def test_a_declared_error_is_sent_as_it_is() -> None:
    """Raised by the handler, or given to `fail`."""

    def infer(call: Call) -> Any:
        error = MeshError("MODEL_UNKNOWN", "no model `x`", details={"model": "x"})
        if call.msgid == 1:
            raise error
        call.fail(error)
        return DEFERRED

    stage = Stage({"infer": infer})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY) + request(2, "infer", BODY))
    for message in transport.messages():
        assert message[2]["name"] == "MODEL_UNKNOWN"
        assert message[2]["details"] == {"model": "x"}
    assert stage.counts["failed"] == 2


@pytest.mark.parametrize(
    "defect",
    [ValueError("the password is x"), MeshError("DISK_FULL", "secret"), AssertionError("secret")],
)
def test_an_undeclared_error_is_internal_and_opaque(
    defect: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """The caller learns nothing, the log has the traceback under the trace id, and we live on."""

    def models(_: Call) -> Any:
        raise defect

    stage = Stage({"models": models})
    session, transport = stage.connect()
    session.data_received(request(1, "models", {}, {"trace_id": TRACE_ID}) + request(2, "ping"))
    failed, answered = transport.messages()
    assert failed[2]["name"] == "INTERNAL"
    assert "secret" not in str(failed)
    assert "password" not in str(failed)
    assert answered[3] == {}
    record = msgspec.json.decode(capsys.readouterr().err)
    assert (record["trace_id"], record["method"]) == (TRACE_ID, "models")
    assert record["exception"][0]["frames"][-1]["name"] == "models"


@pytest.mark.parametrize("wrong", [{"models": []}, None, Models(models=[object()])])  # type: ignore[list-item]
def test_a_response_that_is_not_the_rows_is_internal(
    wrong: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing half-encoded stays behind."""
    stage = Stage({"models": lambda _: wrong})
    session, transport = stage.connect()
    session.data_received(request(1, "models") + request(2, "ping"))
    failed, answered = transport.messages()
    assert failed[2]["name"] == "INTERNAL"
    assert answered == [1, 2, None, {}]
    assert "handler_failed" in capsys.readouterr().err


def test_an_answer_longer_than_a_frame_is_internal(capsys: pytest.CaptureFixture[str]) -> None:
    """The peer would close the connection on it."""
    stage = Stage({"models": lambda _: msgspec.Raw(b"\0" * (16 * 1024 * 1024))})
    session, transport = stage.connect()
    session.data_received(request(1, "models"))
    assert transport.messages()[0][2]["name"] == "INTERNAL"
    assert "frame_bytes_max" in capsys.readouterr().err


STREAM = (
    request(1, "ping"),
    request(2, "models"),
    request(3, "nothing"),
    request(4, "models", {"mode": 1}),
    msgpack.packb([0, 5, "x" * 65, [{}]]),
    notification("cancel", 1),
    notification("unheard_of", b"\x94\x00\x01" * 100),
    msgpack.packb([1, 1, None, {}]),
    request(6, "ping", {}, {"deadline_ms": 0}),
)
ENDS = (b"", b"\x94\x00", b"\xdc\x00\x04\x00\x07\xa4ping\x91\x80", b"\x94\x00\xc1", b"\x80")


@given(
    picked=st.lists(st.sampled_from(STREAM), max_size=6),
    end=st.sampled_from(ENDS),
    cuts=st.lists(st.integers(0, 2_000), max_size=6),
)
def test_the_same_answers_however_the_stream_is_cut(
    picked: list[bytes], end: bytes, cuts: list[int]
) -> None:
    """A chunk that is one whole message takes a shorter way, and nobody can tell."""
    stream = b"".join(picked) + end
    whole = [*picked, end] if end else picked
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    pieces = [stream[start:stop] for start, stop in itertools.pairwise(edges)]
    single = [stream[n : n + 1] for n in range(len(stream))]
    seen = [answers_to(chunks) for chunks in ([stream], whole, pieces, single)]
    assert all(one == seen[0] for one in seen)


def answers_to(chunks: list[bytes]) -> tuple[list[Any], bool]:
    """What a session answers, without the trace ids that it makes up, and whether it closes."""
    stage = Stage({"models": lambda _: Models(models=[])})
    session, transport = stage.connect()
    for chunk in chunks:
        if chunk:
            session.data_received(chunk)
    messages = transport.messages()
    for message in messages:
        if message[2] is not None:
            message[2]["trace_id"] = ""
    return messages, transport.is_closing()

"""What one connection may cost: streams, slow readers, floods."""

from typing import Any

import msgpack
import msgspec
import pytest

from contracts.inference import StreamItem
from contracts.limits import (
    frame_objects_max,
    frame_str_bytes_max,
    stream_pause_bytes,
    write_buffer_bytes_max,
)
from shared.rpc.connection import SLOW_READER, turn_frames_max, turn_frames_min
from shared.wire.walk import slice_work
from tests.unit.shared.rpc.fakes import Held, Stage, request

BODY = {"model_name": "tiny", "text": ["a"]}
ANSWER = msgspec.Raw(msgpack.packb({"answer": 1}))


def item_of(text: str) -> StreamItem:
    """An item that is as long as its text, and a little."""
    return StreamItem(index=0, token_ids=[], text=text)


def test_stream_items_come_before_the_answer_and_are_numbered() -> None:
    """[2, "stream", [msgid, sequence, item]] for each, then the response."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY, {"stream": True}))
    call = held.calls[0]
    assert call.stream(item_of("a"))
    assert call.stream(msgspec.Raw(msgpack.packb({"text": "b"})))
    call.reply(ANSWER)
    stage.loop.turn()
    assert transport.messages() == [
        [2, "stream", [1, 0, {"index": 0, "token_ids": [], "text": "a"}]],
        [2, "stream", [1, 1, {"text": "b"}]],
        [1, 1, None, {"answer": 1}],
    ]


@pytest.mark.parametrize("wrong", [{"text": "x"}, None, item_of(object())])  # type: ignore[arg-type]
def test_an_item_that_is_not_the_rows_leaves_nothing_behind(wrong: Any) -> None:
    """The handler learns it; the messages around it are whole."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY, {"stream": True}))
    with pytest.raises(TypeError):
        held.calls[0].stream(wrong)
    held.calls[0].reply(ANSWER)
    stage.loop.turn()
    assert transport.messages() == [[1, 1, None, {"answer": 1}]]


def test_a_slow_reader_pauses_its_streams_and_resumes_them() -> None:
    """stream says False over stream_pause_bytes, and on_resume comes when it has read."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    transport.reader_reads = False
    session.data_received(request(1, "infer", BODY, {"stream": True}))
    call = held.calls[0]
    resumed: list[bool] = []
    call.on_resume = lambda: resumed.append(True)
    item = item_of("x" * 10_000)
    sent = 0
    while call.stream(item):
        stage.loop.turn()
        sent += 1
    assert abs(sent * 10_050 - stream_pause_bytes) <= 2 * 10_050
    assert resumed == []
    transport.read_all()
    assert resumed == [True]
    assert call.stream(item)


def test_a_burst_of_a_stream_pauses_for_a_turn_though_its_reader_is_fast() -> None:
    """More than stream_pause_bytes in one turn: the transport never pauses, we do, and go on."""
    held = Held()
    stage = Stage({"infer": held})
    session, _ = stage.connect()
    session.data_received(request(1, "infer", BODY, {"stream": True}))
    call = held.calls[0]
    resumed: list[bool] = []
    call.on_resume = lambda: resumed.append(True)
    while call.stream(item_of("x" * 10_000)):
        assert len(session.out) < stream_pause_bytes
    stage.loop.turn()
    assert resumed == []
    stage.loop.turn()
    assert resumed == [True]
    assert call.stream(item_of("x"))


def test_a_reader_that_never_reads_is_aborted() -> None:
    """At write_buffer_bytes_max, whatever the handler does; its calls are cancelled."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    transport.reader_reads = False
    session.data_received(request(1, "infer", BODY, {"stream": True}))
    item = item_of("x" * 1_000_000)
    for _ in range(40):
        held.calls[0].stream(item)
        stage.loop.turn()
    assert transport.is_aborted
    assert held.cancelled == [1]
    assert session.fault == SLOW_READER
    assert stage.counts["aborted_slow_readers"] == 1
    assert len(transport.written) <= write_buffer_bytes_max + 1_000_100


def test_answers_of_a_single_turn_are_bounded_too() -> None:
    """Many requests in a chunk for a large answer: 33 of a megabyte are too many."""
    large = msgspec.Raw(b"\xc6" + (1 << 20).to_bytes(4, "big") + b"\0" * (1 << 20))
    stage = Stage({"models": lambda _: large})
    session, transport = stage.connect()
    session.data_received(b"".join(request(n, "models") for n in range(40)))
    assert transport.is_aborted
    assert stage.counts["aborted_slow_readers"] == 1


def test_many_messages_of_a_chunk_share_the_loop_with_others() -> None:
    """At most turn_frames_max a turn; nothing more is read meanwhile, nothing is lost."""
    stage = Stage()
    session, transport = stage.connect()
    session.data_received(b"".join(request(n, "ping") for n in range(turn_frames_max * 2 + 1)))
    assert len(transport.messages()) == turn_frames_max
    assert transport.is_paused
    stage.loop.turn()
    assert len(transport.messages()) == turn_frames_max
    stage.loop.turn()
    assert [m[1] for m in transport.messages()] == [turn_frames_max * 2]
    assert not transport.is_paused


def test_large_chunks_of_many_clients_share_one_turn() -> None:
    """The second client of a turn gets turn_frames_min of its messages handled and the rest later:
    a turn is bounded for all of them together."""
    stage = Stage()
    (first, one), (second, two) = stage.connect(), stage.connect()
    chunk = b"".join(request(n, "ping") for n in range(turn_frames_max))
    first.data_received(chunk)
    second.data_received(chunk)
    assert len(one.messages()) == turn_frames_max
    assert len(two.messages()) == turn_frames_min
    assert two.is_paused
    stage.loop.turn()
    assert len(two.messages()) == turn_frames_max - turn_frames_min
    assert not two.is_paused


def test_a_bomb_by_count_closes_the_connection_after_a_few_turns() -> None:
    """No turn walks more than its slice; what came before is answered, no handler is called."""
    stage = Stage()
    session, transport = stage.connect()
    head = b"\x94\x00\x02\xa5infer\x91\x82\xaamodel_name\xa4tiny\xa4rows\xdd\xff\xff\xff\xff"
    session.data_received(request(1, "ping") + head + b"\x01" * 1_000_000)
    turns = 0
    while not transport.is_closing():
        assert transport.is_paused
        stage.loop.turn()
        turns += 1
    assert turns == frame_objects_max // slice_work
    assert [(m[1], m[2] and m[2]["name"]) for m in transport.messages()] == [
        (1, None),
        (2, "INVALID_REQUEST"),
    ]
    assert "frame_objects_max" in str(stage.counts["last_fault"])


def test_a_str_over_its_limit_is_answered_before_the_connection_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """INVALID_REQUEST under its msgid names the limit and what came, as does the log; nothing
    after it is read, and the connection is counted as broken."""
    stage = Stage()
    session, transport = stage.connect()
    text = request(7, "infer", {"model_name": "tiny", "text": ["x" * (frame_str_bytes_max + 1)]})
    session.data_received(text[:300_000])
    session.data_received(text[300_000:] + request(8, "ping"))
    ((_, msgid, error, result),) = transport.messages()
    assert (msgid, error["name"], result) == (7, "INVALID_REQUEST", None)
    assert f"a str of {frame_str_bytes_max + 1} bytes, {frame_str_bytes_max=}" in error["message"]
    assert transport.is_closed
    counts = stage.counts
    assert (counts["frame_errors"], counts["received"], counts["refused"]) == (1, 1, 1)
    assert "frame_str_bytes_max" in capsys.readouterr().err


def test_a_notification_over_a_limit_has_nobody_to_answer() -> None:
    """The connection is closed and counted all the same."""
    stage = Stage()
    session, transport = stage.connect()
    message = msgpack.packb([2, "cancel", ["x" * (frame_str_bytes_max + 1)]])
    session.data_received(message[:300_000])
    assert transport.messages() == []
    assert transport.is_closed
    assert stage.counts["frame_errors"] == 1


def test_a_request_that_takes_turns_to_walk_holds_back_what_follows() -> None:
    """Order is kept, nothing is lost, and the handler gets it once it is whole."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    body = {"model_name": "tiny", "rows": [["x" * 20] * 40] * 4_000}
    stream = request(1, "ping") + request(2, "infer", body) + request(3, "ping")
    for start in range(0, len(stream), 200_000):
        session.data_received(stream[start : start + 200_000])
        while transport.is_paused:
            stage.loop.turn()
    assert [message[1] for message in transport.messages()] == [1, 3]
    assert [call.msgid for call in held.calls] == [2]

"""Typed decoding: what is refused, with which words, and that no bytes do anything else."""

from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ErrorBody, MeshError
from contracts.frames import Notification, Request, Response
from contracts.methods import METHODS, SERVICES
from contracts.types import UNSET, Empty
from shared.wire import codec, heads
from tests.unit.shared.wire import values

INFER = codec.params_decoder(METHODS["orchestrator"]["infer"])
TRACE_ID = "0123456789abcdef0123456789abcdef"


def params(*parts: Any) -> msgspec.Raw:
    """Encoded params."""
    return msgspec.Raw(msgpack.packb(parts))


def refusal(*parts: Any) -> str:
    """How `infer` refuses these params."""
    with pytest.raises(codec.DECODE_ERRORS) as caught:
        INFER(params(*parts))
    return codec.reason(caught.value)


def test_a_request_of_one_method_is_decoded_in_one_pass() -> None:
    """The same as by its envelope and then its params; any other message, method or length is
    not for it."""
    whole = codec.request_decoder(METHODS["orchestrator"]["infer"])
    body, context = {"model_name": "tiny"}, {"trace_id": TRACE_ID}
    frame = msgpack.packb([0, 7, "infer", [body, context]])
    request = whole(frame)
    assert request.msgid == 7
    assert request.params.body == INFER(params(body, context)).body
    assert request.params.context == INFER(params(body, context)).context
    assert whole(msgpack.packb([0, 7, "infer", [body]])).params.context is codec.NO_CONTEXT
    for other in (
        frame[:-1],
        frame + b"\xc0",
        msgpack.packb([0, 7, "ping", [{}]]),
        msgpack.packb([1, 7, None, body]),
        msgpack.packb([2, "infer", [body]]),
    ):
        with pytest.raises(codec.DECODE_ERRORS):
            whole(other)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ([0, 7, "infer", [{}]], Request(7, "infer", msgspec.Raw(b"\x91\x80"))),
        ([1, 7, None, {}], Response(7, msgspec.Raw(b"\xc0"), msgspec.Raw(b"\x80"))),
        ([2, "cancel", [7]], Notification("cancel", msgspec.Raw(b"\x91\x07"))),
    ],
)
def test_the_three_envelopes_leave_their_contents_undecoded(
    message: list[Any], expected: Any
) -> None:
    """Envelope first, so that a broken body can be answered under its msgid."""
    assert codec.decode_envelope(msgpack.packb(message)) == expected


@pytest.mark.parametrize(
    "message",
    [
        [3, 7, "infer", [{}]],
        ["0", 7, "infer", [{}]],
        [0, -1, "infer", [{}]],
        [0, 2**32, "infer", [{}]],
        [0, 7.0, "infer", [{}]],
        [0, True, "infer", [{}]],
        [0, 7, b"infer", [{}]],
        [0, 7, "infer"],
        [0, 7, "x" * 65, [{}]],
        [2, "cancel", [7], 1],
        [1, 7, None],
    ],
)
def test_anything_else_is_no_envelope(message: list[Any]) -> None:
    """Wrong type, wrong msgid, wrong length: refused as a whole."""
    with pytest.raises(codec.DECODE_ERRORS):
        codec.decode_envelope(msgpack.packb(message))


def test_a_body_may_come_alone_or_with_its_context() -> None:
    """params is [body] or [body, context]."""
    body = {"model_name": "tiny", "text": ["a"]}
    assert INFER(params(body)).context is codec.NO_CONTEXT
    with_context = INFER(params(body, {"trace_id": TRACE_ID, "deadline_ms": 5, "stream": True}))
    assert (with_context.context.trace_id, with_context.context.deadline_ms) == (TRACE_ID, 5)
    assert with_context.body == INFER(params(body)).body


REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "no body": ((), "at least length 1"),
    "three params": (({"model_name": "a"}, {}, {}), "at most length 2"),
    "a body that is no map": (([],), "Expected `object`, got `array` - at `body`"),
    "a missing field": (({},), "missing required field `model_name`"),
    "an unknown field": (({"model_name": "a", "mode": 1},), "unknown field `mode`"),
    "an unknown context field": (({"model_name": "a"}, {"hop": 1}), "unknown field `hop`"),
    "a wrong type": (({"model_name": 5},), "Expected `str`, got `int` - at `body.model_name`"),
    "bin for str": (({"model_name": b"a"},), "got `bytes`"),
    "a name too long": (({"model_name": "a" * 129},), "length <= 128"),
    "a risk level that does not exist": (({"model_name": "a", "risk_level": 4},), "<= 3"),
    "an int for a bool": (({"model_name": "a", "stream": 1},), "Expected `bool`"),
    "NaN where bounded": (
        ({"model_name": "a", "sampling": {"temperature": float("nan")}},),
        "temperature",
    ),
    "a nested parameter": (({"model_name": "a", "parameters": {"k": [1]}},), "parameters[...]"),
    "too many texts": (({"model_name": "a", "text": ["a"] * 1_025},), "length <= 1024"),
    "too many numbers": (
        ({"model_name": "a", "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [65_537], "data": [0.0] * 65_537}
        ]},),
        "length <= 65536",
    ),
    "a wrong trace id": (({"model_name": "a"}, {"trace_id": "A" * 32}), "context.trace_id"),
    "a negative deadline": (({"model_name": "a"}, {"deadline_ms": -1}), ">= 0"),
    "a deadline of more than a day": (({"model_name": "a"}, {"deadline_ms": 86_400_001}), "<="),
    "an integer beyond 64 bits of sign": (
        ({"model_name": "a", "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2**64 - 1], "data": b""}
        ]},),
        "shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_broken_body_is_refused_by_name(case: str) -> None:
    """The complaint says where and what."""
    parts, words = REFUSED[case]
    assert words in refusal(*parts)


@pytest.mark.parametrize("msgid", [0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1])
def test_the_msgid_is_read_from_how_a_request_begins(msgid: int) -> None:
    """Each form that an encoder chooses; of what is no request, or cut off, there is none."""
    frame = msgpack.packb([0, msgid, "infer", [{}]])
    assert codec.opening_msgid(frame[:16]) == msgid
    for other in (frame[:2], msgpack.packb([2, "cancel", [msgid]]), b"", b"\x94\x00\xd9" + frame):
        assert codec.opening_msgid(other) is None


def test_invalid_utf_8_is_refused() -> None:
    """A str that is none."""
    with pytest.raises(codec.DECODE_ERRORS):
        INFER(msgspec.Raw(b"\x91\x81\xaamodel_name\xa2\xff\xfe"))


def test_a_binary_key_is_refused() -> None:
    """Keys are strings."""
    with pytest.raises(codec.DECODE_ERRORS):
        INFER(params({b"model_name": "a"}))


def test_among_duplicate_keys_the_last_one_wins() -> None:
    """Stated, so that nobody relies on the first."""
    body = INFER(msgspec.Raw(b"\x91\x82\xaamodel_name\xa1a\xaamodel_name\xa1b")).body
    assert body.model_name == "b"


def test_names_of_the_peer_are_cut() -> None:
    """An unknown field of 100 kB does not come back whole, and where it stood still shows."""
    text = refusal({"model_name": "a", "x" * 100_000: 1})
    assert len(text) <= codec.reason_characters_max
    assert text.endswith("- at `body`")
    short = refusal({"model_name": "a", "x" * 65: 1})
    assert f"`{'x' * 63}…`" in short


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\nb", "`", "\u202e", "\x00"])
def test_a_complaint_is_one_printable_line(hostile: str) -> None:
    """It is shown on terminals and written to logs."""
    assert refusal({"model_name": "a", hostile: 1}).isprintable()


@given(values.values, st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), max_size=4))
def test_no_params_do_anything_but_decode_or_be_refused(
    value: object, noise: list[tuple[int, int]]
) -> None:
    """Every method of every service, on valid MessagePack and on bytes that are not."""
    packed = bytearray(msgpack.packb([value, {}]))
    for position, byte in noise:
        packed[position % len(packed)] = byte
    reasons = ["x"]
    for decode in DECODERS:
        try:
            decode(msgspec.Raw(bytes(packed)))
        except codec.DECODE_ERRORS as error:
            reasons.append(codec.reason(error))
    assert all(text.isprintable() for text in reasons)


DECODERS = [codec.params_decoder(row) for service in SERVICES for row in METHODS[service].values()]


def test_the_context_survives_a_broken_body() -> None:
    """The error carries the caller's own trace id."""
    assert codec.context_of(params({"mode": 1}, {"trace_id": TRACE_ID})).trace_id == TRACE_ID
    assert codec.context_of(params({"mode": 1}, {"trace_id": 5})) is codec.NO_CONTEXT
    assert codec.context_of(msgspec.Raw(b"\x05")) is codec.NO_CONTEXT


@pytest.mark.parametrize("msgid", [0, 1, 127, 128, 2**31, 2**32 - 1])
def test_a_response_is_what_other_implementations_read(msgid: int) -> None:
    """Head and spliced result are one array of four."""
    whole = heads.response_head(msgid) + codec.encode(Empty())
    assert msgpack.unpackb(whole) == [1, msgid, None, {}]


def test_a_failure_is_an_error_map_and_no_result() -> None:
    """The error's map has exactly the contract's fields."""
    error = MeshError("OVERLOADED", "queue_max is 5", retry_after_ms=20, details={"queue": "x"})
    message = msgpack.unpackb(codec.encode_failure(9, error, TRACE_ID))
    assert message == [
        1,
        9,
        {
            "code": 461,
            "name": "OVERLOADED",
            "message": "queue_max is 5",
            "trace_id": TRACE_ID,
            "retryable": True,
            "retry_after_ms": 20,
            "details": {"queue": "x"},
        },
        None,
    ]
    body = codec.decode_error(codec.encode(message[2]))
    assert isinstance(body, ErrorBody)
    assert body.retry_after_ms is not UNSET


def test_a_stream_item_and_a_notification_are_arrays() -> None:
    """[2, "stream", [msgid, sequence, item]] and [2, method, params]."""
    whole = heads.stream_head(3, 70_000) + codec.encode({"a": 1})
    assert msgpack.unpackb(whole) == [2, "stream", [3, 70_000, {"a": 1}]]
    assert msgpack.unpackb(codec.encode_notification("goaway", ("drain",))) == [
        2,
        "goaway",
        ["drain"],
    ]


def test_a_message_of_another_type_is_not_sent() -> None:
    """A handler that returns the wrong struct is caught before the wire."""
    heads.check_type(Empty(), Empty)
    with pytest.raises(TypeError, match=r"dict where .*Empty"):
        heads.check_type({}, Empty)

"""A client's end of one connection: each request gets at most one answer."""

import itertools
from typing import Any

import msgpack
import msgspec
import pytest

from contracts.errors import MeshError
from contracts.inference import InferenceRequest, Models, StreamItem
from contracts.limits import frame_bytes_max, in_flight_per_connection_max
from contracts.methods import METHODS
from contracts.types import Empty
from shared.rpc.connection import Flusher
from shared.rpc.link import ConnectionLost, Link, remote_methods
from tests.unit.shared.rpc.fakes import FakeLoop, FakeTransport, notification

METHODS_HERE = remote_methods(METHODS["orchestrator"])
MODELS, INFER = METHODS_HERE["models"], METHODS_HERE["infer"]
TRACE_ID = "0123456789abcdef0123456789abcdef"


class Asker:
    """A link on a fake transport, and what its callbacks were told."""

    def __init__(self) -> None:
        self.loop: Any = FakeLoop()
        self.goaways: list[Link] = []
        self.losses: list[Link] = []
        self.answers: list[tuple[Any, MeshError | None]] = []
        self.items: list[Any] = []
        self.link = Link(
            Flusher(self.loop), itertools.count(), self.goaways.append, self.losses.append
        )
        self.transport = FakeTransport(self.link)
        self.link.connection_made(self.transport)

    def on_answer(self, result: Any, error: MeshError | None) -> None:
        """Remember it."""
        self.answers.append((result, error))

    def ask(self, **options: Any) -> int:
        """Ask for the models."""
        return self.link.ask(MODELS, Empty(), self.on_answer, **options)

    def sent(self) -> list[Any]:
        """What was sent in this turn."""
        self.loop.turn()
        return self.transport.messages()

    def receive(self, *message: Any) -> None:
        """The server sends one message."""
        self.link.data_received(msgpack.packb(message))


def test_requests_of_one_turn_leave_with_one_write() -> None:
    """The first one announces our protocol, the others do not repeat it."""
    asker = Asker()
    asker.ask(trace_id=TRACE_ID, deadline_ms=50)
    asker.ask()
    assert asker.sent() == [
        [
            0,
            0,
            "models",
            [{}, {"trace_id": TRACE_ID, "deadline_ms": 50, "protocol_version": 1}],
        ],
        [0, 1, "models", [{}]],
    ]
    assert asker.transport.writes == 1


def test_answers_come_in_any_order_and_typed() -> None:
    """The msgid joins them."""
    asker = Asker()
    first, second = asker.ask(), asker.ask()
    asker.receive(1, second, None, {"models": [], "born_later": 1})
    asker.receive(1, first, {"code": 461, "name": "OVERLOADED", "message": "m", "trace_id": "t",
                             "retryable": True, "retry_after_ms": 5}, None)  # fmt: skip
    (result, none), (nothing, error) = asker.answers
    assert (result, none, nothing) == (Models(models=[]), None, None)
    assert error is not None
    assert (error.name, error.retry_after_ms, error.trace_id) == ("OVERLOADED", 5, "t")
    assert not asker.link.waiting


@pytest.mark.parametrize("result", [{"models": 5}, {}, None, "x"])
def test_an_answer_that_breaks_the_contract_is_an_internal_error(result: Any) -> None:
    """Both sides enforce it: a broken message never reaches the caller as an answer."""
    asker = Asker()
    asker.receive(1, asker.ask(), None, result)
    ((nothing, error),) = asker.answers
    assert nothing is None
    assert error is not None
    assert error.name == "INTERNAL"
    assert "breaks the contract" in error.message


@pytest.mark.parametrize(
    "message",
    [
        (1, 99, None, {"models": []}),
        (0, 5, "infer", [{}]),
        (2, "unheard_of", [1]),
        (2, "stream", [99, 0, {}]),
        (2, "cancel", [0]),
    ],
)
def test_what_nobody_asked_for_is_ignored(message: tuple[Any, ...]) -> None:
    """The request goes on waiting."""
    asker = Asker()
    msgid = asker.ask()
    asker.receive(*message)
    assert (asker.answers, list(asker.link.waiting)) == ([], [msgid])
    assert not asker.transport.is_closing()


def test_stream_items_are_typed_and_go_to_their_request() -> None:
    """Asked for in the context; the last answer ends it."""
    asker = Asker()
    body = InferenceRequest(model_name="m", text=["a"])
    msgid = asker.link.ask(INFER, body, asker.on_answer, on_item=asker.items.append)
    assert asker.sent()[0][3][1] == {"stream": True, "protocol_version": 1}
    asker.receive(2, "stream", [msgid, 0, {"index": 0, "token_ids": [1], "text": "x"}])
    assert asker.items == [StreamItem(index=0, token_ids=[1], text="x")]


def test_a_broken_stream_item_closes_the_connection() -> None:
    """The request gets UNAVAILABLE."""
    asker = Asker()
    body = InferenceRequest(model_name="m", text=["a"])
    msgid = asker.link.ask(INFER, body, asker.on_answer, on_item=asker.items.append)
    asker.receive(2, "stream", [msgid, 0, {"index": "0"}])
    assert asker.transport.is_closing()
    assert isinstance(asker.answers[0][1], ConnectionLost)


def test_forget_cancels_and_drops_a_late_answer() -> None:
    """A second forget, or one of a msgid that is not waiting, says nothing."""
    asker = Asker()
    msgid = asker.ask()
    asker.link.forget(msgid)
    asker.link.forget(msgid)
    asker.link.forget(77)
    assert asker.sent()[1:] == [[2, "cancel", [msgid]]]
    asker.receive(1, msgid, None, {"models": []})
    assert asker.answers == []


def test_a_lost_connection_answers_everybody_who_waits() -> None:
    """UNAVAILABLE, which may be retried."""
    asker = Asker()
    asker.ask()
    asker.ask()
    asker.link.connection_lost(None)
    assert asker.losses == [asker.link]
    assert [str(error) for _, error in asker.answers] == [
        "UNAVAILABLE: models: connection lost"
    ] * 2


def test_after_goaway_the_last_answer_closes() -> None:
    """What is in flight is finished."""
    asker = Asker()
    msgid = asker.ask()
    asker.link.data_received(notification("goaway", "drain"))
    assert asker.goaways == [asker.link]
    assert not asker.transport.is_closing()
    asker.receive(1, msgid, None, {"models": []})
    assert asker.transport.is_closed


def test_after_goaway_an_idle_connection_closes_at_once() -> None:
    """Nothing is in flight."""
    asker = Asker()
    asker.link.data_received(notification("goaway", "drain"))
    assert asker.transport.is_closed


def test_one_more_than_in_flight_max_is_refused_before_it_is_sent() -> None:
    """At the limit it is sent."""
    asker = Asker()
    for _ in range(in_flight_per_connection_max):
        asker.ask()
    with pytest.raises(MeshError, match="OVERLOADED"):
        asker.ask()
    assert len(asker.sent()) == in_flight_per_connection_max


def test_a_body_too_long_for_a_frame_is_refused_before_it_is_sent() -> None:
    """Named with its size, and the next request is whole."""
    asker = Asker()
    body = InferenceRequest(model_name="m", rows=msgspec.Raw(b"\0" * frame_bytes_max))
    with pytest.raises(MeshError, match="frame_bytes_max"):
        asker.link.ask(INFER, body, asker.on_answer)
    asker.ask()
    assert [message[2] for message in asker.sent()] == ["models"]


def test_msgids_wrap_and_skip_those_in_flight() -> None:
    """After 2³² requests a number may still be waiting."""
    asker = Asker()
    asker.link = Link(
        Flusher(asker.loop),
        itertools.chain([5, 2**32 - 1, 2**32 + 5, 2**32 + 6]),
        asker.goaways.append,
        asker.losses.append,
    )
    asker.transport = FakeTransport(asker.link)
    asker.link.connection_made(asker.transport)
    assert [asker.ask() for _ in range(3)] == [5, 2**32 - 1, 6]

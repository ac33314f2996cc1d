"""Who is let in, who is asked to leave, and how."""

import msgspec
import pytest

from shared.rpc.answers import goaway_grace_s
from shared.rpc.serving import (
    CONNECTION_CAP,
    pressure_age_s_min,
    refusal_s_max,
    refusals_max,
)
from tests.unit.shared.rpc.fakes import Held, Stage, request

BODY = {"model_name": "tiny", "text": ["a"]}
ANNOUNCED = {"protocol_version": 1}
ANSWER = msgspec.Raw(b"\x80")
GOAWAY = [2, "goaway", ["drain"]]


@pytest.mark.parametrize("cap", [0, 1, 2])
def test_over_the_cap_the_first_request_is_refused_and_the_connection_closed(cap: int) -> None:
    """At the cap a client is served, above it it is told why."""
    stage = Stage(connections_max=cap)
    for _ in range(cap):
        session, transport = stage.connect()
        session.data_received(request(1, "ping"))
        assert transport.messages()[0][3] == {}
    session, transport = stage.connect()
    session.data_received(request(7, "infer", BODY) + request(8, "ping"))
    (refused,) = transport.messages()
    assert (refused[1], refused[2]["name"]) == (7, "OVERLOADED")
    assert refused[2]["message"] == f"connections_max is {cap}"
    assert transport.is_closed
    assert (stage.counts["refused_connections"], len(stage.serving.sessions)) == (1, cap)


def test_room_comes_back_when_a_client_leaves() -> None:
    """The next one is served."""
    stage = Stage(connections_max=1)
    first, _ = stage.connect()
    first.connection_lost(None)
    session, transport = stage.connect()
    session.data_received(request(1, "ping"))
    assert transport.messages()[0][3] == {}


def test_a_refused_client_that_says_nothing_is_dropped() -> None:
    """It holds a descriptor, so it gets a second and no more."""
    stage = Stage(connections_max=0)
    _, transport = stage.connect()
    (timer,) = stage.loop.timers
    assert timer.delay_s == refusal_s_max
    timer.fire()
    assert transport.is_aborted
    assert not stage.serving.refusing


def test_the_refusals_themselves_are_bounded() -> None:
    """One more than refusals_max waiting is dropped without a word."""
    stage = Stage(connections_max=0)
    waiting = [stage.connect()[1] for _ in range(refusals_max)]
    _, dropped = stage.connect()
    assert dropped.is_aborted
    assert not any(transport.is_aborted for transport in waiting)
    assert stage.counts["last_fault"] == CONNECTION_CAP
    assert "frame_errors" not in stage.counts


def test_a_client_that_announced_a_protocol_is_told_to_leave() -> None:
    """It finishes what is in flight; what it still sends is answered; it closes by itself."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY, ANNOUNCED))
    session.go_away("drain")
    session.go_away("drain")
    stage.loop.turn()
    assert transport.messages() == [GOAWAY]
    session.data_received(request(2, "ping"))
    assert transport.messages() == [[1, 2, None, {}]]
    assert not transport.is_closing()


def test_one_that_stays_after_goaway_is_closed_when_nothing_is_in_flight() -> None:
    """After the grace, and not before its last answer."""
    held = Held()
    stage = Stage({"infer": held})
    session, transport = stage.connect()
    session.data_received(request(1, "infer", BODY, ANNOUNCED))
    session.go_away("drain")
    (grace,) = stage.loop.timers
    assert grace.delay_s == goaway_grace_s
    grace.fire()
    assert not transport.is_closing()
    held.calls[0].reply(ANSWER)
    assert transport.messages()[-1][1] == 1
    assert transport.is_closed


def test_other_clients_are_never_notified_only_closed() -> None:
    """A notification can break a client that expects none: it is closed when idle."""
    held = Held()
    stage = Stage({"infer": held})
    idle, idle_transport = stage.connect()
    busy, busy_transport = stage.connect()
    busy.data_received(request(1, "infer", BODY))
    for session in (idle, busy):
        session.go_away("drain")
    assert idle_transport.is_closed
    assert not busy_transport.is_closing()
    held.calls[0].reply(ANSWER)
    assert busy_transport.messages() == [[1, 1, None, {}]]
    assert busy_transport.is_closed
    assert "goaways" not in stage.counts


def test_under_pressure_the_oldest_that_understands_it_goes_away() -> None:
    """One for each newcomer, oldest first; those without a protocol are left alone."""
    stage = Stage(connections_max=10)
    clients = [stage.connect() for _ in range(9)]
    for session, transport in clients[1:]:
        session.data_received(request(1, "ping", {}, ANNOUNCED))
        transport.messages()
    stage.clock.advance(pressure_age_s_min)
    stage.connect()
    stage.loop.turn()
    told = [bool(transport.messages()) for _, transport in clients]
    assert told == [False, True, *[False] * 7]
    assert not any(transport.is_closing() for _, transport in clients)


def test_a_young_session_is_not_asked_to_leave() -> None:
    """Clients that come back at once must not chase each other out."""
    stage = Stage(connections_max=4)
    clients = [stage.connect() for _ in range(3)]
    for session, transport in clients:
        session.data_received(request(1, "ping", {}, ANNOUNCED))
        transport.messages()
    stage.clock.advance(pressure_age_s_min / 2)
    stage.connect()
    stage.loop.turn()
    assert [transport.messages() for _, transport in clients] == [[], [], []]

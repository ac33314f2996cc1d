"""What the sessions of one server share: the table, the clock, the counters, and who is connected.

Sessions are kept in the order in which they came, so the oldest is the first.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from contracts.errors import MeshError
from shared.access import Access
from shared.clock import Clock
from shared.rpc.call import Call
from shared.rpc.connection import SLOW_READER, Flusher
from shared.rpc.counters import Counters
from shared.rpc.dispatch import COMMONEST, Entry
from shared.wire.framing import HeldBytes

if TYPE_CHECKING:
    from shared.rpc.answers import Answers

refusals_max = 128
"""Connections over the cap that wait for their first request to be refused; one more is dropped."""
refusal_s_max = 1.0
"""How long such a connection may take to send it."""
pressure_share = 0.9
"""Of connections_max: above it every newcomer makes the oldest session go away."""
pressure_age_s_min = 10.0
"""A younger session is left alone: clients that come back at once must not chase each other."""


@dataclass(slots=True)
class Serving:
    """Shared by the sessions of one server; changed on the loop's thread only."""

    service: str
    instance: str
    table: dict[str, Entry]
    access: Access
    clock: Clock
    connections_max: int
    loop: asyncio.AbstractEventLoop
    flusher: Flusher
    held: HeldBytes
    on_left: Callable[[], None]
    counters: Counters = field(default_factory=Counters)
    sessions: "dict[Answers, None]" = field(default_factory=dict)
    refusing: "dict[Answers, None]" = field(default_factory=dict)
    commonest: Entry | None = None

    def __post_init__(self) -> None:
        self.commonest = self.table.get(COMMONEST.get(self.service, ""))

    def admit(self, session: "Answers") -> bool:
        """Take a new connection in; False: it is over the cap and only there to be told so."""
        self.counters.accepted += 1
        if len(self.sessions) >= self.connections_max:
            self._refuse(session)
            return False
        self.sessions[session] = None
        self.counters.connections += 1
        if len(self.sessions) > self.connections_max * pressure_share:
            self._relieve(session.since_s)
        return True

    def leave(self, session: "Answers") -> None:
        """A connection is gone."""
        if session in self.sessions:
            del self.sessions[session]
            self.counters.connections -= 1
        else:
            self.refusing.pop(session, None)
        if session.fault is not None:
            self.counters.last_fault = session.fault
            if session.fault == SLOW_READER:
                self.counters.aborted_slow_readers += 1
            elif session.fault not in FAULTS_OF_OURS:
                self.counters.frame_errors += 1
        self.on_left()

    def expired(self, call: Call) -> MeshError:
        """The error of a call whose deadline passed here."""
        allowed_ms = round((call.deadline_s - call.received_s) * 1_000)
        text = f"{call.row.name}: the deadline of {allowed_ms} ms passed in {self.instance}"
        return MeshError("DEADLINE_EXCEEDED", text, details={"hop": self.instance})

    def _refuse(self, session: "Answers") -> None:
        self.counters.refused_connections += 1
        if len(self.refusing) >= refusals_max:
            session.abort(CONNECTION_CAP)
            return
        self.refusing[session] = None
        self.loop.call_later(refusal_s_max, self._drop_refused, session)

    def _drop_refused(self, session: "Answers") -> None:
        if session in self.refusing:
            session.abort(CONNECTION_CAP)

    def _relieve(self, now_s: float) -> None:
        """Ask the oldest session that understands it, and was not asked yet, to go away."""
        for session in self.sessions:
            if now_s - session.since_s < pressure_age_s_min:
                return
            if session.protocol_version and not session.is_told:
                session.go_away("connections")
                return


CONNECTION_CAP = "connections_max"
DRAIN_OVER = "drain budget"
FAULTS_OF_OURS = frozenset({CONNECTION_CAP, DRAIN_OVER})
"""Why we close a connection whose peer did nothing wrong."""

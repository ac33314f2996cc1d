"""What a server counted since its start. Requests conserve: received = the sum of their ends."""

from dataclasses import asdict, dataclass

from contracts.types import Scalar


@dataclass(slots=True)
class Counters:
    """Counts of one server; `connections` and `in_flight` are gauges.

    received = answered + refused + failed + cancelled + in_flight. `refused`: before a handler saw
    it; `failed`: ended with an error by the handler, its deadline or a defect; `cancelled`: by the
    caller's cancel or its leaving. `last_fault` is why a connection was last closed by us.
    """

    connections: int = 0
    in_flight: int = 0
    accepted: int = 0
    refused_connections: int = 0
    aborted_slow_readers: int = 0
    received: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    cancelled: int = 0
    deadline_exceeded: int = 0
    internal_errors: int = 0
    frame_errors: int = 0
    ignored: int = 0
    stream_items: int = 0
    goaways: int = 0
    last_fault: str = ""

    def statistics(self) -> dict[str, Scalar]:
        """Every count by name."""
        return dict(asdict(self))

"""Why a request is not given to a handler. Pure."""

from contracts.errors import MeshError
from contracts.frames import Request
from contracts.limits import in_flight_per_connection_max
from shared.access import Peer
from shared.rpc.dispatch import Entry

retry_after_ms = 100
"""Hint to a caller that met one of our bounds."""


def over_the_cap(connections_max: int) -> MeshError:
    """The answer to the first request of a connection too many."""
    return _overloaded("connections", f"connections_max is {connections_max}")


def why_refused(
    request: Request, entry: Entry | None, peer: Peer, *, is_in_flight: bool, service: str
) -> MeshError:
    """The error of a request that may not start; it has too many neighbours if nothing else."""
    method = request.method
    if entry is None:
        return MeshError("METHOD_UNKNOWN", f"no method {method!a} on {service}")
    if entry.role not in peer.roles:
        text = f"{method} needs the role {entry.role}, uid {peer.uid} lacks it"
        return MeshError("PERMISSION_DENIED", text)
    if is_in_flight:
        return MeshError("INVALID_REQUEST", f"msgid {request.msgid} is in flight already")
    text = f"in_flight_per_connection_max is {in_flight_per_connection_max}"
    return _overloaded("connection_in_flight", text)


def _overloaded(reason: str, text: str) -> MeshError:
    return MeshError("OVERLOADED", text, retry_after_ms=retry_after_ms, details={"reason": reason})

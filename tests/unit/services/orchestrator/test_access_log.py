"""Which requests get a record."""

from typing import Any

import pytest

from contracts.errors import MeshError
from services.orchestrator import access_log
from services.orchestrator.access_log import AccessLog
from services.orchestrator.config import load_refusals_logged_per_s
from tests.unit.services.orchestrator.making import call_for, request

pytestmark = pytest.mark.interpreted


class Records:
    """A log that keeps what it gets."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def warning(self, event: str, **fields: Any) -> None:
        """structlog's."""
        self.kept.append({"event": event, **fields})


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Records:
    """What the access log writes."""
    records = Records()
    monkeypatch.setattr(access_log.logs, "request", lambda log, **fields: records)
    return records


def refuse(log: AccessLog, error: str, second: float) -> None:
    """One refusal."""
    log.refused(call_for(request(), received_s=second), MeshError(error, "why"))


def test_refusals_for_the_load_are_recorded_some_a_second(records: Records) -> None:
    """Of 1,000 in a second 20 are; the next second's first says how many were not."""
    log = AccessLog()
    for _ in range(1_000):
        refuse(log, "OVERLOADED", 100.5)
    assert len(records.kept) == load_refusals_logged_per_s
    refuse(log, "QUOTA_EXCEEDED", 101.0)
    assert records.kept[-1]["unlogged"] == 1_000 - load_refusals_logged_per_s


def test_every_other_refusal_is_recorded(records: Records) -> None:
    """What is wrong with a request is said for each."""
    log = AccessLog()
    for _ in range(100):
        refuse(log, "INVALID_REQUEST", 100.5)
    assert len(records.kept) == 100

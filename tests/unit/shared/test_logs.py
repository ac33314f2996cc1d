"""Records: what they hold, and that no text can forge one."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from shared import logs

IDS = {"trace_id": "t", "request_id": "r", "tenant_id": "a", "model_version": "1"}


@pytest.fixture
def lines() -> Iterator[list[bytes]]:
    """Every line that is logged meanwhile."""
    found: list[bytes] = []
    logs.direct(found.append, service="orchestrator", instance="orchestrator.0-1")
    yield found
    logs.undirect()


def only(lines: list[bytes]) -> dict[str, Any]:
    """The one record."""
    assert len(lines) == 1
    record: dict[str, Any] = json.loads(lines[0])
    return record


def test_a_record_says_who_and_when(lines: list[bytes]) -> None:
    """Time with offset, level, logger, service and instance stand in each record."""
    logs.get("services.orchestrator").info("admitted", rows=3)
    record = only(lines)
    assert record["at"].endswith("+00:00")
    assert (record["level"], record["logger"]) == ("info", "services.orchestrator")
    assert (record["service"], record["instance"]) == ("orchestrator", "orchestrator.0-1")
    assert (record["event"], record["rows"]) == ("admitted", 3)


@given(st.text(), st.text(st.characters(categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1))
def test_no_text_can_forge_a_record(text: str, control: str) -> None:
    """Whatever a value holds, the record is one line of printable text that decodes to it."""
    line = logs.encode({"event": "x", "value": text + control})
    assert line.endswith(b"\n")
    body = line[:-1].decode()
    assert body.isprintable() or not any(
        ord(mark) < 32 or 127 <= ord(mark) < 160 or ord(mark) in (0x2028, 0x2029) for mark in body
    )
    assert len(body.splitlines()) == 1
    assert json.loads(body)["event"] == "x"


def test_a_caller_cannot_take_our_keys(lines: list[bytes]) -> None:
    """Keys such as `level` and `instance` given as values are set aside, not obeyed."""
    logs.get("a").info("x", instance="mine", level="critical", at="never", service="s")
    record = only(lines)
    assert (record["instance"], record["level"]) == ("orchestrator.0-1", "info")
    assert record["instance_"] == "mine"


@pytest.mark.parametrize("missing", list(IDS))
def test_a_request_record_without_its_ids_is_an_error(missing: str) -> None:
    """Trace, request, tenant and model version are asserted when bound and when written."""
    with pytest.raises(AssertionError, match=missing):
        logs.request(logs.get("a"), **{**IDS, missing: ""})
    fields = {key: value for key, value in IDS.items() if key != missing}
    with pytest.raises(AssertionError, match=missing):
        logs.get("a").info("answered", kind="request", **fields)


def test_a_request_logger_carries_the_ids(lines: list[bytes]) -> None:
    """Every record of a request's logger has all four, and is marked."""
    logs.request(logs.get("a"), **IDS).warning("slow")
    record = only(lines)
    assert {key: record[key] for key in IDS} == IDS
    assert record["kind"] == "request"


def test_long_values_and_records_are_cut(lines: list[bytes]) -> None:
    """A value is cut at its limit, a record of many at its own."""
    log = logs.get("a")
    log.info("long", text="x" * 100_000)
    assert len(json.loads(lines[0])["text"]) == logs.text_characters_max
    log.info("many", **{f"k{number}": "x" * 8_000 for number in range(20)})
    assert len(lines[1]) <= logs.record_bytes_max
    assert json.loads(lines[1])["cut_bytes"] > logs.record_bytes_max


def test_secrets_are_redacted(lines: list[bytes]) -> None:
    """Values under the names of secrets never reach the file."""
    logs.get("a").info("login", password="hunter2", token="t", tokens_in=3)
    assert b"hunter2" not in lines[0]
    assert only(lines)["tokens_in"] == 3


def test_an_exception_is_data(lines: list[bytes]) -> None:
    """A traceback is structured, without local values."""
    secret = "local value"
    try:
        raise ValueError("bad\nline")  # noqa: TRY301 — the traceback is what is tested
    except ValueError:
        logs.get("a").exception("failed", length=len(secret))
    exception = only(lines)["exception"][0]
    assert (exception["exc_type"], exception["exc_value"]) == ("ValueError", "bad\nline")
    assert b"local value" not in lines[0]


def test_bound_context_is_in_every_record(lines: list[bytes]) -> None:
    """An operation's trace id, bound once, is in all its records."""
    with structlog.contextvars.bound_contextvars(trace_id="abc"):
        logs.get("a").info("swap_begun")
        logs.get("b").info("swap_ended")
    assert [json.loads(line)["trace_id"] for line in lines] == ["abc", "abc"]


def test_debug_records_cost_nothing(lines: list[bytes]) -> None:
    """Below the level nothing is written."""
    logs.get("a").debug("detail")
    assert lines == []

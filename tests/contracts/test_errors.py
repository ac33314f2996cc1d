"""The error vocabulary: the numbers that were promised, in the table and in the SDK."""

import re

import pytest

from contracts.errors import COMMON, ERRORS, MeshError
from mortise import generated as sdk

PROMISED = """
101 TOKENIZER_INVALID_INPUT · 102 INVALID_REQUEST · 103 METHOD_UNKNOWN · 104 INPUT_TOO_LONG ·
201 FEATURE_INVALID · 202 FEATURE_FROZEN · 203 FEATURE_STALE · 204 VIEW_UNKNOWN ·
301 MODEL_UNKNOWN · 302 MODEL_NOT_READY · 303 OUTPUT_INVALID · 304 MEMORY_EXHAUSTED ·
305 FORWARD_FAILED · 306 PACK_INVALID · 461 OVERLOADED · 462 DEADLINE_EXCEEDED ·
463 QUOTA_EXCEEDED · 464 CANCELLED · 465 UNAVAILABLE · 466 PERMISSION_DENIED ·
467 RULE_REFUSED ·
501 POLICY_INVALID · 502 VERSION_CONFLICT · 503 PROOF_FAILED · 504 DISK_FULL ·
505 POLICY_REJECTED · 506 TRACE_UNKNOWN · 901 INTERNAL
"""


def test_the_numbers_are_those_that_were_promised() -> None:
    """A number once given never changes its name."""
    promised = {name: int(code) for code, name in re.findall(r"(\d+) ([A-Z_]+)", PROMISED)}
    assert {row.name: row.code for row in ERRORS.values()} == promised


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_is_an_exception_of_the_sdk(name: str) -> None:
    """Code, name and retry rule of the class are those of the row."""
    row, kind = ERRORS[name], sdk.ERRORS[name]
    assert (kind.code, kind.name, kind.retryable) == (row.code, row.name, row.retryable)


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_survives_the_wire(name: str) -> None:
    """Body and exception are the same error, hint and details included."""
    error = MeshError(name, "why", retry_after_ms=5, details={"limit": 1})
    again = MeshError.from_body(error.body("0" * 32))
    assert (again.name, again.message, again.retry_after_ms, again.details, again.trace_id) == (
        name, "why", 5, {"limit": 1}, "0" * 32,
    )  # fmt: skip


def test_what_the_wire_itself_answers_is_in_the_table() -> None:
    """Every common error has a row."""
    assert set(COMMON) <= set(ERRORS)

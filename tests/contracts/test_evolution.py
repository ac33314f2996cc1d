"""The evolution check: which changes of a contract break a peer, case by case."""

import copy
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import UNSET, Meta, UnsetType

from contracts.description import describe, document_schemas, schema
from contracts.evolution import Change, compare, compare_documents, is_allowed
from contracts.generate import RELEASED, ROOT
from contracts.methods import SERVICES
from contracts.schema_compare import refusals
from contracts.types import Open, Strict

Short = Annotated[str, Meta(max_length=8)]
Count = Annotated[int, Meta(ge=0, le=10)]


def struct(base: type[Any], *fields: Any) -> dict[str, Any]:
    """The schema of a struct with these fields."""
    return schema(msgspec.defstruct("Body", fields, bases=(base,), kw_only=True, frozen=True))


OPTIONAL = str | UnsetType
REQUESTS = {
    "nothing": ([("a", str)], [("a", str)], None),
    "optional field added": ([("a", str)], [("a", str), ("b", OPTIONAL, UNSET)], None),
    "required field added": ([("a", str)], [("a", str), ("b", str)], "b: required now"),
    "optional made required": ([("a", OPTIONAL, UNSET)], [("a", str)], "a: required now"),
    "required made optional": ([("a", str)], [("a", OPTIONAL, UNSET)], None),
    "field removed": ([("a", str), ("b", str)], [("a", str)], "b: field removed"),
    "type changed": ([("a", str)], [("a", int)], "a: string is not accepted as integer"),
    "integer widened to number": ([("a", int)], [("a", float)], None),
    "number narrowed to integer": ([("a", float)], [("a", int)], "a: number is not accepted"),
    "made nullable": ([("a", str)], [("a", str | None)], None),
    "null refused": ([("a", str | None)], [("a", str)], "a: null is not accepted as string"),
    "any narrowed": ([("a", Any)], [("a", int)], "a: any value is not accepted as integer"),
    "length bounded": ([("a", str)], [("a", Short)], "a: maxLength was absent, is 8"),
    "length freed": ([("a", Short)], [("a", str)], None),
    "range narrowed": (
        [("a", Count)],
        [("a", Annotated[int, Meta(ge=1, le=10)])],
        "a: minimum was 0, is 1",
    ),
    "range widened": ([("a", Count)], [("a", Annotated[int, Meta(ge=-1, le=99)])], None),
    "pattern changed": (
        [("a", Annotated[str, Meta(pattern="^a$")])],
        [("a", Annotated[str, Meta(pattern="^b$")])],
        "a: pattern was ^a$, is ^b$",
    ),
    "choice added": ([("a", Literal["x"])], [("a", Literal["x", "y"])], None),
    "choice removed": ([("a", Literal["x", "y"])], [("a", Literal["x"])], "a: 'y' is not accepted"),
    "text narrowed to choices": ([("a", str)], [("a", Literal["x"])], "a: narrowed to x"),
    "choices freed": ([("a", Literal["x"])], [("a", str)], None),
    "list bounded": (
        [("a", list[int])],
        [("a", Annotated[list[int], Meta(max_length=2)])],
        "a: maxItems was absent, is 2",
    ),
    "items narrowed": ([("a", list[float])], [("a", list[int])], "a[]: number is not accepted"),
    "map bounded": (
        [("a", dict[str, int])],
        [("a", Annotated[dict[str, int], Meta(max_length=2)])],
        "a: maxProperties was absent, is 2",
    ),
    "keyword nobody knows": (
        [("a", int)],
        [("a", Annotated[int, Meta(extra_json_schema={"multipleOf": 2})])],
        "a: multipleOf was absent, is 2",
    ),
    "map values narrowed": (
        [("a", dict[str, float])],
        [("a", dict[str, int])],
        "a.*: number is not accepted as integer",
    ),
    "map keys narrowed": (
        [("a", dict[str, int])],
        [("a", dict[Short, int])],
        "a (keys): maxLength was absent, is 8",
    ),
}
ANSWERS = {
    "nothing": ([("a", str)], [("a", str)], None),
    "field added": ([("a", str)], [("a", str), ("b", str)], None),
    "field removed": ([("a", str), ("b", str)], [("a", str)], "b: field removed"),
    "optional removed": ([("a", OPTIONAL, UNSET)], [], "a: field removed"),
    "required made optional": ([("a", str)], [("a", OPTIONAL, UNSET)], "a: may be absent now"),
    "optional made required": ([("a", OPTIONAL, UNSET)], [("a", str)], None),
    "made nullable": ([("a", str)], [("a", str | None)], "a: null is not accepted as string"),
    "choice added": ([("a", Literal["x"])], [("a", Literal["x", "y"])], "a: 'y' is not accepted"),
    "choice removed": ([("a", Literal["x", "y"])], [("a", Literal["x"])], None),
    "range widened": (
        [("a", Count)],
        [("a", Annotated[int, Meta(ge=0, le=11)])],
        "a: maximum was 10, is 11",
    ),
}


@pytest.mark.parametrize(("old", "new", "reason"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_may_only_be_widened(old: Any, new: Any, reason: str | None) -> None:
    """What an old caller sends is still understood, or the first thing that is not is named."""
    found = refusals(struct(Strict, *old), struct(Strict, *new))
    assert (found[0].startswith(reason) and len(found) == 1) if reason else not found


@pytest.mark.parametrize(("old", "new", "reason"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_may_only_be_narrowed(old: Any, new: Any, reason: str | None) -> None:
    """An old caller still finds what it was told in a new answer."""
    found = refusals(struct(Open, *new), struct(Open, *old), answer=True)
    assert found == ([reason] if reason else [])


def test_an_array_like_message_grows_only_at_its_end() -> None:
    """A place appended with a default is fine in both directions, a lost one is not."""
    short = schema(msgspec.defstruct("Row", [("a", int)], array_like=True))
    long = schema(msgspec.defstruct("Row", [("a", int), ("b", int, 0)], array_like=True))
    assert not refusals(short, long)
    assert not refusals(long, short, answer=True)
    assert refusals(long, short) == ["value: has lost its last place"]
    assert refusals(short, long, answer=True) == ["value: has lost its last place"]


def mutated(**changes: Any) -> list[Change]:
    """The orchestrator's description against itself with some paths `a/b/c` set or removed."""
    old = msgspec.to_builtins(describe("orchestrator"))
    new = copy.deepcopy(old)
    for path, value in changes.items():
        *parents, last = path.split("/")
        place = new
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return compare(old, new)


BREAKING = {
    "method removed": {"methods/models": None},
    "declared error removed": {"methods/infer/errors": ["INTERNAL"]},
    "error removed": {"errors/OVERLOADED": None},
    "error renumbered": {"errors/OVERLOADED/code": 999},
    "error no longer retryable": {"errors/OVERLOADED/retryable": False},
    "no longer idempotent": {"methods/infer/idempotent": False},
    "no longer streaming": {"methods/infer/streaming": False},
    "limit lowered": {"limits/frame_bytes_max": 1},
}
HARMLESS = {
    "method added": {"methods/new": {}},
    "error added": {"errors/NEW": {"code": 999, "meaning": "", "retryable": False}},
    "meaning reworded": {"errors/OVERLOADED/meaning": "too much"},
    "budget changed": {"methods/infer/budget/p99_ms": 1},
    "limit raised": {"limits/frame_bytes_max": 2**30},
    "limit added": {"limits/other_max": 1},
}


@pytest.mark.parametrize("changes", BREAKING.values(), ids=BREAKING)
def test_a_breaking_change_needs_a_grown_protocol(changes: dict[str, Any]) -> None:
    """It is found, refused under the same protocol version and allowed under the next."""
    found = mutated(**changes)
    assert any(change.breaking for change in found)
    assert not is_allowed(found, 1, 1)
    assert is_allowed(found, 1, 2)


@pytest.mark.parametrize("changes", HARMLESS.values(), ids=HARMLESS)
def test_a_harmless_change_passes(changes: dict[str, Any]) -> None:
    """It is allowed without a new protocol version."""
    assert is_allowed(mutated(**changes), 1, 1)


def test_the_protocol_version_never_shrinks() -> None:
    """Even an unchanged contract may not announce an older protocol."""
    assert not is_allowed([], 2, 1)


@pytest.mark.parametrize("service", SERVICES)
def test_the_contracts_keep_what_was_released(service: str) -> None:
    """Today's rows break nothing that was released, or the protocol version has grown."""
    released = msgspec.json.decode((ROOT / RELEASED / f"{service}.json").read_bytes())
    current = msgspec.to_builtins(describe(service))
    changes = compare(released, current)
    assert is_allowed(changes, released["protocol_version"], current["protocol_version"]), changes


def test_old_documents_are_still_read() -> None:
    """Manifests, view headers and policies of the release still decode."""
    released = msgspec.json.decode((ROOT / RELEASED / "documents.json").read_bytes())
    assert not [
        change for change in compare_documents(released, document_schemas()) if change.breaking
    ]


def test_a_document_that_lost_a_field_is_found() -> None:
    """A manifest that no longer knows a field refuses old packs: breaking."""
    current = copy.deepcopy(document_schemas())
    del current["manifest"]["$defs"]["Manifest"]["properties"]["weights"]
    assert Change("manifest", "weights: field removed", True) in compare_documents(
        document_schemas(), current
    )

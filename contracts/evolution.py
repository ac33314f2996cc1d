"""What changed between two descriptions of a service, and which changes break a peer. Pure.

A description is what `describe` answers, as builtin values. The rule: whatever a caller of the
released contract may send must still be understood, and whatever it may receive must still be
what it was told. A breaking change needs a grown `protocol_version`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contracts.schema_compare import refusals

Described = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; `where` is `method.request`, `error NAME`, `limit NAME` or a document."""

    where: str
    what: str
    breaking: bool


def compare(released: Described, current: Described) -> list[Change]:
    """Every change from one description of a service to the next, breaking ones first."""
    changes = [
        *_methods(released["methods"], current["methods"]),
        *_errors(released["errors"], current["errors"]),
        *_limits(released["limits"], current["limits"]),
    ]
    return sorted(changes, key=lambda change: not change.breaking)


def compare_documents(released: Described, current: Described) -> list[Change]:
    """Changes of the files that users keep: the new mesh reads every old one."""
    return [
        *(Change(name, "document removed", True) for name in released if name not in current),
        *(Change(name, "document added", False) for name in current if name not in released),
        *(
            Change(name, reason, True)
            for name in released
            if name in current
            for reason in refusals(released[name], current[name])
        ),
    ]


def is_allowed(changes: list[Change], released_protocol: int, current_protocol: int) -> bool:
    """Breaking changes are allowed only under a grown protocol version, and it never shrinks."""
    if current_protocol < released_protocol:
        return False
    return current_protocol > released_protocol or not any(change.breaking for change in changes)


def _methods(released: Described, current: Described) -> Iterator[Change]:
    for name, row in released.items():
        if name not in current:
            yield Change(name, "method removed", True)
        else:
            yield from _method(name, row, current[name])
    yield from (Change(name, "method added", False) for name in current if name not in released)


def _method(name: str, old: Described, new: Described) -> Iterator[Change]:
    for reason in refusals(old["request"], new["request"]):
        yield Change(f"{name}.request", reason, True)
    for part in ("response", "item"):
        if part in old and part in new:
            for reason in refusals(new[part], old[part], answer=True):
                yield Change(f"{name}.{part}", reason, True)
    for error in old["errors"]:
        if error not in new["errors"]:
            yield Change(name, f"error {error} removed", True)
    for error in new["errors"]:
        if error not in old["errors"]:
            yield Change(name, f"error {error} added", False)
    for promise in ("idempotent", "streaming"):
        if old[promise] != new[promise]:
            yield Change(name, f"{promise} was {old[promise]}, is {new[promise]}", old[promise])
    for part, value in old["budget"].items():
        if new["budget"][part] != value:
            yield Change(name, f"{part} was {value}, is {new['budget'][part]}", False)


def _errors(released: Described, current: Described) -> Iterator[Change]:
    for name, row in released.items():
        if name not in current:
            yield Change(f"error {name}", "removed", True)
            continue
        for part, breaking in (("code", True), ("retryable", True), ("meaning", False)):
            if row[part] != current[name][part]:
                what = f"{part} was {row[part]}, is {current[name][part]}"
                yield Change(f"error {name}", what, breaking)
    for name in current:
        if name not in released:
            yield Change(f"error {name}", "added", False)


def _limits(released: Described, current: Described) -> Iterator[Change]:
    for name, value in released.items():
        new = current.get(name)
        if new is None:
            yield Change(f"limit {name}", "removed", False)
        elif new != value:
            lowered = name.endswith("_max") and new < value
            yield Change(f"limit {name}", f"was {value}, is {new}", lowered)

"""`contracts show | check | verify`: the page to sign, what changed, what a live service keeps."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from cyclopts import App

from contracts.description import describe, document_schemas
from contracts.evolution import Change, compare, compare_documents, is_allowed
from contracts.methods import METHODS, SERVICES
from mortise.addresses import socket_path
from mortise.cli.conformance import verify as verify_socket
from mortise.cli.contract_page import page
from mortise.cli.contract_text import show_page
from mortise.cli.failures import CommandError, UsageError
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import print_json, print_line, print_table
from mortise.launcher import tree

app = App(name="contracts", help="The contracts of every socket.")


@app.command
def show(service: str | None = None, /, *, options: Options = DEFAULTS) -> None:
    """The whole contract on one page: SLAs, fields and errors, budgets and limits.

    Args:
        service: only this one
    """
    if service is not None and service not in METHODS:
        raise UsageError(f"no service {service!r}; there are {', '.join(SERVICES)}")
    content = page(SERVICES if service is None else (service,))
    if options.json:
        print_json(content)
    else:
        show_page(content)


@app.command
def check(*, options: Options = DEFAULTS) -> int:
    """Compare with the released schemas; fails on a breaking change without a new protocol."""
    rows: list[dict[str, Any]] = []
    is_good = True
    for name in (*SERVICES, "documents"):
        changes, is_kept = _since_release(name)
        is_good = is_good and is_kept
        rows += [{"service": name, **asdict(change)} for change in changes]
    if options.json:
        print_json({"allowed": is_good, "changes": rows})
    else:
        columns = ("service", "where", "what", "breaking")
        print_table(columns, [tuple(row.values()) for row in rows])
        print_line(f"{len(rows)} changes since the release, {'allowed' if is_good else 'BREAKING'}")
    return 0 if is_good else 1


@app.command
def verify(*, socket: Path | None = None, options: Options = DEFAULTS) -> int:
    """Run the conformance suite against live services.

    Args:
        socket: the socket of one service; default: every service of the home
    """
    paths = (
        [socket_path(options.path, name) for name in SERVICES] if socket is None else [str(socket)]
    )
    rows = [
        {"socket": Path(path).name, "check": one.name, "passed": one.passed, "reason": one.reason}
        for path in paths
        for one in verify_socket(path)
    ]
    failed = sum(not row["passed"] for row in rows)
    if options.json:
        print_json({"passed": failed == 0, "checks": rows})
    else:
        columns = ("socket", "check", "passed", "reason")
        print_table(columns, [tuple(row.values()) for row in rows])
        print_line(f"{len(rows) - failed} of {len(rows)} checks passed")
    return 1 if failed else 0


def _since_release(name: str) -> tuple[list[Change], bool]:
    """What changed in a service's contract or in the documents, and whether it may."""
    released = _released(name)
    if name == "documents":
        changes = compare_documents(released, document_schemas())
        return changes, not any(change.breaking for change in changes)
    current = msgspec.to_builtins(describe(name))
    changes = compare(released, current)
    return changes, is_allowed(changes, released["protocol_version"], current["protocol_version"])


def _released(name: str) -> dict[str, Any]:
    path = tree() / "contracts/released" / f"{name}.json"
    try:
        released: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise CommandError("HOME_INVALID", f"{path}: {error.strerror}") from error
    return released

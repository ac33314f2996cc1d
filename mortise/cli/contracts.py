"""`contracts show | sign | check | verify`: the page, its sign-offs, what changed, what is kept."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from contracts.description import describe, document_schemas
from contracts.evolution import Change, compare, compare_documents, is_allowed
from contracts.methods import METHODS, SERVICES
from contracts.page import page
from mortise.addresses import SETTINGS, socket_path
from mortise.cli.conformance import verify as verify_socket
from mortise.cli.contract_parts import show_models, show_view
from mortise.cli.contract_text import show_page, show_sign_offs
from mortise.cli.failures import CommandError, UsageError
from mortise.cli.options import DEFAULTS, Options, author_name
from mortise.cli.output import print_json, print_line, print_table
from mortise.launcher import tree

app = App(name="contracts", help="The contracts of every socket.")


@app.command
def show(
    subject: str | None = None,
    /,
    *,
    pack: Annotated[str | None, Parameter(help="As it will be with this staged pack.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """The whole contract of a running home on one page, as its owners sign it.

    With a model: what it takes and gives. With a service, or where there is no home: what holds in
    every home.

    Args:
        subject: only this model of the home, or this service
    """
    if subject in METHODS:
        _show_built_in((subject,), options)
        return
    if not (pack or options.home or (options.path / SETTINGS).is_file()):
        if subject is not None:
            raise UsageError(
                f"no service {subject!r}; there are {', '.join(SERVICES)}; for a model name its"
                f" home: --home"
            )
        _show_built_in(SERVICES, options)
        return
    with options.client("control_plane") as client:
        answer = client.call("contracts", _of(pack)).to_builtin()
    if subject is not None:
        _show_model(subject, answer["page"]["technical"], options)
        return
    if options.json:
        print_json(answer)
        return
    show_page({"digest": answer["digest"], **answer["page"]}, "The contract of this home")
    of = "" if pack is None else f" --pack {pack}"
    show_sign_offs(answer, options.line(f"mortise contracts sign --role ROLE --author NAME{of}"))


@app.command
def sign(
    *,
    role: str,
    author: Annotated[str | None, Parameter(help="Default: your login name.")] = None,
    digest: Annotated[str | None, Parameter(help="Of the page that was read.")] = None,
    pack: Annotated[str | None, Parameter(help="Sign the page as it will be with it.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Sign the contract page off: a commit that names its digest, the role and the author.

    Args:
        role: in which role, as the sign_offs of an sla policy name it
    """
    with options.client("control_plane") as client:
        body = {**_of(pack), "role": role, "author": author or author_name()}
        body["digest"] = digest or client.call("contracts", _of(pack)).digest
        answer = client.call("contracts_sign", body)
    if options.json:
        print_json(answer)
    elif answer.changed:
        print_line(f"{role} signed {answer.digest}: policy {answer.version}, {answer.commit}")
    else:
        print_line(
            f"nothing changed: {role} signed {answer.digest} with policy {answer.version} already"
        )


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


def _of(pack: str | None) -> dict[str, Any]:
    return {} if pack is None else {"pack": pack}


def _show_model(model: str, technical: dict[str, Any], options: Options) -> None:
    contracts = technical["models"].get(model)
    if contracts is None:
        known = ", ".join(technical["models"]) or "none"
        raise CommandError(
            "MODEL_UNKNOWN",
            f"no model {model!r} has a version that requests reach (models: {known}), nor is it a"
            f" service ({', '.join(SERVICES)})",
            "mortise models",
        )
    names = {one["view"] for one in contracts if "view" in one}
    views = {name: technical["views"][name] for name in sorted(names & technical["views"].keys())}
    if options.json:
        print_json({"model": model, "contracts": contracts, "views": views})
        return
    show_models({model: contracts})
    for name, view in views.items():
        show_view(name, view)


def _show_built_in(services: tuple[str, ...], options: Options) -> None:
    content = page(services)
    if options.json:
        print_json(content)
    else:
        show_page(content, "The contract of every home (a running home's has its models too)")


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

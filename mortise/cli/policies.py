"""`policies`, `apply`, `remove`, `commits`, `diff`, `verify`: what is in force, and how it came."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mortise.cli.arguments import STANDARD_INPUT, check_value, read_json
from mortise.cli.failures import UsageError
from mortise.cli.options import DEFAULTS, Options, author_name
from mortise.cli.output import json_text, print_json, print_line, print_table
from mortise.cli.patience import patiently
from mortise.cli.policy_faults import in_words_of_file
from mortise.errors import MortiseError
from mortise.result import Record


def policies(*, at: str | None = None, options: Options = DEFAULTS) -> None:
    """Every policy in force.

    Args:
        at: a policy version, or an instant (RFC 3339), instead of now
    """
    body = {} if at is None else {"at": int(at) if at.isdecimal() else at}
    with options.client("control_plane") as client:
        answer = client.call("policies", body)
    if options.json:
        print_json(answer)
        return
    print_line(f"policy {answer.version}, {answer.digest}")
    rows = [(policy.kind, policy.name, json_text(policy.spec)) for policy in answer.policies]
    print_table(("kind", "name", "spec"), rows)


def apply(
    file: str,
    /,
    *,
    reason: str = "apply",
    author: Annotated[str | None, Parameter(help="Default: your login name.")] = None,
    expected_version: Annotated[int | None, Parameter(help="Refuse if another is current.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Commit the policies of a file in one transaction; done once active everywhere.

    Args:
        file: TOML as policies.toml, or JSON ([{kind, name, spec}]); `-` reads JSON
    """
    body: dict[str, Any] = {
        "policies": read_policies(file),
        "author": author or author_name(),
        "reason": reason,
    }
    if expected_version is not None:
        body["expected_version"] = expected_version
    with options.client("control_plane") as client:
        try:
            answer = patiently(lambda: client.call("apply", body))
        except MortiseError as error:
            error.message = in_words_of_file(error.message, body["policies"])
            raise
    if options.json:
        print_json(answer)
        return
    if answer.get("changed", True):  # a control plane before this field always committed
        print_line(f"policy {answer.version} is active: {answer.commit}")
    else:
        print_line(f"nothing changed: policy {answer.version} has them already: {answer.commit}")
    _show_fenced(answer)


def remove(
    kind: str,
    name: str,
    /,
    *,
    reason: str = "remove",
    author: Annotated[str | None, Parameter(help="Default: your login name.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Take a policy out of force with a commit; done once active everywhere.

    Args:
        kind: the policy's kind, as `mortise policies` lists it: split, rule, limits, …
        name: the policy's name
    """
    body: dict[str, Any] = {
        "policies": [],
        "remove": [{"kind": kind, "name": name}],
        "author": author or author_name(),
        "reason": reason,
    }
    with options.client("control_plane") as client:
        answer = patiently(lambda: client.call("apply", body))
    if options.json:
        print_json(answer)
        return
    print_line(f"{kind} {name} is removed; policy {answer.version} is active: {answer.commit}")
    _show_fenced(answer)


def _show_fenced(answer: Record) -> None:
    for instance in answer.fenced:
        print_line(f"{instance} missed it and takes it before it serves")


def read_policies(file: str) -> list[dict[str, Any]]:
    """The policies of a file. Raises UsageError."""
    if file == STANDARD_INPUT or file.endswith(".json"):
        value = read_json(file if file == STANDARD_INPUT else f"@{file}", "the file")
    else:
        try:
            document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{file}: {error}") from error
        value = document.pop("policy", [])
        if document:
            others = ", ".join(document)
            beside = "holds more than [[policy]]:" if value else "has no [[policy]], only"
            raise UsageError(f"{file} {beside} {others}")
        check_value(value, "policy")
    if not value:
        raise UsageError(f"{file} has no [[policy]] (kind, name and [policy.spec])")
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UsageError(f"{file} holds no list of policies ([[policy]] kind, name, spec)")
    return value


def commits(*, after: int = 0, limit: int = 100, options: Options = DEFAULTS) -> None:
    """The log of commits, oldest first.

    Args:
        after: only those later than this policy version
        limit: at most so many
    """
    with options.client("control_plane") as client:
        answer = client.call("commits", {"after": after, "limit": limit})
    if options.json:
        print_json(answer)
        return
    columns = ("version", "at", "author", "uid", "reason", "changed", "commit")
    print_table(columns, [_commit_row(commit) for commit in answer.commits])
    if answer.more:
        after = answer.commits[-1].version
        print_line(options.line(f"more: mortise commits --after {after}"))


def diff(since: int, until: int, /, *, options: Options = DEFAULTS) -> None:
    """What changed between two policy versions.

    Args:
        since: the older version
        until: the newer version
    """
    with options.client("control_plane") as client:
        answer = client.call("diff", {"since": since, "until": until})
    if options.json:
        print_json(answer)
        return
    for difference in answer.differences:
        print_line(f"{difference.kind} {difference.name}")
        for sign, side in (("-", difference.before), ("+", difference.after)):
            if side is not None:
                print_line(f"  {sign} {json_text(side.spec)}")


def verify(*, options: Options = DEFAULTS) -> int:
    """Walk the hash chain of the commits from its beginning."""
    with options.client("control_plane") as client:
        answer = client.call("verify")
    if options.json:
        print_json(answer)
    elif answer.valid:
        print_line(f"{answer.commits} commits, unbroken to {answer.head}")
    else:
        print_line(f"broken at commit {answer.get('broken_at')}: {answer.get('reason')}")
    return 0 if answer.valid else 1


def _commit_row(commit: Record) -> tuple[Any, ...]:
    changed = [f"{policy.kind} {policy.name}" for policy in commit.changed]
    changed += [f"−{kind} {name}" for kind, name in commit.removed]
    if "signed" in commit:
        changed.append(f"sign-off {commit.signed.role} of {commit.signed.digest}")
    return (
        commit.version, commit.at, commit.author, commit.peer_uid, commit.reason, changed,
        commit.commit,
    )  # fmt: skip

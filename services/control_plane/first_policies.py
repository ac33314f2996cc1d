"""`policies.toml`: the policies that an empty control plane begins with.

Every message names the file, the policy and what is wrong with it.
"""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from contracts.policies import Policy
from shared.service import StartRefused

NAME = "policies.toml"


class FirstPoliciesError(StartRefused):
    """The file cannot be used; the message says what to change."""


def load(path: Path) -> list[Policy] | None:
    """The policies of a home's file; None where there is no file. Raises FirstPoliciesError."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise FirstPoliciesError(f"{NAME} cannot be read: {error}") from error


def parse(text: str) -> list[Policy]:
    """The policies of `[[policy]] kind, name` with `[policy.spec]`, in the file's order."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FirstPoliciesError(f"{NAME}: {error}") from error
    unknown = sorted(document.keys() - {"policy"})
    entries = document.get("policy", [])
    if unknown or not isinstance(entries, list):
        raise FirstPoliciesError(
            f"{NAME}: only [[policy]] tables are expected, received {unknown or 'one [policy]'}"
        )
    return [_policy(entry, number) for number, entry in enumerate(entries, start=1)]


def _policy(entry: Any, number: int) -> Policy:
    try:
        policy: Policy = msgspec.convert(entry, Policy)
    except msgspec.ValidationError as error:
        table = entry if isinstance(entry, dict) else {}
        kind, name = (table.get(key, "?") for key in ("kind", "name"))
        raise FirstPoliciesError(f"{NAME}: policy {number}, {kind} {name}: {error}") from error
    return policy

"""JSON on the command line: written out, `@file`, or `-` for standard input."""

import json
import sys
from pathlib import Path
from typing import Any

from mortise.cli.failures import UsageError

ARGUMENT_BYTES_MAX = 64 * 1024 * 1024
"""A JSON document is some four times as long as its frame, which may have 16 MiB."""


STANDARD_INPUT = "@-"
"""How `-` arrives here: the parser takes a bare `-` for the beginning of an option."""


def read_json(argument: str, name: str) -> Any:
    """The value that an argument gives. Raises UsageError naming the argument and the place."""
    text = _text(argument, name)
    if len(text) > ARGUMENT_BYTES_MAX:
        raise UsageError(f"{name} is {len(text)} characters long, at most {ARGUMENT_BYTES_MAX}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error


def read_text(argument: str, name: str) -> list[str]:
    """Texts: a JSON list or string, or else the argument itself as one text."""
    text = _text(argument, name)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return [text.rstrip("\n")]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return [value if isinstance(value, str) else text.rstrip("\n")]


def _text(argument: str, name: str) -> str:
    try:
        if argument == STANDARD_INPUT:
            return sys.stdin.read(ARGUMENT_BYTES_MAX + 1)
        if argument.startswith("@"):
            return Path(argument[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: cannot read {argument}: {error}") from error
    return argument

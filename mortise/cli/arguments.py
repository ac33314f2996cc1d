"""JSON on the command line: written out, `@file`, or `-` for standard input."""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from mortise.cli.failures import UsageError

ARGUMENT_BYTES_MAX = 64 * 1024 * 1024
"""A JSON document is some four times as long as its frame, which may have 16 MiB."""
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
"""What MessagePack can carry."""
NESTING_MAX = 100
"""Lists and maps inside one another; a request of the contract has eight."""
SHOWN_CHARACTERS_MAX = 40


STANDARD_INPUT = "@-"
"""How `-` arrives here: the parser takes a bare `-` for the beginning of an option."""


def read_json(argument: str, name: str) -> Any:
    """The value that an argument gives. Raises UsageError naming the argument and the place."""
    text = _text(argument, name)
    if len(text) > ARGUMENT_BYTES_MAX:
        raise UsageError(f"{name} is {len(text)} characters long, at most {ARGUMENT_BYTES_MAX}")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        reason = str(error).partition(";")[0]
        raise UsageError(f"{name} goes beyond what can be sent: {reason}") from error
    check_value(value, name)
    return value


def read_text(argument: str, name: str) -> list[str]:
    """Texts: a JSON list or string, or else the argument itself as one text."""
    text = _text(argument, name)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.rstrip("\n")
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        texts = value
    else:
        texts = [value if isinstance(value, str) else text.rstrip("\n")]
    check_value(texts, name)
    return texts


def check_value(value: Any, name: str, depth: int = 0) -> None:
    """Raises UsageError for what the wire cannot carry, naming the field and the limit."""
    if depth > NESTING_MAX:
        raise UsageError(f"{name} is nested too deeply: at most {NESTING_MAX} lists and maps")
    match value:
        case bool() | float() | None | datetime.datetime():
            return
        case int():
            if not INTEGER_MIN <= value <= INTEGER_MAX:
                raise UsageError(f"{name} is {_shown(value)}; an integer is −2⁶³ … 2⁶⁴−1")
        case str():
            check_text(value, name)
        case list():
            for at, item in enumerate(value):
                check_value(item, f"{name}[{at}]", depth + 1)
        case dict():
            for key, item in value.items():
                check_text(key, f"a key of {name}")
                check_value(item, f"{name}.{key}", depth + 1)
        case _:
            raise UsageError(f"{name} is a {type(value).__name__}, which cannot be sent")


def check_text(text: str, name: str) -> None:
    """Raises UsageError for text that is not Unicode: lone surrogates, undecodable bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = ord(text[error.start])
        # Python hands bytes 80 … FF that it cannot decode over as U+DC80 … U+DCFF.
        what = f"byte 0x{found - 0xDC00:02x}" if 0xDC80 <= found <= 0xDCFF else "lone surrogate"
        raise UsageError(
            f"{name} is not valid Unicode text: {what} (U+{found:04X}) at character {error.start}"
        ) from error


def check_arguments(arguments: list[str]) -> None:
    """Raises UsageError naming the first argument that is not UTF-8."""
    for at, argument in enumerate(arguments):
        option, _, rest = argument.partition("=")
        if argument.startswith("--") and rest:
            check_text(rest, option)
        before = arguments[at - 1] if at else ""
        check_text(argument, before if before.startswith("--") else f"argument {at + 1}")


def _shown(value: int) -> str:
    digits = str(value)
    shortened = f"{digits[:SHOWN_CHARACTERS_MAX]}… ({len(digits)} characters)"
    return digits if len(digits) <= SHOWN_CHARACTERS_MAX else shortened


def _text(argument: str, name: str) -> str:
    try:
        if argument == STANDARD_INPUT:
            return sys.stdin.read(ARGUMENT_BYTES_MAX + 1)
        if argument.startswith("@"):
            return Path(argument[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:  # ValueError: a NUL in the name
        raise UsageError(f"{name}: cannot read {argument}: {error}") from error
    return argument

"""The text of `mortise/generated.py`: the SDK's method table and error classes. Pure.

The SDK imports nothing of ours, so what it must know is written out for it.
"""

from collections.abc import Iterator

from contracts import limits
from contracts.errors import ERRORS, ErrorRow
from contracts.inference import InferenceResponse
from contracts.methods import METHODS, Method

_HEAD = '''"""Generated from contracts/ by `python -m contracts.generate`; do not edit.

The methods of every socket, the error vocabulary as exceptions, and the limits a client must know.
"""

from typing import NamedTuple

from mortise.errors import MortiseError


class Method(NamedTuple):
    """What a client must know of a method."""

    timeout_ms: int
    idempotent: bool
    streaming: bool

'''


def class_name(error: str) -> str:
    """INVALID_REQUEST → InvalidRequest."""
    return error.title().replace("_", "")


def sdk_module() -> str:
    """The module's text, formatted as ruff would."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield f"PROTOCOL_VERSION = {limits.PROTOCOL_VERSION}"
    for name in ("frame_bytes_max", "in_flight_per_connection_max", "socket_path_bytes_max"):
        yield f"{name.upper()} = {getattr(limits, name)}"
    yield "INFER_FIELDS = ("
    yield from (f'    "{name}",' for name in InferenceResponse.__struct_fields__)
    yield ")"
    yield '"""Every field that an `infer` answer may have."""'
    yield ""
    yield "METHODS: dict[str, dict[str, Method]] = {"
    for service, rows in METHODS.items():
        yield f'    "{service}": {{'
        yield from (f'        "{name}": {_method(row)},' for name, row in rows.items())
        yield "    },"
    yield "}"
    for row in ERRORS.values():
        yield from _error(row)
    yield ""
    yield ""
    yield "ERRORS: dict[str, type[MortiseError]] = {"
    yield from (f'    "{name}": {class_name(name)},' for name in ERRORS)
    yield "}"


def _method(row: Method) -> str:
    return f"Method({row.budget.timeout_ms}, {row.idempotent}, {row.item is not None})"


def _error(row: ErrorRow) -> Iterator[str]:
    yield ""
    yield ""
    yield f"class {class_name(row.name)}(MortiseError):"
    yield f'    """{row.meaning[0].upper()}{row.meaning[1:]}."""'
    yield ""
    yield f"    code = {row.code}"
    yield f'    name = "{row.name}"'
    yield f"    retryable = {row.retryable}"

"""Structured logs: one JSON object a line, whatever text is in it; request records carry their ids.

`get` works unconfigured (records go to stderr). `configure` sends them to a file through a writer
thread; that part is in `shared/log_files.py`.
"""

import re
import sys
from collections.abc import Callable, Iterable, MutableMapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

REQUEST_IDS = ("trace_id", "request_id", "tenant_id", "model_version")
NONE = "-"
"""An id that the request does not have yet, such as a version before routing."""
text_characters_max = 8_192
"""Of one value; the rest is cut."""
record_bytes_max = 64 * 1024
SECRETS = frozenset({"password", "secret", "token", "authorization", "api_key"})
OWN = frozenset({"at", "level", "logger", "service", "instance"})
"""Keys that a caller cannot set: they tell who writes the record, not whom it is about."""
# Valid JSON may hold these, but a terminal obeys C1 and some readers break lines at them: DEL,
# U+0080 … U+009F, U+2028 and U+2029.
_CONTROL = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]")

Event = MutableMapping[str, Any]
Sink = Callable[[bytes], None]


def _to_stderr(line: bytes) -> None:
    sys.stderr.write(line.decode(errors="backslashreplace"))


class _Output:
    """Where records go now; replaced by `direct`."""

    sink: Sink = staticmethod(_to_stderr)
    identity: dict[str, str] = {}  # noqa: RUF012 — replaced whole, never changed


def direct(sink: Sink, *, service: str, instance: str) -> None:
    """Send every record of this process to `sink`, each with its service and instance."""
    _Output.sink = sink
    _Output.identity = {"service": service, "instance": instance}


def undirect() -> None:
    """Back to stderr."""
    _Output.sink = _to_stderr
    _Output.identity = {}


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(match.group().decode())


def _plain(value: object) -> str:
    return repr(value)[:text_characters_max]


def encode(record: dict[str, Any]) -> bytes:
    """One line without any control character but its final newline.

    A value that JSON does not know is written as its repr; a record over `record_bytes_max` keeps
    its first fields.
    """
    try:
        line = msgspec.json.encode(record, enc_hook=_plain)
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, OverflowError, RecursionError):
        line = msgspec.json.encode({str(k)[:128]: _safe(v) for k, v in record.items()})
    if len(line) > record_bytes_max:
        kept = {k: _safe(v)[:512] for k, v in list(record.items())[:32]}
        line = msgspec.json.encode({**kept, "cut_bytes": len(line)})
    return _CONTROL.sub(_escape, line) + b"\n"


def _safe(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text[:text_characters_max].encode("utf-8", "backslashreplace").decode()


def _with_exception(event: Event) -> None:
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()
    if isinstance(error, BaseException):
        error = (type(error), error, error.__traceback__)
    if isinstance(error, tuple) and error[0] is not None:
        parts = cast("tuple[type[BaseException], BaseException, TracebackType | None]", error)
        event["exception"] = structlog.tracebacks.ExceptionDictTransformer(
            show_locals=False, max_frames=20
        )(parts)


def check_request(record: Event) -> None:
    """A record of a request names all `REQUEST_IDS`: a missing one is a programmer's error."""
    if record.get("kind") == "request" or "request_id" in record:
        missing = [name for name in REQUEST_IDS if not record.get(name)]
        assert not missing, f"a request record without {', '.join(missing)}: {record.get('event')}"


def _compose(logger: Any, method: str, event: Event) -> str | bytes:
    check_request(event)
    _with_exception(event)
    name = event.pop("logger", "")
    record: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="microseconds"),
        "level": method,
        "logger": name,
        **_Output.identity,
        "event": event.pop("event", ""),
    }
    for key, value in event.items():
        if key in SECRETS:
            record[key] = "[redacted]"
        elif key in OWN:
            record[f"{key}_"] = value
        elif isinstance(value, str) and len(value) > text_characters_max:
            record[key] = value[:text_characters_max]
        else:
            record[key] = value
    return encode(record)


class _Printer:
    """structlog's innermost logger: hands the finished line to the sink."""

    def __getattr__(self, name: str) -> Callable[[bytes], None]:
        return _Output.sink


_PROCESSORS: Iterable[Any] = [structlog.contextvars.merge_contextvars, _compose]
_LEVEL_INFO = 20


def get(name: str) -> FilteringBoundLogger:
    """The logger of one module: `log = logs.get("services.orchestrator")`."""
    return cast(
        "FilteringBoundLogger",
        structlog.wrap_logger(
            _Printer(),
            processors=_PROCESSORS,
            wrapper_class=structlog.make_filtering_bound_logger(_LEVEL_INFO),
        ).bind(logger=name),
    )


def request(
    log: FilteringBoundLogger,
    *,
    trace_id: str,
    request_id: str,
    tenant_id: str,
    model_version: str,
) -> FilteringBoundLogger:
    """A logger whose every record carries the request's ids; an empty one is an AssertionError.

    Pass `NONE` for what the request does not have yet.
    """
    ids = {
        "trace_id": trace_id,
        "request_id": request_id,
        "tenant_id": tenant_id,
        "model_version": model_version,
    }
    check_request({"kind": "request", "event": "bind", **ids})
    return log.bind(kind="request", **ids)

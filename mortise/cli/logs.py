"""`logs`: the records of all processes of a home, in the order of time."""

import heapq
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from mortise.cli.failures import CommandError, UsageError
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import json_text, print_line, printable
from mortise.generated import METHODS

LINES_DEFAULT = 200
POLL_S = 0.2
"""Between two looks at the files while following."""
KNOWN = (*METHODS, "supervisor")
"""Who writes records."""
LEVELS = ("debug", "info", "warning", "error", "critical")
Level = Literal["debug", "info", "warning", "error", "critical"]
Keeps = Callable[[dict[str, Any]], bool]
_OWN = ("at", "level", "service", "instance", "logger", "event")
_NONE = "-"
"""An id that the record does not have."""


def logs(
    *,
    trace: Annotated[str | None, Parameter(help="Only the records of this trace id.")] = None,
    service: Annotated[str | None, Parameter(help="Only this one's, or `supervisor`.")] = None,
    level: Annotated[Level, Parameter(help="Only from this level on.")] = "debug",
    lines: Annotated[int, Parameter(help="At most so many, the newest.")] = LINES_DEFAULT,
    follow: Annotated[bool, Parameter(negative="", help="Go on until Ctrl-C.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """Show the log records of all processes, oldest first."""
    folder = options.path / ".mortise/log"
    if service is not None and service not in KNOWN:
        raise UsageError(f"no process {service!r}; there are {', '.join(KNOWN)}")
    wanted = keeps(trace, service, level)
    try:
        if not os.path.isdir(folder):
            os.listdir(options.path)  # a folder that may not be looked into has no `isdir`
            options.check_home()
            raise CommandError("HOME_INVALID", f"no logs at {folder}", "mortise start --detach")
        places = {path: path.stat().st_size for path in _files(folder)}
        records = filter(wanted, merged(folder))
        newest = sorted(deque(records, maxlen=max(0, lines)), key=_instant)
        for record in newest:
            _show(record, options)
        if trace is not None and not newest and lines > 0 and not follow:
            print(printable(_nothing_of(trace, service, level)), file=sys.stderr)
        while follow:
            for record in sorted(filter(wanted, _appended(folder, places)), key=_instant):
                _show(record, options)
            time.sleep(POLL_S)
    except FileNotFoundError:
        options.check_home()
        raise
    except PermissionError as error:
        raise CommandError(
            "HOME_INVALID",
            f"{error.filename or folder} cannot be read: {error.strerror}, as uid {os.getuid()}",
            "read the logs as the owner of the home",
        ) from error


def keeps(trace: str | None, service: str | None, level: Level) -> Keeps:
    """Whether a record is wanted; a level that is not known counts as the highest."""
    severe = LEVELS[LEVELS.index(level) :]

    def is_wanted(record: dict[str, Any]) -> bool:
        own = record.get("level")
        return (
            trace in (None, record.get("trace_id"))
            and service in (None, record.get("service"))
            and (own in severe or own not in LEVELS)
        )

    return is_wanted


def merged(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of every file in the folder, rotated ones included, by their instant.

    Two processes that append to one file may be a few records out of order.
    """
    return heapq.merge(*(_records(path) for path in _files(folder)), key=_instant)


def readable(record: dict[str, Any]) -> str:
    """One record for people: instant, level, instance, event, then the rest as key=value; lists
    and maps as JSON, and no id that the record does not have."""
    rest = " ".join(
        f"{key}={value if isinstance(value, str) else json_text(value)}"
        for key, value in record.items()
        if key not in _OWN and value != _NONE
    )
    who = record.get("instance") or record.get("logger", "")
    level, event = record.get("level", ""), record.get("event", "")
    return f"{record.get('at', '')} {level:<7} {who} {event} {rest}".rstrip()


def _nothing_of(trace: str, service: str | None, level: Level) -> str:
    """Why a trace may have no record: a success is recorded once in so many."""
    among = "" if service is None else f" of {service}"
    among += "" if level == "debug" else f" from level {level} on"
    return (
        f"no record{among} has the trace id {trace}; successful answers are sampled"
        " (1 in access_sample_of, 1,000): mortise trace has all of them"
    )


def _show(record: dict[str, Any], options: Options) -> None:
    print_line(json_text(record) if options.json else readable(record))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.jsonl*") if path.suffix != ".lock"]


def _instant(record: dict[str, Any]) -> str:
    return str(record.get("at", ""))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of one file; one that is being written has no end yet and is left."""
    with path.open("rb") as lines:
        for line in lines:
            record = _record(line)
            if record is not None:
                yield record


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _appended(folder: Path, places: dict[Path, int]) -> Iterator[dict[str, Any]]:
    """The whole lines since the last look; `places` says up to where each file was read. A file
    that became shorter was rotated, and is new."""
    for path in folder.glob("*.jsonl"):
        with path.open("rb") as lines:
            begin = places.get(path, 0)
            lines.seek(begin if begin <= os.fstat(lines.fileno()).st_size else 0)
            while (line := lines.readline()).endswith(b"\n"):
                places[path] = lines.tell()
                record = _record(line)
                if record is not None:
                    yield record

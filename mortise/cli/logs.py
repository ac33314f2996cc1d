"""`logs`: the records of all processes of a home, in the order of time."""

import heapq
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mortise.cli.failures import CommandError
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import json_text, print_line

LINES_DEFAULT = 200
_OWN = ("at", "level", "service", "instance", "logger", "event")


def logs(
    *,
    trace: Annotated[str | None, Parameter(help="Only the records of this trace id.")] = None,
    lines: Annotated[int, Parameter(help="At most so many, the newest.")] = LINES_DEFAULT,
    options: Options = DEFAULTS,
) -> None:
    """Show the log records of all processes, oldest first."""
    folder = options.path / ".mortise/log"
    if not folder.is_dir():
        raise CommandError("HOME_INVALID", f"no logs at {folder}", "mortise start --detach")
    records = (record for record in merged(folder) if trace in (None, record.get("trace_id")))
    for record in sorted(deque(records, maxlen=lines), key=_instant):
        print_line(json_text(record) if options.json else readable(record))


def merged(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of every file in the folder, rotated ones included, by their instant.

    Two processes that append to one file may be a few records out of order.
    """
    files = [_records(path) for path in folder.glob("*.jsonl*") if path.suffix != ".lock"]
    return heapq.merge(*files, key=_instant)


def readable(record: dict[str, Any]) -> str:
    """One record for people: instant, level, instance, event, then the rest as key=value."""
    rest = " ".join(f"{key}={value}" for key, value in record.items() if key not in _OWN)
    who = record.get("instance") or record.get("logger", "")
    level, event = record.get("level", ""), record.get("event", "")
    return f"{record.get('at', '')} {level:<7} {who} {event} {rest}".rstrip()


def _instant(record: dict[str, Any]) -> str:
    return str(record.get("at", ""))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of one file; one that is being written has no end yet and is left."""
    with path.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record

"""What commands print: JSON for programs, tables for people, errors with their remedy."""

import base64
import datetime
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mortise.result import Record
from mortise.tensors import flat_list

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""C0, DEL, C1, and what some readers break lines at."""
_BEYOND_JSON = re.compile("[\x7f-\x9f\u2028\u2029]")
"""Those of them that JSON does not escape by itself."""
WIDTH_WITHOUT_TERMINAL = 10_000
"""Columns when standard output is a file or pipe: no cell is folded."""


class Page(Console):
    """A console that lets the command line decide what a reader who left means; rich's own ends
    the process with 1."""

    def on_broken_pipe(self) -> None:
        """Called inside the handler of the BrokenPipeError."""
        raise BrokenPipeError


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json_text(value, indent=2))


def plain(value: Any) -> Any:
    """JSON values: tensor data as flat lists, other bytes as base64, instants as RFC 3339."""
    if isinstance(value, Record):
        return plain(value.to_builtin())
    if isinstance(value, Mapping):
        if isinstance(value.get("data"), bytes) and "shape" in value:
            value = {**value, "data": flat_list(value)}
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    return value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON, by default on one line; readable, but with every control character escaped."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    return _BEYOND_JSON.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def print_line(text: str = "") -> None:
    """One line for people."""
    print(printable(text))


def printable(text: str) -> str:
    """The text on one line, control characters written out: what a peer sent can neither forge a
    line nor steer a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[Any]], title: str = "") -> None:
    """A table for people; absent values are empty, and no header where no column has a name."""
    names = list(columns)
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    table.show_header = any(names)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(printable(cell(value))) for value in row))
    console = Page(highlight=False)
    if not console.is_terminal:
        console = Page(highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    return str(value)


def progress(text: str) -> None:
    """A line of progress on standard error, where a person looks."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def print_failure(name: str, message: str, remedy: str, *, is_json: bool, **more: Any) -> None:
    """An error on standard error: its name, what happened, and what to do."""
    if is_json:
        fields = {"name": name, "message": message, "remedy": remedy, **more}
        print(json_text({"error": fields}), file=sys.stderr)
        return
    print(printable(f"{name}: {message}"), file=sys.stderr)
    if remedy:
        print(f"  → {remedy}", file=sys.stderr)

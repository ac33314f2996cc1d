"""What commands print: JSON for programs, tables for people, errors with their remedy."""

import base64
import datetime
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mortise.result import Record
from mortise.tensors import flat_list

WIDTH_WITHOUT_TERMINAL = 160
"""Columns when standard output is a file or pipe: enough that no cell is cut."""


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(plain(value), ensure_ascii=False, indent=2))


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
    return value


def compact(value: Any) -> str:
    """JSON on one line, for a cell or a line."""
    return json.dumps(plain(value), ensure_ascii=False)


def console(*, stderr: bool = False) -> Console:
    """A console that never cuts a cell where nobody looks at a terminal."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    return made


def print_line(text: str = "") -> None:
    """A line for people; its text is not markup."""
    console().print(escape(text), soft_wrap=True)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[Any]], title: str = "") -> None:
    """A table for people; absent values are empty."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell(value)) for value in row))
    console().print(table)


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
        print(json.dumps({"error": plain(fields)}, ensure_ascii=False), file=sys.stderr)
        return
    print(f"{name}: {message}", file=sys.stderr)
    if remedy:
        print(f"  → {remedy}", file=sys.stderr)

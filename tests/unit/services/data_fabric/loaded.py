"""Loading the small home's view, and both of its paths, for tests."""

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import msgpack
import pyarrow as pa

from services.data_fabric import certification
from services.data_fabric.loading import LoadedView, Loader
from services.data_fabric.offline import features
from services.data_fabric.outcome import Evaluator, Outcome
from services.data_fabric.validation import RowDecoder
from services.data_fabric.zones import instant_us
from shared.clock import SYSTEM
from tests.unit.services.data_fabric.small_home import PATTERNS, SmallHome, request_table

few_rows = 500
"""Adversarial rows of a unit test's certificate; the product's number is forty times that."""


def load(home: SmallHome, text: str | None = None) -> LoadedView:
    """The home's view, loaded."""
    loader = Loader(home.path, PATTERNS, home.certificates, SYSTEM)
    return loader.load(text or (home.path / "features/trip.sql").read_text())


def encode(rows: list[dict[str, Any]]) -> bytes:
    """Rows as a client sends them."""
    return msgpack.packb(
        [
            {k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items()}
            for row in rows
        ]
    )


def online(view: LoadedView, rows: list[dict[str, Any]]) -> Outcome:
    """The outcome of the compiled path."""
    assert view.closure is not None, view.reason
    return Evaluator(view.header, RowDecoder(view.header)).evaluate(encode(rows), view.closure)


def offline(home: SmallHome, text: str, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The engine's features of the same rows; instants in integer microseconds."""
    table = features(text, home.sources, request_table(rows))
    columns = []
    for field in table.schema:
        column = table[field.name]
        is_instant = pa.types.is_timestamp(field.type)
        columns.append((column.cast(pa.int64()) if is_instant else column).to_pylist())
    return list(zip(*columns, strict=True))


def row_of(view: LoadedView, row: dict[str, Any]) -> SimpleNamespace:
    """A decoded row as the closure takes it."""
    values = (row.get(name) for name in view.header.request)
    return SimpleNamespace(
        **{
            f"c{at}": instant_us(value) if isinstance(value, datetime) else value
            for at, value in enumerate(values)
        }
    )


def with_few_rows(monkeypatch: Any) -> None:
    """Make certificates of unit tests small."""
    monkeypatch.setattr(certification, "adversarial_rows", few_rows)

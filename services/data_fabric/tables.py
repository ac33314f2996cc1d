"""Feature rows in the forms that callers outside the mesh ask for: maps, or an Arrow stream."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from contracts.features import ViewHeader
from contracts.types import Scalar
from services.data_fabric.sources import ARROW_TYPES

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def row_maps(header: ViewHeader, rows: Sequence[Sequence[Any]]) -> list[dict[str, Scalar]]:
    """One map a row; an instant is RFC 3339 text in UTC."""
    names = list(header.fields)
    instants = [name for name, contract in header.fields.items() if contract.dtype == "timestamp"]
    maps = [dict(zip(names, row, strict=False)) for row in rows]
    for name in instants:
        for one in maps:
            if one[name] is not None:
                one[name] = rfc_3339(one[name])
    return maps


def rfc_3339(at_us: int) -> str:
    """An instant of integer microseconds as text in UTC."""
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat()


def arrow_stream(header: ViewHeader, rows: Sequence[Sequence[Any]]) -> bytes:
    """An Arrow IPC stream with one record batch, columns in the header's order."""
    schema = pa.schema([(name, ARROW_TYPES[one.dtype]) for name, one in header.fields.items()])
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, type_) for column, type_ in zip(columns, schema.types, strict=False)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())

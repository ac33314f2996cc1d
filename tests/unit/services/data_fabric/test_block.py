"""Encoded blocks decode to what the contract of a FeatureBlock says."""

import math
import struct
from typing import Any

import msgspec
import pytest

from contracts.features import FeatureBlock, FieldContract, ViewHeader
from contracts.types import UNSET
from services.data_fabric.block import BlockEncoder

DIGEST = "sha256:" + "5" * 64
DTYPES = ("int64", "float64", "bool", "string", "timestamp")
CODES = {"INT64": "q", "FP64": "d", "BOOL": "?"}
HEADER = ViewHeader(
    name="v",
    version="1",
    entity="x",
    event_time="x",
    owner="owner",
    request={"x": FieldContract(dtype="timestamp", source="s")},
    fields={dtype: FieldContract(dtype=dtype, source="s") for dtype in DTYPES},  # type: ignore[arg-type]
)
ROWS: list[tuple[Any, ...]] = [
    (-(2**63), -0.0, True, "", 0),
    (2**63 - 1, math.inf, False, "🛫", -1),
    (None, None, None, None, None),
    (5, 0.1, None, "é", None),
]


def decoded(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows read back out of a block."""
    encoded = BlockEncoder(DIGEST, HEADER).encode([(*row, 99) for row in rows])
    block = msgspec.msgpack.decode(encoded, type=FeatureBlock)
    assert (block.view, block.rows) == (DIGEST, len(rows))
    columns = []
    for column in block.columns:
        values: Any = column.data
        if column.datatype != "BYTES":
            values = struct.unpack(f"<{len(rows)}{CODES[column.datatype]}", column.data)
            if column.validity is not UNSET:
                bits = int.from_bytes(column.validity, "little")
                values = [v if bits >> at & 1 else None for at, v in enumerate(values)]
        columns.append(values)
    return list(zip(*columns, strict=True)) if rows else []


@pytest.mark.parametrize("count", [0, 1, 2, 4, 9, 64, 4_096])
def test_rows_come_back_as_they_were(count: int) -> None:
    """Every dtype, with and without nulls, from no row to the longest request."""
    rows = [ROWS[at % 4] for at in range(count)]
    assert decoded(rows) == rows


@pytest.mark.parametrize("row", ROWS)
def test_a_single_row_has_its_own_quick_form(row: tuple[Any, ...]) -> None:
    """The form for one row says the same; signed zero is kept."""
    assert decoded([row]) == [row]
    assert str(decoded([row])[0][1]) == str(row[1])


def test_a_long_list_of_columns_has_a_longer_head() -> None:
    """Sixteen columns and more."""
    fields = {f"f{at}": FieldContract(dtype="int64", source="s") for at in range(40)}
    header = msgspec.structs.replace(HEADER, fields=fields)
    encoded = BlockEncoder(DIGEST, header).encode([tuple(range(40))])
    assert len(msgspec.msgpack.decode(encoded, type=FeatureBlock).columns) == 40

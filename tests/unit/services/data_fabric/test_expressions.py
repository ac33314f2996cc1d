"""Scalar SQL compiled to Python, against the engine, over values made to tell them apart."""

import itertools
import math
from typing import Any

import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from services.data_fabric.certificate import close, identical
from services.data_fabric.engine import Engine
from services.data_fabric.expressions import Emitter, Unsupported, Value, compile_scalar
from services.data_fabric.sources import ARROW_TYPES

TYPES = {
    "i": "int64", "j": "int64", "x": "float64", "y": "float64", "b": "bool", "c": "bool",
    "s": "string", "t": "timestamp", "z": "string",
}  # fmt: skip
POOLS: dict[str, tuple[Any, ...]] = {
    "i": (None, 0, 1, -1, 7, -7, 2**31, -(2**31), 2**53 + 1),
    "j": (None, 0, 3, -100, 2**40),
    "x": (None, 0.0, -0.0, 1.5, -1e300, 5e-324, math.inf, -math.inf, 0.1),
    "y": (None, 2.0, -3.25, 1e17),
    "b": (None, True, False),
    "c": (None, True, False),
    "s": (None, "", "a", "A", "é", "e\u0301", "日本", "🛫"),
    "t": (None, 0, -1, 1_330_473_600_000_000, 1_362_898_799_999_999, 1_362_898_800_000_000,
          1_383_458_400_000_000, 4_102_444_799_999_999, -2_208_988_800_000_000),
    "z": (None, "America/New_York", "Asia/Kathmandu"),
}  # fmt: skip
EXPRESSIONS = (
    "i + j", "i - 3", "j * 2", "-i", "x + i", "x * y", "x - y", "-x", "x / nullif(y, 0)",
    "CAST(i AS DOUBLE) / nullif(j, 0)", "x / 4e0", "i // 7", "i % 7", "(i + 1) // 60 % 24",
    "i = j", "i <> j", "i < j", "i <= x", "i > x", "x >= y", "s = 'a'", "s < 'é'", "b = c",
    "t < t - INTERVAL 1 DAY", "i = 9007199254740992e0",
    "b AND c", "b OR c", "NOT b", "b AND NOT c OR b", "i IS NULL", "NOT s IS NULL",
    "i IN (1, 7)", "s IN ('a', '日本')",
    "CASE WHEN b THEN i WHEN c THEN j END", "CASE WHEN i > 0 THEN 'p' ELSE s END",
    "CASE WHEN b THEN NULL ELSE x END",
    "coalesce(i, j, 5)", "coalesce(x, y)", "coalesce(s, '')", "nullif(i, 7)", "nullif(s, '')",
    "nullif(x, 0e0)", "CAST(b AS BIGINT)", "CAST(i AS DOUBLE)", "CAST(NULL AS BIGINT)",
    "CAST(s AS VARCHAR)", "TRUE", "NULL IS NULL",
    "epoch_us(t)", "t - INTERVAL '14' DAY", "t + INTERVAL 6 HOURS", "epoch_us(t) - i",
    "hour(timezone(z, t))", "minute(t AT TIME ZONE z)", "isodow(timezone(z, t))",
    "month(timezone('Europe/Berlin', t))", "year(timezone(z, t))", "hour(t)",
    "epoch_us(timezone(z, t)) - epoch_us(t)",
)  # fmt: skip


def compiled(expression: str) -> tuple[Any, Value]:
    """The function of the columns in order of TYPES, and the value it returns."""
    node = sqlglot.parse_one(expression, read="duckdb")
    emitter = Emitter()

    def column(found: exp.Column) -> Value:
        return Value(found.name, TYPES[found.name], True)

    value = compile_scalar(node, column, emitter)
    lines = "".join(f"    {line}\n" for line in emitter.lines)
    scope = dict(emitter.names)
    exec(f"def f({', '.join(TYPES)}):\n{lines}    return {value.code}", scope)
    return scope["f"], value


def rows_for(expression: str) -> list[dict[str, Any]]:
    """Every combination of the pools of the columns that the expression names."""
    node = sqlglot.parse_one(expression, read="duckdb")
    used = sorted({found.name for found in node.find_all(exp.Column)})
    empty = dict.fromkeys(TYPES)
    combinations = itertools.product(*(POOLS[name] for name in used))
    return [{**empty, **dict(zip(used, values, strict=True))} for values in combinations]


@pytest.fixture(scope="module")
def engine() -> Any:
    """One engine for the module."""
    opened = Engine()
    yield opened
    opened.close()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_python_equals_the_engine(engine: Engine, expression: str) -> None:
    """Nulls, signed zeros, infinities, extremes, Unicode, and the hours in which clocks change."""
    function, value = compiled(expression)
    rows = rows_for(expression)
    table = pa.table(
        {name: pa.array([r[name] for r in rows], ARROW_TYPES[TYPES[name]]) for name in TYPES}
    )
    engine.create_table("r", table)
    result = engine.query(f"SELECT {expression} AS found FROM r")["found"]
    if pa.types.is_timestamp(result.type):
        result = result.cast(pa.int64())
    same = close if value.dtype == "float64" else identical
    for row, expected in zip(rows, result.to_pylist(), strict=True):
        found = function(**row)
        assert same(found, expected), (row, found, expected)
        assert value.is_nullable or found is not None


@pytest.mark.parametrize(
    "expression",
    [
        "ln(x)", "floor(x)", "i / j", "x / y", "i // j", "i % 0", "x % 2e0", "0.5 * x", "upper(s)",
        "s || s", "s + 1", "i AND b", "t - t", "i = s", "coalesce(x, 0)", "CAST(x AS BIGINT)",
        "CAST(i AS VARCHAR)", "CASE i WHEN 1 THEN 2 END", "s LIKE 'a%'", "t - INTERVAL 1 MONTH",
        "i BETWEEN 1 AND 2", "b IS TRUE", "i IN (j)", "hour(i)", "timezone(z, i)", "abs(i)",
        "CASE WHEN i THEN 1 END", "CASE WHEN b THEN i ELSE x END",
    ],
)  # fmt: skip
def test_the_rest_is_outside_the_subset(expression: str) -> None:
    """What could raise or differ is not compiled; such a view runs on the engine."""
    with pytest.raises(Unsupported):
        compiled(expression)

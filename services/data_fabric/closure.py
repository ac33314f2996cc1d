"""The request's part of a view compiled to one Python function over the relations' indexes.

Invariant: the function is made of nothing but the statements that `expressions` emits for
whitelisted nodes, dictionary look-ups and bisections. Whether it equals the engine is not decided
here but by the certificate.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from contracts.features import FieldContract
from contracts.types import UNSET
from services.data_fabric.expressions import Emitter, Unsupported, Value, compile_scalar
from services.data_fabric.field_rules import INT64, bounds
from services.data_fabric.index_needs import IndexKey, index_key, shift_us
from services.data_fabric.lookups import Lookup, lookups_of
from services.data_fabric.online import NEVER, Index
from services.data_fabric.plan import Plan
from services.data_fabric.sql import REQUEST

Compute = Callable[[Any], tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class Closure:
    """`values(row)` is the tuple of the features in the header's order, then the newest event time
    used (NEVER without one). `checked(row)` is the same, or None when a feature breaks its
    contract. A row has an attribute `c<i>` for the i-th request column, instants in integer
    microseconds. Both may raise ArithmeticError."""

    values: Callable[[Any], tuple[Any, ...]]
    checked: Compute
    source: str


def compile_plan(plan: Plan, indexes: Mapping[IndexKey, Index]) -> Closure:
    """The closure of a plan. Raises Unsupported where the plan leaves the subset."""
    return _Compiler(plan, indexes).compile()


class _Compiler:
    """Emits the statements of one plan."""

    def __init__(self, plan: Plan, indexes: Mapping[IndexKey, Index]) -> None:
        self._plan = plan
        self._indexes = indexes
        self._emitter = Emitter()
        self._lookups = {
            step: {lookup.alias: lookup for lookup in lookups_of(plan.select(step))}
            for step in (*plan.steps, "")
        }
        self._found: dict[tuple[str, str], tuple[str, str]] = {}
        self._newest: dict[str, str] = {}
        self._positions: dict[tuple[str, str], str] = {}

    def compile(self) -> Closure:
        header = self._plan.view.header
        projections = {part.alias_or_name: part for part in self._plan.tree.expressions}
        features = {}
        for name, contract in header.fields.items():
            value = self._scalar("", projections[name].unalias())
            if value.dtype not in (contract.dtype, "null"):
                raise Unsupported(f"{name} is {value.dtype}, its contract says {contract.dtype}")
            features[name] = value
        values = ", ".join(value.code for value in features.values())
        checks = [
            check
            for name, value in features.items()
            if (check := self._check(header.fields[name], value))
        ]
        statements = "".join(f"    {line}\n" for line in self._emitter.lines)
        refusal = f"    if not ({' and '.join(checks)}):\n        return None\n" if checks else ""
        answer = f"    return ({values}, {self._newest_code()})\n"
        source = (
            f"def values(r):\n{statements}{answer}\ndef checked(r):\n{statements}{refusal}{answer}"
        )
        scope: dict[str, Any] = dict(self._emitter.names)
        exec(compile(source, f"<view {header.name}>", "exec"), scope)
        return Closure(values=scope["values"], checked=scope["checked"], source=source)

    def _scalar(self, step: str, node: exp.Expression) -> Value:
        return compile_scalar(node, lambda column: self._column(step, column), self._emitter)

    def _column(self, step: str, column: exp.Column) -> Value:
        above = self._plan.select(step).args["from_"].this
        if column.table != above.alias_or_name:
            return self._looked_up(step, self._lookups[step][column.table], column.name)
        if above.name == REQUEST:
            return self._request(column.name)
        for projection in self._plan.select(above.name).expressions:
            if projection.alias_or_name == column.name:
                return self._scalar(above.name, projection.unalias())
        raise Unsupported(f"{column.sql('duckdb')} is not a column of {above.name}")

    def _request(self, name: str) -> Value:
        contracts = self._plan.view.header.request
        contract = contracts[name]
        code = self._emitter.assign(f"r.c{list(contracts).index(name)}")
        return Value(code, contract.dtype, contract.missing == "null")

    def _looked_up(self, step: str, lookup: Lookup, column: str) -> Value:
        entry, position = self._find(step, lookup)
        index = self._indexes[index_key(lookup)]
        at = index.columns.index(column)
        if lookup.time is None:
            code = f"{entry}[{at}]"
        else:
            code = f"{entry}[{at + 1}][{position}]"
            if column in index.packed:
                code += f" if {position} else None"
        return Value(self._emitter.assign(code), index.dtypes[column], True)

    def _find(self, step: str, lookup: Lookup) -> tuple[str, str]:
        """The variables that hold the entry and, for an AS-OF look-up, the count of its times
        before the bound."""
        if (step, lookup.alias) in self._found:
            return self._found[step, lookup.alias]
        emitter, index = self._emitter, self._indexes[index_key(lookup)]
        keys = [self._scalar(step, other) for _, other in lookup.keys]
        for (column, _), key in zip(lookup.keys, keys, strict=True):
            if key.dtype != index.dtypes[column] or key.dtype == "float64":
                raise Unsupported(f"{lookup.relation}.{column} is looked up by a {key.dtype}")
        codes = ", ".join(key.code for key in keys)
        key_code = codes if len(keys) == 1 else f"({codes})"
        get = emitter.bind(index.entries.get, f"get_{index.relation}")
        entry = emitter.assign(f"{get}({key_code}, {emitter.bind(index.empty)})")
        position = self._position(step, lookup, entry) if lookup.time is not None else ""
        self._found[step, lookup.alias] = entry, position
        return entry, position

    def _position(self, step: str, lookup: Lookup, entry: str) -> str:
        assert lookup.bound is not None, "an AS-OF look-up has a bound"
        bound = self._scalar(step, lookup.bound)
        if bound.dtype != "timestamp" or bound.is_nullable:
            raise Unsupported(f"{lookup.alias}: the bound is no instant that is always there")
        bisect = self._emitter.bind(bisect_right if lookup.is_inclusive else bisect_left)
        within = self._within(step, lookup, entry)
        position = self._emitter.assign(f"{bisect}({entry}[0], {bound.code}{within}) - 1")
        if not within or entry not in self._newest:
            self._positions[entry, bound.code] = position
            self._newest[entry] = position
        return position

    def _within(self, step: str, lookup: Lookup, entry: str) -> str:
        """The limits of a bisection whose bound is a shift before one that is found already."""
        index, shift = self._indexes[index_key(lookup)], shift_us(lookup)
        if not shift or lookup.bound is None:
            return ""
        later = self._scalar(step, lookup.bound.this)
        position = self._positions.get((entry, later.code))
        if position is None:
            return ""
        hints = f"{entry}[{1 + len(index.columns) + index.shifts.index(shift)}]"
        return f", {hints}[{position}], {hints}[{position} + 1]"

    def _newest_code(self) -> str:
        """The newest time among what the look-ups found. A look-up with an earlier bound than
        another one of the same entry cannot have found a newer one."""
        found = [f"{entry}[0][{position}]" for entry, position in self._newest.items()]
        if len(found) > 1:
            return f"max({', '.join(found)})"
        return found[0] if found else str(NEVER)

    def _check(self, contract: FieldContract, value: Value) -> str:
        """The Python condition under which a feature keeps its contract; empty: it always does."""
        parts = []
        if contract.range is not UNSET:
            low, high = bounds(contract)
            parts.append(f"{low!r} <= {value.code} <= {high!r}")
        elif contract.dtype == "float64" and contract.missing == "reject":
            parts.append(f"{value.code} == {value.code}")  # NaN alone differs from itself
        elif contract.dtype == "int64":
            parts.append(f"{INT64[0]} <= {value.code} <= {INT64[1]}")
        if contract.values is not UNSET:
            allowed = self._emitter.bind(frozenset(contract.values))
            parts.append(f"{value.code} in {allowed}")
        if not value.is_nullable:
            return " and ".join(parts)
        if contract.missing == "reject":
            return " and ".join([f"{value.code} is not None", *parts])
        return f"({value.code} is None or {' and '.join(parts)})" if parts else ""

"""Which indexes a plan's look-ups need: of which relation, by which key and time, holding what."""

from dataclasses import dataclass

from sqlglot import exp

from services.data_fabric.expressions import Unsupported, interval_us
from services.data_fabric.lookups import Lookup, lookups_of
from services.data_fabric.plan import Plan

IndexKey = tuple[str, tuple[str, ...], str | None]


@dataclass(frozen=True, slots=True)
class Need:
    """Columns and shifts (microseconds) of an index."""

    columns: tuple[str, ...]
    shifts: tuple[int, ...]


def index_key(lookup: Lookup) -> IndexKey:
    """What tells one index from another."""
    return lookup.relation, tuple(column for column, _ in lookup.keys), lookup.time


def needed_indexes(plan: Plan) -> dict[IndexKey, Need]:
    """What a plan's look-ups need: for each index the columns read from it outside its join, and
    the shifts between its bounds."""
    columns: dict[IndexKey, set[str]] = {}
    shifts: dict[IndexKey, set[int]] = {}
    for step in (*plan.steps, ""):
        select = plan.select(step)
        for lookup in lookups_of(select):
            key = index_key(lookup)
            shifts.setdefault(key, set()).update(filter(None, [shift_us(lookup)]))
            columns.setdefault(key, set()).update(
                column.name
                for column in select.find_all(exp.Column)
                if column.table == lookup.alias and not column.find_ancestor(exp.Join)
            )
    return {key: Need(tuple(sorted(columns[key])), tuple(sorted(shifts[key]))) for key in columns}


def shift_us(lookup: Lookup) -> int:
    """By how much the bound of a look-up lies before an instant; 0 where it is no such bound."""
    if not isinstance(lookup.bound, exp.Sub):
        return 0
    try:
        return interval_us(lookup.bound.expression)
    except Unsupported:
        return 0

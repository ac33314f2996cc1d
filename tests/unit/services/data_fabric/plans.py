"""Plans of the small view, for tests that need no files."""

from services.data_fabric.plan import Plan, bind
from services.data_fabric.sql import parse
from tests.unit.services.data_fabric.small_home import VIEW

SCHEMAS = {
    "trips": {
        "started_at": "timestamp",
        "ended_at": "timestamp",
        "station": "string",
        "vehicle": "int64",
        "distance_km": "float64",
    },
    "stations": {"station": "string", "zone": "string", "opened": "int64"},
}


def plan_of(text: str = VIEW) -> Plan:
    """The plan of a view over the small home's columns."""
    return bind(parse(text), SCHEMAS)


def changed(old: str, new: str) -> str:
    """The small view with one place changed."""
    assert VIEW.count(old) >= 1, old
    return VIEW.replace(old, new, 1)


def line_of(text: str, part: str) -> int:
    """The line in which a part stands first, from 1."""
    return text.count("\n", 0, text.index(part)) + 1

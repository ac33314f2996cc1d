"""Models and feature views on the contract page, for people."""

from collections.abc import Mapping
from typing import Any

from mortise.cli.output import cell, print_line, print_table
from mortise.result import Record

Row = Mapping[str, Any] | Record

FIELD_COLUMNS = ("name", "dtype", "range or values", "missing", "zone", "decimals", "source")
_TENSORS = ("inputs", "outputs")


def show_models(models: Mapping[str, list[dict[str, Any]]]) -> None:
    """Each model's tensors with shapes and datatypes, and what else its contract says."""
    for name, contracts in models.items():
        for contract in contracts:
            print_line(f"model {name} ({contract['task']})")
            rows = [
                (part.removesuffix("s"), one["name"], one["datatype"], str(one["shape"]))
                for part in _TENSORS
                for one in contract[part]
            ]
            if rows:
                print_table(("", "name", "datatype", "shape"), rows)
            for key, value in contract.items():
                if key not in (*_TENSORS, "task") and value not in ([], ""):
                    print_line(f"  {key}: {exact(value)}")
            print_line()


def show_view(name: str, view: Mapping[str, Any]) -> None:
    """The document that a view's owners sign: each field with its rules."""
    print_line(f"view {name}: {view['description']}" if view["description"] else f"view {name}")
    print_line(
        f"owner {view['owner']}, entity {view['entity']}, event time {view['event_time']},"
        f" freshness {view['freshness_s']} s, drift window {view['window_s']} s"
    )
    for part, title in (("request", "request"), ("fields", "features")):
        rows = [(*field_row(key, one), one["description"]) for key, one in view[part].items()]
        print_table((*FIELD_COLUMNS, "description"), rows, title)
    print_line()


def field_row(name: str, field: Row) -> tuple[Any, ...]:
    """A field's name and rules, as FIELD_COLUMNS names them."""
    missing = field["missing"]
    if missing == "default":
        missing = f"default {field.get('default')}"
    return (
        name, field["dtype"], _limits(field), missing, field.get("zone"), field.get("decimals"),
        field["source"],
    )  # fmt: skip


def exact(value: Any) -> str:
    """A value with every digit: nobody signs a rounded promise."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {exact(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(exact, value))
    return cell(value) if isinstance(value, bool) else str(value)


def _limits(field: Row) -> str | None:
    """What a value may be, beyond its dtype."""
    if "range" in field:
        low, high = (int(end) if float(end).is_integer() else end for end in field["range"])
        return f"{low} … {high}"
    if "values" in field:
        return ", ".join(field["values"])
    if "characters_max" in field:
        return f"≤ {field['characters_max']} characters"
    return None

"""`sla`: what was promised of each model, and whether it was kept, over rolling windows."""

import datetime
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from mortise.cli.mesh import home_errors
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import print_json, print_line, print_table

EXIT_MISSED = 1
WindowName = Literal["5m", "1h", "24h", "30d"]


def sla(
    *,
    window: Annotated[
        WindowName | None, Parameter(help="Only this window. Default: all of them.")
    ] = None,
    options: Options = DEFAULTS,
) -> int:
    """What was promised and kept; exit code 1 when something was missed in a window shown.

    A window without requests misses nothing.
    """
    from supervisor import run

    with home_errors(options):
        found = run.sla(options.path)
    found["rows"] = [row for row in found["rows"] if window in (None, row["window"])]
    found["late"] = {name: hops for name, hops in found["late"].items() if window in (None, name)}
    if options.json:
        print_json(found)
    else:
        _show(found)
    return EXIT_MISSED if any(row["missed"] for row in found["rows"]) else 0


def _show(found: dict[str, Any]) -> None:
    columns = (
        "model", "window", "since (UTC)", "requests", "available", "promised", "budget left",
        "p50 ms", "p99 ms", "between", "promised", "fresh", "",
    )  # fmt: skip
    print_table(columns, [_row(row) for row in found["rows"]])
    _show_stages(found["rows"])
    late = [
        (window, *hop.split(" ", 1), count)
        for window, hops in found["late"].items()
        for hop, count in hops.items()
    ]
    if late:
        print_line()
        print_table(("window", "stage", "hop", "deadlines missed"), late)
    if not found["is_current"]:
        print_line("the orchestrator did not answer; its latest requests are not in these figures")


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    promises = {promise["name"]: promise for promise in row["promises"]}
    available, slow = promises["availability"], promises["p99"]
    fresh = promises.get("freshness")
    since = datetime.datetime.fromtimestamp(row["since_s"], datetime.UTC)
    return (
        row["model"],
        row["window"],
        f"{since:%Y-%m-%d %H:%M}",
        row["requests"],
        percent(available["value"]),
        percent(available["target"]),
        percent(row["budget_left"]),
        None if row["p50"] is None else row["p50"]["ms"],
        slow["value"],
        between(slow["bucket"]),
        slow["target"],
        None if fresh is None else percent(fresh["value"]),
        verdict(row),
    )


def _show_stages(rows: list[dict[str, Any]]) -> None:
    """The stages with a promise of their own, where they took time."""
    stages = [
        (row["model"], row["window"], promise["name"], promise["value"],
         between(promise["bucket"]), promise["target"], promise["kept"])
        for row in rows
        for promise in row["promises"]
        if promise["name"].endswith(" p95") and promise["kept"] is not None
    ]  # fmt: skip
    if stages:
        print_line()
        print_table(("model", "window", "stage", "ms", "between", "promised", "kept"), stages)


def verdict(row: dict[str, Any]) -> str:
    """Kept, or what was missed; and requests that count for another model."""
    if row["missed"]:
        text = f"missed: {', '.join(row['missed'])}"
    else:
        text = "kept" if row["requests"] else "no requests"
    return f"{text}; {row['fallbacks']} fell back" if row["fallbacks"] else text


def between(bucket: dict[str, Any] | None) -> str | None:
    """The bounds of the bucket in which a time was interpolated."""
    if bucket is None:
        return None
    if bucket["high_ms"] is None:
        return f"over {bucket['low_ms']:g}"
    return f"{bucket['low_ms']:g} - {bucket['high_ms']:g}"


def percent(share: float | None) -> str | None:
    """A share in per cent; rounded down, so that 100 % is said of nothing less."""
    if share is None:
        return None
    return f"{int(share * 1e5 + 1e-6) / 1e3:g} %"

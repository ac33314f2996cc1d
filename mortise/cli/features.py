"""`features show`: the contract of every feature, as its owners sign it."""

from cyclopts import App

from mortise.cli.contract_parts import FIELD_COLUMNS, field_row
from mortise.cli.failures import CommandError
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import print_json, print_line, print_table
from mortise.result import Record

app = App(name="features", help="Feature views: their contracts.")


@app.command
def show(view: str | None = None, /, *, options: Options = DEFAULTS) -> None:
    """The views that are loaded: columns of a request and features, with their rules.

    Args:
        view: only this view
    """
    with options.client("data_fabric") as client:
        rows = [row for row in client.call("views").views if view in (None, row.name)]
    if view is not None and not rows:
        raise CommandError("VIEW_UNKNOWN", f"no view {view!r} is loaded", "mortise features show")
    if options.json:
        print_json({"views": rows})
        return
    for row in rows:
        _show_view(row)


def _show_view(row: Record) -> None:
    print_line(f"view {row.name} version {row.version} ({row.state}) {row.get('reason', '')}")
    print_line(
        f"owner {row.owner}, entity {row.entity}, event time {row.event_time},"
        f" freshness {row.freshness_s:g} s"
    )
    print_table(
        FIELD_COLUMNS, [field_row(name, one) for name, one in row.request.items()], "request"
    )
    print_table(
        FIELD_COLUMNS, [field_row(name, one) for name, one in row.fields.items()], "features"
    )

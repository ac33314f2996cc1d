"""The contract page for people, on a terminal or on paper."""

from typing import Any

from mortise.cli.output import print_line, print_table


def show_page(content: dict[str, Any]) -> None:
    """Print the page that `contract_page.page` made."""
    print_line(f"Mortise contract, protocol {content['protocol_version']}, {content['digest']}")
    _show_business(content["business"])
    _show_technical(content["technical"])
    _show_operational(content["operational"])


def _show_business(business: dict[str, Any]) -> None:
    print_line()
    print_line("1 Business: what is promised, unless a policy or model contract says otherwise")
    sla = business["sla"]
    rows = [(name, value) for name, value in sla.items() if not isinstance(value, dict)]
    rows += [(f"{stage} p95 ms", value) for stage, value in sla["stages"].items()]
    print_table(("SLA", ""), rows)
    print_table(("stage", "budget ms"), business["stage_budgets_ms"].items())


def _show_technical(technical: dict[str, Any]) -> None:
    print_line()
    print_line("2 Technical: what is said (a name with ? is optional)")
    print_line(f"every method may answer {', '.join(technical['common_errors'])}")
    for service, methods in technical["services"].items():
        for name, row in methods.items():
            print_line()
            print_line(f"{service}.{name}")
            for part in ("request", "response", "item"):
                if row[part] is not None:
                    print_line(f"  {part:<8} {_fields(row[part])}")
            if row["errors"]:
                print_line(f"  errors   {', '.join(row['errors'])}")
    print_line()
    print_line("Types")
    for name, named in technical["types"].items():
        print_line(f"  {name}: {_fields(named)}")
    print_line()
    rows = [
        (row["code"], name, row["retryable"], row["meaning"])
        for name, row in technical["errors"].items()
    ]
    print_table(("code", "error", "retryable", "meaning"), rows)


def _show_operational(operational: dict[str, Any]) -> None:
    print_line()
    print_line("3 Operational: budgets and limits")
    rows = [
        (f"{service}.{name}", *row.values())
        for service, methods in operational["budgets"].items()
        for name, row in methods.items()
    ]
    print_table(("method", "p99 ms", "time-out ms", "idempotent", "streams"), rows)
    rows = [(service, *map(str, row.values())) for service, row in operational["processes"].items()]
    print_table(("each process of", *next(iter(operational["processes"].values()))), rows)
    print_table(("limit", ""), [(name, str(v)) for name, v in operational["limits"].items()])


def _fields(named: dict[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in named.items()) or "nothing"

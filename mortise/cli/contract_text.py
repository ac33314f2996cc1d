"""The contract page for people, on a terminal or on paper."""

from typing import Any

from mortise.cli.contract_parts import exact, show_models, show_view
from mortise.cli.output import print_line, print_table


def show_page(content: dict[str, Any], title: str) -> None:
    """Print a page that `contracts/page.py` began, under its title."""
    print_line(f"{title}, protocol {content['protocol_version']}, {content['digest']}")
    _show_business(content["business"])
    _show_technical(content["technical"])
    _show_operational(content["operational"])


def show_sign_offs(answer: dict[str, Any], line: str) -> None:
    """Print who has signed the digest, who must, and with which line."""
    print_line()
    print_line(f"4 Sign-offs of {answer['digest']}")
    columns = ("role", "author", "uid", "at", "commit")
    rows = [
        (row["role"], row["author"], row["peer_uid"], row["at"], row["version"])
        for row in answer["signed"]
    ]
    if rows:
        print_table(columns, rows)
    else:
        print_line("nobody has signed it")
    signed = {row["role"] for row in answer["signed"]}
    for name, roles in answer["required"].items():
        of = "any model" if name == "*" else name
        missing = [role for role in roles if role not in signed]
        print_line(
            f"publishing {of} needs {', '.join(roles)}; missing: {', '.join(missing) or 'none'}"
        )
    if not answer["required"]:
        print_line("publishing needs none (sign_offs of the sla policy)")
    print_line(line)


def _show_business(business: dict[str, Any]) -> None:
    print_line()
    print_line("1 Business: what is promised (* is for every model without a policy of its own)")
    rows = []
    for name, sla in business["sla"].items():
        rows += [(name, key, exact(value)) for key, value in sla.items() if key != "stages"]
        rows += [(name, f"{stage} p95 ms", exact(value)) for stage, value in sla["stages"].items()]
    print_table(("model", "SLA", ""), rows)
    print_table(("stage", "budget ms"), business["stage_budgets_ms"].items())
    actions = [
        (model, one["risk_level"], one["label"], f"≥ {one['probability_min']}", one["action"])
        for model, tables in business.get("actions", {}).items()
        for table in tables
        for one in table
    ]
    if actions:
        print_table(("model", "risk level", "label", "probability", "action"), actions)


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
    show_models(technical.get("models", {}))
    for name, view in technical.get("views", {}).items():
        show_view(name, view)
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
    rows = [
        (service, *map(exact, row.values())) for service, row in operational["processes"].items()
    ]
    print_table(("each process of", *next(iter(operational["processes"].values()))), rows)
    freshness = operational.get("freshness_s", {})
    if freshness:
        print_table(("view", "freshness s"), [(name, str(v)) for name, v in freshness.items()])
    print_table(("limit", ""), [(name, str(v)) for name, v in operational["limits"].items()])


def _fields(named: dict[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in named.items()) or "nothing"

"""`start`, `stop`, `restart`, `replicas`, `status`, `doctor`: the mesh of a home as a whole."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from mortise.addresses import SETTINGS
from mortise.cli.failures import EXIT_MESH_DOWN, CommandError, UsageError
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import print_json, print_line, print_table
from mortise.generated import METHODS
from mortise.launcher import SERVE_COMMAND

SERVING = (
    "apsw", "duckdb", "numpy", "prometheus_client", "pyarrow", "safetensors", "setproctitle",
    "sqlglot", "structlog", "torch", "uvloop",
)  # fmt: skip
"""What the processes of the mesh import, all of the `serve` extra."""


def start(
    *,
    detach: Annotated[bool, Parameter(negative="", help="Return once it is ready.")] = False,
    options: Options = DEFAULTS,
) -> int:
    """Start the mesh of the home; in the foreground Ctrl-C drains it."""
    from supervisor import run

    _check_serving_packages()
    with _lines_to_stderr() if options.json else contextlib.nullcontext(), home_errors(options):
        code = run.start(options.path, detach)
        found = run.status(options.path) if options.json and detach and code == 0 else None
    if found is not None:
        print_json(found)
    if not detach and not options.json and code == 0:
        print_line("stopped")
    return code


def stop(*, options: Options = DEFAULTS) -> None:
    """Drain the mesh and wait until it is gone."""
    from supervisor import run

    with home_errors(options):
        run.stop(options.path)
    if options.json:
        print_json({"stopped": str(options.path)})
    else:
        print_line("stopped")


def restart(service: str, index: int = 0, /, *, options: Options = DEFAULTS) -> None:
    """Replace one process: its successor is ready before it goes.

    Args:
        service: orchestrator, control_plane, data_fabric or model_runtime
        index: which of the runtimes
    """
    from supervisor import run

    if service not in METHODS:
        raise UsageError(f"no process {service!r}; there are {', '.join(METHODS)}")
    try:
        with home_errors(options):
            pid = run.restart(options.path, service, index)
    except run.UnknownChild as error:
        raise UsageError(str(error)) from error
    if options.json:
        print_json({"service": service, "index": index, "pid": pid})
    else:
        print_line(f"{service} {index} is now pid {pid}")


def replicas(count: int, /, *, options: Options = DEFAULTS) -> None:
    """Run so many model runtimes from now on; mortise.toml says how many the next start has.

    Args:
        count: 1 to replicas_max of mortise.toml
    """
    from supervisor import run

    with home_errors(options):
        found = run.replicas(options.path, count)
    if options.json:
        print_json(found)
        return
    for row in found["started"]:
        ready = f"ready in {row['ready_ms']:.0f} ms"
        print_line(f"model_runtime {row['index']} is pid {row['pid']}, {ready}")
    print_line(f"{found['replicas']} model runtimes run")


def status(*, options: Options = DEFAULTS) -> None:
    """Which process runs, is ready, or is degraded, and why."""
    from supervisor import run

    with home_errors(options):
        found = run.status(options.path)
    if options.json:
        print_json(found)
    if not found["running"]:
        with home_errors(options):
            raise run.NotRunning(options.path)
    if not options.json:
        _show_status(found)


def doctor(*, options: Options = DEFAULTS) -> int:
    """Check the machine and the home; each finding comes with its fix."""
    from supervisor import run

    is_home = options.home is not None or (options.path / SETTINGS).is_file()
    with home_errors(options):
        findings = [finding.as_map() for finding in run.doctor(options.path if is_home else None)]
    if options.json:
        print_json(findings)
    else:
        print_table(
            ("", "check", "found", "fix"),
            [(row["level"], row["check"], row["found"], row["fix"]) for row in findings],
        )
    return int(any(row["level"] == "fail" for row in findings))


@contextlib.contextmanager
def home_errors(options: Options) -> Iterator[None]:
    """The supervisor's own errors as command errors with their exit codes."""
    from supervisor.run import HomeError, NotRunning, UnknownChild

    try:
        yield
    except NotRunning as error:
        reason = f"no mesh is running in {options.path}"
        line = f"mortise start --detach --home {options.path}"
        raise CommandError("UNAVAILABLE", reason, line, EXIT_MESH_DOWN) from error
    except UnknownChild:
        raise
    except HomeError as error:
        raise CommandError("HOME_INVALID", str(error)) from error
    except OSError as error:  # it starts or ends this very moment, or its disk fails
        reason = f"the supervisor cannot be reached: {error}"
        raise CommandError("UNAVAILABLE", reason, "mortise logs") from error


@contextlib.contextmanager
def _lines_to_stderr() -> Iterator[None]:
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _check_serving_packages() -> None:
    for name in SERVING:
        if importlib.util.find_spec(name) is None:
            reason = f"the mesh needs the serving packages; {name} is not installed"
            raise CommandError("UNAVAILABLE", reason, SERVE_COMMAND)


def _show_status(found: dict[str, Any]) -> None:
    print_line(f"mesh {found['state']}, pid {found['pid']}, up {found['uptime_s']:.0f} s")
    if found.get("reason"):
        print_line(f"  because {found['reason']}")
    columns = (
        "process", "condition", "ready", "policy", "pid", "active s", "restarts", "last ending",
        "standby", "",
    )  # fmt: skip
    print_table(columns, [_child_row(child) for child in found["children"]])


def _child_row(child: dict[str, Any]) -> tuple[Any, ...]:
    standby = child["standby"]
    return (
        child["instance"] or f"{child['service']}.{child['index']}",  # as the logs name it
        child["condition"],
        child["ready"],
        child["policy_version"],
        child["pid"],
        round(child["active_s"]),
        child["restarts"],
        child["last_ending"],
        f"{standby['pid'] or ''} {standby['state']}".strip() if standby else None,
        "; ".join(
            filter(None, [*child["reasons"], *child.get("alarms", ()), child.get("cpu_weight")])
        ),
    )

"""The command table, and how a command ends: its exit code and what is said about an error.

Exit codes: 0 done, 1 an error with its name on standard error, 2 the command was written wrongly,
3 the mesh is down (with the line that starts it), 130 interrupted, 141 the reader of our output
went away before the end (as `head` does; a command that had finished keeps its own code).
"""

import contextlib
import os
import sys
from pathlib import Path

from cyclopts import App, CycloptsError, Group

from mortise.cli.arguments import STANDARD_INPUT, check_arguments
from mortise.cli.failures import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_MESH_DOWN,
    EXIT_PIPE_CLOSED,
    EXIT_USAGE,
    CommandError,
    UsageError,
)
from mortise.cli.output import Page, print_failure
from mortise.cli.remedies import remedy, with_home
from mortise.errors import MortiseError
from mortise.retry import MeshDown

COMMANDS: dict[str, tuple[str, dict[str, str]]] = {
    "Home": ("homes", {"init": "Make a home."}),
    "Mesh": (
        "mesh",
        {
            "start": "Start the mesh of the home.",
            "stop": "Drain the mesh and wait until it is gone.",
            "restart": "Replace one process; its successor is ready before it goes.",
            "replicas": "Run so many model runtimes from now on.",
            "status": "Which process runs, is ready, or is degraded, and why.",
            "doctor": "Check the machine and the home; each finding with its fix.",
        },
    ),
    "Speed": ("builds", {"compile": "Compile the hot path; from source it is slower."}),
    "Requests": (
        "calls",
        {
            "infer": "Ask a model.",
            "call": "Call any method of any service, JSON in and out.",
        },
    ),
    "Models": (
        "models",
        {
            "models": "Every published version, and how many replicas have it ready.",
            "pack": "Make a pack of a model, or try one.",
            "publish": "Name a pack as its model's next version.",
            "promote": "Deploy a version, wait until it is ready, then route to it.",
            "rollback": "Bring back a previous route, or the state of a policy version.",
        },
    ),
    "Policies": (
        "policies",
        {
            "policies": "Every policy in force.",
            "apply": "Commit the policies of a file in one transaction.",
            "remove": "Take a policy out of force.",
            "commits": "The log of commits.",
            "diff": "What changed between two policy versions.",
            "verify": "Walk the hash chain of the commits.",
        },
    ),
    "Lineage": (
        "lineage",
        {
            "trace": "Everything about one answered request.",
            "snapshot": "The combination in force: data × model × infrastructure × policy.",
        },
    ),
    "Promises": ("sla", {"sla": "What was promised and kept, over rolling windows."}),
    "Measurements": (
        "",
        {"bench": "Load-test a model against its contract; soak: look for leaks."},
    ),
    "Logs": ("logs", {"logs": "Show the log records of all processes."}),
    "Contracts": (
        "",
        {
            "contracts": "The contracts: show, sign, check, verify.",
            "features": "The contracts of feature views: show.",
        },
    ),
}
"""Group → (module below `mortise.cli`, its commands); a module is imported when it is used."""

app = App(
    name="mortise",
    suppress_keyboard_interrupt=False,
    help="A self-hosted model-serving mesh for people who must answer for their models.",
)
for group, (module, commands) in COMMANDS.items():
    panel = Group.create_ordered(group)
    for name, summary in commands.items():
        place = f"{module}:{name}" if module else f"{name}:app"
        app.command(f"mortise.cli.{place}", name=name, group=panel, help=summary)


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    code = EXIT_PIPE_CLOSED
    try:
        code = _run(arguments)
        sys.stdout.flush()  # here, not at exit, where nobody could catch it
    except BrokenPipeError:
        _drop_output()
    return code


def _run(arguments: list[str]) -> int:
    is_json, home = "--json" in arguments, _given_home(arguments)
    spelled = [STANDARD_INPUT if argument == "-" else argument for argument in arguments]
    try:
        check_arguments(arguments)
        code = app(
            spelled, console=Page(), exit_on_error=False, print_error=True,
            result_action="return_value",
        )  # fmt: skip
    except CycloptsError:
        return EXIT_USAGE
    except UsageError as error:
        print_failure("USAGE", str(error), _help_line(arguments), is_json=is_json)
        return EXIT_USAGE
    except CommandError as error:
        reason, line = with_home(error.reason, home), with_home(error.remedy, home)
        print_failure(error.name, reason, line, is_json=is_json)
        return error.code
    except MortiseError as error:
        more = {"code": error.code, "trace_id": error.trace_id, "details": error.details}
        line = with_home(remedy(error, *arguments[:1]), home)
        print_failure(error.name, error.message, line, is_json=is_json, **more)
        return EXIT_MESH_DOWN if isinstance(error, MeshDown) else EXIT_ERROR
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print("stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _given_home(arguments: list[str]) -> Path | None:
    """What `--home` says, as it was written; None when the default is used."""
    for at, argument in enumerate(arguments):
        name, is_joined, value = argument.partition("=")
        if name == "--home":
            return Path(value) if is_joined else Path(*arguments[at + 1 : at + 2])
    return None


def _help_line(arguments: list[str]) -> str:
    """The help of the command that was meant."""
    words = [argument for argument in arguments[:2] if argument.isalpha()]
    names = {name for _, commands in COMMANDS.values() for name in commands}
    if not words or words[0] not in names:
        return "mortise --help"
    depth = 2 if words[0] in ("contracts", "features", "bench") else 1
    return " ".join(("mortise", *words[:depth], "--help"))


def _drop_output() -> None:
    """What is still buffered goes nowhere: its reader has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

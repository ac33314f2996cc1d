"""The command table, and how a command ends: its exit code and what is said about an error.

Exit codes: 0 done, 1 an error with its name on standard error, 2 the command was written wrongly,
3 the mesh is down (with the line that starts it), 130 interrupted.
"""

import os
import sys

from cyclopts import App, CycloptsError, Group

from mortise.cli.arguments import STANDARD_INPUT
from mortise.cli.failures import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    EXIT_MESH_DOWN,
    EXIT_USAGE,
    CommandError,
    UsageError,
)
from mortise.cli.output import print_failure
from mortise.cli.remedies import remedy
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
            "status": "Which process runs, is ready, or is degraded, and why.",
            "doctor": "Check the machine and the home; each finding with its fix.",
        },
    ),
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
    "Logs": ("logs", {"logs": "Show the log records of all processes."}),
    "Contracts": (
        "",
        {
            "contracts": "The contracts of every socket: show, check, verify.",
            "features": "The contracts of feature views: show.",
        },
    ),
}
"""Group → (module below `mortise.cli`, its commands); a module is imported when it is used."""

app = App(
    name="mortise",
    help="A self-hosted model-serving mesh for people who must answer for their models.",
)
for group, (module, commands) in COMMANDS.items():
    panel = Group.create_ordered(group)
    for name, summary in commands.items():
        place = f"{module}:{name}" if module else f"{name}:app"
        app.command(f"mortise.cli.{place}", name=name, group=panel, help=summary)


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    is_json = "--json" in arguments
    arguments = [STANDARD_INPUT if argument == "-" else argument for argument in arguments]
    try:
        code = app(arguments, exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:
        return EXIT_USAGE
    except UsageError as error:
        print_failure("USAGE", str(error), "mortise COMMAND --help", is_json=is_json)
        return EXIT_USAGE
    except CommandError as error:
        print_failure(error.name, error.reason, error.remedy, is_json=is_json)
        return error.code
    except MortiseError as error:
        more = {"code": error.code, "trace_id": error.trace_id, "details": error.details}
        print_failure(error.name, error.message, remedy(error), is_json=is_json, **more)
        return EXIT_MESH_DOWN if isinstance(error, MeshDown) else EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    return code if isinstance(code, int) else 0

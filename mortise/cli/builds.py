"""`compile`: the hot path as machine code."""

from typing import Annotated

from cyclopts import Parameter

from mortise.cli.jobs import run_job
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import print_json, print_line


def compile(
    *,
    if_needed: Annotated[bool, Parameter(help="Keep a build that is current.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """Compile the modules that run for each request; meshes of every home that start afterwards
    use them."""
    done = run_job("compile", *(["--if-needed"] if if_needed else []))
    if options.json:
        print_json(done)
    elif done["step"] == "current":
        print_line(f"{done['modules']} modules are compiled already, from these very sources")
    else:
        print_line(f"{done['modules']} modules are compiled; the next start of the mesh uses them")

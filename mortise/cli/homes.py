"""`init`: a new home."""

import signal
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from mortise.cli.failures import CommandError
from mortise.cli.options import DEFAULTS, Options
from mortise.cli.output import print_json, print_line
from mortise.scaffold import HomeExists, create


def init(
    folder: Path,
    /,
    *,
    example: Annotated[
        Literal["flights", "bench"] | None, Parameter(help="Copy one that is ready to start.")
    ] = None,
    options: Options = DEFAULTS,
) -> None:
    """Make a home: mortise.toml, policies.toml, features, models, data.

    Args:
        folder: where; it must be absent or empty
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave nothing half-made
    target = folder.absolute()
    try:
        create(target, example)
    except HomeExists as error:
        raise CommandError("HOME_EXISTS", str(error)) from error
    except OSError as error:
        reason = f"{error.filename or target}: {error.strerror}"
        raise CommandError("HOME_INVALID", reason) from error
    if options.json:
        print_json({"home": str(target), "example": example})
    else:
        print_line(f"a new home in {target}; start it:")
        print_line(f"mortise start --detach --home {target}")

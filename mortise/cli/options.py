"""What every command takes: which home, and whether it speaks JSON."""

import getpass
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from mortise.addresses import home_path
from mortise.cli.failures import CommandError
from mortise.cli.remedies import with_home
from mortise.client import Client

SECONDS_MAX = 86_400.0
"""A deadline on the wire is at most a day."""


def _check_seconds(kind: Any, value: float | None) -> None:
    if value is not None and not 0 < value <= SECONDS_MAX:
        raise ValueError(f"{value:g} s; seconds are more than 0 and at most {SECONDS_MAX:g}")


Timeout = Annotated[
    float | None,
    Parameter(validator=_check_seconds, help="Seconds. Default: the method's own."),
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Options:
    """The options that all commands share."""

    home: Annotated[
        Path | None,
        Parameter(help="Home directory. Default: MORTISE_HOME, then the current directory."),
    ] = None
    json: Annotated[bool, Parameter(negative="", help="JSON on standard output.")] = False

    @property
    def path(self) -> Path:
        """The home, absolute."""
        return home_path(self.home)

    def line(self, command: str) -> str:
        """A command to type next, with the home where it was not the default."""
        return with_home(command, self.home)

    def client(self, service: str = "orchestrator", socket: Path | None = None) -> Client:
        """A client of the home's service, or of the given socket. Raises CommandError."""
        try:
            client = Client(socket, home=self.path, service=service)
        except (OSError, ValueError) as error:  # a path too long, or a file that cannot be read
            self.check_home()
            raise CommandError("HOME_INVALID", str(error)) from error
        if socket is None and not os.path.exists(client.path):
            self.check_home()
        return client

    def check_home(self) -> None:
        """Raises CommandError HOME_INVALID when the folder is no home, as every command does."""
        from supervisor import run

        try:
            run.check_home(self.path)
        except run.HomeError as error:
            raise CommandError("HOME_INVALID", str(error)) from error


DEFAULTS = Options()


def author_name() -> str:
    """Who commits, as they are logged in; the commit also has the uid that the kernel knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return f"uid {os.getuid()}"

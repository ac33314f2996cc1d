"""What every command takes: which home, and whether it speaks JSON."""

import getpass
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mortise.addresses import home_path
from mortise.cli.failures import CommandError
from mortise.client import Client


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

    def client(self, service: str = "orchestrator", socket: Path | None = None) -> Client:
        """A client of the home's service, or of the given socket. Raises CommandError."""
        try:
            return Client(socket, home=self.path, service=service)
        except ValueError as error:  # a path too long, or a settings file that is not TOML
            raise CommandError("HOME_INVALID", str(error)) from error


DEFAULTS = Options()


def author_name() -> str:
    """Who commits, as they are logged in; the commit also has the uid that the kernel knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return f"uid {os.getuid()}"

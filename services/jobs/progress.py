"""How a job speaks: one JSON object a line on stdout, errors on stderr with exit code 1."""

import errno
import sys
from collections.abc import Callable

import msgspec

from contracts.errors import MeshError
from contracts.types import Scalar


def report(step: str, **fields: Scalar | dict[str, Scalar]) -> None:
    """Print one progress line."""
    line = msgspec.json.encode({"step": step, **fields}).decode()
    print(line, flush=True)


def run(job: Callable[[], None]) -> None:
    """Run a job's body as a program: a MeshError, or a full disk, becomes its error line."""
    try:
        job()
    except MeshError as error:
        _fail(error)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _fail(MeshError("DISK_FULL", f"{error.filename or 'a file'}: {error.strerror}"))


def _fail(error: MeshError) -> None:
    line = msgspec.json.encode({"step": "failed", "name": error.name, "message": error.message})
    print(line.decode(), file=sys.stderr, flush=True)
    sys.exit(1)

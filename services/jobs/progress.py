"""How a job speaks: one JSON object a line on stdout; a failed one ends with `error` and code 1."""

import errno
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from contracts.errors import MeshError


def report(step: str, **fields: Any) -> None:
    """Print one progress line."""
    print(msgspec.json.encode({"step": step, **fields}).decode(), flush=True)


def run(job: Callable[[], None]) -> None:
    """Run a job's body as a program: a MeshError, or a full disk, becomes its last line."""
    try:
        job()
    except MeshError as error:
        _fail(error)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _fail(MeshError("DISK_FULL", f"{error.filename or 'a file'}: {error.strerror}"))


def _fail(error: MeshError) -> None:
    report("failed", name=error.name, error=error.message)
    sys.exit(1)

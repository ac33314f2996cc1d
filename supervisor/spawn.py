"""Making a process: posix_spawn with a chosen environment, descriptors and session.

Nothing of ours runs between fork and exec, so the supervisor may have threads and be large.
"""

import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from shared import boot
from shared.inheritance import VARIABLE, format_descriptors

_first_target = 3
_safe_from = 50
"""Sources are duplicated above every target first: dup2 could overwrite one not yet copied."""
descriptors_max = 16

assert _first_target + descriptors_max <= _safe_from, "targets end below the sources"


def spawn(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    descriptors: Mapping[str, int],
    stderr: int,
) -> int:
    """Start `python command…` in a session of its own and return its pid.

    The child finds `descriptors` by name (`shared.inheritance`); stdin is empty, stdout and
    stderr both go to `stderr`. Every signal is at its default and unblocked. Raises OSError.
    """
    assert len(descriptors) <= descriptors_max, "more descriptors than targets"
    duplicates: list[int] = []
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    ]
    numbers: dict[str, int] = {}
    try:
        source = _duplicate(stderr, duplicates)
        actions += [(os.POSIX_SPAWN_DUP2, source, 1), (os.POSIX_SPAWN_DUP2, source, 2)]
        for target, (name, number) in enumerate(descriptors.items(), _first_target):
            actions.append((os.POSIX_SPAWN_DUP2, _duplicate(number, duplicates), target))
            numbers[name] = target
        return os.posix_spawn(
            sys.executable,
            [sys.executable, *command],
            {
                **variables,
                VARIABLE: format_descriptors(numbers),
                boot.VARIABLE: str(os.getpid()),
            },
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM],
        )
    finally:
        for number in duplicates:
            os.close(number)


def facts_file(encoded: bytes) -> int:
    """A descriptor from which a child reads its facts; the caller closes it."""
    descriptor = os.memfd_create("mortise-facts", os.MFD_CLOEXEC)
    os.write(descriptor, encoded)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _duplicate(number: int, duplicates: list[int]) -> int:
    """A copy at `_safe_from` or above, closed on exec and noted for closing here."""
    copy = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _safe_from)
    duplicates.append(copy)
    return copy

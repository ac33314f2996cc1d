"""Commits that an instance held up only because it is away or starved: tried again for a while.

Such a refusal is POLICY_REJECTED with `retry_after_ms`: it is active nowhere, so that the same
commit can be sent again, and it passes by itself once a successor has come. Everything else is
the caller's to decide and is raised at once.
"""

import sys
import time
from collections.abc import Callable

from mortise.cli.output import printable
from mortise.errors import MortiseError
from mortise.result import Record

AGAIN_S_MAX = 5.0
"""How long in all is waited between attempts: a successor comes within 2 s, a cold one in 4."""
WAIT_S_MIN, WAIT_S_MAX = 0.1, 1.0
"""Bounds of one wait, whatever the hint is; with AGAIN_S_MAX they bound the attempts to 51."""


def wait_before_again_s(error: MortiseError, waited_s: float) -> float | None:
    """How long to wait before the commit is sent again; None: raise the error. Pure."""
    if error.name != "POLICY_REJECTED" or error.retry_after_ms is None:
        return None
    wait_s = min(WAIT_S_MAX, max(WAIT_S_MIN, error.retry_after_ms / 1_000))
    return wait_s if waited_s + wait_s <= AGAIN_S_MAX else None


def patiently(commit: Callable[[], Record]) -> Record:
    """The answer of `commit`, sent again while an instance is between two lives; standard error
    says so each time. Raises what the last attempt raised."""
    waited_s = 0.0
    while True:
        try:
            return commit()
        except MortiseError as error:
            wait_s = wait_before_again_s(error, waited_s)
            if wait_s is None:
                raise
            text = printable(f"{error.name}: {error.message}")
            print(f"{text}; this passes, trying again in {wait_s:g} s", file=sys.stderr)
        time.sleep(wait_s)
        waited_s += wait_s

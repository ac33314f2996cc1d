"""How long each step of a start may take, and how a process compares with that. Pure.

A step is what a process itself measured before and after READY (`shared.environment.StartupReport`)
or, for `answer`, from READY to its first answer to a probe.
"""

from collections.abc import Mapping

from contracts.types import Open

BUDGETS_S: Mapping[str, float] = {
    "import": 2.5,  # of a service's own libraries, beside the other processes' imports
    "fork": 0.05,  # from the supervisor's wish to the worker's own code
    "open": 0.25,  # the database, its integrity checked
    "policies": 0.25,
    "start": 0.5,  # whatever else a service does before READY
    "verify": 5.0,  # every byte of a new pack is hashed; later it is a look at its files
    "map": 0.25,
    "tokenizer": 0.5,
    "warm": 0.5,  # the first forwards
    "answer": 0.1,
}
"""Seconds of each step, on two cores that start everything at once."""
TEMPLATE_IMPORT_S = 4.0
"""Of the template alone: it imports the backend, once for all runtimes."""
TEMPLATE = "template"


class StepRow(Open, frozen=True, kw_only=True):
    """One step; without a budget it is within."""

    step: str
    seconds: float
    budget_s: float | None
    is_within: bool


class StartupRow(Open, frozen=True, kw_only=True):
    """One process's start: `seconds` until it was ready or, if later, answered."""

    process: str
    pid: int | None
    seconds: float
    steps: list[StepRow]


def budget_s(process: str, step: str) -> float | None:
    """What a step of this process (a child's label, or TEMPLATE) may take."""
    if (process, step) == (TEMPLATE, "import"):
        return TEMPLATE_IMPORT_S
    return BUDGETS_S.get(step)


def steps_of(process: str, durations_s: Mapping[str, float]) -> list[StepRow]:
    """The steps in the order in which they were reported."""
    rows = []
    for step, seconds in durations_s.items():
        limit_s = budget_s(process, step)
        rows.append(
            StepRow(
                step=step,
                seconds=round(seconds, 4),
                budget_s=limit_s,
                is_within=limit_s is None or seconds <= limit_s,
            )
        )
    return rows


def in_words(steps: list[StepRow]) -> str:
    """`import 1.203 of 2.5, start 0.140 of 0.5`: seconds of budget; OVER where more."""
    return ", ".join(
        f"{row.step} {row.seconds:.3f}"
        + ("" if row.budget_s is None else f" {'of' if row.is_within else 'OVER'} {row.budget_s:g}")
        for row in steps
    )

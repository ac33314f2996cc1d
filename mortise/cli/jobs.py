"""Runs a job in a process of its own and follows its progress lines (one JSON object a line)."""

import json
import subprocess
import sys
from typing import Any

from mortise.cli.failures import CommandError
from mortise.cli.output import progress
from mortise.cli.remedies import remedy_of


def run_job(module: str, *arguments: str) -> dict[str, Any]:
    """The job's last line. Raises CommandError with the error that the job named.

    What the job writes to standard error, the user sees.
    """
    command = [sys.executable, "-P", "-m", f"services.jobs.{module}", *arguments]
    last: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None, "asked for as a pipe"
        for line in job.stdout:
            last = json.loads(line)
            progress(str(last.get("step", "")))
    if job.returncode:
        name = str(last.get("name", "INTERNAL"))
        reason = str(last.get("error", f"the job {module} ended with code {job.returncode}"))
        raise CommandError(name, reason, remedy_of(name, module))
    return last

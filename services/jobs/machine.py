"""The machine of a measurement: CPU model, cores, kernel, interpreter; never its name."""

import os
import platform
from pathlib import Path


def describe_machine() -> dict[str, str | int]:
    """For result files under benchmarks/."""
    cpu = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 0,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }

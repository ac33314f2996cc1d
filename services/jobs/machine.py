"""The machine that a measurement was made on: CPU model, cores, kernel; never its name."""

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
    return {"cpu": cpu, "cores": os.cpu_count() or 0, "kernel": platform.release()}

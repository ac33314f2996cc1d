"""How much memory there is and how much of it this process uses, as the kernel tells."""

import os
from pathlib import Path

from contracts.execution import Memory

_page_bytes = os.sysconf("SC_PAGE_SIZE")


def used(
    weights_bytes: int = 0,
    *,
    budget_bytes: int = 0,
    predicted_bytes: int = 0,
    measured_bytes: int = 0,
) -> Memory:
    """This process's memory, beside what the caller knows of the budget. Private is what it shares
    with no file and no other process's maps: resident minus shared pages (proc(5), statm)."""
    _, resident, shared, *_ = (int(word) for word in Path("/proc/self/statm").read_text().split())
    return Memory(
        rss_bytes=resident * _page_bytes,
        weights_bytes=weights_bytes,
        private_bytes=(resident - shared) * _page_bytes,
        budget_bytes=budget_bytes,
        predicted_bytes=predicted_bytes,
        measured_bytes=measured_bytes,
    )


def available_bytes() -> int:
    """What can be allocated without swapping (proc(5), MemAvailable)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux has stated MemAvailable since 3.14")

"""Counters of another process, by an event that needs no hardware."""

import subprocess
import sys

import pytest

from supervisor.perf import CACHE_MISSES, PAGE_FAULTS, Counters, Event, why_not

TOUCH = "import sys\nprint('up', flush=True)\nsys.stdin.readline()\nx = bytearray(40_000_000)\nprint('done', flush=True)\nsys.stdin.readline()\n"  # noqa: E501 — a program


def test_another_process_s_event_is_counted_and_forgotten() -> None:
    """40 MB touched are thousands of page faults of that process, and of nobody else."""
    if reason := why_not(PAGE_FAULTS):
        pytest.skip(reason)
    command = [sys.executable, "-I", "-S", "-c", TOUCH]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        counters = Counters(PAGE_FAULTS)
        before = counters.total("one", process.pid)
        assert before == 0
        print("go", file=process.stdin, flush=True)
        process.stdout.readline()
        after = counters.total("one", process.pid)
        assert after is not None
        assert after >= 1
        counters.keep(set())
        assert counters.total("one", process.pid) == 0, "it begins anew"
        counters.keep(set())
        process.kill()


def test_what_is_not_permitted_is_absent_with_the_reason() -> None:
    """An event that no machine has: not zero, but None and why."""
    counters = Counters(Event(type=0, config=9_999))
    assert counters.total("one", 1) is None
    assert "perf_event_open: " in counters.reason
    assert "perf_event_paranoid is" in counters.reason
    assert (why_not(CACHE_MISSES) == "") is (Counters(CACHE_MISSES).reason == "")

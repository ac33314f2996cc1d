"""Every ended child is reaped once and reported once.

Each scenario runs in an interpreter of its own: a reaper takes every child of its process, and
would take those of the test run.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from supervisor.reaper import Exit, Reaper, own_children

ROOT = Path(__file__).parents[3]


def spawn(code: str) -> int:
    """A small interpreter that runs `code`."""
    return os.posix_spawn(sys.executable, [sys.executable, "-ISc", code], {})


async def exit_of(reaper: Reaper, pid: int) -> Exit:
    """The reported exit of a child."""
    ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    reaper.watch(pid, ended.set_result)
    return await asyncio.wait_for(ended, 10)


async def until(is_so: Callable[[], bool]) -> None:
    """Turn the loop until the claim holds."""
    while not is_so():  # noqa: ASYNC110 — nothing signals what is waited for
        await asyncio.sleep(0.001)


async def codes_and_signals_are_told_apart(reaper: Reaper) -> None:
    """An exit code and a kill are reported in words."""
    assert str(await exit_of(reaper, spawn("raise SystemExit(3)"))) == "exit code 3"
    pid = spawn("import time; time.sleep(60)")
    os.kill(pid, signal.SIGKILL)
    assert str(await exit_of(reaper, pid)) == "killed by SIGKILL"


async def an_early_exit_is_kept_while_expected(reaper: Reaper) -> None:
    """The exit of a pid that is on its way to us is kept until it is watched."""
    reaper.expect(+1)
    pid = spawn("raise SystemExit(4)")
    await until(lambda: pid not in own_children())
    assert (await exit_of(reaper, pid)).code == 4
    reaper.expect(-1)


async def a_strangers_exit_is_forgotten(reaper: Reaper) -> None:
    """With nobody expected an unknown exit is not kept: the pid may be used again."""
    spawn("pass")
    await until(lambda: reaper.strangers == 1)
    assert reaper._early == {}


async def strangers_are_ended(reaper: Reaper) -> None:
    """A descendant nobody watches is killed, but not while a pid is on its way to us."""
    pid = spawn("import time; time.sleep(60)")
    reaper.expect(+1)
    assert reaper.kill_strangers() == 0
    reaper.expect(-1)
    assert reaper.kill_strangers() == 1
    await until(lambda: pid not in own_children())


async def a_watched_child_is_no_stranger(reaper: Reaper) -> None:
    """Nobody who is watched is ever killed as a stranger."""
    pid = spawn("import time; time.sleep(60)")
    reaper.watch(pid, lambda ended: None)
    assert reaper.kill_strangers() == 0
    os.kill(pid, signal.SIGKILL)
    await until(lambda: pid not in own_children())


SCENARIOS: dict[str, Callable[[Reaper], Coroutine[Any, Any, None]]] = {
    scenario.__name__: scenario
    for scenario in (
        codes_and_signals_are_told_apart,
        an_early_exit_is_kept_while_expected,
        a_strangers_exit_is_forgotten,
        strangers_are_ended,
        a_watched_child_is_no_stranger,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    """Each scenario of this file holds in a process of its own."""
    ended = subprocess.run(
        [sys.executable, __file__, name], cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_an_unknown_signal_has_a_number() -> None:
    """Signals without a name are told by their number."""
    assert str(Exit(1, 0, 36)) == "killed by signal 36"


async def play(name: str) -> None:
    """One scenario with a reaper of its own."""
    await SCENARIOS[name](Reaper())


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1]))

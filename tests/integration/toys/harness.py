"""Runs a supervisor over toys in a process of its own, and leaves nothing behind for certain.

Every process of a test is found by its working directory, the home, which children inherit.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from supervisor import run

ROOT = Path(__file__).parents[3]
HOME_FILE = "home_version = 1\n"
wait_s_max = 20.0
records_shown_max = 15
gone_s_max = 2.0
"""A killed supervisor leaves no process after this long."""


class ToyMesh:
    """`with ToyMesh({"orchestrator": {"standby": True}, …}) as mesh:`; ready inside."""

    def __init__(self, children: dict[str, dict[str, Any]], **wish: Any) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
        (self.home / "mortise.toml").write_text(HOME_FILE)
        self.wish = {"children": children, **wish}
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "ToyMesh":
        self.launch()
        try:
            self.wait_for(lambda: "try: " in self.output())
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def launch(self, prefix: Sequence[str] = (), keep: Sequence[int] = ()) -> subprocess.Popen[str]:
        """Start the supervisor, through the command `prefix`, with the descriptors `keep`; does
        not wait for it."""
        script = Path(__file__).with_name("toy_mesh.py")
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        with (self.home / "out").open("a") as out:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-P", script, self.home, json.dumps(self.wish)],
                env=variables,
                cwd=self.home,
                pass_fds=keep,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        return self.process

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self.process is not None
        return self.process.pid

    def output(self) -> str:
        """What the supervisor printed."""
        return (self.home / "out").read_text()

    def status(self) -> dict[str, Any]:
        """As `status` tells it."""
        return run.status(self.home)

    def child(self, service: str) -> dict[str, Any]:
        """One row of the status."""
        rows = [row for row in self.status()["children"] if row["service"] == service]
        return dict(rows[0])

    def wait_for(self, is_so: Callable[[], bool], seconds: float = wait_s_max) -> float:
        """Wait until a claim holds; the seconds it took. Fails with the output after `seconds`."""
        begun_s = time.monotonic()
        while not is_so():
            if time.monotonic() - begun_s > seconds:
                raise AssertionError(f"not within {seconds} s\n{self.last_words()}")
            time.sleep(0.01)
        return time.monotonic() - begun_s

    def wait_whole(self) -> None:
        """Wait until every child is up and every wanted standby is ready."""
        self.wait_for(lambda: all(self._is_whole(row) for row in self.status()["children"]))

    def _is_whole(self, row: dict[str, Any]) -> bool:
        wants_standby = self.wish["children"][row["service"]].get("standby", False)
        standby = row["standby"]
        has_standby = standby is not None and standby["state"] == "ready"
        return row["condition"] == "up" and bool(row["ready"]) and has_standby == wants_standby

    def processes(self) -> list[int]:
        """Every living process of this mesh, the supervisor included; no zombies."""
        return [pid for pid in living() if folder(pid) == str(self.home)]

    def records(self, service: str) -> list[dict[str, Any]]:
        """The log of one child, or of the supervisor."""
        file = self.home / ".mortise" / "log" / f"{service}.0.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def last_words(self) -> str:
        """The supervisor's output and its last records, for a failed test."""
        records = [f"{record}" for record in self.records("supervisor")[-records_shown_max:]]
        return "\n".join([self.output(), *records])

    def end(self) -> None:
        """Kill whatever is left of this mesh, and its home."""
        try:
            for pid in self.processes():
                kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.wait(wait_s_max)
            self.wait_for(lambda: not self.processes(), gone_s_max)
        finally:
            shutil.rmtree(self.home, ignore_errors=True)


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has ended meanwhile is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def living() -> Iterator[int]:
    """Pids that are not zombies."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and state(int(name)) not in ("", "Z", "X"):
            yield int(name)


def state(pid: int) -> str:
    """The letter of proc_pid_stat(5); "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """The parent's pid; 0 when the process has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def folder(pid: int) -> str:
    """The working directory of a process; "" when it has gone."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


@contextmanager
def toy_mesh(children: dict[str, dict[str, Any]], **wish: Any) -> Iterator[ToyMesh]:
    """A mesh that is not expected to become ready; launched, ended for certain."""
    mesh = ToyMesh(children, **wish)
    try:
        mesh.launch()
        yield mesh
    finally:
        mesh.end()

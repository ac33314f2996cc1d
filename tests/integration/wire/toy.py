"""A toy server in a process of its own, begun as the supervisor begins a child: compiled where a
build is current."""

import os
import subprocess
import sys
from pathlib import Path

from shared import boot
from supervisor.variables import _allocator_keep_bytes
from tests.integration.wire.raw import RawClient

ROOT = Path(__file__).parents[3]
MODULE = "tests.integration.wire.toy_orchestrator"
STOP_S_MAX = 10
# As the supervisor sets it for real services: memory of large frames is kept, not faulted in anew.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(_allocator_keep_bytes),
    "MALLOC_TRIM_THRESHOLD_": str(2 * _allocator_keep_bytes),
}


class Toy:
    """One running server."""

    def __init__(self, folder: Path, *arguments: str, log: int | None = None) -> None:
        self.path = str(folder / "s.sock")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shared.boot", MODULE, self.path, *arguments],
            cwd=ROOT,
            env={**os.environ, **ALLOCATOR, boot.VARIABLE: str(os.getpid())},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def statistics(self) -> dict[str, float]:
        """Its counters and measurements; the longest stall is that since the last look."""
        with RawClient(self.path) as client:
            values: dict[str, float] = client.call("statistics")[1]["values"]
        return values

    def stop(self) -> int:
        """SIGTERM and wait; its exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        try:
            code = self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
        return code

"""Receipts after a real kill -9 of their writer."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from services.orchestrator.segment import Segment

WRITER = """
import sys
from pathlib import Path
from services.orchestrator.segment import Segment
file = Segment.create(Path(sys.argv[1]), 8 * 1024 * 1024)
number = 0
while file.room > 400:
    number += 1
    file.append(b"%09d" % number + bytes(number % 300))
    sys.stdout.buffer.write(b"%09d" % number)
    sys.stdout.flush()
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(5))
def test_every_receipt_written_before_the_kill_is_found(seed: int) -> None:
    """What the writer had said is there, in order, and nothing made up follows it."""
    with tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as folder:
        path = Path(folder) / "w.spool"
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert writer.stdout is not None
        said = os.read(writer.stdout.fileno(), 9)
        time.sleep(random.Random(seed).random() * 0.05)
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.read()
        writer.wait()
        writer.stdout.close()
        found = Segment.claim(path)
        assert found is not None
        while not found.recover(1_000):
            pass
        records = found.part(found.records, found.size).contents
        found.close()
        count = len(said) // 9
        assert count >= 1
        assert len(records) in (count, count + 1)
        assert [int(record[:9]) for record in records] == list(range(1, len(records) + 1))
        assert all(len(record) == 9 + int(record[:9]) % 300 for record in records)

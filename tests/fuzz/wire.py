"""Fuzzes the wire: `python -m tests.fuzz.wire --frames N [--seed S] [--result FILE]`.

Each mutated frame goes through the framer and the decoders in this process, and to a live server
in another one: harmless ones pipelined over one connection, the others a sample, each over a
connection of its own. The server must answer every request once, with declared errors only, must
not grow by more than 64 MiB nor stall for more than 50 ms. Stops at the first failure and says how
to repeat it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgpack

from contracts.errors import ERRORS
from services.jobs.machine import describe_machine
from tests.fuzz import mutations
from tests.fuzz.oracle import Owed, Verdict, examine
from tests.integration.wire.raw import RawClient
from tests.integration.wire.toy import Toy

BATCH_FRAMES = 500
BREAKING_SENT_EVERY = 20
"""Of the frames that end a connection, one in so many is sent: a connection costs 20 frames."""
PROGRESS_FRAMES = 500_000
RSS_GROWTH_BYTES_MAX = 64 * 1024 * 1024
STALL_MS_MAX = 50.0
LATE_S_MAX = 5.0
"""For answers that come in a later turn of the server's loop, on a busy machine."""
LAST_MSGID = 4_000_000_000


@dataclass
class Tally:
    """What was done."""

    frames: int = 0
    sent: int = 0
    answered: int = 0
    closed: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class Fuzzer:
    """One server and the frames that it gets."""

    def __init__(self, toy: Toy, seed: int) -> None:
        self.toy = toy
        self.seed = seed
        self.tally = Tally()
        with RawClient(toy.path) as client:
            client.call("describe")  # made in a thread the first time, so it would come late
        self.before = toy.statistics()
        self.stall_ms = 0.0

    def run(self, count: int) -> None:
        """So many frames."""
        for batch in range(-(-count // BATCH_FRAMES)):
            size = min(BATCH_FRAMES, count - batch * BATCH_FRAMES)
            try:
                self.run_batch(batch, size)
            except AssertionError as error:
                error.add_note(f"repeat with --seed {self.seed} --batch {batch}")
                raise
            if self.tally.frames % PROGRESS_FRAMES == 0:
                print(f"{self.tally.frames:,} frames", file=sys.stderr, flush=True)
        self.check_server()

    def run_batch(self, batch: int, size: int = BATCH_FRAMES) -> None:
        """The frames of one batch; the same for the same seed and number."""
        random = Random(f"{self.seed}/{batch}")
        harmless: list[bytes] = []
        owed = 0
        for number, frame in enumerate(mutations.frames(f"{self.seed}:{batch}", size)):
            try:
                verdict = examine(frame, random)
                if verdict.is_harmless:
                    harmless.append(frame)
                    owed += verdict.owed.count(Owed.ANSWER)
                elif number % BREAKING_SENT_EVERY == 0:
                    self.send_breaking(frame, verdict)
            except AssertionError as error:
                error.add_note(f"frame {frame.hex()}")
                raise
        self.tally.frames += size
        self.send_harmless(harmless, owed)
        if batch % 100 == 0:
            self.check_server()

    def send_harmless(self, frames: list[bytes], owed: int) -> None:
        """All over one connection: as many answers as requests, then the last ping's."""
        with RawClient(self.toy.path) as client:
            client.send(*frames)
            answers = self.read_until_ping(client)
            ends_s = time.monotonic() + LATE_S_MAX
            while answers < owed and time.monotonic() < ends_s:
                answers += self.read_until_ping(client)  # what a coroutine answers in a later turn
            answers += self.read_until_ping(client)  # and what nobody asked
            assert answers == owed, f"{owed} requests, {answers} answers"
        self.tally.sent += len(frames)

    def read_until_ping(self, client: RawClient) -> int:
        """Ping, and count the responses that come before its own."""
        client.send([0, LAST_MSGID, "ping", [{}]])
        answers = 0
        while (message := client.receive()) is not None:
            if message[:2] == [1, LAST_MSGID]:
                return answers
            answers += self.read(message)
        raise AssertionError("the connection was closed")

    def send_breaking(self, frame: bytes, verdict: Verdict) -> None:
        """Over a connection of its own: the answers owed before the end, then the end."""
        with RawClient(self.toy.path) as client:
            client.send(frame)
            client.sock.shutdown(1)
            answers = 0
            while (message := client.receive()) is not None:
                answers += self.read(message)
            alive = verdict.owed
            if Owed.CLOSE in alive:
                alive = alive[: alive.index(Owed.CLOSE)]
            assert answers <= alive.count(Owed.ANSWER), "an answer to no request"
        self.tally.sent += 1
        self.tally.closed += 1

    def read(self, message: Any) -> int:
        """1 for a response, which must be one; 0 for an item of a stream."""
        assert isinstance(message, list), message
        if message[0] == 2:
            assert message[1] == "stream", message
            return 0
        assert message[0] == 1, message
        assert (message[2] is None) != (message[3] is None), message
        if message[2] is not None:
            name = message[2]["name"]
            assert ERRORS[name].code == message[2]["code"], message
            assert name != "INTERNAL", message
            assert len(msgpack.packb(message)) < 4_096, message
            self.tally.errors[name] = self.tally.errors.get(name, 0) + 1
        self.tally.answered += 1
        return 1

    def check_server(self) -> None:
        """It lives, has not grown, and never stalled."""
        assert self.toy.process.poll() is None, "the server died"
        now = self.toy.statistics()
        self.stall_ms = max(self.stall_ms, now["stall_ms"])
        grown = now["rss_bytes"] - self.before["rss_bytes"]
        assert grown <= RSS_GROWTH_BYTES_MAX, f"the server grew by {grown} bytes"
        assert self.stall_ms <= STALL_MS_MAX, f"the server stalled for {self.stall_ms:.1f} ms"
        assert now["internal_errors"] == 0, "an internal error"
        ended = sum(now[name] for name in ("answered", "refused", "failed", "cancelled"))
        assert now["received"] == ended + now["in_flight"] + 1, now  # 1: this very call

    def result(self, seconds: float) -> dict[str, Any]:
        """What is committed: figures and the kind of machine, not which one."""
        now = self.toy.statistics()
        return {
            "frames": self.tally.frames,
            "sent_to_the_live_server": self.tally.sent,
            "answered": self.tally.answered,
            "connections_closed": self.tally.closed,
            "errors": dict(sorted(self.tally.errors.items())),
            "server_is_compiled": bool(now["compiled"]),
            "server_rss_growth_bytes": int(now["rss_bytes"] - self.before["rss_bytes"]),
            "server_stall_ms_max": round(self.stall_ms, 1),
            "seed": self.seed,
            "seconds": round(seconds, 1),
            "machine": describe_machine(),
        }


def main() -> int:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--batch", type=int, default=None, help="only this batch, once more")
    parser.add_argument("--result", type=Path, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as folder:
        toy = Toy(Path(folder), log=subprocess.DEVNULL)  # it logs each refusal
        try:
            fuzzer = Fuzzer(toy, seed)
            began_s = time.monotonic()
            if options.batch is not None:
                fuzzer.run_batch(options.batch)
            else:
                fuzzer.run(options.frames)
            result = fuzzer.result(time.monotonic() - began_s)
        finally:
            toy.stop()
    print(json.dumps(result, indent=1))
    if options.result is not None:
        options.result.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

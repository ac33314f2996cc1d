"""What a child gets from the supervisor before it does anything: facts, its table, descriptors.

An exec'd child finds the numbers of its descriptors in `MORTISE_DESCRIPTORS` and reads the facts
from one of them; a forked one gets the same bytes in the fork request.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shared.home import AccessTable

VARIABLE = "MORTISE_DESCRIPTORS"
facts_bytes_max = 1024 * 1024


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but descriptors. `table` is the service's encoded part of `mortise.toml`;
    `started_us` the monotonic instant of the spawn; `trace_id` names the operation (a start, a
    restart, a replacement) that this life belongs to."""

    supervisor_pid: int
    service: str
    index: int
    instance: str
    home: str
    run_dir: str
    table: msgspec.Raw
    replicas: int
    replicas_max: int
    access: dict[str, AccessTable]
    infra: str
    standby: bool
    started_us: int
    trace_id: str
    restarts: int
    drain_s: float
    log_bytes_max: int
    log_files_max: int


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The facts, the line to the supervisor, and the listening socket (None: it serves none)."""

    facts: Facts
    control: socket.socket
    listener: socket.socket | None

    @property
    def log_path(self) -> Path:
        """Where this child's records go; all its instances share the file."""
        return log_path(Path(self.facts.home), self.facts.service, self.facts.index)


def log_path(home: Path, service: str, index: int) -> Path:
    """`.mortise/log/<service>.<index>.jsonl`."""
    return home / ".mortise" / "log" / f"{service}.{index}.jsonl"


def decode_facts(encoded: bytes) -> Facts:
    """The facts as the supervisor encoded them."""
    return msgspec.msgpack.decode(encoded, type=Facts)


def encode_facts(facts: Facts) -> bytes:
    """The bytes for a descriptor or a fork request."""
    encoded = msgspec.msgpack.encode(facts)
    assert len(encoded) <= facts_bytes_max, "the home's file is bounded, so are the facts"
    return encoded


def format_descriptors(descriptors: dict[str, int]) -> str:
    """The value of `VARIABLE`: `config=3,control=4`."""
    return ",".join(f"{name}={number}" for name, number in descriptors.items())


def parse_descriptors(text: str) -> dict[str, int]:
    """The reverse of `format_descriptors`."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: int(number) for name, _, number in pairs}


def receive() -> Inheritance | None:
    """This exec'd child's inheritance, taken once; None where no supervisor started it."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    numbers = parse_descriptors(text)
    for number in numbers.values():
        os.set_inheritable(number, False)
    with open(numbers["config"], "rb") as file:
        facts = decode_facts(file.read(facts_bytes_max))
    listener = socket.socket(fileno=numbers["listen"]) if "listen" in numbers else None
    return Inheritance(facts, socket.socket(fileno=numbers["control"]), listener)

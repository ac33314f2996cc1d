"""Mutated frames: valid messages of every method, changed a little or a lot. Pure and seeded."""

from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import Any

import msgpack

from contracts.golden_frames import golden_frames
from contracts.methods import SERVICES

HEADS = bytes.fromhex("90919394 8081 a0a4 c0c1c2 c4c6c7 cacb cccfd3 d4d6d7 d9db dcdddf ff")
INSERTED = tuple(map(bytes.fromhex, (
    "dd ffffffff", "c6 ffffffff", "db 7fffffff", "df 00100000",  # lengths that never come
    "91" * 70, "81a161" * 40,  # depth
    "cf ffffffffffffffff", "cb 7ff8000000000000", "d6 ff ffffffff",  # 2⁶⁴ − 1, NaN, a timestamp
    "a2 fffe", "c4 00", "c1",  # no UTF-8, an empty bin, no MessagePack
)))  # fmt: skip
CHANGES = (1, 1, 1, 2, 4)
NAMES = ("mode", "", "x" * 300, "a\nb", "\x1b[2J", "`", "model_name", "stream", "trace_id")
VALUES = tuple(map(msgpack.packb, (
    None, True, 0, -1, 7, 2**31, 2**32, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"),
    "", "x", "x" * 5_000, "\u202e", b"", b"\xff" * 300, [], {}, [[]] * 50, [[[[[[[]]]]]]],
    list(range(300)), {"a": {"b": {"c": {}}}}, dict.fromkeys(map(str, range(100))),
    msgpack.Timestamp(1, 999_999_999), msgpack.ExtType(5, b"x"), "sha256:" + "0" * 64,
)))  # fmt: skip


TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": b"\0" * 16}
SMALL = tuple(map(msgpack.packb, (
    [0, 7, "infer", [{"model_name": "tiny", "inputs": [TENSOR]}]],
    [0, 7, "infer", [{"model_name": "tiny", "rows": [{"a": 1, "b": "x"}]}, {"stream": True}]],
    [0, 7, "infer", [{"model_name": "tiny", "text": ["a"], "parameters": {"k": 1.5}}]],
    [0, 7, "ping", [{}, {"trace_id": "0123456789abcdef" * 2, "deadline_ms": 500}]],
    [2, "cancel", [7]],
)))  # fmt: skip
"""Requests that a toy orchestrator answers."""


@lru_cache(maxsize=1)
def golden() -> tuple[bytes, ...]:
    """Every golden frame of every service."""
    return tuple(
        frame
        for service in SERVICES
        for frames in golden_frames(service).values()
        for frame in frames.values()
    )


def frames(seed: str, count: int) -> Iterator[bytes]:
    """So many mutated frames, half of them still MessagePack; the same for the same seed."""
    random = Random(seed)
    known = SMALL + golden()
    for _ in range(count):
        frame = bytearray(random.choice(SMALL if random.random() < 0.5 else known))
        if random.random() < 0.5:
            yield _restructured(random, bytes(frame))
            continue
        for _ in range(random.choice(CHANGES)):
            _change_bytes(random, frame, known)
        yield bytes(frame)


def _restructured(random: Random, frame: bytes) -> bytes:
    """The same message with some of its values replaced, added or left out."""
    message = msgpack.unpackb(frame, strict_map_key=False)
    for _ in range(random.choice(CHANGES)):
        _change_value(random, message)
    return msgpack.packb(message)


def _change_value(random: Random, message: Any) -> None:
    """One change somewhere inside a list or map, in place."""
    node = message
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = random.choice(keys)
        if not isinstance(node[key], list | dict) or random.random() < 0.2:
            break
        node = node[key]
    kind = random.randrange(4)
    if kind == 0 and isinstance(node, dict):
        node[random.choice(NAMES)] = _value(random)
    elif kind == 1 and isinstance(node, list):
        node.insert(random.randrange(len(node) + 1), _value(random))
    elif kind == 2 and keys:
        del node[key]
    elif keys:
        node[key] = _value(random)


def _value(random: Random) -> Any:
    """A fresh copy, since later changes may go into it."""
    return msgpack.unpackb(random.choice(VALUES), strict_map_key=False)


def _change_bytes(random: Random, frame: bytearray, known: tuple[bytes, ...]) -> None:
    """One change in place."""
    kind = random.randrange(9)
    at = random.randrange(len(frame) + 1)
    end = min(len(frame), at + random.randint(1, 16))
    if kind == 0 and at < len(frame):
        frame[at] ^= 1 << random.randrange(8)
    elif kind == 1 and at < len(frame):
        frame[at] = random.randrange(256)
    elif kind == 2 and at < len(frame):
        frame[at] = random.choice(HEADS)
    elif kind == 3:
        del frame[at:end]
    elif kind == 4:
        frame[at:at] = random.choice(INSERTED)
    elif kind == 5:
        frame[at:at] = frame[at:end] * random.randint(1, 8)
    elif kind == 6:
        del frame[at:]
    elif kind == 7:
        other = random.choice(known)
        start = random.randrange(len(other))
        frame[at:end] = other[start : start + random.randint(1, 64)]
    else:
        frame[at:at] = random.randbytes(random.randint(1, 8))

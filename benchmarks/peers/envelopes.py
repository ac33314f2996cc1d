"""What a request of each peer carries: the raw row where it can, else what its protocol asks."""

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.generator import INPUTS

OCTETS = "application/octet-stream"


@dataclass(frozen=True)
class Sent:
    """A request's body and, for HTTP, headers, and how an answer's body becomes a row."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    read: Callable[[bytes], bytes] = bytes


def raw(_model: str, row: bytes) -> Sent:
    """The row's bytes themselves."""
    return Sent(row, {"Content-Type": OCTETS})


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field of less than 16 KiB. Source: protobuf's encoding page."""
    length = len(content)
    size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return bytes([number << 3 | 2]) + size + content


def open_inference(model: str, row: bytes) -> Sent:
    """A ModelInferRequest of the Open Inference Protocol with `raw_input_contents`."""
    tensor = _field(1, b"x") + _field(2, b"FP32") + _field(3, bytes([1, INPUTS[model]]))
    return Sent(_field(1, model.encode()) + _field(5, tensor) + _field(7, row))


def base64_json(_model: str, row: bytes) -> Sent:
    """The row as base64 in a JSON object; raw in the answer."""
    body = json.dumps({"row": base64.b64encode(row).decode()}).encode()
    return Sent(body, {"Content-Type": "application/json"})


def json_lists(_model: str, row: bytes) -> Sent:
    """A JSON list of one row, both ways."""
    rows = {"rows": [list(struct.unpack(f"<{len(row) // 4}f", row))]}
    return Sent(json.dumps(rows).encode(), {"Content-Type": "application/json"}, _read_lists)


def _read_lists(body: bytes) -> bytes:
    try:
        (row,) = json.loads(body)
        return struct.pack(f"<{len(row)}f", *row)
    except (ValueError, TypeError, struct.error):
        return b""


ENVELOPES: dict[str, Callable[[str, bytes], Sent]] = {
    "raw": raw,
    "open_inference": open_inference,
    "base64_json": base64_json,
    "json_lists": json_lists,
}

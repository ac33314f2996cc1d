"""What each client must get: computed here from the weights, with nothing but the library."""

import json
import struct
from pathlib import Path

from benchmarks.generator import row_of

TOLERANCE = 1e-4
"""Another batch size may round differently in the last bits, another row differs at once."""


def weights_path(home: Path) -> Path:
    """The safetensors file of `tiny`'s pack."""
    for manifest in sorted((home / "models").glob("*/manifest.json")):
        if json.loads(manifest.read_text())["contract"]["name"] == "tiny":
            return manifest.with_name("weights.safetensors")
    raise SystemExit(f"{home} has no pack of tiny: python -m services.jobs.bench_packs")


class Truth:
    """Outputs of `tiny` and `sleepy` by definition."""

    def __init__(self, weights: Path) -> None:
        raw = weights.read_bytes()
        (head,) = struct.unpack_from("<Q", raw)
        self._tensors: dict[str, tuple[float, ...]] = {}
        for name, row in json.loads(raw[8 : 8 + head]).items():
            if name != "__metadata__":
                begin, end = (8 + head + offset for offset in row["data_offsets"])
                self._tensors[name] = struct.unpack(f"<{(end - begin) // 4}f", raw[begin:end])

    def of(self, seed: int, model: str) -> bytes:
        """The output of client `seed`, little-endian FP32."""
        row = row_of(seed, model)
        values = list(struct.unpack(f"<{len(row) // 4}f", row))
        if model == "sleepy":
            return struct.pack("<f", values[0] * 2)
        hidden = [max(0.0, value) for value in self._layer(0, values)]
        return struct.pack("<2f", *self._layer(1, hidden))

    def _layer(self, number: int, values: list[float]) -> list[float]:
        weight = self._tensors[f"layers.{number}.weight"]
        width = len(values)
        return [
            bias + sum(one * weight[place * width + at] for at, one in enumerate(values))
            for place, bias in enumerate(self._tensors[f"layers.{number}.bias"])
        ]


def is_same(given: bytes, expected: bytes) -> bool:
    """Whether two rows of FP32 are equal up to rounding."""
    if given == expected:
        return True
    if len(given) != len(expected):
        return False
    numbers = f"<{len(given) // 4}f"
    pairs = zip(struct.unpack(numbers, given), struct.unpack(numbers, expected), strict=True)
    return all(abs(one - other) <= TOLERANCE for one, other in pairs)

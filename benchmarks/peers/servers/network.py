"""The two models that every peer serves, and what a server is told. torch on one thread.

A server is started as `python SERVER PLACE` in the peer's own virtual environment, with
`PEER_WEIGHTS` (the pack's safetensors file) and `PEER_WINDOW_MS_TINY`, `PEER_WINDOW_MS_SLEEPY`
(how long its batching may wait) in its environment. A request's body is the row as little-endian
FP32, an answer's the output row: the least that each protocol lets one send.
"""

import json
import os
import struct
import time
from pathlib import Path

import torch

ROWS_MAX = 32
"""The largest batch, as in Mortise's default policy."""
INPUTS, OUTPUTS = {"tiny": 64, "sleepy": 1}, {"tiny": 2, "sleepy": 1}
BATCH_S, ROW_S, FACTOR = 0.005, 0.0002, 2.0

torch.set_num_threads(1)
torch.set_grad_enabled(False)


def window_s(model: str) -> float:
    """How long the batching of a model may wait for more rows, in seconds."""
    return float(os.environ[f"PEER_WINDOW_MS_{model.upper()}"]) / 1e3


def load() -> torch.nn.Sequential:
    """`tiny` with the weights of the example's pack. Source of the format: safetensors' README."""
    raw = bytearray(Path(os.environ["PEER_WEIGHTS"]).read_bytes())
    (head,) = struct.unpack_from("<Q", raw)
    tensors = {}
    for name, row in json.loads(raw[8 : 8 + head]).items():
        if name != "__metadata__":
            begin, end = (8 + head + offset for offset in row["data_offsets"])
            flat = torch.frombuffer(raw[begin:end], dtype=torch.float32)
            tensors[name] = flat.reshape(row["shape"]).clone()
    layers: list[torch.nn.Module] = []
    for layer in range(2):
        weight = tensors[f"layers.{layer}.weight"]
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():  # Ray Serve constructs in a thread, where the switch above is unset
            linear.weight.copy_(weight)
            linear.bias.copy_(tensors[f"layers.{layer}.bias"])
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).eval()


class Model:
    """`tiny` or `sleepy`: bytes of rows in, bytes of rows out; one call at a time computes."""

    def __init__(self, name: str) -> None:
        self.name, self.inputs, self.outputs = name, INPUTS[name], OUTPUTS[name]
        self._network = load() if name == "tiny" else None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """FP32 [n, inputs] → FP32 [n, outputs]."""
        if self._network is not None:
            with torch.inference_mode():
                return self._network(rows)
        time.sleep(BATCH_S + ROW_S * len(rows))
        return rows * FACTOR

    def answer(self, bodies: list[bytes]) -> list[bytes]:
        """One body a row: computed together, answered apart."""
        flat = torch.frombuffer(bytearray(b"".join(bodies)), dtype=torch.float32)
        found = self.forward(flat.reshape(len(bodies), self.inputs)).numpy().tobytes()
        size = 4 * self.outputs
        return [found[place : place + size] for place in range(0, len(found), size)]

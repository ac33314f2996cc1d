"""BentoML: adaptive batching where a window is given, one worker; arrays as JSON lists.

BentoML's batched endpoints take arrays, over HTTP as JSON (or pickle, which is no fair transport).
Its batching adapts itself; a window above 0 only turns it on, with that as nothing but a switch.
"""

import os
import sys

import bentoml
import numpy
import torch
from network import ROWS_MAX, Model, window_s

_PLACE_BATCH = {"max_batch_size": ROWS_MAX}


def _endpoint(name: str) -> dict[str, object]:
    return {"batchable": True, **_PLACE_BATCH} if window_s(name) else {}


@bentoml.service(
    workers=1,
    traffic={"timeout": 30},
    logging={"access": {"enabled": False}},
    metrics={"enabled": False},
)
class Rows:
    """Both models."""

    def __init__(self) -> None:
        self.models = {name: Model(name) for name in ("tiny", "sleepy")}

    def _forward(self, name: str, rows: numpy.ndarray) -> numpy.ndarray:
        return self.models[name].forward(torch.from_numpy(rows.astype("float32"))).numpy()

    @bentoml.api(route="/tiny", **_endpoint("tiny"))
    async def tiny(self, rows: numpy.ndarray) -> numpy.ndarray:
        """FP32 [n, 64] → FP32 [n, 2]."""
        return self._forward("tiny", rows)

    @bentoml.api(route="/sleepy", **_endpoint("sleepy"))
    def sleepy(self, rows: numpy.ndarray) -> numpy.ndarray:
        """FP32 [n, 1] → FP32 [n, 1]."""
        return self._forward("sleepy", rows)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    command = [os.path.join(os.path.dirname(sys.executable), "bentoml"), "serve"]
    words = ["bentoml_server:Rows", "--working-dir", here, "--host", "127.0.0.1"]
    environment = {
        **os.environ, "BENTOML_DO_NOT_TRACK": "true", "BENTOML_HOME": os.getcwd(),
        "PYTHONPATH": here,
    }  # fmt: skip
    os.execve(command[0], [*command, *words, "--port", sys.argv[1]], environment)

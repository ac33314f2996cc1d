"""The peers: how each is installed, started and asked. One row each."""

import json
from dataclasses import dataclass, field
from pathlib import Path

WINDOWS_MS = (0.0, 1.0, 5.0, 10.0)
"""What a sweep tries."""
WINDOWS = Path(__file__).with_name("windows.json")
"""Written by `python -m benchmarks.peers.run --sweep`: what each window reached, and the best."""


@dataclass(frozen=True)
class Peer:
    """Its server is `servers/NAME_server.py`, its packages `requirements/NAME.txt`. `path` may name
    the model; `check_import` is empty for our own mesh, which needs no installation."""

    name: str
    title: str
    protocol: str = "http"
    socket: str = "tcp"
    path: str = "/{model}"
    envelope: str = "raw"
    how: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    check_import: str = ""

    @property
    def windows_ms(self) -> dict[str, float]:
        """Model → the batching window with which it was the fastest, from `windows.json`."""
        found: dict[str, float] = json.loads(WINDOWS.read_text()).get(self.name, {}).get("best", {})
        return {"tiny": 0.0, "sleepy": 0.0} | found


PEERS = (
    Peer(
        "mortise", "Mortise", "msgpack", "unix", "",
        how="MessagePack-RPC; contract checked, receipt written, lineage in each answer",
    ),
    Peer(
        "mosec", "Mosec",
        how="its Rust HTTP server and batching, raw bodies by serialize/deserialize, 1 worker",
        check_import="mosec",
    ),
    Peer(
        "fastapi", "FastAPI + torch", socket="unix",
        how="uvicorn with uvloop and httptools, 1 worker, raw bodies; hand-written batching",
        check_import="fastapi",
    ),
    Peer(
        "grpc_aio", "grpc.aio + torch", "grpc", "unix", "/Peer/{model}",
        how="generic handlers on raw messages, uvloop, hand-written batching",
        check_import="grpc",
    ),
    Peer(
        "litserve", "LitServe", envelope="base64_json",
        how="LitAPI with batching, fast_queue, 1 worker; base64 in JSON, raw answers",
        check_import="litserve",
    ),
    Peer(
        "ray_serve", "Ray Serve",
        how="HTTP proxy, throughput optimised, @serve.batch, 1 replica, raw bodies",
        environment={
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            # Direct ingress wants a load balancer in front that knows each replica's port.
            "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
        },
        check_import="ray",
    ),
    Peer(
        "bentoml", "BentoML", envelope="json_lists",
        how="NumPy arrays over JSON, 1 worker; adaptive batching where a window is given",
        check_import="bentoml",
    ),
    Peer(
        "mlserver", "MLServer", "grpc", "tcp", "/inference.GRPCInferenceService/ModelInfer",
        "open_inference",
        how="gRPC with raw contents, adaptive batching, in-process (parallel_workers 0)",
        check_import="mlserver",
    ),
    Peer(
        "pytriton", "PyTriton", "grpc", "tcp", "/inference.GRPCInferenceService/ModelInfer",
        "open_inference",
        how="gRPC with raw contents, dynamic batching, 1 instance",
        check_import="pytriton",
    ),
)  # fmt: skip
BY_NAME = {peer.name: peer for peer in PEERS}

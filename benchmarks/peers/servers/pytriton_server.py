"""PyTriton: Triton's own gRPC server and dynamic batcher in front of a Python function."""

import sys

import numpy
import torch
from network import INPUTS, OUTPUTS, ROWS_MAX, Model, window_s
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

if __name__ == "__main__":
    port = int(sys.argv[1])
    config = TritonConfig(
        grpc_port=port, http_port=port + 1, allow_metrics=False, grpc_address="127.0.0.1",
        http_address="127.0.0.1",
    )  # fmt: skip
    with Triton(config=config) as triton:
        for name in ("tiny", "sleepy"):
            model = Model(name)

            @batch
            def infer(x: numpy.ndarray, model: Model = model) -> dict[str, numpy.ndarray]:
                """A batch of rows."""
                return {"y": model.forward(torch.from_numpy(x.copy())).numpy()}

            delay_us = round(window_s(name) * 1e6)
            triton.bind(
                model_name=name,
                infer_func=infer,
                inputs=[Tensor(name="x", dtype=numpy.float32, shape=(INPUTS[name],))],
                outputs=[Tensor(name="y", dtype=numpy.float32, shape=(OUTPUTS[name],))],
                config=ModelConfig(
                    max_batch_size=ROWS_MAX,
                    batcher=DynamicBatcher(max_queue_delay_microseconds=delay_us),
                ),
                strict=False,
            )
        triton.serve()

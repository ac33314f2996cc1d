"""Torch tensors as inputs; here because importing torch takes seconds."""

import struct

import torch

from mortise.tensors import decode_data, encode_tensor, flat_list


def test_torch_tensors_are_taken_without_importing_torch() -> None:
    """A tensor, also one that needs a gradient and one of bfloat16, becomes its bytes."""
    tensor = encode_tensor("x", torch.ones(2, 3, requires_grad=True))
    assert (tensor["datatype"], tensor["shape"]) == ("FP32", [2, 3])
    assert tensor["data"] == struct.pack("<6f", *[1.0] * 6)
    half = encode_tensor("x", torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert (half["datatype"], half["data"]) == ("BF16", bytes.fromhex("c03f00c0"))
    assert decode_data(half).tolist() == flat_list(half) == [1.5, -2.0]

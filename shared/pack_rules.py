"""What a manifest must satisfy beyond its types. Pure: returns the first fault as a sentence."""

import math
import re
from collections.abc import Iterable
from itertools import pairwise

from contracts.inference import DATATYPE_BYTES
from contracts.pack import (
    TOKEN_INPUTS,
    Manifest,
    ModelContract,
    PackTensor,
    TensorContract,
    TokenContract,
)
from contracts.types import UNSET
from shared.pack_digests import weights_digest

MANIFEST = "manifest.json"
VIEW = "view.sql"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}\Z")
"""A file lies in the pack's own folder: no separator, no leading dot, hence no way out of it."""
RISK_LEVELS = (1, 2, 3)
files_max = 256
tensors_max = 16_384


def manifest_fault(manifest: Manifest) -> str | None:
    """Why this manifest cannot be a pack's, or None."""
    return (
        _files_fault(manifest)
        or _tensors_fault(manifest)
        or _contract_fault(manifest.contract)
        or _view_fault(manifest)
        or _repeated("encoder", (encoder.field for encoder in manifest.encoders))
    )


def _files_fault(manifest: Manifest) -> str | None:
    names = [file.path for file in manifest.files]
    if len(names) > files_max:
        return f"{len(names)} files, files_max is {files_max}"
    for name in names:
        if not FILE_NAME.match(name) or name == MANIFEST:
            return f"file {name[:80]!r} is not a plain name inside the pack"
    return _repeated("file", names)


def _tensors_fault(manifest: Manifest) -> str | None:
    if len(manifest.tensors) > tensors_max:
        return f"{len(manifest.tensors)} tensors, tensors_max is {tensors_max}"
    sizes = {file.path: file.bytes for file in manifest.files}
    for tensor in manifest.tensors:
        fault = _tensor_fault(tensor, sizes.get(tensor.file))
        if fault:
            return f"tensor {tensor.name[:80]!r}: {fault}"
    ordered = sorted(manifest.tensors, key=lambda tensor: (tensor.file, tensor.offset))
    for one, next_one in pairwise(ordered):
        if one.file == next_one.file and one.offset + one.bytes > next_one.offset:
            return f"tensors {one.name[:80]!r} and {next_one.name[:80]!r} overlap"
    repeated = _repeated("tensor", (tensor.name for tensor in manifest.tensors))
    if repeated:
        return repeated
    found = weights_digest(manifest.tensors)
    if found != manifest.weights:
        return f"weights is {manifest.weights}, the tensors' root is {found}"
    return None


def _tensor_fault(tensor: PackTensor, file_bytes: int | None) -> str | None:
    if file_bytes is None:
        return f"its file {tensor.file[:80]!r} is not in the pack"
    if tensor.datatype not in DATATYPE_BYTES:
        return f"datatype {tensor.datatype} has no fixed size"
    if any(length < 0 for length in tensor.shape):
        return f"shape {tensor.shape} has a negative length"
    expected = math.prod(tensor.shape) * DATATYPE_BYTES[tensor.datatype]
    if tensor.bytes != expected:
        return f"{tensor.datatype} {tensor.shape} takes {expected} bytes, bytes is {tensor.bytes}"
    if tensor.offset < 0 or tensor.offset + tensor.bytes > file_bytes:
        end = tensor.offset + tensor.bytes
        return f"bytes {tensor.offset}…{end} lie outside its file of {file_bytes}"
    return None


def _contract_fault(contract: ModelContract) -> str | None:
    for side, tensors in (("input", contract.inputs), ("output", contract.outputs)):
        names = (tensor.name for tensor in tensors)
        is_ragged = side == "input" and contract.tokens is not UNSET
        fault = _repeated(side, names) or (None if is_ragged else _rows_fault(tensors))
        if fault:
            return fault
    if contract.tokens is not UNSET and (fault := _tokens_fault(contract, contract.tokens)):
        return fault
    if not contract.outputs:
        return "the contract has no output"
    if not contract.inputs and contract.view is UNSET:
        return "the contract has neither inputs nor a view"
    if contract.task == "classifier":
        return _classifier_fault(contract)
    if contract.labels or contract.actions:
        return f"labels and actions are a classifier's, the task is {contract.task}"
    return None


def _rows_fault(tensors: Iterable[TensorContract]) -> str | None:
    for tensor in tensors:
        if not tensor.shape or tensor.shape[0] != -1 or -1 in tensor.shape[1:]:
            return f"{tensor.name[:80]!r}: −1 stands first in a shape and only there"
    return None


def _tokens_fault(contract: ModelContract, tokens: TokenContract) -> str | None:
    names = tuple(tensor.name for tensor in contract.inputs)
    if names not in (TOKEN_INPUTS[:1], TOKEN_INPUTS):
        received = ", ".join(names)[:80] or "none"
        return f"a token model's inputs are {' and '.join(TOKEN_INPUTS)}, received {received}"
    for tensor in contract.inputs:
        if tensor.datatype not in ("INT64", "INT32") or tensor.shape != [-1, -1]:
            received = f"{tensor.datatype} {tensor.shape}"
            return f"{tensor.name} is INT64 or INT32 [-1, -1], received {received}"
    if contract.view is not UNSET:
        return "a token model has no view"
    if tokens.pad_id >= tokens.vocabulary:
        return f"pad_id {tokens.pad_id} is outside the vocabulary of {tokens.vocabulary}"
    return None


def _classifier_fault(contract: ModelContract) -> str | None:
    labels = contract.labels
    if len(labels) < 2:
        return f"a classifier has at least 2 labels, received {len(labels)}"
    fault = _repeated("label", labels)
    if fault:
        return fault
    if contract.outputs[0].shape[1:] != [len(labels)]:
        return f"the first output has one column a label ({len(labels)})"
    for action in contract.actions:
        if action.label not in labels:
            return f"action {action.action!r} names the label {action.label!r}, unknown here"
    # Total: whatever the probabilities are, a rule fits. Without any rule no action is promised.
    for level in RISK_LEVELS if contract.actions else ():
        for label in labels:
            if not any(
                action.risk_level == level and action.label == label and action.probability_min == 0
                for action in contract.actions
            ):
                return f"no action with probability_min 0 for risk level {level}, label {label!r}"
    return None


def _view_fault(manifest: Manifest) -> str | None:
    view = manifest.contract.view
    inside = {file.path: file.digest for file in manifest.files}.get(VIEW)
    if view is UNSET:
        return f"{VIEW} is in the pack, the contract has no view" if inside else None
    if not manifest.encoders:
        return "a model with a view has encoders"
    if inside != view.digest:
        return f"the contract's view has digest {view.digest}, {VIEW} has {inside or 'none'}"
    return None


def _repeated(what: str, names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return f"{what} {name[:80]!r} appears twice"
        seen.add(name)
    return None

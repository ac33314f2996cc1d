"""What every backend must do, as checks that run against one of its packs.

Each check says what it found wrong as a sentence, or None. `mortise pack` runs them on each pack it
makes, `mortise pack --check` on a finished one; the tests run them on every backend we have.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contracts.errors import MeshError
from contracts.pack import TOKEN_INPUTS, Manifest
from contracts.types import UNSET
from services.model_runtime.backends.base import Array, Backend
from services.model_runtime.config import buffer_rows, lane_rows_max, warm_rows
from services.model_runtime.encoding import input_shapes
from services.model_runtime.mapping import NUMPY_TYPES

TOLERANCE = 1e-5
"""M14, float32: of a row's numbers, relative to the largest (at least 1), between batches."""
TOLERANCE_HALF = 2e-2
"""The same where weights are FP16 or BF16: BF16 has 8 bits of mantissa, a product is off by 2⁻⁹,
and sums of products by a few times that."""
sum_tolerance = 1e-4
"""A row of numbers ≥ 0 whose sum is 1 within this is taken for probabilities."""
_seed = 20130101
_rows = 7
_, MASK = TOKEN_INPUTS


@dataclass(frozen=True, slots=True)
class Subject:
    """A pack's content and its backend. `example`: what rows look like (each input's array), where
    random numbers would not do; `reference` computes what `forward` should."""

    manifest: Manifest
    kind: type[Backend]
    tensors: Mapping[str, Array]
    files: Mapping[str, bytes]
    example: Sequence[Array] | None = None
    reference: Callable[[Sequence[Array]], Sequence[Array]] | None = None

    def load(self) -> Backend:
        """A freshly loaded backend."""
        return self.kind.load(self.manifest, self.tensors, self.files)

    def inputs(self, rows: int, seed: int = 0, tokens: int = 6) -> list[Array]:
        """So many rows: of the example, each as often as it takes, moved a little; else random
        numbers, and zeros and ones where the input is whole numbers."""
        random = np.random.default_rng([_seed, seed, rows])
        made = []
        for place, contract in enumerate(input_shapes(self.manifest)):
            dtype = np.dtype(NUMPY_TYPES[contract.datatype]).newbyteorder("=")
            shape = (rows, *(tokens if size < 0 else size for size in contract.shape[1:]))
            if self.example is not None:
                taken = random.integers(0, len(self.example[place]), rows)
                array = self.example[place][taken]
                if dtype.kind == "f":
                    array = array + random.standard_normal(shape) / 64
            elif dtype.kind == "f":
                array = random.standard_normal(shape)
            elif contract.name == MASK and contract.shape[1:] == [-1]:
                array = np.ones(shape)
            else:
                array = random.integers(0, 2, shape)
            made.append(np.ascontiguousarray(array, dtype))
        return made

    @property
    def tolerance(self) -> float:
        """By the weights' datatypes."""
        datatypes = {tensor.datatype for tensor in self.manifest.tensors}
        datatypes |= {tensor.datatype for tensor in input_shapes(self.manifest)}
        return TOLERANCE_HALF if datatypes & {"FP16", "BF16"} else TOLERANCE


def check_shapes(subject: Subject) -> str | None:
    """Outputs of the contract's shapes and datatypes, for one row, many, and more than a buffer."""
    backend = subject.load()
    contract = subject.manifest.contract
    for rows in (1, 2, _rows, warm_rows, min(contract.rows_max, buffer_rows + 1)):
        outputs = backend.forward(subject.inputs(rows), rows)
        expected = [(rows, *output.shape[1:]) for output in contract.outputs]
        if [output.shape for output in outputs] != expected:
            found = [output.shape for output in outputs]
            return f"{rows} rows give outputs of shape {found}, {expected} are expected"
        for index, (output, wanted) in enumerate(zip(outputs, contract.outputs, strict=True)):
            dtype = np.dtype(NUMPY_TYPES[wanted.datatype]).newbyteorder("=")
            is_scores = contract.task == "classifier" and index == 0 and output.dtype.kind == "f"
            if output.dtype != dtype and not is_scores:
                return f"{wanted.name} is {output.dtype}, {dtype} is expected"
    return None


def check_finite(subject: Subject) -> str | None:
    """Finite numbers from finite numbers, as the contract of every reply asks."""
    for output in subject.load().forward(subject.inputs(_rows), _rows):
        if output.dtype.kind == "f" and not np.isfinite(output).all():
            return "an output is not finite for finite inputs: every such reply would be refused"
    return None


def check_logits(subject: Subject) -> str | None:
    """A classifier gives logits: the mesh takes their softmax, a second one would flatten them."""
    contract = subject.manifest.contract
    if contract.task != "classifier":
        return None
    scores = subject.load().forward(subject.inputs(_rows), _rows)[0].astype(np.float64)
    if (scores >= 0.0).all() and (np.abs(scores.sum(axis=1) - 1.0) <= sum_tolerance).all():
        return (
            f"{contract.outputs[0].name} of all {_rows} rows is at least 0 and sums to 1: these are"
            f" probabilities already, and the mesh takes the softmax of a classifier's first"
            f" output; return the logits (leave the softmax out), or the logarithm of"
            f" probabilities"
        )
    return None


def check_determinism(subject: Subject) -> str | None:
    """The same rows give the same bits, again and from a second load."""
    inputs = subject.inputs(_rows)
    first = subject.load()
    whole = [output.copy() for output in first.forward(inputs, _rows)]
    for name, backend in (("again", first), ("from a second load", subject.load())):
        for one, other in zip(whole, backend.forward(inputs, _rows), strict=True):
            if one.tobytes() != np.ascontiguousarray(other).tobytes():
                return f"the same rows give other numbers {name}"
    return None


def check_rows_are_alone(subject: Subject) -> str | None:
    """A row's numbers do not depend on its batch: strangers' requests travel together."""
    backend = subject.load()
    inputs = subject.inputs(_rows)
    together = [output.copy() for output in backend.forward(inputs, _rows)]
    alone = [backend.forward([one[row : row + 1] for one in inputs], 1) for row in range(_rows)]
    for place, whole in enumerate(together):
        apart = np.concatenate([outputs[place] for outputs in alone])
        found = distance(whole, apart)
        if found > subject.tolerance:
            name = subject.manifest.contract.outputs[place].name
            return (
                f"{name} of a row alone and in a batch of {_rows} differ by {found:.2g}, the limit"
                f" is {subject.tolerance:g}: the model mixes rows (a reduction over the first axis,"
                f" or batch normalisation in training mode)"
            )
    return None


def check_padding(subject: Subject) -> str | None:
    """Padding says nothing: a token model's rows are padded to the longest of their batch."""
    tokens = subject.manifest.contract.tokens
    if tokens is UNSET:
        return None
    backend = subject.load()
    inputs = subject.inputs(_rows)
    expected = [output.copy() for output in backend.forward(inputs, _rows)]
    widths = (3, 0) if tokens.pad_side == "left" else (0, 3)
    padded = [
        np.pad(array, ((0, 0), widths), constant_values=0 if one.name == MASK else tokens.pad_id)
        for array, one in zip(inputs, input_shapes(subject.manifest), strict=True)
    ]
    for one, other in zip(expected, backend.forward(padded, _rows), strict=True):
        found = distance(one, other)
        if found > subject.tolerance:
            return (
                f"three pad ids change a row by {found:.2g}, the limit is {subject.tolerance:g}:"
                f" leave them out of attention and means (attention_mask)"
            )
    return None


def check_nan_stays(subject: Subject) -> str | None:
    """A NaN in one row spoils no other row."""
    inputs = subject.inputs(_rows)
    backend = subject.load()
    clean = [output.copy() for output in backend.forward(inputs, _rows)]
    floats = [array for array in inputs if array.dtype.kind == "f"]
    for array in floats:
        array[2] = np.nan
    if not floats:
        return None
    rest = np.arange(_rows) != 2
    for before, after in zip(clean, backend.forward(inputs, _rows), strict=True):
        if distance(before[rest], after[rest]) > subject.tolerance:
            return "a NaN in one row changes other rows"
    return None


def check_answers_are_fresh(subject: Subject) -> str | None:
    """An answer outlives the next forward, and inputs stay as they were."""
    backend = subject.load()
    inputs, others = subject.inputs(_rows), subject.inputs(_rows, seed=1)
    before = [array.copy() for array in inputs]
    outputs = backend.forward(inputs, _rows)
    kept = [output.copy() for output in outputs]
    backend.forward(others, _rows)
    if any(a.tobytes() != b.tobytes() for a, b in zip(outputs, kept, strict=True)):
        return "an answer changes with the next forward: outputs must be fresh arrays"
    if any(a.tobytes() != b.tobytes() for a, b in zip(inputs, before, strict=True)):
        return "a forward changes its inputs"
    return None


def check_views_of_frames(subject: Subject) -> str | None:
    """Inputs are read-only views at any offset of a frame; a token model's are padded copies."""
    if subject.manifest.contract.tokens is not UNSET:
        return None
    backend = subject.load()
    inputs = subject.inputs(_rows)
    expected = [output.copy() for output in backend.forward(inputs, _rows)]
    views = [
        np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)
        for array in inputs
    ]
    for one, other in zip(expected, backend.forward(views, _rows), strict=True):
        if one.tobytes() != np.ascontiguousarray(other).tobytes():
            return "inputs at an odd offset give other numbers"
    return None


def check_weights_are_read_only(subject: Subject) -> str | None:
    """The tensors are mapped read-only and shared: nobody writes to them."""
    before = {name: array.tobytes() for name, array in subject.tensors.items()}
    backend = subject.load()
    backend.warm()
    backend.forward(subject.inputs(_rows), _rows)
    changed = [name for name, array in subject.tensors.items() if array.tobytes() != before[name]]
    return (
        f"tensor {changed[0]!r} was written to: mapped weights are read-only" if changed else None
    )


def check_lanes(subject: Subject) -> str | None:
    """Lanes give the same bits as `forward`, and none of no rows or more than the limit."""
    backend = subject.load()
    if backend.lane(0) is not None or backend.lane(lane_rows_max + 1) is not None:
        return f"there are lanes for 1 … {lane_rows_max} rows only"
    for rows in (1, _rows, lane_rows_max):
        lane = backend.lane(rows)
        if lane is None:
            continue
        inputs = subject.inputs(rows)
        lane.input[:] = inputs[0].tobytes()
        lane.forward()
        if bytes(lane.output) != backend.forward(inputs, rows)[0].tobytes():
            return f"the lane of {rows} rows gives other numbers than forward"
    return None


def check_cost(subject: Subject) -> str | None:
    """After warming a batch costs something finite, and more rows no less."""
    backend = subject.load()
    backend.warm()
    one_s, many_s = backend.cost(1), backend.cost(warm_rows)
    if not 0.0 <= one_s <= many_s < np.inf:
        return f"cost(1) is {one_s}, cost({warm_rows}) is {many_s}: 0 ≤ one ≤ many is expected"
    return None if isinstance(backend.waits, bool) else "waits is not a boolean"


def check_other_threads(subject: Subject) -> str | None:
    """The thread that calls may change between calls."""
    backend = subject.load()
    inputs = subject.inputs(_rows)
    expected = [output.copy() for output in backend.forward(inputs, _rows)]
    found: list[Sequence[Array] | Exception] = []

    def compute() -> None:
        try:
            found.append(backend.forward(inputs, _rows))
        except Exception as error:  # noqa: BLE001 — told by the check
            found.append(error)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    (outputs,) = found
    if isinstance(outputs, Exception):
        return f"on another thread it raises {type(outputs).__name__}: {str(outputs)[:200]}"
    if any(distance(a, b) > subject.tolerance for a, b in zip(expected, outputs, strict=True)):
        return "on another thread it gives other numbers"
    return None


def check_failures_pass(subject: Subject) -> str | None:
    """After a forward that raised, the next one is as before. Inputs of a wrong rank or size are to
    make it raise; one that computes them all the same is right too, since the runtime's
    `Preprocess` lets none of them through."""
    backend = subject.load()
    inputs = subject.inputs(_rows)
    expected = [output.copy() for output in backend.forward(inputs, _rows)]
    wrong = [np.zeros((_rows, 3, 5, 7), array.dtype) for array in inputs]
    try:
        backend.forward(wrong, _rows)
    except Exception as error:  # noqa: BLE001 — any is right; that it passes is what is asked
        if isinstance(error, MeshError) and error.name not in ("FORWARD_FAILED", "OUTPUT_INVALID"):
            return f"inputs of a wrong shape raise {error.name}"
    for one, other in zip(expected, backend.forward(inputs, _rows), strict=True):
        if distance(one, other) > subject.tolerance:
            return "after a failed forward it gives other numbers"
    return None


def check_closing(subject: Subject) -> str | None:
    """Once closed nothing holds the weights, so that their maps go."""
    tensors = {name: array.copy() for name, array in subject.tensors.items()}
    held = [weakref.ref(array) for array in tensors.values()]
    backend = subject.kind.load(subject.manifest, tensors, subject.files)
    backend.warm()
    backend.close()
    tensors.clear()
    gc.collect()
    left = sum(reference() is not None for reference in held)
    return f"{left} of {len(held)} tensors are held after close" if left else None


def check_reference(subject: Subject) -> str | None:
    """The same numbers as where the model comes from."""
    if subject.reference is None:
        return None
    backend = subject.load()
    for rows in (1, 2, 3, warm_rows):
        inputs = subject.inputs(rows)
        expected = subject.reference(inputs)
        for place, output in enumerate(backend.forward(inputs, rows)):
            found = distance(expected[place], output)
            if found > subject.tolerance:
                name = subject.manifest.contract.outputs[place].name
                return (
                    f"{name} is off by {found:.2g} for {rows} rows, {subject.tolerance:g} at most"
                )
    return None


def distance(one: Array, other: Array) -> float:
    """The largest difference, relative to the largest number (at least 1); equal bits are 0."""
    if one.shape != other.shape:
        return float("inf")
    if not one.size or np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes():
        return 0.0
    a, b = one.astype(np.float64), other.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    return float(np.abs(a - b).max() / max(1.0, np.abs(a).max()))


CHECKS: Mapping[str, Callable[[Subject], str | None]] = {
    "shapes": check_shapes,
    "finite": check_finite,
    "logits": check_logits,
    "determinism": check_determinism,
    "rows are alone": check_rows_are_alone,
    "padding": check_padding,
    "NaN stays in its row": check_nan_stays,
    "answers are fresh": check_answers_are_fresh,
    "views of frames": check_views_of_frames,
    "weights are read-only": check_weights_are_read_only,
    "lanes": check_lanes,
    "cost": check_cost,
    "other threads": check_other_threads,
    "failures pass": check_failures_pass,
    "closing": check_closing,
    "reference": check_reference,
}


def run_checks(subject: Subject, on_check: Callable[[str], None]) -> None:
    """Run all. Raises MeshError PACK_INVALID with the first that fails; `on_check` is told each
    before it runs."""
    for name, check in CHECKS.items():
        on_check(name)
        try:
            fault = check(subject)
        except MeshError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise MeshError(
                "PACK_INVALID", f"check {name!r}: {type(error).__name__}: {reason}"
            ) from error
        if fault:
            raise MeshError("PACK_INVALID", f"check {name!r}: {fault}")

"""Forward outputs → output tensors, predictions and actions, checked against the model's contract
on every reply (K5). Pure.

A row whose output breaks the contract fails alone with OUTPUT_INVALID; a wrong number of rows or
columns fails the forward, because nobody knows which row is whose (`check_shapes`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
import numpy as np

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.inference import Prediction, Tensor
from contracts.pack import Action, ModelContract
from contracts.types import UNSET
from services.model_runtime.config import shown_numbers_max
from services.model_runtime.mapping import NUMPY_TYPES, Array
from services.model_runtime.probabilities import are_probabilities, softmax

_encode = msgspec.msgpack.Encoder().encode
_NO_PREDICTIONS = msgspec.Raw(_encode([]))


@dataclass(frozen=True, slots=True)
class Checked:
    """Outputs of every row, failed ones as zeros; predictions of the good rows, one encoded list
    a request (empty for other tasks); the error of each row that failed here."""

    outputs: list[Tensor]
    predictions: list[msgspec.Raw]
    failed: dict[int, MeshError] = field(default_factory=dict)


class Postprocess:
    """The checks and rules of one model version."""

    def __init__(self, contract: ModelContract) -> None:
        self._contract = contract
        self._is_classifier = contract.task == "classifier"
        self._dtypes = [np.dtype(NUMPY_TYPES[tensor.datatype]) for tensor in contract.outputs]
        self._actions = {level: _Actions(contract, level) for level in (1, 2, 3)}

    def check(
        self, outputs: Sequence[Array], batch: Execute, rows: int, is_live: Array | None
    ) -> Checked:
        """Of outputs that passed `check_shapes`. `is_live` (booleans [rows], None: all): the
        others have failed already and count as failed rows."""
        if self._is_classifier:
            outputs = [softmax(outputs[0]), *outputs[1:]]
        valid = self._valid_rows(outputs, rows)
        failed = {} if valid is None else self._faults(outputs, batch, valid, is_live)
        good = _both(valid, is_live)
        predictions = self._predictions(outputs[0], good, batch) if self._is_classifier else []
        return Checked(self._tensors(outputs, good), predictions, failed)

    def nothing(self, batch: Execute, rows: int) -> Checked:
        """The answer to a batch in which every row failed before it came here."""
        outputs = [
            np.zeros((rows, *contract.shape[1:]), dtype)
            for contract, dtype in zip(self._contract.outputs, self._dtypes, strict=True)
        ]
        predictions = [_NO_PREDICTIONS] * len(batch.rows) if self._is_classifier else []
        return Checked(self._tensors(outputs, None), predictions)

    def check_shapes(self, outputs: Sequence[Array], batch: Execute, rows: int) -> None:
        """Raises MeshError OUTPUT_INVALID when the outputs of these rows have not the contract's
        shapes and datatypes; a classifier's scores may be of any floating-point type."""
        expected = [[rows, *contract.shape[1:]] for contract in self._contract.outputs]
        received = [list(output.shape) for output in outputs]
        if received != expected:
            raise MeshError(
                "OUTPUT_INVALID",
                f"{batch.model_name} version {batch.model_version}: outputs of shape {expected}"
                f" are expected, received {received}",
            )
        for index, (output, dtype) in enumerate(zip(outputs, self._dtypes, strict=True)):
            is_scores = self._is_classifier and index == 0
            if output.dtype != dtype and not (is_scores and output.dtype.kind == "f"):
                raise MeshError(
                    "OUTPUT_INVALID",
                    f"{batch.model_name} version {batch.model_version}:"
                    f" {self._contract.outputs[index].name} of {dtype.name} is expected,"
                    f" received {output.dtype.name}",
                )

    def _valid_rows(self, outputs: Sequence[Array], rows: int) -> Array | None:
        """Booleans [rows] that say which rows keep the contract; None when all do."""
        if self._is_classifier:
            valid = are_probabilities(outputs[0])
            outputs = outputs[1:]
            if not outputs and valid.all():
                return None
        else:
            if all(np.isfinite(output).all() for output in outputs if output.dtype.kind == "f"):
                return None
            valid = np.ones(rows, dtype=bool)
        for output in outputs:
            if output.dtype.kind == "f":
                valid &= np.isfinite(output.reshape(rows, -1)).all(axis=1)
        return valid

    def _tensors(self, outputs: Sequence[Array], good: Array | None) -> list[Tensor]:
        tensors = []
        for output, contract, dtype in zip(
            outputs, self._contract.outputs, self._dtypes, strict=True
        ):
            array = np.ascontiguousarray(output, dtype)
            if good is not None:
                array = np.where(good.reshape(-1, *[1] * (array.ndim - 1)), array, dtype.type(0))
            tensors.append(
                Tensor(
                    name=contract.name,
                    datatype=contract.datatype,
                    shape=list(array.shape),
                    data=array.data.cast("B") if array.size else memoryview(b""),
                )
            )
        return tensors

    def _faults(
        self, outputs: Sequence[Array], batch: Execute, valid: Array, is_live: Array | None
    ) -> dict[int, MeshError]:
        """The error of each live row that broke the contract."""
        broken = ~valid if is_live is None else ~valid & is_live
        claim = "probabilities that sum to 1" if self._is_classifier else "finite numbers"
        what = f"{batch.model_name} version {batch.model_version}: {self._contract.outputs[0].name}"
        return {
            row: MeshError(
                "OUTPUT_INVALID",
                f"{what} is {_shown(outputs[0][row])}, {claim} are expected",
            )
            for row in np.flatnonzero(broken).tolist()
        }

    def _predictions(
        self, probabilities: Array, good: Array | None, batch: Execute
    ) -> list[msgspec.Raw]:
        labels = self._contract.labels
        best = probabilities.argmax(axis=1)
        confidence = probabilities[np.arange(len(best)), best]
        actions = self._choose_actions(probabilities, batch)
        rows = [
            Prediction(
                label=labels[label],
                confidence_score=score,
                probabilities=dict(zip(labels, row, strict=True)),
                action=action,
            )
            for label, score, row, action in zip(
                best.tolist(), confidence.tolist(), probabilities.tolist(), actions, strict=True
            )
        ]
        is_good = [True] * len(rows) if good is None else good.tolist()
        return [
            msgspec.Raw(_encode([rows[i] for i in range(end - count, end) if is_good[i]]))
            for end, count in zip(accumulate(batch.rows), batch.rows, strict=True)
        ]

    def _choose_actions(
        self, probabilities: Array, batch: Execute
    ) -> Sequence[str | msgspec.UnsetType]:
        if not self._contract.actions:
            return [UNSET] * len(probabilities)
        levels = np.repeat(batch.risk_levels, batch.rows)
        chosen = np.empty(len(probabilities), dtype=object)
        for level in set(batch.risk_levels):
            of_level = levels == level
            chosen[of_level] = self._actions[level].choose(probabilities[of_level])
        return chosen.tolist()


class _Actions:
    """The rules of one risk level: of those whose label is probable enough, the one with the
    highest minimum; of equal minima the rule of the more probable label, then the first."""

    def __init__(self, contract: ModelContract, level: int) -> None:
        rules: list[Action] = [rule for rule in contract.actions if rule.risk_level == level]
        minima = np.array([rule.probability_min for rule in rules])
        self._names = np.array([rule.action for rule in rules], dtype=object)
        self._labels = np.array([contract.labels.index(rule.label) for rule in rules], dtype=int)
        self._minima = minima
        # Ranks are whole numbers and half a probability is below 1: it decides between equals only.
        self._ranks = np.searchsorted(np.unique(minima), minima).astype(float)

    def choose(self, probabilities: Array) -> Array:
        """The action of each row, as objects [n]."""
        asked = probabilities[:, self._labels]  # [n, rules]
        scores = np.where(asked >= self._minima, self._ranks + 0.5 * asked, -1.0)
        chosen: Array = self._names[scores.argmax(axis=1)]
        return chosen


def _shown(row: Array) -> str:
    """The first numbers of a row. numpy's own `array2string` leaves cycles behind."""
    numbers = row.reshape(-1)[:shown_numbers_max].tolist()
    return f"[{' '.join(f'{number:.6g}' for number in numbers)}]"


def _both(one: Array | None, other: Array | None) -> Array | None:
    """Both masks together; None is the mask of all rows."""
    if one is None or other is None:
        return other if one is None else one
    both: Array = one & other
    return both

"""What becomes of one request's rows: good rows with their features, and refused ones.

The same for both paths: decode and check the rows, compute, check the features, tell how old the
newest event is that was used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from contracts.features import ViewHeader
from services.data_fabric.closure import Closure
from services.data_fabric.field_rules import FieldRefused, broken_limit
from services.data_fabric.online import NEVER
from services.data_fabric.validation import Decoded, Refused, RowDecoder

Features = tuple[Any, ...]
"""One row's features in the header's order, then the newest event time used."""


@dataclass(slots=True)
class Outcome:
    """Features of the good rows in request order, and the refused rows. `freshness_s` is that of
    the row whose newest event is oldest; None when no row met an event."""

    rows: list[Features]
    refused: list[Refused]
    freshness_s: float | None

    def extend(self, other: "Outcome") -> None:
        """Append the outcome of the rows that follow."""
        self.rows += other.rows
        self.refused += other.refused
        ages_s = [age for age in (self.freshness_s, other.freshness_s) if age is not None]
        self.freshness_s = max(ages_s, default=None)


class Evaluator:
    """Turns a request's encoded rows into an outcome, for one view."""

    def __init__(self, header: ViewHeader, decoder: RowDecoder) -> None:
        self._header = header
        self._decoder = decoder
        self._event_us = attrgetter(f"c{list(header.request).index(header.event_time)}")

    def evaluate(self, raw: msgspec.Raw | bytes, closure: Closure, first: int = 0) -> Outcome:
        """The outcome by the closure, rows numbered from `first`. Raises MeshError
        INVALID_REQUEST."""
        decoded = self._decoder.decode(raw, first)
        checked = closure.checked
        try:
            rows = [checked(row) for row in decoded.rows]
        except ArithmeticError:
            rows = [None]
        if None in rows:
            return self.judge(decoded, [compute(closure, row) for row in decoded.rows])
        return Outcome(rows, decoded.refused, self._freshness_s(decoded.rows, rows))  # type: ignore[arg-type]

    def decode(self, raw: msgspec.Raw | bytes) -> Decoded:
        """The request's rows, for a path that computes them elsewhere."""
        return self._decoder.decode(raw)

    def judge(self, decoded: Decoded, computed: Sequence[Features | FieldRefused]) -> Outcome:
        """The outcome of features that are not checked yet, or could not be computed."""
        kept, kept_requests, refused = [], [], list(decoded.refused)
        for at, request, features, raw in zip(
            decoded.indexes, decoded.rows, computed, decoded.raws(), strict=True
        ):
            checked = self._checked(features)
            if isinstance(checked, FieldRefused):
                refused.append(Refused(at, checked.error(at), raw))
            else:
                kept.append(checked)
                kept_requests.append(request)
        refused.sort(key=lambda one: one.row)
        return Outcome(kept, refused, self._freshness_s(kept_requests, kept))

    def _checked(self, features: Features | FieldRefused) -> Features | FieldRefused:
        if isinstance(features, FieldRefused):
            return features
        for (name, contract), value in zip(self._header.fields.items(), features, strict=False):
            limit = broken_limit(contract, value)
            if limit is not None:
                return FieldRefused(name, limit, value)
        return features

    def _freshness_s(self, requests: list[Any], rows: list[Features]) -> float | None:
        event_us = self._event_us
        ages_us = [
            event_us(request) - features[-1]
            for request, features in zip(requests, rows, strict=True)
            if features[-1] != NEVER
        ]
        return max(ages_us) / 1e6 if ages_us else None


def compute(closure: Closure, row: Any) -> Features | FieldRefused:
    """One row's features unchecked; or why they cannot be computed."""
    try:
        return closure.values(row)
    except ArithmeticError as error:
        return FieldRefused("row", "features that can be computed", str(error))

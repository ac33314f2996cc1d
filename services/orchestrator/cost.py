"""What a batch of one model version costs: forward seconds ≈ `batch_s` + `row_s` · rows +
`token_s` · tokens (0 without tokens), fitted online. Pure: reads no clock.

Weighted least squares over running sums that forget: each new batch counts fully, the one before
it `keep` times as much, and so on, so that the fit follows a model whose speed changes. Invariants:
both coefficients are never negative and always finite; with rows that never differ, where a slope
cannot be told from an offset, the estimate at those rows is still their mean. A batch far slower or
faster than expected is cut back to `outlier_spreads` times the usual distance before it counts: a
pause of the machine hardly moves the fit, while a lasting change widens the usual distance and is
followed within some tens of batches.

Source: the running-sums form of recursive least squares with exponential forgetting (Ljung, "System
Identification", 2nd ed., 11.2); the cut is Huber's.
"""

from services.orchestrator.config import (
    cost_batches_kept,
    cost_batches_min,
    cost_outlier_spreads,
)
from services.orchestrator.token_cost import TokenSums

_keep = 1.0 - 1.0 / cost_batches_kept
_spread_share_min = 0.05
"""A fit that was exact so far still takes a twentieth more as usual."""
_spread_s_min = 20e-6
_variance_min = 0.05
"""Rows² below which rows count as constant."""


class CostModel:
    """The fit of one model version. `batches` counted so far; times in seconds.

    `overhead_s` is what a batch takes beside its forward: on its way, before and after it.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.batch_s = 0.0
        self.row_s = 0.0
        self.token_s = 0.0
        self.overhead_s = 0.0
        self.spread_s = 0.0
        self._weight = 0.0
        self._rows = 0.0
        self._rows_rows = 0.0
        self._time = 0.0
        self._rows_time = 0.0
        self._tokens: TokenSums | None = None

    @property
    def is_known(self) -> bool:
        """Enough batches were seen to decide by."""
        return self.batches >= cost_batches_min

    def predict_s(self, rows: float, tokens: float = 0.0) -> float:
        """The expected forward of a batch of so many rows, and tokens as computed."""
        return self.batch_s + self.row_s * rows + self.token_s * tokens

    def add(self, rows: int, forward_s: float, overhead_s: float, tokens: int = 0) -> None:
        """Count a batch of `rows` ≥ 1 rows; both times are ≥ 0. `tokens` ≥ 0, as computed: of a
        version with tokens in each batch, else in none."""
        took_s = self._usual(rows, forward_s, tokens)
        self.batches += 1
        count = float(rows)
        self._weight = self._weight * _keep + 1.0
        self._rows = self._rows * _keep + count
        self._rows_rows = self._rows_rows * _keep + count * count
        self._time = self._time * _keep + took_s
        self._rows_time = self._rows_time * _keep + count * took_s
        share = max(1.0 / self.batches, 1.0 / cost_batches_kept)
        self.overhead_s += (overhead_s - self.overhead_s) * share
        if tokens:
            self._fit_tokens(count, float(tokens), took_s)
        else:
            self._fit()

    def _fit_tokens(self, rows: float, tokens: float, took_s: float) -> None:
        if self._tokens is None:
            self._tokens = TokenSums()
        self._tokens.add(rows, tokens, took_s, _keep)
        self.batch_s, self.row_s, self.token_s = self._tokens.fit(self.row_s, self.token_s)

    def _usual(self, rows: int, forward_s: float, tokens: int) -> float:
        """The time as it counts: not farther from what is expected than usual."""
        if not self.is_known:
            return forward_s
        expected_s = self.predict_s(rows, tokens)
        distance_s = forward_s - expected_s
        least_s = _spread_share_min * expected_s + _spread_s_min
        limit_s = cost_outlier_spreads * max(self.spread_s, least_s)
        cut_s = min(limit_s, max(-limit_s, distance_s))
        self.spread_s += (abs(cut_s) - self.spread_s) / cost_batches_kept
        return max(0.0, expected_s + cut_s)

    def _fit(self) -> None:
        """The line through the sums; a coefficient that would be negative is 0 and the other one
        is fitted alone."""
        weight = self._weight
        mean_rows, mean_s = self._rows / weight, self._time / weight
        variance = self._rows_rows / weight - mean_rows * mean_rows
        if variance < _variance_min:
            # No slope to be seen: the last one stays, as far as it explains no more than is there.
            row_s = min(self.row_s, mean_s / mean_rows)
        else:
            covariance = self._rows_time / weight - mean_rows * mean_s
            row_s = max(0.0, covariance / variance)
            if row_s * mean_rows > mean_s:
                row_s = self._rows_time / self._rows_rows  # through the origin
        self.row_s = row_s
        self.batch_s = max(0.0, mean_s - row_s * mean_rows)

"""The plane seconds ≈ a + b · rows + c · tokens through batches that are forgotten slowly. Pure.

Rows and tokens often grow together, so that the batches alone cannot tell what a row costs from
what a token does. So each fit begins at the last one and moves no farther from it than the batches
ask: minimised are the squared distances plus `_pull` of the move, each slope measured on the scale
of its own spread. Where both slopes can be seen the pull vanishes within some batches, since each
fit begins where the last one ended; where they cannot, only what can be seen of them moves. A
coefficient that would be negative is 0, and the others are fitted without it; so all three are
finite and never negative.

Source: the proximal point method on least squares (Rockafellar, "Monotone operators and the
proximal point algorithm", SIAM J. Control 14, 1976), one step a batch.
"""

_pull = 1e-3
_rows_variance_min = 0.05
_tokens_variance_min = 5.0
"""Below these rows² or tokens² count as constant: no slope is seen."""
Moments = tuple[float, float, float, float, float]
"""Of rows and tokens: rows², rows · tokens, tokens², rows · seconds, tokens · seconds."""


class TokenSums:
    """Running sums over batches; each weighs `keep` times as much as the one after it."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._rows = 0.0
        self._tokens = 0.0
        self._time = 0.0
        self._squares: Moments = (0.0, 0.0, 0.0, 0.0, 0.0)

    def add(self, rows: float, tokens: float, took_s: float, keep: float) -> None:
        """Count a batch."""
        self._weight = self._weight * keep + 1.0
        self._rows = self._rows * keep + rows
        self._tokens = self._tokens * keep + tokens
        self._time = self._time * keep + took_s
        rr, rt, tt, rs, ts = self._squares
        self._squares = (
            rr * keep + rows * rows,
            rt * keep + rows * tokens,
            tt * keep + tokens * tokens,
            rs * keep + rows * took_s,
            ts * keep + tokens * took_s,
        )

    def fit(self, row_s: float, token_s: float) -> tuple[float, float, float]:
        """Seconds a batch, a row and a token; the last two were `row_s` and `token_s` so far."""
        weight = self._weight
        rows, tokens, mean_s = self._rows / weight, self._tokens / weight, self._time / weight
        rr, rt, tt, rs, ts = self._squares
        centred = (
            max(0.0, rr / weight - rows * rows),
            rt / weight - rows * tokens,
            max(0.0, tt / weight - tokens * tokens),
            rs / weight - rows * mean_s,
            ts / weight - tokens * mean_s,
        )
        slopes = slopes_of(centred, row_s, token_s)
        batch_s = mean_s - slopes[0] * rows - slopes[1] * tokens
        if batch_s < 0.0:
            around_0 = (rr / weight, rt / weight, tt / weight, rs / weight, ts / weight)
            slopes = slopes_of(around_0, row_s, token_s)
            batch_s = 0.0
        return batch_s, slopes[0], slopes[1]


def slopes_of(moments: Moments, row_s: float, token_s: float) -> tuple[float, float]:
    """The slopes, neither negative, that explain the moments and are next to the last ones."""
    rr, rt, tt, rs, ts = moments
    pull_r, pull_t = _pull * max(rr, _rows_variance_min), _pull * max(tt, _tokens_variance_min)
    # What the last slopes leave unexplained is what moves them.
    left_r = rs - rr * row_s - rt * token_s
    left_t = ts - rt * row_s - tt * token_s
    a, d = rr + pull_r, tt + pull_t
    determinant = a * d - rt * rt  # > 0: rt² ≤ rr · tt (Cauchy), and both pulls are positive
    if determinant > 0.0:
        rows = row_s + (left_r * d - left_t * rt) / determinant
        tokens = token_s + (left_t * a - left_r * rt) / determinant
        if rows >= 0.0 and tokens >= 0.0:
            return rows, tokens
    # One is 0; the other alone has then to explain everything.
    only_rows = max(0.0, row_s + (rs - rr * row_s) / a)
    only_tokens = max(0.0, token_s + (ts - tt * token_s) / d)
    if _gain(only_rows, rr, rs) >= _gain(only_tokens, tt, ts):
        return only_rows, 0.0
    return 0.0, only_tokens


def _gain(slope: float, squares: float, products: float) -> float:
    """By how much a slope alone lowers the mean squared distance."""
    return slope * (2.0 * products - slope * squares)

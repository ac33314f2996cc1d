"""Commits that are tried again while an instance is away."""

import pytest

from mortise import generated as sdk
from mortise.cli import patience
from mortise.result import Record


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited, without waiting."""
    found: list[float] = []
    monkeypatch.setattr(patience.time, "sleep", found.append)
    return found


class Commit:
    """Refuses so often, then answers."""

    def __init__(self, refusals: int, error: Exception) -> None:
        self.refusals, self.error, self.calls = refusals, error, 0

    def __call__(self) -> Record:
        """One attempt."""
        self.calls += 1
        if self.calls <= self.refusals:
            raise self.error
        return Record({"version": 7})


def test_an_absent_instance_is_waited_for(
    waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """By the hint, saying so each time on standard error alone."""
    error = sdk.PolicyRejected("model_runtime.0: not connected", retry_after_ms=500)
    assert patience.patiently(Commit(2, error)).version == 7
    assert waits == [0.5, 0.5]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("not connected; this passes, trying again in 0.5 s") == 2


def test_patience_ends(waits: list[float]) -> None:
    """After AGAIN_S_MAX the refusal is the caller's, whatever the hint."""
    for hint_ms in (0, 500, 60_000):
        waits.clear()
        commit = Commit(1_000, sdk.PolicyRejected("silent for 250 ms", retry_after_ms=hint_ms))
        with pytest.raises(sdk.PolicyRejected):
            patience.patiently(commit)
        assert sum(waits) == pytest.approx(patience.AGAIN_S_MAX, abs=patience.WAIT_S_MAX)
        assert commit.calls == len(waits) + 1 <= 51


@pytest.mark.parametrize(
    "error", [sdk.PolicyRejected("said no"), sdk.Unavailable("x", retry_after_ms=9)]
)
def test_a_refusal_that_stays_is_raised_at_once(error: Exception, waits: list[float]) -> None:
    """A sign-off that is missing does not come by waiting."""
    commit = Commit(1, error)
    with pytest.raises(type(error)):
        patience.patiently(commit)
    assert (commit.calls, waits) == (1, [])

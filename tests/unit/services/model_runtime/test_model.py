"""A batch through a model: every row ends in an output or an error of its own request."""

import gc
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from contracts.errors import MeshError
from contracts.execution import Execute
from services.model_runtime.config import poisoned_batches
from services.model_runtime.isolation import forwards_max, forwards_per_row_max
from services.model_runtime.model import Outcome
from shared.clock import ManualClock

Make = Callable[..., Any]


def y(outcome: Outcome) -> list[list[float]]:
    """The output's rows."""
    (output,) = outcome.outputs
    return np.frombuffer(output.data, "<f4").reshape(output.shape).tolist()


def failures(outcome: Outcome) -> dict[int, tuple[str, str]]:
    """Error name and trace id by row."""
    return {row: (error.name, error.trace_id[-1]) for row, error in outcome.errors.items()}


def test_a_batch_is_computed_whole(make_model: Make, make_batch: Make, clock: ManualClock) -> None:
    """All rows in one forward, no error."""
    model, backend = make_model()
    outcome = model.run(make_batch([1, 2]), clock.monotonic_us())
    assert y(outcome) == [[0, 2], [4, 6], [8, 10]]
    assert backend.forwards == [3]
    assert outcome.errors == {}


def test_stage_times_are_measured(make_model: Make, make_batch: Make, clock: ManualClock) -> None:
    """The forward's time is the forward's."""

    def slow(x: Any) -> Any:
        clock.advance(0.25)
        return x

    model, _ = make_model(slow)
    times = model.run(make_batch([1]), clock.monotonic_us()).times
    assert (times.tokenize, times.forward, times.postprocess) == (0, 250_000, 0)


def test_an_expired_request_fails_and_its_batch_mates_do_not(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """The deadline is checked when the batch is taken up, against the time since its arrival."""
    model, backend = make_model()
    received_us = clock.monotonic_us()
    clock.advance(0.002)
    outcome = model.run(make_batch([1, 2], deadlines_us=[1_999, 2_001]), received_us)
    assert failures(outcome) == {0: ("DEADLINE_EXCEEDED", "0")}
    assert outcome.errors[0].details == {"stage": "batch", "hop": "model_runtime"}
    assert y(outcome) == [[0, 0], [4, 6], [8, 10]]
    assert backend.forwards == [3]


def test_nothing_is_computed_when_every_request_has_expired(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """At the deadline is too late."""
    model, backend = make_model()
    received_us = clock.monotonic_us()
    clock.advance(0.002)
    outcome = model.run(make_batch([1, 2], deadlines_us=[2_000, 0]), received_us)
    assert [name for name, _ in failures(outcome).values()] == ["DEADLINE_EXCEEDED"] * 3
    assert backend.forwards == []
    assert y(outcome) == [[0, 0]] * 3


def test_a_forward_that_raises_fails_every_row_under_its_own_trace(
    make_model: Make, make_batch: Make, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """FORWARD_FAILED tells the kind; the log has the message, and a record for each request."""

    def fail(x: Any) -> Any:
        raise ValueError("secret 4711")

    model, _ = make_model(fail)
    outcome = model.run(make_batch([1, 2]), clock.monotonic_us())
    assert failures(outcome) == {
        0: ("FORWARD_FAILED", "0"), 1: ("FORWARD_FAILED", "1"), 2: ("FORWARD_FAILED", "1")
    }  # fmt: skip
    assert outcome.errors[0].message == "fake version 1, 1 rows: ValueError"
    logged = capsys.readouterr().err
    assert "secret 4711" in logged
    assert "0" * 32 in logged
    assert "0" * 31 + "1" in logged


def test_a_backend_out_of_memory_is_said_as_such(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """An error that the backend mapped passes through."""

    def fail(x: Any) -> Any:
        raise MeshError("MEMORY_EXHAUSTED", "a forward of 1 rows")

    model, _ = make_model(fail)
    outcome = model.run(make_batch([1]), clock.monotonic_us())
    assert failures(outcome) == {0: ("MEMORY_EXHAUSTED", "0")}


def test_a_wrong_number_of_rows_names_model_expected_and_received(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """Nobody knows which row is whose; rows that fail alone too have the counts of that forward."""
    model, _ = make_model(lambda x: x[:0])
    outcome = model.run(make_batch([1, 1]), clock.monotonic_us())
    assert failures(outcome) == {0: ("OUTPUT_INVALID", "0"), 1: ("OUTPUT_INVALID", "1")}
    message = outcome.errors[0].message
    assert "fake version 1" in message
    assert "[[1, 2]] are expected, received [[0, 2]]" in message


def test_an_invalid_row_and_an_expired_one_each_have_their_error(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """A row that had expired is not also judged by its output."""

    def spoil(x: Any) -> Any:
        return np.where(np.arange(len(x))[:, None] < 2, np.float32("nan"), x)

    model, _ = make_model(spoil)
    received_us = clock.monotonic_us()
    clock.advance(0.001)
    batch: Execute = make_batch([1, 1, 1], deadlines_us=[1_000, 5_000, 5_000])
    assert failures(model.run(batch, received_us)) == {
        0: ("DEADLINE_EXCEEDED", "0"), 1: ("OUTPUT_INVALID", "1")
    }  # fmt: skip


def test_a_batch_without_trace_ids_is_answered_too(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """They are optional in the contract."""
    model, _ = make_model(lambda x: x[:0])
    outcome = model.run(make_batch([1], trace_ids=[]), clock.monotonic_us())
    assert outcome.errors[0].trace_id == ""


def test_a_batch_that_breaks_the_contract_fails_in_each_row(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """INVALID_REQUEST, and nothing is computed."""
    model, backend = make_model()
    outcome = model.run(make_batch([1, 1], columns=3), clock.monotonic_us())
    assert [name for name, _ in failures(outcome).values()] == ["INVALID_REQUEST"] * 2
    assert backend.forwards == []


def raising_at(*bad: float) -> Callable[[Any], Any]:
    """A forward that raises while one of these is the first number of a row, else doubles."""

    def compute(x: Any) -> Any:
        if np.isin(x[:, 0], bad).any():
            raise ValueError("bad row")
        return x * 2

    return compute


@pytest.mark.parametrize("bad", range(32))
def test_a_row_that_makes_the_forward_raise_fails_alone(
    make_model: Make, make_batch: Make, clock: ManualClock, bad: int
) -> None:
    """Wherever it is among 32: the others are answered as ever, after log2 32 + 1 more forwards at
    most, and the outcome says how many."""
    model, backend = make_model(raising_at(2.0 * bad))
    outcome = model.run(make_batch([1] * 32), clock.monotonic_us())
    assert [name for name, _ in failures(outcome).values()] == ["FORWARD_FAILED"]
    assert list(outcome.errors) == [bad]
    expected = [[4.0 * row, 4.0 * row + 2] if row != bad else [0, 0] for row in range(32)]
    assert y(outcome) == expected
    assert outcome.times.extra_forwards == len(backend.forwards) - 1 <= 6
    assert outcome.times.isolated_rows == 1


def test_a_failed_row_has_no_prediction_and_its_mates_have(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """A request of several rows keeps those that are good, whatever else failed beside them."""

    def compute(x: Any) -> Any:
        return np.where(x[:, :1] == 6, np.float32("nan"), raising_at(2.0)(x))

    model, _ = make_model(compute, task="classifier")
    outcome = model.run(make_batch([2, 2, 1]), clock.monotonic_us())
    assert failures(outcome) == {1: ("FORWARD_FAILED", "0"), 3: ("OUTPUT_INVALID", "1")}
    assert [len(msgspec.msgpack.decode(raw)) for raw in outcome.predictions] == [1, 1, 1]


def test_a_row_without_an_output_fails_alone(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """A model that drops a row returns the wrong number of them: only that row is failed."""
    model, _ = make_model(lambda x: x[x[:, 0] != 4])
    outcome = model.run(make_batch([1] * 4), clock.monotonic_us())
    assert failures(outcome) == {2: ("OUTPUT_INVALID", "2")}
    assert y(outcome) == [[0, 1], [2, 3], [0, 0], [6, 7]]


def test_an_expired_row_is_not_tried_again(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """It was in the forward that failed; only the live ones are computed after it."""
    model, backend = make_model(raising_at(0.0))
    received_us = clock.monotonic_us()
    clock.advance(0.001)
    batch = make_batch([1, 1, 1], deadlines_us=[1_000, 5_000, 5_000])
    outcome = model.run(batch, received_us)
    assert failures(outcome) == {0: ("DEADLINE_EXCEEDED", "0")}
    assert y(outcome) == [[0, 0], [4, 6], [8, 10]]
    assert backend.forwards == [3, 1, 1]


def test_a_poisoned_model_is_given_up_within_its_bound(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """Every forward fails: four bad rows are looked for and the others tried alone; after three
    such batches one is looked for; a batch with a good row ends that."""
    is_poisoned = [True]

    def compute(x: Any) -> Any:
        if is_poisoned[0]:
            raise ValueError
        return raising_at(0.0)(x)

    model, backend = make_model(compute)
    for _ in range(poisoned_batches):
        backend.forwards.clear()
        outcome = model.run(make_batch([1] * 32), clock.monotonic_us())
        assert (len(outcome.errors), len(backend.forwards)) == (32, 1 + forwards_max(32) + 28)
    backend.forwards.clear()
    outcome = model.run(make_batch([1] * 32), clock.monotonic_us())
    assert (len(outcome.errors), len(backend.forwards)) == (32, 1 + forwards_per_row_max(32))
    assert "undecided for 31 rows after 6 more forwards" in outcome.errors[31].message
    is_poisoned[0] = False
    model.run(make_batch([1] * 32), clock.monotonic_us())
    assert model._forward.poisoned == 0


def test_isolation_ends_when_nobody_waits_any_more(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """Cancelled between two forwards, or past every deadline: no further forward begins."""

    def slow(x: Any) -> Any:
        clock.advance(0.01)
        raise ValueError

    model, backend = make_model(slow)
    is_gone = iter([False, True])
    model.run(make_batch([1] * 8), clock.monotonic_us(), lambda: next(is_gone, True))
    assert backend.forwards == [8, 4]
    backend.forwards.clear()
    outcome = model.run(make_batch([1] * 8, deadlines_us=[15_000] * 8), clock.monotonic_us())
    assert backend.forwards == [8, 4]
    assert {name for name, _ in failures(outcome).values()} == {"DEADLINE_EXCEEDED"}
    assert outcome.errors[0].details == {"stage": "forward", "hop": "model_runtime"}


def test_out_of_memory_on_request_k_and_k_plus_1_works(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """MEMORY_EXHAUSTED is that request's alone, batched with others or not."""

    def compute(x: Any) -> Any:
        if (x[:, 0] == 4).any():
            raise MeshError("MEMORY_EXHAUSTED", f"a forward of {len(x)} rows")
        return x * 2

    model, _ = make_model(compute)
    outcome = model.run(make_batch([1] * 8), clock.monotonic_us())
    assert failures(outcome) == {2: ("MEMORY_EXHAUSTED", "2")}
    assert y(outcome)[3] == [12, 14]
    assert y(model.run(make_batch([1]), clock.monotonic_us())) == [[0, 2]]


def test_a_failed_batch_leaves_no_cycle(
    make_model: Make, make_batch: Make, clock: ManualClock
) -> None:
    """What failed is let go of with the answer, not at some later garbage collection."""
    model, _ = make_model(raising_at(2.0, 8.0))
    batch = make_batch([1] * 8)
    model.run(batch, clock.monotonic_us())
    gc.collect()
    gc.disable()
    try:
        model.run(batch, clock.monotonic_us())
        assert gc.collect() == 0
    finally:
        gc.enable()

"""What is learnt of a token model's batches, and what a part that goes alone is charged by it."""

from collections.abc import Mapping, Sequence

import pytest

from contracts.inference import InferenceRequest
from services.orchestrator.batching import Window
from services.orchestrator.config import cost_batches_min
from services.orchestrator.execution import Batch
from services.orchestrator.forecast import Forecast
from services.orchestrator.plan import ModelPlan
from services.orchestrator.queue import Queue
from services.orchestrator.replica import Replica
from services.orchestrator.request import Part
from services.orchestrator.tokens import TokenRows, divide_tokens
from tests.unit.services.orchestrator.making import executed, part_for, plan_for, token_contract

PLAN = plan_for(token_contract(row_tokens_max=4_000))
WINDOW = Window(0.01, 32, tokens_max=4_000, tokens_split=1_000)
WEIGHTS = {1: 100.0, 2: 50.0, 3: 10.0}
SHORT_TOKEN_US, LONG_TOKEN_US = 2, 20


def nobody(_plan: ModelPlan) -> Mapping[int, Sequence[Replica]]:
    """No replicas."""
    return {}


def batch_of(*lengths: int) -> Batch:
    """One row each; over `tokens_split` alone."""
    parts = []
    for length in lengths:
        part: Part = part_for(PLAN, 1)
        part.tokens = part.longest = length
        part.lengths = [length]
        part.is_alone = length > WINDOW.tokens_split
        part.charge = max(1, -(-length * WINDOW.rows_max // WINDOW.tokens_max))
        parts.append(part)
    return Batch(PLAN, parts, 0.0)


def learn(forecast: Forecast, *lengths: int, count: int = cost_batches_min) -> None:
    """Batches of these lengths: 1 ms and 2 µs a token, of a lone one 20 µs."""
    for _ in range(count):
        batch = batch_of(*lengths)
        token_us = LONG_TOKEN_US if batch.is_lone else SHORT_TOKEN_US
        took_us = 1_000 + token_us * batch.tokens
        forecast.learn(batch, executed(len(lengths), forward_us=took_us))


def request(*lengths: int) -> TokenRows:
    """A request of these lengths, divided."""
    rows = [[1] * length for length in lengths]
    body = InferenceRequest(model_name="wordy", input_ids=rows)
    return divide_tokens(body, PLAN, WINDOW)


@pytest.fixture
def forecast() -> Forecast:
    """Nothing learnt."""
    return Forecast(Queue(lambda _model: WINDOW, WEIGHTS), nobody)


def test_long_ones_do_not_spoil_what_is_known_of_short_ones(forecast: Forecast) -> None:
    """A token of theirs costs ten times as much, and both kinds are predicted as they are."""
    for number in range(40):
        learn(forecast, *[10 + number % 7] * (1 + number % 8), count=1)
        learn(forecast, 1_500 + 50 * (number % 9), count=1)
    short, long = batch_of(12, 12, 12, 12), batch_of(1_800)
    assert forecast.expected_s(short) == pytest.approx(1_096e-6, rel=0.02)
    assert forecast.expected_s(long) == pytest.approx(37_000e-6, rel=0.02)
    found = forecast.statistics()
    assert found["cost_lone_token_us wordy 1"] == pytest.approx(LONG_TOKEN_US, rel=0.05)


def test_a_lone_part_is_charged_the_batches_that_it_keeps_away(forecast: Forecast) -> None:
    """37 ms of a lone one against 4.2 ms for full batches of 32 rows: 281 rows. Short ones are
    charged as they were."""
    learn(forecast, *[50] * 32)
    assert forecast.charged(PLAN, request(1_800, 50), 32) == request(1_800, 50)
    learn(forecast, 1_800)
    given = forecast.charged(PLAN, request(1_800, 50), 32)
    assert [span.charge for span in given.spans] == pytest.approx([37_000 / 4_200 * 32, 1], abs=2)
    assert given.charge == sum(span.charge for span in given.spans)


def test_where_only_long_ones_come_they_are_what_is_known(forecast: Forecast) -> None:
    """The forecast does not wait for short ones that never come."""
    learn(forecast, 1_800)
    assert forecast.expected_s(batch_of(1_800)) == pytest.approx(37_000e-6, rel=0.02)
    assert forecast.statistics()["cost_batches wordy 1"] == cost_batches_min

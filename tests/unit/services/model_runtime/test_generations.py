"""Generations: load aside, flip, drain; nothing that serves goes away early."""

import pytest

from contracts.errors import MeshError
from services.model_runtime.config import linger_s
from services.model_runtime.generations import Generation, Generations, LoadTimes

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
V1, V2 = ("delay", "1"), ("delay", "2")


def ready(generations: Generations[str], wanted: dict[tuple[str, str], str], now_s: float) -> None:
    """Reconcile and finish every load."""
    for generation in generations.reconcile(wanted, now_s):
        generations.loaded(generation, f"model {generation.digest[7]}", LoadTimes(bytes=10))


def refusal(generations: Generations[str], version: str = "1") -> str:
    """Why the version does not answer."""
    with pytest.raises(MeshError) as caught:
        generations.acquire("delay", version)
    return f"{caught.value.name}: {caught.value.message}"


def test_a_version_answers_from_the_moment_it_is_loaded() -> None:
    """Unknown, then loading, then ready."""
    generations: Generations[str] = Generations()
    assert refusal(generations) == "MODEL_UNKNOWN: delay version 1 is not deployed on this runtime"
    (generation,) = generations.reconcile({V1: A}, 0.0)
    assert refusal(generations) == "MODEL_NOT_READY: delay version 1 is loading"
    generations.loaded(generation, "model", LoadTimes(bytes=5))
    assert generations.acquire("delay", "1").model == "model"
    assert generations.weights_bytes() == 5


def test_reconciling_again_loads_nothing_twice() -> None:
    """The same goal is no work, whether the load has ended or not."""
    generations: Generations[str] = Generations()
    assert len(generations.reconcile({V1: A}, 0.0)) == 1
    assert generations.reconcile({V1: A}, 1.0) == []
    ready(generations, {V1: A, V2: B}, 2.0)
    assert generations.reconcile({V1: A, V2: B}, 3.0) == []


def test_a_failed_load_is_told_and_tried_again_at_the_next_change() -> None:
    """The reason reaches the caller; a new policy version is a new attempt."""
    generations: Generations[str] = Generations()
    (generation,) = generations.reconcile({V1: A}, 0.0)
    generations.failed(generation, "no such pack")
    assert "failed to load: no such pack" in refusal(generations)
    assert generations.rows()[0].state == "failed"
    (again,) = generations.reconcile({V1: A}, 1.0)
    generations.loaded(again, "model", LoadTimes())
    assert generations.acquire("delay", "1").model == "model"


def test_the_old_one_serves_until_the_new_one_is_ready() -> None:
    """Another pack under the same version loads aside; the flip is one step."""
    generations: Generations[str] = Generations()
    ready(generations, {V1: A}, 0.0)
    held = generations.acquire("delay", "1")
    (new,) = generations.reconcile({V1: B}, 1.0)
    assert generations.acquire("delay", "1") is held
    assert generations.collect(100.0) == []
    generations.loaded(new, "model b", LoadTimes())
    assert generations.acquire("delay", "1") is new
    assert generations.collect(1.0) == [], "two batches still hold the old one"
    generations.release(held)
    generations.release(held)
    assert generations.collect(1.0) == [held]


def test_a_failed_replacement_keeps_the_old_one() -> None:
    """A failed load changes nothing that serves."""
    generations: Generations[str] = Generations()
    ready(generations, {V1: A}, 0.0)
    (new,) = generations.reconcile({V1: B}, 1.0)
    generations.failed(new, "altered")
    assert generations.collect(5.0) == []
    assert generations.acquire("delay", "1").digest == A


def test_an_undeployed_version_lingers_then_goes() -> None:
    """Requests that were routed before still find it; afterwards it is closed and unknown."""
    generations: Generations[str] = Generations()
    ready(generations, {V1: A}, 0.0)
    assert generations.reconcile({}, 10.0) == []
    assert generations.wanted() == []
    generations.release(generations.acquire("delay", "1"))
    assert generations.collect(10.0 + linger_s - 0.1) == []
    (gone,) = generations.collect(10.0 + linger_s)
    assert gone.digest == A
    assert "MODEL_UNKNOWN" in refusal(generations)


def test_a_version_in_use_is_not_closed_however_long_ago_it_was_undeployed() -> None:
    """Drain by reference count."""
    generations: Generations[str] = Generations()
    ready(generations, {V1: A}, 0.0)
    held = generations.acquire("delay", "1")
    generations.reconcile({}, 0.0)
    assert generations.collect(1e6) == []
    generations.release(held)
    assert generations.collect(1e6) == [held]


def test_a_version_deployed_again_in_time_is_kept() -> None:
    """Its clock starts anew when it is dropped again."""
    generations: Generations[str] = Generations()
    ready(generations, {V1: A}, 0.0)
    generations.reconcile({}, 1.0)
    assert generations.reconcile({V1: A}, 2.0) == []
    assert generations.collect(1e6) == []


def test_a_load_that_nobody_wants_any_more_ends_quietly() -> None:
    """Dropped while loading: it may finish, and goes after the linger."""
    generations: Generations[str] = Generations()
    (generation,) = generations.reconcile({V1: A}, 0.0)
    generations.reconcile({}, 1.0)
    assert not generation.is_awaited
    assert generations.collect(1e6) == [], "a load in progress is not pulled away"
    generations.loaded(generation, "model", LoadTimes())
    assert generations.collect(1e6) == [generation]


def test_a_release_too_many_is_a_defect() -> None:
    """References never go below zero."""
    generation: Generation[str] = Generation("delay", "1", A)
    with pytest.raises(AssertionError):
        Generations[str]().release(generation)

"""Reconciling: one load after another, flips on the loop, reasons kept."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from contracts.errors import MeshError
from contracts.policies import (
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    ModelPolicy,
    ModelSpec,
    PolicySet,
    PublishedVersion,
)
from services.model_runtime.config import linger_s
from services.model_runtime.generations import Generations, LoadTimes
from services.model_runtime.model import Model
from services.model_runtime.reconciler import Reconciler
from services.model_runtime.worker import attempt
from shared.clock import ManualClock

Make = Callable[..., Any]


class InlineWorker:
    """Runs a job when the test says so; the same surface as `Worker`."""

    def __init__(self) -> None:
        self.pending = 0
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Keep it."""
        self.pending += 1
        self.jobs.append((job, done))

    def run_one(self) -> None:
        """Run the oldest."""
        job, done = self.jobs.pop(0)
        result = attempt(job)
        self.pending -= 1
        done(result)


class FakeLoader:
    """Loads models whose digest is not in `broken`; remembers what it was told."""

    def __init__(self, make_model: Make) -> None:
        self.make_model = make_model
        self.broken: set[str] = set()
        self.loads: list[tuple[str, int]] = []

    def predict(self, digest: str) -> int:
        """Ten bytes each."""
        return 10

    def load(self, name: str, digest: str, loaded_bytes: int) -> tuple[Model, LoadTimes]:
        """Ten bytes each."""
        self.loads.append((name, loaded_bytes))
        if digest in self.broken:
            raise MeshError("PACK_INVALID", "altered")
        return self.make_model()[0], LoadTimes(bytes=10)


def digest_of(letter: str) -> str:
    """A digest."""
    return "sha256:" + letter * 64


def policies(**digests: str) -> PolicySet:
    """Each model deployed in version 1."""
    spec = DeploymentSpec(versions=[DeployedVersion(version="1")])
    found: list[Any] = [DeploymentPolicy(name=name, spec=spec) for name in digests]
    found += [
        ModelPolicy(
            name=name,
            spec=ModelSpec(versions=[PublishedVersion(version="1", digest=digest_of(letter))]),
        )
        for name, letter in digests.items()
    ]
    return PolicySet(version=1, policies=found)


class Rig:
    """A reconciler among fakes."""

    def __init__(self, make_model: Make, clock: ManualClock) -> None:
        self.clock = clock
        self.worker = InlineWorker()
        self.compute = InlineWorker()
        self.loader = FakeLoader(make_model)
        self.generations: Generations[Model] = Generations()
        self.changes: list[LoadTimes] = []
        self.reconciler = Reconciler(
            self.generations,
            self.loader,
            self.worker,  # type: ignore[arg-type]
            self.compute,  # type: ignore[arg-type]
            clock,
            index=0,
            budget_bytes=50,
            on_change=self.changes.append,
        )

    def load_one(self) -> None:
        """Load and prime the oldest."""
        self.map_one()
        while self.compute.jobs:
            self.compute.run_one()

    def map_one(self) -> None:
        """Predict and load the oldest."""
        self.worker.run_one()
        self.worker.run_one()

    def states(self) -> dict[str, str]:
        """State by model name, of what is held."""
        return {row.name: row.state for row in self.generations.rows()}


@pytest.fixture
async def rig(make_model: Make, clock: ManualClock) -> Rig:
    """On a running loop."""
    return Rig(make_model, clock)


async def test_loads_run_one_after_another_beside_the_weights_before_them(rig: Rig) -> None:
    """The second load is admitted with the first one's bytes counted."""
    rig.reconciler.activate(policies(a="a", b="b"))
    assert len(rig.worker.jobs) == 1
    assert not rig.reconciler.settled.is_set()
    rig.load_one()
    assert rig.states() == {"a": "ready", "b": "loading"}
    rig.load_one()
    assert rig.states() == {"a": "ready", "b": "ready"}
    assert rig.loader.loads == [("a", 0), ("b", 10)]
    assert rig.reconciler.settled.is_set()
    assert len(rig.changes) == 2


async def test_a_version_serves_only_after_it_was_primed_where_it_computes(rig: Rig) -> None:
    """Loaded is not ready: one row goes through the compute thread first."""
    rig.reconciler.activate(policies(a="a"))
    rig.map_one()
    assert rig.states() == {"a": "loading"}
    rig.compute.run_one()
    assert rig.states() == {"a": "ready"}
    generation = rig.generations.acquire("a", "1")
    assert generation.model._backend.forwards == [1]  # type: ignore[union-attr]


async def test_a_version_that_cannot_be_primed_has_failed(rig: Rig) -> None:
    """Its weights are let go of."""

    def broken() -> None:
        raise ValueError("no")

    rig.reconciler.activate(policies(a="a"))
    rig.map_one()
    rig.compute.jobs[0] = (broken, rig.compute.jobs[0][1])
    rig.compute.run_one()
    assert rig.states() == {"a": "failed"}


async def test_without_deployments_it_is_settled_at_once(rig: Rig) -> None:
    """Version 0 has nothing to wait for."""
    rig.reconciler.activate(PolicySet(version=0, policies=[]))
    assert rig.reconciler.settled.is_set()


async def test_a_failed_load_is_reported_and_the_next_one_runs(rig: Rig) -> None:
    """The reason is in `models`; the service settles."""
    rig.loader.broken.add(digest_of("a"))
    rig.reconciler.activate(policies(a="a", b="b"))
    rig.load_one()
    rig.load_one()
    assert rig.states() == {"a": "failed", "b": "ready"}
    assert rig.generations.rows()[0].reason == "PACK_INVALID: altered"
    assert rig.reconciler.settled.is_set()


async def test_a_version_dropped_before_its_load_is_never_loaded(rig: Rig) -> None:
    """Waiting loads follow the newest policy."""
    rig.reconciler.activate(policies(a="a", b="b"))
    rig.reconciler.activate(policies(a="a"))
    rig.load_one()
    assert rig.worker.jobs == []
    assert rig.loader.loads == [("a", 0)]
    assert rig.generations.wanted()[0].name == "a"


async def test_what_is_replaced_is_closed_after_the_flip(rig: Rig) -> None:
    """The old model lets go of its weights once the new one serves."""
    rig.reconciler.activate(policies(a="a"))
    rig.load_one()
    old = rig.generations.acquire("a", "1")
    rig.generations.release(old)
    backend = old.model._backend  # type: ignore[union-attr]
    rig.reconciler.activate(policies(a="b"))
    assert not backend.is_closed  # type: ignore[attr-defined]
    rig.load_one()
    assert backend.is_closed  # type: ignore[attr-defined]
    assert rig.states() == {"a": "ready"}


async def test_an_undeployed_model_is_closed_after_the_linger(rig: Rig) -> None:
    """Not before: a routed request may still be on its way."""
    rig.reconciler.activate(policies(a="a"))
    rig.load_one()
    rig.reconciler.activate(policies())
    rig.reconciler.collect()
    assert rig.states() == {"a": "ready"}
    rig.clock.advance(linger_s)
    rig.reconciler.collect()
    assert rig.states() == {}


async def test_a_set_that_deploys_what_was_never_published_is_refused(rig: Rig) -> None:
    """`check` says why; a good set passes."""
    good = policies(a="a")
    bad = PolicySet(version=2, policies=good.policies[:1])
    assert rig.reconciler.check(good) is None
    assert rig.reconciler.check(bad) == "deployment a names version 1, never published"
    await asyncio.sleep(0)


async def test_5_of_8_equal_models_each_load_evicts_one(rig: Rig) -> None:
    """The budget holds five: of those that nobody deploys any more the one let go first goes, and
    only it; the budget is never exceeded."""
    used = []
    for number, letter in enumerate("abcdefab"):
        rig.clock.advance(0.1)
        rig.reconciler.activate(policies(**{f"{letter}{number}": letter}))
        rig.load_one()
        used.append(sum(held.needed_bytes for held in rig.generations.held()))
    assert used == [10, 20, 30, 40, 50, 50, 50, 50]
    assert list(rig.states()) == ["d3", "e4", "f5", "a6", "b7"]
    assert set(rig.states().values()) == {"ready"}


async def test_what_does_not_fit_is_refused_with_what_it_needs_and_what_is_free(rig: Rig) -> None:
    """Deployed versions and those in use are never evicted; what serves goes on."""
    names = dict(zip("abcde", "abcde", strict=True))
    rig.reconciler.activate(policies(**names))
    for _ in names:
        rig.load_one()
    rig.reconciler.activate(policies(**names, f="f"))
    rig.worker.run_one()
    assert rig.states() == {**dict.fromkeys(names, "ready"), "f": "failed"}
    assert "0.0 MiB are free" in rig.generations.rows()[-1].reason
    assert len(rig.loader.loads) == 5
    used = rig.generations.acquire("a", "1")
    rig.reconciler.activate(policies(**{name: name for name in "bcdef"}))
    rig.worker.run_one()
    assert rig.states()["f"] == "failed"
    rig.generations.release(used)
    rig.reconciler.activate(policies(**{name: name for name in "bcdef"}))
    rig.load_one()
    assert rig.states() == dict.fromkeys("bcdef", "ready")

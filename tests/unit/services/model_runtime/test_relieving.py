"""Letting go of versions while memory is short: who goes, in which order, and who never does."""

from collections.abc import Callable
from typing import Any

import pytest

from contracts.errors import MeshError
from contracts.policies import PolicySet, RoutePolicy, RouteSpec
from services.model_runtime.config import unload_spare_s
from shared.clock import ManualClock
from tests.unit.services.model_runtime.test_reconciler import Rig, policies

WHY = "memory_mib_max is 64"


@pytest.fixture
async def rig(make_model: Callable[..., Any], clock: ManualClock) -> Rig:
    """On a running loop."""
    return Rig(make_model, clock)


def routing(found: PolicySet, *models: str) -> PolicySet:
    """The same with routes to version 1 of these models."""
    routes = [RoutePolicy(name=name, spec=RouteSpec(default="1")) for name in models]
    return PolicySet(version=found.version + 1, policies=[*found.policies, *routes])


def load_all(rig: Rig, found: PolicySet) -> None:
    """Everything deployed is ready, and was for long enough to go."""
    rig.reconciler.activate(found)
    while rig.worker.jobs:
        rig.load_one()
    rig.clock.advance(unload_spare_s + 1.0)


async def test_the_least_recently_used_goes_first_and_the_routed_never(rig: Rig) -> None:
    """One a call; what a route names stays however long nobody used it."""
    load_all(rig, routing(policies(a="a", b="b", c="c"), "a"))
    held = {one.name: one for one in rig.generations.held()}
    held["a"].used_s, held["b"].used_s, held["c"].used_s = 1.0, 3.0, 2.0
    rig.reconciler.relieve(WHY)
    assert rig.states() == {"a": "ready", "b": "ready", "c": "failed"}
    assert held["c"].model is None
    rig.reconciler.relieve(WHY)
    rig.reconciler.relieve(WHY)
    assert rig.states() == {"a": "ready", "b": "failed", "c": "failed"}
    with pytest.raises(MeshError, match=r"MODEL_NOT_READY.*unloaded.*64.*next commit loads it"):
        rig.generations.acquire("b", "1")


async def test_what_is_in_use_or_was_lately_stays(rig: Rig) -> None:
    """A batch in progress holds its version; a version that a promotion just loaded is spared."""
    load_all(rig, policies(a="a", b="b"))
    busy = rig.generations.acquire("a", "1")
    (lately,) = [one for one in rig.generations.held() if one.name == "b"]
    lately.used_s = rig.clock.monotonic() - unload_spare_s
    rig.reconciler.relieve(WHY)
    assert rig.states() == {"a": "ready", "b": "ready"}
    rig.generations.release(busy)
    rig.reconciler.relieve(WHY)
    assert rig.states() == {"a": "failed", "b": "ready"}


async def test_what_no_deployment_names_goes_before_what_one_names(rig: Rig) -> None:
    """All of the idle at once, before their time; then the deployed, one by one."""
    load_all(rig, policies(a="a", b="b", c="c"))
    rig.reconciler.activate(policies(c="c"))
    rig.reconciler.relieve(WHY)
    assert rig.states() == {"c": "ready"}
    rig.reconciler.relieve(WHY)
    assert rig.states() == {"c": "failed"}


async def test_the_next_policy_set_loads_it_again(rig: Rig) -> None:
    """The way back: a commit, such as the route that names it."""
    load_all(rig, policies(a="a"))
    changes = len(rig.changes)
    rig.reconciler.relieve(WHY)
    assert len(rig.changes) == changes + 1
    rig.reconciler.activate(routing(policies(a="a"), "a"))
    rig.load_one()
    assert rig.states() == {"a": "ready"}

"""Which weight a runtime gets, and what stands for it without cgroups."""

import os
from pathlib import Path
from typing import Any

import pytest

from contracts.policies import (
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    PolicySet,
    PrioritySpec,
    RiskKey,
)
from supervisor.cpu_scheduling import Cgroups, NotPermitted
from supervisor.cpu_weights import Treatment, treatment, weights

BULK_IDLE: dict[RiskKey, int] = {"1": 300, "2": 100, "3": 1}


def deployed(*replicas: int) -> PolicySet:
    """A model for each number of replicas."""
    return PolicySet(
        version=1,
        policies=[
            DeploymentPolicy(
                name=f"m{number}",
                spec=DeploymentSpec(versions=[DeployedVersion(version="1", replicas=count)]),
            )
            for number, count in enumerate(replicas)
        ],
    )


def given(policies: PolicySet, **spec: Any) -> list[int]:
    """The weights of three runtimes."""
    return weights(policies, PrioritySpec(**spec), 3)


def test_without_weights_everybody_is_usual() -> None:
    """The policy's default asks for nothing, whatever is reserved."""
    assert given(deployed(3)) == [100, 100, 100]
    assert given(deployed(3), reserved_replicas={"1": 1}) == [100, 100, 100]


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        ({}, [300, 300, 300]),
        ({"1": 1}, [100, 100, 300]),
        ({"1": 1, "2": 1}, [1, 100, 300]),
        ({"3": 2}, [300, 1, 1]),
        ({"1": 1, "2": 1, "3": 1}, [1, 100, 300]),
    ],
)
def test_a_reserved_runtime_weighs_its_class_a_shared_one_the_rest(
    reserved: dict[RiskKey, int], expected: list[int]
) -> None:
    """The largest of those that have no reserve; three runtimes cannot reserve all three."""
    assert given(deployed(3), reserved_replicas=reserved, cpu_weights=BULK_IDLE) == expected


def test_the_most_that_any_version_wants_is_given() -> None:
    """A version on one runtime alone is served there at any risk; one that lies nowhere leaves the
    runtime as it is."""
    spec: dict[str, Any] = {"reserved_replicas": {"1": 1}, "cpu_weights": BULK_IDLE}
    assert given(deployed(3, 1), **spec) == [300, 100, 300]
    assert given(deployed(2), **spec) == [100, 300, 100]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (100, Treatment(0)),
        (80, Treatment(1)),
        (50, Treatment(3)),
        (10, Treatment(10)),
        (2, Treatment(18)),
        (1, Treatment(0, is_idle=True)),
        (125, Treatment(-1)),
        (10_000, Treatment(-20)),
    ],
)
def test_a_nice_level_is_a_quarter(weight: int, expected: Treatment) -> None:
    """100 is nice 0, as the kernel's cgroups have it; 1 is SCHED_IDLE."""
    assert treatment(weight) == expected


def test_weights_are_beside_what_the_mesh_was_started_with() -> None:
    """A mesh at nice 5: the usual weight is 5, and nothing is beyond 19."""
    assert treatment(100, 5) == Treatment(5)
    assert treatment(2, 5) == Treatment(19)
    assert treatment(1, 5) == Treatment(5, is_idle=True)


def test_which_changes_need_a_privilege() -> None:
    """Up, and out of SCHED_IDLE."""
    idle, low, usual = Treatment(0, is_idle=True), Treatment(10), Treatment(0)
    assert usual.is_above(low)
    assert low.is_above(idle)
    assert not idle.is_above(usual)
    assert not low.is_above(usual)
    assert not usual.is_above(Treatment(0))


class FakeTree:
    """The files of a cgroup v2 mount as this process would find them."""

    def __init__(self, folder: Path, controllers: str = "cpu memory", procs: str = "") -> None:
        self.root = folder / "unit"
        self.root.mkdir()
        self.mounts, self.own = folder / "mounts", folder / "own"
        self.mounts.write_text(f"30 1 0:26 / {folder} rw - cgroup2 cgroup2 rw\n")
        self.own.write_text("1:cpu:/elsewhere\n0::/unit\n")
        (self.root / "cgroup.controllers").write_text(controllers)
        (self.root / "cgroup.procs").write_text(procs or f"{os.getpid()}\n")
        (self.root / "supervisor").mkdir()

    def find(self) -> Cgroups:
        """As at a start."""
        return Cgroups.find(self.mounts, self.own)


def test_a_delegated_group_gives_weights(tmp_path: Path) -> None:
    """The supervisor goes into a leaf, enables the controller, and each runtime gets its own."""
    tree = FakeTree(tmp_path)
    groups = tree.find()
    assert (groups.is_there, groups.reason) == (True, "")
    assert (tree.root / "supervisor/cgroup.procs").read_text() == str(os.getpid())
    assert (tree.root / "cgroup.subtree_control").read_text() == "+cpu"
    groups.apply("model_runtime.1", 4_711, 30)
    assert (tree.root / "model_runtime.1/cpu.weight").read_text() == "30"
    assert (tree.root / "model_runtime.1/cgroup.procs").read_text() == "4711"
    (tree.root / "model_runtime.2").write_text("no folder")
    with pytest.raises(NotPermitted, match=r"cgroup model_runtime\.2"):
        groups.apply("model_runtime.2", 4_712, 30)


def test_a_group_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    """No controller, other processes in it, no mount: nothing is touched."""
    for number, (controllers, procs, reason) in enumerate(
        [
            ("memory", "", "no controller cpu; Delegate=cpu"),
            ("cpu", f"{os.getpid()}\n1\n", "holds 2 processes, it must hold ours alone"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        tree = FakeTree(folder, controllers, procs)
        groups = tree.find()
        assert not groups.is_there
        assert reason in groups.reason
        assert not (tree.root / "cgroup.subtree_control").exists()
    tree.mounts.write_text("30 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n")
    assert tree.find().reason == "cgroup v2 is not mounted"
    assert "No such file" in Cgroups.find(tmp_path / "none", tree.own).reason

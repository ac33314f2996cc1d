"""The policies that the supervisor measures by."""

from pathlib import Path

from contracts.distribution import Position
from contracts.policies import (
    InfrastructureSpec,
    Policy,
    PolicySet,
    PriorityPolicy,
    PrioritySpec,
    SlaPolicy,
    SlaSpec,
)
from shared.home import RuntimeTable
from shared.last_good import LastGood, LastGoodFile
from supervisor.in_force import InForce

RUNTIME = RuntimeTable(memory_mib_max=700, threads=3)


def store(folder: Path, version: int, *policies: Policy) -> None:
    """As the orchestrator leaves what it has in force."""
    file = LastGoodFile(folder, "orchestrator", "orchestrator.0-test")
    position = Position(epoch=1, sequence=version, hash="sha256:" + "0" * 64)
    found = PolicySet(version=version, policies=list(policies))
    file.write_candidate(LastGood(position=position, policies=found))
    file.adopt_candidate()


def test_without_policies_the_home_and_the_built_in_limits_hold(tmp_path: Path) -> None:
    """A runtime may use what `[runtime]` says: its memory, its threads and the loop."""
    in_force = InForce(tmp_path, RUNTIME)
    in_force.look(0)
    in_force.look(7)  # there is no file: said once, nothing changes
    assert in_force.terms("model_runtime").limits["memory"] == 700
    assert in_force.terms("model_runtime").limits["cpu"] == 4
    assert in_force.priority == PrioritySpec()


def test_a_new_version_is_read_once_it_is_said_to_be_in_force(tmp_path: Path) -> None:
    """Not before: the file may hold what the orchestrator has not activated."""
    in_force = InForce(tmp_path, RUNTIME)
    spec = SlaSpec(infrastructure={"model_runtime": InfrastructureSpec(memory_mib_max=64)})
    priority = PrioritySpec(cpu_weights={"1": 100, "2": 100, "3": 1})
    store(tmp_path, 2, SlaPolicy(name="*", spec=spec), PriorityPolicy(spec=priority))
    assert in_force.terms("model_runtime").limits["memory"] == 700
    in_force.look(2)
    assert in_force.terms("model_runtime").limits["memory"] == 64
    assert in_force.terms("model_runtime").limits["cpu"] == 4
    assert in_force.priority == priority


def test_a_damaged_file_leaves_what_was_in_force(tmp_path: Path) -> None:
    """It is the orchestrator's to refuse; nobody measures by half a policy."""
    in_force = InForce(tmp_path, RUNTIME)
    spec = SlaSpec(infrastructure={"orchestrator": InfrastructureSpec(descriptors_max=5)})
    store(tmp_path, 1, SlaPolicy(name="*", spec=spec))
    in_force.look(1)
    (tmp_path / "orchestrator.msgpack").write_bytes(b"nonsense")
    in_force.look(2)
    assert in_force.terms("orchestrator").limits["descriptors"] == 5

"""The control plane on its real socket: commits, refusals, restarts, and what operators read."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from contracts import control
from contracts.distribution import Acknowledge, Position
from contracts.errors import MeshError
from contracts.policies import BatchingPolicy, BatchingSpec, PolicySet, RoutePolicy, RouteSpec
from contracts.types import UNSET, Empty
from services.control_plane import distributor, push
from services.control_plane.chain import hash_of
from services.control_plane.first_policies import FirstPoliciesError
from shared.policy_steps import compare
from tests.unit.services.control_plane.conftest import Puppet

SERVICES = ("data_fabric", "model_runtime", "orchestrator")


def batching(rows_max: int) -> BatchingPolicy:
    """A policy that loads nothing."""
    return BatchingPolicy(name="tiny", spec=BatchingSpec(rows_max=rows_max))


def apply(*policies: Any, **fields: Any) -> control.Apply:
    """A request to commit."""
    return control.Apply(policies=list(policies), author="me", reason="because", **fields)


async def test_an_empty_home_begins_with_its_file(plane: Any) -> None:
    """policies.toml is version 1, by its own name, under the uid that runs the mesh."""
    commits = await plane.call("commits", control.CommitsRequest())
    (first,) = commits.commits
    assert (first.version, first.author, first.peer_uid) == (1, "policies.toml", os.getuid())
    policies = await plane.call("policies", control.PoliciesRequest())
    assert policies.version == 1
    assert len(policies.policies) == 9
    assert policies.digest == first.policy


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('default = "1"', 'default = "2"', ["route tiny", "deployed versions", "received default"]),
        ("edd78ff1", "00000000", ["model tiny version 1", "lies in models/"]),
        ("# The first", "polcy = 1\n#", ["only [[policy]] tables", "polcy"]),
        ('version = "1"', 'version = "one"', ["policy 1, model tiny", "version"]),
    ],
)
async def test_an_invalid_file_refuses_the_start(
    start: Callable[..., Any], home: Path, old: str, new: str, words: list[str]
) -> None:
    """The message names the file, the policy and the rule; nothing is committed."""
    file = home / "policies.toml"
    good = file.read_text()
    file.write_text(good.replace(old, new))
    with pytest.raises(FirstPoliciesError) as refusal:
        async with start():
            raise AssertionError("it started")
    for word in ["policies.toml", *words]:
        assert word in str(refusal.value)


async def test_without_a_file_it_is_version_0(start: Callable[..., Any], home: Path) -> None:
    """Live and ready for the first commit."""
    (home / "policies.toml").unlink()
    async with start() as plane:
        assert (await plane.call("policies", control.PoliciesRequest())).version == 0
        follower = await plane.follow("orchestrator")
        await plane.call("apply", apply(policy_that_needs_nothing()))
        assert follower.current.version == 1


def policy_that_needs_nothing() -> Any:
    """A policy without a model."""
    return msgspec.convert({"kind": "sla", "name": "*", "spec": {}}, type=control.Policy)


async def test_a_commit_is_active_everywhere_when_it_is_answered(plane: Any) -> None:
    """In force and on disk at every instance; status says who has what."""
    followers = [await plane.follow(service) for service in SERVICES]
    applied = await plane.call("apply", apply(batching(7)))
    assert (applied.version, applied.fenced) == (2, [])
    for follower in followers:
        assert follower.current.version == 2
        assert follower.current.find("batching", "tiny") == batching(7)
        assert follower._file.read()[0].position.sequence == 2
    status = await plane.call("status", Empty())
    assert status.version == 2
    assert [(row.received, row.valid, row.active) for row in status.instances] == [(2, 2, 2)] * 3
    (commit,) = (await plane.call("commits", control.CommitsRequest(after=1))).commits
    assert commit.commit == applied.commit == status.position.hash
    assert (commit.author, commit.reason, commit.peer_uid) == ("me", "because", os.getuid())


async def test_one_no_keeps_it_from_everybody(plane: Any) -> None:
    """POLICY_REJECTED names the instance and its reason; nothing is committed or in force."""
    good = await plane.follow("orchestrator")
    bad = await plane.follow("model_runtime", check=_no_batching)
    with pytest.raises(MeshError, match=r"model_runtime\.0-\w+: no batching here") as refusal:
        await plane.call("apply", apply(batching(7)))
    assert refusal.value.name == "POLICY_REJECTED"
    assert refusal.value.retry_after_ms is None
    assert good.current.version == bad.current.version == 1
    assert (await plane.call("verify", Empty())).commits == 1
    assert (await plane.call("apply", apply(policy_that_needs_nothing()))).version == 2


def _no_batching(policies: PolicySet) -> str | None:
    return "no batching here" if policies.find("batching", "tiny") else None


async def test_a_silent_instance_is_named_and_may_be_waited_for(plane: Any) -> None:
    """Connected, fresh, and not answering: nothing is in force anywhere."""
    good = await plane.follow("orchestrator")
    puppet = await plane.puppet("model_runtime", "model_runtime.0-mute")
    with pytest.raises(MeshError, match=r"model_runtime\.0-mute: silent for 250 ms") as refusal:
        await plane.call("apply", apply(batching(7)))
    assert refusal.value.retry_after_ms
    assert good.current.version == 1
    assert [item.action for item in puppet.items] == ["activate", "prepare", "abandon"]


async def test_an_instance_that_dies_before_it_is_valid_rejects(plane: Any, until: Any) -> None:
    """Its lost connection is noticed at once; after its successor came the commit goes through."""
    await plane.follow("orchestrator")
    puppet = await plane.puppet("model_runtime", "model_runtime.0-dies")
    await puppet.client.close()
    await until(lambda: "model_runtime.0-dies" not in plane.service._distributor._calls)
    with pytest.raises(MeshError, match=r"model_runtime\.0-dies: not connected"):
        await plane.call("apply", apply(batching(7)))
    await plane.follow("model_runtime")
    assert (await plane.call("apply", apply(batching(7)))).version == 2


async def test_a_commit_after_a_planned_goodbye_waits_for_nobody(plane: Any) -> None:
    """A runtime that drains is gone from status at once; the next commit is neither rejected
    nor waited for."""
    await plane.follow("orchestrator")
    leaver = await plane.follow("model_runtime")
    await leaver.close()
    assert (await plane.call("apply", apply(batching(7)))).fenced == []
    status = await plane.call("status", Empty())
    assert [row.service for row in status.instances] == ["orchestrator"]


async def test_a_goodbye_in_the_middle_of_a_push_does_not_reject_it(plane: Any, until: Any) -> None:
    """It leaves after `prepare` without a word about the candidate."""
    await plane.follow("orchestrator")
    puppet = await plane.puppet("model_runtime", "model_runtime.0-leaves")
    commit = asyncio.create_task(plane.call("apply", apply(batching(7))))
    await until(lambda: [item.action for item in puppet.items] == ["activate", "prepare"])
    await puppet.report(leaving=True)
    await puppet.client.close()
    applied = await commit
    assert (applied.version, applied.fenced) == (2, [])


async def test_one_that_misses_the_activation_is_fenced_until_it_has_it(
    plane: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said valid and no more: the commit stands, the answer names it, and what it gets when it
    comes back is the version in force."""
    monkeypatch.setattr(push, "activate_timeout_s", 0.1)
    good = await plane.follow("orchestrator")
    puppet = await plane.puppet("model_runtime", "model_runtime.0-slow")

    def say_valid() -> bool:
        prepared = [item for item in puppet.items if item.action == "prepare"]
        if prepared:
            puppet.client.call_nowait(
                "acknowledge",
                Acknowledge(instance=puppet.instance, position=prepared[0].position, state="valid"),
                lambda _result, _error: None,
            )
        return bool(prepared)

    answer = asyncio.ensure_future(plane.call("apply", apply(batching(7))))
    await until(say_valid)
    applied = await answer
    assert applied.fenced == ["model_runtime.0-slow"]
    assert good.current.version == 2
    row = _row(await plane.call("status", Empty()), "model_runtime.0-slow")
    assert (row.received, row.valid, row.active) == (2, 2, 0)
    again = await plane.puppet("model_runtime", "model_runtime.0-slow")
    assert again.items[0].action == "activate"
    assert again.items[0].policies.version == 2
    assert again.items[0].position == good.position


def _row(status: control.Status, name: str) -> control.InstanceRow:
    return next(row for row in status.instances if row.instance == name)


async def test_a_late_joiner_loads_the_version_in_force(plane: Any) -> None:
    """Whoever was away gets the whole current set, and is required from then on."""
    await plane.call("apply", apply(batching(7)))
    late = await plane.follow("orchestrator")
    assert late.current.find("batching", "tiny") == batching(7)
    await plane.call("apply", apply(batching(8)))
    assert late.current.find("batching", "tiny") == batching(8)


async def test_a_standby_follows_but_is_not_required(plane: Any, until: Any) -> None:
    """It gets the new version once it is in force; its silence would not have mattered."""
    standby = await plane.follow("data_fabric", standby=True)
    await plane.call("apply", apply(batching(7)))
    await until(lambda: standby.current.version == 2)
    await until(lambda: standby._on_disk == standby.position)
    standby.report_now()
    table = plane.service._distributor.instances.by_name
    await until(lambda: table[standby._environment.instance].active.sequence == 2)
    assert _row(await plane.call("status", Empty()), standby._environment.instance).active == 2


async def test_a_commit_while_a_standby_is_promoted_is_not_rejected(plane: Any) -> None:
    """Its subscription is renewed without a gap, so that it is connected from the moment at which
    it is required; commits come one after the other meanwhile."""
    standby = await plane.follow("data_fabric", standby=True)
    promotion = asyncio.create_task(standby.promoted())
    version = 1
    while version < 50 or not promotion.done():
        version += 1
        applied = await plane.call("apply", apply(batching(version)))
        assert (applied.version, applied.fenced) == (version, [])
    assert standby.current.version == version


async def test_who_is_promoted_during_a_push_has_the_set_before_the_operator_is_told(
    plane: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planned restart beside a commit: the successor subscribed again after the push began, so
    that its first item was the set before. (Standbys would be told an hour later here.)"""
    monkeypatch.setattr(distributor, "not_required_after_s", 3_600.0)
    name = "data_fabric.0-successor"
    serving = await plane.puppet("data_fabric", "data_fabric.0-serving")
    standby = await plane.puppet("data_fabric", name)
    await standby.report(role="standby")
    commit = asyncio.create_task(plane.call("apply", apply(batching(7))))
    await until(lambda: serving.items[-1].action == "prepare")
    again = Puppet(standby.client, "data_fabric", name)
    await until(lambda: bool(again.items))
    assert again.items[0].policies.version == 1
    await say(serving, "valid")
    await until(lambda: len(again.items) == 2)
    await say(serving, "active")
    assert (again.items[1].action, again.items[1].policies.version) == ("activate", 2)
    assert not commit.done(), "it is waited for"
    await say(again, "active")
    assert (await commit).fenced == []


async def say(puppet: Puppet, state: str) -> None:
    """Its answer to the latest item."""
    position = puppet.items[-1].position
    body = Acknowledge(instance=puppet.instance, position=position, state=state)  # type: ignore[arg-type]
    await puppet.client.call("acknowledge", body)


async def test_a_standby_behind_a_fenced_instance_is_told_at_once(
    plane: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that serves did not put the set in force: on its disk its successor would not find
    it."""
    monkeypatch.setattr(distributor, "not_required_after_s", 3_600.0)
    serving = await plane.puppet("data_fabric", "data_fabric.0-serving")
    standby = await plane.follow("data_fabric", standby=True)
    commit = asyncio.create_task(plane.call("apply", apply(batching(7))))
    await until(lambda: serving.items[-1].action == "prepare")
    await say(serving, "valid")
    assert (await commit).fenced == [serving.instance]
    await until(lambda: standby.current.version == 2)


async def test_a_control_plane_that_is_silent_does_not_hold_up_a_promotion(plane: Any) -> None:
    """It is waited for a little, then the standby serves by what it has."""
    standby = await plane.follow("data_fabric", standby=True)
    plane.service._distributor.head = None  # nothing is sent to who subscribes
    async with asyncio.timeout(10.0):
        await standby.promoted()
    assert standby.current.version == 1


async def test_a_standby_is_told_only_what_is_in_force(plane: Any, until: Any) -> None:
    """It gets no prepare, and the whole set once everybody required has it; every item names the
    trace of the call."""
    puppet = await plane.puppet("data_fabric", "data_fabric.0-standby")
    await puppet.report(role="standby")
    await plane.follow("orchestrator")
    trace_id = "ab" * 16
    await plane.call("apply", apply(batching(7)), trace_id=trace_id)
    await until(lambda: len(puppet.items) == 2)
    assert [item.action for item in puppet.items] == ["activate", "activate"]
    assert puppet.items[1].policies.version == 2
    assert puppet.items[1].trace_id == trace_id


async def test_expected_version_and_cross_rules_refuse(plane: Any) -> None:
    """VERSION_CONFLICT names the version in force; POLICY_INVALID the rule."""
    with pytest.raises(MeshError, match="expected_version is 7, in force is 1") as refusal:
        await plane.call("apply", apply(batching(7), expected_version=7))
    assert refusal.value.name == "VERSION_CONFLICT"
    await plane.call("apply", apply(batching(7), expected_version=1))
    route = RoutePolicy(name="tiny", spec=RouteSpec(default="9"))
    with pytest.raises(MeshError, match=r"route tiny: a route names deployed versions"):
        await plane.call("apply", apply(route))
    assert (await plane.call("verify", Empty())).commits == 2


async def test_commits_at_the_same_time_follow_one_another(plane: Any) -> None:
    """Ten callers at once: ten versions, one chain; of two with the same expectation one loses."""
    follower = await plane.follow("orchestrator")
    answers = await asyncio.gather(
        *(plane.call("apply", apply(batching(number))) for number in range(1, 11))
    )
    assert sorted(answer.version for answer in answers) == list(range(2, 12))
    assert follower.current.version == 11
    rivals = await asyncio.gather(
        *(plane.call("apply", apply(batching(n), expected_version=11)) for n in (1, 2)),
        return_exceptions=True,
    )
    assert sorted(type(one).__name__ for one in rivals) == ["Applied", "MeshError"]
    assert (await plane.call("verify", Empty())).valid


async def test_a_caller_that_leaves_does_not_stop_its_commit(plane: Any, until: Any) -> None:
    """Once begun it goes through: nobody is left with half of it."""
    follower = await plane.follow("orchestrator")
    call = asyncio.ensure_future(plane.call("apply", apply(batching(7))))
    await until(lambda: plane.service._distributor._push is not None)
    call.cancel()
    await until(lambda: follower.current.version == 2)
    assert (await plane.call("policies", control.PoliciesRequest())).version == 2


async def test_a_restart_begins_where_it_ended(start: Callable[..., Any]) -> None:
    """The log, the version in force, and the time order survive."""
    async with start() as plane:
        await plane.call("apply", apply(batching(7)))
        before = await plane.call("status", Empty())
    async with start() as plane:
        follower = await plane.follow("orchestrator")
        assert (await plane.call("status", Empty())).position == before.position
        assert follower.current.version == 2
        await plane.call("apply", apply(batching(8)))
        commits = (await plane.call("commits", control.CommitsRequest())).commits
        assert [commit.at for commit in commits] == sorted(commit.at for commit in commits)


async def test_death_between_append_and_activation_leaves_one_version(
    start: Callable[..., Any],
) -> None:
    """The commit is on the disk and nobody was told: after the restart everybody has it, whether
    it holds the candidate or not."""
    async with start() as plane:
        await plane.follow("orchestrator")
        plane.service._distributor._activate = _die
        with pytest.raises(MeshError, match="INTERNAL"):
            await plane.call("apply", apply(batching(7)))
    async with start() as plane:
        followers = [await plane.follow(service) for service in SERVICES]
        assert [follower.current.version for follower in followers] == [2, 2, 2]
        assert (await plane.call("verify", Empty())).commits == 2


def _die(*_arguments: object) -> None:
    raise RuntimeError("as if killed")


async def test_death_before_the_append_leaves_the_old_version(
    start: Callable[..., Any],
) -> None:
    """Everybody was valid, nothing was written: after the restart the version before is active
    everywhere, and the orphaned candidate does no harm."""
    async with start() as plane:
        await plane.follow("orchestrator")
        plane.service._store.append = _die
        with pytest.raises(MeshError, match="INTERNAL"):
            await plane.call("apply", apply(batching(7)))
    async with start() as plane:
        follower = await plane.follow("orchestrator")
        assert follower.current.version == 1
        assert (await plane.call("apply", apply(batching(8)))).version == 2
        assert follower.current.find("batching", "tiny") == batching(8)


async def test_a_replaced_database_begins_a_new_epoch(
    start: Callable[..., Any], home: Path, until: Any
) -> None:
    """An instance that knows more than the log does not go back: the log's version comes to it
    under a higher epoch, which also outlives the next restart."""
    async with start() as plane:
        follower = await plane.follow("orchestrator")
        for number in (7, 8):
            await plane.call("apply", apply(batching(number)))
        assert follower.position.sequence == 3
    for file in (home / ".mortise").glob("policy.db*"):
        file.unlink()
    async with start() as plane:
        again = await plane.follow("orchestrator")
        await until(lambda: again.position is not None and again.position.epoch == 2)
        assert again.current.version == 1
        assert (await plane.call("apply", apply(batching(9)))).version == 2
        assert again.current.find("batching", "tiny") == batching(9)
        last = again.position
    async with start() as plane:
        status = await plane.call("status", Empty())
        assert compare(status.position, last) == "same"


async def test_a_full_disk_refuses_the_commit_everywhere(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DISK_FULL reaches the operator, the instances drop the candidate, reads go on."""
    follower = await plane.follow("orchestrator")
    database = plane.service._store.database
    full = MeshError("DISK_FULL", "the disk is full")
    monkeypatch.setattr(database, "_require_room", _raiser(full))
    with pytest.raises(MeshError, match="the disk is full"):
        await plane.call("apply", apply(batching(7)))
    assert follower.current.version == 1
    assert (await plane.call("policies", control.PoliciesRequest())).version == 1
    monkeypatch.undo()
    assert (await plane.call("apply", apply(batching(7)))).version == 2


def _raiser(error: Exception) -> Callable[..., None]:
    def work(*_arguments: object) -> None:
        raise error

    return work


async def test_a_log_that_lies_serves_reads_and_refuses_commits(
    start: Callable[..., Any], home: Path
) -> None:
    """Not ready, with the version and the remedy in its reasons; the data path keeps its last
    good policies because nothing is sent."""
    async with start() as plane:
        await plane.follow("orchestrator")
        for number in (7, 8):
            await plane.call("apply", apply(batching(number)))
    _flip_a_bit(home / ".mortise" / "policy.db", b"because")
    async with start() as plane:
        verified = await plane.call("verify", Empty())
        assert (verified.valid, verified.broken_at) == (False, 2)
        health = await plane.call("health", Empty())
        assert not health.ready
        assert "lies at version 2" in health.reasons[0]
        follower = await plane.follow("orchestrator")
        assert follower.current.version == 3
        assert not follower.fenced
        with pytest.raises(MeshError, match="lies at version 2"):
            await plane.call("apply", apply(batching(9)))


def _flip_a_bit(path: Path, near: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.rindex(near)] ^= 1
    path.write_bytes(content)


async def test_a_flipped_bit_is_found_while_it_runs(plane: Any) -> None:
    """`verify` reads the disk, not the memory."""
    await plane.call("apply", apply(batching(7)))
    assert (await plane.call("verify", Empty())).valid

    def damage(connection: apsw.Connection) -> None:
        connection.execute("DROP TRIGGER commits_are_never_updated")
        connection.execute(
            "UPDATE commits SET content = replace(content, 'because', 'becaused') WHERE version = 2"
        )

    await plane.service._store.database.write(damage)
    verified = await plane.call("verify", Empty())
    assert (verified.valid, verified.broken_at, verified.commits) == (False, 2, 1)
    assert "recorded is" in verified.reason


async def test_the_state_at_a_version_and_at_an_instant(plane: Any) -> None:
    """Any earlier set can be recalled; what does not exist yet is refused."""
    await plane.call("apply", apply(batching(7)))
    commits = (await plane.call("commits", control.CommitsRequest())).commits
    for at in (1, commits[0].at):
        policies = await plane.call("policies", control.PoliciesRequest(at=at))
        assert policies.version == 1
        assert policies.digest == commits[0].policy
    assert (await plane.call("policies", control.PoliciesRequest(at=commits[1].at))).version == 2
    with pytest.raises(MeshError, match="version 3 does not exist, the newest is 2"):
        await plane.call("policies", control.PoliciesRequest(at=3))
    with pytest.raises(MeshError, match="has no offset"):
        await plane.call("policies", control.PoliciesRequest(at="2026-01-01T00:00:00"))


async def test_pages_of_the_log(plane: Any) -> None:
    """`more` says whether it goes on; the hashes recompute from what is shown."""
    for number in range(1, 5):
        await plane.call("apply", apply(batching(number)))
    page = await plane.call("commits", control.CommitsRequest(after=1, limit=2))
    assert [commit.version for commit in page.commits] == [2, 3]
    assert page.more
    rest = await plane.call("commits", control.CommitsRequest(after=3, limit=2))
    assert [commit.version for commit in rest.commits] == [4, 5]
    assert not rest.more
    assert rest.commits[0].previous == page.commits[1].commit
    (stored,) = await plane.service._store.page(4, 1)
    assert hash_of(stored.content) == rest.commits[1].commit


async def test_differences_between_versions(plane: Any) -> None:
    """Both sides of what changed, in either direction."""
    await plane.call("apply", apply(batching(7)))
    forward = await plane.call("diff", control.Diff(since=1, until=2))
    assert [(one.kind, one.name, one.before, one.after) for one in forward.differences] == [
        ("batching", "tiny", None, batching(7))
    ]
    back = await plane.call("diff", control.Diff(since=2, until=1))
    assert back.differences[0].before == batching(7)
    assert (await plane.call("diff", control.Diff(since=0, until=1))).differences


async def test_a_position_is_told_in_every_report(plane: Any) -> None:
    """A lagging instance can notice."""
    puppet = await plane.puppet("orchestrator", "orchestrator.0-p")
    old = Position(epoch=1, sequence=0, hash="sha256:" + "0" * 64)
    await puppet.report(old)
    row = _row(await plane.call("status", Empty()), "orchestrator.0-p")
    assert row.active == 0
    assert puppet.items[0].policies is not UNSET


async def test_policies_that_are_in_force_make_no_commit(plane: Any) -> None:
    """The answer is the version there is, and says so; one that differs commits them all."""
    applied = await plane.call("apply", apply(batching(7)))
    assert applied.changed
    again = await plane.call("apply", apply(batching(7)))
    assert again == msgspec.structs.replace(applied, changed=False)
    assert (await plane.call("apply", apply(batching(8)))).version == applied.version + 1

"""receipts, trace and snapshot over the socket."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts import control
from contracts.errors import MeshError
from contracts.lineage import Combination, Receipt, snapshot_digest
from contracts.policies import (
    BatchingPolicy,
    BatchingSpec,
    RoutePolicy,
    RouteSpec,
    SplitPolicy,
    SplitSpec,
)
from contracts.types import UNSET, Empty
from services.control_plane.accounts import Accounts
from services.control_plane.counters import Counters
from services.control_plane.ledger import Ledger
from shared.access import Peer

TRACE = f"{1:032x}"


def receipt(combination: Combination, at_us: int, **fields: Any) -> Receipt:
    """The receipt of an answer with this combination."""
    values: dict[str, Any] = {
        "tenant_id": "t",
        "id": "r1",
        "trace_id": TRACE,
        "at_us": at_us,
        "status": "ok",
        "model_name": combination.model_name,
        "model_version": combination.model_version,
        "policy_version": combination.policy_version,
        "snapshot": combination.lineage.snapshot,
        "variant": "default",
        "degraded": False,
        "marks": ["stale"],
        "risk_level": 2,
        "peer_uid": 0,
        "rows": 3,
        "tokens_in": 4,
        "tokens_out": 5,
        "compute_us": 10,
        "total_us": 100,
        "stages_us": [1, 2, 3, 4, 5, 6, 7, 8],
        "hops": [("orchestrator.0-x", 0, 100), ("model_runtime.0-y", 10, 90)],
    }
    return Receipt(**{**values, **fields})


async def ship(plane: Any, receipts: list[Receipt], combinations: list[Combination]) -> Any:
    """As the orchestrator does."""
    encoded = [msgspec.Raw(msgspec.msgpack.encode(one)) for one in receipts]
    body = control.Receipts(
        spool="s", through=len(receipts), receipts=encoded, combinations=combinations
    )
    return await plane.call("receipts", body)


async def current(plane: Any) -> Combination:
    """What is in force for tiny now."""
    snapshot = await plane.call("snapshot", control.SnapshotRequest(model="tiny"))
    combination: Combination = snapshot.combinations["tiny"]
    return combination


async def test_a_trace_tells_everything(plane: Any) -> None:
    """Lineage, stage times, hops and what was counted; status shows the totals."""
    combination = await current(plane)
    stored = await ship(plane, [receipt(combination, 1_000_000)], [combination])
    assert (stored.through, stored.counted, stored.duplicates) == (1, 1, 0)
    trace = await plane.call("trace", control.TraceRequest(trace_id=TRACE))
    assert trace.combination == combination
    assert (trace.id, trace.tenant_id, trace.status, trace.answers) == ("r1", "t", "ok", 1)
    assert (trace.timing_us.total, trace.timing_us.queue, trace.timing_us.reply) == (100, 1, 8)
    assert [(hop.instance, hop.received, hop.sent) for hop in trace.hops] == [
        ("orchestrator.0-x", 0, 100),
        ("model_runtime.0-y", 10, 90),
    ]
    assert (trace.at, trace.marks, trace.entity) == (
        "1970-01-01T00:00:01.000000Z",
        ["stale"],
        UNSET,
    )
    status = await plane.call("status", Empty())
    assert (status.receipts, status.requests_counted) == (1, 1)
    assert (await ship(plane, [receipt(combination, 1_000_000)], [])).duplicates == 1


async def test_a_refused_request_has_a_trace_without_combination(plane: Any) -> None:
    """Nothing was chosen for it, and its trace says so."""
    combination = await current(plane)
    refused = receipt(combination, 1, status="OVERLOADED", snapshot="", stages_us=[], hops=[])
    await ship(plane, [refused], [])
    trace = await plane.call("trace", control.TraceRequest(trace_id=TRACE))
    assert (trace.status, trace.combination, trace.timing_us.queue) == ("OVERLOADED", UNSET, 0)


async def test_a_combination_under_a_later_version_of_the_same_policies(plane: Any) -> None:
    """Kept once, it is shown with the policy version that the receipt names."""
    combination = await current(plane)
    await ship(plane, [receipt(combination, 1, policy_version=9)], [combination])
    trace = await plane.call("trace", control.TraceRequest(trace_id=TRACE))
    assert trace.combination.policy_version == 9


async def test_an_unknown_trace(plane: Any) -> None:
    """TRACE_UNKNOWN says when one arrives."""
    for method, body in (
        ("trace", control.TraceRequest(trace_id=TRACE)),
        ("snapshot", control.SnapshotRequest(trace_id=TRACE)),
    ):
        with pytest.raises(MeshError, match="no receipt has the trace id") as refusal:
            await plane.call(method, body)
        assert refusal.value.name == "TRACE_UNKNOWN"


async def test_another_tenants_trace_is_unknown(plane: Any, tmp_path: Path) -> None:
    """A peer sees its own tenants' traces; others' do not even exist for it."""
    ledger = Ledger.at(tmp_path)
    await ledger.open()
    combination = await current(plane)
    raw = msgspec.Raw(msgspec.msgpack.encode(receipt(combination, 1)))
    await ledger.put([raw], [])
    accounts = Accounts(ledger, Counters())

    class Asking:
        """A call by a peer of other tenants."""

        peer = Peer(os.getuid(), 0, 0, frozenset({"client"}), frozenset({"other"}), 1)

    with pytest.raises(MeshError, match="no receipt has"):
        await accounts.find(Asking(), TRACE)  # type: ignore[arg-type]
    Asking.peer = Peer(os.getuid(), 0, 0, frozenset({"client"}), frozenset({"t"}), 1)
    assert (await accounts.find(Asking(), TRACE)).receipt.id == "r1"  # type: ignore[arg-type]
    await ledger.database.close()


async def test_a_snapshot_has_exactly_four_members(plane: Any) -> None:
    """`.ai-version`: data, model, infra, policy; their digest is the combination's."""
    snapshot = await plane.call("snapshot", control.SnapshotRequest())
    assert set(snapshot.versions) == {"tiny", "sleepy", "wordy"}
    for name, version in snapshot.versions.items():
        assert list(msgspec.to_builtins(version)) == ["data", "model", "infra", "policy"]
        assert snapshot.combinations[name].lineage.snapshot == snapshot_digest(version)
    policies = await plane.call("policies", control.PoliciesRequest())
    assert snapshot.versions["tiny"].policy == policies.digest
    assert snapshot.policy_version == 1


async def test_a_snapshot_of_a_trace(plane: Any) -> None:
    """What answered then, whatever is in force now."""
    before = await current(plane)
    await ship(plane, [receipt(before, 2_000_000)], [before])
    batching = BatchingPolicy(name="tiny", spec=BatchingSpec(rows_max=7))
    await plane.call("apply", control.Apply(policies=[batching], author="a", reason="r"))
    assert (await current(plane)).version != before.version
    snapshot = await plane.call("snapshot", control.SnapshotRequest(trace_id=TRACE))
    assert snapshot.versions == {"tiny": before.version}
    assert (snapshot.at, snapshot.policy_version) == ("1970-01-01T00:00:02.000000Z", 1)


async def test_a_snapshot_of_an_instant(plane: Any, until: Callable[..., Any]) -> None:
    """What receipts of that time name, under the policies of that time; the future is refused,
    and a time before the first commit had nothing."""
    before = await current(plane)
    commits = (await plane.call("commits", control.CommitsRequest())).commits
    clock = plane.service.environment.clock
    await ship(plane, [receipt(before, clock.wall_us())], [before])
    moment = (await plane.call("snapshot", control.SnapshotRequest())).at
    route = RoutePolicy(name="tiny", spec=RouteSpec(default="1", aliases={"x": "1"}))
    await plane.call("apply", control.Apply(policies=[route], author="a", reason="r"))
    snapshot = await plane.call("snapshot", control.SnapshotRequest(at=moment))
    assert snapshot.versions == {"tiny": before.version}
    assert snapshot.policy_version == 1
    nothing = await plane.call("snapshot", control.SnapshotRequest(at="2001-01-01T00:00:00Z"))
    assert (nothing.versions, nothing.policy_version) == ({}, 0)
    assert commits[0].at < moment
    for body, words in (
        (control.SnapshotRequest(at="2999-01-01T00:00:00Z"), "lies in the future"),
        (control.SnapshotRequest(at="noon"), "not an RFC 3339 instant"),
        (control.SnapshotRequest(at=moment, trace_id=TRACE), "received both"),
    ):
        with pytest.raises(MeshError, match=words) as refusal:
            await plane.call("snapshot", body)
        assert refusal.value.name == "INVALID_REQUEST"


async def test_a_snapshot_of_an_unrouted_model(plane: Any) -> None:
    """MODEL_UNKNOWN."""
    with pytest.raises(MeshError, match="nobody has no route") as refusal:
        await plane.call("snapshot", control.SnapshotRequest(model="nobody"))
    assert refusal.value.name == "MODEL_UNKNOWN"


async def test_statistics_count_receipts(plane: Any) -> None:
    """Duplicates and unreadable ones are seen, and the good ones stored all the same."""
    combination = await current(plane)
    good = msgspec.Raw(msgspec.msgpack.encode(receipt(combination, 1)))
    body = control.Receipts(
        spool="s", through=3, receipts=[good, good, msgspec.Raw(b"\x01")], combinations=[]
    )
    assert (await plane.call("receipts", body)).counted == 1
    values = (await plane.call("statistics", Empty())).values
    assert values["receipts"] == values["receipts_duplicate"] == values["receipts_unreadable"] == 1
    await asyncio.gather(*(plane.call("receipts", body) for _ in range(5)))
    assert (await plane.call("statistics", Empty())).values["receipts"] == 1


async def test_metrics_show_pushes_receipts_and_instances(plane: Any) -> None:
    """By outcome, phase and state; tenants never."""
    await plane.follow("orchestrator")
    await plane.puppet("model_runtime", "model_runtime.0-mute")
    batching = BatchingPolicy(name="tiny", spec=BatchingSpec(rows_max=7))
    with pytest.raises(MeshError):
        await plane.call("apply", control.Apply(policies=[batching], author="a", reason="r"))
    combination = await current(plane)
    await ship(plane, [receipt(combination, 1)] * 2, [combination])
    families = {one.name: one for one in (await plane.call("metrics", Empty())).metrics}

    def values(name: str) -> dict[str, float]:
        return {series.labels[0]: series.value for series in families[name].series}

    assert values("ai_policy_push_total") == {"active": 1, "rejected": 1}
    assert values("ai_policy_push_seconds").keys() == {"prepare", "append", "activate"}
    assert values("ai_receipt_total") == {"kept": 1, "duplicate": 1, "unreadable": 0}
    assert values("ai_policy_instances") == {"stale": 0, "lagging": 1, "following": 1}
    assert families["ai_policy_version"].series[0].value == 1


async def test_a_snapshot_has_the_shares_of_a_split(
    plane: Any, make_pack: Callable[..., str], deployment: Callable[..., Any]
) -> None:
    """Now and at an instant: each version with its slots and its own combination; one without
    slots is left out, and what nobody used at an instant has none."""
    await plane.call("publish", control.Publish(digest=make_pack("second")))
    await plane.call("publish", control.Publish(digest=make_pack("third")))
    spec = SplitSpec(key="trace", salt="s", shares={"2": 1_000_000, "1": 9_000_000, "3": 0})
    policies = [deployment("1", "2", "3"), SplitPolicy(name="tiny", spec=spec)]
    await plane.call("apply", control.Apply(policies=policies, author="a", reason="r"))
    snapshot = await plane.call("snapshot", control.SnapshotRequest())
    assert snapshot.shares.keys() == {"tiny"}
    first, second = snapshot.shares["tiny"]
    assert (first.version, first.slots) == ("1", 9_000_000)
    assert (second.version, second.slots) == ("2", 1_000_000)
    assert first.combination == snapshot.combinations["tiny"]
    assert second.combination.model_version == "2"
    assert second.combination.lineage.snapshot == snapshot_digest(second.combination.version)
    assert second.combination.version.model != first.combination.version.model
    await ship(plane, [receipt(second.combination, 5)], [second.combination])
    then = await plane.call("snapshot", control.SnapshotRequest(at=snapshot.at))
    assert [one.combination for one in then.shares["tiny"]] == [UNSET, second.combination]
    other = await plane.call("snapshot", control.SnapshotRequest(model="sleepy"))
    assert other.shares == {}

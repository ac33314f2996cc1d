"""Breaker, rules and shadow of a real mesh, seen through its sockets as a client sees them."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.policies import SLOTS
from mortise import Client
from mortise import generated as errors
from mortise.throwaway import Mesh
from services.jobs.bench_packs import sleepy
from services.jobs.pack_writer import write_pack

EXAMPLE = Path(__file__).parents[2] / "examples" / "bench"
INPUT = {"x": [[2.0]]}
SLOW_MS = 1_500.0


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """`slow` takes 1.5 s a batch and falls back to `sleepy`, which has two equal versions."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    home = folder / "home"
    shutil.copytree(EXAMPLE, home)
    usual = sleepy()
    again = msgspec.structs.replace(usual.contract, description="again")
    slow = msgspec.structs.replace(usual.contract, name="slow")
    architecture = msgspec.structs.replace(
        usual.architecture, configuration={"batch_ms": SLOW_MS, "row_ms": 0.0, "factor": 3.0}
    )
    packs = {
        "sleepy": [usual, replace(usual, contract=again)],
        "slow": [replace(usual, contract=slow, architecture=architecture)],
    }
    text = []
    for name, drafts in packs.items():
        digests = [write_pack(draft, home / "models") for draft in drafts]
        text.append(f'[[policy]]\nkind = "model"\nname = "{name}"')
        for number, digest in enumerate(digests, start=1):
            text.append(f'[[policy.spec.versions]]\nversion = "{number}"\ndigest = "{digest}"')
        text.append(f'[[policy]]\nkind = "deployment"\nname = "{name}"')
        text += [f'[[policy.spec.versions]]\nversion = "{n + 1}"' for n in range(len(digests))]
        text.append(f'[[policy]]\nkind = "route"\nname = "{name}"\n[policy.spec]\ndefault = "1"')
    text.append('[policy.spec.fallback]\nmodel_name = "sleepy"')
    (home / "policies.toml").write_text("\n".join(text) + "\n")
    with Mesh(home) as running:
        yield running
    shutil.rmtree(folder)


def apply(mesh: Mesh, *policies: dict[str, Any]) -> None:
    """One commit, active everywhere."""
    body = {"policies": list(policies), "author": "test", "reason": "test"}
    with mesh.client("control_plane") as control_plane:
        control_plane.call("apply", body)


def rule(name: str, when: str, **then: Any) -> dict[str, Any]:
    """A rule of `sleepy`."""
    spec = {"model_name": "sleepy", "order": 1, "when": when, "then": then}
    return {"kind": "rule", "name": name, "spec": spec}


def statistics(client: Client) -> dict[str, Any]:
    """What the orchestrator counts."""
    values: dict[str, Any] = client.call("statistics")["values"]
    return values


def wait_for(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Until it holds."""
    ends_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_s, "it did not happen in time"
        time.sleep(0.05)


def test_a_rule_is_checked_at_commit_and_then_routes_and_refuses(mesh: Mesh) -> None:
    """The refusal of a bad one names the place; good ones are in force at once."""
    with pytest.raises(errors.PolicyInvalid) as caught:
        apply(mesh, rule("bad", "tenant_id == 'a' and risk > 1", version="2"))
    assert "at 22: there is no field 'risk'" in str(caught.value)
    apply(
        mesh,
        rule("gold", "parameters.tier == 'gold'", version="2"),
        rule("gone", "tenant_id == 'gone'", refuse="its contract ended"),
    )
    with mesh.client() as client:
        answer = client.infer("sleepy", inputs=INPUT, parameters={"tier": "gold"})
        assert (answer.model_version, answer.variant) == ("2", "rule")
        assert client.infer("sleepy", inputs=INPUT).variant == "default"
        with pytest.raises(errors.RuleRefused, match="rule gone refuses"):
            client.infer("sleepy", inputs=INPUT, tenant_id="gone")


def test_a_version_that_times_out_is_out_and_its_fallback_answers(mesh: Mesh) -> None:
    """Five time-outs in a row; the sixth request is answered at once, marked, with its receipt."""
    with mesh.client() as client:
        for _ in range(5):
            with pytest.raises(errors.DeadlineExceeded):
                client.infer("slow", inputs=INPUT, timeout_s=0.3)
        wait_for(lambda: statistics(client).get("breaker.slow.1") == "open")
        answer = client.infer("slow", inputs=INPUT)
        assert (answer.model_name, answer.variant, answer.degraded) == ("sleepy", "fallback", True)
        assert float(answer.outputs["y"][0][0]) == 4.0
        health = client.call("health")
        assert health["degraded"]
        assert any("slow 1: breaker open: 5 time-outs" in text for text in health["reasons"])
        with pytest.raises(errors.ModelNotReady) as caught:
            client.infer("slow", inputs=INPUT, model_version="1")
        assert caught.value.retry_after_ms


def test_a_shadow_is_copied_to_and_no_request_is_counted_twice(mesh: Mesh) -> None:
    """Copies go while the mesh is idle; receipts are as many as requests."""
    spec = {
        "key": "trace",
        "salt": "s",
        "shares": {"1": SLOTS},
        "shadow": {"version": "2", "slots": SLOTS},
    }
    apply(mesh, {"kind": "split", "name": "sleepy", "spec": spec})
    with mesh.client() as client:
        before = statistics(client)
        for _ in range(20):
            assert client.infer("sleepy", inputs=INPUT).model_version == "1"
        ends = ("shadows_answered", "shadows_failed", "shadows_dropped")
        wait_for(lambda: sum(statistics(client)[end] - before[end] for end in ends) == 20)
        after = statistics(client)
    assert after["shadows_answered"] > before["shadows_answered"]
    assert after["infer_received"] - before["infer_received"] == 20

"""Plans, requests and parts for the orchestrator's unit tests."""

import struct
from random import Random
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from contracts.execution import Executed
from contracts.frames import Context
from contracts.inference import InferenceRequest, Tensor
from contracts.methods import METHODS
from contracts.pack import (
    Action,
    Architecture,
    Manifest,
    ModelContract,
    Provenance,
    TensorContract,
    TokenContract,
    ViewReference,
)
from contracts.policies import (
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    ModelPolicy,
    ModelSpec,
    Policy,
    PolicySet,
    PublishedVersion,
    RoutePolicy,
    RouteSpec,
    kind_of,
)
from services.orchestrator.breakers import Breakers
from services.orchestrator.observe import Observed
from services.orchestrator.plan import ModelPlan, compile_plan
from services.orchestrator.request import Part, Work
from services.orchestrator.routing import RouteTable
from shared.access import EVERYTHING, Peer
from shared.clock import ManualClock
from shared.rpc.call import Call

VIEW_SQL = """/* mortise
name = "departure"
version = "1"
entity = "tailnum"
event_time = "scheduled_at"
freshness_s = 60
owner = "owner"
[request.scheduled_at]
dtype = "timestamp"
source = "schedule"
[fields.hour]
dtype = "int64"
source = "schedule"
*/
SELECT 1
"""
TRACE_ID = "0123456789abcdef0123456789abcdef"


def digest(number: int) -> str:
    """A digest that is easy to tell apart."""
    return f"sha256:{number:064x}"


def contract(**changes: Any) -> ModelContract:
    """A model with one FP32 input of two columns and one FP32 output of one."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "task": "tensor",
        "inputs": [TensorContract(name="x", datatype="FP32", shape=[-1, 2])],
        "outputs": [TensorContract(name="y", datatype="FP32", shape=[-1, 1])],
    }
    return ModelContract(**(fields | changes))


def classifier() -> ModelContract:
    """A classifier of a view's rows with two labels and rules for risk levels 1 and 2."""
    rules = [
        Action(risk_level=level, label=label, probability_min=0.0, action=action)
        for level in (1, 2, 3)
        for label, action in (("late", "warn"), ("on_time", "none"))
    ]
    return contract(
        name="delay",
        task="classifier",
        inputs=[],
        outputs=[TensorContract(name="p", datatype="FP32", shape=[-1, 2])],
        labels=["late", "on_time"],
        actions=rules,
        view=ViewReference(name="departure", version="1", digest=digest(9)),
    )


def token_contract(*, has_mask: bool = True, **tokens: Any) -> ModelContract:
    """A model of token ids with one FP32 output of one column, named `wordy`."""
    names = ("input_ids", "attention_mask") if has_mask else ("input_ids",)
    rows = {"vocabulary": 100, "row_tokens_max": 60, **tokens}
    return contract(
        name="wordy",
        inputs=[TensorContract(name=name, datatype="INT64", shape=[-1, -1]) for name in names],
        tokens=TokenContract(**rows),
    )


def manifest(model: ModelContract) -> Manifest:
    """A manifest that holds nothing but this contract."""
    return Manifest(
        format=1,
        contract=model,
        architecture=Architecture(name="net"),
        files=[],
        tensors=[],
        weights=digest(7),
        provenance=Provenance(code=digest(8)),
    )


def plan_for(model: ModelContract | None = None, version: str = "1", number: int = 1) -> ModelPlan:
    """The plan of a version of a model."""
    model = model or contract()
    view_sql = VIEW_SQL if model.view is not UNSET else None
    return compile_plan(model.name, version, digest(number), manifest(model), view_sql)


def published(name: str, *versions: str, default: str = "1", **route: Any) -> list[Policy]:
    """Model, deployment and route policies; version v has digest(v)."""
    rows = [PublishedVersion(version=v, digest=digest(int(v))) for v in versions]
    deployed = [DeployedVersion(version=v) for v in versions]
    return [
        ModelPolicy(name=name, spec=ModelSpec(versions=rows)),
        DeploymentPolicy(name=name, spec=DeploymentSpec(versions=deployed)),
        RoutePolicy(name=name, spec=RouteSpec(default=default, **route)),
    ]


def policy_set(*policies: Policy, version: int = 1) -> PolicySet:
    """A sorted set."""
    ordered = sorted(policies, key=lambda policy: (kind_of(policy), policy.name))
    return PolicySet(version=version, policies=ordered)


def plan_of(name: str, version: str, number: str) -> ModelPlan:
    """A plan source that knows every version."""
    return plan_for(contract(name=name), version, int(version))


def no_breakers() -> Breakers:
    """Breakers that know no version: everything is let through."""
    return Breakers(ManualClock(), Observed(), Random(1))


def call_for(
    body: InferenceRequest, *, received_s: float = 100.0, deadline_s: float = 105.0
) -> Call:
    """A call whose answer goes nowhere."""
    nowhere: Any = None
    return Call(
        nowhere,
        METHODS["orchestrator"]["infer"],
        1,
        body,
        Context(),
        TRACE_ID,
        Peer(0, 0, 0, EVERYTHING.roles, EVERYTHING.tenants, EVERYTHING.risk_level_min),
        received_s,
        deadline_s,
        False,
    )


def floats(*numbers: float) -> bytes:
    """FP32 bytes."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


def request(rows: int = 1, **changes: Any) -> InferenceRequest:
    """A request for `tiny` with rows (0, 1), (2, 3), …"""
    data = floats(*range(2 * rows))
    tensor = Tensor(name="x", datatype="FP32", shape=[rows, 2], data=memoryview(data))
    fields: dict[str, Any] = {"model_name": "tiny", "inputs": [tensor]}
    return InferenceRequest(**(fields | changes))


def rows_request(rows: int = 1, **changes: Any) -> InferenceRequest:
    """A request with raw rows."""
    raw = Raw(msgspec.msgpack.encode([{"hour": row} for row in range(rows)]))
    fields: dict[str, Any] = {"model_name": "delay", "rows": raw}
    return InferenceRequest(**(fields | changes))


EMPTY_TABLE = RouteTable(policy_set(), plan_of)


def work_for(
    plan: ModelPlan, body: InferenceRequest | None = None, *, deadline_s: float = 105.0
) -> Work:
    """An admitted request without parts."""
    call = call_for(body or request(), deadline_s=deadline_s)
    request_id = call.trace_id if call.body.id is UNSET else call.body.id
    return Work(call, EMPTY_TABLE, plan, "default", request_id, plan.every_output, 1, 8, 0)


def part_for(plan: ModelPlan, rows: int = 1, *, deadline_s: float = 105.0, **body: Any) -> Part:
    """The only part of a request of `rows` rows."""
    work = work_for(plan, request(rows, **body), deadline_s=deadline_s)
    part = Part(work, 0, rows, rows * 8)
    part.tensors = [floats(*range(2 * rows))]
    work.parts, work.parts_left, work.rows = [part], 1, rows
    return part


def executed(rows: int, **changes: Any) -> Executed:
    """A runtime's answer for `tiny`: output row i holds i."""
    data = memoryview(floats(*range(rows)))
    fields: dict[str, Any] = {
        "outputs": [Tensor(name="y", datatype="FP32", shape=[rows, 1], data=data)],
        "predictions": [],
        "errors": {},
        "received_us": 0,
        "sent_us": 0,
        "wait_us": 10,
        "tokenize_us": 0,
        "forward_us": 100,
        "postprocess_us": 5,
        "credits": 1,
    }
    return Executed(**(fields | changes))

"""How far a deployed version is, from what instances report."""

from typing import Any

from contracts.distribution import Position, Report, ViewState
from contracts.pack import LoadedModel, ModelContract, ViewReference
from contracts.policies import DeployedVersion
from contracts.types import UNSET
from services.control_plane.loading import Wanted, standing

PACK, VIEW, OTHER = ("sha256:" + letter * 64 for letter in "abc")


def wanted(replicas: int = 1, *, view: bool = False, required: bool = True) -> Wanted:
    """Version 2 of m, deployed by commit 7."""
    reference = ViewReference(name="v", version="1", digest=VIEW)
    contract = ModelContract(
        name="m", task="tensor", inputs=[], outputs=[], view=reference if view else UNSET
    )
    row = DeployedVersion(version="2", replicas=replicas, required=required)
    return Wanted("m", row, PACK, contract, 7)


def report(index: int = 0, sequence: int | None = 7, **fields: Any) -> Report:
    """A runtime's heartbeat."""
    return Report(
        service="model_runtime",
        instance=f"model_runtime.{index}-x",
        index=index,
        role="active",
        position=UNSET
        if sequence is None
        else Position(epoch=1, sequence=sequence, hash="sha256:" + "0" * 64),
        ready=True,
        infra="sha256:" + "0" * 64,
        **fields,
    )


def model(state: str, digest: str = PACK, **fields: Any) -> dict[str, list[LoadedModel]]:
    """What a runtime holds."""
    return {"models": [LoadedModel(name="m", version="2", digest=digest, state=state, **fields)]}  # type: ignore[arg-type]


def view(state: str, digest: str = VIEW) -> dict[str, list[ViewState]]:
    """What a fabric holds."""
    return {"views": [ViewState(name="v", version="1", digest=digest, state=state)]}  # type: ignore[arg-type]


def test_ready_where_it_must_be() -> None:
    """A model without a view is ready when runtime 0 has it."""
    assert standing(wanted(), [report(**model("ready"))], []).is_ready


def test_no_runtime_is_not_ready() -> None:
    """An empty mesh never makes a promotion succeed."""
    state = standing(wanted(2), [], [])
    assert not state.is_ready
    assert set(state.waiting) == {"model_runtime.0", "model_runtime.1"}


def test_every_replica_is_needed() -> None:
    """Runtimes 0 … replicas − 1 must have it; further ones need not."""
    ready, loading = report(0, **model("ready")), report(1, **model("loading"))
    assert standing(wanted(1), [ready, loading], []).is_ready
    state = standing(wanted(2), [ready, loading], [])
    assert state.waiting == {"model_runtime.1-x": "loads m 2"}
    assert state.ready == ["model_runtime.0-x"]


def test_one_replica_is_enough_where_it_is_not_required() -> None:
    """`required: false` asks for one runtime only."""
    assert standing(wanted(2, required=False), [report(0, **model("ready"))], []).is_ready


def test_a_report_from_before_the_deployment_says_nothing() -> None:
    """A failure of an earlier attempt does not end this one, nor an old readiness."""
    for sequence in (6, None):
        for word in ("failed", "ready"):
            state = standing(wanted(), [report(0, sequence, **model(word))], [])
            assert not state.failed
            assert list(state.waiting) == ["model_runtime.0"]


def test_a_failed_load_is_named_with_its_reason() -> None:
    """The instance and its own words."""
    state = standing(wanted(), [report(**model("failed", reason="no memory"))], [])
    assert state.failed == {"model_runtime.0-x": "m 2: no memory"}
    assert not state.is_ready


def test_another_pack_of_the_same_version_does_not_count() -> None:
    """The digest decides."""
    state = standing(wanted(), [report(**model("ready", digest=OTHER))], [])
    assert state.waiting == {"model_runtime.0-x": "has not begun to load it"}


def test_the_view_must_be_ready_too() -> None:
    """A model with a view waits for the fabric."""
    runtime = [report(**model("ready"))]
    assert standing(wanted(view=True), runtime, []).waiting.keys() == {"data_fabric"}
    assert standing(wanted(view=True), runtime, [report(**view("loading"))]).waiting
    assert standing(wanted(view=True), runtime, [report(**view("ready", OTHER))]).waiting
    assert standing(wanted(view=True), runtime, [report(**view("failed"))]).failed
    assert standing(wanted(view=True), runtime, [report(**view("ready"))]).is_ready

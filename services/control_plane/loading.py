"""How far a deployed version is on the instances that must have it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from contracts.distribution import Report, ViewState
from contracts.pack import LoadedModel, ModelContract
from contracts.policies import DeployedVersion
from contracts.types import UNSET


@dataclass(frozen=True, slots=True)
class Wanted:
    """A version that is being deployed, since the commit of this sequence."""

    model: str
    row: DeployedVersion
    digest: str
    contract: ModelContract
    sequence: int


@dataclass(slots=True)
class Standing:
    """Instances by what they say of a version; `waiting` and `failed` with the reason."""

    ready: list[str] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether nothing is missing any more."""
        return not self.waiting and not self.failed


def standing(wanted: Wanted, runtimes: Iterable[Report], fabrics: Iterable[Report]) -> Standing:
    """What runtimes 0 … replicas − 1 and, for a model with a view, the fabric say.

    A version that is not `required` needs one runtime only.
    """
    result = Standing()
    by_index = {report.index: report for report in runtimes}
    for index in range(wanted.row.replicas if wanted.row.required else 1):
        _judge_model(result, wanted, index, by_index.get(index))
    if wanted.contract.view is not UNSET:
        _judge_view(result, wanted, next(iter(fabrics), None))
    return result


def _judge_model(result: Standing, wanted: Wanted, index: int, report: Report | None) -> None:
    name = f"model_runtime.{index}"
    if report is None or not _has_policies(report, wanted):
        result.waiting[name] = "has not taken the deployment yet"
        return
    for model in report.models:
        if model.name == wanted.model and model.digest == wanted.digest:
            _sort(result, report.instance, model)
            return
    result.waiting[report.instance] = "has not begun to load it"


def _judge_view(result: Standing, wanted: Wanted, report: Report | None) -> None:
    reference = wanted.contract.view
    assert reference is not UNSET
    if report is None or not _has_policies(report, wanted):
        result.waiting["data_fabric"] = "has not taken the deployment yet"
        return
    for view in report.views:
        if view.name == reference.name and view.digest == reference.digest:
            _sort(result, report.instance, view)
            return
    result.waiting[report.instance] = f"has not begun to load view {reference.name}"


def _sort(result: Standing, instance: str, loaded: LoadedModel | ViewState) -> None:
    reason = "no reason" if loaded.reason is UNSET else loaded.reason
    if loaded.state == "ready":
        result.ready.append(instance)
    elif loaded.state == "failed":
        result.failed[instance] = f"{loaded.name} {loaded.version}: {reason}"
    else:
        result.waiting[instance] = f"loads {loaded.name} {loaded.version}"


def _has_policies(report: Report, wanted: Wanted) -> bool:
    """A report from before the deployment says nothing about it."""
    return report.position is not UNSET and report.position.sequence >= wanted.sequence

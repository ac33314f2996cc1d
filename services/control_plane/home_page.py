"""The contract page of a home: the built-in page with its policies, models and views. Pure.

The same release, policies, packs and `mortise.toml` make the same page on every machine; nothing in
it depends on versions, replicas, instances or time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.features import ViewHeader
from contracts.infrastructure import BUILT_IN, FIELDS, Resource
from contracts.pack import ModelContract
from contracts.page import EVERY, built_in, process, promises
from contracts.policies import PolicySet, SlaPolicy, SlaSpec
from contracts.types import UNSET
from services.control_plane import versions
from services.control_plane.candidate import published
from services.control_plane.chain import canonical, change

CPU_BY_PLACEMENT = "threads + 1"
"""Of a runtime whose `threads` follow from the machine."""


@dataclass(frozen=True, slots=True)
class PackTerms:
    """What a pack promises: the model's contract and, where it has a view, that view's
    header."""

    contract: ModelContract
    view: ViewHeader | None


@dataclass(frozen=True, slots=True)
class RuntimeTerms:
    """`[runtime]` of the home; `threads` 0: as many as fit."""

    memory_mib_max: int
    threads: int


def packs_on_page(policies: PolicySet) -> list[tuple[str, str]]:
    """(model, digest) of each version that traffic can reach."""
    digests = published(policies)
    return [(key[0], digests[key]) for key in sorted(versions.routed_versions(policies))]


def home_page(
    policies: PolicySet, packs: Iterable[tuple[str, PackTerms]], runtime: RuntimeTerms
) -> dict[str, Any]:
    """The page as builtin values; `packs` are those of `packs_on_page`."""
    rows = list(packs)
    page = built_in()
    slas = {policy.name: policy.spec for policy in _slas(policies)}
    every = slas.setdefault(EVERY, SlaSpec())
    views = {
        f"{terms.view.name} {terms.view.version}": _view(terms.view)
        for _, terms in rows
        if terms.view is not None
    }
    page["business"] |= {
        "sla": {name: promises(spec) for name, spec in sorted(slas.items())},
        "actions": _actions(rows),
    }
    page["technical"] |= {"models": _models(rows), "views": dict(sorted(views.items()))}
    page["operational"] |= {
        "processes": _processes(every, runtime),
        "freshness_s": {name: view["freshness_s"] for name, view in sorted(views.items())},
    }
    return page


def roles(policies: PolicySet, model: str) -> set[str]:
    """Who must have signed the page of a version of this model."""
    return {
        role
        for policy in _slas(policies)
        if policy.name in (EVERY, model) and policy.spec.sign_offs is not UNSET
        for role in policy.spec.sign_offs
    }


def required(policies: PolicySet) -> dict[str, list[str]]:
    """The roles that each `sla` policy asks for, by its name."""
    return {
        policy.name: sorted(set(policy.spec.sign_offs))
        for policy in _slas(policies)
        if policy.spec.sign_offs is not UNSET and policy.spec.sign_offs
    }


def newly_offered(before: PolicySet, after: PolicySet) -> list[tuple[str, str]]:
    """(model, version) that a commit publishes, or that traffic reaches only after it."""
    new = published(after).keys() - published(before).keys()
    new |= versions.routed_versions(after) - versions.routed_versions(before)
    return sorted(new, key=lambda key: (key[0], int(key[1])))


def answering(policies: PolicySet, model: str, version: str) -> PolicySet:
    """The set in which this version answers for its model by default: its page is what is signed
    before it may."""
    route = versions.route_to(policies, model, version)
    return policies if route is None else change(policies, [route])


def _slas(policies: PolicySet) -> list[SlaPolicy]:
    return [policy for policy in policies.policies if isinstance(policy, SlaPolicy)]


def _models(rows: list[tuple[str, PackTerms]]) -> dict[str, list[Any]]:
    """Model → the different contracts of its versions. Of the view its name and version: what its
    fields promise stands under `views`."""
    contracts: list[tuple[str, Any]] = []
    for model, terms in rows:
        shown: dict[str, Any] = msgspec.to_builtins(terms.contract)
        del shown["name"], shown["actions"]
        if "view" in shown:
            shown["view"] = f"{shown['view']['name']} {shown['view']['version']}"
        contracts.append((model, shown))
    return _different(contracts)


def _actions(rows: list[tuple[str, PackTerms]]) -> dict[str, list[Any]]:
    """Model → the different tables of risk level and label → action."""
    tables = ((model, msgspec.to_builtins(terms.contract.actions)) for model, terms in rows)
    return _different((model, table) for model, table in tables if table)


def _different(rows: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Each model's different values, in the order of their text: which version has which does not
    matter."""
    found: dict[str, dict[bytes, Any]] = {}
    for model, value in rows:
        found.setdefault(model, {})[canonical(value)] = value
    return {
        model: [values[text] for text in sorted(values)] for model, values in sorted(found.items())
    }


def _view(header: ViewHeader) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(header)
    del shown["name"], shown["version"]
    return shown


def _processes(every: SlaSpec, runtime: RuntimeTerms) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for service in BUILT_IN:
        spec = every.infrastructure.get(service)
        home: Mapping[Resource, float] = {}
        if service == "model_runtime":
            home = {"memory": runtime.memory_mib_max, "cpu": runtime.threads + 1}
        rows[service] = process(service, spec, home)
        is_declared = spec is not None and spec.cpu_cores_max is not UNSET
        if service == "model_runtime" and not runtime.threads and not is_declared:
            rows[service][FIELDS["cpu"]] = CPU_BY_PLACEMENT
    return rows

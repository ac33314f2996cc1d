"""The contract page of a home: what is on it, and that its digest changes with that alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.features import FieldContract, ViewHeader
from contracts.pack import Action, ModelContract, TensorContract, ViewReference
from contracts.page import built_in, digest_of
from contracts.policies import Policy, PolicySet
from services.control_plane import home_page
from services.control_plane.chain import change
from services.control_plane.home_page import PackTerms, RuntimeTerms

ROOT = Path(__file__).parents[4]
RUNTIME = RuntimeTerms(memory_mib_max=8_192, threads=0)
DIGESTS = [f"sha256:{number:064x}" for number in range(4)]


def policy(kind: str, name: str, **spec: Any) -> Policy:
    """A policy from its plain form."""
    made: Policy = msgspec.convert({"kind": kind, "name": name, "spec": spec}, Policy)
    return made


def policies(*more: Policy, route: str = "1") -> PolicySet:
    """A model `delay` of three versions, of which one is routed."""
    rows = [{"version": str(n), "digest": DIGESTS[n]} for n in (1, 2, 3)]
    first = [policy("model", "delay", versions=rows), policy("route", "delay", default=route)]
    return change(PolicySet(version=0, policies=[]), [*first, *more])


VIEW = ViewHeader(
    name="departure",
    version="1",
    entity="tailnum",
    event_time="at",
    owner="operations",
    request={
        "at": FieldContract(dtype="timestamp", zone="UTC", source="caller"),
        "tailnum": FieldContract(dtype="string", source="caller"),
    },
    fields={"wind": FieldContract(dtype="float64", range=(0.0, 90.0), source="weather.csv")},
)
CONTRACT = ModelContract(
    name="delay",
    task="classifier",
    inputs=[],
    outputs=[TensorContract(name="p", datatype="FP32", shape=[-1, 2])],
    labels=["late", "on_time"],
    actions=[Action(risk_level=1, label="late", probability_min=0.0, action="call")],
    view=ViewReference(name="departure", version="1", digest=DIGESTS[0]),
)
TERMS = PackTerms(CONTRACT, VIEW)


def digest(
    *more: Policy, terms: tuple[PackTerms, ...] = (TERMS,), runtime: RuntimeTerms = RUNTIME
) -> str:
    """The digest of the page with these policies and packs."""
    rows = [(one.contract.name, one) for one in terms]
    return digest_of(home_page.home_page(policies(*more), rows, runtime))


def with_field(**fields: Any) -> PackTerms:
    """The pack with another contract of the feature `wind`."""
    wind = msgspec.structs.replace(VIEW.fields["wind"], **fields)
    return PackTerms(CONTRACT, msgspec.structs.replace(VIEW, fields={"wind": wind}))


def with_contract(**fields: Any) -> PackTerms:
    """The pack with another contract of the model."""
    return PackTerms(msgspec.structs.replace(CONTRACT, **fields), VIEW)


CHANGES: dict[str, Callable[[], str]] = {
    "sla": lambda: digest(policy("sla", "*", p99_ms=120.0)),
    "availability": lambda: digest(policy("sla", "*", availability=0.99951)),
    "sla of a model": lambda: digest(policy("sla", "delay")),
    "infrastructure": lambda: digest(
        policy("sla", "*", infrastructure={"data_fabric": {"memory_mib_max": 1_024}})
    ),
    "alarm": lambda: digest(
        policy("sla", "*", infrastructure={"data_fabric": {"alarm_share": 0.9}})
    ),
    "runtime's memory": lambda: digest(runtime=RuntimeTerms(4_096, 0)),
    "runtime's threads": lambda: digest(runtime=RuntimeTerms(8_192, 2)),
    "output": lambda: digest(
        terms=(with_contract(outputs=[TensorContract(name="p", datatype="FP64", shape=[-1, 2])]),)
    ),
    "action": lambda: digest(
        terms=(
            with_contract(
                actions=[Action(risk_level=1, label="late", probability_min=0.5, action="call")]
            ),
        )
    ),
    "p99 of the model": lambda: digest(terms=(with_contract(p99_ms=40),)),
    "range": lambda: digest(terms=(with_field(range=(0.0, 91.0)),)),
    "missing": lambda: digest(terms=(with_field(missing="null"),)),
    "source": lambda: digest(terms=(with_field(source="weather.parquet"),)),
    "dtype": lambda: digest(terms=(with_field(dtype="int64"),)),
    "freshness": lambda: digest(
        terms=(PackTerms(CONTRACT, msgspec.structs.replace(VIEW, freshness_s=31.0)),)
    ),
    "event time": lambda: digest(
        terms=(PackTerms(CONTRACT, msgspec.structs.replace(VIEW, event_time="then")),)
    ),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
def test_a_changed_promise_is_another_digest(changed: Callable[[], str]) -> None:
    """Each part of the contract is in the digest, and gives the same one each time."""
    assert changed() != digest()
    assert changed() == changed()


SAME: dict[str, Callable[[], str]] = {
    "built-in sla": lambda: digest(policy("sla", "*")),
    "who signs": lambda: digest(policy("sla", "*", sign_offs=["risk"])),
    "batching": lambda: digest(policy("batching", "delay", wait_ms=1.0)),
    "a second version of the same contract": lambda: digest(terms=(TERMS, TERMS)),
    "the view's SQL": lambda: digest(
        terms=(with_contract(view=ViewReference(name="departure", version="1", digest=DIGESTS[3])),)
    ),
}


@pytest.mark.parametrize("same", SAME.values(), ids=SAME)
def test_what_promises_nothing_keeps_the_digest(same: Callable[[], str]) -> None:
    """A retrained model, a tuned batch or a new signer asks nobody to sign again."""
    assert same() == digest()


def test_the_order_of_versions_does_not_matter() -> None:
    """Two contracts of a model are the same page whichever version has which."""
    other = with_contract(p99_ms=40)
    assert digest(terms=(TERMS, other)) == digest(terms=(other, TERMS))


def test_the_page_has_the_contract_of_every_field() -> None:
    """Name, dtype, range, missing rule, zone, source, event time: what data owners sign."""
    page = home_page.home_page(policies(), [("delay", TERMS)], RUNTIME)
    view = page["technical"]["views"]["departure 1"]
    assert view["event_time"] == "at"
    assert view["request"]["at"]["zone"] == "UTC"
    wind = view["fields"]["wind"]
    assert [wind[key] for key in ("dtype", "range", "missing", "source")] == [
        "float64", (0.0, 90.0), "reject", "weather.csv",
    ]  # fmt: skip
    (model,) = page["technical"]["models"]["delay"]
    assert model["outputs"] == [{"name": "p", "datatype": "FP32", "shape": [-1, 2]}]
    assert page["business"]["actions"]["delay"][0][0]["action"] == "call"
    assert page["operational"]["freshness_s"] == {"departure 1": 30.0}
    assert page["operational"]["processes"]["model_runtime"]["cpu_cores_max"] == "threads + 1"
    assert page["operational"]["limits"]["restarts_max"] == 5


def test_without_policies_it_is_the_built_in_page() -> None:
    """A home without models has every promise of the release."""
    page = home_page.home_page(PolicySet(version=0, policies=[]), [], RUNTIME)
    first = built_in()
    assert page["business"]["sla"] == first["business"]["sla"]
    assert page["technical"]["services"] == first["technical"]["services"]
    assert page["operational"]["budgets"] == first["operational"]["budgets"]


def test_versions_that_traffic_reaches_are_on_the_page() -> None:
    """By default, alias or split; the others are not."""
    split = policy("split", "delay", key="entity", salt="s", shares={"1": 5, "3": 5})
    assert home_page.packs_on_page(policies()) == [("delay", DIGESTS[1])]
    assert [digest for _, digest in home_page.packs_on_page(policies(split))] == [
        DIGESTS[1], DIGESTS[3],
    ]  # fmt: skip
    answering = home_page.answering(policies(), "delay", "2")
    assert home_page.packs_on_page(answering) == [("delay", DIGESTS[2])]


def test_roles_of_everybody_and_of_the_model_add_up() -> None:
    """`*` and the model's own; another model's do not count."""
    slas = [policy("sla", "*", sign_offs=["risk"]), policy("sla", "delay", sign_offs=["law"])]
    asked = policies(*slas, policy("sla", "other", sign_offs=["data"]))
    assert home_page.roles(asked, "delay") == {"risk", "law"}
    assert home_page.roles(asked, "third") == {"risk"}
    assert home_page.roles(policies(), "delay") == set()
    assert home_page.required(asked) == {"*": ["risk"], "delay": ["law"], "other": ["data"]}


def test_new_versions_and_newly_reached_ones_are_offered() -> None:
    """Publishing, routing, an alias or a split; not what was there."""
    before = policies()
    assert home_page.newly_offered(before, policies(route="2")) == [("delay", "2")]
    assert home_page.newly_offered(before, before) == []
    nothing = PolicySet(version=0, policies=[])
    assert home_page.newly_offered(nothing, before) == [("delay", n) for n in "123"]

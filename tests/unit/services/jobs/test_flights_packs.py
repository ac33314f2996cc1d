"""The committed packs of the flights home are whole, fresh, and named by its policies."""

from pathlib import Path

import msgspec
import pytest

from contracts.pack import Manifest
from contracts.policies import ModelPolicy, Policy, RoutePolicy
from services.jobs.training_config import read_config, read_small
from services.jobs.training_inputs import code_digest
from shared.packs import pack_path, read_view, verify

HOMES = Path(__file__).parents[4] / "examples"
FLIGHTS = HOMES / "flights"
RETRAIN = "python -m services.jobs.train --home examples/flights"
PACK_BYTES_MAX = 1_000_000


def policies(home: Path) -> list[Policy]:
    """The home's first policies."""
    tables = msgspec.toml.decode((home / "policies.toml").read_bytes())["policy"]
    return msgspec.convert(tables, list[Policy])


def digests(home: Path) -> dict[str, str]:
    """Pack digest by model name, as the policies publish them."""
    return {
        policy.name: policy.spec.versions[0].digest
        for policy in policies(home)
        if isinstance(policy, ModelPolicy)
    }


def manifests() -> dict[str, Manifest]:
    """The packs of the flights home, verified."""
    return {
        name: verify(pack_path(FLIGHTS / "models", digest), digest)
        for name, digest in digests(FLIGHTS).items()
    }


@pytest.mark.parametrize("home", ["bench", "flights"])
def test_every_pack_is_published_and_every_published_pack_is_there(home: str) -> None:
    """No leftover of an earlier training lies in `models/`."""
    found = {folder.name for folder in (HOMES / home / "models").iterdir()}
    assert {digest.removeprefix("sha256:") for digest in digests(HOMES / home).values()} == found


def test_the_packs_are_small() -> None:
    """They are committed, so each stays below a megabyte."""
    for digest in digests(FLIGHTS).values():
        files = pack_path(FLIGHTS / "models", digest).iterdir()
        assert sum(file.stat().st_size for file in files) < PACK_BYTES_MAX


def test_the_packs_hold_the_homes_view() -> None:
    """After an edit of the view the models are trained again."""
    view = (FLIGHTS / "features/departure.sql").read_text()
    for digest in digests(FLIGHTS).values():
        assert read_view(FLIGHTS / "models", digest) == view, RETRAIN


def test_the_packs_come_from_this_code_and_configuration() -> None:
    """After an edit of what decides a number the models are trained again."""
    config, small = read_config(FLIGHTS / "model.toml"), read_small(FLIGHTS / "model_small.toml")
    found = manifests()
    for name, model in (("delay", config), ("delay_small", small)):
        provenance = found[name].provenance
        assert provenance.code == code_digest(), RETRAIN
        assert provenance.seed == model.training.seed
        assert found[name].architecture.configuration["widths"] == model.network.widths
        assert found[name].contract.actions == config.actions
        assert found[name].contract.description == model.description


def test_the_fallback_is_the_smaller_model_on_the_same_view() -> None:
    """Features fetched for one serve the other."""
    (route,) = (
        policy
        for policy in policies(FLIGHTS)
        if isinstance(policy, RoutePolicy) and policy.name == "delay"
    )
    assert route.spec.fallback is not msgspec.UNSET
    assert route.spec.fallback.model_name == "delay_small"
    found = manifests()
    delay, small = found["delay"], found["delay_small"]
    assert delay.contract.view == small.contract.view
    assert sum(t.bytes for t in small.tensors) < sum(t.bytes for t in delay.tensors) / 5

"""`contracts show` and `contracts sign`: the page for people, and what signing says."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from contracts.page import built_in, digest_of, page
from mortise.cli.app import run
from tests.unit.mortise.fake_server import FakeServer, Step, refuse, reply

DIGEST = "sha256:" + "1" * 64
PACK = "sha256:" + "2" * 64
FIELD = {
    "dtype": "float64", "range": [0.0, 90.5], "missing": "default", "default": 1.5, "decimals": 2,
    "source": "weather.csv", "description": "gusts",
}  # fmt: skip
INSTANT = {
    "dtype": "timestamp", "missing": "reject", "zone": "Europe/Berlin", "source": "caller",
    "description": "",
}  # fmt: skip


def answer() -> dict[str, Any]:
    """A page with a model, a view, a role that signed and one that did not."""
    content = built_in()
    content["business"]["sla"]["delay"] = {"p99_ms": 123.456, "stages": {}}
    action = {"risk_level": 1, "label": "late", "probability_min": 0.25, "action": "call"}
    content["business"]["actions"] = {"delay": [[action]]}
    tensor = {"name": "p", "datatype": "FP32", "shape": [-1, 2]}
    content["technical"]["models"] = {
        "delay": [{"task": "classifier", "inputs": [], "outputs": [tensor], "labels": ["late"]}]
    }
    content["technical"]["views"] = {
        "departure 1": {
            "owner": "operations", "entity": "tailnum", "event_time": "at", "freshness_s": 30.0,
            "window_s": 10.0, "description": "", "request": {"at": INSTANT},
            "fields": {"wind": FIELD},
        }
    }  # fmt: skip
    content["operational"]["freshness_s"] = {"departure 1": 30.0}
    signed = {"role": "risk", "author": "ada", "at": "2013-01-01T00:00:00Z", "peer_uid": 7}
    return {
        "digest": digest_of(content), "policy_version": 4, "page": content,
        "required": {"*": ["law", "risk"]}, "signed": [{**signed, "version": 3}],
    }  # fmt: skip


def behaviour(_number: int, frame: list[Any]) -> Iterable[Step]:
    """A control plane that has one page, and signs what is asked."""
    if frame[2] == "contracts":
        yield reply(frame, answer())
        return
    body = frame[3][0]
    signed = {"digest": body["digest"], "role": body["role"], "version": 5, "commit": DIGEST}
    yield reply(frame, {**signed, "changed": body["role"] != "risk"})


def test_the_page_of_a_home_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Promises with every digit, tensors, each field's rules, and who must sign still."""
    with FakeServer(behaviour, service="control_plane") as server:
        assert run(["contracts", "show", "--home", str(server.home)]) == 0
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[0] == f"The contract of this home, protocol 1, {answer()['digest']}"
    for line in (
        "delay p99_ms 123.456",
        "* availability 0.9995",
        "delay 1 late ≥ 0.25 call",
        "output p FP32 [-1, 2]",
        "owner operations, entity tailnum, event time at, freshness 30.0 s, drift window 10.0 s",
        "at timestamp reject Europe/Berlin caller",
        "wind float64 0 … 90.5 default 1.5 2 weather.csv gusts",
        "departure 1 30.0",
        "restarts_max 5",
        "risk ada 7 2013-01-01T00:00:00Z 3",
        "publishing any model needs law, risk; missing: law",
        f"mortise contracts sign --home {server.home} --role ROLE --author NAME",
    ):
        assert line in lines, line


def test_the_page_as_json_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, so that a program can compute the digest over `page` again."""
    with FakeServer(behaviour, service="control_plane") as server:
        line = ["contracts", "show", "--pack", PACK, "--json", "--home", str(server.home)]
        assert run(line) == 0
    assert server.requests[0][3][0] == {"pack": PACK}
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(json.dumps(answer()))
    assert digest_of(shown["page"]) == shown["digest"]


def test_without_a_home_it_is_the_page_of_every_home(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And for one service, its part of that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MORTISE_HOME", raising=False)
    assert run(["contracts", "show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == page()["digest"]
    assert run(["contracts", "show", "data_fabric"]) == 0
    shown = capsys.readouterr().out
    assert "data_fabric.features" in shown
    assert "orchestrator.infer" not in shown


@pytest.mark.parametrize("options", [[], ["--digest", DIGEST]], ids=["in force", "given"])
def test_signing_names_what_was_signed(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The page in force, or the digest that was read; author and role as given."""
    with FakeServer(behaviour, service="control_plane") as server:
        line = ["contracts", "sign", "--role", "law", "--author", "eve", "--pack", PACK]
        assert run([*line, *options, "--home", str(server.home)]) == 0
    digest = DIGEST if options else answer()["digest"]
    assert server.requests[-1][2] == "contracts_sign"
    assert server.requests[-1][3][0] == {
        "digest": digest, "role": "law", "author": "eve", "pack": PACK,
    }  # fmt: skip
    assert capsys.readouterr().out == f"law signed {digest}: policy 5, {DIGEST}\n"


def test_signing_again_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and names the commit that there is."""
    with FakeServer(behaviour, service="control_plane") as server:
        assert run(["contracts", "sign", "--role", "risk", "--home", str(server.home)]) == 0
    assert capsys.readouterr().out.startswith("nothing changed: risk signed sha256:")


def test_a_missing_sign_off_leads_to_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy of a refused publication is what there is to be signed."""

    def refused(_number: int, frame: list[Any]) -> Iterable[Step]:
        details = {"roles": "law", "digest": DIGEST, "pack": PACK}
        yield refuse(frame, "POLICY_REJECTED", 505, details=details)

    with FakeServer(refused, service="control_plane") as server:
        assert run(["publish", PACK, "--home", str(server.home)]) == 1
    shown = capsys.readouterr().err
    assert f"mortise contracts show --home {server.home} --pack {PACK}" in shown


def test_one_models_contract(capsys: pytest.CaptureFixture[str]) -> None:
    """What it takes and gives; JSON too; an unknown one names those that there are."""
    with FakeServer(behaviour, service="control_plane") as server:
        home = ["--home", str(server.home)]
        assert run(["contracts", "show", "delay", *home]) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == "model delay (classifier)"
        assert "output p FP32 [-1, 2]" in lines
        assert "labels: late" in lines
        assert not any(line.startswith("owner") for line in lines)
        assert run(["contracts", "show", "delay", "--json", *home]) == 0
        (contract,) = json.loads(capsys.readouterr().out)["contracts"]
        assert contract["outputs"][0]["name"] == "p"
        assert run(["contracts", "show", "dealy", *home]) == 1
        assert "MODEL_UNKNOWN: no model 'dealy'" in (told := capsys.readouterr().err)
        assert "models: delay" in told

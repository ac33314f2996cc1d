"""Schema refusals of `apply` in the words of the file."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.control import Apply
from contracts.policies import BatchingSpec, DeployedVersion, DriftField, Policy, Shadow
from mortise.cli.app import run
from mortise.cli.policy_faults import in_words_of_file
from shared.wire import codec
from tests.unit.mortise.fake_server import FakeServer, Step, refuse

GOOD = {"kind": "batching", "name": "delay", "spec": {}}
SPLIT = {"key": "entity", "salt": "s", "shares": {}}
KINDS = [str(member.__struct_config__.tag) for member in Policy.__args__]


def refusal(*policies: dict[str, Any]) -> str:
    """What a control plane says to these policies, as `session.py` frames it."""
    body = {"policies": policies, "author": "me", "reason": "r"}
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert([body], tuple[Apply])
    return f"apply: {codec.reason(caught.value)}"


@pytest.mark.parametrize(
    ("policy", "begin", "known"),
    [
        (GOOD | {"kind": "batchin"}, "policy 2, batchin delay: Invalid value", KINDS),
        ({"name": "delay", "spec": {}}, "policy 2, ? delay: ", KINDS),
        (GOOD | {"spec": {"waitms": 3}}, "policy 2, batching delay: ", BatchingSpec),
        (GOOD | {"x": 1}, "policy 2, batching delay: ", ["kind", "name", "spec"]),
        (
            {"kind": "split", "name": "m", "spec": SPLIT | {"shadow": {"share": 1}}},
            "policy 2, split m: ",
            Shadow,
        ),
        (
            {"kind": "deployment", "name": "m", "spec": {"versions": [{"replica": 1}]}},
            "policy 2, deployment m: ",
            DeployedVersion,
        ),
        ({"kind": "drift", "name": "m", "spec": {"x": {"lim": 1}}}, "policy 2, ", DriftField),
        (GOOD | {"spec": {"wait_ms": -1}}, "policy 2, batching delay: ", []),
    ],
)
def test_a_refusal_names_the_policy_and_what_could_stand_there(
    policy: dict[str, Any], begin: str, known: Any
) -> None:
    """Number from 1, kind and name; the kinds for a kind, the fields of that place for a field."""
    names = known if isinstance(known, list) else list(known.__struct_fields__)
    text = in_words_of_file(refusal(GOOD, policy), [GOOD, policy])
    assert text.startswith(begin)
    assert "body.policies" not in text
    assert text.endswith(", ".join(names))


def test_other_messages_stay_as_they_are() -> None:
    """Rules between policies name them already; a place beyond the file is not ours."""
    for message in ("route delay: no version 9", "Expected `str` - at `body.policies[1].name`"):
        assert in_words_of_file(message, [GOOD]) == message


def test_apply_tells_the_refusal_in_the_words_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command's error names policy and fields, with the name and code of the mesh's own."""
    file = tmp_path / "p.toml"
    file.write_text('[[policy]]\nkind = "batching"\nname = "delay"\nspec.waitms = 5\n')
    bad = {"kind": "batching", "name": "delay", "spec": {"waitms": 5}}

    def behaviour(number: int, frame: list[Any]) -> Iterable[Step]:
        yield refuse(frame, "INVALID_REQUEST", 102, message=refusal(bad))

    with FakeServer(behaviour, service="control_plane") as server:
        assert run(["apply", str(file), "--home", str(server.home)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("INVALID_REQUEST: policy 1, batching delay: Object contains unknown")
    assert "wait_ms, rows_max" in error

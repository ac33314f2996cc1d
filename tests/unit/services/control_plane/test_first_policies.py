"""policies.toml: read, or refused with file, policy and what is wrong."""

from pathlib import Path

import pytest

from contracts.policies import BatchingPolicy, BatchingSpec
from services.control_plane.first_policies import FirstPoliciesError, load, parse

GOOD = """
[[policy]]
kind = "batching"
name = "m"
[policy.spec]
wait_ms = 2.5
"""


def test_policies_are_read_in_order() -> None:
    """Each [[policy]] becomes its typed struct, defaults filled in."""
    assert parse(GOOD) == [BatchingPolicy(name="m", spec=BatchingSpec(wait_ms=2.5))]
    assert parse("") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[policy]", ["policies.toml"]),
        ("x = 1", ["only [[policy]] tables", "x"]),
        ("[policy]\nkind = 'sla'", ["only [[policy]] tables"]),
        ("policy = [1]", ["policy 1"]),
        (GOOD + "waits_ms = 3", ["policy 1, batching m", "waits_ms"]),
        (GOOD.replace("2.5", "-1.0"), ["policy 1, batching m", "wait_ms"]),
        (GOOD.replace("batching", "bathing"), ["policy 1, bathing m", "bathing"]),
        (GOOD + GOOD.replace('"m"', '"1x"'), ["policy 2, batching 1x", "name"]),
        (GOOD.replace('name = "m"', ""), ["policy 1, batching ?", "name"]),
    ],
)
def test_what_is_wrong_is_named(text: str, words: list[str]) -> None:
    """File, policy and field stand in the message."""
    with pytest.raises(FirstPoliciesError) as refusal:
        parse(text)
    for word in ["policies.toml", *words]:
        assert word in str(refusal.value)


def test_no_file_is_no_policies(tmp_path: Path) -> None:
    """A home without the file begins at version 0; one that cannot be read is refused."""
    assert load(tmp_path / "policies.toml") is None
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(FirstPoliciesError, match="cannot be read"):
        load(tmp_path / "binary")

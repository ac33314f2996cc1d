"""The measurements of routing, at a small size: they run, and what is exact is exact."""

from benchmarks import rules, split


def test_no_key_moves_that_should_not_and_every_one_that_should() -> None:
    """`make split` with 20,000 keys."""
    found = split.measure(20_000)
    assert [row["keys_wrong"] for row in found["changes"]] == [0] * len(split.CHANGES)
    for row in found["changes"]:
        assert abs(row["keys_share"] - row["slots_share"]) < 0.02


def test_the_dearest_rules_are_as_large_as_the_limits_allow() -> None:
    """`make rules` measures what it says: more nodes would be refused."""
    found = rules.measure(100)
    assert [case["nodes"] for case in found["cases"].values()] == [24, 93, 93]

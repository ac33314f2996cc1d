"""Sticky shares: what moves when they change."""

from bisect import bisect_right
from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.policies import SLOTS, Shadow, SplitSpec
from services.orchestrator.split import Split, number_of

KEYS = [f"entity {n}" for n in range(2_000)]
"""The same with 1,000,000 keys: `make split`."""
NUMBERS = [number_of("salt", key) for key in KEYS]


def split(shares: dict[str, int]) -> Split:
    """A split by entity."""
    return Split.of(SplitSpec(key="entity", salt="salt", shares=shares))


def versions(shares: dict[str, int]) -> list[str]:
    """The version of each key."""
    found = split(shares)
    return [found.choose(key)[0] for key in KEYS]


@st.composite
def moves(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int], str, str, int]:
    """Shares before and after Δ slots moved between neighbours, from whom, to whom, and Δ."""
    count = draw(st.integers(2, 5))
    cuts = sorted(draw(st.lists(st.integers(1, SLOTS - 1), min_size=count - 1, max_size=count - 1)))
    sizes = [end - start for start, end in zip([0, *cuts], [*cuts, SLOTS], strict=True)]
    before = {str(n + 1): size for n, size in enumerate(sizes)}
    left = draw(st.integers(0, count - 2))
    pair = [str(left + 1), str(left + 2)]
    giver, taker = draw(st.permutations(pair))
    moved = draw(st.integers(0, before[giver]))
    after = before | {giver: before[giver] - moved, taker: before[taker] + moved}
    return before, after, giver, taker, moved


@given(moves())
@settings(max_examples=40, deadline=None)
def test_moving_slots_between_neighbours_moves_exactly_their_keys(
    move: tuple[dict[str, int], dict[str, int], str, str, int],
) -> None:
    """Exactly the keys whose slots changed hands, all of them from the giver to the taker."""
    before, after, giver, taker, moved = move
    border = list(accumulate(before.values()))[min(int(giver), int(taker)) - 1]
    start, end = (border - moved, border) if giver < taker else (border, border + moved)
    for number, old, new in zip(NUMBERS, versions(before), versions(after), strict=True):
        is_moved = start <= number % SLOTS < end
        assert (old != new) == is_moved
        assert not is_moved or (old, new) == (giver, taker)


@given(st.lists(st.integers(0, SLOTS), min_size=2, max_size=6))
@settings(max_examples=40, deadline=None)
def test_with_two_versions_every_share_is_nested_in_a_larger_one(shares: list[int]) -> None:
    """Who is on the new version at 1 % is there at 10 % too, in whatever order shares change;
    versions without a share stand between nobody."""
    news = []
    for share in sorted(shares):
        found = versions({"9": SLOTS - share, "10": 0, "11": share})
        news.append({key for key, version in zip(KEYS, found, strict=True) if version == "11"})
    assert all(smaller <= larger for smaller, larger in pairwise(news))


def test_a_key_s_copy_does_not_depend_on_its_version() -> None:
    """The shadow sees all versions' requests, in its own share of keys that nests as well."""
    spec = SplitSpec(
        key="entity",
        salt="salt",
        shares={"1": SLOTS // 2, "2": SLOTS // 2},
        shadow=Shadow(version="3", slots=SLOTS // 5),
    )
    found = Split.of(spec)
    copied = [found.choose(key) for key in KEYS]
    by_version = {
        version: sum(has_copy for one, has_copy in copied if one == version) for version in "12"
    }
    assert all(140 < count < 260 for count in by_version.values()), by_version


def test_the_assignment_is_the_documented_arithmetic() -> None:
    """The end of a range is outside it."""
    shares = {"2": 3_000_000, "10": 7_000_000}
    bounds = list(accumulate(shares.values()))
    expected = [list(shares)[bisect_right(bounds, number % SLOTS)] for number in NUMBERS]
    assert versions(shares) == expected

"""The hash chain: canonical, replayable, and no bit of it can change unseen."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.policies import BatchingPolicy, BatchingSpec, PolicySet, SlaPolicy, SlaSpec
from contracts.types import UNSET
from services.control_plane.chain import (
    GENESIS,
    Entry,
    StoredEntry,
    change,
    commit_of,
    format_instant,
    hash_of,
    load,
    parse_instant,
    replay,
    store,
    verify,
)

SECOND_US = 1_000_000


def batching(name: str, wait_ms: float) -> BatchingPolicy:
    """A small policy."""
    return BatchingPolicy(name=name, spec=BatchingSpec(wait_ms=wait_ms))


def make_log(count: int) -> list[StoredEntry]:
    """A log of so many commits, one a second, each changing one of three policies."""
    log: list[StoredEntry] = []
    policies = PolicySet(version=0, policies=[])
    for version in range(1, count + 1):
        changed = [batching(f"m{version % 3}", float(version % 1_000))]
        policies = change(policies, changed)
        entry = Entry(
            version=version,
            previous=log[-1].hash if log else GENESIS,
            at=format_instant(version * SECOND_US),
            author="me",
            reason=f"commit {version}",
            peer_uid=0,
            changed=changed,
            removed=[],
            policy=policies.digest(),
        )
        log.append(store(entry))
    return log


LOG = make_log(12)


def test_an_honest_chain_is_valid() -> None:
    """Every prefix of an honest log verifies, and its head is the last entry's hash."""
    for count in range(len(LOG) + 1):
        verdict = verify(LOG[:count])
        assert verdict.broken_at is UNSET
        assert verdict.commits == count
        assert verdict.head == (LOG[count - 1].hash if count else GENESIS)


@settings(max_examples=150)
@given(st.data())
def test_one_flipped_bit_is_found_at_its_entry(data: st.DataObject) -> None:
    """A bit flipped in any entry's content, hash or number breaks the chain exactly there."""
    index = data.draw(st.integers(0, len(LOG) - 1))
    victim = LOG[index]
    place = data.draw(st.sampled_from(["content", "hash", "version"]))
    if place == "version":
        changed = replace(victim, version=victim.version ^ (1 << data.draw(st.integers(0, 40))))
    elif place == "hash":
        changed = replace(victim, hash=_flip(victim.hash.encode(), data).decode("latin-1"))
    else:
        changed = replace(victim, content=_flip(victim.content, data))
    verdict = verify([*LOG[:index], changed, *LOG[index + 1 :]])
    assert verdict.broken_at == index + 1
    assert verdict.commits == index
    assert verdict.head == (LOG[index - 1].hash if index else GENESIS)


def _flip(content: bytes, data: st.DataObject) -> bytes:
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << (bit % 8)
    return bytes(flipped)


@given(st.integers(0, len(LOG) - 2))
def test_a_missing_or_swapped_entry_is_found(index: int) -> None:
    """An entry left out, or two exchanged, breaks the chain where it happened."""
    assert verify([*LOG[:index], *LOG[index + 1 :]]).broken_at == index + 1
    swapped = [*LOG[:index], LOG[index + 1], LOG[index], *LOG[index + 2 :]]
    assert verify(swapped).broken_at == index + 1


def test_a_rewritten_entry_with_a_right_hash_is_found_behind_it() -> None:
    """Whoever recomputes one entry's hash is found by the next entry, which names the old one."""
    forged = store(
        Entry(**{**_fields(LOG[4]), "author": "somebody else"}),
    )
    assert verify([*LOG[:4], forged, *LOG[5:]]).broken_at == 6


def _fields(stored: StoredEntry) -> dict[str, object]:
    entry = load(stored)
    return {name: getattr(entry, name) for name in entry.__struct_fields__}


def test_verification_goes_on_page_by_page() -> None:
    """Walking in pages gives the same verdict as walking at once."""
    whole = verify(LOG)
    assert verify(LOG[5:], verify(LOG[:5])) == whole


def test_garbage_with_its_right_hash_is_named_not_raised() -> None:
    """Bytes that are no entry break the chain with a reason."""
    garbage = StoredEntry(1, hash_of(b"[1"), b"[1")
    verdict = verify([garbage])
    assert verdict.broken_at == 1
    assert "cannot be read" in str(verdict.reason)


def test_replay_to_a_version() -> None:
    """The set at a version holds every policy changed up to it, once, sorted."""
    policies = replay(LOG, version=5)
    assert policies.version == 5
    assert policies.policies == [batching("m0", 3.0), batching("m1", 4.0), batching("m2", 5.0)]
    assert policies.digest() == load(LOG[4]).policy
    assert replay(LOG, version=0) == PolicySet(version=0, policies=[])
    assert replay(LOG).version == len(LOG)


def test_replay_to_an_instant() -> None:
    """The set at an instant is that of the last commit not after it."""
    assert replay(LOG, instant_us=3 * SECOND_US - 1).version == 2
    assert replay(LOG, instant_us=3 * SECOND_US).version == 3
    assert replay(LOG, instant_us=0).version == 0
    assert replay(LOG, instant_us=10**15).version == len(LOG)


def test_a_removed_policy_is_gone() -> None:
    """What a commit removes is not in force afterwards; removing what is not there is nothing."""
    before = replay(LOG)
    after = change(
        before, [SlaPolicy(name="*", spec=SlaSpec())], [("batching", "m1"), ("sla", "x")]
    )
    assert [policy.name for policy in after.policies] == ["m0", "m2", "*"]


def test_entries_are_stored_in_one_form() -> None:
    """Storing what was loaded gives the same bytes and the same hash."""
    assert [store(load(stored)) for stored in LOG] == LOG
    assert commit_of(LOG[0]).commit == LOG[0].hash


def test_instants_are_exact_to_the_microsecond() -> None:
    """Formatting and parsing are inverse; other offsets mean the same instant."""
    assert parse_instant(format_instant(1_700_000_000_123_456)) == 1_700_000_000_123_456
    assert format_instant(0) == "1970-01-01T00:00:00.000000Z"
    assert parse_instant("1970-01-01T01:00:00+01:00") == 0


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-01T00:00:00", "2026-01-01", "1e9"])
def test_an_instant_without_offset_is_refused(text: str) -> None:
    """What is no instant, or leaves its offset open, is refused with the text."""
    with pytest.raises(ValueError, match=r"offset|RFC 3339"):
        parse_instant(text)

"""Keys: narrow, never wrong about a trace id's form."""

from array import array

import pytest

from services.control_plane.receipt_keys import (
    KEY_BITS,
    NO_KEY,
    from_blob,
    request_keys,
    to_blob,
    trace_keys,
)


@pytest.mark.parametrize("form", ["{0:032x}", "{0:016x}{1:016x}", "{0:016x}{0:016x}"])
def test_trace_ids_that_count_get_different_keys(form: str) -> None:
    """In the low half, in the high one, in both."""
    keys = trace_keys([form.format(number, 0) for number in range(10_000)])
    assert len(set(keys)) == 10_000
    assert all(0 <= key < 2**KEY_BITS for key in keys)


@pytest.mark.parametrize("bad", ["", "ab", "g" * 32, "a" * 30 + "  ", "a" * 34])
def test_what_is_no_trace_id_is_refused(bad: str) -> None:
    """Alone and among good ones."""
    for trace_ids in ([bad], ["a" * 32, bad], [bad, "b" * (64 - len(bad))]):
        with pytest.raises(ValueError, match="hexadecimal"):
            trace_keys(trace_ids)


def test_capitals_are_the_same_trace() -> None:
    """Hexadecimal digits have no case."""
    assert trace_keys(["ABCDEF" + "0" * 26]) == trace_keys(["abcdef" + "0" * 26])


def test_nothing_has_the_key_of_none() -> None:
    """A digest of zeros and a trace id of zeros get another one."""
    assert NO_KEY not in request_keys([bytes(16)])
    assert NO_KEY not in trace_keys(["0" * 32])


def test_a_blob_gives_its_keys_back() -> None:
    """Little-endian, 8 bytes each."""
    keys = array("q", [1, 2**KEY_BITS - 1])
    assert to_blob(keys) == b"\1" + bytes(7) + b"\xff\xff\xff\xff\xff\x1f\0\0"
    assert from_blob(to_blob(keys)) == keys

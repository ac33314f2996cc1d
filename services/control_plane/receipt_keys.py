"""45-bit keys under which receipts are looked up. Pure.

Keys only narrow a look-up: whoever finds a receipt under one compares the receipt itself, so two
requests or traces may share a key (with 10 million receipts about one in 3 million does). A blob
of keys is little-endian, 8 bytes each.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence

from contracts.lineage import Receipt

KEY_BITS = 45
"""With them an offset of 18 bits fits into one of SQLite's integers (`recent.py`)."""
NO_KEY = 0
"""Stands where a receipt is not the first answer of its request; it is not indexed."""
_SHIFT = 64 - KEY_BITS
_TRACE_CHARACTERS = 32
_MIX_HIGH, _MIX = 0x9E37_79B9_7F4A_7C15, 0xD6E8_FEB8_6659_FD93
"""Odd, without a pattern: trace ids that count in either half or in both get different keys."""
_MASK = 2**64 - 1


def request_digest(receipt: Receipt) -> bytes:
    """Of (tenant_id, id). The length keeps ("ab", "c") apart from ("a", "bc")."""
    text = f"{len(receipt.tenant_id)}:{receipt.tenant_id}{receipt.id}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def request_keys(digests: Sequence[bytes]) -> "array[int]":
    """A key for each digest: its first 8 bytes; none of them is NO_KEY."""
    words = _words(b"".join(digests))[::2]
    return array("q", [(word >> _SHIFT) or 1 for word in words])


def trace_keys(trace_ids: Sequence[str]) -> "array[int]":
    """A key for each trace id; none of them is NO_KEY. Raises ValueError if a trace id is not 32
    hexadecimal digits."""
    blob = bytes.fromhex("".join(trace_ids))
    is_whole = len(blob) * 2 == _TRACE_CHARACTERS * len(trace_ids)  # white space is skipped
    if not is_whole or not set(map(len, trace_ids)) <= {_TRACE_CHARACTERS}:
        raise ValueError("a trace id has 32 hexadecimal digits")
    words = _words(blob)
    mixed = [high * _MIX_HIGH ^ low for high, low in zip(words[::2], words[1::2], strict=True)]
    return array("q", [((word ^ word >> 32) * _MIX & _MASK) >> _SHIFT or 1 for word in mixed])


def _words(blob: bytes) -> "array[int]":
    words = array("Q", blob)
    if sys.byteorder == "big":
        words.byteswap()
    return words


def to_blob(keys: "array[int]") -> bytes:
    """As they are stored."""
    if sys.byteorder == "big":
        keys = keys[:]
        keys.byteswap()
    return keys.tobytes()


def from_blob(blob: bytes) -> "array[int]":
    """As they are compared."""
    keys = array("q", blob)
    if sys.byteorder == "big":
        keys.byteswap()
    return keys

"""Certified indexes on disk, so that a restarted fabric or a standby reads them instead of
computing them anew.

A cache: a file is named by the key of the certificate that it was proven under, begins with the
sha256 of the rest, and is ignored when it is not whole. At most `stored_views_max` files.
"""

import hashlib
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.data_fabric.config import stored_views_max
from services.data_fabric.index_needs import IndexKey
from services.data_fabric.online import Index, empty_entry
from shared import logs

log = logs.get("services.data_fabric")

Part = tuple[str, Any]
"""A type code and the bytes of an array, or an empty code and a list."""


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """One index; `entries` pairs a key (texts and numbers) with its parts."""

    relation: str
    keys: tuple[str, ...]
    time: str | None
    columns: tuple[str, ...]
    shifts: tuple[int, ...]
    dtypes: dict[str, str]
    packed: list[str]
    rows: int
    entries: list[tuple[Any, list[Part]]]


_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_index_decoder = msgspec.msgpack.Decoder(_Stored)


class IndexStore:
    """For the loader's thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> dict[IndexKey, Index] | None:
        """The indexes under a certificate's key, or None."""
        try:
            content = memoryview(self._path(key).read_bytes())
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                return None
            stored = [_index_decoder.decode(part) for part in _decoder.decode(content[32:])]
        except (OSError, msgspec.MsgspecError):
            return None
        return {(one.relation, one.keys, one.time): _restored(one) for one in stored}

    def put(self, key: str, indexes: Mapping[IndexKey, Index]) -> None:
        """Keep indexes; whole or not at all. A disk that refuses costs the next start its time."""
        content = msgspec.msgpack.encode([_stored(index) for index in indexes.values()])
        path = self._path(key)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with partial.open("wb") as file:
                file.write(hashlib.sha256(content).digest())
                file.write(content)
            partial.replace(path)
            files = sorted(self._folder.iterdir(), key=lambda one: one.stat().st_mtime)
            for old in files[:-stored_views_max]:
                old.unlink(missing_ok=True)
        except OSError as error:
            log.warning("indexes_not_stored", reason=str(error))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key.removeprefix('sha256:')}.msgpack"


def _stored(index: Index) -> _Stored:
    entries = [
        (key, [_part(part) for part in entry] if index.time else [("", list(entry))])
        for key, entry in index.entries.items()
    ]
    return _Stored(
        index.relation, index.keys, index.time, index.columns, index.shifts, index.dtypes,
        sorted(index.packed), index.rows, entries,
    )  # fmt: skip


def _part(part: Any) -> Part:
    return (part.typecode, memoryview(part).cast("B")) if isinstance(part, array) else ("", part)


def _restored(stored: _Stored) -> Index:
    entries: dict[Any, Any] = {}
    for key, parts in stored.entries:
        sequences = tuple(array(code, data) if code else data for code, data in parts)
        known = tuple(key) if isinstance(key, list) else key
        entries[known] = sequences if stored.time else tuple(sequences[0])
    return Index(
        stored.relation, stored.keys, stored.time, stored.columns, stored.shifts, stored.dtypes,
        frozenset(stored.packed), entries, empty_entry(stored.time, stored.columns, stored.shifts),
        stored.rows,
    )  # fmt: skip

"""The proof that a view's closure equals the engine, and its store.

A certificate is named by what it depends on: the view, the sources' content, the engine, the
parser, the zone rules and the code of the generator itself. It holds no time and no machine name,
so that the same combination has the same digest everywhere. Not the closure makes the fast path
safe but this comparison: at the first difference the view stays on the engine.
"""

import hashlib
import importlib.metadata
import math
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from services.data_fabric.config import ENGINE, PARSER

adversarial_rows = 20_000
replayed_rows = 4_000
tolerance = 1e-12
"""Floats may differ by this much of the larger magnitude; everything else is exactly equal."""

_GENERATOR = ("adversarial", "certificate", "certification", "closure", "expressions",
              "index_needs", "lookups", "online", "plan", "rewrite", "zones")  # fmt: skip


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared and how it ended: `difference` is empty when every row was equal."""

    key: str
    view: str
    feature_code: str
    data: str
    engine: str
    parser: str
    zones: str
    python: str
    generator: str
    adversarial: int = 0
    replayed: int = 0
    difference: str = ""

    def encode(self) -> bytes:
        """The canonical bytes: JSON with sorted keys."""
        return msgspec.json.encode(self, order="sorted")

    def digest(self) -> str:
        """sha256 of the canonical bytes."""
        return "sha256:" + hashlib.sha256(self.encode()).hexdigest()


def subject(view: str, feature_code: str, data: str) -> Certificate:
    """The certificate of a combination before anything was compared."""
    parts: dict[str, Any] = {
        "view": view,
        "feature_code": feature_code,
        "data": data,
        "engine": ENGINE,
        "parser": PARSER,
        "zones": f"tzdata {importlib.metadata.version('tzdata')}",
        "python": f"{sys.implementation.name} 3.{sys.version_info.minor} {platform.machine()}",
        "generator": _generator(),
    }
    key = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
    return Certificate(key=f"sha256:{key}", **parts)


def _generator() -> str:
    """The digest of the code that compiles and compares, so that a change of it certifies anew."""
    hasher = hashlib.sha256()
    for name in _GENERATOR:
        hasher.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return f"sha256:{hasher.hexdigest()}"


def first_difference(
    names: Sequence[str],
    dtypes: Sequence[str],
    closure_columns: Sequence[Sequence[Any]],
    engine_columns: Sequence[Sequence[Any]],
    describe: Callable[[int], object],
) -> str:
    """The first value in which both paths differ, in words; empty when there is none."""
    columns = zip(names, dtypes, closure_columns, engine_columns, strict=True)
    for name, dtype, ours, theirs in columns:
        if list(ours) == list(theirs) and list(map(type, ours)) == list(map(type, theirs)):
            continue
        is_equal = close if dtype == "float64" else identical
        for row, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            if not is_equal(left, right):
                return f"{name}: closure {left!r}, engine {right!r}, for {describe(row)}"
    return ""


def identical(left: Any, right: Any) -> bool:
    """Equal in type and value."""
    return type(left) is type(right) and bool(left == right)


def close(left: Any, right: Any) -> bool:
    """Both null, both NaN, equal, or within the tolerance."""
    if left is None or right is None:
        return left is right
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    if left == right:
        return True
    if math.isinf(left) or math.isinf(right):
        return False
    return bool(abs(left - right) <= tolerance * max(abs(left), abs(right)))


class CertificateStore:
    """Certificates as files named by their key; one that is not what its name says is ignored.

    New ones go into `folder`. `shipped` is where a home brings certificates along, so that its
    first start need not compare anything.
    """

    def __init__(self, folder: Path, shipped: Path) -> None:
        self._folder = folder
        self._shipped = shipped

    def get(self, key: str) -> Certificate | None:
        """The certificate under a key, or None."""
        for folder in (self._folder, self._shipped):
            try:
                encoded = _path(folder, key).read_bytes()
                certificate = msgspec.json.decode(encoded, type=Certificate)
            except (OSError, msgspec.MsgspecError):
                continue
            if certificate.key == key and certificate.encode() == encoded:
                return certificate
        return None

    def put(self, certificate: Certificate) -> None:
        """Keep a certificate; whole or not at all."""
        write_certificate(self._folder, certificate)


def write_certificate(folder: Path, certificate: Certificate) -> Path:
    """Write a certificate into a folder under its key."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, certificate.key)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(certificate.encode())
    return partial.replace(path)


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key.removeprefix('sha256:')}.json"

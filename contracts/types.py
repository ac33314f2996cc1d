"""The base structs and constrained scalars that every contract is written with.

Holds no message. `Strict` is for what we receive from outside the mesh (an unknown field is an
error that names it); `Open` is for answers and for messages inside the mesh (an unknown field is
ignored, so that an older process can read a newer one).
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = [
    "NAME_PATTERN",
    "UNSET",
    "Digest",
    "Empty",
    "Identifier",
    "Label",
    "Name",
    "Open",
    "Scalar",
    "Strict",
    "TraceId",
    "UnsetType",
    "Version",
    "VersionOrAlias",
]


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request body: unknown fields are refused with their name."""


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """An answer or an internal message: unknown fields are ignored."""


class Empty(Strict, frozen=True, kw_only=True):
    """The body `{}`."""


NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.\-]*$"
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=NAME_PATTERN)]
"""A model, view, source or policy name."""
Label = Annotated[str, Meta(min_length=1, max_length=128)]
"""A free name chosen by the caller: tenant, author, key of a map."""
Identifier = Annotated[str, Meta(min_length=1, max_length=128)]
"""A request id: any text of 1..128 characters, unique per tenant."""
Version = Annotated[str, Meta(max_length=18, pattern=r"^[1-9][0-9]*$")]
"""A model or view version: a positive decimal number as a string."""
VersionOrAlias = Annotated[
    str, Meta(max_length=64, pattern=r"^([1-9][0-9]*|[A-Za-z][A-Za-z0-9_.\-]*)$")
]
"""A version, or an alias (which starts with a letter)."""
TraceId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
"""A W3C trace id: 32 lower-case hexadecimal digits."""
Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
"""`sha256:` and 64 lower-case hexadecimal digits."""
Scalar = str | int | float | bool | None

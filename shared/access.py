"""Who a peer is and what it may do: the uid of its process against `[access]`.

Same uid, same trust: the owner's uid, under which the mesh runs, always has every right. A uid
that is not listed has none.
"""

import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from contracts.methods import Role
from shared.home import AccessTable

EVERY_TENANT = "*"
EVERY_ROLE: frozenset[str] = frozenset(get_args(Role))
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid; Source: unix(7)


@dataclass(frozen=True, slots=True)
class Rights:
    """What a uid may do. Operators and services may also do what clients may."""

    roles: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    risk_level_min: int = 1

    @classmethod
    def of(cls, table: AccessTable) -> "Rights":
        """The rights that one `[access.UID]` gives."""
        roles = frozenset(table.roles)
        return cls(
            roles=roles | {"client"} if roles else roles,
            tenants=frozenset(table.tenants),
            risk_level_min=table.risk_level_min,
        )


EVERYTHING = Rights(EVERY_ROLE, frozenset({EVERY_TENANT}), 1)
NOTHING = Rights()


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end. `risk_level_min` is the lowest risk number it may claim."""

    uid: int
    gid: int
    pid: int
    roles: frozenset[str]
    tenants: frozenset[str]
    risk_level_min: int

    def has_tenant(self, tenant_id: str) -> bool:
        """Whether it may act for this tenant."""
        return EVERY_TENANT in self.tenants or tenant_id in self.tenants


class Access:
    """Rights by uid. The owner's uid has everything, whether it is listed or not."""

    def __init__(self, rights: Mapping[int, Rights], *, owner_uid: int) -> None:
        self._rights = {**rights, owner_uid: EVERYTHING}

    @classmethod
    def from_table(cls, table: Mapping[str, Any], *, owner_uid: int | None = None) -> "Access":
        """The rights that `[access]` gives: `AccessTable`s, or maps like them, by uid.

        Raises msgspec.ValidationError for a map that is not an AccessTable.
        """
        entries = msgspec.convert(dict(table), dict[str, AccessTable])
        rights = {int(uid): Rights.of(entry) for uid, entry in entries.items()}
        return cls(rights, owner_uid=os.getuid() if owner_uid is None else owner_uid)

    @classmethod
    def owner(cls) -> "Access":
        """This process's uid alone, with everything."""
        return cls({}, owner_uid=os.getuid())

    def peer(self, sock: socket.socket) -> Peer:
        """The peer of a connected Unix socket, as the kernel recorded it at connect."""
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(packed)
        rights = self._rights.get(uid, NOTHING)
        return Peer(uid, gid, pid, rights.roles, rights.tenants, rights.risk_level_min)

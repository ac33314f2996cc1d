"""Rights by the peer's uid."""

import os
import socket

import msgspec
import pytest

from shared.access import EVERY_ROLE, NOTHING, Access, Peer


def peer_of(access: Access) -> Peer:
    """This process seen through a socket pair."""
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right:
        return access.peer(left)


def test_the_owner_has_everything() -> None:
    """Same uid, same trust: every role, every tenant, every risk level."""
    peer = peer_of(Access.owner())
    assert (peer.uid, peer.gid, peer.pid) == (os.getuid(), os.getgid(), os.getpid())
    assert (peer.roles, peer.risk_level_min) == (EVERY_ROLE, 1)
    assert peer.has_tenant("anyone")


def test_an_unlisted_uid_has_nothing() -> None:
    """The owner is someone else here, so this process is a stranger."""
    peer = peer_of(Access({}, owner_uid=os.getuid() + 1))
    assert (peer.roles, peer.tenants) == (NOTHING.roles, NOTHING.tenants)
    assert not peer.has_tenant("default")


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ([], set()),
        (["client"], {"client"}),
        (["operator"], {"operator", "client"}),
        (["service"], {"service", "client"}),
    ],
)
def test_a_listed_uid_has_what_its_table_says(roles: list[str], expected: set[str]) -> None:
    """Roles as listed; whoever may operate may also look at health."""
    table = {str(os.getuid()): {"roles": roles, "tenants": ["a", "b"], "risk_level_min": 2}}
    peer = peer_of(Access.from_table(table, owner_uid=os.getuid() + 1))
    assert peer.roles == expected
    assert [peer.has_tenant(name) for name in ("a", "b", "c")] == [True, True, False]
    assert peer.risk_level_min == 2


def test_a_star_is_every_tenant() -> None:
    """The default of a listed uid."""
    table = {str(os.getuid()): {"roles": ["client"]}}
    assert peer_of(Access.from_table(table, owner_uid=os.getuid() + 1)).has_tenant("anyone")


def test_the_table_cannot_lock_the_owner_out() -> None:
    """A home copied from another user may list this uid with less than the mesh needs."""
    table = {str(os.getuid()): {"roles": ["client"]}}
    assert peer_of(Access.from_table(table)).roles == EVERY_ROLE


@pytest.mark.parametrize(
    "entry", [{"roles": ["root"]}, {"roles": ["client"], "risk_level_min": 0}, {"tenants": []}]
)
def test_a_wrong_table_is_refused(entry: dict[str, object]) -> None:
    """Unknown roles, risk numbers out of range and a missing role list."""
    with pytest.raises(msgspec.ValidationError):
        Access.from_table({"1001": entry})

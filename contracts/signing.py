"""The contract page of a home and the sign-offs on its digest: messages of the control plane."""

from typing import Annotated, Any

from msgspec import Meta

from contracts.types import UNSET, Digest, Label, Name, Open, Strict, UnsetType

signing_roles_max = 16
"""Roles whose sign-offs one policy asks for."""
Roles = Annotated[list[Name], Meta(max_length=signing_roles_max)]


class Signature(Open, frozen=True, kw_only=True):
    """What a commit signs: the digest of a page, in a role. Author, uid and instant are the
    commit's own."""

    digest: Digest
    role: Name


class ContractsRequest(Strict, frozen=True, kw_only=True):
    """`contracts`: the page in force; with `pack` as it will be when that staged pack answers for
    its model by default."""

    pack: Digest | UnsetType = UNSET


class SignOff(Open, frozen=True, kw_only=True):
    """A sign-off as the log has it: `author` is what they claimed, `peer_uid` who it was, `version`
    the commit."""

    role: str
    author: str
    at: str
    peer_uid: int
    version: int


class ContractPage(Open, frozen=True, kw_only=True):
    """`page` in its sections and the digest over them. `required` has the roles that publishing
    needs, by model or `*`; `signed` the sign-offs of this digest, oldest first. `policy_version` is
    where the policies were read; the digest does not depend on it."""

    digest: Digest
    policy_version: int
    page: dict[str, Any]
    required: dict[str, Roles]
    signed: list[SignOff]


class ContractsSign(Strict, frozen=True, kw_only=True):
    """`contracts_sign`: a commit that signs a page off. `digest` is that of the page in force, or
    with `pack` of that pack's page."""

    digest: Digest
    role: Name
    author: Label
    pack: Digest | UnsetType = UNSET


class ContractsSigned(Open, frozen=True, kw_only=True):
    """The commit that holds the sign-off. `changed` is false when the role had signed this digest
    already: no commit was made."""

    digest: Digest
    role: str
    version: int
    commit: Digest
    changed: bool

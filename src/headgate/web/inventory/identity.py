"""Identify callers: by bearer tokens and client certificates or, for development, by what the session says."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from headgate.adapters.identity.tokens import Authenticator, BadToken, read
from headgate.inventory import names
from headgate.inventory.model import ADMIN, OPERATOR, Caller
from headgate.services.inventory.errors import PermissionDenied, Unauthenticated, Unmet
from headgate.services.inventory.inventory import Inventory


@dataclass(frozen=True, slots=True)
class InventoryCall:
    """Represent one request, whatever the protocol."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Headers of the request, with names in lower case."""
    certificate: bytes = b""
    """The client's certificate as PEM, if it was verified; else empty."""


class SessionInfo(msgspec.Struct, frozen=True):
    """Hold the session as the request states it."""

    user: str = ""
    project: str = ""
    partition: str = ""


class Principal(msgspec.Struct, frozen=True):
    """Identify a caller; without a named project, the first one applies."""

    user: str
    projects: tuple[str, ...]
    roles: frozenset[str] = frozenset()
    """Roles that are held everywhere, and `role@partition` for those held in one partition, which they also open."""
    partitions: tuple[str, ...] | None = None
    """Names or UUIDs of the partitions that are open; `*` means all; None: the credential names none."""

    @property
    def everywhere(self) -> frozenset[str]:
        """Return the roles held in every partition."""
        return frozenset(role for role in self.roles if "@" not in role)

    @property
    def local_roles(self) -> dict[str, frozenset[str]]:
        """Return the roles held in single partitions, by the partition's name or uuid."""
        found: dict[str, frozenset[str]] = {}
        for role, at, partition in (one.partition("@") for one in self.roles):
            if at and role and partition:
                found[partition] = found.get(partition, frozenset()) | {role}
        return found


class Identity(Protocol):
    def who(self, call: InventoryCall, session: SessionInfo) -> Principal:
        """Return the caller. Raise Unauthenticated."""
        ...


class Trusting:
    """Trust every caller, for clients without tokens on loopback: the name that a caller gives is accepted, and
    everybody may administer partitions, types and definitions.
    """

    def who(self, call: InventoryCall, session: SessionInfo) -> Principal:
        return _as_they_say(call, session)


def _as_they_say(call: InventoryCall, session: SessionInfo) -> Principal:
    """Trust the caller's own account of itself; take more roles from the header `roles`, separated by commas."""
    roles = {role for role in call.metadata.get("roles", "").split(",") if role}
    return Principal(
        session.user, (session.project,) if session.project else (), frozenset({OPERATOR, *roles}), (EVERY,)
    )


EVERY = "*"
GRANTS_MAX = 1_000
"""Limit on the partitions that one credential names."""


class Verifying:
    """Verify a token, whose claims `projects`, `roles` and `partitions` say more, or a certificate (CN, O: projects,
    OU: roles, L: partitions).

    Whoever brings the operator's token is who they say.
    """

    def __init__(self, tokens: Sequence[Authenticator] = (), operator: str = "") -> None:
        self._tokens, self._operator = tokens, operator

    def who(self, call: InventoryCall, session: SessionInfo) -> Principal:
        scheme, _, token = call.metadata.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            # In constant time; an empty operator's token permits nobody.
            if self._operator and hmac.compare_digest(token.strip().encode(), self._operator.encode()):
                return _as_they_say(call, session)
            return self._of_token(token.strip())
        if call.certificate:
            return _of_certificate(call.certificate)
        raise Unauthenticated("say who you are: with a bearer token in `authorization`, or a client certificate")

    def _of_token(self, token: str) -> Principal:
        try:
            issuer, claims = read(token, self._tokens)
        except BadToken as error:
            raise Unauthenticated(str(error)) from error
        projects = claims.get("projects", claims.get("project", ()))
        partitions = tuple(_texts(claims["partitions"])) if "partitions" in claims else None
        return Principal(
            claims[issuer.uid_claim], tuple(_texts(projects)), frozenset(_texts(claims.get("roles", ()))), partitions
        )


def _texts(claim: object) -> list[str]:
    found = claim if isinstance(claim, list | tuple) else [claim]
    return [one for one in found if isinstance(one, str)]


def _of_certificate(pem: bytes) -> Principal:
    try:
        subject = x509.load_pem_x509_certificate(pem).subject
    except ValueError as error:
        raise Unauthenticated(f"the client certificate cannot be read: {error}") from error

    def values_of(oid: x509.ObjectIdentifier) -> list[str]:
        return [one.value for one in subject.get_attributes_for_oid(oid) if isinstance(one.value, str)]

    user = values_of(NameOID.COMMON_NAME)
    if not user:
        raise Unauthenticated("the client certificate has no common name")
    return Principal(
        user[0],
        tuple(values_of(NameOID.ORGANIZATION_NAME)),
        frozenset(values_of(NameOID.ORGANIZATIONAL_UNIT_NAME)),
        tuple(values_of(NameOID.LOCALITY_NAME)) or None,
    )


class CallerSessions:
    """Find the caller of a request's session."""

    def __init__(self, identity: Identity, inventory: Inventory, open_partitions: Sequence[str] = ()) -> None:
        """Open `open_partitions`, names or uuids, to credentials that name none; `*`: every one."""
        self._identity, self._inventory, self._open = identity, inventory, tuple(open_partitions)

    async def anybody(self, call: InventoryCall, session: SessionInfo) -> Caller:
        """Return the caller without a partition, with the roles held everywhere, and with a project if there is one.

        Raise Unauthenticated, PermissionDenied, Invalid.
        """
        return (await self._known(call, session))[0]

    async def at(self, call: InventoryCall, session: SessionInfo, named: str) -> Caller:
        """Return the caller in the partition named, with the roles held there; without one, as `anybody` does.

        Raise also Unmet, and PermissionDenied for a partition that is not open to the caller.
        """
        caller, local_roles = await self._known(call, session)
        if not named:
            return caller
        partition = await self._inventory.partition(named, caller)
        roles = caller.roles | local_roles.get(partition, frozenset())
        return msgspec.structs.replace(caller, partition=partition, roles=roles)

    async def _known(self, call: InventoryCall, session: SessionInfo) -> tuple[Caller, dict[str, frozenset[str]]]:
        """Return the caller, and the roles held in single partitions, by uuid."""
        for what, text in (("user", session.user), ("project", session.project), ("partition", session.partition)):
            names.value(text, f"{what} of the session", size_max_bytes=names.NAME_SIZE_MAX_BYTES)
        principal = self._identity.who(call, session)
        # The session cannot choose another identity; it only states what a client believes, and a mismatch is an error.
        if session.user and session.user != principal.user:
            raise PermissionDenied(f"the session says that this is {session.user}, but it is {principal.user}")
        if session.project and session.project not in principal.projects and ADMIN not in principal.roles:
            raise PermissionDenied(f"{principal.user} does not belong to project {session.project}")
        project = session.project or (principal.projects[0] if principal.projects else "")
        local_roles = {uuid: roles for name, roles in principal.local_roles.items() if (uuid := await self._uuid(name))}
        partitions = await self._open_to(principal, local_roles)
        return Caller(principal.user, project, "", principal.everywhere, partitions), local_roles

    async def _open_to(self, principal: Principal, local: Iterable[str]) -> frozenset[str] | None:
        """Return the uuids of the partitions that are open; None: every one, as for who operates them all."""
        named = self._open if principal.partitions is None else principal.partitions
        if EVERY in named or principal.everywhere & {ADMIN, OPERATOR}:
            return None
        return frozenset([*local, *[uuid for name in named[:GRANTS_MAX] if (uuid := await self._uuid(name))]])

    async def _uuid(self, named: str) -> str:
        """Return the uuid of a partition that a credential names; empty, if there is none."""
        try:
            return await self._inventory.partition(named)
        except (Unmet, names.Invalid):
            # A credential may outlive a partition: a stale name opens nothing, but must not disable the rest of it.
            return ""

    async def caller(self, call: InventoryCall, session: SessionInfo) -> Caller:
        """Return the caller in the partition of the session.

        Raise also Unmet: user, partition or project is missing, or there is no such partition.
        """
        caller, local_roles = await self._known(call, session)
        if not caller.user:
            raise Unmet("the session has no user")
        if not session.partition:
            raise Unmet("the session has no partition: give its name or uuid")
        partition = await self._inventory.partition(session.partition, caller)
        if not caller.project:
            raise Unmet("the session has no project")
        roles = caller.roles | local_roles.get(partition, frozenset())
        return msgspec.structs.replace(caller, partition=partition, roles=roles)

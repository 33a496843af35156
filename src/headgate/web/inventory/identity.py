"""Identify callers: by bearer tokens and client certificates or, for development, by the session of the request."""

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
    """Represent one request, over gRPC or HTTP."""

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
    """Identify a caller. If the session names no project, the first of `projects` applies."""

    user: str
    projects: tuple[str, ...]
    roles: frozenset[str] = frozenset()
    """Roles held everywhere, and `role@partition` for a role held in one partition, which it also opens."""
    partitions: tuple[str, ...] | None = None
    """Names or UUIDs of the partitions that the caller may enter; `*` means all; None: the credential names none."""

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
    """Trust every caller, for clients without tokens on loopback: accept the name that a caller gives, and permit
    everybody to administer partitions, types and definitions.
    """

    def who(self, call: InventoryCall, session: SessionInfo) -> Principal:
        return _as_they_say(call, session)


def _as_they_say(call: InventoryCall, session: SessionInfo) -> Principal:
    """Return the caller that the session claims; the header `roles` adds roles, separated by commas."""
    roles = {role for role in call.metadata.get("roles", "").split(",") if role}
    # Whoever may claim an identity is also an operator, and may enter every partition.
    return Principal(
        session.user, (session.project,) if session.project else (), frozenset({OPERATOR, *roles}), (EVERY,)
    )


EVERY = "*"
GRANTS_MAX = 1_000
"""Limit on the partitions that one credential names."""


class Verifying:
    """Verify a token, with its claims `projects`, `roles` and `partitions`, or a client certificate (CN: user,
    O: projects, OU: roles, L: partitions).

    With the operator's token, a caller may claim any identity.
    """

    def __init__(self, tokens: Sequence[Authenticator] = (), operator: str = "") -> None:
        self._tokens, self._operator = tokens, operator

    def who(self, call: InventoryCall, session: SessionInfo) -> Principal:
        scheme, _, token = call.metadata.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            # In constant time, so that the response time reveals nothing of the token; an empty one permits nobody.
            if self._operator and hmac.compare_digest(token.strip().encode(), self._operator.encode()):
                return _as_they_say(call, session)
            return self._of_token(token.strip())
        if call.certificate:
            return _of_certificate(call.certificate)
        raise Unauthenticated("no credentials: send a bearer token in `authorization`, or a client certificate")

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
    # Issuers write a single value as a list or as a string.
    found = claim if isinstance(claim, list | tuple) else [claim]
    return [one for one in found if isinstance(one, str)]


def _read(pem: bytes) -> x509.Certificate:
    """Return the client's certificate. Raise Unauthenticated."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise Unauthenticated(f"the client certificate cannot be read: {error}") from error


def _of_certificate(pem: bytes) -> Principal:
    subject = _read(pem).subject

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
        """Let credentials that name no partitions enter `open_partitions` (names or uuids; `*`: all)."""
        self._identity, self._inventory, self._open = identity, inventory, tuple(open_partitions)

    def admit(self, call: InventoryCall) -> None:
        """Check that the call has valid credentials, whatever it wants. Raise Unauthenticated."""
        self._who(call, SessionInfo())

    def _who(self, call: InventoryCall, session: SessionInfo) -> Principal:
        """Return the caller; with an expired certificate, nobody, whatever else the call contains. Raise
        Unauthenticated."""
        # TLS checks the certificate only when the connection is made, and a connection may last for months.
        if call.certificate:
            until = _read(call.certificate).not_valid_after_utc
            if self._inventory.clock() > until.timestamp() * 1_000:
                raise Unauthenticated(
                    f"the client certificate expired at {until:%Y-%m-%dT%H:%M:%SZ}; connect with another"
                )
        return self._identity.who(call, session)

    async def anybody(self, call: InventoryCall, session: SessionInfo) -> Caller:
        """Return the caller, without a partition, with the roles held everywhere, and with its project, if any.

        Raise Unauthenticated, PermissionDenied, Invalid.
        """
        return (await self._known(call, session))[0]

    async def at(self, call: InventoryCall, session: SessionInfo, named: str) -> Caller:
        """Return the caller in the named partition, with the roles held there; if none is named, do as `anybody`.

        Raise also Unmet, and PermissionDenied for a partition that the caller may not enter.
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
        principal = self._who(call, session)
        # The session cannot choose another identity: it states what the client believes, and a mismatch is an error.
        if session.user and session.user != principal.user:
            raise PermissionDenied(f"the session names user {session.user}, but the credentials are {principal.user}'s")
        # Administrators may act for every project.
        if session.project and session.project not in principal.projects and ADMIN not in principal.roles:
            raise PermissionDenied(f"{principal.user} does not belong to project {session.project}")
        project = session.project or (principal.projects[0] if principal.projects else "")
        local_roles = {uuid: roles for name, roles in principal.local_roles.items() if (uuid := await self._uuid(name))}
        partitions = await self._open_to(principal, local_roles)
        return Caller(principal.user, project, "", principal.everywhere, partitions), local_roles

    async def _open_to(self, principal: Principal, local: Iterable[str]) -> frozenset[str] | None:
        """Return the uuids of the partitions that the caller may enter; None: all, as for administrators and
        operators."""
        named = self._open if principal.partitions is None else principal.partitions
        if EVERY in named or principal.everywhere & {ADMIN, OPERATOR}:
            return None
        return frozenset([*local, *[uuid for name in named[:GRANTS_MAX] if (uuid := await self._uuid(name))]])

    async def _uuid(self, named: str) -> str:
        """Return the uuid of a partition that a credential names; empty: it does not exist."""
        try:
            return await self._inventory.partition(named)
        except (Unmet, names.Invalid):
            # A credential may outlive a partition: a stale name opens nothing, but its other names stay valid.
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

"""Who calls: bearer tokens and client certificates; or, for development, whoever the session says."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from headgate.adapters.identity.tokens import Authenticator, BadToken, read
from headgate.inventory import names
from headgate.inventory.model import ADMIN, OPERATOR, Caller
from headgate.services.inventory.errors import Denied, Unauthenticated, Unmet
from headgate.services.inventory.inventory import Inventory


@dataclass(frozen=True, slots=True)
class Call:
    """One request, whatever the protocol."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    """Headers, in lower case."""
    certificate: bytes = b""
    """Of the client, PEM; only if it was verified."""


class Said(msgspec.Struct, frozen=True):
    """The session, as the request has it."""

    user: str = ""
    project: str = ""
    partition: str = ""


class Who(msgspec.Struct, frozen=True):
    """Somebody; the first project is meant when none is named."""

    user: str
    projects: tuple[str, ...]
    roles: frozenset[str] = frozenset()


class Identity(Protocol):
    def who(self, call: Call, said: Said) -> Who:
        """Raises Unauthenticated."""
        ...


class Trusting:
    """For clients that know no tokens, on loopback: everybody is who they say, and may administer partitions, types and
    definitions."""

    def who(self, call: Call, said: Said) -> Who:
        return _as_they_say(call, said)


def _as_they_say(call: Call, said: Said) -> Who:
    """More roles are taken from the header `roles`, with commas between."""
    roles = {role for role in call.metadata.get("roles", "").split(",") if role}
    return Who(said.user, (said.project,) if said.project else (), frozenset({OPERATOR, *roles}))


class Verifying:
    """By a token whose claims `projects` and `roles` say more, or by a certificate (CN, O: projects, OU: roles).

    Whoever brings the operator's token is who they say."""

    def __init__(self, tokens: Sequence[Authenticator] = (), operator: str = "") -> None:
        self._tokens, self._operator = tokens, operator

    def who(self, call: Call, said: Said) -> Who:
        scheme, _, token = call.metadata.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self._operator and hmac.compare_digest(token.strip().encode(), self._operator.encode()):
                return _as_they_say(call, said)
            return self._of_token(token.strip())
        if call.certificate:
            return _of_certificate(call.certificate)
        raise Unauthenticated("say who you are: with a bearer token in `authorization`, or a client certificate")

    def _of_token(self, token: str) -> Who:
        try:
            issuer, claims = read(token, self._tokens)
        except BadToken as error:
            raise Unauthenticated(str(error)) from error
        projects = claims.get("projects", claims.get("project", ()))
        return Who(claims[issuer.uid_claim], tuple(_texts(projects)), frozenset(_texts(claims.get("roles", ()))))


def _texts(claim: object) -> list[str]:
    found = claim if isinstance(claim, list | tuple) else [claim]
    return [one for one in found if isinstance(one, str)]


def _of_certificate(pem: bytes) -> Who:
    try:
        subject = x509.load_pem_x509_certificate(pem).subject
    except ValueError as error:
        raise Unauthenticated(f"the client certificate cannot be read: {error}") from error

    def said(oid: x509.ObjectIdentifier) -> list[str]:
        return [one.value for one in subject.get_attributes_for_oid(oid) if isinstance(one.value, str)]

    user = said(NameOID.COMMON_NAME)
    if not user:
        raise Unauthenticated("the client certificate has no common name")
    return Who(user[0], tuple(said(NameOID.ORGANIZATION_NAME)), frozenset(said(NameOID.ORGANIZATIONAL_UNIT_NAME)))


class Sessions:
    """From a request's session to the caller."""

    def __init__(self, identity: Identity, inventory: Inventory) -> None:
        self._identity, self._inventory = identity, inventory

    async def anybody(self, call: Call, said: Said) -> Caller:
        """Without a partition, and with a project only if there is one.  Raises Unauthenticated, Denied, Invalid."""
        for what, text in (("user", said.user), ("project", said.project), ("partition", said.partition)):
            names.value(text, f"{what} of the session", size_max_bytes=names.NAME_SIZE_MAX_BYTES)
        who = self._identity.who(call, said)
        if said.user and said.user != who.user:
            raise Denied(f"the session says that this is {said.user}, but it is {who.user}")
        if said.project and said.project not in who.projects and ADMIN not in who.roles:
            raise Denied(f"{who.user} does not belong to project {said.project}")
        project = said.project or (who.projects[0] if who.projects else "")
        return Caller(who.user, project, "", who.roles)

    async def caller(self, call: Call, said: Said) -> Caller:
        """Raises also Unmet: user, partition or project is missing, or there is no such partition."""
        caller = await self.anybody(call, said)
        if not caller.user:
            raise Unmet("the session has no user")
        if not said.partition:
            raise Unmet("the session has no partition: give its name or uuid")
        partition = await self._inventory.partition(said.partition)
        if not caller.project:
            raise Unmet("the session has no project")
        return msgspec.structs.replace(caller, partition=partition)

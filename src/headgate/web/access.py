"""Who may do what: bearer tokens, and the rules and roles of the tenant file.

With neither `[web] token` nor `[auth NAME]` in the settings, only programs of this machine may ask for anything: that
is for development, and for a Headgate of one's own.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException

from headgate.adapters.identity.tokens import Authenticator, BadToken, read
from headgate.config.operator.access import holds
from headgate.config.operator.model import ApiRoot, AuthorizationRule, Role, Tenant

Connection = ASGIConnection[Any, Any, Any, Any]  # no user, no auth, no state of its own
LOCAL = ("127.0.0.1", "::1")
ROOT_ROLES = {"admin": True, "read": False}
"""Built in -> whether it may do everything."""


@dataclass(frozen=True, slots=True)
class Realm:
    """Who signs tokens, and what is said to those who bring none."""

    authenticator: Authenticator
    name: str
    override: bool = False
    """Whether a claim `zuul.admin: [tenants]` makes its bearer an administrator there."""
    default: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Of the tenant file."""

    rules: Mapping[str, AuthorizationRule]
    roles: Mapping[str, Role]
    root: ApiRoot


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who asks."""

    claims: Mapping[str, Any]
    """JSON."""
    uid_claim: str = "sub"
    override: bool = False
    everything: bool = False
    """Brought `[web] token`, or is a program of this machine where nothing else is set up."""


@dataclass(frozen=True, slots=True)
class Access:
    """`rules` are those of the tenant file as it is now."""

    token: str = ""
    realms: Sequence[Realm] = ()
    rules: Callable[[], Rules] = lambda: Rules({}, {}, ApiRoot())

    @property
    def realm(self) -> str:
        """Said to who brings no token."""
        chosen = next((r for r in self.realms if r.default), self.realms[0] if self.realms else None)
        return chosen.name if chosen else "headgate"

    def bearer(self, connection: Connection) -> Bearer | None:
        """Who asks; None: nobody in particular.  Raises 401 for a token that is not good."""
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if given:
            if scheme.lower() != "bearer":
                raise self.refused(401, "the header Authorization must be `Bearer TOKEN`")
            return self.of_token(given.strip())
        if self.token or self.realms:
            return None
        here = connection.client is not None and connection.client.host in LOCAL
        foreign = connection.headers.get("origin") or connection.headers.get("x-forwarded-for")
        return Bearer({}, everything=True) if here and not foreign else None

    def of_token(self, given: str) -> Bearer:
        """Raises 401."""
        if self.token and hmac.compare_digest(given.encode(), self.token.encode()):
            return Bearer({}, everything=True)
        if not self.realms:
            raise self.refused(401, "this is not the token of [web] token in the settings")
        try:
            authenticator, claims = read(given, [realm.authenticator for realm in self.realms])
        except BadToken as error:
            raise self.refused(401, str(error)) from error
        override = any(realm.override for realm in self.realms if realm.authenticator is authenticator)
        return Bearer(claims, authenticator.uid_claim, override)

    def may_read(self, bearer: Bearer | None, tenant: Tenant) -> bool:
        open_to_all = tenant.anonymous_read_access if tenant.role_mappings else not tenant.access_rules
        return open_to_all or (bearer is not None and self.permits(bearer, tenant, "read", {}))

    def permits(self, bearer: Bearer, tenant: Tenant, permission: str, asked: Mapping[str, str]) -> bool:
        """`asked`: project and ref, for permissions with conditions."""
        if bearer.everything or self._overrides(bearer, tenant.name):
            return True
        if tenant.role_mappings:
            return self._mapped(bearer, tenant.role_mappings, tenant.name, permission, asked)
        named = (*tenant.admin_rules, *(tenant.access_rules if permission == "read" else ()))
        return any(self._holds(rule, bearer, tenant.name) for rule in named)

    def permits_all(self, bearer: Bearer) -> bool:
        """What concerns every tenant: administrators of the root of the API."""
        return bearer.everything or self._mapped(bearer, self.rules().root.role_mappings, "", "", {})

    def _overrides(self, bearer: Bearer, tenant: str) -> bool:
        said = bearer.claims.get("zuul")
        admin = said.get("admin") if isinstance(said, Mapping) else None
        return bearer.override and isinstance(admin, list) and tenant in admin

    def _mapped(
        self,
        bearer: Bearer,
        mappings: Mapping[str, Sequence[str]],
        tenant: str,
        permission: str,
        asked: Mapping[str, str],
    ) -> bool:
        held = (rule for rule in mappings if self._holds(rule, bearer, tenant))
        return any(self._grants(role, permission, asked) for rule in held for role in mappings[rule])

    def _grants(self, role: str, permission: str, asked: Mapping[str, str]) -> bool:
        if role in ROOT_ROLES:
            return ROOT_ROLES[role] or permission == "read"
        found = self.rules().roles.get(role)
        said = found.permissions.get(permission) if found else None
        if not isinstance(said, Mapping):
            return said is True
        conditions = said.get("conditions", [])
        return any(all(asked.get(key) == value for key, value in one.items()) for one in conditions)

    def _holds(self, rule: str, bearer: Bearer, tenant: str) -> bool:
        found = self.rules().rules.get(rule)
        return found is not None and holds(found, bearer.claims, tenant, bearer.uid_claim)

    def refused(self, status: int, why: str) -> HTTPException:
        error = {401: "invalid_token", 403: "insufficient_scope"}[status]
        headers = {"WWW-Authenticate": f'Bearer realm="{self.realm}" error="{error}" error_description="{_plain(why)}"'}
        extra = {"description": why, "error": error, "realm": self.realm}
        return HTTPException(why, status_code=status, headers=headers, extra=extra)


def _plain(text: str) -> str:
    """As it may stand in a header."""
    return "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "'" for c in text)

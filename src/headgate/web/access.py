"""Permit or refuse requests: of people by bearer tokens, rules and roles, of the fleet's processes by signed proofs.

Every write needs a token, even one from this machine: jobs run here, too, and must not pass for an operator.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import jwt

from headgate.adapters.identity.tokens import Authenticator, BadToken, read
from headgate.config.operator.model import ApiRoot, AuthorizationRule, Role, Tenant, holds
from headgate.map.records import FleetSecret
from headgate.rest import Connection, HTTPException, HttpRequest
from headgate.services.context import Context
from headgate.store.types import At, Conflict, Put
from headgate.web.sessions import CSRF, SESSION, LoginSessions, PageOrigin, may_write, named, ours, reads

ROOT_ROLES = {"admin": True, "read": False}
"""Built-in roles -> whether the role permits everything."""
UNAPPROVED = "enqueue-unapproved"
"""Permission to enqueue changes that do not meet the requirements of a pipeline that lands changes."""
APPROVE, COMMENT = "approve", "comment"
"""Permissions to approve changes of plain git, and to comment on them, on the pages."""
NAMED_ALONE = (UNAPPROVED, APPROVE)
"""Permissions that administrators of a tenant have only if a role names them."""
CHECKED = "headgate_checked"
"""Key in the scope of a request whose caller has passed a permission check."""

PROOF_HEADER = "headgate-fleet"
"""Header with the proof that a process of the fleet sends the request."""
PROOF_ALGORITHM = "HS256"
PROOF_MAX_S = 60
CLOCKS_DIFFER_MAX_S = 300
"""Largest difference between the clocks of two machines at which a proof is still accepted."""


@dataclass(frozen=True, slots=True)
class Realm:
    """Describe one realm of authentication: who signs its tokens, and what callers without a token are referred to."""

    authenticator: Authenticator
    name: str
    override: bool = False
    """Whether a claim `zuul.admin: [tenants]` makes its bearer an administrator there."""
    default: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Hold the rules and roles of the tenant file."""

    rules: Mapping[str, AuthorizationRule]
    roles: Mapping[str, Role]
    root: ApiRoot


@dataclass(frozen=True, slots=True)
class Bearer:
    """Identify the caller of a request."""

    claims: Mapping[str, Any]
    """Claims of the token, as decoded from JSON."""
    uid_claim: str = "sub"
    authenticator: str = ""
    override: bool = False
    everything: bool = False
    """Whether the request carries the operator's token, which permits everything."""
    session: str = ""
    """Name of the login session on the pages; empty when the request carries a token."""

    def expired(self, now_ms: int) -> bool:
        return not self.everything and self.claims.get("exp", 0) * 1_000 < now_ms

    @property
    def name(self) -> str:
        return "token" if self.everything else str(self.claims.get(self.uid_claim, ""))


@dataclass(frozen=True, slots=True)
class Access:
    """Decide what a caller may do. `rules` returns the rules of the current tenant file."""

    token: str = ""
    realms: Sequence[Realm] = ()
    rules: Callable[[], Rules] = lambda: Rules({}, {}, ApiRoot())
    figures_open: bool = False
    """Whether everybody may read the metrics."""
    sessions: LoginSessions | None = None
    """Login sessions of the pages; None: logging in is not configured."""

    @property
    def realm(self) -> str:
        """Return the realm to name in responses to callers without a token."""
        chosen = next((r for r in self.realms if r.default), self.realms[0] if self.realms else None)
        return chosen.name if chosen else "headgate"

    def bearer(self, connection: Connection, csrf: str | None = None) -> Bearer | None:
        """Return the caller, or None if the request is anonymous.

        Pass `csrf`, the CSRF token, for a page that cannot send it in a header. Raise 401 for an invalid token, and
        403 for a write with a session cookie but without a valid CSRF token.
        """
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        if not scheme:
            return self._visitor(connection, csrf)
        if scheme.lower() != "bearer" or not given:
            raise self.refused(401, "the header Authorization must be `Bearer TOKEN`", "InvalidAuthFormat")
        return self.of_token(given.strip())

    def place(self, connection: Connection) -> PageOrigin | None:
        """Return the address under which people reach the pages; None: logging in is not configured."""
        if self.sessions is None:
            return None
        return self.sessions.place(connection.scope.get("scheme", "http"), connection.headers.get("host", ""))

    def _visitor(self, connection: Connection, csrf: str | None) -> Bearer | None:
        """Return the person whose session cookie the request carries. A read from a page of another origin counts as
        anonymous; a write, and opening a websocket, need the CSRF token of one of our own pages. Raise 403."""
        place, headers = self.place(connection), connection.headers
        value = place.given(SESSION, headers) if place is not None else ""
        if place is None or self.sessions is None or not value:
            return None
        login = self.sessions.of(named(value))
        # A login is void once its realm has left the settings or names another provider.
        realm = self.realm_of(login.authenticator, login.issuer, login.client) if login else None
        if login is None or realm is None:
            return None
        # A websocket has no method and so counts as writing: browsers
        # open sockets for any page and send our cookie along.
        if reads(str(connection.scope.get("method", ""))):
            if not ours(place, headers):
                return None
        elif why := may_write(place, headers, value, headers.get(CSRF, "") if csrf is None else csrf):
            raise self.refused(403, why)
        # The session decides how long the login lasts, not the provider's short-lived token.
        claims = {**login.claims, "exp": login.until_ms / 1_000}
        known = realm.authenticator
        return Bearer(claims, known.uid_claim, known.name, realm.override, session=named(value))

    def realm_of(self, authenticator: str, issuer: str = "", client: str = "") -> Realm | None:
        """Return the login realm of this name; if `issuer` and `client` are given, its provider must match them."""
        for realm in self.realms:
            known = realm.authenticator
            same = (issuer, client) in (("", ""), (known.issuer, known.client))
            if known.provider is not None and known.name == authenticator and same:
                return realm
        return None

    def reader(self, connection: Connection) -> Bearer | None:
        """Return the reader of public data: a caller with an invalid token counts as anonymous."""
        try:
            return self.bearer(connection)
        except HTTPException:
            return None

    def of_token(self, given: str) -> Bearer:
        """Return the bearer of a token. Raise 401."""
        # In constant time, so that the response time does not reveal how much of a guess is right. An empty token is
        # no token: it permits nobody.
        if self.token and hmac.compare_digest(given.encode(), self.token.encode()):
            return Bearer({}, everything=True)
        if not self.realms:
            why = "this is not the operator's token, and the settings have no [auth NAME] that accepts others"
            raise self.refused(401, why, "AuthTokenUnauthorizedException")
        try:
            authenticator, claims = read(given, [realm.authenticator for realm in self.realms])
        except BadToken as error:
            raise self.refused(401, str(error), error.error) from error
        override = any(realm.override for realm in self.realms if realm.authenticator is authenticator)
        self.check_claim(claims, override=override)
        return Bearer(claims, authenticator.uid_claim, authenticator.name, override)

    def check_claim(self, claims: Mapping[str, Any], *, override: bool) -> None:
        """Raise 401 for a claim to administer tenants that is malformed, or that its issuer may not make."""
        claim = claims.get("zuul")
        admin = claim.get("admin", []) if isinstance(claim, Mapping) else []
        if not isinstance(admin, list):
            raise self.refused(401, "the claim zuul.admin must be a list of tenants", "IncorrectZuulAdminClaimError")
        if admin and not override:
            why = "tokens of this issuer may not claim zuul.admin ([auth NAME] allow_authz_override)"
            raise self.refused(401, why, "UnauthorizedZuulAdminClaimError")

    def may_read(self, bearer: Bearer | None, tenant: Tenant) -> bool:
        open_to_all = tenant.anonymous_read_access if tenant.role_mappings else not tenant.access_rules
        return open_to_all or (bearer is not None and self.permits(bearer, tenant, "read", {}))

    def still(self, bearer: Bearer | None, tenant: Tenant, now_ms: int) -> bool:
        """Return whether a caller who began to read may continue: rules change, tokens expire, and people log out."""
        ended = bearer is not None and (bearer.expired(now_ms) or not self._stays(bearer))
        return self.may_read(None if ended else bearer, tenant)

    def _stays(self, bearer: Bearer) -> bool:
        return not bearer.session or (self.sessions is not None and self.sessions.of(bearer.session) is not None)

    def may_read_root(self, bearer: Bearer | None, tenants: Iterable[Tenant]) -> bool:
        """Return whether the caller may read what belongs to no tenant.

        The `api-root` of the tenant file decides. If it sets nothing, everybody may read if every tenant is
        open to everybody; otherwise, whoever may read at least one tenant.
        """
        root = self.rules().root
        if bearer is not None and self._reads_root(bearer, root):
            return True
        if root.role_mappings:
            return root.anonymous_read_access
        if root.access_rules:
            return False
        known = list(tenants)
        everybody = all(self.may_read(None, tenant) for tenant in known)
        return everybody or (bearer is not None and any(self.may_read(bearer, tenant) for tenant in known))

    def _reads_root(self, bearer: Bearer, root: ApiRoot) -> bool:
        if (
            bearer.everything
            or self._overrides(bearer, "*")
            or self._mapped(bearer, root.role_mappings, "", "read", {})
        ):
            return True
        return any(self._holds(rule, bearer, "") for rule in root.access_rules)

    def must_read_figures(self, connection: Connection) -> None:
        """Raise 401 or 403 for callers who may not read the metrics, which name tenants, projects and jobs."""
        if self.figures_open:
            return
        bearer = self.bearer(connection)
        if bearer is None:
            raise self.refused(401, "reading metrics needs a bearer token ([web] metrics)")
        if not (bearer.everything or self._reads_root(bearer, self.rules().root)):
            raise self.refused(403, "the bearer of this token may not read data of all tenants")

    def permits(self, bearer: Bearer, tenant: Tenant, permission: str, subject: Mapping[str, str]) -> bool:
        """Return whether the bearer has the permission; conditions of roles are compared with `subject`: project and
        ref."""
        if bearer.everything:
            return True
        # Approving and bypassing requirements are not part of administration: only a role that names them grants them.
        if self._overrides(bearer, tenant.name) and permission not in NAMED_ALONE:
            return True
        if tenant.role_mappings:
            return self._mapped(bearer, tenant.role_mappings, tenant.name, permission, subject)
        if permission in NAMED_ALONE:
            return False
        named = (*tenant.admin_rules, *(tenant.access_rules if permission == "read" else ()))
        return any(self._holds(rule, bearer, tenant.name) for rule in named)

    def permits_all(self, bearer: Bearer) -> bool:
        """Return whether the bearer may act on all tenants together, as administrators of the API's root may."""
        return bearer.everything or self._mapped(bearer, self.rules().root.role_mappings, "", "", {})

    def _overrides(self, bearer: Bearer, tenant: str) -> bool:
        claim = bearer.claims.get("zuul")
        admin = claim.get("admin") if isinstance(claim, Mapping) else None
        return bearer.override and isinstance(admin, list) and tenant in admin

    def _mapped(
        self,
        bearer: Bearer,
        mappings: Mapping[str, Sequence[str]],
        tenant: str,
        permission: str,
        subject: Mapping[str, str],
    ) -> bool:
        held = (rule for rule in mappings if self._holds(rule, bearer, tenant))
        return any(self._grants(role, permission, subject) for rule in held for role in mappings[rule])

    def _grants(self, role: str, permission: str, subject: Mapping[str, str]) -> bool:
        if role in ROOT_ROLES:
            return permission == "read" or (ROOT_ROLES[role] and permission not in NAMED_ALONE)
        found = self.rules().roles.get(role)
        rule = found.permissions.get(permission) if found else None
        if not isinstance(rule, Mapping):
            # Only a literal true grants: a string such as "no" is truthy, too.
            return rule is True
        conditions = rule.get("conditions", [])
        # A route that gives no subject meets no condition, so a role that is limited to a project cannot act on all.
        return any(all(subject.get(key) == value for key, value in one.items()) for one in conditions)

    def _holds(self, rule: str, bearer: Bearer, tenant: str) -> bool:
        found = self.rules().rules.get(rule)
        return found is not None and holds(found, bearer.claims, tenant, bearer.uid_claim)

    def refused(self, status: int, why: str, error: str = "MissingAuthError") -> HTTPException:
        """Return the refusal. `error` is the error code that clients of Zuul's API expect with a 401."""
        kind = {401: "invalid_token", 403: "insufficient_scope"}[status]
        headers = {"WWW-Authenticate": f'Bearer realm="{self.realm}" error="{kind}" error_description="{_plain(why)}"'}
        extra = {"error": error if status == 401 else "Forbidden", "realm": self.realm}
        return HTTPException(why, status_code=status, headers=headers, extra=extra)


def _plain(text: str) -> str:
    """Return the text with `'` in place of each character that a header must not contain."""
    return "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "'" for c in text)


def must_be_json(request: HttpRequest) -> None:
    """Raise 415 for a write whose body is not JSON. Pages of another origin can send JSON, or a DELETE, only after a
    preflight request, which Headgate does not grant."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Forms of foreign pages can send other types without a preflight
    # request, and the browser would add our session cookie.
    if request.method not in ("GET", "DELETE") and kind != "application/json":
        raise HTTPException("the body must be sent as application/json", status_code=415)


def mark_checked(request: HttpRequest) -> None:
    """Mark the request as one whose caller passed a permission check; `Hand.does` raises for any other."""
    request.scope[CHECKED] = True


def is_checked(request: HttpRequest) -> bool:
    """Return whether the request's caller has passed a permission check."""
    return bool(request.scope.get(CHECKED))


@dataclass(slots=True)
class PeerFleet:
    """Prove to other processes of the fleet that a request comes from one of them, and verify such proofs."""

    context: Context
    _secret: str = field(default="", repr=False)

    async def headers(self, build: str) -> dict[str, str]:
        """Return the headers that authorize a request for one build's logs.  Raise StoreError."""
        now_s = self.context.now_ms() // 1_000
        claims = {"sub": build, "iat": now_s, "exp": now_s + PROOF_MAX_S}
        return {PROOF_HEADER: jwt.encode(claims, await self._known(), PROOF_ALGORITHM)}

    async def vouches(self, proof: str, build: str) -> bool:
        """Return whether the proof shows that a process of the fleet requests this build's logs.  Raise StoreError."""
        if not proof:
            return False
        try:
            claims = jwt.decode(
                proof,
                await self._known(),
                # The algorithm is ours, never the token's: a header `alg: none` must not count.
                algorithms=[PROOF_ALGORITHM],
                # Machines of a fleet may disagree about the time; a proof is good
                # for one build only, so a longer lifetime helps an attacker little.
                leeway=CLOCKS_DIFFER_MAX_S,
                options={"require": ["exp", "iat", "sub"]},
            )
        except jwt.PyJWTError:
            return False
        # Otherwise a proof for one build, seen by an executor, would open the logs of all.
        return bool(claims["sub"] == build)

    async def key(self, purpose: str) -> bytes:
        """Return a key that only the fleet knows and that serves this purpose alone.  Raise StoreError."""
        # Keys are derived, so that a signature for one purpose can never pass for another.
        return hmac.new((await self._known()).encode(), purpose.encode(), hashlib.sha256).digest()

    async def _known(self) -> str:
        """Return the secret of the fleet; the first process that needs it creates it. Raise StoreError."""
        place, store = self.context.map.system.fleet, self.context.store
        while not self._secret:
            entry = await store.get(place.path)
            if entry is not None:
                self._secret = place.decode(entry.value).secret
                break
            made = FleetSecret(secrets.token_urlsafe(32))
            with suppress(Conflict):  # another process created it first: the next round reads that one
                await store.commit([At(place.path, None)], [Put(place.path, place.encode(made))])
        return self._secret

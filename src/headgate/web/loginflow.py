"""The way to the provider and back: authorization code with PKCE, and what is looked at before somebody is believed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
import msgspec

from headgate.adapters.identity.provider import NotBelieved, ProviderAway, ProviderMetadata
from headgate.adapters.identity.tokens import Authenticator, BadToken
from headgate.map.records import Login
from headgate.web.access import Access, Realm
from headgate.web.login.sessions import LoginSessions, ProfileTooLarge, said_of

BACK = "/login/callback"
BEGUN_MAX_S = 900
"""Time between the redirect to the provider and the return from it."""
CODE_MAX_CHARS = 4_096
WHO_MAX_CHARS = 255


class Way(msgspec.Struct, frozen=True):
    """Hold what a browser keeps during a login at a provider: whoever returns must be the one who left."""

    realm: str
    state: str
    nonce: str
    verifier: str
    next: str
    begun_ms: int


def begun(realm: str, next: str, now_ms: int) -> Way:
    """Return a way that nobody can foresee."""
    # `state` binds the return to this browser, `nonce` the token to this login, and `verifier` (PKCE) the code to us.
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return Way(realm, state, nonce, verifier, next, now_ms)


def written(way: Way) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(way)).decode().rstrip("=")


def read(text: str, now_ms: int) -> Way | None:
    """Return the way that was written; None: there is none, or it took too long."""
    try:
        way = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Way)
    except (ValueError, msgspec.MsgspecError):
        return None
    return way if 0 <= now_ms - way.begun_ms <= BEGUN_MAX_S * 1_000 else None


def provider_parameters(way: Way, known: Authenticator, origin: str) -> dict[str, str]:
    """Return the parameters of the request to the provider, besides those that identify the client."""
    digest = hashlib.sha256(way.verifier.encode()).digest()
    return {
        "redirect_uri": origin + BACK,
        "scope": known.scope,
        "state": way.state,
        "nonce": way.nonce,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
    }


@dataclass(frozen=True, slots=True)
class Return:
    """Represent a person who returns from the provider."""

    access: Access
    sessions: LoginSessions
    origin: str
    query: Mapping[str, str]

    def way(self, cookie: str) -> Way:
        """Return the way of this browser, if it is the one that is ending.  Raise NotBelieved."""
        way = read(cookie, self.sessions.context.now_ms()) if cookie else None
        if way is None:
            raise NotBelieved("this login was not begun in this browser, or took too long")
        if not hmac.compare_digest(way.state.encode(), self.query.get("state", "").encode()):
            raise NotBelieved("this is the end of another login than the one that was begun in this browser")
        if error := self.query.get("error"):
            why = self.query.get("error_description", "")
            raise NotBelieved(f"the provider says {error[:100]!r}{f': {why[:200]}' if why else ''}")
        return way

    async def login(self, way: Way) -> Login:
        """Return who somebody is, for the time they are logged in.  Raise NotBelieved, ProviderAway."""
        realm = self.access.realm_of(way.realm)
        provider = realm.authenticator.provider if realm else None
        if realm is None or provider is None:
            raise NotBelieved("nobody can log in there any more")
        code, issuer = self.query.get("code", ""), self.query.get("iss", provider.issuer)
        if not code or len(code) > CODE_MAX_CHARS or issuer != provider.issuer:
            raise NotBelieved("what came back is not from the provider that was asked")
        published = await provider.published()
        token, access = await provider.exchanged(published, code, way.verifier, self.origin + BACK)
        claims = await self._claims(realm.authenticator, token, way.nonce)
        if realm.authenticator.load_user_info and published.userinfo and access:
            more = await provider.userinfo(published, access)
            # OpenID Connect requires this check: the access token may have been exchanged for another person's.
            if more.get("sub") != claims["sub"]:
                raise NotBelieved("the provider tells of somebody else than who logged in")
            # Claims of the signed token win over those of the user info endpoint.
            claims = {**more, **claims}
        return self._login(realm, claims)

    async def _claims(self, known: Authenticator, token: str, nonce: str) -> dict[str, Any]:  # JSON
        """Return the claims of a login's token once it is verified. Raise NotBelieved, ProviderAway."""
        try:
            await known_keys(known, token)
            claims = known.verified(token, known.client)
        except (BadToken, jwt.PyJWTError) as error:
            raise NotBelieved(f"the token of the login is not good: {error}") from error
        several = isinstance(claims.get("aud"), list) and len(claims["aud"]) > 1
        # A token for several audiences names the one it was issued to; one for us alone may leave that out.
        if claims.get("azp", None if several else known.client) != known.client:
            raise NotBelieved("the token of the login is for another client")
        if not hmac.compare_digest(nonce.encode(), str(claims.get("nonce", "")).encode()):
            raise NotBelieved("the token is of another login than the one that was begun in this browser")
        if not isinstance(claims.get("sub"), str):
            raise NotBelieved("the token of the login does not say who it is about")
        return claims

    def _login(self, realm: Realm, claims: dict[str, Any]) -> Login:  # JSON
        known = realm.authenticator
        who, now_ms = claims.get(known.uid_claim), self.sessions.context.now_ms()
        if not isinstance(who, str) or not 0 < len(who) <= WHO_MAX_CHARS:
            raise NotBelieved(f"the provider says no {known.uid_claim!r}, which names people here ([auth] uid_claim)")
        until_ms = now_ms + self.sessions.lasts_s * 1_000
        return Login(known.name, known.issuer, known.client, who, said_of(claims), now_ms, until_ms)


async def known_keys(known: Authenticator, token: str) -> ProviderMetadata | None:
    """Have the key be known that a token names, if the provider has it.  Raise PyJWTError, ProviderAway."""
    named = jwt.get_unverified_header(token).get("kid")
    return await known.provider.published(str(named) if named else None) if known.provider is not None else None


async def expected(access: Access, token: str) -> None:
    """Have the key be known of a token that a program brings, where its provider may have a newer one."""
    if not any(realm.authenticator.provider for realm in access.realms) or token.count(".") != 2:
        return
    try:
        # Unverified, as the key is what is missing: the issuer only selects the provider that is asked for it.
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
        for realm in access.realms:
            if realm.authenticator.provider is not None and realm.authenticator.issuer == issuer:
                await known_keys(realm.authenticator, token)
    except (jwt.PyJWTError, ProviderAway, RecursionError):
        return  # whoever reads the token says what is wrong


__all__ = [
    "BACK",
    "NotBelieved",
    "ProfileTooLarge",
    "ProviderAway",
    "Return",
    "Way",
    "begun",
    "expected",
    "provider_parameters",
    "written",
]

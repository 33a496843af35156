"""Verify bearer tokens: JSON web tokens, with signatures as configured in the sections `[auth NAME]`."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jwt

from headgate.adapters.identity.provider import IdentityProvider, safe
from headgate.base.errors import IdentityError, UserError
from headgate.base.files import text_of

# HS256 needs a key at least as long as its hash (RFC 7518, 3.2): a shorter one can be guessed offline from any token.
SECRET_SIZE_MIN_BYTES = 32
SCOPE = "openid profile"
OPENID = "OpenIDConnect"


class BadToken(IdentityError):
    """Report a token that no authenticator accepts; the text gives the reason, and `error` is the code of the API."""

    def __init__(self, why: str, error: str = "AuthTokenUnauthorizedException") -> None:
        super().__init__(why)
        self.error = error


_ERRORS: Sequence[tuple[type[jwt.PyJWTError], str]] = (
    (jwt.InvalidSignatureError, "AuthTokenInvalidSignatureException"),
    (jwt.ExpiredSignatureError, "TokenExpiredError"),
    (jwt.InvalidAudienceError, "IncorrectAudienceError"),
    (jwt.InvalidIssuerError, "IssuerUnknownError"),
    (jwt.DecodeError, "AuthTokenUndecodedException"),
)
_OF_CLOCKS = (jwt.ImmatureSignatureError, jwt.ExpiredSignatureError)


class KeySet(Protocol):
    """Hold keys by id; the key with an empty id is for tokens without a key id."""

    def get(self, key: str, /) -> Any:  # a key of PyJWT
        """Return the key with this id, or None if it is unknown."""


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Verify the tokens of one issuer."""

    name: str
    issuer: str
    audience: str
    algorithm: str
    """Algorithm of keys that do not name their own."""
    keys: KeySet
    uid_claim: str = "sub"
    age_max_s: float | None = None
    skew_s: float = 0.0
    driver: str = "HS256"
    """HS256 | RS256 | OpenIDConnect. OpenIDConnect has a set of keys, and the pages can send people there to log in."""
    provider: IdentityProvider | None = None
    """Provider where people log in; None if the tokens come from elsewhere."""
    scope: str = SCOPE
    """Scope to request from the provider; it selects the claims about a person."""
    load_user_info: bool = True
    """Whether to request claims about a person besides those in the login's token."""

    @property
    def client(self) -> str:
        """Return the audience of tokens from a login."""
        return self.provider.client_id if self.provider else self.audience

    def verified(self, token: str, audience: str = "", needs: Sequence[str] = ()) -> dict[str, Any]:  # JSON
        """Verify that a token has a valid signature, comes from this issuer for this audience, has not expired, and has
        the required claims; return its claims. Raise BadToken."""
        try:
            # The unverified header only selects a key; nothing else in it is used.
            named = str(jwt.get_unverified_header(token).get("kid", ""))
            key = self.keys.get(named) or (self.keys.get("") if self.provider is None else None)
            if key is None:
                raise BadToken(f"authenticator {self.name} has no key with that id")
            claims: dict[str, Any] = jwt.decode(  # JSON
                token,
                key,
                # Never the algorithm that the token's header names: an attacker could name HS256, and sign with the
                # public key as the secret.
                algorithms=[key.algorithm_name if isinstance(key, jwt.PyJWK) else self.algorithm],
                issuer=self.issuer,
                audience=audience or self.audience,
                leeway=self.skew_s,
                options={"require": ["exp", *needs, *(["iat"] if self.age_max_s is not None else [])]},
            )
        except (jwt.PyJWTError, RecursionError) as error:
            clocks = "; do the clocks agree ([auth] skew)?" if isinstance(error, _OF_CLOCKS) else ""
            raise BadToken(f"authenticator {self.name}: {error}{clocks}", self._word(error)) from error
        # The library also accepts strings that look like numbers, but the arithmetic in `read` would fail with them.
        for name in ("exp", "iat"):
            if not isinstance(claims.get(name, 0), int | float):
                raise BadToken(
                    f"authenticator {self.name}: claim {name} is not a number", "AuthTokenUndecodedException"
                )
        return claims

    def read(self, token: str) -> dict[str, Any]:  # JSON
        """Verify a token for this audience, with its age and its user id, and return its claims. Raise BadToken."""
        claims = self.verified(token, needs=(self.uid_claim,))
        if self.age_max_s is not None and claims["exp"] - claims["iat"] > self.age_max_s:
            why = f"authenticator {self.name}: tokens may be valid for {self.age_max_s:g} s only"
            raise BadToken(why, "TokenExpiredError")
        if not isinstance(claims[self.uid_claim], str):
            raise BadToken(f"authenticator {self.name}: claim {self.uid_claim} is not a string", "MissingUIDClaimError")
        return claims

    def _word(self, error: Exception) -> str:
        if isinstance(error, jwt.MissingRequiredClaimError):
            return "MissingUIDClaimError" if error.claim == self.uid_claim else "MissingClaimError"
        return next((word for kind, word in _ERRORS if isinstance(error, kind)), "AuthTokenUnauthorizedException")


def read(token: str, among: Sequence[Authenticator]) -> tuple[Authenticator, dict[str, Any]]:  # JSON
    """Return the authenticator of the token's issuer, and the verified claims. Raise BadToken."""
    try:
        # Decoded without verification only to find the issuer, which selects the authenticator that verifies.
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, RecursionError) as error:
        raise BadToken(f"this is not a token: {error}", "AuthTokenUndecodedException") from error
    found = [one for one in among if one.issuer == claims.get("iss")]
    if not found:
        raise BadToken(f"tokens of issuer {claims.get('iss')!r} are not accepted here", "IssuerUnknownError")
    return found[0], found[0].read(token)


def authenticator(
    name: str, options: Mapping[str, str], file: Path, trust: ssl.SSLContext | None = None
) -> Authenticator:
    """Return the authenticator that a section of the settings describes; paths are relative to `file`. `trust`:
    certificate authorities that are accepted for providers. Raise UserError."""

    def wrong(what: str) -> UserError:
        return UserError(f"{file}: [auth {name}] {what}")

    driver = options.get("driver") or "HS256"
    for option in ("issuer_id", "client_id"):
        if not options.get(option):
            raise wrong(f"needs {option}")
    provider = _provider(options, wrong, trust) if driver == OPENID else None
    try:
        keys = provider or _keys(driver, options, file.parent)
    except (OSError, ValueError, KeyError, jwt.PyJWTError) as error:
        raise wrong(f"the key cannot be used: {error}") from error
    age_max = options.get("max_validity_time")
    return Authenticator(
        name,
        options["issuer_id"],
        options.get("audience") or options["client_id"],
        "HS256" if driver == "HS256" else "RS256",
        keys,
        options.get("uid_claim") or "sub",
        float(age_max) if age_max else None,
        float(options.get("skew") or 0),
        _shown(driver, options["issuer_id"]),
        provider,
        options.get("scope") or SCOPE,
        options.get("load_user_info", "true").lower() in ("true", "yes", "on", "1"),
    )


def _provider(
    options: Mapping[str, str], wrong: Callable[[str], UserError], trust: ssl.SSLContext | None
) -> IdentityProvider:
    """Return the provider of a section. Raise UserError."""
    for option in ("issuer_id", "keys_url"):
        if options.get(option) and not safe(options[option]):
            raise wrong(f"{option} of driver {OPENID} must be an https address (http only for this machine)")
    if "openid" not in (options.get("scope") or SCOPE).split():
        raise wrong("scope must contain the word openid")
    return IdentityProvider(
        options["issuer_id"],
        options["client_id"],
        options.get("client_secret", ""),
        options.get("keys_url", ""),
        trust or True,
    )


def _shown(driver: str, issuer: str) -> str:
    """Return the name of the driver that the API shows to clients."""
    if driver == "RS256withJWKS":
        return "OpenIDConnect" if issuer.startswith(("https://", "http://")) else "RS256"
    return driver


def _keys(driver: str, options: Mapping[str, str], directory: Path) -> dict[str, Any]:
    if driver == "HS256":
        if len(options.get("secret", "").encode()) < SECRET_SIZE_MIN_BYTES:
            raise ValueError(f"secret must have at least {SECRET_SIZE_MIN_BYTES} bytes")
        return {"": options["secret"]}
    if driver == "RS256":
        return {"": text_of(directory / Path(options["public_key"]).expanduser())}
    text = text_of(directory / Path(options["keys_url"].removeprefix("file://")).expanduser())
    return {str(one.key_id or ""): one.key for one in jwt.PyJWKSet.from_dict(json.loads(text)).keys}

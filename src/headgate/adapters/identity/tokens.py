"""Bearer tokens: JSON web tokens, as the sections `[auth NAME]` of the settings say they are signed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from headgate.base.errors import UserError

SECRET_SIZE_MIN_BYTES = 32


class BadToken(Exception):
    """A token nobody here answers for; the text says why, and `error` so in the reference's word."""

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


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Reads the tokens of one issuer."""

    name: str
    issuer: str
    audience: str
    algorithm: str
    keys: Mapping[str, Any]
    """Key id -> key; the one with an empty id is for tokens that name none."""
    uid_claim: str = "sub"
    age_max_s: float | None = None
    skew_s: float = 0.0
    driver: str = "HS256"
    """HS256 | RS256 | OpenIDConnect: keys of a set, and an issuer that a page can be sent to."""

    def read(self, token: str) -> dict[str, Any]:  # JSON
        """Return its claims.  Raises BadToken."""
        try:
            key = self.keys.get(str(jwt.get_unverified_header(token).get("kid", "")), self.keys.get(""))
            if key is None:
                raise BadToken(f"authenticator {self.name} has no key of that id")
            claims: dict[str, Any] = jwt.decode(  # JSON
                token,
                key,
                algorithms=[self.algorithm],
                issuer=self.issuer,
                audience=self.audience,
                leeway=self.skew_s,
                options={"require": ["exp", self.uid_claim, *(["iat"] if self.age_max_s is not None else [])]},
            )
        except jwt.PyJWTError as error:
            raise BadToken(f"authenticator {self.name}: {error}", self._word(error)) from error
        if self.age_max_s is not None and claims["exp"] - claims["iat"] > self.age_max_s:
            why = f"authenticator {self.name}: tokens may be valid for {self.age_max_s:g} s only"
            raise BadToken(why, "TokenExpiredError")
        if not isinstance(claims[self.uid_claim], str):
            raise BadToken(f"authenticator {self.name}: claim {self.uid_claim} is no text", "MissingUIDClaimError")
        return claims

    def _word(self, error: jwt.PyJWTError) -> str:
        if isinstance(error, jwt.MissingRequiredClaimError):
            return "MissingUIDClaimError" if error.claim == self.uid_claim else "MissingClaimError"
        return next((word for kind, word in _ERRORS if isinstance(error, kind)), "AuthTokenUnauthorizedException")


def read(token: str, among: Sequence[Authenticator]) -> tuple[Authenticator, dict[str, Any]]:  # JSON
    """Return the one that answers for the token, by its issuer, and the claims.  Raises BadToken."""
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        raise BadToken(f"this is no token: {error}", "AuthTokenUndecodedException") from error
    found = [one for one in among if one.issuer == claims.get("iss")]
    if not found:
        raise BadToken(f"tokens of issuer {claims.get('iss')!r} are not accepted here", "IssuerUnknownError")
    return found[0], found[0].read(token)


def authenticator(name: str, said: Mapping[str, str], file: Path) -> Authenticator:
    """Of a section of the settings; paths are relative to `file`.  Raises UserError."""

    def wrong(what: str) -> UserError:
        return UserError(f"{file}: [auth {name}] {what}")

    driver = said.get("driver") or "HS256"
    for option in ("issuer_id", "client_id"):
        if not said.get(option):
            raise wrong(f"needs {option}")
    try:
        keys = _keys(driver, said, file.parent)
    except (OSError, ValueError, KeyError, jwt.PyJWTError) as error:
        raise wrong(f"the key cannot be used: {error}") from error
    age_max = said.get("max_validity_time")
    return Authenticator(
        name,
        said["issuer_id"],
        said["client_id"],
        "HS256" if driver == "HS256" else "RS256",
        keys,
        said.get("uid_claim") or "sub",
        float(age_max) if age_max else None,
        float(said.get("skew") or 0),
        _shown(driver, said["issuer_id"]),
    )


def _shown(driver: str, issuer: str) -> str:
    """Return what clients are told of the driver."""
    if driver == "RS256withJWKS":
        return "OpenIDConnect" if issuer.startswith(("https://", "http://")) else "RS256"
    return driver


def _keys(driver: str, said: Mapping[str, str], directory: Path) -> dict[str, Any]:
    if driver == "HS256":
        if len(said.get("secret", "").encode()) < SECRET_SIZE_MIN_BYTES:
            raise ValueError(f"secret must have at least {SECRET_SIZE_MIN_BYTES} bytes")
        return {"": said["secret"]}
    if driver == "RS256":
        return {"": (directory / Path(said["public_key"]).expanduser()).read_text()}
    text = (directory / Path(said["keys_url"].removeprefix("file://")).expanduser()).read_text()
    return {str(one.key_id or ""): one.key for one in jwt.PyJWKSet.from_dict(json.loads(text)).keys}

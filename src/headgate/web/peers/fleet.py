"""Proof that a request comes from the fleet: signed with a secret that only who reads the store knows, for one build
and a moment."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress
from dataclasses import dataclass, field

import jwt

from headgate.map.records import FleetSecret
from headgate.services.context import Context
from headgate.store.types import At, Conflict, Put

HEADER = "headgate-fleet"
ALGORITHM = "HS256"
PROOF_MAX_S = 60
CLOCKS_DIFFER_MAX_S = 300


@dataclass(slots=True)
class PeerFleet:
    context: Context
    _secret: str = field(default="", repr=False)

    async def headers(self, build: str) -> dict[str, str]:
        """Return the headers for a request about one build's logs.  Raise StoreError."""
        now_s = self.context.now_ms() // 1_000
        claims = {"sub": build, "iat": now_s, "exp": now_s + PROOF_MAX_S}
        return {HEADER: jwt.encode(claims, await self._known(), ALGORITHM)}

    async def vouches(self, proof: str, build: str) -> bool:
        """Return whether somebody of the fleet asks for the logs of this build.  Raise StoreError."""
        if not proof:
            return False
        try:
            claims = jwt.decode(
                proof,
                await self._known(),
                # The algorithm is ours, never the token's: a header `alg: none` must not count.
                algorithms=[ALGORITHM],
                # Machines of a fleet may disagree about the time; a proof is good
                # for one build only, so the longer life gains little.
                leeway=CLOCKS_DIFFER_MAX_S,
                options={"require": ["exp", "iat", "sub"]},
            )
        except jwt.PyJWTError:
            return False
        # Otherwise a proof for one build, seen by an executor, would open the logs of all.
        return bool(claims["sub"] == build)

    async def key(self, purpose: str) -> bytes:
        """Return a key that only the fleet knows, and for this purpose alone.  Raise StoreError."""
        # Keys are derived, so that a signature for one purpose can never pass for another.
        return hmac.new((await self._known()).encode(), purpose.encode(), hashlib.sha256).digest()

    async def _known(self) -> str:
        """Return the secret of the fleet; the first caller makes it. Raise StoreError."""
        place, store = self.context.map.system.fleet, self.context.store
        while not self._secret:
            entry = await store.get(place.path)
            if entry is not None:
                self._secret = place.decode(entry.value).secret
                break
            made = FleetSecret(secrets.token_urlsafe(32))
            with suppress(Conflict):  # somebody else made one
                await store.commit([At(place.path, None)], [Put(place.path, place.encode(made))])
        return self._secret

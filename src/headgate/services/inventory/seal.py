"""Seal the token that a client carries from one page to the next. It may name things that are hidden from the
client."""

from __future__ import annotations

import base64
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headgate.inventory.names import Invalid
from headgate.map.inventory.places import InventoryMap, PageKey
from headgate.store.store import Store
from headgate.store.types import At, Conflict

KEY_SIZE_BYTES, NONCE_SIZE_BYTES = 32, 12
PADDED_BYTES = 256
"""Texts are padded to a multiple of this size, because their lengths would reveal something."""
TEXT_SIZE_MAX = 8_000


class Seal:
    """Seal and open tokens with a key that lies in the store and that all servers of an inventory share."""

    def __init__(self, store: Store, places: InventoryMap) -> None:
        self._store, self._places = store, places
        self._cipher: AESGCM | None = None

    async def shut(self, plain: bytes) -> str:
        """Return a text that only `open` can read."""
        # Random nonces of 96 bits are safe for some four billion tokens under one key.
        nonce = secrets.token_bytes(NONCE_SIZE_BYTES)
        # JSON ignores spaces at its end, so the padding needs no mark.
        padded = plain.ljust(-(-len(plain) // PADDED_BYTES) * PADDED_BYTES)
        sealed = nonce + (await self._key()).encrypt(nonce, padded, None)
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    async def open(self, text: str) -> bytes:
        """Return what `shut` sealed. Raise Invalid for any other text."""
        try:
            # Whatever comes from outside is measured before it is decoded.
            if len(text) > TEXT_SIZE_MAX:
                raise ValueError("longer than any")
            padded = text.encode() + b"=" * (-len(text) % 4)
            sealed = base64.b64decode(padded, altchars=b"-_", validate=True)
            nonce, rest = sealed[:NONCE_SIZE_BYTES], sealed[NONCE_SIZE_BYTES:]
            return (await self._key()).decrypt(nonce, rest, None).rstrip(b" ")
        # One answer for all: which part is wrong is none of the caller's business.
        except (ValueError, InvalidTag) as error:
            raise Invalid("the page token is none that was given out; begin without one") from error

    async def _key(self) -> AESGCM:
        """Read the key once; the first server that needs it makes it."""
        address = self._places.page_key
        while self._cipher is None:
            entry = await self._store.get(address.path)
            if entry is not None:
                self._cipher = AESGCM(address.decode(entry.value).key)
                break
            made = PageKey(secrets.token_bytes(KEY_SIZE_BYTES))
            try:
                await self._store.commit([At(address.path, None)], [address.put(made)])
            except Conflict:
                continue  # another server was faster
        return self._cipher

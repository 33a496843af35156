"""The key store: a pair of keys a project, the private half encrypted with a password that the store never sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from headgate.adapters.keys import rsa
from headgate.adapters.keys.rsa import BadKey, Unopenable
from headgate.map.keys import KeyPair, KeyStorage, ProjectKeyPairs
from headgate.map.tree import Address, unescape
from headgate.ports.secrets import SecretError
from headgate.store.store import Store, Txn

ENCRYPTED = "!encrypted/pkcs1-oaep"
NO_PASSWORD = (
    "there is no password for the key store; set `password` in section [keystore] of the settings "
    "(`openssl rand -base64 32` makes a good one) and keep a copy of it"
)


class KeyStore:
    """Projects are named as in their connection: `org/app`."""

    def __init__(self, store: Store, password: str, now_ms: Callable[[], int]) -> None:
        self._store, self._password, self._now_ms = store, password, now_ms
        self._places = KeyStorage()

    async def every(self) -> dict[tuple[str, str], tuple[KeyPair, ...]]:
        """(connection, project) -> its pairs, newest first."""
        found: dict[tuple[str, str], tuple[KeyPair, ...]] = {}
        for entry in await self._store.list(self._places.path):
            names = entry.path.removeprefix(self._places.path).strip("/").split("/")
            if len(names) == 3:
                connection, project = unescape(names[0]), unescape(names[1])
                found[connection, project] = self._place(connection, project).decode(entry.value).pairs
        return found

    async def pairs(self, connection: str, project: str) -> tuple[KeyPair, ...]:
        entry = await self._store.get(self._place(connection, project).path)
        return self._place(connection, project).decode(entry.value).pairs if entry else ()

    async def public(self, connection: str, project: str) -> str:
        """PEM; the pair is made when there is none.  Raises SecretError without a password."""
        known = await self.pairs(connection, project)
        return (known or await self._add(connection, project, only_first=True))[0].public

    async def rotate(self, connection: str, project: str, *, keep: bool = True) -> KeyPair:
        """A new pair; with `keep` the older ones still open what they encrypted.  Raises SecretError."""
        pairs = await self._add(connection, project, only_first=False)
        if not keep:
            await self.put(connection, project, pairs[:1])
        return pairs[0]

    async def put(self, connection: str, project: str, pairs: tuple[KeyPair, ...]) -> None:
        """In place of what is there."""
        await self._store.commit([], [self._place(connection, project).put(ProjectKeyPairs(pairs))])

    async def delete(self, connection: str, project: str) -> None:
        await self._store.commit([], [self._place(connection, project).delete()])

    async def opened(self, connection: str, project: str, data: Any) -> Any:
        """See `ports.secrets`."""
        keys = await self._private(connection, project) if _encrypted(data) else []
        return await asyncio.to_thread(_opened, data, keys, f"of {project} ({connection})")

    async def _private(self, connection: str, project: str) -> list[RSAPrivateKey]:
        pairs = await self.pairs(connection, project)
        if not pairs:
            raise SecretError(
                f"{project} ({connection}) has no key here, so its secrets cannot be opened; import the key they were "
                "encrypted with (`headgate keys import`) or encrypt them anew (`headgate encrypt`)"
            )
        return [await asyncio.to_thread(self.unlocked, connection, project, pair) for pair in pairs]

    def unlocked(self, connection: str, project: str, pair: KeyPair) -> RSAPrivateKey:
        """Raises SecretError."""
        if not self._password:
            raise SecretError(NO_PASSWORD)
        try:
            return rsa.load_private(pair.private, self._password, checked=True)
        except BadKey as error:
            raise SecretError(
                f"key {pair.version} of {project} ({connection}) cannot be opened: {error}. Set [keystore] password to "
                "the one it was written with, or import a copy of the keys that was made with the present one"
            ) from error

    async def _add(self, connection: str, project: str, *, only_first: bool) -> tuple[KeyPair, ...]:
        if not self._password:
            raise SecretError(NO_PASSWORD)
        for pair in (await self.pairs(connection, project))[:1]:  # never two passwords in one store
            await asyncio.to_thread(self.unlocked, connection, project, pair)
        public, private = await asyncio.to_thread(rsa.generate, self._password)
        place = self._place(connection, project)

        async def body(txn: Txn) -> tuple[KeyPair, ...]:
            entry = await txn.get(place.path)
            known = place.decode(entry.value).pairs if entry else ()
            if known and only_first:  # somebody else was quicker
                return known
            version = max((pair.version for pair in known), default=0) + 1
            pairs = (KeyPair(version, self._now_ms(), public, private), *known)
            txn.do(place.put(ProjectKeyPairs(pairs)))
            return pairs

        return await self._store.transact(body)

    def _place(self, connection: str, project: str) -> Address[ProjectKeyPairs]:
        return self._places.connection(connection).project(project).secrets


def _encrypted(data: Any) -> bool:  # JSON
    if isinstance(data, dict):
        return list(data) == [ENCRYPTED] or any(map(_encrypted, data.values()))
    return isinstance(data, list) and any(map(_encrypted, data))


def _opened(data: Any, keys: list[RSAPrivateKey], whose: str) -> Any:  # JSON
    """Raises SecretError."""
    if isinstance(data, dict) and list(data) == [ENCRYPTED]:
        try:
            return rsa.decrypt(keys, data[ENCRYPTED]).decode()
        except UnicodeDecodeError as error:
            raise SecretError(
                f"a secret {whose} is not UTF-8; encrypt it as base64 and decode it in the job"
            ) from error
        except Unopenable as error:
            why = f"a secret {whose} cannot be opened: {error}; encrypt it anew with `headgate encrypt`"
            raise SecretError(why) from error
    if isinstance(data, dict):
        return {key: _opened(value, keys, whose) for key, value in data.items()}
    if isinstance(data, list):
        return [_opened(value, keys, whose) for value in data]
    return data

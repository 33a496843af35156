"""Store the key pairs of projects; a password that is not in the store encrypts the private keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from msgspec.structs import replace

from headgate.adapters.keys import rsa
from headgate.gate.state.returns import Sealed
from headgate.map.keys import KeyPair, KeyStorage, ProjectKeyPairs
from headgate.map.tree import Address, unescape
from headgate.ports.secrets import SecretError
from headgate.store.store import Store, Txn
from headgate.store.types import Op

ENCRYPTED = "!encrypted/pkcs1-oaep"
NO_PASSWORD = (
    "there is no password for the key store; set `password` in section [keystore] of the settings "
    "(`openssl rand -base64 32` makes a good one) and keep a copy of it"
)


class KeyStore:
    """Store the keys of projects, which are named as in their connection: `org/app`."""

    def __init__(self, store: Store, password: str, now_ms: Callable[[], int]) -> None:
        self._store, self._password, self._now_ms = store, password, now_ms
        self._places = KeyStorage()

    async def every(self) -> dict[tuple[str, str], tuple[KeyPair, ...]]:
        """Return (connection, project) -> its key pairs, newest first."""
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
        """Return the public key as PEM; create the pair if there is none. Raise SecretError without a password."""
        known = await self.pairs(connection, project)
        return (known or await self._add(connection, project, only_first=True))[0].public

    async def rotate(self, connection: str, project: str, besides: Sequence[Op] = ()) -> tuple[KeyPair, ...]:
        """Make a new pair and return all, newest first; older pairs still decrypt what they encrypted.  `besides` is
        written in the same commit.  Raise SecretError without a password."""
        return await self._add(connection, project, only_first=False, besides=besides)

    async def retire(
        self, connection: str, project: str, version: int, besides: Sequence[Op] = ()
    ) -> tuple[KeyPair, ...]:
        """Remove a pair, and return the remaining ones. Values that it encrypted can no longer be decrypted. Raises
        SecretError."""
        place = self._place(connection, project)

        async def body(txn: Txn) -> tuple[KeyPair, ...]:
            entry = await txn.get(place.path)
            known = place.decode(entry.value).pairs if entry else ()
            # The newest pair stays: people encrypt with it, and a project without a pair would get a new one
            # immediately.
            if version not in [pair.version for pair in known[1:]]:
                older = ", ".join(str(pair.version) for pair in known[1:]) or "none"
                raise SecretError(f"there is no older key {version} of {project} ({connection}); older ones: {older}")
            left = tuple(pair for pair in known if pair.version != version)
            txn.do(place.put(ProjectKeyPairs(left)), *besides)
            return left

        return await self._store.transact(body)

    async def openers(self, connection: str, project: str, data: Any) -> frozenset[int]:
        """Return the versions of the pairs that decrypt the secrets in `data` (JSON). Raise SecretError."""
        if not _encrypted(data):
            return frozenset()
        pairs = await self.pairs(connection, project)
        keys = await self._private(connection, project)
        fit = await asyncio.to_thread(lambda: {_fitting(keys, pieces) for pieces in _pieces(data)})
        return frozenset(pairs[index].version for index in fit if index is not None)

    async def repassword(self, old: str, new: str) -> int:
        """Encrypt every private key with the password `new`, except those that it already opens. Return how many keys
        were changed.

        Raises SecretError.
        """
        changed = 0
        for (connection, project), pairs in (await self.every()).items():
            fresh = [await asyncio.to_thread(_repassworded, project, pair, old, new) for pair in pairs]
            if tuple(fresh) != pairs:
                changed += sum(a != b for a, b in zip(fresh, pairs, strict=True))
                await self.put(connection, project, tuple(fresh), pairs)
        return changed

    async def put(
        self, connection: str, project: str, pairs: tuple[KeyPair, ...], known: tuple[KeyPair, ...] = ()
    ) -> None:
        """Store pairs instead of the known ones. Raise SecretError if the store no longer has the known ones."""
        place = self._place(connection, project)

        async def body(txn: Txn) -> None:
            entry = await txn.get(place.path)
            # Another process may have made a key since, and people may already have encrypted with it.
            if (place.decode(entry.value).pairs if entry else ()) != known:
                raise SecretError(
                    f"another process changed the keys of {project} ({connection}) in the meantime; nothing was written"
                )
            txn.do(place.put(ProjectKeyPairs(pairs)))

        await self._store.transact(body)

    async def delete(self, connection: str, project: str) -> None:
        await self._store.commit([], [self._place(connection, project).delete()])

    async def opened(self, connection: str, project: str, data: Any) -> Any:
        """Return `data` with its encrypted values in clear text; see `ports.secrets.Secrets`."""
        keys = await self._private(connection, project) if _encrypted(data) else []
        return await asyncio.to_thread(_opened, data, keys, f"of {project} ({connection})")

    async def sealed(self, connection: str, project: str, plain: bytes) -> Sealed:
        """Encrypt secret data with the project's public key; see `ports.secrets.Secrets`."""
        pem = await self.public(connection, project)
        return await asyncio.to_thread(rsa.seal, pem, connection, project, plain)

    async def unsealed(self, sealed: Sealed) -> bytes:
        """Decrypt secret data that `sealed` returned; see `ports.secrets.Secrets`."""
        keys = await self._private(sealed.connection, sealed.project)
        try:
            return await asyncio.to_thread(rsa.unseal, keys, sealed)
        except rsa.Unopenable as error:
            whose = f"{sealed.project} ({sealed.connection})"
            raise SecretError(f"secret data that a job of {whose} returned cannot be decrypted: {error}") from error

    async def _private(self, connection: str, project: str) -> list[RSAPrivateKey]:
        pairs = await self.pairs(connection, project)
        if not pairs:
            raise SecretError(
                f"{project} ({connection}) has no key here, so its secrets cannot be decrypted; import the key that "
                "encrypted them (`headgate keys import`) or encrypt them again (`headgate encrypt`)"
            )
        return [await asyncio.to_thread(self.unlocked, connection, project, pair) for pair in pairs]

    def unlocked(self, connection: str, project: str, pair: KeyPair) -> RSAPrivateKey:
        """Return the private key. Raise SecretError."""
        if not self._password:
            raise SecretError(NO_PASSWORD)
        try:
            return rsa.load_private(pair.private, self._password, checked=True)
        except rsa.BadKey as error:
            raise SecretError(
                f"key {pair.version} of {project} ({connection}) cannot be decrypted: {error}. Set [keystore] password "
                "to the one with which it was written, or import a copy of the keys that was made with the current one"
            ) from error

    async def _add(
        self, connection: str, project: str, *, only_first: bool, besides: Sequence[Op] = ()
    ) -> tuple[KeyPair, ...]:
        if not self._password:
            raise SecretError(NO_PASSWORD)
        # All keys of a store must have the same password, so one that does not open an existing key is refused.
        for pair in (await self.pairs(connection, project))[:1]:
            await asyncio.to_thread(self.unlocked, connection, project, pair)
        # Outside the transaction, which may run several times: generating a key takes a second.
        public, private = await asyncio.to_thread(rsa.generate, self._password)
        place = self._place(connection, project)

        async def body(txn: Txn) -> tuple[KeyPair, ...]:
            entry = await txn.get(place.path)
            known = place.decode(entry.value).pairs if entry else ()
            if known and only_first:  # another process was faster
                return known
            # No number is ever used twice, because the newest pair is never retired.
            version = max((pair.version for pair in known), default=0) + 1
            pairs = (KeyPair(version, self._now_ms(), public, private), *known)
            txn.do(place.put(ProjectKeyPairs(pairs)), *besides)
            return pairs

        return await self._store.transact(body)

    def _place(self, connection: str, project: str) -> Address[ProjectKeyPairs]:
        return self._places.connection(connection).project(project).secrets


def _encrypted(data: Any) -> bool:  # JSON
    if isinstance(data, dict):
        return list(data) == [ENCRYPTED] or any(map(_encrypted, data.values()))
    return isinstance(data, list) and any(map(_encrypted, data))


def _pieces(data: Any) -> Iterator[list[str]]:  # JSON
    """Yield the pieces of each encrypted value."""
    if isinstance(data, dict) and list(data) == [ENCRYPTED]:
        yield data[ENCRYPTED]
    elif isinstance(data, dict | list):
        for inner in data.values() if isinstance(data, dict) else data:
            yield from _pieces(inner)


def _fitting(keys: Sequence[RSAPrivateKey], pieces: list[str]) -> int | None:
    try:
        return rsa.fitting(keys, pieces)[0]
    except rsa.Unopenable:
        return None


def _repassworded(project: str, pair: KeyPair, old: str, new: str) -> KeyPair:
    """Encrypt the private key with the new password, unless that already opens it.  Raise SecretError if neither
    password does."""
    # The new password first, so that an interrupted run can be repeated.
    for password in (new, old):
        try:
            key = rsa.load_private(pair.private, password, checked=True)
        except rsa.BadKey:
            continue
        return pair if password == new else replace(pair, private=rsa.private_pem(key, new))
    raise SecretError(f"neither password decrypts key {pair.version} of {project}; the keys before it were changed")


def _opened(data: Any, keys: list[RSAPrivateKey], whose: str) -> Any:  # JSON
    """Return the data with its secrets decrypted. Raise SecretError."""
    if isinstance(data, dict) and list(data) == [ENCRYPTED]:
        try:
            return rsa.decrypt(keys, data[ENCRYPTED]).decode()
        except UnicodeDecodeError as error:
            raise SecretError(
                f"a secret {whose} is not UTF-8; encrypt it as base64 and decode it in the job"
            ) from error
        except rsa.Unopenable as error:
            why = f"a secret {whose} cannot be decrypted: {error}; encrypt it again with `headgate encrypt`"
            raise SecretError(why) from error
    if isinstance(data, dict):
        return {key: _opened(value, keys, whose) for key, value in data.items()}
    if isinstance(data, list):
        return [_opened(value, keys, whose) for value in data]
    return data

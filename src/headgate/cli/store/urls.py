"""A store by its URL.  Each kind is loaded only where it is used."""

from __future__ import annotations

from headgate.base.errors import UserError
from headgate.store.memory import MemoryBackend
from headgate.store.types import Backend, StoreError, Unavailable

SQLITE = "sqlite:///"
MEMORY = "memory:"
ZOOKEEPER = "zookeeper://"
ETCD = "etcd://"


class StoreAway(UserError):
    """No server answers; later one may."""


def said(error: StoreError) -> UserError:
    return StoreAway(str(error)) if isinstance(error, Unavailable) else UserError(str(error))


async def open_url(url: str) -> Backend:
    """To read and to write.  Raises UserError; StoreAway when no server answers."""
    try:
        if url == MEMORY:
            return MemoryBackend()
        if url.startswith(ZOOKEEPER):
            from headgate.store.zookeeper.backend import ZooKeeperBackend

            return await ZooKeeperBackend.open(url)
        if url.startswith(ETCD):
            from headgate.store.etcd.backend import EtcdBackend

            return await EtcdBackend.open(url)
        from headgate.store.sqlite import SqliteBackend

        return await SqliteBackend.open(url.removeprefix(SQLITE))
    except StoreError as error:
        raise said(error) from error


async def open_to_read(url: str) -> Backend:
    """Beside whoever writes; a path is that of an SQLite file.  Raises UserError."""
    if "://" in url and not url.startswith(SQLITE):
        return await open_url(url)
    try:
        from headgate.store.sqlite import SqliteReader

        return SqliteReader(url.removeprefix(SQLITE))
    except StoreError as error:
        raise UserError(str(error)) from error

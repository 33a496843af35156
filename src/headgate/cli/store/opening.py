"""A store by its URL."""

from __future__ import annotations

from headgate.base.errors import UserError
from headgate.store.etcd.address import SCHEME as ETCD
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.memory import MemoryBackend
from headgate.store.sqlite import SqliteBackend, SqliteReader
from headgate.store.types import Backend, StoreError
from headgate.store.zookeeper.address import SCHEME as ZOOKEEPER
from headgate.store.zookeeper.backend import ZooKeeperBackend

SQLITE = "sqlite:///"
MEMORY = "memory:"


async def open_url(url: str) -> Backend:
    """To read and to write.  Raises UserError."""
    try:
        if url == MEMORY:
            return MemoryBackend()
        if url.startswith(ZOOKEEPER):
            return await ZooKeeperBackend.open(url)
        if url.startswith(ETCD):
            return await EtcdBackend.open(url)
        return await SqliteBackend.open(url.removeprefix(SQLITE))
    except StoreError as error:
        raise UserError(str(error)) from error


async def open_to_read(url: str) -> Backend:
    """Beside whoever writes; a path is that of an SQLite file.  Raises UserError."""
    if "://" in url and not url.startswith(SQLITE):
        return await open_url(url)
    try:
        return SqliteReader(url.removeprefix(SQLITE))
    except StoreError as error:
        raise UserError(str(error)) from error

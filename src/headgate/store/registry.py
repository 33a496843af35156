"""List the kinds of stores in one place: a new kind needs a row here, and a module with a function `connect`."""

from __future__ import annotations

import importlib
from typing import NamedTuple, Protocol, cast

from headgate.base.errors import needing
from headgate.store.types import Backend

SQLITE = "sqlite:///"
MEMORY = "memory:"


class StoreKind(NamedTuple):
    """Declare one kind of store."""

    module: str
    """Module with `connect(url) -> Backend`, which raises StoreError; imported only when a URL needs it."""
    shape: str
    """Form of its URLs, for messages."""
    extra: str = ""
    """Extra of Headgate that installs the packages that the store needs; empty if it needs none."""


STORES: dict[str, StoreKind] = {
    SQLITE: StoreKind("headgate.store.sqlite", "sqlite:///FILE"),
    "zookeeper://": StoreKind("headgate.store.zookeeper.backend", "zookeeper://HOST:PORT,…/CHROOT"),
    "etcd://": StoreKind("headgate.store.etcd.backend", "etcd://HOST:PORT,…/PREFIX", extra="etcd"),
    MEMORY: StoreKind("headgate.store.memory", "memory:"),
}
"""Prefix of the URLs -> kind of store."""


class _Module(Protocol):
    async def connect(self, url: str) -> Backend: ...


def shapes() -> list[str]:
    """Return the forms of store URLs; that of the memory store, which is not durable, comes last."""
    found = [kind.shape for scheme, kind in STORES.items() if scheme != MEMORY]
    return [*found, STORES[MEMORY].shape]


def scheme_of(url: str) -> str | None:
    """Return the prefix of STORES that this URL has, or None if it has none."""
    return next((scheme for scheme in STORES if url.startswith(scheme) and (scheme != MEMORY or url == MEMORY)), None)


async def connect(url: str) -> Backend:
    """Open the store of a URL; a string without a known prefix is the path of an SQLite file.  Raise StoreError,
    MissingPackage."""
    row = STORES[scheme_of(url) or SQLITE]
    with needing(f"a store {row.shape}", row.extra):
        module = cast(_Module, importlib.import_module(row.module))
    return await module.connect(url)

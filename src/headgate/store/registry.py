"""List the kinds of stores in one place: a new one is a row here, and a module that has `connect`."""

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
    """The module, loaded once a URL names it, that has `connect(url) -> Backend`, which raises StoreError."""
    shape: str
    """Form of its URLs, for people."""
    extra: str = ""
    """The extra of Headgate that installs the packages that the store needs; empty if it needs none."""


STORES: dict[str, StoreKind] = {
    SQLITE: StoreKind("headgate.store.sqlite", "sqlite:///FILE"),
    "zookeeper://": StoreKind("headgate.store.zookeeper.backend", "zookeeper://HOST:PORT,…/CHROOT"),
    "etcd://": StoreKind("headgate.store.etcd.backend", "etcd://HOST:PORT,…/PREFIX", extra="etcd"),
    MEMORY: StoreKind("headgate.store.memory", "memory:"),
}
"""Start of its URLs -> store."""


class _Module(Protocol):
    async def connect(self, url: str) -> Backend: ...


def shapes() -> list[str]:
    """Return how URLs of stores look; that of memory, which forgets all, is the last."""
    found = [kind.shape for scheme, kind in STORES.items() if scheme != MEMORY]
    return [*found, STORES[MEMORY].shape]


def scheme_of(url: str) -> str | None:
    """Return how URLs of its kind begin, or None if no store has such a URL."""
    return next((scheme for scheme in STORES if url.startswith(scheme) and (scheme != MEMORY or url == MEMORY)), None)


async def connect(url: str) -> Backend:
    """Open the store of a URL; what begins like none of them is the path of an SQLite file.  Raise StoreError,
    MissingPackage."""
    row = STORES[scheme_of(url) or SQLITE]
    with needing(f"a store {row.shape}", row.extra):
        module = cast(_Module, importlib.import_module(row.module))
    return await module.connect(url)

"""Reset a store that no component uses, and keep components from joining until it is empty."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from headgate.map.places import Map
from headgate.map.records import RESETTING, Formats
from headgate.recipes.codec import readable
from headgate.store.model import inside
from headgate.store.types import OPS_MAX, At, Backend, Conflict, Delete, Entry, StoreError

ROUNDS_MAX = 5
"""Limit on deletions of what was written meanwhile."""


class StoreInUse(StoreError):
    """Report that a process uses the store."""


async def reset_store(backend: Backend, ours: Callable[[Entry], bool]) -> int:
    """Delete all entries that are `ours`, and return their number. Raise StoreInUse.

    The announcement comes first: components that joined before it are seen here, and those that join later see the
    announcement and leave. It is deleted last, so that an interrupted reset keeps them out until it is repeated.
    """
    place = Map().system.formats
    # A store in use is refused before anything is written to it.
    _refuse_used(await _entries(backend, ours))
    before = await backend.get(place.path)
    now = (readable(before, Formats) if before is not None else None) or Formats(1)
    check = At(place.path, before.version if before else None)
    (announced,) = await backend.commit([check], [place.put(replace(now, next=RESETTING))])
    assert announced is not None, "a put answers with its entry"
    own = At(place.path, announced.version)
    try:
        _refuse_used(await _entries(backend, ours))
    except StoreInUse:
        # A scheduler that joined in the meantime may have replaced it.
        with suppress(Conflict):
            undo = Delete(place.path) if before is None else place.put(now)
            await backend.commit([own], [undo])
        raise
    deleted = set[str]()
    for _ in range(ROUNDS_MAX):
        left = [entry for entry in await _entries(backend, ours) if entry.path != place.path and not _joining(entry)]
        if not left:
            await backend.commit([own], [Delete(place.path)])
            return len(deleted) + (before is not None)
        # Delete in reverse order, children before parents: ZooKeeper deletes no node that has children.
        paths = sorted((entry.path for entry in left), reverse=True)
        for start in range(0, len(paths), OPS_MAX):
            await backend.commit([own], [Delete(path) for path in paths[start : start + OPS_MAX]])
        deleted.update(paths)
    raise StoreInUse(f"something keeps writing to this store ({left[0].path}); stop it, and run this again")


async def _entries(backend: Backend, ours: Callable[[Entry], bool]) -> list[Entry]:
    return [entry for entry in await backend.list("") if ours(entry)]


def _refuse_used(entries: list[Entry]) -> None:
    # Only entries of a live session have a lease, so one of them proves that a process is still running.
    if running := [entry.path for entry in entries if entry.lease is not None]:
        raise StoreInUse(f"Headgate is using this store ({running[0]}); stop it first. Nothing was deleted")


def _joining(entry: Entry) -> bool:
    """Return whether a component wrote the entry that leaves because of the announcement."""
    return entry.lease is not None and inside(entry.path, Map().components.path)

"""Find what is left of connections, buildsets and requests for machines that no longer exist, for the sweep to
remove."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from headgate.gate.waiter import Waiter
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.map.tree import Address, unescape
from headgate.recipes.codec import readable
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.store.types import Delete, Entry, Op

CONNECTION_LOOKS = 60
"""Number of looks, about an hour, before a connection's data is deleted, so that a slip in the settings can be
mended."""


class Unasked:
    """Find answers to requests for machines that no longer exist. Claims stay for a launcher, which cleans the
    machines."""

    def __init__(self, context: Context) -> None:
        self._nodes = context.map.nodes

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Return the answers, each by its path."""
        requested = set(mirror.names(self._nodes.requests.path))
        answers = mirror.under(self._nodes.answers.path)
        return {entry.path: [entry] for entry in answers if entry.path.rpartition("/")[2] not in requested}


class Disconnected:
    """Find what is stored about connections that the settings no longer have, and their unhandled events."""

    def __init__(self, context: Context, connections: Collection[str]) -> None:
        """Take `connections`, the names of those that the settings have."""
        self._cache, self._events, self._known = context.map.cache, context.map.events, connections

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Return all of each connection that nobody watches by its name, without the lines of its locks."""
        found: dict[str, list[Entry]] = {}
        for above in (self._cache.connection.path, self._events.connection.path):
            for name in mirror.names(above):
                if unescape(name) not in self._known and not self._watched(mirror, unescape(name)):
                    # An entry with a lease is a contender's place in a line: its session removes it.
                    entries = (entry for entry in mirror.under(f"{above}/{name}") if entry.lease is None)
                    found.setdefault(name, []).extend(entries)
        return {name: entries for name, entries in found.items() if entries}

    def _watched(self, mirror: Mirror, connection: str) -> bool:
        # Schedulers may have different settings during an upgrade: where somebody leads the election, the connection
        # exists for them.
        return bool(mirror.under(self._events.connection(connection).events.election.path))

    def locks(self, entry: Entry) -> tuple[str, str]:
        """Return the locks held by processes that watch the connection, possibly with other settings than ours."""
        above = (self._cache.connection.path, self._events.connection.path)
        name = next(entry.path.removeprefix(f"{p}/") for p in above if entry.path.startswith(f"{p}/"))
        connection = unescape(name.partition("/")[0])
        return (
            self._events.connection(connection).events.election.path,
            self._cache.connection(connection).branches.lock.path,
        )


class Forsaken:
    """Find places in semaphores held by buildsets that are gone, or awaited by pipelines that are gone."""

    def __init__(self, context: Context) -> None:
        self._map, self._mirror = context.map, context.mirror

    def left(self, mirror: Mirror) -> Mapping[str, Sequence[Entry]]:
        """Return the records that name missing holders or waiters, by their paths."""
        every = (*mirror.under(self._map.semaphores.path), *mirror.under(self._map.global_semaphores.path))
        return {entry.path: [entry] for entry in every if self._remaining(entry) not in (None, _read(entry))}

    def mended(self, entry: Entry) -> Op:
        """Return the operation that keeps the remaining holders and waiters in their places."""
        record = self._remaining(entry) or SemaphoreRecord(())
        empty = not record.holders and not record.waiters
        return Delete(entry.path) if empty else Address(entry.path, SemaphoreRecord).put(record)

    def _remaining(self, entry: Entry) -> SemaphoreRecord | None:
        """Return the record without holders and waiters that are gone; None if it cannot be read, because turns write
        it again.
        """
        record = _read(entry)
        if record is None:
            return None
        # The path of a tenant's own semaphore says whose it is; only holders of a global one name their tenant.
        own = unescape(self._map.semaphores.relative(entry.path).partition("/")[0])
        tenant = own if self._map.semaphores.holds(entry.path) else ""
        holders = tuple(holder for holder in record.holders if self._holds(holder, tenant))
        return replace(record, holders=holders, waiters=tuple(filter(self._waits, record.waiters)))

    def _holds(self, holder: SemaphoreHolder, tenant: str) -> bool:
        items = self._map.tenant(holder.tenant or tenant).pipeline(holder.pipeline).item
        names = map(unescape, self._mirror.names(items.path))
        held_for = (items(name).buildset(holder.buildset) for name in names)
        paths = (path for one in held_for for path in (one.record.path, one.repo_state.path))  # builds continue with it
        return any(self._mirror.get(path) is not None for path in paths)

    def _waits(self, waiter: Waiter) -> bool:
        return self._mirror.get(self._map.tenant(waiter.tenant).pipeline(waiter.pipeline).record.path) is not None


def _read(entry: Entry) -> SemaphoreRecord | None:
    return readable(entry, SemaphoreRecord)

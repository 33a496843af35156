"""Show the connections' states of changes, decoded once per change of each."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from headgate.gate.change import Change, ChangeState
from headgate.gate.topics import ByTopic, DependantsByTopic, topic_of
from headgate.gate.world import LayoutView
from headgate.map.places import ConnectionCache, Map
from headgate.map.records import CacheEntry
from headgate.recipes.codec import encode, readable
from headgate.recipes.mirror import Mirror
from headgate.store.types import At, Delete, Op, Put


class ChangeStates:
    """View the change caches in the mirror."""

    def __init__(self, map: Map, mirror: Mirror, connections: tuple[str, ...]) -> None:
        self._map, self._mirror, self._connections = map, mirror, connections
        self._caches = mirror.part(*(map.cache.connection(name).path for name in connections))
        self._seen = -1
        self._versions: dict[str, tuple[int, str]] = {}
        self._known: dict[str, ChangeState] = {}
        self._bodiless: set[str] = set()
        """Entries whose body has not arrived yet."""
        self.moves = 0
        """Counter that grows with every change of a change state."""
        self.dependants: dict[str, set[str]] = {}
        """Change key -> keys of the changes whose footers name it, as of the last `now`."""
        self._projects: dict[str, dict[str, ChangeState]] = {}
        """Project -> key -> change state."""
        self.topics: dict[tuple[str, str], set[str]] = {}
        """Connection and topic -> keys of the open changes with that topic, as of the last `now`."""

    def now(self) -> Mapping[str, ChangeState]:
        """Return change key -> change state."""
        if self._caches.moves != self._seen:
            self._seen = self._caches.moves
            self._look(self._caches.changed())
        return self._known

    def of_project(self, project: str) -> Mapping[str, ChangeState]:
        """Return key -> change state, of the changes of a project."""
        self.now()
        return self._projects.get(project, {})

    def under(self, layout: LayoutView) -> Mapping[str, ChangeState]:
        """Return the change states as a configuration sees them, in which topics may bind changes together."""
        known = self.now()
        return ByTopic(known, self.topics, layout) if self.topics else known

    @property
    def needing(self) -> Mapping[str, Collection[str]]:
        """Return key -> keys of changes that may need it, as of the last `now`."""
        return DependantsByTopic(self.dependants, self._known, self.topics) if self.topics else self.dependants

    def counted(self) -> int:
        self.now()
        return self.moves

    def _look(self, changed: set[str] | None) -> None:
        """Read entries that changed, or whose bodies arrived; all entries when `changed` is None."""
        for connection in self._connections:
            place = self._map.cache.connection(connection)
            prefix = place.cache.inside("")
            if changed is None:
                known = (path for path in self._versions if path.startswith(prefix))
                paths = {*known, *(entry.path for entry in self._mirror.under(place.cache.path))}
            else:
                # A commit may reach the mirror in parts. A body that arrives late moves a path of its own, which names
                # no entry, so entries that lack theirs are tried at every move.
                paths = {path for path in (*changed, *self._bodiless) if path.startswith(prefix)}
            for path in paths:
                self._take(path, place)

    def _take(self, path: str, place: ConnectionCache) -> None:
        entry = self._mirror.get(path)
        self._bodiless.discard(path)
        if entry is None:
            if path in self._versions:
                self._keep(self._versions.pop(path)[1], None)
                self.moves += 1
            return
        if self._versions.get(path, (-1, ""))[0] == entry.version:
            return
        # A damaged entry keeps the state that was known: without it, the next look would take the change for a new one.
        if (cached := readable(entry, CacheEntry)) is None:
            return
        data = self._mirror.get(place.data.inside(cached.data_uuid))
        if data is None:
            self._bodiless.add(path)
            return
        if (change_state := readable(data, ChangeState)) is None:
            return
        self._keep(cached.key, change_state)
        self._versions[path] = (entry.version, cached.key)
        self.moves += 1

    def _keep(self, key: str, change_state: ChangeState | None) -> None:
        before = self._known.get(key)
        if before is not None and (own := self._projects[before.change.project]).pop(key) and not own:
            del self._projects[before.change.project]
        for need in before.change.needs if before is not None else ():
            self.dependants[need].discard(key)
            if not self.dependants[need]:
                del self.dependants[need]
        if before is not None and (where := topic_of(before)) is not None and where in self.topics:
            self.topics[where].discard(key)
            if not self.topics[where]:
                del self.topics[where]
        if change_state is None:
            self._known.pop(key, None)
            return
        self._known[key] = change_state
        self._projects.setdefault(change_state.change.project, {})[key] = change_state
        # Only open changes are bound together by a topic: a closed one can no longer land with the others.
        if change_state.open and (where := topic_of(change_state)) is not None:
            self.topics.setdefault(where, set()).add(key)
        for need in change_state.change.needs:
            self.dependants.setdefault(need, set()).add(key)


def shown(map: Map, mirror: Mirror, change: Change) -> ChangeState | None:
    """Return the state of a change, as the mirror shows it."""
    place = map.cache.connection(change.connection)
    entry = mirror.get(_path(place, change.key))
    cached = readable(entry, CacheEntry) if entry is not None else None
    body = mirror.get(place.data.inside(cached.data_uuid)) if cached is not None else None
    return readable(body, ChangeState) if body is not None else None


def _path(place: ConnectionCache, key: str) -> str:
    return place.cache.inside(hashlib.sha256(key.encode()).hexdigest())


def remember(map: Map, mirror: Mirror, change_state: ChangeState, id: str) -> tuple[At, list[Op]]:
    """Replace the state of the change: write a new body under `id`, switch the entry to it, delete the old body. The
    returned check is required, because other processes record landings, too."""
    place = map.cache.connection(change_state.change.connection)
    path = _path(place, change_state.change.key)
    # A body is never overwritten: a mirror that has only half of the commit could pair the old entry with the new body.
    old = mirror.get(path)
    ops: list[Op] = [
        Put(place.data.inside(id), encode(change_state)),
        Put(path, encode(CacheEntry(change_state.change.key, id))),
    ]
    if old is not None and (named := readable(old, CacheEntry)) is not None:
        ops.append(Delete(place.data.inside(named.data_uuid)))
    return At(path, old.version if old else None), ops


def forgotten(
    map: Map,
    mirror: Mirror,
    connection: str,
    known: Mapping[str, ChangeState],
    lingering: Mapping[str, Collection[str]],
    closed_max: int,
) -> list[tuple[At, list[Op]]]:
    """Return what to commit, each under its check, so that of the closed changes at most `closed_max` stay, those that
    closed last; besides them stay those that an open one names in its footers, and those whose refs may still be there
    (`ports.forge.Sighting`)."""
    place = map.cache.connection(connection)
    needed = {key for change_state in known.values() if change_state.open for key in change_state.change.needs}
    closed = list[tuple[int, At, list[Op]]]()
    for entry in mirror.under(place.cache.path):
        if (cached := readable(entry, CacheEntry)) is None:
            continue
        change_state, body = known.get(cached.key), mirror.get(place.data.inside(cached.data_uuid))
        if change_state is None or body is None or change_state.open or cached.key in needed:
            continue
        # Before the first look at a project, all its closed changes count as lingering. If one whose ref still exists
        # was forgotten, the look would take the ref for a new proposal.
        if cached.key not in lingering.get(change_state.change.project, (cached.key,)):
            closed.append((body.born, At(entry.path, entry.version), [Delete(entry.path), Delete(body.path)]))
    # Each state of a change has a body of its own, so the birth of the body is the time of the last change.
    closed.sort(key=lambda one: one[0])
    return [(check, ops) for _, check, ops in closed[: max(0, len(closed) - closed_max)]]

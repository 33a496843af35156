"""Show the connections' states of changes, and find dependencies of changes on any connection.

This module reads the footers of changes on every forge, and looks up the changes that they name if no tenant has their
projects. The connections' caches therefore serve as an index of dependencies (`ChangeStates.dependants`), so that no
forge must be searched.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from itertools import count

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.forges.footers import footers, ids, named
from headgate.gate.rules.needs import ByTopic, DependantsByTopic, topic_of
from headgate.gate.state.change import Change, ChangeState, EventKind, TriggerEvent, numbered
from headgate.gate.state.world import LayoutView
from headgate.map.places import ConnectionCache, Map
from headgate.map.records import CacheEntry
from headgate.ports.forge import Forge, ReporterAway, ReportPutOff
from headgate.recipes.codec import encode, readable
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.store.types import At, Delete, Op, Put

log = logging.getLogger("headgate.connection")

_COUNT = count(1)
LOOKED_UP_MAX = 50
"""Limit on the changes looked up concurrently."""


class ChangeStates:
    """View the change caches in the mirror."""

    def __init__(self, map: Map, mirror: Mirror, connections: tuple[str, ...]) -> None:
        self._map, self._mirror, self._connections = map, mirror, connections
        self._caches = mirror.part(*(map.cache.connection(name).path for name in connections))
        self._seen = -1
        self._versions: dict[str, tuple[int, str]] = {}
        self._known: dict[str, ChangeState] = {}
        self._bodiless: set[str] = set()
        """Entries whose body has not arrived in the mirror yet."""
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
        """Return the change states under a configuration, in which changes of one topic may need each other."""
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
                # A commit may reach the mirror in parts. A late body changes its own path, which does not identify its
                # entry, so entries without a body are tried at every change.
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
        # For a damaged entry, the last known state stays; otherwise the change would count as new at the next check.
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
        # A topic binds only open changes together, because a closed one can no longer land with the others.
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
    """Return the operations that replace the state of the change, and the check that they require, because other
    processes record landings: write a new body under `id`, switch the entry to it, delete the old body."""
    place = map.cache.connection(change_state.change.connection)
    path = _path(place, change_state.change.key)
    # A body is never overwritten, because a mirror with only a part of the commit could combine the old entry with the
    # new body.
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
    """Return the deletions, each with its check, that keep only the `closed_max` most recently closed changes. Closed
    changes that an open one needs also stay, and so do those whose refs may still exist (`ports.forge.Sighting`)."""
    place = map.cache.connection(connection)
    needed = {key for change_state in known.values() if change_state.open for key in change_state.change.needs}
    closed = list[tuple[int, At, list[Op]]]()
    for entry in mirror.under(place.cache.path):
        if (cached := readable(entry, CacheEntry)) is None:
            continue
        change_state, body = known.get(cached.key), mirror.get(place.data.inside(cached.data_uuid))
        if change_state is None or body is None or change_state.open or cached.key in needed:
            continue
        # Before the first check of a project, all its closed changes count as lingering: if a change whose ref still
        # exists were forgotten, the check would mistake the ref for a new proposal.
        if cached.key not in lingering.get(change_state.change.project, (cached.key,)):
            closed.append((body.born, At(entry.path, entry.version), [Delete(entry.path), Delete(body.path)]))
    # Each state of a change has its own body, so the creation of the body is the time of the last change.
    closed.sort(key=lambda one: one[0])
    return [(check, ops) for _, check, ops in closed[: max(0, len(closed) - closed_max)]]


class Needed:
    """Add dependencies to the changes of one connection."""

    def __init__(
        self, context: Context, connection: str, projects: Collection[str], connections: tuple[str, ...]
    ) -> None:
        """Create it. `projects`: canonical names of all tenants' projects; `connections`: all connections with
        changes."""
        self._context, self._connection, self._projects = context, connection, frozenset(projects)
        self._cased = {one.casefold(): one for one in self._projects}
        self._all = ChangeStates(context.map, context.mirror, connections)
        self._owners: dict[str, Forge] = {}
        """Key of a change that a footer names -> its forge."""
        self._ids: tuple[int, Mapping[str, list[str]]] = (-1, {})
        """Change-Id -> keys of changes, with the move of the caches as of which it is valid."""
        self._turns: dict[str, int] = {}
        """Key -> growing number of its last lookup, so that a change with many footers does not delay others."""

    @property
    def _forges(self) -> Mapping[str, Forge]:
        return self._context.forges

    def _key(self, url: str) -> str:
        """Return the key of the change at this address, from the first connection, in the order of the settings,
        that recognises it."""
        for forge in self._forges.values():
            if key := forge.named(url):
                key = self._known(key) if forge.can.any_case else key
                self._owners[key] = forge
                return key
        return ""

    def _known(self, key: str) -> str:
        """Return the key with the tenants' spelling of its project, because people may write it in another case."""
        project, _, number = key.rpartition("#")
        found = project if project in self._projects else self._cased.get(project.casefold(), project)
        return numbered(found, number)

    def _with_id(self, id: str) -> Collection[str]:
        """Return the keys of the changes of this connection that have this Change-Id, on any branch, and are open or
        have landed."""
        moves = self._all.counted()
        if self._ids[0] != moves:
            found: dict[str, list[str]] = {}
            for key, one in self._all.now().items():
                if one.change.connection == self._connection and (one.open or one.landed):
                    for own in ids(one.change.message):
                        found.setdefault(own, []).append(key)
            self._ids = (moves, found)
        return sorted(self._ids[1].get(id, ()))

    def completed(self, change_state: ChangeState) -> ChangeState:
        """Return the change with the changes that its footers name as needs. Plain git has already read its own
        footers, so only URLs are left there."""
        change = change_state.change
        if not change.is_change:
            return change_state
        if self._connection not in self._forges:
            # Without a forge, an address can only name a change of another connection.
            if not any("://" in text for text in change.unresolved):
                return change_state
            found = named([text for text in change.unresolved if "://" in text], self._key, ())
            left = tuple(text for text in change.unresolved if "://" not in text or text in found.unknown)
            now = replace(change, needs=_together(change.needs, found.needs), unresolved=left)
        else:
            found = named([*footers(change.message)], self._key, self._projects, self._with_id)
            # A change that names itself would wait for itself.
            needs = tuple(key for key in found.needs if key != change.key)
            now = replace(change, needs=_together(change.needs, needs), ignored=found.unknown)
        return change_state if now == change else replace(change_state, change=now)

    async def looked_up(self, change_states: Iterable[ChangeState]) -> list[ChangeState]:
        """Return new states of changes that the given ones need and whose projects no tenant has. An unavailable forge
        is asked again later."""
        named = (key for one in change_states if one.open for key in one.change.needs if key in self._owners)
        keys, found = dict.fromkeys(named), list[ChangeState]()
        known = self._all.now() if keys else {}
        wanted = [key for key in keys if self._is_due(known.get(key))]
        away = set[str]()
        for key in sorted(wanted, key=lambda one: self._turns.get(one, 0))[:LOOKED_UP_MAX]:
            forge = self._owners[key]
            if forge.name in away:
                continue
            # Counted before the call, so that a change whose lookup always fails also moves to the end of the queue.
            self._turns[key] = next(_COUNT)
            try:
                change_state = await forge.look_up(key)
            except (ReporterAway, ReportPutOff) as error:
                log.info(
                    "%s: the change %s, which another one needs, will be looked up later: %s",
                    self._connection,
                    key,
                    error,
                )
                if isinstance(error, ReporterAway):
                    # Every further call would wait for the same unavailable forge.
                    away.add(forge.name)
                continue
            if change_state is not None and (change_state := replace(change_state, looked_up=True)) != known.get(key):
                found.append(change_state)
        return found

    def _is_due(self, known: ChangeState | None) -> bool:
        """Return whether the change's state can only be learned from its forge."""
        return known is None or (known.open and known.change.project not in self._projects)

    def retold(
        self, found: Iterable[ChangeState], own: Mapping[str, ChangeState], now: Mapping[str, ChangeState]
    ) -> list[TriggerEvent]:
        """Return events that enqueue changes again that were reported before their needs were known. `own`: the changes
        as reported; `now`: those of them that have changed since."""
        known, fresh = self._all.now(), {one.change.key for one in found}
        unknown = {key for key in fresh if key not in known}
        now_ms = self._context.now_ms()
        return [
            TriggerEvent(EventKind.PROPOSED, one.change, derived("needed", one.change.key, *sorted(unknown)), now_ms)
            for one in (now.get(key, was) for key, was in own.items() if not unknown.isdisjoint(was.change.needs))
            if one.open
        ]


def _together(before: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*before, *more)))

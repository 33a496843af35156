"""Store the last seen targets of tags and other refs, and a forge's branch protections."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from headgate.base.ids import derived
from headgate.config.operator.model import Protection
from headgate.gate.state.change import HEADS, TriggerEvent
from headgate.map.places import ConnectionCache
from headgate.map.projects import RefsLooked, RefsSeen
from headgate.map.records import Reconfigure
from headgate.map.tree import Undecodable, unescape
from headgate.recipes import blob
from headgate.recipes.codec import decode, readable
from headgate.services.context import Context
from headgate.services.quarantine import Quarantine
from headgate.services.scheduler.turn import TurnPart, packed
from headgate.store.types import At, Delete, Op, Put

EVENTS_MAX = 20
"""Limit on the ref updates reported together."""
WriteEvents = Callable[[Iterable[TriggerEvent]], list[Op]]


class Protections:
    """Store the branch protections of one connection. The commit that stores a change also makes every tenant of the
    project read its configuration again."""

    def __init__(self, context: Context, connection: str, tenants: Mapping[str, frozenset[str]]) -> None:
        """Create it. `tenants` maps each tenant to the canonical names of its projects."""
        self._context, self._tenants = context, tenants
        self._place = context.map.cache.connection(connection).protection

    def pieces(self, protections: Mapping[str, Protection]) -> Iterator[TurnPart]:
        """Yield the parts that store the protections, in order; none for those already stored."""
        mirror = self._context.mirror
        for project, protection in protections.items():
            place = self._place(project).record
            entries = mirror.under(place.path)
            if self._stored(project) == protection:
                continue
            *parts, pointer = place.blob(protection)
            # Readers always find the old or the new value: the order is new pieces, then the pointer together with the
            # requests to read again, then the deletion of old pieces.
            yield from (TurnPart([part]) for part in parts)
            fresh = {place.path, *(part.path for part in parts if isinstance(part, Put))}
            stale: list[Op] = [Delete(entry.path) for entry in entries if entry.path not in fresh]
            yield TurnPart([pointer, *self._read_anew(project)])
            yield from (TurnPart([op]) for op in stale)

    def _stored(self, project: str) -> Protection | None:
        """Return the stored protection; None if there is none or if it is damaged, so that it is written again."""
        path = self._place(project).record.path
        entry = self._context.mirror.get(path)
        try:
            body = blob.assemble(entry, self._context.mirror.under(path)) if entry is not None else b""
            return decode(body, Protection) if body else None
        except ValueError:
            return None

    def _read_anew(self, project: str) -> list[Op]:
        events, again = self._context.map.events, Reconfigure({project: ()})
        concerned = [tenant for tenant, projects in self._tenants.items() if project in projects]
        return [op for tenant in concerned for op in events.tenant(tenant).management.stream.append(again)]


def part_of(ref: str) -> str:
    """Return the name of the part that contains a ref."""
    # Two hex digits make 256 parts: among 100,000 tags, a new one rewrites a part of some 400.
    return hashlib.sha256(ref.encode()).hexdigest()[:2]


async def last_seen(context: Context, connection: str, project: str, ref: str) -> str:
    """Return the last seen target of a ref; empty if there was no such ref."""
    place = context.map.cache.connection(connection)
    if ref.startswith(HEADS):
        stored = await blob.read(context.store, place.branches.data.path)
        heads = place.branches.data.decode(stored).projects if stored else {}
        return heads.get(project, {}).get(ref, "")
    entry = context.mirror.get(place.refs(project).part(part_of(ref)).record.path)
    found = readable(entry, RefsSeen) if entry is not None else None
    return found.refs.get(ref, "") if found is not None else ""


def looked_at(context: Context, connection: str, project: str) -> bool:
    """Return whether a project has been checked; before that, its changes and refs are unknown."""
    return context.mirror.get(context.map.cache.connection(connection).refs(project).looked.path) is not None


class Refs:
    """Store the refs of one connection, in parts. The commit that writes a part also reports the updates in it, so that
    each update of a ref is reported once, even if a process dies."""

    def __init__(self, context: Context, connection: str) -> None:
        self._context, self._connection = context, connection
        self._place: ConnectionCache = context.map.cache.connection(connection)
        self.seen: dict[str, dict[str, str]] = {}
        """Project -> ref -> its last seen target. The mapping itself is never replaced."""
        self._parts: dict[tuple[str, str], dict[str, str]] = {}

    async def recall(self, guard: At) -> None:
        """Read the refs that the last leader stored. If a project has damaged records, forget all its refs: pushes in
        the meantime start nothing."""
        self.seen.clear()
        self._parts.clear()
        looked, found, damaged = set[str](), dict[str, dict[str, str]](), dict[str, Undecodable]()
        prefix = self._place.refs.inside("")
        for entry in await self._context.store.list(self._place.refs.path):
            name, _, part = entry.path.removeprefix(prefix).partition("/")
            project = unescape(name)
            refs = found.setdefault(project, {})
            try:
                if part:
                    refs |= self._place.refs(project).part(part).record.decode(entry.value).refs
                else:
                    looked.add(project)
            except Undecodable as error:
                damaged[project] = error
        # Without its mark, a first check was interrupted. If its refs stayed, the next check would mistake all others
        # for new tags and start pipelines for them.
        for project in found.keys() - looked | damaged.keys():
            await self._forget(project, damaged.get(project), guard)
        # Projects with damaged records are checked as if for the first time, so that their refs start nothing.
        self.saw({project: refs for project, refs in found.items() if project in looked - damaged.keys()})

    async def _forget(self, project: str, damaged: Undecodable | None, guard: At) -> None:
        """Delete the recorded refs of the project, because a record is `damaged` or a first check was interrupted."""
        store, pieces = self._context.store, list[TurnPart]()
        if damaged is not None:
            entry = await store.get(damaged.path)
            value, id = entry.value if entry is not None else b"", derived(damaged.path)
            aside = Quarantine(self._context).put(id, "record", damaged.path, damaged, value=value, tries=1)
            pieces.append(TurnPart(aside))
        path = self._place.refs(project).path
        for commit in packed([*pieces, *(TurnPart([Delete(one.path)]) for one in await store.list(path))]):
            await store.commit([], commit.ops, guards=[guard])

    def pieces(
        self, moved: Mapping[str, Mapping[str, str]], events: Iterable[TriggerEvent], tell: WriteEvents
    ) -> Iterator[TurnPart]:
        """Yield the parts that store the refs `moved` of a sighting, each with its `events`."""
        of = {(event.change.project, event.change.ref): event for event in events}
        for project, refs in moved.items():
            place, first = self._place.refs(project), project not in self.seen
            for part, names in sorted(_by_part(refs).items()):
                here, address = dict(self._parts.get((project, part), {})), place.part(part).record
                # A first check has no events, so only the size of its record matters.
                step = len(names) if first else EVENTS_MAX
                for some in (names[at : at + step] for at in range(0, len(names), step)):
                    _set(here, {ref: refs[ref] for ref in some})
                    record = address.put(RefsSeen(dict(sorted(here.items())))) if here else address.delete()
                    yield TurnPart([record, *tell(of[project, ref] for ref in some if (project, ref) in of)])
            if first:  # last, because it marks the first check as complete
                yield TurnPart([place.looked.put(RefsLooked(self._context.now_ms()))])

    def saw(self, moved: Mapping[str, Mapping[str, str]]) -> None:
        """Remember refs that were committed."""
        for project, refs in moved.items():
            _set(self.seen.setdefault(project, {}), refs)
            for part, names in _by_part(refs).items():
                _set(self._parts.setdefault((project, part), {}), {ref: refs[ref] for ref in names})


def _by_part(refs: Iterable[str]) -> dict[str, list[str]]:
    found = dict[str, list[str]]()
    for ref in sorted(refs):
        found.setdefault(part_of(ref), []).append(ref)
    return found


def _set(known: dict[str, str], refs: Mapping[str, str]) -> None:
    for ref, object in refs.items():
        if object:
            known[ref] = object
        else:
            known.pop(ref, None)

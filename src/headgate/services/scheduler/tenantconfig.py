"""Store the configuration that a tenant reads, and decide which parts of it take effect."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.assembly.inheritance import flattened, unreadable
from headgate.config.layout import Layout
from headgate.config.machines import FlatProvider
from headgate.config.model import ConfigError
from headgate.config.operator.model import Protection, TenantProject, content_of, included
from headgate.gate.state.change import HEADS, Change
from headgate.gate.state.works import CatAnswer, CatRequest, ReportRequest
from headgate.map.projects import layout_at
from headgate.map.records import ConfigBranch, ConfigRead, HeldConfiguration, LayoutRecord
from headgate.map.tree import Address, Undecodable, escape, unescape
from headgate.recipes import blob
from headgate.recipes.codec import readable
from headgate.recipes.lock import write_lock
from headgate.recipes.requestforms import Request
from headgate.services.configuration import Configuration, protection, stored_branches
from headgate.services.context import Context
from headgate.services.publisher import published_event
from headgate.services.scheduler.turn import TurnPart, packed
from headgate.store.store import GuardLost, Session, Txn
from headgate.store.types import At, Conflict, Delete, Entry, Op, Put

log = logging.getLogger("headgate.tenant")

NOTES_MAX = 20
"""Limit on the branches whose authors get a note because one read held back their configuration."""
ERRORS_MAX, NOTE_MAX = 10, 20_000
"""Limits on the errors and the characters of a note."""


class Reading(NamedTuple):
    """Describe how one project is read on behalf of all its tenants."""

    sources: tuple[TenantProject, ...]

    @property
    def work(self) -> CatRequest:
        first = self.sources[0]
        return CatRequest(first.project, first.connection, self._branches, self.paths)

    @property
    def _branches(self) -> tuple[str, ...]:
        """Return the branches to read; an empty tuple means all."""
        found = set[str]()
        for source in self.sources:
            if source.trusted:
                found.add(source.load_branch)
            elif source.exclude_unprotected_branches and source.protection and source.protection.protected is not None:
                found |= source.protection.protected
            else:
                return ()
        return tuple(sorted(found))

    def now(self, context: Context) -> Reading:
        """Return the settings for reading the project, given its forge's present branch protection."""
        return Reading(tuple(replace(source, protection=protection(context, source)) for source in self.sources))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for source in self.sources for path in source.config_paths))

    @property
    def way(self) -> str:
        """Return a digest that is equal only for equal readings."""
        return hashlib.sha256(repr(self.sources).encode()).hexdigest()[:16]

    def touched_by(self, files: tuple[str, ...] | None, branch: str) -> bool:
        """Return whether a change of these files (None: unknown) on this branch changes what any tenant reads."""
        return any(source.touches_config(files, branch) for source in self.sources)

    def wanted(self, answer: CatAnswer) -> Mapping[str, tuple[str, Mapping[str, str]]]:
        """Return branch -> (commit, path -> text), for each branch that a tenant reads."""
        return {
            branch: (commit, answer.files.get(branch, {}))
            for branch, commit in answer.branches.items()
            if any(included(source, branch) for source in self.sources)
        }


class Former:
    """Store texts of a project that layouts use although its branches have newer ones; see `services.configuration`."""

    def __init__(self, context: Context, project: str) -> None:
        self._mirror, self._map, self._project = context.mirror, context.map, project
        self._place = context.map.config.former(project)

    def saved(self, branch: str, digest: str) -> list[Op]:
        """Return operations that copy the texts of a branch that are about to be replaced, if a layout uses them."""
        if digest not in self._named():
            return []
        now, former = self._map.config.cache(self._project).branch(branch), self._place.content(digest)
        entries = (entry for entry in self._mirror.under(now.path) if now.holds(entry.path))
        pairs = [(former.inside(now.relative(entry.path)), entry.value) for entry in entries]
        # The directory name is the digest of the texts, so existing entries are identical.
        return [Put(path, value) for path, value in pairs if self._mirror.get(path) is None]

    def unnamed(self) -> list[Op]:
        """Return operations that delete former texts that no layout uses."""
        named = {escape(digest) for digest in self._named()}
        # Large texts have pieces below their entries, so entries are compared by the directory with the digest, not by
        # their parent.
        paths = (entry.path for entry in self._mirror.under(self._place.path))
        return [Delete(path) for path in paths if self._place.relative(path).partition("/")[0] not in named]

    def _named(self) -> set[str]:
        """Return the digests of the texts that tenants' layouts use."""
        tenants = (unescape(name) for name in self._mirror.names(self._map.layout.path))
        found = (layout_at(self._map.layout(tenant).record, self._mirror) for tenant in tenants)
        return {d for record in found if record is not None for d in record.branches.get(self._project, {}).values()}


class ConfigFileWriter:
    """Write configuration texts to the store, from which `services.configuration` reads them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def ltime(self) -> int:
        """Return a version later than every commit so far. Anything read from outside after this call is not older."""
        # Clocks of git servers and processes differ, so the version of an empty write serves as a logical time: it
        # orders reads among themselves and relative to everything else in the store.
        (entry,) = await self._context.store.commit([], [Put(self._context.map.ltime.path, b"")])
        assert entry is not None, "a put answers with its entry"
        return entry.version

    async def seen(self, guards: Sequence[At]) -> None:
        """Wait until the mirror shows every commit so far."""
        (entry,) = await self._context.store.commit([], [Put(self._context.map.ltime.path, b"")], guards=guards)
        assert entry is not None, "a put answers with its entry"
        await self._context.mirror.reached(entry.path, entry.version)

    def has(self, reading: Reading) -> bool:
        """Return whether the project was read with these settings."""
        read = self._known(reading, self._context.mirror.get(self._place(reading).path))
        return read is not None and read.way == reading.way

    async def miss(self, reading: Reading, ltime: int, guard: At) -> None:
        """Record that the project could not be read after `ltime`, so that the next reader tries again."""
        # An empty digest equals that of no reading, so `has` makes every reader try again.
        await self._mark(reading, ConfigRead("", ltime), guard)

    async def _mark(self, reading: Reading, read: ConfigRead, guard: At) -> None:
        """Mark the project as read, unless another process that started reading later has marked it."""
        place = self._place(reading)

        async def body(txn: Txn) -> None:
            entry = await txn.get(place.path)
            was = self._known(reading, entry)
            # A restored or migrated store has new versions: a mark whose time is not below its entry's version comes
            # from another store, and is ignored.
            if entry is None or was is None or not read.ltime < was.ltime < entry.version:
                txn.do(place.put(read))

        await self._context.store.transact(body, guards=[guard])

    def _place(self, reading: Reading) -> Address[ConfigRead]:
        return self._context.map.config.cache(reading.sources[0].project).read

    def _known(self, reading: Reading, entry: Entry | None) -> ConfigRead | None:
        """Return the mark; a damaged one counts as missing, so that the project is read again."""
        return readable(entry, ConfigRead) if entry is not None else None

    async def remember(self, session: Session, reading: Reading, answer: CatAnswer, ltime: int, guard: At) -> None:
        """Replace the stored texts of the project, branch by branch, with those read after `ltime`. Keep texts that
        another process read later."""
        if await self._replace(session, reading, answer, ltime, guard) and not self.has(reading):
            await self._mark(reading, ConfigRead(reading.way, ltime), guard)

    async def _replace(self, session: Session, reading: Reading, answer: CatAnswer, ltime: int, guard: At) -> bool:
        """Replace the stored texts. Return False if another process read some of them later."""
        ops, checks, latest = self._changes(reading, answer, ltime)
        # If no text has changed, only the records are written.
        if len(ops) == len(checks):
            try:
                await self._commit(ops, checks, [guard])
            except GuardLost:
                raise
            except Conflict:
                return False
            return latest
        # Tenants share these texts, and the comparison above was made without a lock. It is repeated after the mirror
        # shows the writes of the last holder of the lock.
        path = self._context.map.config.lock(reading.sources[0].project).lock.path
        async with write_lock(self._context.store, session, path).hold() as own:
            await self.seen([guard, own])
            ops, _, latest = self._changes(reading, answer, ltime)
            await self._commit(ops, [], [guard, own])
        return latest

    def _changes(self, reading: Reading, answer: CatAnswer, ltime: int) -> tuple[list[Op], list[At], bool]:
        """Return the writes, with each branch's record after its texts; checks of the current records; and whether
        nobody read any of the texts later."""
        mirror, root = self._context.mirror, self._context.map.config.cache(reading.sources[0].project)
        stale = {entry.path for entry in mirror.under(root.path)} - {root.read.path}
        ops, checks, latest = list[Op](), list[At](), True
        former, replaced = Former(self._context, reading.sources[0].project), list[Op]()
        for branch, (commit, files) in reading.now(self._context).wanted(answer).items():
            place = root.branch(branch)
            entry = mirror.get(place.record.path)
            stored = readable(entry, ConfigBranch) if entry is not None else None
            # A record that was migrated from another store may have a higher version, but was not read later.
            if entry is not None and stored is not None and ltime < stored.ltime < entry.version:
                latest = False
                stale = {path for path in stale if path != place.path and not place.holds(path)}
                continue
            if stored is not None and stored.digest != content_of(files):
                replaced += former.saved(branch, stored.digest)
            for path, text in files.items():
                wanted = [op for op in blob.ops(place.file(path).text.path, text.encode()) if isinstance(op, Put)]
                stale -= {op.path for op in wanted}
                ops += [op for op in wanted if not self._has(op)]
            stale.discard(place.record.path)
            default = branch == next(iter(answer.branches))
            ops.append(place.record.put(ConfigBranch(commit, reading.paths, content_of(files), ltime, default)))
            checks.append(At(place.record.path, entry.version if entry else None))
        # Copies of texts in use come first, deletions last: wherever a crash interrupts this, every digest that a
        # layout names is still stored, or its tenant reads again.
        return [*replaced, *ops, *(Delete(path) for path in sorted(stale))], checks, latest

    def _has(self, op: Put) -> bool:
        entry = self._context.mirror.get(op.path)
        return entry is not None and entry.value == op.value

    async def forget(self, session: Session, projects: Iterable[str]) -> None:
        """Delete the texts that no layout uses any longer."""
        for project in projects:
            former = Former(self._context, project)
            # Usually there is nothing to delete, and this check needs no lock. It is repeated under the lock, because a
            # layout may have started to use one.
            if not former.unnamed():
                continue
            path = self._context.map.config.lock(project).lock.path
            async with write_lock(self._context.store, session, path).hold() as own:
                await self._commit(former.unnamed(), [], [own])

    async def _commit(self, ops: list[Op], checks: list[At], guards: Sequence[At]) -> None:
        """Commit the operations in parts. `checks`, if any, has one for each of `ops`."""
        pieces = [TurnPart([op], checks[n : n + 1]) for n, op in enumerate(ops)]
        for commit in packed(pieces):
            await self._context.store.commit(commit.checks, commit.ops, guards=guards)


def provider_ops(context: Context, tenant: str, layout: Layout) -> list[Op]:
    """Return operations that bring the records of a tenant's providers up to date with its layout; none if they are.

    A provider with invalid values keeps its previous record.
    """
    places = context.map.nodes.providers(tenant)
    wanted = {places.provider(one.name).record.path: one for one in flattened(layout)}
    # An invalid value must not delete the provider's record, or launchers would delete its machines.
    stays = {places.provider(name).record.path for name in unreadable(layout)}
    paths = [entry.path for entry in context.mirror.under(places.path)]
    ops: list[Op] = [Delete(path) for path in paths if path not in wanted and path not in stays]
    for path, one in wanted.items():
        address = Address(path, FlatProvider)
        known = context.mirror.get(path)
        try:
            if known is not None and address.decode(known.value) == one:
                continue
        except Undecodable as damaged:
            log.error("tenant %s: %s; writing it again", tenant, damaged)
        ops.append(address.put(one))
    return ops


class InForce(NamedTuple):
    """Hold the contents of the next layout record."""

    branches: dict[str, dict[str, str]]
    held: dict[str, dict[str, HeldConfiguration]]
    protections: dict[str, Protection]


def in_force(
    context: Context, configuration: Configuration, before: LayoutRecord | None, projects: Mapping[str, object]
) -> InForce:
    """Return which stored content takes effect, and which is held back because of errors."""
    now = {project: stored_branches(context, project) for project in projects}
    branches = {project: {branch: one.digest for branch, one in found.items()} for project, found in now.items()}
    found_of = ((source.project, protection(context, source)) for source in configuration.tenant.projects)
    protections = {project: rules for project, rules in found_of if rules is not None}
    # Without earlier content that could stay in effect, even faulty content takes effect.
    if before is None:
        return InForce(branches, {}, protections)
    fresh = {p: dict(_fresh(found, before.branches.get(p, {}))) for p, found in branches.items()}
    held: dict[str, dict[str, HeldConfiguration]] = {}
    for project, branch in sorted(configuration.unfit(fresh, protections)):
        read, known = now[project][branch], before.held.get(project, {}).get(branch)
        # The same content keeps its time and commit, so that its author is informed only once.
        same = known is not None and known.digest == read.digest
        own = known if known is not None and same else HeldConfiguration(read.commit, read.digest, context.now_ms())
        held.setdefault(project, {})[branch] = own
        branches[project][branch] = before.branches[project][branch]
    return InForce(branches, held, protections)


def _fresh(now: Mapping[str, str], before: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    # A new branch removes nothing, whatever its errors, so it is never held back.
    return ((branch, digest) for branch, digest in now.items() if before.get(branch, digest) != digest)


def expected(record: LayoutRecord, project: str) -> dict[str, str]:
    """Return branch -> digest of the project's stored content when the record was made."""
    held = {branch: one.digest for branch, one in record.held.get(project, {}).items()}
    return {**record.branches.get(project, {}), **held}


def announcements(
    context: Context, configuration: Configuration, before: LayoutRecord | None, now: InForce
) -> list[TurnPart]:
    """Announce configuration that is now held back, or in effect again. Return the operations that notify others;
    repeating them changes nothing."""
    tenant, former = configuration.tenant, before.held if before is not None else {}
    for project, branches in former.items():
        for branch in branches:
            if branch not in now.held.get(project, {}):
                log.info("tenant %s: %s %s: its current configuration is in effect again", tenant.name, project, branch)
    pieces = list[TurnPart]()
    fresh = [
        (p, b, one) for p, found in now.held.items() for b, one in found.items() if former.get(p, {}).get(b) != one
    ]
    for number, (project, branch, one) in enumerate(fresh):
        text = "tenant %s: %s %s: the configuration in %s is not in effect, because it would remove existing objects"
        log.error(text, tenant.name, project, branch, one.commit[:12])
        source = tenant.by_canonical.get(project)
        # Somebody may push a faulty file to hundreds of branches; the log has them all.
        if source is None or number >= NOTES_MAX:
            continue
        change = Change(source.connection, project, branch, commit=one.commit, ref=f"{HEADS}{branch}")
        # The digest is part of the id: other content causes another note, a repeated read does not.
        id = derived("held", tenant.name, project, branch, one.digest)
        work = ReportRequest(change, f"tenant {tenant.name}", _note(configuration.wrong_with(project, branch)))
        meta = {"tenant": tenant.name, "pipeline": "", "change": change.id, "project": project}
        pieces.append(TurnPart(context.merges.submit(Request(id, meta=meta), msgspec.json.encode(work))))
        event = published_event("configuration-held", id, tenant.name, "", change, "", one.since_ms)
        pieces.append(TurnPart(context.published(replace(event, message=work.note))))
    return pieces


def _note(errors: tuple[ConfigError, ...]) -> str:
    """Return the note for the person who pushed the configuration."""
    shown = [error.render() for error in errors[:ERRORS_MAX]]
    more = [f"There are {len(errors) - ERRORS_MAX} more errors."] if len(errors) > ERRORS_MAX else []
    first = (
        "The configuration of this branch is not in effect: in its current form, it would remove existing objects. "
        "The branch's previous configuration stays in effect until the new one is fixed by a push or a landed change."
    )
    return "\n\n".join([first, *shown, *more])[:NOTE_MAX]

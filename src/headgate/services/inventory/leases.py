"""Grant leases on objects or parts of their capacity, in order, for a limited time, never beyond their capacity.

Every change of a lease is one commit that checks the ledger and writes it, so that it takes all existing leases into
account. Launchers grant leases on their machines (`launched`); any server grants all other leases.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from headgate.base.ids import fresh
from headgate.inventory import leases, names
from headgate.inventory.model import Caller
from headgate.map.places import Map
from headgate.services.inventory.errors import InventoryError, NotFound, PermissionDenied, Stale, Unmet
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.pool import Book, LeaseCandidate, LeaseChoice, Pool, book_of, marks, matching
from headgate.services.inventory.quotas import ObjectPast
from headgate.store.store import GuardLost
from headgate.store.types import At, Conflict, Delete, Op, Unavailable

log = logging.getLogger("headgate.inventory")

ATTEMPTS_MAX = 20
WAITING_MAX, ACTIVE_MAX = 20, 1_000
"""Limits on one user's waiting leases, and on all leases that wait or hold something."""
GIVE_UP_S = 24 * 3_600
"""Time for which a lease waits if its request does not set one."""
RETRY_S, RETRY_MAX_S = 1.0, 10.0
LOOK_INTERVAL_S = 0.2
"""Shortest interval between two checks of the leases, however much changes."""


class ObjectLeasing:
    """Grant leases, and end expired ones in `run()`. `inventory.journal.run()` must be running."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._places = inventory.places.leases
        self._store = inventory.facts.store
        self._past = ObjectPast(inventory.facts.store, inventory.places)
        self._book: Book | None = None
        self._pool, self._pool_at = Pool(inventory), -1
        """The pool with which the waiting leases were matched, valid until an object changes, and its revision."""

    # ---- requests

    async def ask(self, caller: Caller, wanted: leases.ObjectLease, *, wait_s: int = 0) -> leases.ObjectLease:
        """Request a lease and return it. It is granted immediately if possible; otherwise it waits for `wait_s` or
        GIVE_UP_S.

        Raise Invalid, PermissionDenied; Unmet if it can never be granted.
        """
        now_ms = self.inventory.clock()
        lease = leases.check(replace(
            wanted, id=fresh(), user=caller.user, project=caller.project, partition=caller.partition,
            requested_ms=now_ms, roles=tuple(sorted(caller.roles)), give_up_ms=now_ms + (wait_s or GIVE_UP_S) * 1_000,
        ))  # fmt: skip
        # Otherwise everybody would request the highest precedence.
        if lease.precedence < leases.PRECEDENCE and not caller.operator:
            raise PermissionDenied(f"only operators may request a precedence below {leases.PRECEDENCE}")
        await self._possible(lease)
        for _ in range(ATTEMPTS_MAX):
            book = await self.book()
            self._room(book, lease)
            if await self._write(book, lease) is not None:
                break
        else:
            raise Stale("leases change too fast for this one to be written; try again")
        await self.give()
        return (await self._own(caller, lease.id))[1]

    async def _possible(self, lease: leases.ObjectLease) -> None:
        """Refuse a lease that can never be granted. Raise Unmet."""
        # Refused immediately, because a request that a quota never allows would only fill the queue.
        for quota in (await self.book()).quotas:
            if leases.concerns(quota, lease) and (why := leases.within(quota, lease, (), (), 0)):
                raise Unmet(f"{why}: this lease can never be granted")
        pool = Pool(self.inventory)
        found = await pool.candidates(lease)
        if not found:
            raise Unmet(
                f"no object that you may see matches {lease.search!r} and has enough capacity; this lease can never be "
                "granted"
            )
        shares = [await pool.share(one.provider) if one.launched and one.provider else 1 for one in found]
        if not any(shares):
            raise Unmet(
                f"all matches of {lease.search!r} are reserved for builds: the property `leases` of their provider "
                "limits how many machines people may lease"
            )

    def _room(self, book: Book, lease: leases.ObjectLease) -> None:
        """Refuse a lease if there are too many. Raise Unmet."""
        if len(book.leases) >= ACTIVE_MAX:
            raise Unmet(f"there are {ACTIVE_MAX} leases, which is the limit; try again when some have ended")
        own = [one for one in book.leases.values() if one.user == lease.user]
        # All partitions share the limit: nobody may take the rest of it, of a capacity of their own for instance.
        if len(own) >= ACTIVE_MAX - len(book.leases):
            raise Unmet(f"{lease.user} has {len(own)} leases, at least as many as are left; end some of them first")
        if (waiting := sum(one.state == leases.WAITING for one in own)) >= WAITING_MAX:
            raise Unmet(f"{waiting} leases of {lease.user} are already waiting; end some of them first")

    async def listed(self, caller: Caller) -> list[tuple[leases.ObjectLease, int]]:
        """Return the leases that the caller may see, each with the number of leases before it: first the granted ones,
        then the queue."""
        book = await self.book()
        line = [one.id for one in book.line(self.inventory.clock())]
        held = sorted(book.taking, key=lambda one: (one.until_ms, one.id))
        found = [(one, 0) for one in held] + [(book.leases[id], ahead) for ahead, id in enumerate(line)]
        return [(one, ahead) for one, ahead in found if _visible(one, caller)]

    async def get(self, caller: Caller, id: str) -> tuple[leases.ObjectLease, int]:
        """Return the lease, and the number of leases before it. Raise NotFound."""
        book, lease = await self._own(caller, id)
        line = [one.id for one in book.line(self.inventory.clock())]
        return lease, line.index(lease.id) if lease.id in line else 0

    async def extend(self, caller: Caller, id: str, duration_s: int) -> leases.ObjectLease:
        """Make the lease end this long from now. Raise NotFound, PermissionDenied, Invalid; Unmet when a quota or
        waiting leases forbid it."""
        leases.check_duration(duration_s)
        for _ in range(ATTEMPTS_MAX):
            book, lease = await self._own(caller, id, change=True)
            if lease.state != leases.HELD:
                raise Unmet(f"lease {id} is {lease.state}; only a held lease can be extended")
            now_ms = self.inventory.clock()
            longer = replace(lease, until_ms=now_ms + duration_s * 1_000)
            if longer.until_ms > lease.until_ms:
                await self._may_be_longer(book, longer)
            if longer.until_ms - longer.begun_ms > leases.DURATION_MAX_S * 1_000:
                raise Unmet(f"a lease lasts at most {leases.DURATION_MAX_S // 86_400} days in total; request a new one")
            if await self._write(book, longer) is not None:
                return longer
        raise Stale("leases change faster than this one can be extended; try again")

    async def _may_be_longer(self, book: Book, longer: leases.ObjectLease) -> None:
        """Check that the lease may be extended. Raise Unmet."""
        now_ms = self.inventory.clock()
        if why := await self._beyond_quota(book, longer, now_ms):
            raise Unmet(why)
        pool = Pool(self.inventory)
        for other in book.line(now_ms):
            # Otherwise the holder could keep it forever.
            if longer.object in {one.object.uuid for one in await pool.candidates(other)}:
                raise Unmet(f"the lease cannot be extended, because others wait for {longer.name}; request a new lease")

    async def end(self, caller: Caller, id: str) -> leases.ObjectLease:
        """End the lease: return its object, or stop waiting. Raise NotFound, PermissionDenied."""
        for _ in range(ATTEMPTS_MAX):
            # Another server may grant the lease at this moment; then it is read again and ended as a held lease.
            book, lease = await self._own(caller, id, change=True)
            ended = await self._end(book, lease, f"ended by {caller.user}")
            if ended is not None:
                await self.give()
                return ended
        raise Stale("leases change faster than this one can be ended; try again")

    async def _own(self, caller: Caller, id: str, *, change: bool = False) -> tuple[Book, leases.ObjectLease]:
        book = await self.book()
        lease = book.leases.get(names.normal(id))
        if lease is None or not _visible(lease, caller):
            raise NotFound(f"there is no lease {id}, or it has ended")
        # Others in the project may see a lease, but only its user and operators may end it.
        if change and lease.user != caller.user and not caller.operator:
            raise PermissionDenied(f"lease {id} belongs to {lease.user}; only this user and operators may change it")
        return book, lease

    # ---- granting and ending

    async def book(self) -> Book:
        """Return the current leases, quotas and health."""
        return await book_of(self.inventory)

    async def run(self) -> None:
        """Grant and end leases, whenever something has changed or expired, until cancelled."""
        retry_s = RETRY_S
        while True:
            revision = self.inventory.journal.revision
            try:
                until_ms = await self._look()
            except (Unavailable, Conflict) as error:
                if retry_s == RETRY_S:
                    log.warning("leases are neither granted nor ended for now: %s", error)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)
                continue
            retry_s = RETRY_S
            # Each commit moves the revision, so without a pause a busy inventory would cause endless checks.
            await asyncio.sleep(LOOK_INTERVAL_S)
            wait_s = None if until_ms is None else max(0.0, (until_ms - self.inventory.clock()) / 1_000)
            try:
                async with asyncio.timeout(wait_s):
                    await self.inventory.journal.passed(revision)
            except TimeoutError:
                continue

    async def _look(self) -> int | None:
        """End expired leases and grant those that can be granted; return the time of the next expiry."""
        book = self._book
        ledger = await self._store.get(self._places.active.ledger.path)
        now_ms = self.inventory.clock()
        # The ledger is one small entry; all leases are read again only if it has changed.
        if book is None or book.at.version != (ledger.version if ledger else None):
            await self._past.trim(now_ms)
            book = await self.book()
        # One at a time, because ending a lease changes the ledger, which the commits of all others check.
        while (ending := _over(book, now_ms)) is not None:
            await self._end(book, *ending)
            book = await self.book()
        if book.line(now_ms):
            book = await self.give()
        self._book = book
        ends = [one.until_ms if one.state == leases.HELD else one.give_up_ms for one in book.leases.values()
                if one.state != leases.CLEANING]  # fmt: skip
        return min(ends, default=None)

    async def give(self) -> Book:
        """Grant, in order, the leases that launchers do not grant; return the book after that."""
        for _ in range(ATTEMPTS_MAX):
            if self._pool_at != self.inventory.journal.latest:
                self._pool, self._pool_at = Pool(self.inventory), self.inventory.journal.latest
            book, pool = await self.book(), self._pool
            busy: set[str] = set()
            for lease in book.line(self.inventory.clock()):
                choice = await self.choose(book, pool, lease, launched=False, busy=busy)
                if choice.candidate is None:
                    busy |= choice.reserved
                    continue
                given = await self.given(book, lease, choice.candidate)
                if given is None:
                    # Something that the choice depends on has changed, perhaps an object, so everything is read again.
                    self._pool_at = -1
                    break
                book = given
            else:
                return book
        return book

    async def choose(
        self, book: Book, pool: Pool, lease: leases.ObjectLease, *, launched: bool, busy: set[str]
    ) -> LeaseChoice:
        """Return the current choice for the lease. A lease that is refused, or exceeds a quota, does not delay
        others."""
        try:
            # Quotas are checked with the chosen object, because they may count the object's amounts.
            choice = await pool.choose(book, lease, launched=launched, busy=busy)
            if choice.candidate is not None:
                filled = self._filled(book, lease, choice.candidate)
                if why := await self._beyond_quota(book, filled, self.inventory.clock()):
                    return LeaseChoice(None, frozenset(), why)
            elif why := await self._beyond_quota(book, lease, self.inventory.clock()):
                return LeaseChoice(None, frozenset(), why)
            return choice
        except (InventoryError, names.Invalid) as error:
            return LeaseChoice(None, frozenset(), str(error))

    async def given(
        self, book: Book, lease: leases.ObjectLease, one: LeaseCandidate, *, guards: Sequence[At] = ()
    ) -> Book | None:
        """Grant the lease; return the book after that, or None if something that it depends on has changed."""
        record = self.inventory.places.objects.by_uuid(one.object.uuid).record.path
        claim = Map().nodes.claims(one.object.uuid).record.path
        now_ms = self.inventory.clock()
        held = replace(
            self._filled(book, lease, one), state=leases.HELD, begun_ms=now_ms,
            until_ms=now_ms + lease.duration_s * 1_000,
        )  # fmt: skip
        # A claim for a build does not write the ledger, so the absence of a claim is also checked.
        return await self._write(book, held, (At(record, one.generation), At(claim, None), *one.checks), guards=guards)

    def _filled(self, book: Book, lease: leases.ObjectLease, one: LeaseCandidate) -> leases.ObjectLease:
        """Return the lease with the object that it is about to get."""
        counts = tuple(quota.name for quota in book.quotas if quota.search and matching(quota, one.object))
        provider = {**one.provider.properties, "uuid": one.provider.uuid} if one.provider and one.launched else {}
        return replace(
            lease, object=one.object.uuid, name=one.object.name, counts=counts, properties=dict(one.full.properties),
            provider=provider,
        )  # fmt: skip

    async def _beyond_quota(self, book: Book, lease: leases.ObjectLease, now_ms: int) -> str:
        """Return a message about the quota that prevents the lease; empty if none does."""
        for quota in book.quotas:
            if leases.concerns(quota, lease):
                past = await self._past.since(now_ms - quota.window_hours * 3_600_000) if quota.hours else []
                if why := leases.within(quota, lease, book.taking, past, now_ms):
                    return why
        return ""

    async def _end(self, book: Book, lease: leases.ObjectLease, why: str) -> leases.ObjectLease | None:
        """End the lease; a launcher first cleans a machine that builds may use next. Return None if something has
        changed and the caller must try again."""
        now_ms = self.inventory.clock()
        # The launcher ends it once the machine is clean.
        if lease.state == leases.CLEANING:
            return lease
        # Builds may use the machine next, and must not find data that its user left there.
        if lease.state == leases.HELD and lease.provider:
            cleaning = replace(lease, state=leases.CLEANING, until_ms=now_ms, why=why)
            return cleaning if await self._write(book, cleaning) is not None else None
        return await self.over(book, replace(lease, why=why))

    async def over(
        self, book: Book, lease: leases.ObjectLease, *, guards: Sequence[At] = ()
    ) -> leases.ObjectLease | None:
        """End a lease; the record of it that quotas over time count stays. Return None if something has changed and the
        caller must try again."""
        now_ms = self.inventory.clock()
        ended = leases.ended(lease, book.quotas, now_ms)
        address = self._places.active.lease(lease.id).record
        checks = [book.at, At(address.path, book.entries[lease.id].version)]
        ops: list[Op] = [Delete(address.path)]
        if lease.begun_ms:
            ops.append(self._past.put(ended))
        # In one commit, the lease stops counting as held and starts counting for quotas over time.
        try:
            await self._store.commit(checks, [*ops, *marks(self.inventory)], guards=guards)
        except GuardLost:
            raise
        except Conflict:
            return None
        return ended

    async def _write(
        self, book: Book, lease: leases.ObjectLease, checks: Sequence[At] = (), *, guards: Sequence[At] = ()
    ) -> Book | None:
        """Write the change and return the book after that; None if something that it depends on has changed."""
        address = self._places.active.lease(lease.id).record
        before = book.entries.get(lease.id)
        own = At(address.path, before.version if before else None)
        try:
            entries = await self._store.commit(
                [book.at, own, *checks], [address.put(lease), *marks(self.inventory)], guards=guards
            )
        except GuardLost:
            raise
        except Conflict:
            # The changed entries may be cached definitions or types.
            self.inventory.facts.forget()
            return None
        written = {entry.path: entry for entry in entries if entry is not None}
        return book.with_lease(lease, written[address.path], written[self._places.active.ledger.path])


def _over(book: Book, now_ms: int) -> tuple[leases.ObjectLease, str] | None:
    """Return a lease that has expired or waited too long, with the reason."""
    for lease in book.leases.values():
        if lease.state == leases.HELD and lease.until_ms <= now_ms:
            return lease, "it has expired"
        if lease.state == leases.WAITING and lease.give_up_ms <= now_ms:
            return lease, "no object became available in time"
    return None


def _visible(lease: leases.ObjectLease, caller: Caller) -> bool:
    """Return whether the caller may see the lease: one of the caller's project or, for an operator, of the
    partition."""
    return lease.partition == caller.partition and (caller.operator or lease.project == caller.project)

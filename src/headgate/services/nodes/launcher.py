"""Claim machines for builds, prepare them, hand them over and clean them, in one process at a time.

All state is in the store, and the launcher only reconciles it: it cleans a claim whose request is gone, gives claims to
a request without any, and prepares claims that were not handed over.  Another launcher can therefore continue if this
one dies.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence

from msgspec.structs import replace

from headgate.base.tasks import end, run_until
from headgate.config.machines import FlatProvider
from headgate.inventory.leases import CLEANING, ObjectLease, level
from headgate.inventory.model import HOST_KEY, ProviderType
from headgate.inventory.names import Invalid
from headgate.map.inventory.nodes import NodeAnswer, NodeClaim, NodeWait
from headgate.ports.clouds import HOST_KEY_VARIABLE, Machine, MachineUnusable, Provider
from headgate.recipes.codec import readable
from headgate.recipes.lock import lock
from headgate.services.configuration import Tenants
from headgate.services.context import Context
from headgate.services.inventory.draft import Update
from headgate.services.inventory.errors import InventoryError, NotFound
from headgate.services.inventory.inventory import Inventory
from headgate.services.inventory.leases import ObjectLeasing
from headgate.services.inventory.pool import Book, HealthMonitor, Pool
from headgate.services.nodes.assignment import Assigned, Assigning, NodesLater, NodesRefused
from headgate.services.nodes.ledger import explained, with_tries
from headgate.services.nodes.machines.maker import MachineMaker
from headgate.services.nodes.machines.records import is_made, providers
from headgate.services.nodes.probes import Probing
from headgate.services.nodes.search import KINDS, LAUNCHER, MachineFinder, keep_slots
from headgate.services.nodes.status import NodeState, WaitingRequest, node_state
from headgate.services.quarantine import tended
from headgate.store.store import GuardLost, Session
from headgate.store.types import At, Conflict, Op, TooLarge

log = logging.getLogger("headgate.launcher")

AVOIDED_S = 60.0
"""Time for which a machine that could not be prepared or cleaned is avoided."""
WHY_MAX = 200
"""Limit on the stored characters of a failure."""
ATTEMPTS_MAX = 3
"""Limit on the attempts to prepare machines for one request."""


class Launcher:
    """Launch with `run`, the body of the component; `inventory.journal.run()` must be running."""

    def __init__(
        self,
        context: Context,
        inventory: Inventory,
        tenants: Tenants,
        providers: Mapping[str, Provider],
        *,
        probe_interval_s: float = 60.0,
        making: Callable[[At], MachineMaker] | None = None,
    ) -> None:
        """Set up the launcher. `providers`: by their type; `probe_interval_s`: seconds between probes of machines
        without their own interval, 0: these are not probed; `making`: returns the maker of machines for a guard."""
        self.context, self.inventory, self.tenants, self.providers = context, inventory, tenants, providers
        self._probe_interval_s, self._making = probe_interval_s, making

    async def run(self, session: Session) -> None:
        # Providers of machines name these types, which a new inventory lacks.
        known = {one.code for one in await self.inventory.admin.provider_types()}
        for kind, what in KINDS.items():
            if kind not in known:
                await self.inventory.admin.set_provider_type(LAUNCHER, ProviderType(kind, what))
        async with lock(self.context.store, session, self.context.map.nodepool.path).hold() as guard:
            term = LauncherTerm(self, guard)

            async def probed(_: Session) -> None:
                await Probing(self.inventory, self.providers, self._probe_interval_s, term.taken, guard).run()

            async def made(_: Session) -> None:
                if self._making is not None:
                    await self._making(guard).run()

            # A defect in one of these must not prevent builds from getting machines of the inventory.
            works = {"the probes of machines": probed, "the making of machines": made}
            beside = [tended(self.context, what, run, session) for what, run in works.items()]
            await run_until(asyncio.Event(), term.run(), *beside)


class LauncherTerm:
    """Launch while this process is the elected launcher."""

    def __init__(self, launcher: Launcher, guard: At) -> None:
        self._launcher, self._guard = launcher, guard
        self._context, self._inventory = launcher.context, launcher.inventory
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._avoided: dict[str, float] = {}
        """Machine -> time until which it is avoided, in the loop's time."""
        self._attempts: dict[str, int] = {}
        self._leasing, self._healths = ObjectLeasing(launcher.inventory), HealthMonitor(launcher.inventory)
        self._book, self._pool = Book(At("", None)), Pool(launcher.inventory)
        self._finding, self._revision = MachineFinder(launcher.inventory), -1
        """Results of the last search of the inventory, and its revision."""

    async def run(self) -> None:
        try:
            while True:
                seen, revision = self._context.mirror.moves, self._inventory.journal.revision
                await self._look()
                await self._wait(seen, revision)
        finally:
            await end(*self._tasks.values())

    def taken(self) -> set[str]:
        """Return the machines that builds and people use, as far as this process knows."""
        # Probes call this at every step, so it does not read the inventory.
        claims = self._context.mirror.under(self._context.map.nodes.claims.path)
        return {*self._book.taken, *(entry.path.rpartition("/")[2] for entry in claims)}

    async def _look(self) -> None:  # noqa: C901 - one rule after the other
        # An error of a task ends the term; its successor reconciles again, so nothing must be undone.
        for key in [key for key, task in self._tasks.items() if task.done()]:
            self._tasks.pop(key).result()
        revision = self._inventory.journal.revision
        # Reading all slots and leases is expensive, and they change only with the inventory.
        if revision != self._revision:
            await keep_slots(self._inventory)
            self._book, self._pool = await self._leasing.book(), Pool(self._inventory)
            self._finding, self._revision = MachineFinder(self._inventory), revision
        now = node_state(self._context.map, self._context.mirror, self._context.now_ms())
        self._attempts = {id: count for id, count in self._attempts.items() if id in now.requests}
        for machine, held in now.claims.items():
            wanted = held.claim.request in now.requests or held.claim.request in now.held
            if not wanted or held.claim.state == "cleaning":
                self._begin(f"clean {machine}", self._clean(held.claim, held.at))
        for lease in self._book.taking:
            if lease.state == CLEANING:
                self._begin(f"clean lease {lease.id}", self._clean_lease(lease))
        for path in now.answers_left:
            await self._commit([], [path.delete()])
        for id in set(self._context.mirror.names(self._context.map.nodes.waits.path)) - now.requests:
            await self._commit([], [self._context.map.nodes.waits(id).record.delete()])
        for waiting in now.waiting:
            if waiting.claimed:
                self._begin(f"prepare {waiting.request.id}", self._prepare(waiting))
        await self._assign(now)

    async def _assign(self, now: NodeState) -> None:  # noqa: C901 - one rule after the other
        """Assign machines in order: requests of builds and leases of people share one queue, and later ones do not take
        machines that an earlier one waits for."""
        loop, now_ms = asyncio.get_running_loop(), self._context.now_ms()
        self._avoided = {machine: until for machine, until in self._avoided.items() if until > loop.time()}
        avoided = {*self._avoided, *self._book.taken, *self._book.aside}
        assigning = Assigning(self._launcher.tenants(), self._finding, now, avoided, self._book.broken)

        def place(one: WaitingRequest | ObjectLease) -> tuple[int, int]:
            request = one.request if isinstance(one, WaitingRequest) else one
            return level(request.precedence, request.requested_ms, now_ms), request.requested_ms

        made = providers(self._context.map, self._context.mirror)
        lines: list[Sequence[WaitingRequest | ObjectLease]] = [now.waiting, self._book.line(now_ms)]
        for waiting in heapq.merge(*lines, key=place):
            if isinstance(waiting, ObjectLease):
                await self._lease(waiting, assigning)
                continue
            if self._is_made(waiting, made):
                continue
            if waiting.claimed or waiting.cleaning:
                done = "prepared for it" if waiting.claimed else "cleaned after an earlier attempt"
                await self._explain(waiting, f"machines of the inventory are being {done}")
                continue
            match await assigning.assign(waiting):
                case Assigned(claims, checks):
                    # All claims of a request are in one commit, or another request could get some of its machines.
                    try:
                        await self._claim(waiting, claims, checks)
                    except TooLarge as error:
                        why = f"its {len(claims)} machines cannot be claimed in one commit: {error}"
                        await self._answer(waiting, NodeAnswer(waiting.request.id, error=why), [])
                # Somebody may have added machines after the search, and a refusal is final, so it must be based on the
                # present state.
                case NodesRefused(why) if await self._seen_all():
                    await self._answer(waiting, NodeAnswer(waiting.request.id, error=why), [])
                case NodesLater(why):
                    await self._explain(waiting, why)
                case NodesRefused():
                    pass

    def _is_made(self, waiting: WaitingRequest, made: Mapping[str, list[FlatProvider]]) -> bool:
        """Return whether the request wants machines that are created on demand, which are not handled here."""
        tenant = self._launcher.tenants().get(waiting.request.tenant)
        return tenant is not None and is_made(waiting.request, tenant.labels, made.get(tenant.name, []))

    async def _explain(self, waiting: WaitingRequest, why: str, tried: Sequence[str] = ()) -> None:
        """Record why the request waits, and its failures, if that has changed."""
        place = self._context.map.nodes.waits(waiting.request.id).record
        entry = self._context.mirror.get(place.path)
        known = readable(entry, NodeWait) if entry is not None else None
        wait = with_tries(explained(known, waiting.request.id, why, self._context.now_ms()), tried)
        if wait != known:
            await self._commit([waiting.at, At(place.path, entry.version if entry else None)], [place.put(wait)])

    async def _lease(self, lease: ObjectLease, assigning: Assigning) -> None:
        """Grant a person's lease on one of the machines for builds."""
        choice = await self._leasing.choose(
            self._book, self._pool, lease, launched=True, busy=assigning.taken | assigning.reserved
        )
        if choice.candidate is None:
            assigning.taken.update(choice.reserved)
            return
        given = await self._leasing.given(self._book, lease, choice.candidate, guards=[self._guard])
        # Another process wrote the leases; the next check reads them again.
        if given is None:
            self._revision = -1
            return
        log.info("lease %s of %s: %s", lease.id, lease.user, choice.candidate.object.name)
        assigning.taken.add(choice.candidate.object.uuid)
        self._book = given

    async def _seen_all(self) -> bool:
        """Return whether this check used the inventory's present state; if not, wait until the next check can."""
        now = await self._inventory.journal.now()
        if now != self._revision:
            await self._inventory.journal.wait_for(now)
        return now == self._revision

    async def _claim(self, waiting: WaitingRequest, claims: list[NodeClaim], machines: list[At]) -> None:
        """Claim all machines, or none if one of them is in use."""
        addresses = [self._context.map.nodes.claims(claim.machine).record for claim in claims]
        # The commit checks the version of the leases' ledger, so that no machine is claimed and leased at the same
        # time.
        checks = [waiting.at, self._book.at, *machines, *(At(address.path, None) for address in addresses)]
        puts: list[Op] = [address.put(claim) for address, claim in zip(addresses, claims, strict=True)]
        if await self._commit(checks, puts):
            log.info("request %s: %s", waiting.request.id, ", ".join(claim.name for claim in claims))

    async def _prepare(self, waiting: WaitingRequest) -> None:
        request = waiting.request
        found = await asyncio.gather(*(self._prepared(one.claim) for one in waiting.claims), return_exceptions=True)
        hosts, wrong, keys = {}, list[str](), dict[str, str]()
        for one, answer in zip(waiting.claims, found, strict=True):
            if isinstance(answer, MachineUnusable):
                wrong.append(str(answer))
                # The machine may be the cause, so others are tried first.
                self._avoid(one.claim.machine)
                await self._healths.heard(one.claim.machine, str(answer)[:WHY_MAX])
            elif isinstance(answer, BaseException):
                raise answer
            else:
                hosts[one.claim.node] = answer
                if one.claim.machine in self._book.health:
                    await self._healths.heard(one.claim.machine, "")
                keys[one.claim.machine] = str(answer.get(HOST_KEY_VARIABLE, ""))
        if not wrong:
            await self._answer(waiting, NodeAnswer(request.id, hosts), self._marked(waiting, "ready", keys))
            return
        log.warning("request %s: %s", request.id, "; ".join(wrong))
        await self._explain(waiting, "machines of the inventory could not be prepared", wrong)
        self._attempts[request.id] = self._attempts.get(request.id, 0) + 1
        # All machines are returned, including the prepared ones, because the next attempt may choose other ones.
        back = self._marked(waiting, "cleaning", keys)
        if self._attempts[request.id] >= ATTEMPTS_MAX:
            await self._answer(waiting, NodeAnswer(request.id, error="; ".join(wrong)), back)
        else:
            await self._commit([one.at for one in waiting.claims], back)

    async def _prepared(self, claim: NodeClaim) -> dict[str, object]:
        """Return the machine's data for a build; record the key of the machine if it is new. Raise MachineUnusable."""
        provider = self._launcher.providers.get(claim.provider.get("kind", ""))
        if provider is None:
            raise MachineUnusable(f"there is no provider for machine {claim.name}")
        known = {"label": claim.label, "provider": claim.properties.get("provider", ""), "external_id": claim.machine}
        prepared = await provider.prepare(_machine(claim))
        key = str(prepared.get(HOST_KEY_VARIABLE, ""))
        # Trust on first use: the first key is recorded, so that a man in the middle cannot impersonate the machine
        # later.
        if key and not claim.properties.get(HOST_KEY):
            await self._learn(claim, key)
        return {**prepared, "headgate_machine": claim.name, "nodepool": known}

    async def _learn(self, claim: NodeClaim, key: str) -> None:
        """Record the machine's key, which identifies it from now on, if the machine still exists. Raise
        MachineUnusable."""
        caller = replace(LAUNCHER, partition=claim.partition)
        try:
            await self._inventory.apply(caller, [Update(claim.machine, set_properties={HOST_KEY: key})])
        except NotFound:
            pass  # the machine was deleted in the meantime, so this is its last build
        except (InventoryError, Invalid) as error:
            raise MachineUnusable(f"{claim.name}: its key cannot be recorded as {HOST_KEY}: {error}") from error

    async def _clean(self, claim: NodeClaim, at: At) -> None:
        provider = self._launcher.providers.get(claim.provider.get("kind", ""))
        try:
            if provider is not None:
                await provider.clean(_machine(claim))
        except MachineUnusable as error:
            log.warning("machine %s is not clean, trying again in %.0f s: %s", claim.name, AVOIDED_S, error)
            # An unclean machine is not given away; its claim stays, so that the next check cleans it again.
            await asyncio.sleep(AVOIDED_S)
            return
        await self._commit([at], [self._context.map.nodes.claims(claim.machine).record.delete()])

    async def _clean_lease(self, lease: ObjectLease) -> None:
        """Make the machine of an ended lease ready for others."""
        provider = self._launcher.providers.get(lease.provider.get("kind", ""))
        try:
            if provider is not None:
                await provider.clean(Machine(lease.name, lease.properties, lease.provider, lease.id))
        except MachineUnusable as error:
            log.warning("machine %s is not clean, trying again in %.0f s: %s", lease.name, AVOIDED_S, error)
            await asyncio.sleep(AVOIDED_S)
            return
        # All leases share one ledger, so a concurrent write makes this fail; retry until the lease is gone.
        while (left := (book := await self._leasing.book()).leases.get(lease.id)) is not None:
            if await self._leasing.over(book, left, guards=[self._guard]) is not None:
                return

    def _marked(self, waiting: WaitingRequest, state: str, keys: Mapping[str, str]) -> list[Op]:
        """Return operations that set the claims to `state`; `keys` maps machines to the keys that they just
        presented."""
        claims = [one.claim.now(state, keys.get(one.claim.machine, "")) for one in waiting.claims]
        return [self._context.map.nodes.claims(claim.machine).record.put(claim) for claim in claims]

    async def _answer(self, waiting: WaitingRequest, answer: NodeAnswer, more: list[Op]) -> None:
        put = self._context.map.nodes.answers(waiting.request.id).record.put(answer)
        await self._commit([waiting.at, *(one.at for one in waiting.claims)], [put, *more])

    async def _commit(self, checks: list[At], ops: list[Op]) -> bool:
        """Commit under our lock, and wait until the mirror shows the result.  Return False if something has changed in
        the meantime; the next check handles that.  Raise GuardLost."""
        try:
            written = await self._context.store.commit(checks, ops, guards=[self._guard])
        except GuardLost:
            raise
        except Conflict:
            self._revision = -1
            return False
        for op, entry in zip(ops, written, strict=True):
            if entry is not None:
                await self._context.mirror.reached(entry.path, entry.version)
            elif not hasattr(op, "value"):
                await self._context.mirror.gone(op.path)
        return True

    def _avoid(self, machine: str) -> None:
        self._avoided[machine] = asyncio.get_running_loop().time() + AVOIDED_S

    def _begin(self, key: str, work: Coroutine[None, None, None]) -> None:
        """Start the work unless work with this key is running."""
        if key in self._tasks:
            # Closing the unused coroutine avoids a warning that it was never awaited.
            work.close()
        else:
            self._tasks[key] = asyncio.ensure_future(work)

    async def _wait(self, seen: int, revision: int) -> None:
        """Wait until the requests or the inventory change, work ends, or an avoided machine may be tried again."""
        until = min(self._avoided.values(), default=None)
        loop = asyncio.get_running_loop()
        moved = asyncio.ensure_future(self._context.mirror.moved(seen))
        changed = asyncio.ensure_future(self._inventory.journal.passed(revision))
        waits: list[asyncio.Future[object]] = [moved, changed, *self._tasks.values()]  # type: ignore[list-item]  # of anything
        try:
            await asyncio.wait(
                waits,
                timeout=None if until is None else max(0.0, until - loop.time()),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            await end(moved, changed)


def _machine(claim: NodeClaim) -> Machine:
    return Machine(claim.name, claim.properties, claim.provider, claim.request)

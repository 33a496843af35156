"""Hold the files and machines of failed builds, on executors, until a scheduler marks the hold as expired.

The store alone determines what is held at any moment. Executors and launchers reconcile their state with it, so none of
them needs to remember anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta

from headgate.gate.state.autohold import RESULTS, HeldBuild, HoldRequest, chosen
from headgate.gate.state.works import BuildSpec
from headgate.map.inventory.nodes import NodeRequest
from headgate.map.places import Map
from headgate.ports.work import BuildHolding
from headgate.recipes.claims import Claim
from headgate.recipes.codec import readable
from headgate.recipes.mirror import Mirror
from headgate.recipes.patience import answered
from headgate.services.context import Context
from headgate.store.store import GuardLost, Session
from headgate.store.types import At, Conflict, Entry, StoreError, Unavailable

log = logging.getLogger("headgate.autohold")

ATTEMPTS_MAX = 16
"""Limit on the attempts to write a request that other processes also write."""
RETRY_S = 1.0
WAIT_MAX_S = 3_600.0
"""Longest wait before the clock is checked again."""


def hold_requests(map: Map, mirror: Mirror) -> list[HoldRequest]:
    """Return the readable requests, oldest first."""
    return _read(mirror.under(map.hold_requests.path))


def held_builds(requests: Iterable[HoldRequest]) -> list[HeldBuild]:
    """Return the currently held builds."""
    return [one for request in requests for one in request.builds if not one.over]


async def held_in_store(context: Context) -> set[str]:
    """Return the ids of held builds from the store, not from a mirror; wait until the store answers."""
    # When it starts, an executor deletes everything that is not held, so an empty answer from a mirror that is not yet
    # filled would delete held builds.
    while True:
        try:
            found = await context.store.list(context.map.hold_requests.path)
        except Unavailable as away:
            log.warning("the held builds cannot be read yet: %s", away)
            await asyncio.sleep(RETRY_S)
        else:
            return {one.build for one in held_builds(_read(found))}


def _read(entries: Iterable[Entry]) -> list[HoldRequest]:
    found = (readable(entry, HoldRequest) for entry in entries)
    return sorted((one for one in found if one is not None), key=lambda one: one.id)


class BuildHolder:
    """Hold the resources of failed builds of one executor: at most `builds_max` builds, with `keeper` to preserve
    them."""

    def __init__(self, context: Context, keeper: BuildHolding | None, builds_max: int) -> None:
        """Make a holder; without `keeper`, nothing is held."""
        self._context, self._keeper, self._builds_max = context, keeper, builds_max
        self._taking = asyncio.Lock()

    async def run(self) -> None:
        """Release what is no longer held, until cancelled."""
        with self._context.mirror.part(self._context.map.hold_requests.path) as requests:
            while True:
                seen = requests.moves
                await self._keep()
                await requests.moved(seen)

    async def _keep(self) -> None:
        if self._keeper is not None:
            builds = held_builds(hold_requests(self._context.map, self._context.mirror))
            # With a node request, the launcher keeps the machines; the keeper preserves only the executor's own.
            own = [one for one in builds if one.executor == self._context.settings.hostname and not one.request]
            await self._keeper.keep([one.build for one in builds], [name for one in own for name in one.machines])

    async def take(
        self, claim: Claim, spec: BuildSpec, result: str | None, directory: str, machines: Sequence[str]
    ) -> str:
        """Hold a build; see `ports.work.Contact.hold`."""
        # A manually started build belongs to no buildset, so no autohold applies to it.
        if self._keeper is None or claim.request.waited or result not in RESULTS:
            return ""
        # One at a time, or several builds that end together would exceed the limit.
        async with self._taking:
            return await self._held(claim, spec, directory, machines)

    async def _held(self, claim: Claim, spec: BuildSpec, directory: str, machines: Sequence[str]) -> str:
        if self._chosen(spec) is None:
            return ""
        held = held_builds(hold_requests(self._context.map, self._context.mirror))
        if sum(one.executor == self._context.settings.hostname for one in held) >= self._builds_max:
            return (
                f"It is not held although an autohold request matches it: this executor already holds "
                f"{self._builds_max} builds ([executor] held_builds_max)"
            )
        try:
            return await self._taken(claim, spec, directory, machines)
        except StoreError as error:
            log.warning("build %s is not held: %s", spec.build, error)
            return ""

    def _chosen(self, spec: BuildSpec) -> HoldRequest | None:
        requests = hold_requests(self._context.map, self._context.mirror)
        return chosen(requests, spec.tenant, spec.job.name, (spec.change, *spec.also))

    def _naming(self, build: str) -> HoldRequest | None:
        """Return the request that already names the build, if any: the answer to an earlier commit may have been
        lost."""
        requests = hold_requests(self._context.map, self._context.mirror)
        return next((one for one in requests if any(held.build == build for held in one.builds)), None)

    async def _taken(self, claim: Claim, spec: BuildSpec, directory: str, machines: Sequence[str]) -> str:
        """Record the hold of the build. Return its description, or an empty string if no request matches. Raise
        StoreError."""
        context = self._context
        node_request = next((one for one in _node_requests(context) if one.build == spec.build), None)
        # The names of the nodes do not identify machines to people; the launcher's names do.
        if node_request is not None:
            machines = [str(host.get("headgate_machine", node)) for node, host in spec.hosts.items()]
        for _ in range(ATTEMPTS_MAX):
            if (request := self._naming(spec.build) or self._chosen(spec)) is None:
                return ""
            until_ms = context.now_ms() + request.expiration_s * 1000
            build = HeldBuild(
                spec.build,
                context.settings.hostname,
                directory,
                until_ms,
                tuple(machines),
                node_request.id if node_request else "",
            )
            if await self._written(claim, request, build):
                await self._keep()
                log.info("build %s is held by %s until %s", spec.build, request.id, until_ms)
                return _description(request, build)
        return ""

    async def _written(self, claim: Claim, request: HoldRequest, build: HeldBuild) -> bool:
        """Return whether the hold is recorded and the mirror shows it; False if the request has changed in the
        meantime. Raise StoreError."""
        context, place = self._context, self._context.map.hold_requests(request.id).record
        entry = await answered(claim.session, lambda: context.store.get(place.path))
        known = readable(entry, HoldRequest) if entry is not None else None
        if entry is None or known is None:
            await _seen(context.mirror, place.path, entry)
            return False
        if all(one.build != build.build for one in known.builds):
            # Other builds have used up its count in the meantime.
            if known.expired_ms:
                await _seen(context.mirror, place.path, entry)
                return False
            check, put = At(entry.path, entry.version), place.put(known.holding(build, context.now_ms()))
            try:
                written = await answered(
                    claim.session, lambda: context.store.commit([check], [put], guards=[claim.guard])
                )
            except GuardLost:
                raise
            except Conflict as moved:
                log.debug("%s", moved)
                # The mirror may lag behind the write that caused the conflict; the next attempt must see it.
                entry = await answered(claim.session, lambda: context.store.get(place.path))
                await _seen(context.mirror, place.path, entry)
                return False
            entry = written[0]
        await _seen(context.mirror, place.path, entry)
        return True


def _node_requests(context: Context) -> Iterable[NodeRequest]:
    found = (readable(entry, NodeRequest) for entry in context.mirror.under(context.map.nodes.requests.path))
    return (one for one in found if one is not None)


def _description(request: HoldRequest, build: HeldBuild) -> str:
    why = f" ({request.reason})" if request.reason else ""
    machines = f"; machines: {', '.join(build.machines)}" if build.machines else ""
    return (
        f"Held for autohold {request.id}{why} for {timedelta(seconds=request.expiration_s)}: "
        f"{build.directory} on {build.executor}{machines}"
    )


class Expiring:
    """Mark expired holds for release, and delete finished requests. Several processes may do so at the same time."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def run(self, session: Session) -> None:
        """Expire holds until cancelled. Raise SessionLost."""
        context = self._context
        with context.mirror.part(context.map.hold_requests.path) as part:
            while True:
                seen = part.moves
                requests = hold_requests(context.map, context.mirror)
                for request in requests:
                    await self._expire(session, request)
                await part.moved_within(self._wait_s(requests), seen)

    def _wait_s(self, requests: list[HoldRequest]) -> float | None:
        """Return the seconds until the next hold expires; None if none does."""
        soonest = min((moment for one in requests if (moment := one.next_ms) is not None), default=None)
        return None if soonest is None else min(WAIT_MAX_S, max(0.0, (soonest - self._context.now_ms()) / 1000))

    async def _expire(self, session: Session, request: HoldRequest) -> None:
        context, place = self._context, self._context.map.hold_requests(request.id).record
        # Only the entry that was read may be replaced, because executors add builds to it.
        entry, left = context.mirror.get(place.path), request.at(context.now_ms())
        if entry is None or left == request:
            return
        check, op = At(entry.path, entry.version), place.delete() if left is None else place.put(left)
        try:
            (now,) = await answered(session, lambda: context.store.commit([check], [op]))
        except Conflict as moved:
            log.debug("%s", moved)
            now = await answered(session, lambda: context.store.get(place.path))
        await _seen(context.mirror, place.path, now)


async def _seen(mirror: Mirror, path: str, entry: Entry | None) -> None:
    """Wait until the mirror shows the entry in the store's version, or no longer shows it."""
    with mirror.part(path) as part:
        while (shown := mirror.get(path)) is not None and (entry is None or shown.version < entry.version):
            await part.moved(part.moves)

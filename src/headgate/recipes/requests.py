"""Let one process request work that another performs; only one worker at a time performs a request.

A request is small; its parameters are stored next to it. A worker claims it with a lock of its own session: when the
worker dies, the lock disappears and another worker may claim the request. The answer and the end of the request are one
commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.base.ids import fresh
from headgate.recipes import blob
from headgate.recipes.claims import Claim
from headgate.recipes.codec import decode, encode, readable
from headgate.recipes.mirror import Mirror
from headgate.recipes.patience import answered
from headgate.recipes.requestforms import NOBODY, Open, Owner, Request, RequestPlaces
from headgate.store.store import Session, Store
from headgate.store.types import At, Conflict, Delete, Entry, Op, Put


@dataclass(frozen=True, slots=True)
class Requests:
    """Handle one queue of requests: submit them, find open ones, claim them, and remove what is left of them."""

    store: Store
    places: RequestPlaces
    _decoded: dict[str, tuple[int, Request]] = field(default_factory=dict)

    # --- the submitter

    def submit(self, request: Request, params: bytes) -> list[Op]:
        """Return the operations that submit a request, for the submitter's own commit: parameters and request appear
        together."""
        return [
            *blob.ops(self._of(self.places.params, request.id), params),
            Put(self._path(request.id), encode(request)),
        ]

    @staticmethod
    def cancel(found: Open) -> tuple[list[At], list[Op]]:
        """Return the checks and operations that cancel a request, for the submitter's own commit: delete it if no
        worker runs it, otherwise ask its worker to stop."""
        check, id = At(found.entry.path, found.entry.version), found.request.id
        if not found.locked:
            # Nobody runs it, or its worker died. If another worker claims it at this moment, a check fails.
            unclaimed = At(f"{found.places.locks}/{id}", None)
            return [check, unclaimed], [Delete(found.entry.path), Delete(f"{found.places.params}/{id}")]
        return [check], [Put(found.entry.path, encode(replace(found.request, wanted="cancel")))]

    @staticmethod
    def resume(found: Open) -> tuple[At, Op]:
        """Return the check and operation that let a paused request continue, for the submitter's own commit."""
        # A cancellation is final: a resumption that was decided earlier must not undo it.
        wanted = found.request.wanted if found.request.wanted == "cancel" else "resume"
        resumed = replace(found.request, wanted=wanted)
        return At(found.entry.path, found.entry.version), Put(found.entry.path, encode(resumed))

    # --- the worker

    def open(self, mirror: Mirror) -> list[Open]:
        """Return every request that can be read, oldest first."""
        found = (self._open(entry, mirror) for entry in mirror.under(self.places.requests))
        return [one for one in found if one is not None]

    async def listed(self, id: str = "") -> list[Open]:
        """Return every request, or only the one named `id`, from the store itself, which may be ahead of the mirror."""
        places = self.places
        entries = await self.store.list(self._of(places.requests, id) if id else places.requests)
        locks = {entry.path for entry in await self.store.list(self._of(places.locks, id) if id else places.locks)}
        found = [(entry, one) for entry in entries if (one := self._readable(entry)) is not None]
        return [Open(e, r, self._of(places.locks, r.id) in locks, places) for e, r in found]

    def find(self, id: str, mirror: Mirror) -> Open | None:
        entry = mirror.get(self._path(id))
        return None if entry is None else self._open(entry, mirror)

    def _open(self, entry: Entry, mirror: Mirror) -> Open | None:
        if (request := self._readable(entry)) is None:
            return None
        return Open(entry, request, mirror.get(self._of(self.places.locks, request.id)) is not None, self.places)

    def left(self, mirror: Mirror) -> dict[str, list[Entry]]:
        """Return leftovers, path -> entries to remove: results that nobody waits for, with their parameters, and
        cancelled requests whose workers died, because perhaps no other worker ever takes them."""
        found: dict[str, list[Entry]] = {}
        for place in (self.places.params, self.places.result_data, self.places.results):
            for entry in mirror.under(place):
                name = entry.path.removeprefix(f"{place}/").split("/")[0]
                found.setdefault(name, []).append(entry)
        wanted = (self.places.requests, self.places.waiters)
        dead = (one for one in self.open(mirror) if one.request.wanted == "cancel" and not one.locked)
        return {one.entry.path: [one.entry] for one in dead} | {
            self._of(self.places.result_data, name): entries
            for name, entries in found.items()
            # Results of pauses have names of the form `<request>.<suffix>`.
            if all(mirror.get(self._of(place, name.partition(".")[0])) is None for place in wanted)
        }

    async def claim(self, found: Open, session: Session, owner: Owner = NOBODY) -> Claim | None:
        """Claim a request in one commit; return None if another worker was faster. A request whose worker died while
        it was paused stays `paused`."""
        # Jobs that depend on a paused job may be running, so the next worker must not start it again.
        state = "paused" if found.request.state == "paused" else "running"
        request = replace(found.request, state=state, owner=owner)
        path, lock = found.entry.path, self._of(found.places.locks, request.id)
        ticket = f"{session.name} {fresh()}".encode()
        # The version proves that the request is as it was seen: not cancelled, and not answered by another worker.
        checks = [At(path, found.entry.version), At(lock, None)]
        ops = [Put(lock, ticket, session.lease), Put(path, encode(request))]
        attempted = False

        async def claim() -> Sequence[Entry | None]:
            nonlocal attempted
            retrying, attempted = attempted, True
            try:
                return await self.store.commit(checks, ops)
            except Conflict:  # perhaps from our own commit whose answer was lost: then the lock has our ticket
                held = await self.store.get(lock) if retrying else None
                return (held, await self.store.get(path)) if held and held.value == ticket else ()

        written = await answered(session, claim)
        if not written or any(entry is None for entry in written):
            return None
        held, now = written
        assert held is not None and now is not None, "both were checked above"
        guard, seen = At(lock, held.version), At(path, now.version)
        return Claim(self.store, session, found.places, self._decode(now), guard, seen)

    def _decode(self, entry: Entry) -> Request:
        """Decode a request. Raise ValueError."""
        request = self._known(entry) or decode(entry.value, Request)
        self._decoded[entry.path] = (entry.version, request)
        return request

    def _readable(self, entry: Entry) -> Request | None:
        """Decode like `codec.readable`."""
        request = self._known(entry) or readable(entry, Request)
        if request is not None:
            self._decoded[entry.path] = (entry.version, request)
        return request

    def _known(self, entry: Entry) -> Request | None:
        """Return the request if this version of it was decoded before."""
        # Nothing removes finished requests from this cache one by one.
        if len(self._decoded) > 10_000:
            self._decoded.clear()
        version, request = self._decoded.get(entry.path, (0, None))
        return request if version == entry.version else None

    def _path(self, id: str) -> str:
        return self._of(self.places.requests, id)

    @staticmethod
    def _of(place: str, id: str) -> str:
        return f"{place}/{id}"

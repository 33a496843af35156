"""Work asked for by one process and done by another, exactly one at a time.

A request is small; its parameters lie beside it.  A worker claims it by a lock of its own session: when the worker
dies the lock goes, and the request may be claimed again.  The answer, and the end of the request, are one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec
from msgspec.structs import replace

from headgate.base.ids import fresh
from headgate.recipes import blob
from headgate.recipes.codec import decode, encode, readable
from headgate.recipes.mirror import Mirror
from headgate.recipes.patience import answered
from headgate.store.store import GuardLost, Session, Store
from headgate.store.types import OPS_MAX, At, Conflict, Delete, Entry, EntryChanged, Op, Put, Snapshot, StoreError

COMPLETE_ATTEMPTS_MAX = 5
SPENT_MAX = OPS_MAX // 2
"""Pieces of parameters that go with the request; those of more go right after it."""


class RequestPlaces(msgspec.Struct, frozen=True):
    """Name the paths of one queue of requests."""

    requests: str
    locks: str
    params: str
    result_data: str
    results: str
    waiters: str


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name who runs a request."""

    hostname: str = ""
    component: str = ""
    """The path of its entry in the registry."""
    start_ms: int = 0
    """When it began."""


NOBODY = Owner()


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    precedence: int = 200
    """Lower goes first."""
    state: str = "requested"
    """requested | running | waiting: its worker waits for something, and does other work meanwhile | paused: its worker
    waits for the submitter to say `resume`"""
    wanted: str = "run"
    """run | resume | cancel: what the submitter wants now; the worker compares, it is not told."""
    waited: bool = False
    """The submitter waits for the result here; otherwise the answer goes where `meta` says."""
    owner: Owner = NOBODY
    meta: dict[str, str] = {}
    """What it belongs to: tenant, pipeline, item, buildset, job…"""


@dataclass(slots=True)
class Claim:
    """Represent the right to perform one request."""

    request: Request
    guard: At
    seen: At
    """The request as we last wrote or read it."""
    session: Session
    places: RequestPlaces
    """The queue it is of."""
    spent: tuple[Op, ...] = ()
    """Removes the parameters, once they were read."""


class Open(msgspec.Struct, frozen=True):
    """Represent a request as the mirror shows it."""

    entry: Entry
    request: Request
    locked: bool
    places: RequestPlaces

    @property
    def queue(self) -> str:
        return self.places.requests


@dataclass(frozen=True, slots=True)
class Requests:
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
        check = At(found.entry.path, found.entry.version)
        if found.request.state == "requested" and not found.locked:
            return [check], [Delete(found.entry.path), Delete(f"{found.places.params}/{found.request.id}")]
        return [check], [Put(found.entry.path, encode(replace(found.request, wanted="cancel")))]

    @staticmethod
    def resume(found: Open) -> tuple[At, Op]:
        """Return the check and operation that let a paused request continue, for the submitter's own commit."""
        wanted = found.request.wanted if found.request.wanted == "cancel" else "resume"
        resumed = replace(found.request, wanted=wanted)
        return At(found.entry.path, found.entry.version), Put(found.entry.path, encode(resumed))

    async def call(self, session: Session, params: bytes, *, precedence: int, meta: dict[str, str]) -> bytes:
        """Submit a request, wait for its result, and delete the result. If the wait is cancelled, only the work
        itself remains."""
        request = Request(id=fresh(), precedence=precedence, waited=True, meta=meta)
        waiter, mark = self._of(self.places.waiters, request.id), self._of(self.places.results, request.id)
        data = self._of(self.places.result_data, request.id)
        ops = [Put(waiter, b"", session.lease), *self.submit(request, params)]

        async def submit() -> None:
            with suppress(Conflict):  # it was submitted, and the answer lost
                await self.store.commit([At(waiter, None)], ops)

        answer: tuple[bytes, list[Op]] | None = None

        async def forget() -> None:
            end = [Delete(waiter), Delete(mark), *(answer[1] if answer else ())]
            with suppress(StoreError):  # the waiter goes with the session, and what is left is swept
                await submitting
                await answered(session, lambda: self.store.commit([], end))
                if answer is None:  # it may have come; now that nobody waits, it comes no more
                    unread = await answered(session, lambda: self.store.list(data))
                    await self._remove([entry.path for entry in unread], session)

        submitting = session.errand(answered(session, submit))
        try:
            await asyncio.shield(submitting)
            await answered(session, lambda: self._ready(mark))
            answer = await answered(session, lambda: blob.taken(self.store, data))
        finally:
            await asyncio.shield(session.errand(forget()))
        if answer is None:
            raise Conflict(At(data, None))
        return answer[0]

    async def _ready(self, mark: str) -> None:
        watch = self.store.watch(mark)
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            async for change in watch:
                if isinstance(change, EntryChanged) or (isinstance(change, Snapshot) and change.entries):
                    return

    # --- the worker

    def open(self, mirror: Mirror) -> list[Open]:
        """Return every request that can be read, oldest first."""
        found = (self._open(entry, mirror) for entry in mirror.under(self.places.requests))
        return [one for one in found if one is not None]

    async def listed(self, id: str = "") -> list[Open]:
        """Return every request, or that one, as the store has it, which may know more than a mirror."""
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
        """Return the results that nobody waits for: the path of each, with its entry and that of the parameters."""
        found: dict[str, list[Entry]] = {}
        for place in (self.places.params, self.places.result_data, self.places.results):
            for entry in mirror.under(place):
                name = entry.path.removeprefix(f"{place}/").split("/")[0]
                found.setdefault(name, []).append(entry)
        wanted = (self.places.requests, self.places.waiters)
        return {
            self._of(self.places.result_data, name): entries
            for name, entries in found.items()
            if all(mirror.get(self._of(place, name.partition(".")[0])) is None for place in wanted)
        }

    async def claim(self, found: Open, session: Session, owner: Owner = NOBODY) -> Claim | None:
        """Claim it in one commit; return None when somebody else was quicker.  One whose worker was lost while paused
        stays `paused`."""
        state = "paused" if found.request.state == "paused" else "running"
        request = replace(found.request, state=state, owner=owner)
        path, lock = found.entry.path, self._of(found.places.locks, request.id)
        ticket = f"{session.name} {fresh()}".encode()
        checks = [At(path, found.entry.version), At(lock, None)]
        ops = [Put(lock, ticket, session.lease), Put(path, encode(request))]
        asked = False

        async def claim() -> Sequence[Entry | None]:
            nonlocal asked
            again, asked = asked, True
            try:
                return await self.store.commit(checks, ops)
            except Conflict:  # by the commit whose answer was lost?  The ticket tells
                held = await self.store.get(lock) if again else None
                return (held, await self.store.get(path)) if held and held.value == ticket else ()

        written = await answered(session, claim)
        if not written or any(entry is None for entry in written):
            return None
        held, now = written
        assert held is not None and now is not None, "both were looked at"
        return Claim(self._decode(now), At(lock, held.version), At(path, now.version), session, found.places)

    async def params(self, claim: Claim, mirror: Mirror) -> bytes:
        """Return the parameters of a claimed request from the mirror that showed the request. Raise ValueError if
        they are missing or damaged."""
        path = self._of(claim.places.params, claim.request.id)
        found = blob.mirrored(mirror, path) or await answered(claim.session, lambda: blob.taken(self.store, path))
        if found is None:
            raise ValueError(f"the parameters of request {claim.request.id} are missing")
        claim.spent = tuple(found[1])
        return found[0]

    @staticmethod
    def result_path(claim: Claim) -> str:
        """Return where `complete` puts the result; `pause` puts its own beside it."""
        return f"{claim.places.result_data}/{claim.request.id}"

    async def complete(self, claim: Claim, answer: Sequence[Op], result: bytes | None = None) -> bool:
        """Return the answer, and the end of the request, in one commit.  False: nobody wants the answer any more.

        `result` is for who waits, or for who takes up the answer: see `result_path`."""
        id, path, checks, laid = claim.request.id, claim.seen.path, list[At](), list[str]()
        spent = claim.spent or (Delete(self._of(claim.places.params, id)),)
        end: list[Op] = [Delete(path), *spent[:SPENT_MAX], Delete(claim.guard.path)]
        if claim.request.waited:
            waiter = await self._waiter(claim)
            result, checks = (result, [waiter]) if waiter else (None, [])
        if result is not None:
            pointer, laid = await self._laid(claim, self.result_path(claim), result)
            end.append(pointer)
            end += [Put(self._of(claim.places.results, id), b"ready")] if claim.request.waited else []
        for _ in range(COMPLETE_ATTEMPTS_MAX):
            try:
                await self._guarded(claim, [claim.seen, *checks], [*answer, *end])
                await self._remove([op.path for op in spent[SPENT_MAX:] if isinstance(op, Delete)], claim.session)
                return True
            except Conflict as conflict:
                if conflict.check in checks:  # nobody waits any more
                    await self._remove(laid, claim.session, claim.guard)
                    return await self.complete(claim, answer)
                if conflict.check != claim.seen:
                    raise
                entry = await answered(claim.session, lambda: self.store.get(path))  # `wanted` changed, or withdrawn
                if entry is None:
                    await self._remove(laid, claim.session, claim.guard)
                    await self._guarded(claim, [], [Delete(claim.guard.path)])
                    return False
                claim.seen = At(path, entry.version)
        raise Conflict(claim.seen)

    async def _waiter(self, claim: Claim) -> At | None:
        """Return a check that a process waits for the result, or None if none does."""
        path = self._of(claim.places.waiters, claim.request.id)
        entry = await answered(claim.session, lambda: self.store.get(path))
        return At(path, entry.version) if entry else None

    async def _laid(self, claim: Claim, path: str, result: bytes) -> tuple[Op, list[str]]:
        """Write the pieces. Return the pointer, for the commit that makes them valid, and their paths."""
        *pieces, pointer = blob.ops(path, result)
        for piece in pieces:
            await self._guarded(claim, [], [piece])
        return pointer, [piece.path for piece in pieces if isinstance(piece, Put)]

    async def pause(self, claim: Claim, word: Sequence[Op], result: bytes | None = None, at: str = "") -> str:
        """Return the word that it waits, the result so far at a path of its own, and its being paused, in one commit;
        what is wanted.  When that is something else than `run` already, the word was not given."""
        path, asked = claim.seen.path, False
        word = word if result is None else [(await self._laid(claim, at, result))[0], *word]
        for _ in range(COMPLETE_ATTEMPTS_MAX):
            entry = await answered(claim.session, lambda: self.store.get(path))
            request = None if entry is None else self._decode(entry)
            if entry is None or request is None:
                return "cancel"
            if request.wanted != "run" or (asked and request.state == "paused"):
                return request.wanted
            seen, asked = At(path, entry.version), True
            try:
                await self._guarded(claim, [seen], [Put(path, encode(replace(request, state="paused"))), *word])
            except Conflict as conflict:
                if conflict.check != seen:
                    raise
        raise Conflict(claim.seen)

    async def release(self, claim: Claim) -> None:
        """Give the request back unfinished; another worker may claim it at once. A paused request stays paused."""
        entry = await answered(claim.session, lambda: self.store.get(claim.seen.path))
        ops: list[Op] = [Delete(claim.guard.path)]
        if entry is not None:
            now = self._decode(entry)
            state = "paused" if now.state == "paused" else "requested"
            ops.append(Put(entry.path, encode(replace(now, state=state, owner=NOBODY))))
        await self._guarded(claim, [At(claim.seen.path, entry.version if entry else None)], ops)

    async def _remove(self, paths: Sequence[str], session: Session, *guards: At) -> None:
        """Remove any number of paths that nobody is to read."""
        for start in range(0, len(paths), OPS_MAX):
            gone = [Delete(path) for path in paths[start : start + OPS_MAX]]
            await answered(session, partial(self.store.commit, [], gone, guards=guards))

    async def _guarded(self, claim: Claim, checks: Sequence[At], ops: Sequence[Op]) -> None:
        """Commit under the claim. If the answer is lost and the commit was to end the claim, it took effect if the
        claim is gone while the session lives."""
        asked = False

        async def commit() -> None:
            nonlocal asked
            again, asked = asked, True
            try:
                await self.store.commit(checks, ops, guards=[claim.guard])
            except GuardLost:
                if not (again and any(isinstance(op, Delete) and op.path == claim.guard.path for op in ops)):
                    raise

        await answered(claim.session, commit)

    def wanted(self, claim: Claim, mirror: Mirror) -> str:
        """Return what the submitter wants as far as the mirror knows: run, resume or cancel."""
        entry = mirror.get(claim.seen.path)
        return "cancel" if entry is None else self._decode(entry).wanted

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
        """Return the request as it was decoded before."""
        if len(self._decoded) > 10_000:
            self._decoded.clear()
        version, request = self._decoded.get(entry.path, (0, None))
        return request if version == entry.version else None

    def _path(self, id: str) -> str:
        return self._of(self.places.requests, id)

    @staticmethod
    def _of(place: str, id: str) -> str:
        return f"{place}/{id}"


async def say(requests: Requests, claim: Claim, state: str) -> None:
    """Write that the claimed request is `running` or `waiting`; nothing, when it is gone or something else is wanted.

    Raise StoreError."""
    for _ in range(COMPLETE_ATTEMPTS_MAX):
        entry = await answered(claim.session, lambda: requests.store.get(claim.seen.path))
        now = None if entry is None else requests._decode(entry)
        if entry is None or now is None or now.wanted != "run" or now.state == state:
            return
        seen = At(entry.path, entry.version)
        try:
            await requests._guarded(claim, [seen], [Put(entry.path, encode(replace(now, state=state)))])
        except Conflict as conflict:
            if conflict.check != seen:
                raise

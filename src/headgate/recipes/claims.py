"""The right of one worker to perform a request, until it answers or its session ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from headgate.recipes import blob
from headgate.recipes.codec import decode, encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.patience import answered
from headgate.recipes.requestforms import NOBODY, Request, RequestPlaces
from headgate.store.store import GuardLost, Session, Store
from headgate.store.types import OPS_MAX, At, Conflict, Delete, Entry, Op, Put

COMPLETE_ATTEMPTS_MAX = 5
SPENT_MAX = OPS_MAX // 2
"""Pieces of parameters that go with the request; those of more go right after it."""


@dataclass(slots=True)
class Claim:
    """Represent the right to perform one request."""

    store: Store
    session: Session
    places: RequestPlaces
    """The queue it is of."""
    request: Request
    guard: At
    seen: At
    """The request as we last wrote or read it."""
    spent: tuple[Op, ...] = ()
    """Removes the parameters, once they were read."""
    _version: int | None = field(init=False)
    """Of `_latest`, the request as it was last decoded: it is looked at again and again."""
    _latest: Request = field(init=False)

    def __post_init__(self) -> None:
        self._version, self._latest = self.seen.version, self.request

    async def params(self, mirror: Mirror) -> bytes:
        """Return the parameters of a claimed request from the mirror that showed the request. Raise ValueError if
        they are missing or damaged."""
        path = f"{self.places.params}/{self.request.id}"
        found = blob.mirrored(mirror, path) or await answered(self.session, lambda: blob.taken(self.store, path))
        if found is None:
            raise ValueError(f"the parameters of request {self.request.id} are missing")
        self.spent = tuple(found[1])
        return found[0]

    @property
    def result_path(self) -> str:
        """Return where `complete` puts the result; `pause` puts its own beside it."""
        return f"{self.places.result_data}/{self.request.id}"

    async def complete(self, answer: Sequence[Op], result: bytes | None = None) -> bool:
        """Return the answer, and the end of the request, in one commit.  False: nobody wants the answer any more.

        `result` is for who waits, or for who takes up the answer: see `result_path`."""
        id, path, checks, laid = self.request.id, self.seen.path, list[At](), list[str]()
        spent = self.spent or (Delete(f"{self.places.params}/{id}"),)
        end: list[Op] = [Delete(path), *spent[:SPENT_MAX], Delete(self.guard.path)]
        if self.request.waited:
            waiter = await self._waiter()
            result, checks = (result, [waiter]) if waiter else (None, [])
        if result is not None:
            pointer, laid = await self._laid(self.result_path, result)
            end.append(pointer)
            end += [Put(f"{self.places.results}/{id}", b"ready")] if self.request.waited else []
        for _ in range(COMPLETE_ATTEMPTS_MAX):
            try:
                await self._guarded([self.seen, *checks], [*answer, *end])
                await remove(self.store, self.session, [op.path for op in spent[SPENT_MAX:] if isinstance(op, Delete)])
                return True
            except Conflict as conflict:
                if conflict.check in checks:  # nobody waits any more
                    await remove(self.store, self.session, laid, self.guard)
                    return await self.complete(answer)
                if conflict.check != self.seen:
                    raise
                entry = await answered(self.session, lambda: self.store.get(path))  # `wanted` changed, or withdrawn
                if entry is None:
                    await remove(self.store, self.session, laid, self.guard)
                    await self._guarded([], [Delete(self.guard.path)])
                    return False
                self.seen = At(path, entry.version)
        raise Conflict(self.seen)

    async def _waiter(self) -> At | None:
        """Return a check that a process waits for the result, or None if none does."""
        path = f"{self.places.waiters}/{self.request.id}"
        entry = await answered(self.session, lambda: self.store.get(path))
        return At(path, entry.version) if entry else None

    async def _laid(self, path: str, result: bytes) -> tuple[Op, list[str]]:
        """Write the pieces. Return the pointer, for the commit that makes them valid, and their paths."""
        *pieces, pointer = blob.ops(path, result)
        for piece in pieces:
            await self._guarded([], [piece])
        return pointer, [piece.path for piece in pieces if isinstance(piece, Put)]

    async def pause(self, word: Sequence[Op], result: bytes | None = None, at: str = "") -> str:
        """Return the word that it waits, the result so far at a path of its own, and its being paused, in one commit;
        what is wanted.  When that is something else than `run` already, the word was not given."""
        path, asked = self.seen.path, False
        word = word if result is None else [(await self._laid(at, result))[0], *word]
        for _ in range(COMPLETE_ATTEMPTS_MAX):
            entry = await answered(self.session, lambda: self.store.get(path))
            request = None if entry is None else self._decode(entry)
            if entry is None or request is None:
                return "cancel"
            if request.wanted != "run" or (asked and request.state == "paused"):
                return request.wanted
            seen, asked = At(path, entry.version), True
            try:
                await self._guarded([seen], [Put(path, encode(replace(request, state="paused"))), *word])
            except Conflict as conflict:
                if conflict.check != seen:
                    raise
        raise Conflict(self.seen)

    async def release(self) -> None:
        """Give the request back unfinished; another worker may claim it at once. A paused request stays paused."""
        entry = await answered(self.session, lambda: self.store.get(self.seen.path))
        ops: list[Op] = [Delete(self.guard.path)]
        if entry is not None:
            now = self._decode(entry)
            state = "paused" if now.state == "paused" else "requested"
            ops.append(Put(entry.path, encode(replace(now, state=state, owner=NOBODY))))
        await self._guarded([At(self.seen.path, entry.version if entry else None)], ops)

    async def _guarded(self, checks: Sequence[At], ops: Sequence[Op]) -> None:
        """Commit under the claim. If the answer is lost and the commit was to end the claim, it took effect if the
        claim is gone while the session lives."""
        asked = False

        async def commit() -> None:
            nonlocal asked
            again, asked = asked, True
            try:
                await self.store.commit(checks, ops, guards=[self.guard])
            except GuardLost:
                if not (again and any(isinstance(op, Delete) and op.path == self.guard.path for op in ops)):
                    raise

        await answered(self.session, commit)

    def wanted(self, mirror: Mirror) -> str:
        """Return what the submitter wants as far as the mirror knows: run, resume or cancel."""
        entry = mirror.get(self.seen.path)
        return "cancel" if entry is None else self._decode(entry).wanted

    async def say(self, state: str) -> None:
        """Write that the request is `running` or `waiting`; nothing, when it is gone or something else is wanted.

        Raise StoreError."""
        for _ in range(COMPLETE_ATTEMPTS_MAX):
            entry = await answered(self.session, lambda: self.store.get(self.seen.path))
            now = None if entry is None else self._decode(entry)
            if entry is None or now is None or now.wanted != "run" or now.state == state:
                return
            seen = At(entry.path, entry.version)
            try:
                await self._guarded([seen], [Put(entry.path, encode(replace(now, state=state)))])
            except Conflict as conflict:
                if conflict.check != seen:
                    raise

    def _decode(self, entry: Entry) -> Request:
        """Decode the request. Raise ValueError."""
        if self._version != entry.version:
            self._version, self._latest = entry.version, decode(entry.value, Request)
        return self._latest


async def remove(store: Store, session: Session, paths: Sequence[str], *guards: At) -> None:
    """Remove any number of paths that nobody is to read."""
    for start in range(0, len(paths), OPS_MAX):
        gone = [Delete(path) for path in paths[start : start + OPS_MAX]]
        await answered(session, partial(store.commit, [], gone, guards=guards))

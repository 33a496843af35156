"""Give one worker the right to perform a request, until it answers or its session ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headgate.recipes import blob
from headgate.recipes.codec import decode, encode
from headgate.recipes.mirror import Mirror
from headgate.recipes.patience import answered, remove
from headgate.recipes.requestforms import NOBODY, Request, RequestPlaces
from headgate.store.store import GuardLost, Session, Store
from headgate.store.types import OPS_MAX, At, Conflict, Delete, Entry, Op, Put

# Each conflict is a write of the submitter to the request, and it changes its mind only a few times.
COMPLETE_ATTEMPTS_MAX = 5
SPENT_MAX = OPS_MAX // 2
"""Limit on the pieces of parameters that are removed together with the request; the others are removed right after
it."""


@dataclass(slots=True)
class Claim:
    """Represent the right to perform one request."""

    store: Store
    session: Session
    places: RequestPlaces
    """Paths of the queue that the request belongs to."""
    request: Request
    guard: At
    seen: At
    """Path and version of the request as this worker last wrote or read it."""
    spent: tuple[Op, ...] = ()
    """Operations that remove the parameters; empty until the parameters have been read."""
    _version: int | None = field(init=False)
    """Version from which `_latest` was decoded: the request is read often, but decoded only once per version."""
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
        """Return the path to which `complete` writes the result."""
        return f"{self.places.result_data}/{self.request.id}"

    async def complete(self, answer: Sequence[Op], result: bytes | None = None) -> bool:
        """Commit the answer and the end of the request together. Return False if the submitter has withdrawn the
        request.

        `result` is written to `result_path`: for the waiting process if `waited`, otherwise for the reader of the
        answer.
        """
        id, path, checks, laid = self.request.id, self.seen.path, list[At](), list[str]()
        spent = self.spent or (Delete(f"{self.places.params}/{id}"),)
        end: list[Op] = [Delete(path), *spent[:SPENT_MAX], Delete(self.guard.path)]
        if self.request.waited:
            waiter = await self._waiter()
            result, checks = (result, [waiter]) if waiter else (None, [])
        if result is not None:
            # Pieces without a pointer are invisible; after a crash here, the sweep removes them.
            pointer, laid = await blob.laid(self._put, self.result_path, result)
            end.append(pointer)
            end += [Put(f"{self.places.results}/{id}", b"ready")] if self.request.waited else []
        for _ in range(COMPLETE_ATTEMPTS_MAX):
            try:
                await self._guarded([self.seen, *checks], [*answer, *end])
                # A crash before this leaves pieces without a request, which the scheduler's sweep removes
                # (`Requests.left`).
                await remove(self.store, self.session, [op.path for op in spent[SPENT_MAX:] if isinstance(op, Delete)])
                return True
            except Conflict as conflict:
                if conflict.check in checks:  # the submitter no longer waits
                    await remove(self.store, self.session, laid, self.guard)
                    return await self.complete(answer)
                # A check that belongs to the answer failed; the caller knows what that means.
                if conflict.check != self.seen:
                    raise
                # `wanted` changed, or the request was withdrawn
                entry = await answered(self.session, lambda: self.store.get(path))
                if entry is None:
                    await remove(self.store, self.session, laid, self.guard)
                    await self._guarded([], [Delete(self.guard.path)])
                    return False
                self.seen = At(path, entry.version)
        raise Conflict(self.seen)

    async def _waiter(self) -> At | None:
        """Return a check that a process still waits for the result, or None if none does."""
        path = f"{self.places.waiters}/{self.request.id}"
        entry = await answered(self.session, lambda: self.store.get(path))
        return At(path, entry.version) if entry else None

    async def pause(self, word: Sequence[Op], result: bytes | None = None) -> str:
        """Commit together: `word` (operations that announce the pause), the result so far, at `places.paused`, and the
        state `paused`. Return what the submitter wants; if that was no longer `run` before the commit, nothing was
        committed."""
        # The pieces are written once, before the attempts; each attempt includes only the pointer.
        laid = () if result is None else (await blob.laid(self._put, self.places.paused(self.request.id), result))[:1]
        if not (wanted := await self._rewrite("paused", [*laid, *word])):
            raise Conflict(self.seen)
        return wanted

    async def release(self) -> None:
        """Give the request back unfinished; another worker may claim it immediately. A paused request stays paused."""
        entry = await answered(self.session, lambda: self.store.get(self.seen.path))
        ops: list[Op] = [Delete(self.guard.path)]
        if entry is not None:
            now = self._decode(entry)
            state = "paused" if now.state == "paused" else "requested"
            ops.append(Put(entry.path, encode(replace(now, state=state, owner=NOBODY))))
        await self._guarded([At(self.seen.path, entry.version if entry else None)], ops)

    async def _put(self, piece: Op) -> None:
        await self._guarded([], [piece])

    async def _guarded(self, checks: Sequence[At], ops: Sequence[Op]) -> None:
        """Commit under the claim. If the answer to a commit that ends the claim is lost, the retry finds the claim
        gone; while the session lives, that proves that the commit took effect."""
        attempted = False

        async def commit() -> None:
            nonlocal attempted
            retrying, attempted = attempted, True
            try:
                await self.store.commit(checks, ops, guards=[self.guard])
            except GuardLost:
                # While the session lives, only this process deletes the lock, so the first attempt has done it.
                if not (retrying and any(isinstance(op, Delete) and op.path == self.guard.path for op in ops)):
                    raise

        await answered(self.session, commit)

    def wanted(self, mirror: Mirror) -> str:
        """Return the submitter's current wish according to the mirror: run, resume or cancel."""
        entry = mirror.get(self.seen.path)
        return "cancel" if entry is None else self._decode(entry).wanted

    async def say(self, state: str) -> None:
        """Write that the request is `running` or `waiting`. Do nothing when the request is gone or the submitter no
        longer wants it to run. Raise StoreError."""
        await self._rewrite(state)

    async def _rewrite(self, state: str, word: Sequence[Op] | None = None) -> str:
        """Write a new state of the request, together with `word` if there is one, as long as the submitter wants it to
        run. Return what the submitter wants: `cancel` if the request is gone, and "" if the request changed at every
        attempt. Raise StoreError."""
        written = word is None  # a word must be announced even if an earlier worker left the request in this state
        for _ in range(COMPLETE_ATTEMPTS_MAX):
            entry = await answered(self.session, lambda: self.store.get(self.seen.path))
            if entry is None:
                return "cancel"
            now = self._decode(entry)
            # The commit may have succeeded without an answer: the repetition then conflicts, and finds the request in
            # its new state.
            if now.wanted != "run" or (written and now.state == state):
                return now.wanted
            seen, written = At(entry.path, entry.version), True
            try:
                await self._guarded([seen], [Put(entry.path, encode(replace(now, state=state))), *(word or ())])
            except Conflict as conflict:
                if conflict.check != seen:
                    raise
        return ""

    def _decode(self, entry: Entry) -> Request:
        """Decode the request. Raise ValueError."""
        if self._version != entry.version:
            self._version, self._latest = entry.version, decode(entry.value, Request)
        return self._latest

"""One lane: its messages in order, each tried as often as its policy says, its progress recorded as it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from headgate.map.workers import Control
from headgate.ports.messages import QueueGone, SourceDown
from headgate.queueing import progress as steps
from headgate.queueing.ids import position_of
from headgate.queueing.lanes import Lane
from headgate.queueing.message import Message, Reject, RetryLater, StopWorker, Vanished
from headgate.queueing.policy import Route
from headgate.queueing.progress import PARKED_MAX, Parked, Progress
from headgate.services.queueing.calling import JobExit, Stuck, log
from headgate.services.queueing.desk import ERROR_MAX_CHARS, Desk
from headgate.services.queueing.hold import Hold
from headgate.store.store import GuardLost
from headgate.store.types import StoreError

TROUBLE_MAX_S = 5.0
_VANISHED = "the process that ran it did not come back"


class LaneRunner:
    """`run` ends when the lane was handed back after `leave`, or was lost.  Raises StopWorker, JobExit, Stuck."""

    def __init__(self, desk: Desk, hold: Hold, route: Route, control: Callable[[Lane], Control]) -> None:
        self._desk, self._hold, self._control = desk, hold, control
        self._job, self._policy = route.job, route.policy
        self.lane = hold.lane
        self.now = hold.stored
        self._wake = asyncio.Event()
        self.leaving = False
        """It hands the lane back."""
        self._not_before_ms = 0
        self._verdict: tuple[str, BaseException] | None = None
        self._since_commit, self._committed_s = 0, self._time()
        self._done = desk.figures.done.labels(self.lane.queue)
        self._job_s = desk.figures.job_s.labels(self.lane.queue)

    def ring(self) -> None:
        """Something was posted, or is wanted of the lane."""
        self._wake.set()

    def leave(self) -> None:
        """Hand the lane back once the job that runs has ended."""
        self.leaving = True
        self._wake.set()

    async def run(self) -> None:
        try:
            gone = await self._until_left()
            if gone:
                self.now = replace(self.now, gone_ms=self._desk.now_ms())
            await self._hold.release(self.now)
        except GuardLost:
            log.warning("%s: another worker has taken it; what was not recorded runs again there", self.lane)
            self._desk.figures.lost.inc()
        except (StopWorker, JobExit, Stuck):
            await self.give_back()
            raise

    async def give_back(self) -> None:
        """For whoever has cancelled `run`: what may have been begun stays marked."""
        try:
            await self._hold.release(self.now)
        except StoreError as error:
            log.info("%s: not handed back (%s); it is free once the session ends", self.lane, error)

    async def _until_left(self) -> bool:
        """True: the queue is no more."""
        trouble_s = 0.1
        while not self.leaving:
            self._wake.clear()
            try:
                if not await self._step():
                    await self._rest(self._patience_s())
                trouble_s = 0.1
            except QueueGone:
                return True
            except SourceDown as down:
                self._desk.figures.source_errors.inc()
                log.warning("%s: %s; trying again in %.1f s", self.lane, down, trouble_s)
                await self._rest(trouble_s)
                trouble_s = min(trouble_s * 2, TROUBLE_MAX_S)
        return False

    async def _step(self) -> bool:
        """Does what comes next; False when there is nothing to do for now."""
        control = self._control(self.lane)
        if control.seek is not None and (now := await self._hold.seek(self.now)) is not None:
            self.now = now
            log.info("%s: goes on behind %s, as was wanted", self.lane, now.id or now.last or "nothing at all")
        if control.paused:
            await self._flush()
            return False
        if await self._retry():
            return True
        if steps.suspects(self.now) > steps.position(self.now):
            return await self._alone()
        return await self._page()

    # --- in order

    async def _page(self) -> bool:
        size = self._policy.batch if self._policy.attempts == 1 else max(self._desk.pace.page, self._policy.batch)
        page = await self._desk.source.read(self.lane, steps.position(self.now), size)
        if not page or self.leaving:
            return False
        await self._commit(steps.begun(self.now, page[-1].message_id))
        for first in range(0, len(page), self._policy.batch):
            try:
                if not await self._first(page[first : first + self._policy.batch]):
                    return True
            except StopWorker:
                self.now = steps.begun(self.now, "")
                raise
            if self._wanted_elsewhere():
                break
            await self._commit_when_due()
        self.now = steps.begun(self.now, "")
        return True

    async def _first(self, batch: Sequence[Message]) -> bool:
        """The first try; False when the lane has to be looked at anew."""
        error = await self._try(batch, 1)
        if error is None:
            self.now = steps.done(self.now, batch[-1].message_id)
            self._since_commit += len(batch)
            return True
        self.now = steps.begun(self.now, batch[-1].message_id)
        if len(batch) > 1 and self._policy.attempts > 1:
            log.info("%s: a batch of %s failed (%s); its messages are tried one by one", self.lane, len(batch), error)
            return False
        for message in batch:
            await self._failed(message, 1, error)
        return False

    async def _alone(self) -> bool:
        """The next message that may have been begun, by itself, its try recorded before it is made."""
        if self._desk.now_ms() < self._not_before_ms:
            return False
        page = await self._desk.source.read(self.lane, steps.position(self.now), 1)
        if not page or position_of(page[0].message_id) > steps.suspects(self.now):
            self.now = steps.begun(self.now, "")
            return True
        message, id = page[0], page[0].message_id
        tries = self.now.attempts if self.now.trying == id else 1
        if tries >= self._policy.attempts:
            await self._desk.bury(message, tries, self._why(id))
            self.now = steps.done(self.now, id)
            await self._commit(self.now)
            return True
        await self._commit(steps.tried(self.now, id, tries + 1))
        error = await self._try([message], tries + 1)
        if error is None:
            self.now = steps.done(self.now, id)
        else:
            await self._failed(message, tries + 1, error)
        return True

    async def _failed(self, message: Message, tries: int, error: BaseException) -> None:
        id, over = message.message_id, tries >= self._policy.attempts or isinstance(error, Reject)
        if over:
            self.now = steps.tried(self.now, id, self._policy.attempts)
            self._verdict = id, error
            await self._desk.bury(message, tries, error)
            self.now = steps.done(self.now, id)
        elif self._policy.blocking or len(self.now.parked) >= PARKED_MAX:
            self.now = steps.tried(self.now, id, tries)
            self._not_before_ms = self._due_ms(tries, error)
        else:
            waits = Parked(id, tries, self._due_ms(tries, error), str(error)[:ERROR_MAX_CHARS])
            self.now = steps.parked(steps.done(self.now, id), waits)
        await self._commit(self.now)

    # --- out of order: those that wait for another try

    async def _retry(self) -> bool:
        """The one that is due; False when none is."""
        due = min(self.now.parked, key=lambda one: one.due_ms, default=None)
        if due is None or due.due_ms > self._desk.now_ms():
            return False
        message = await self._desk.source.get(self.lane, due.id)
        if message is None:
            log.warning("%s: message %s expired before it could be tried again", self.lane, due.id)
        elif due.attempts >= self._policy.attempts:
            await self._desk.bury(message, due.attempts, self._why(due.id))
        else:
            again = replace(due, attempts=due.attempts + 1)
            await self._commit(steps.parked(self.now, again))
            error = await self._try([message], again.attempts)
            if error is not None:
                await self._failed_again(message, again, error)
                return True
        await self._commit(steps.unparked(self.now, due.id))
        return True

    async def _failed_again(self, message: Message, waits: Parked, error: BaseException) -> None:
        if waits.attempts >= self._policy.attempts or isinstance(error, Reject):
            self._verdict = waits.id, error
            await self._commit(steps.parked(self.now, replace(waits, attempts=self._policy.attempts)))
            await self._desk.bury(message, waits.attempts, error)
            await self._commit(steps.unparked(self.now, waits.id))
            return
        due_ms, why = self._due_ms(waits.attempts, error), str(error)[:ERROR_MAX_CHARS]
        await self._commit(steps.parked(self.now, replace(waits, due_ms=due_ms, error=why)))

    # --- one try

    async def _try(self, batch: Sequence[Message], attempt: int) -> BaseException | None:
        """Why it failed, None when it did not."""
        figures, queue = self._desk.figures, self.lane.queue
        messages = [replace(message, attempt=attempt) for message in batch] if attempt > 1 else list(batch)
        if attempt > 1:
            figures.retries.labels(queue).inc()
        began_s = self._time()
        try:
            subject = messages[0] if self._policy.batch == 1 else messages
            await self._desk.caller.call(self._job, subject, self._desk.context, limit_s=self._policy.time_limit_s)
        except (StopWorker, Stuck):
            raise
        except Exception as error:
            figures.failures.labels(queue).inc()
            log.info("%s: try %s of message %s failed: %r", self.lane, attempt, messages[0].message_id, error)
            return error
        self._job_s.observe(self._time() - began_s)
        self._done.inc(len(batch))
        return None

    def _why(self, id: str) -> BaseException:
        return self._verdict[1] if self._verdict is not None and self._verdict[0] == id else Vanished(_VANISHED)

    def _due_ms(self, tries: int, error: BaseException) -> int:
        if isinstance(error, RetryLater):
            return self._desk.now_ms() + int(error.after_s * 1000)
        return self._desk.now_ms() + int(self._policy.delay_s(tries, self._desk.chance.random()) * 1000)

    # --- recording

    async def _commit(self, progress: Progress) -> None:
        self.now = progress
        await self._hold.commit(progress)
        self._desk.figures.commits.inc()
        self._since_commit, self._committed_s = 0, self._time()

    async def _commit_when_due(self) -> None:
        pace = self._desk.pace
        if self._since_commit >= pace.commit_count or self._time() - self._committed_s >= pace.commit_s:
            await self._commit(self.now)

    async def _flush(self) -> None:
        if self.now != self._hold.stored:
            await self._commit(self.now)

    # --- waiting

    def _wanted_elsewhere(self) -> bool:
        control = self._control(self.lane)
        now_ms = self._desk.now_ms()
        due = any(one.due_ms <= now_ms for one in self.now.parked)
        return self.leaving or control.paused or control.seek is not None or due

    def _patience_s(self) -> float:
        pace = self._desk.pace
        dues = [one.due_ms for one in self.now.parked]
        if self._not_before_ms > (now_ms := self._desk.now_ms()):
            dues.append(self._not_before_ms)
        return min([pace.idle_s, *(max(due - now_ms, 1) / 1000 for due in dues)])

    async def _rest(self, for_s: float) -> None:
        """Until rung; what is not recorded yet is, after a while."""
        unrecorded = self.now != self._hold.stored
        first_s = min(for_s, self._desk.pace.commit_s) if unrecorded else for_s
        try:
            async with asyncio.timeout(first_s):
                await self._wake.wait()
        except TimeoutError:
            if unrecorded:
                await self._flush()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

"""Process one partition: its messages in order, each as often as its policy says, recording progress along the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from headgate.base.tasks import end
from headgate.map.workers import Control
from headgate.ports.messages import QueueGone, SourceDown
from headgate.queue.workers.calls import JobExit, Rank, Stuck, log
from headgate.queue.workers.ownership import Ownership
from headgate.queue.workers.processor import MessageProcessor
from headgate.queueing import progress as steps
from headgate.queueing.ids import position_of, unix_ms_of
from headgate.queueing.message import ERROR_MAX_CHARS, Failed, Message, Reject, RetryLater, StopWorker, Vanished
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.policy import RoutingRule
from headgate.store.store import GuardLost
from headgate.store.types import StoreError

RETRY_MAX_S = 5.0
HANDED_S = 0.02
"""Seconds after which an attempt at a single message is recorded again, as one that has certainly reached its job."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """Hold the state of a worker that its partitions need."""

    control: Callable[[QueuePartition], Control]
    alive: Callable[[], Container[str]]
    """Returns the names that live workers had in sessions they have lost."""
    rank: Rank
    """Rank of the partition within its strand."""


class PartitionRunner:
    """Run a partition. `run` returns when the partition was released after `leave`, or lost. Raise StopWorker,
    JobExit or Stuck."""

    def __init__(self, processor: MessageProcessor, ownership: Ownership, route: RoutingRule, view: WorkerView) -> None:
        self._processor, self._ownership, self._view = processor, ownership, view
        self._job, self._policy = route.job, route.policy
        self.partition, self.rank = ownership.partition, view.rank
        self.now = ownership.stored
        self._wake = asyncio.Event()
        self._leaves = asyncio.Event()
        self._with_job = ""
        """Id of the message that a job has now, whose attempt is open in `now`; empty: none."""
        self._not_before_ms = 0
        self._verdict: tuple[str, BaseException] | None = None
        self._since_commit, self._committed_s = 0, self._time()
        self._done = processor.figures.done.labels(self.partition.queue)
        self._job_s = processor.figures.job_s.labels(self.partition.queue)
        self.rank.stirs()

    @property
    def leaving(self) -> bool:
        """Return whether the partition is being released."""
        return self._leaves.is_set()

    def wake(self) -> None:
        """Wake the partition because a message was posted or its control changed."""
        self.rank.stirs()
        self._wake.set()

    def leave(self) -> None:
        """Hand the partition back once the running job has ended."""
        self._leaves.set()
        self._wake.set()

    async def run(self) -> None:
        try:
            gone = await self._until_left()
            if gone:
                self.now = replace(self.now, gone_ms=self._processor.now_ms())
            await self._ownership.release(self.now)
        except GuardLost:
            log.warning("%s: another worker has taken it over; unrecorded messages run again there", self.partition)
            self._processor.figures.lost.inc()
        except StopWorker:
            await self.give_back()
            raise
        except (JobExit, Stuck):
            self._close("died")
            await self.give_back()
            raise

    async def give_back(self) -> None:
        """Give the partition back after `run` was cancelled; what may have started stays marked."""
        self._close("left")
        try:
            await self._ownership.release(self.now)
        except StoreError as error:
            log.info("%s: not returned (%s); it becomes free when the session ends", self.partition, error)

    async def _until_left(self) -> bool:
        """Run until the partition is left; return True if the queue no longer exists."""
        retry_s = 0.1
        while not self.leaving:
            self._wake.clear()  # Before the step: a post during it ends the rest immediately.
            self.rank.stirs()
            try:
                if not await self._step():
                    self._calms()
                    await self._rest(self._patience_s())
                retry_s = 0.1
            except QueueGone:
                return True
            except SourceDown as down:
                self._processor.figures.source_errors.inc()
                log.warning("%s: %s; trying again in %.1f s", self.partition, down, retry_s)
                self._calms()
                await self._rest(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)
        return False

    async def _step(self) -> bool:
        """Do what comes next; return False if there is nothing to do now."""
        control = self._view.control(self.partition)
        if control.seek is not None and (now := await self._ownership.seek(self.now)) is not None:
            self.now = now
            log.info("%s: continues after %s, as requested", self.partition, now.id or now.last or "nothing at all")
        if control.paused:
            await self._flush()
            return False
        # A due retry precedes new messages, whose flow might never pause.
        if await self._retry():
            return True
        # Messages that may have started are tried one by one, so that one that kills its worker is found.
        if steps.suspects(self.now) > steps.position(self.now):
            return await self._alone()
        return await self._page()

    # --- in order

    async def _page(self) -> bool:
        """Try messages that were never started; mark them as begun once the first has its slot. Return whether to
        continue."""
        size = max(self._processor.pace.page, self._policy.batch)
        page = await self._processor.source.read(self.partition, steps.position(self.now), size)
        if not page or self.leaving:
            return False
        for first in range(0, len(page), self._policy.batch):
            async with self._slot(page[first].message_id) as granted:
                if not granted:
                    return True
                if self._called_away():
                    break
                if first == 0:
                    await self._commit(steps.begun(self.now, page[-1].message_id))  # Before a job has any of them.
                try:
                    if not await self._first(page[first : first + self._policy.batch]):
                        return True
                # A job that stops the worker has not processed the message, so this is not an attempt.
                except StopWorker:
                    self._with_job, self.now = "", steps.begun(steps.untried(self.now), "")
                    raise
            if self._wanted_elsewhere():
                break
            await self._commit_when_due()
        self.now = steps.begun(self.now, "")
        return True

    async def _first(self, batch: Sequence[Message]) -> bool:
        """Try for the first time; return False if the partition must be read again."""
        last = batch[-1].message_id
        if len(batch) == 1:
            self._open(last, steps.Tally().opened(self._ownership.name, handed=True))
        error = await self._try(batch, 1, self._processor.pace.commit_s)
        if error is None:
            self._with_job = ""
            self.now = steps.done(self.now, last)
            self._since_commit += len(batch)
            return True
        self.now = steps.begun(self.now, last)
        if len(batch) > 1:
            log.info("%s: a batch of %s failed (%s); each is tried alone", self.partition, len(batch), error)
            await self._commit(steps.failed_together(self.now, last))  # After a crash, too, each is tried alone.
            return False
        await self._failed(batch[0], error)
        return False

    # --- one by one

    async def _alone(self) -> bool:
        """Try the next message that may have been started, or has failed. Return whether to continue immediately."""
        if self._processor.now_ms() < self._not_before_ms:
            return False
        page = await self._processor.source.read(self.partition, steps.position(self.now), 1)
        if not page or position_of(page[0].message_id) > steps.suspects(self.now):
            self.now = steps.begun(self.now, "")
            return True
        await self._again(page[0])
        return True

    async def _retry(self) -> bool:
        """Retry the parked message that is due; return False if there is none."""
        due = min(self.now.parked, key=lambda one: one.due_ms, default=None)
        if due is None or due.due_ms > self._processor.now_ms():
            return False
        message = await self._processor.source.get(self.partition, due.id)
        if message is None:
            log.warning("%s: message %s expired before it could be tried again", self.partition, due.id)
            await self._commit(steps.unparked(self.now, due.id))
        else:
            await self._again(message)
        return True

    async def _again(self, message: Message) -> None:
        """Try once more, with the start recorded first; do not try if the message has used all its attempts."""
        id, me = message.message_id, self._ownership.name
        tally = steps.tally_of(self.now, id).excused(self._view.alive())
        if why := tally.spent(self._policy):
            await self._give_up(message, tally, why)
            return
        async with self._slot(id) as granted:
            if not granted or self._called_away():
                return
            await self._commit(steps.tried(self.now, id, tally.opened(me)))  # A crash now counts as unsure only.
            self._open(id, tally.opened(me).handed())
            try:
                error = await self._try([message], max(tally.recorded + 1, 2), HANDED_S)
            except StopWorker:
                self._with_job, self.now = "", steps.tried(self.now, id, tally)
                raise
        if error is not None:
            await self._failed(message, error)
            return
        self._with_job = ""
        await self._commit(self._dealt_with(id))

    async def _failed(self, message: Message, error: BaseException) -> None:
        """Handle a failure of the job: give the message up, or try it again later."""
        id, text = message.message_id, str(error)[:ERROR_MAX_CHARS]
        tally = steps.tally_of(self.now, id).closed("failed", f"{type(error).__name__}: {text}"[:ERROR_MAX_CHARS])
        self._with_job = ""
        tally = replace(tally, rejected=isinstance(error, Reject))
        waits = any(one.id == id for one in self.now.parked)
        if why := tally.spent(self._policy):
            self._verdict = id, error
            self.now = steps.tried(self.now, id, tally)
            if waits:
                await self._commit(self.now)
            await self._give_up(message, tally, why)
            return
        due_ms = self._due_ms(tally.failed, error)
        # Beyond the limit of parked messages, the partition waits instead of skipping another one.
        if not waits and (self._policy.blocking or len(self.now.parked) >= steps.PARKED_MAX):
            self.now = steps.tried(self.now, id, tally)
            self._not_before_ms = due_ms
        else:
            now = self.now if waits else steps.done(self.now, id)
            self.now = steps.parked(now, steps.Parked(id, tally.begun, due_ms, tally=tally))
        await self._commit(self.now)

    async def _give_up(self, message: Message, tally: steps.Tally, why: str) -> None:
        id = message.message_id
        if self._verdict is not None and self._verdict[0] == id:
            error = self._verdict[1]
        else:
            error = Failed(why) if tally.failed >= self._policy.attempts or tally.rejected else Vanished(why)
        await self._processor.bury(message, tally, error)  # First: if it is repeated, its key removes the copy.
        self._verdict = None
        await self._commit(self._dealt_with(id))

    def _dealt_with(self, id: str) -> steps.Progress:
        waits = any(one.id == id for one in self.now.parked)
        return steps.unparked(self.now, id) if waits else steps.done(self.now, id)

    # --- one try

    @asynccontextmanager
    async def _slot(self, id: str) -> AsyncIterator[bool]:
        """Wait for a slot for the message's job, and record the state in the meantime."""
        self.rank.waits(unix_ms_of(id))
        async with AsyncExitStack() as stack:
            async with self._recorded(self._processor.pace.commit_s):
                place = self._processor.caller.place(self._job, self._leaves, self.rank)
                granted = await stack.enter_async_context(place)
            yield granted

    def _open(self, id: str, tally: steps.Tally) -> None:
        self._with_job, self.now = id, steps.tried(self.now, id, tally)

    def _close(self, ending: steps.Ending) -> None:
        """Close the open attempt, if there is one that ended without an answer of its job."""
        if self._with_job:
            tally = steps.tally_of(self.now, self._with_job).closed(ending)
            self.now = steps.tried(self.now, self._with_job, tally)
            self._with_job = ""

    async def _try(self, batch: Sequence[Message], attempt: int, recorded_after_s: float) -> BaseException | None:
        """Run the job; return why it failed, or None if it succeeded."""
        figures, queue = self._processor.figures, self.partition.queue
        messages = [replace(message, attempt=attempt) for message in batch] if attempt > 1 else list(batch)
        if attempt > 1:
            figures.retries.labels(queue).inc()
        began_s = self._time()
        async with self._recorded(recorded_after_s):
            error = await self._called(messages)
        if error is not None:
            figures.failures.labels(queue).inc()
            log.info("%s: attempt %s at message %s failed: %r", self.partition, attempt, messages[0].message_id, error)
            return error
        self._job_s.observe(self._time() - began_s)
        self._done.inc(len(batch))
        return None

    async def _called(self, messages: Sequence[Message]) -> Exception | None:
        """Call the job; return its failure, or None. Raise StopWorker or Stuck."""
        subject = messages[0] if self._policy.batch == 1 else messages
        try:
            await self._processor.caller.run(
                self._job, subject, self._processor.context, limit_s=self._policy.time_limit_s
            )
        except (StopWorker, Stuck):
            raise
        except Exception as error:
            return error
        return None

    @asynccontextmanager
    async def _recorded(self, after_s: float) -> AsyncIterator[None]:
        """Record the state if the body takes longer."""
        begun: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        timer = loop.call_later(after_s, lambda: begun.append(loop.create_task(self._flush())))
        try:
            yield
        except BaseException:
            timer.cancel()
            await end(*begun)
            raise
        timer.cancel()
        for task in begun:
            await task  # Raises GuardLost where the partition is given up.

    def _due_ms(self, tries: int, error: BaseException) -> int:
        if isinstance(error, RetryLater):
            return self._processor.now_ms() + int(error.after_s * 1000)
        return self._processor.now_ms() + int(self._policy.delay_s(tries, self._processor.chance.random()) * 1000)

    # --- recording

    async def _commit(self, progress: steps.Progress) -> None:
        self.now = progress
        await self._ownership.commit(progress)
        self._processor.figures.commits.inc()
        self._since_commit, self._committed_s = 0, self._time()

    async def _commit_when_due(self) -> None:
        pace = self._processor.pace
        if self._since_commit >= pace.commit_count or self._time() - self._committed_s >= pace.commit_s:
            await self._commit(self.now)

    async def _flush(self) -> None:
        if self.now != self._ownership.stored:
            await self._commit(self.now)

    # --- waiting

    def _calms(self) -> None:
        """Record that there is nothing to do, unless something was posted in the meantime."""
        if not self._wake.is_set():
            self.rank.rests()

    def _wanted_elsewhere(self) -> bool:
        now_ms = self._processor.now_ms()
        return self._called_away() or any(one.due_ms <= now_ms for one in self.now.parked)

    def _called_away(self) -> bool:
        control = self._view.control(self.partition)
        return self.leaving or control.paused or control.seek is not None

    def _patience_s(self) -> float:
        pace = self._processor.pace
        dues = [one.due_ms for one in self.now.parked]
        if self._not_before_ms > (now_ms := self._processor.now_ms()):
            dues.append(self._not_before_ms)
        return min([pace.idle_s, *(max(due - now_ms, 1) / 1000 for due in dues)])

    async def _rest(self, for_s: float) -> None:
        """Wait until woken, and record after a while what is not recorded yet."""
        unrecorded = self.now != self._ownership.stored
        first_s = min(for_s, self._processor.pace.commit_s) if unrecorded else for_s
        try:
            async with asyncio.timeout(first_s):
                await self._wake.wait()
        except TimeoutError:
            if unrecorded:
                await self._flush()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

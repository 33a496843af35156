"""Process messages under leases of partitions, and try a job without a server."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import aiohttp
import msgspec

from headgate.adapters.identity.trust import trusting
from headgate.base.tasks import run_until, unless
from headgate.queue.client import text_of
from headgate.queue.messages.client import IDLE_MAX_S
from headgate.queue.messages.holders import DEFAULT_GROUP, Handed, MessageLease
from headgate.queue.workers.calls import JobCaller, JobExit, Stuck, error_text, log, retry_after_s
from headgate.queueing import Message, Reject, RetryLater, StopWorker
from headgate.queueing.ids import make_id, ticks_of_unix_ns, unix_text

WAIT_S = 20.0
"""Seconds for which the server holds a request for work open until there is some."""
RETRY_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class JobFunction:
    """Represent a function marked with `job`; it can still be called directly."""

    function: Callable[..., Any]  # a function of the user's
    queue: str
    attempts: int = 3
    time_limit_s: float = 0.0
    concurrency: int = 1
    """Partitions of the queue that one worker processes at the same time."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:  # as the function takes them
        return self.function(*arguments, **named)


def job(
    queue: str, *, attempts: int = 3, time_limit_s: float = 0.0, concurrency: int = 1
) -> Callable[[Callable[..., Any]], JobFunction]:
    """Mark `function(message, context)`, plain or async, as the job for the messages of a queue."""
    if attempts < 1 or concurrency < 1 or time_limit_s < 0:
        raise ValueError("attempts and concurrency are at least 1, time_limit_s at least 0")
    return lambda function: JobFunction(function, queue, attempts, time_limit_s, concurrency)


class _Answer(msgspec.Struct):
    lease: MessageLease | None = None
    messages: tuple[Handed, ...] = ()


class Worker:
    """Share partitions with every other worker of the group: `await Worker(url, app_key, jobs).run(stop)`."""

    def __init__(
        self,
        url: str,
        app_key: str,
        jobs: Sequence[JobFunction],
        *,
        context: Any = None,  # any context that jobs take
        group: str = DEFAULT_GROUP,
        ttl_s: float = 30.0,
        threads: int = 100,
        ca: str | Path = "",
    ) -> None:
        """Trust `ca`, a PEM file with the CA of the server's certificate, if the system does not trust it."""
        self._ca = ca
        self._url, self._headers = url.rstrip("/"), {"Authorization": f"Application {app_key}"}
        self._jobs, self._context, self._group, self._ttl_s = tuple(jobs), context, group, ttl_s
        self._caller = JobCaller(sum(one.concurrency for one in jobs) or 1, threads)
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._failure: JobExit | Stuck | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`, or until a job raises StopWorker: running jobs end, then every lease is returned.
        Raise JobExit if a job ended the process, Stuck when too many jobs cannot be stopped."""
        # More than the server may hold a request open, or every wait would end as a failure.
        timeout = aiohttp.ClientTimeout(total=WAIT_S + 30)
        trust = trusting(*([Path(self._ca)] if self._ca else ())) or True
        connector = aiohttp.TCPConnector(keepalive_timeout=IDLE_MAX_S, ssl=trust)
        over, ended, self._failure = asyncio.Event(), asyncio.Event(), None

        async def stopped() -> None:
            await stop.wait()
            over.set()

        async def work() -> None:
            # Each line holds one lease at a time, so there are as many as partitions may be processed concurrently.
            lines = [self._line(http, one, over) for one in self._jobs for _ in range(one.concurrency)]
            await run_until(asyncio.Event(), *lines)
            ended.set()

        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector) as http:
            try:
                await run_until(ended, stopped(), work())
            finally:
                self._caller.close()
        if self._failure is not None:
            raise self._failure

    async def _line(self, http: aiohttp.ClientSession, of: JobFunction, stop: asyncio.Event) -> None:
        """Work through one partition after another until `stop`; a job that ends the worker sets `stop`, too."""
        wait_s = 0.1
        while not stop.is_set():
            try:
                wanted = {"worker": self._name, "group": self._group, "ttl": self._ttl_s}
                request = self._ask(http, "POST", f"/{quote(of.queue)}/lease?wait={WAIT_S:g}", wanted)
                found = await unless(stop, request)
                if found is not None and found.lease is not None:
                    await self._hold(http, of, found.lease, stop)
                wait_s = 0.1
            except StopWorker as why:  # the lease expires, so that the next attempt at its message counts as a retry
                log.info("%s: a job asked the worker to stop: %s", of.queue, why)
                stop.set()
            # The other lines still finish their jobs; the first failure is raised when all have ended.
            except (JobExit, Stuck) as failure:
                self._failure = self._failure or failure
                stop.set()
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                log.warning("%s: %s; trying again in %.1f s", of.queue, error or type(error).__name__, wait_s)
                await unless(stop, asyncio.sleep(wait_s))
                wait_s = min(wait_s * 2, RETRY_MAX_S)

    async def _hold(
        self, http: aiohttp.ClientSession, of: JobFunction, lease: MessageLease, stop: asyncio.Event
    ) -> None:
        path, lost = f"/{quote(of.queue)}/lease/{lease.lease}", asyncio.Event()
        await run_until(lost, self._keep(http, path, lost), self._work(http, of, path, stop, lost))

    async def _keep(self, http: aiohttp.ClientSession, path: str, lost: asyncio.Event) -> None:
        """Extend the lease; set `lost` when it is lost, which stops the job."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._ttl_s
        while not lost.is_set():
            # Three extensions may fail before the lease ends.
            await asyncio.sleep(self._ttl_s / 4)
            try:
                # Counted from before the request: the server counts from its arrival, so the lease ends here before it
                # ends there.
                sent_s = loop.time()
                if await self._ask(http, "POST", path, {"ttl": self._ttl_s}) is None:
                    lost.set()
                until_s = sent_s + self._ttl_s
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                log.warning("the lease could not be extended: %s", error or type(error).__name__)
                # Another attempt would come too late. The job is stopped while nobody else can have its message.
                if loop.time() + self._ttl_s / 4 >= until_s:
                    lost.set()

    async def _work(
        self, http: aiohttp.ClientSession, of: JobFunction, path: str, stop: asyncio.Event, lost: asyncio.Event
    ) -> None:
        """Work through messages until none are left or `stop` is set; then give the lease back."""
        while not stop.is_set():
            # Waiting a second is cheaper than giving a partition back and taking it again between two posts.
            found = await self._ask(http, "GET", f"{path}?wait=1", None)
            if found is None or not found.messages:
                break
            for one in found.messages:
                outcome = await self._tried(of, one)
                if await self._ask(http, "POST", path, outcome) is None or stop.is_set():
                    break
        # Messages that were fetched and not begun count as never handed out, so they lose no attempt.
        await self._ask(http, "DELETE", path, None)
        lost.set()

    async def _tried(self, of: JobFunction, one: Handed) -> dict[str, Any]:
        """Return the outcome to report for a message. Raise StopWorker, JobExit, Stuck: these are not failures of the
        message."""
        message = Message(one.message_id, one.body, one.partition, one.timestamp, of.queue, one.attempt)
        failure: dict[str, Any] = {"message_id": one.message_id}
        try:
            await self._caller.call(of.function, message, self._context, limit_s=of.time_limit_s)
        except (StopWorker, Stuck):
            raise
        except Exception as error:
            log.info("%s: attempt %s at message %s failed: %r", of.queue, one.attempt, one.message_id, error)
            failure |= {"error": error_text(error), "reject": isinstance(error, Reject)}
            if isinstance(error, RetryLater):
                failure["retry_after"] = retry_after_s(error)
            return {"failed": [failure], "attempts": of.attempts, "ttl": self._ttl_s}
        return {"done": [one.message_id], "ttl": self._ttl_s}

    async def _ask(self, http: aiohttp.ClientSession, method: str, path: str, body: Any) -> _Answer | None:  # JSON
        """Ask the server; return None when the lease has ended. Raise what aiohttp raises, OSError."""
        async with http.request(method, self._url + path, json=body) as answer:
            if answer.status == 409:
                return None
            content = await answer.read()
            if answer.status >= 300:
                raise OSError(f"{self._url}{path.partition('?')[0]} returned status {answer.status}: {content[:500]!r}")
            return msgspec.json.decode(content, type=_Answer)


@dataclass(frozen=True, slots=True)
class Tried:
    """Hold the outcome of a job's attempt."""

    outcome: Literal["done", "failed", "rejected", "later", "stop"]
    error: Exception | None = None
    retry_after_s: float | None = None
    """Seconds until the next attempt, if the job asked for a time; else None."""


async def tried(
    job: JobFunction | Callable[..., Any],
    body: Any,  # any JSON value
    *,
    queue: str = "test",
    attempt: int = 1,
    context: Any = None,
    time_limit_s: float = 0.0,
) -> Tried:
    """Call the job as a worker does, with a message of this body, and return what a worker would do next. It needs no
    server, no store and no settings file."""
    ticks = ticks_of_unix_ns(time.time_ns())
    message = Message(make_id(ticks, 0, 1 << 40), text_of(body), 1, unix_text(ticks), queue, attempt)
    marked = job if isinstance(job, JobFunction) else JobFunction(job, queue)
    caller = JobCaller(1, 1)
    try:
        limit_s = time_limit_s or marked.time_limit_s
        await caller.call(marked.function, message, context, limit_s=limit_s)
    except Reject as error:
        return Tried("rejected", error)
    except RetryLater as error:
        return Tried("later", error, error.after_s)
    except StopWorker as error:
        return Tried("stop", error)
    except Exception as error:
        return Tried("failed", error)
    finally:
        caller.close()
    return Tried("done")

"""Try a job without a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from headgate.queue.client import text_of
from headgate.queue.leaseworker import JobFunction
from headgate.queue.workers.calls import JobCaller
from headgate.queueing import Message, Reject, RetryLater, StopWorker
from headgate.queueing.ids import make_id, ticks_of_unix_ns, unix_text


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
    """Call the job as a worker does, with a message of this body, and return what a worker would do next."""
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

"""Define which job processes the messages of a queue, under which limits, and what happens when it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

BATCH_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Policy:
    """Hold the limits of a queue; times are in seconds.  Impossible values raise ValueError, with the name of the
    setting."""

    attempts: int = 3
    """Failures of the job after which a message goes to the dead letters."""
    deaths: int = 0
    """Number of times that the process may end while a job has the message; 0 means the same number as `attempts`."""
    losses: int = 10
    """Number of times that the worker may lose its session while a job has the message."""
    departures: int = 10
    """Number of times that a worker that was asked to stop may leave before the job has ended."""
    retry_delay_s: float = 1.0
    retry_factor: float = 2.0
    retry_delay_max_s: float = 300.0
    jitter: float = 0.2
    """Fraction by which each delay is longer or shorter at random, at most."""
    blocking: bool = False
    """Whether messages behind a failed one wait until it succeeds or is given up; otherwise they continue in the
    meantime."""
    time_limit_s: float = 0.0
    """Time limit for one message or batch; 0 means none."""
    batch: int = 1
    """Messages that a job receives in one call; above 1 it receives a list."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("attempts", 1, 1_000),
            ("deaths", 0, 1_000),
            ("losses", 1, 1_000),
            ("departures", 1, 1_000),
            ("retry_delay_s", 0, 86_400),
            ("retry_factor", 1, 100),
            ("retry_delay_max_s", 0, 30 * 86_400),
            ("jitter", 0, 1),
            ("time_limit_s", 0, 30 * 86_400),
            ("batch", 1, BATCH_MAX),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be between {low} and {high}, not {getattr(self, name)}")

    @property
    def deaths_max(self) -> int:
        return self.deaths or self.attempts

    def delay_s(self, attempt: int, chance: float) -> float:
        """Return the delay before the next attempt, after `attempt` (counted from 1) failed. `chance` lies between 0
        and 1."""
        # The exponent is bounded: a factor of 100 to the power of 1,000 attempts does not fit into a float.
        grown = self.retry_delay_s * self.retry_factor ** min(attempt - 1, 64)
        # The jitter comes after the limit, so that messages at the limit do not all come back at the same moment.
        return min(grown, self.retry_delay_max_s) * (1 + self.jitter * (2 * chance - 1))


Job = Callable[[Any, Any], Any]
"""job(message, context), or job(messages, context) where the policy's `batch` is above 1; plain or async."""
Failure = Callable[[Any, Any, str, BaseException, Any], Any]
"""job_failure(message, context, queue, exc, client), called for every message that is given up; plain or async."""


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """Assign `job` to the queues whose names match `pattern`, as file names match."""

    pattern: str
    job: Job
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True)
class Routing:
    """Select the first route that matches; a queue that matches none is not processed."""

    routes: tuple[RoutingRule, ...]

    def of(self, queue: str) -> RoutingRule | None:
        return next((route for route in self.routes if fnmatchcase(queue, route.pattern)), None)

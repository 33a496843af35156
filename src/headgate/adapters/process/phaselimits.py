"""Limit how long the phases of a build take."""

from __future__ import annotations

from dataclasses import dataclass

PAUSE_TIMES, POST_TIMES = 8, 4
"""Pause of a build, in timeouts of a job that sets none; time of all post-run playbooks, in timeouts of one."""


@dataclass(frozen=True, slots=True)
class PhaseLimits:
    """Hold the time limits, in seconds, of a job that sets none itself."""

    timeout_s: int = 10_800
    post_timeout_s: int = 1_800

    @property
    def pause_s(self) -> float:
        """Return the longest pause. Without a limit, a build whose dependent jobs can never start, because they need
        what it holds, would keep its machines and semaphores forever."""
        return PAUSE_TIMES * self.timeout_s


def seconds(requested_s: int | None, default: float) -> float:
    """Return the seconds that a job requests, or `default` if it requests none or no limit."""
    return requested_s if requested_s is not None and requested_s > 0 else default

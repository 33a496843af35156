"""Decide which failed builds are held, with their directories and machines, for people to examine.  Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from headgate.config.patterns import BadPattern, Undecided, compiled
from headgate.gate.state.change import Change

RESULTS = frozenset({"FAILURE", "RETRY_LIMIT", "POST_FAILURE", "TIMED_OUT"})
"""Results of builds that may be held."""
EVERY = ".*"
"""The filter that matches every ref."""
FORGOTTEN_S = 86_400
"""Time for which an autohold is still shown after its last build was released."""


class HeldBuild(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one build that is held, or was."""

    build: str
    executor: str
    """Host of the executor that ran it."""
    directory: str
    """Its work directory on that host."""
    until_ms: int
    """Time at which it is released, in milliseconds since the epoch."""
    machines: tuple[str, ...] = ()
    """Names of its machines."""
    request: str = ""
    """Request for which the machines were claimed; empty if they are the executor's own."""
    over: bool = False
    """Whether it was released."""


class HoldRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent an autohold: a request to hold the machines of a job's failing builds."""

    id: str
    """Ten digits."""
    tenant: str
    project: str
    """Canonical name."""
    job: str
    ref_filter: str
    """A regular expression that must match the full ref."""
    count_max: int
    expiration_s: int
    """Time for which each build is held."""
    reason: str = ""
    who: str = ""
    at_ms: int = 0
    builds: tuple[HeldBuild, ...] = ()
    expired_ms: int = 0
    """Time at which the last of `count_max` builds was held, in milliseconds since the epoch; 0 while more may be
    held."""

    def fits(self, tenant: str, job: str, changes: Iterable[Change]) -> bool:
        """Return whether this request applies to a failed build of this job for these changes."""
        if self.expired_ms or (self.tenant, self.job) != (tenant, job):
            return False
        return any(change.project == self.project and _matches(self.ref_filter, change.ref) for change in changes)

    def holding(self, build: HeldBuild, now_ms: int) -> HoldRequest:
        """Return the request with one more held build."""
        builds = (*self.builds, build)
        return replace(self, builds=builds, expired_ms=now_ms if len(builds) >= self.count_max else 0)

    def at(self, now_ms: int) -> HoldRequest | None:
        """Return the request as of this time, with expired holds released; None: it must be deleted."""
        builds = tuple(replace(one, over=True) if one.until_ms <= now_ms else one for one in self.builds)
        last_ms = max((one.until_ms for one in builds), default=self.expired_ms)
        if self.expired_ms and last_ms + FORGOTTEN_S * 1000 <= now_ms:
            return None
        return self if builds == self.builds else replace(self, builds=builds)

    @property
    def next_ms(self) -> int | None:
        """Return the time at which its next hold ends or, after the last one, at which it is deleted; None: neither is
        scheduled."""
        pending = [one.until_ms for one in self.builds if not one.over]
        if not pending and self.expired_ms:
            pending = [max((one.until_ms for one in self.builds), default=self.expired_ms) + FORGOTTEN_S * 1000]
        return min(pending, default=None)


def chosen(requests: Iterable[HoldRequest], tenant: str, job: str, changes: Iterable[Change]) -> HoldRequest | None:
    """Return the request that applies to a failed build: of the most specific ones, the oldest."""
    every = tuple(changes)
    fitting = (one for one in requests if one.fits(tenant, job, every))
    # Ids increase in the order of the requests and have equal lengths, so they sort by age.
    return min(fitting, key=lambda one: (_breadth(one.ref_filter), one.id), default=None)


def _breadth(ref_filter: str) -> int:
    """Return 0 for a filter for one ref, 1 for one for all refs with a prefix, 2 for one for all refs."""
    return (2 if ref_filter == EVERY else 1) if ref_filter.endswith(EVERY) else 0


def _matches(ref_filter: str, ref: str) -> bool:
    try:
        return compiled(ref_filter).matcher.fullmatch(ref) is not None
    # If the matching takes too long, hold nothing, as held machines are missing elsewhere.
    except (BadPattern, Undecided):
        return False

"""Autohold: after which failed builds what they used is kept for people to look at.  Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from headgate.config.patterns import BadPattern, Undecided, compiled
from headgate.gate.change import Change

RESULTS = frozenset({"FAILURE", "RETRY_LIMIT", "POST_FAILURE", "TIMED_OUT"})
"""How a build must have ended to be held."""
EVERY = ".*"
"""The filter that every ref passes."""
FORGOTTEN_S = 86_400
"""A request that holds no more builds is shown for so long after the last of them was given back."""


class HeldBuild(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent one build that is held, or was."""

    build: str
    executor: str
    """Host of the executor that ran it."""
    directory: str
    """Its work directory there."""
    until_ms: int
    """When it is given back, milliseconds since the epoch, UTC."""
    machines: tuple[str, ...] = ()
    """Names of its machines."""
    request: str = ""
    """The request that they were claimed for; empty: they are the executor's own."""
    over: bool = False
    """It was given back."""


class HoldRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a request to hold the machines of a job's builds when they fail."""

    id: str
    """Ten digits."""
    tenant: str
    project: str
    """Canonical name."""
    job: str
    ref_filter: str
    """A regular expression for the whole ref."""
    count_max: int
    expiration_s: int
    """How long each of them is held."""
    reason: str = ""
    who: str = ""
    at_ms: int = 0
    builds: tuple[HeldBuild, ...] = ()
    expired_ms: int = 0
    """When the last of `count_max` was held; 0: there is room for more."""

    def fits(self, tenant: str, job: str, changes: Iterable[Change]) -> bool:
        """Return whether a failed build of this job for these changes keeps its machines."""
        if self.expired_ms or (self.tenant, self.job) != (tenant, job):
            return False
        return any(change.project == self.project and _matches(self.ref_filter, change.ref) for change in changes)

    def holding(self, build: HeldBuild, now_ms: int) -> HoldRequest:
        """Return it with one more build."""
        builds = (*self.builds, build)
        return replace(self, builds=builds, expired_ms=now_ms if len(builds) >= self.count_max else 0)

    def at(self, now_ms: int) -> HoldRequest | None:
        """Return what is left of it at this moment; None: nobody needs it any more."""
        builds = tuple(replace(one, over=True) if one.until_ms <= now_ms else one for one in self.builds)
        last_ms = max((one.until_ms for one in builds), default=self.expired_ms)
        if self.expired_ms and last_ms + FORGOTTEN_S * 1000 <= now_ms:
            return None
        return self if builds == self.builds else replace(self, builds=builds)

    @property
    def next_ms(self) -> int | None:
        """Return the moment at which something of it ends; None: nothing does by itself."""
        pending = [one.until_ms for one in self.builds if not one.over]
        if not pending and self.expired_ms:
            pending = [max((one.until_ms for one in self.builds), default=self.expired_ms) + FORGOTTEN_S * 1000]
        return min(pending, default=None)


def chosen(requests: Iterable[HoldRequest], tenant: str, job: str, changes: Iterable[Change]) -> HoldRequest | None:
    """Return the request that holds a failed build: the most specific one, and of those the oldest."""
    every = tuple(changes)
    fitting = (one for one in requests if one.fits(tenant, job, every))
    return min(fitting, key=lambda one: (_breadth(one.ref_filter), one.id), default=None)


def _breadth(ref_filter: str) -> int:
    """Return 0 for one ref, 1 for whatever begins alike, 2 for every ref."""
    return (2 if ref_filter == EVERY else 1) if ref_filter.endswith(EVERY) else 0


def _matches(ref_filter: str, ref: str) -> bool:
    try:
        return compiled(ref_filter).matcher.fullmatch(ref) is not None
    except (BadPattern, Undecided):
        return False

"""Compute the status of a tenant on request, at most once per change, and cache the latest."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from headgate.config.dynamic import TenantLayouts
from headgate.ports.history import HistoryReader, HistoryUnavailable
from headgate.web.problems import SystemProblems
from headgate.web.shapes import ItemShape, PipelineShape, ProblemShape, QueueShape, StatusShape
from headgate.web.status import Configured, Status

log = logging.getLogger("headgate.web")

ESTIMATE_BUILDS_MAX = 10
"""Number of the latest successful builds that an estimate is based on."""
ESTIMATE_AGE_MAX_MS = 300_000
"""Age of an estimate after which it is read from the history again."""
ESTIMATES_MAX = 10_000

TAG_CHARACTERS = 24
SHARE, BURST_S = 0.02, 0.2
"""Processor time for the statuses of each tenant: a share of it, after a burst of that many seconds. Within this
budget, statuses are computed on request; beyond it, the latest one is returned. So clients of a tenant, however many,
cost a fiftieth of the event loop. """
LEAST_S = 0.005
"""Cost that a cheaper status counts as, which includes its encoding, compression and sending. It limits statuses to
four a second, which is fast enough for people.
"""

EstimateKey = tuple[str, str, str, str]
"""tenant, job, project, branch"""


@dataclass(slots=True, eq=False)
class Estimates:
    """Estimate durations. `of` returns cached results immediately; `learn` reads missing ones from the history."""

    history: HistoryReader
    now_ms: Callable[[], int]
    _known: dict[EstimateKey, tuple[int, float | None]] = field(default_factory=dict)
    """Key -> the time of the query, and the estimate in seconds; None: there is no estimate."""
    _missed: set[EstimateKey] = field(default_factory=set)
    _edition: int = 0
    _oldest_ms: float = math.inf
    """Time of the oldest query whose result is still fresh, in milliseconds; infinite if there is none."""

    def edition(self) -> int:
        """Return a number that grows when the estimate of a job may have changed or has become too old."""
        now_ms = self.now_ms()
        if now_ms - self._oldest_ms > ESTIMATE_AGE_MAX_MS:
            self._edition += 1
            self._oldest_ms = min(
                (at for at, _ in self._known.values() if now_ms - at <= ESTIMATE_AGE_MAX_MS), default=math.inf
            )
        return self._edition

    def of(self, tenant: str, job: str, project: str, branch: str) -> float | None:
        key = (tenant, job, project, branch)
        at_ms, known_s = self._known.get(key, (None, None))
        if at_ms is None or self.now_ms() - at_ms > ESTIMATE_AGE_MAX_MS:
            self._missed.add(key)
        return known_s

    async def learn(self) -> bool:
        """Query the history, and return whether any estimate is new or different."""
        missed, self._missed = self._missed, set()
        # Everything is dropped: this is rare, and estimates that are still needed are read again immediately.
        if len(self._known) > ESTIMATES_MAX:
            self._known.clear()
        different = False
        for key in sorted(missed):
            was = self._known.get(key, (0, None))[1]
            try:
                took_ms = await self.history.durations_ms(*key, limit=ESTIMATE_BUILDS_MAX)
            except HistoryUnavailable as error:
                log.warning("no new estimates, as the history is unavailable: %s", error)
                took_ms = []
            # While the history is unavailable, the earlier estimate stays; the next query comes after the usual time.
            found = round(median(took_ms) / 1000, 1) if took_ms else was
            self._known[key] = (self.now_ms(), found)
            self._oldest_ms = min(self._oldest_ms, self._known[key][0])
            different = different or found != was
        self._edition += different
        return different


class ItemSpot(NamedTuple):
    """Locate one item in its queue."""

    pipeline: PipelineShape
    queue: QueueShape
    line: Sequence[ItemShape]
    """The live items of the queue."""
    position: int
    """Position of this item among them; items ahead come first."""

    @property
    def item(self) -> ItemShape:
        return self.line[self.position]


class ItemPlaces:
    """Locate all changes of one status."""

    def __init__(self, status: StatusShape) -> None:
        self.status = status
        self._pipelines: dict[str, dict[str, None]] = {}
        self._spots: dict[str, list[ItemSpot]] = {}
        for pipeline in status.pipelines:
            for queue in pipeline.change_queues:
                self._note(pipeline, queue)

    def _note(self, pipeline: PipelineShape, queue: QueueShape) -> None:
        items = [item for head in queue.heads for item in head]
        line = [item for item in items if item.live]
        for position, item in enumerate(line):
            for ref in item.refs:
                self._spots.setdefault(ref.key, []).append(ItemSpot(pipeline, queue, line, position))
        for key in (ref.key for item in items for ref in item.refs):
            self._pipelines.setdefault(key, {})[pipeline.name] = None

    def live(self, key: str) -> Sequence[ItemSpot]:
        """Return the places of a change as a live item."""
        return self._spots.get(key, ())

    def pipelines(self, key: str) -> tuple[str, ...]:
        """Return the pipelines of a change, including those in which it is only a dependency of another item."""
        return tuple(self._pipelines.get(key, ()))


@dataclass(frozen=True, slots=True)
class EncodedStatus:
    """Hold a status as JSON. Equal tags mean an equal status."""

    text: bytes
    """The document, with ids instead of items."""
    items: Mapping[bytes, bytes]
    """Id of an item -> the item."""
    tag: str


class EncodedItem(NamedTuple):
    shape: ItemShape
    name: bytes
    text: bytes
    digest: bytes


@dataclass(slots=True)
class StatusEncoder:
    """Encode the statuses of one tenant, one after the other."""

    _known: dict[str, EncodedItem] = field(default_factory=dict)

    def encoded(self, status: StatusShape) -> EncodedStatus:
        """Encode the status as a document and separate items, reusing items that have not changed."""
        before, self._known, pipelines = self._known, {}, []
        for pipeline in status.pipelines:
            queues = []
            for queue in pipeline.change_queues:
                self._known |= {item.id: _encoded(item, before) for head in queue.heads for item in head}
                heads = [[item.id for item in head] for head in queue.heads]
                queues.append({**msgspec.to_builtins(replace(queue, heads=())), "heads": heads})
            pipelines.append({**msgspec.to_builtins(replace(pipeline, change_queues=())), "change_queues": queues})
        text = msgspec.json.encode({**msgspec.to_builtins(replace(status, pipelines=())), "pipelines": pipelines})
        found = self._known.values()
        # Digests of unchanged items are reused, so the cost depends on what has changed, not on the size of the status.
        digest = hashlib.sha256(hashlib.sha256(text).digest() + b"".join([one.digest for one in found]))
        items = {one.name: one.text for one in found}
        return EncodedStatus(text, items, digest.hexdigest()[:TAG_CHARACTERS])


def _encoded(item: ItemShape, before: Mapping[str, EncodedItem]) -> EncodedItem:
    known = before.get(item.id)
    # Comparing identities is enough: an item keeps its shape object until its shape changes (`web/itemshapes`).
    if known is not None and known.shape is item:
        return known
    name, text = msgspec.json.encode(item.id), msgspec.json.encode(item)
    return EncodedItem(item, name, text, hashlib.sha256(text).digest())


@dataclass(slots=True)
class Spent:
    """Account for the processor time that the statuses of one tenant have used."""

    left_s: float = BURST_S
    """Processor time left, in seconds; negative when more was used than allowed."""
    at_s: float = 0.0
    """Time at which that was computed, by the clock of the process."""

    def may(self, now_s: float) -> bool:
        """Return whether another status may be computed, and count it."""
        self.left_s = min(BURST_S, self.left_s + SHARE * (now_s - self.at_s))
        self.at_s = now_s
        if self.left_s <= 0.0:
            return False
        self.left_s -= LEAST_S
        return True

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the processor time of the block, which must not wait for anything."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            # `may` has already charged `LEAST_S`, so only the excess is charged here.
            self.left_s -= max(0.0, time.thread_time() - began_s - LEAST_S)

    def once_more(self) -> None:
        """Allow one more status, whatever the earlier ones cost."""
        self.left_s = max(self.left_s, SHARE)


@dataclass(slots=True)
class Shot:
    """Hold the latest status of a tenant, with the state that it was computed from."""

    status: StatusShape
    encoded: EncodedStatus
    moves: int
    layouts: TenantLayouts
    loaded: bool
    away: tuple[ProblemShape, ...]
    places: ItemPlaces | None = None
    """Places of the changes in the status; None until they are requested."""

    @property
    def tag(self) -> str:
        """Return a tag that differs for different statuses."""
        return self.encoded.tag


@dataclass(slots=True)
class Shots:
    """Compute statuses."""

    status: Status
    estimates: Estimates
    problems: SystemProblems
    _latest: dict[str, Shot] = field(default_factory=dict)
    _spent: dict[str, Spent] = field(default_factory=dict)
    _encoders: dict[str, StatusEncoder] = field(default_factory=dict)

    async def of(self, configured: Configured) -> Shot:
        """Return the current status, rebuilt only if the mirror, configuration or availability of the store changed."""
        known, loaded = self._latest.get(configured.tenant.name), configured.loaded.is_set()
        if known is not None and known.loaded == loaded:
            same = (known.moves, known.away) == (self.status.context.mirror.moves, self.problems.away())
            if same and known.layouts is configured.layouts:
                return known
        spent = self._spent.setdefault(configured.tenant.name, Spent())
        # The first status is computed even beyond the budget, as there is nothing else to return.
        if not spent.may(time.monotonic()) and known is not None and known.loaded == loaded:
            return known
        found = self._made(configured, spent)
        # Computing the status registers the jobs whose estimates are missing; the second one includes these.
        if await self.estimates.learn():
            found = self._made(configured, spent)
        return found

    def _made(self, configured: Configured, spent: Spent) -> Shot:
        """Compute and cache a new status."""
        with spent.counting():
            name, moves = configured.tenant.name, self.status.context.mirror.moves
            status = self.status.of(name, self.estimates)
            status = replace(status, problems=(*self.problems.all(), *status.problems))
            encoded = self._encoders.setdefault(name, StatusEncoder()).encoded(status)
            found = self._latest[name] = Shot(
                status, encoded, moves, configured.layouts, configured.loaded.is_set(), self.problems.away()
            )
            return found

    def stale(self) -> None:
        """Allow every status to be recomputed at the next request, even if the budget is used up."""
        for spent in self._spent.values():
            spent.once_more()

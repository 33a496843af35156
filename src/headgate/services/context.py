"""Define the context that all services of a process share."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from headgate.gate.state.model import Item
from headgate.gate.state.works import LandRequest
from headgate.map import outbox
from headgate.map.places import Map
from headgate.map.records import ComponentRecord
from headgate.map.tree import unescape
from headgate.ports.forge import Forge, Hears
from headgate.ports.history import HistoryReader
from headgate.ports.judge import Judging
from headgate.ports.observer import Nobody, Observer
from headgate.recipes import codec
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Open, RequestPlaces
from headgate.recipes.requests import Requests
from headgate.recipes.stream import Stream
from headgate.store.store import Store
from headgate.store.types import OPS_MAX, Entry, Op

log = logging.getLogger("headgate.published_events")

E = TypeVar("E")

LENGTHY_MAX = 1_000
"""Number of reports that wait for one connection at full length; later ones are shortened."""
WAITING_MAX = 10_000
"""Limit on the turns whose messages wait for one message server, and on the buildsets that wait for the history."""

COMMIT_OPS_MAX = OPS_MAX - 4
"""Limit on the operations in one commit of a turn, which leaves room for guards."""


class Outboxes(NamedTuple):
    """Collect a turn's requests and reports to forges."""

    lands: Mapping[str, str] = MappingProxyType({})
    """Forge -> how it lands changes (`ports.forge.Abilities`)."""
    tell: Callable[[str, outbox.OutboxMessage], list[Op]] = lambda _, __: []
    ask: Callable[[str, Sequence[outbox.OutboxMessage]], list[Op]] = lambda _, __: []
    first: Callable[[LandRequest, Item], Sequence[outbox.OutboxMessage]] = lambda _, __: ()
    """Returns the reports that a forge gets before the request to merge."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Hold the settings that every component of one process shares."""

    hostname: str = field(default_factory=socket.gethostname)
    logs_root: str = ""
    """Base URL at which everybody can read the log store without Headgate, without a trailing slash."""
    logs_retention_ms: int = 0
    """Time for which logs or artifacts of builds are stored; 0: until somebody deletes them."""
    publishing: bool = False
    """Whether events are published to message queues."""
    ops_max: int = COMMIT_OPS_MAX
    """Limit on the operations in one commit of a turn; a larger turn is split."""
    waiting_max: int = WAITING_MAX
    """Limit on the turns whose messages wait for one receiver."""


@dataclass(slots=True)
class PageAddress:
    """Hold the public address of the pages, which a process may learn only after it has bound its port."""

    url: str = ""
    """Without a trailing slash; empty if unknown."""

    def learn(self, url: str) -> None:
        """Take the address of the bound port, unless the settings name another one."""
        self.url = self.url or url


@dataclass(frozen=True, slots=True)
class Context:
    """Hold the resources that one process shares: its store, its mirror, its clock, its settings and its
    connections."""

    store: Store
    mirror: Mirror
    now_ms: Callable[[], int]
    settings: ProcessSettings = field(default_factory=ProcessSettings)
    map: Map = field(default_factory=Map)
    pages: PageAddress = field(default_factory=PageAddress)
    observer: Observer = field(default_factory=Nobody)
    knows: int = codec.FORMAT
    """The newest format of records that this process can read and write."""
    judging: Judging | None = None
    """Judges proposed configuration; without it, each turn judges proposals itself."""
    forges: Mapping[str, Forge] = field(default_factory=dict)
    """Forges by the names of their connections, in the order of the settings, without connections of plain git."""
    poked: Mapping[str, Hears] = field(default_factory=dict)
    """Connections of plain git whose servers announce pushes."""
    history: HistoryReader | None = None
    """Source of ended buildsets for schedulers; without it, the history counts as empty."""
    _queues: dict[str, Requests] = field(default_factory=dict)

    def log_url(self, tenant: str, build: str) -> str:
        """Return the address of a build's logs once it has ended; empty if the settings do not set our own address."""
        if self.settings.logs_root:
            return f"{self.settings.logs_root}/{build}/"
        return f"{self.pages.url}/t/{quote(tenant)}/logs/{build}/" if self.pages.url else ""

    def hears(self, connection: str) -> Hears | None:
        """Return the receiver of deliveries to a connection; None if it accepts none."""
        forge = self.forges.get(connection)
        return forge if forge is not None and forge.can.webhooks else self.poked.get(connection)

    def published(self, *events: outbox.PublishedEvent) -> list[Op]:
        """Return operations that publish events, for the commit that makes them true. While `waiting_max` records wait
        for an unavailable server, return none."""
        if not self.settings.publishing or not events:
            return []
        return self._bounded(
            "published events", self.map.published_events.stream, outbox.PublishedEvents(events), len(events)
        )

    def reported(self, connection: str, outgoing: outbox.OutboxMessage) -> list[Op]:
        """Return operations that append a pipeline's report to the outbox of a connection, for the commit that makes it
        true. If many reports already wait, shorten this one; if `waiting_max` wait, return none."""
        stream = self.map.reports(connection).stream
        many = stream.length(self.mirror) >= LENGTHY_MAX
        # A receiver that is unavailable for days must not fill the store, so reports are shortened before any is
        # dropped.
        fitting = outbox.fitted(outgoing, outbox.SHORT_MAX_BYTES if many else outbox.LONG_MAX_BYTES)
        return self._bounded(connection, stream, outbox.OutboxMessages((fitting,)), 1)

    def outboxes(self, first: Callable[[LandRequest, Item], Sequence[outbox.OutboxMessage]]) -> Outboxes:
        """Return the outboxes of a turn. `first` returns the reports that a forge gets before the request to merge."""
        lands = {name: forge.can.lands for name, forge in self.forges.items()}
        return Outboxes(lands, self.reported, self.requested_of, first)

    @property
    def merging(self) -> frozenset[str]:
        """Return the forges that make merges themselves."""
        return frozenset(name for name, forge in self.forges.items() if forge.can.lands == "merge")

    def requested_of(self, connection: str, messages: Sequence[outbox.OutboxMessage]) -> list[Op]:
        """Return operations that request actions of a forge in order, for the commit that makes them necessary. They
        are never omitted, because a pipeline waits for the answer."""
        return self.map.reports(connection).stream.append(outbox.OutboxMessages(tuple(messages)))

    def _bounded(self, to: str, stream: Stream[E], event: E, messages: int) -> list[Op]:
        if stream.length(self.mirror) < self.settings.waiting_max:
            return stream.append(event)
        # The gate continues, because undelivered messages must not stop changes.
        waiting_max = self.settings.waiting_max
        log.error("%s: %s turns already wait to be posted; dropping %s messages", to, waiting_max, messages)
        self.observer.dropped(to, messages)
        return []

    def remembers(self) -> bool:
        """Return whether the queue of the history has room for more than the ends of items, which always have room."""
        return self.map.history.stream.length(self.mirror) < self.settings.waiting_max

    def members(self, prefix: str) -> dict[str, ComponentRecord]:
        """Return the components with entries below `prefix`, by path, oldest first, without damaged ones."""
        found = ((entry.path, _member(entry)) for entry in self.mirror.under(prefix))
        return {path: record for path, record in found if record is not None}

    @property
    def builds(self) -> Requests:
        """Return the requests for executors without a zone."""
        return self.zone("")

    def zone(self, name: str) -> Requests:
        """Return the build requests for the executors of a zone; the empty name means no zone."""
        executor = self.map.executor
        return self._queue((executor.zones(name) if name else executor.unzoned).places)

    def zones(self) -> list[Requests]:
        """Return the build requests of every zone, those without a zone first."""
        return [self.zone(""), *map(self.zone, self.zone_names())]

    def build_request(self, build: str) -> Open | None:
        """Return the open request of a build, whatever its zone; None if there is none."""
        found = (queue.find(build, self.mirror) for queue in self.zones())
        return next((one for one in found if one is not None), None)

    def zone_names(self) -> list[str]:
        """Return the names of all zones."""
        # Zones are known by what is stored for them, so a zone without executors still counts.
        return [unescape(name) for name in sorted(self.mirror.names(self.map.executor.zones.path))]

    @property
    def merges(self) -> Requests:
        return self._queue(self.map.merger.places)

    def _queue(self, places: RequestPlaces) -> Requests:
        found = self._queues.get(places.requests)
        if found is None:
            found = self._queues[places.requests] = Requests(self.store, places)
        return found


@lru_cache(maxsize=10_000)
def _member(entry: Entry) -> ComponentRecord | None:
    """Decode a component's record; cached, because every claim reads them and they rarely change."""
    return codec.readable(entry, ComponentRecord)

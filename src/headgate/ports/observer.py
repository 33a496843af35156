"""Define observers, which collect metrics and traces. An observer must return immediately and never fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headgate.map.records import Finished


class WorkDone(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one piece of work done for an item."""

    kind: str
    """merge | land | report | cat | build"""
    tenant: str = ""
    pipeline: str = ""
    item: str = ""
    buildset: str = ""
    change: str = ""
    job: str = ""
    id: str
    """Id of the request."""
    result: str
    start_ms: int
    end_ms: int


class Observer(Protocol):
    def turn(self, tenant: str, pipeline: str, events: int, took_s: float) -> None:
        """Observe that a pipeline's scheduler has decided and committed."""
        ...

    def done(self, work: WorkDone) -> None: ...
    def finished(self, finished: Finished) -> None:
        """Observe that a buildset is now in the history."""
        ...

    def dropped(self, to: str, messages: int) -> None:
        """Observe that messages for a server were dropped, because too many wait for it or it rejects them."""
        ...

    def shown(self, kind: str, cpu_s: float) -> None:
        """Observe the CPU time of pages and API in this process; `kind`: `request`, or `stream` for all its readers."""
        ...


class Nobody:
    """Observe nothing."""

    def turn(self, tenant: str, pipeline: str, events: int, took_s: float) -> None: ...
    def done(self, work: WorkDone) -> None: ...
    def finished(self, finished: Finished) -> None: ...
    def dropped(self, to: str, messages: int) -> None: ...
    def shown(self, kind: str, cpu_s: float) -> None: ...


class Everybody:
    """Pass observations to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def turn(self, tenant: str, pipeline: str, events: int, took_s: float) -> None:
        for one in self._observers:
            one.turn(tenant, pipeline, events, took_s)

    def done(self, work: WorkDone) -> None:
        for one in self._observers:
            one.done(work)

    def finished(self, finished: Finished) -> None:
        for one in self._observers:
            one.finished(finished)

    def dropped(self, to: str, messages: int) -> None:
        for one in self._observers:
            one.dropped(to, messages)

    def shown(self, kind: str, cpu_s: float) -> None:
        for one in self._observers:
            one.shown(kind, cpu_s)

"""What a request is, and where its parts lie."""

from __future__ import annotations

import msgspec

from headgate.store.types import Entry


class RequestPlaces(msgspec.Struct, frozen=True):
    """Name the paths of one queue of requests."""

    requests: str
    locks: str
    params: str
    result_data: str
    results: str
    waiters: str


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name who runs a request."""

    hostname: str = ""
    component: str = ""
    """The path of its entry in the registry."""
    start_ms: int = 0
    """When it began."""


NOBODY = Owner()


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    precedence: int = 200
    """Lower goes first."""
    state: str = "requested"
    """requested | running | waiting: its worker waits for something, and does other work meanwhile | paused: its worker
    waits for the submitter to say `resume`"""
    wanted: str = "run"
    """run | resume | cancel: what the submitter wants now; the worker compares, it is not told."""
    waited: bool = False
    """The submitter waits for the result here; otherwise the answer goes where `meta` says."""
    owner: Owner = NOBODY
    meta: dict[str, str] = {}
    """What it belongs to: tenant, pipeline, item, buildset, job…"""


class Open(msgspec.Struct, frozen=True):
    """Represent a request as the mirror shows it."""

    entry: Entry
    request: Request
    locked: bool
    places: RequestPlaces

    @property
    def queue(self) -> str:
        return self.places.requests

"""Define the records of a request, and the paths of its parts."""

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

    def paused(self, id: str) -> str:
        """Return the path of what a paused request has returned so far."""
        return f"{self.result_data}/{id}.paused"


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name the component that runs a request."""

    hostname: str = ""
    component: str = ""
    """Path of the component's entry in the registry."""
    start_ms: int = 0
    """Time at which the component claimed the request, in milliseconds since 1970; 0 when unknown."""


NOBODY = Owner()


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    precedence: int = 200
    """Requests with a lower number go first."""
    state: str = "requested"
    """requested | running | waiting: its worker waits for something, and does other work in the meantime | paused: its
    worker waits until `wanted` is `resume`"""
    wanted: str = "run"
    """What the submitter wants now: run | resume | cancel. The worker reads it from its mirror; no message is sent."""
    waited: bool = False
    """Whether the submitter waits for the result in its own process; otherwise the answer goes where `meta` says."""
    owner: Owner = NOBODY
    meta: dict[str, str] = {}
    """What the request belongs to: tenant, pipeline, item, buildset, job…"""


class Open(msgspec.Struct, frozen=True):
    """Represent a request as the mirror shows it."""

    entry: Entry
    request: Request
    locked: bool
    places: RequestPlaces

    @property
    def queue(self) -> str:
        return self.places.requests

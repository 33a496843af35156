"""One port for all that speaks HTTP: the gate's pages and API, the queues of messages, the inventory as JSON."""

from __future__ import annotations

from headgate.web.peers.requests import App, Message, Receive, Send

QUEUES, INVENTORY = "/queues", "/inventory"
"""Prefixes of the queues' descriptions and figures, and of all requests to the inventory. The queues are below /v1."""


class Front:
    """Combine several ASGI applications into one, by the prefix of the path."""

    def __init__(self, gate: App, queues: App | None = None, inventory: App | None = None) -> None:
        self._gate, self._queues, self._inventory = gate, queues, inventory

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and self._queues is not None and _below(path, "/v1"):
            await self._queues(scope, receive, send)
        elif scope["type"] == "http" and self._queues is not None and _below(path, QUEUES):
            await self._queues(_without(scope, QUEUES), receive, send)
        elif scope["type"] == "http" and self._inventory is not None and _below(path, INVENTORY):
            await self._inventory(_without(scope, INVENTORY), receive, send)
        else:
            await self._gate(scope, receive, send)


def _below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def _without(scope: Message, place: str) -> Message:
    """Return the request for an application that does not know the prefix of its own paths."""
    raw = scope["raw_path"]
    begin = place.encode()
    return {
        **scope,
        "path": scope["path"].removeprefix(place) or "/",
        # The raw path may spell the prefix with percent-encoded characters; then it is left alone.
        "raw_path": (raw.removeprefix(begin) or b"/") if raw.startswith(begin) else raw,
    }

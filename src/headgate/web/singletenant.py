"""One tenant at the root: who asks for `/api/builds` or `/builds` is answered as for that tenant."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from headgate.web.peers.requests import READING, App, Message, Receive, Send

ALSO = frozenset({"info", "authorizations"})
"""What is there for the root as well, and is then the tenant's: clients read of `info` that there is but one."""


def of_tenants(paths: Iterable[str]) -> frozenset[str]:
    """Return the words below a tenant that are not also paths of the root."""
    tenants, root = set[str](), set[str]()
    for path in paths:
        words = path.strip("/").split("/")
        if words[:2] == ["api", "tenant"] and len(words) > 3:
            tenants.add(words[3])
        elif words[0] == "api" and len(words) > 1:
            root.add(words[1])
    return frozenset((tenants - root) | ALSO)


class Rooted:
    """Show an application as that of one tenant; its other paths stay where they are."""

    def __init__(self, app: App, tenant: str, calls: frozenset[str], pages: Iterable[str]) -> None:
        """Take `calls`, words below `/api` that are the tenant's, and `pages`, words at the root that are pages of
        it."""
        self._app, self._tenant, self._calls, self._pages = app, tenant, calls, frozenset(pages)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        words = [word for word in scope.get("path", "").split("/") if word]
        if words[:1] == ["api"] and len(words) > 1 and words[1] in self._calls:
            own = f"/api/tenant/{self._tenant}"
            raw = quote(own).encode() + scope["raw_path"].lstrip(b"/").removeprefix(b"api")
            below = scope["path"].lstrip("/").removeprefix("api")
            await self._app({**scope, "path": own + below, "raw_path": raw}, receive, send)
        elif scope["type"] == "http" and scope["method"] in READING and words and words[0] in self._pages:
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            there = quote(f"/t/{self._tenant}/").encode() + scope["raw_path"].lstrip(b"/") + query
            await send({"type": "http.response.start", "status": 307, "headers": [(b"location", there)]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, send)

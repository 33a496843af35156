"""Build the ASGI application: REST under /api, live status and logs, pages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from urllib.parse import quote

from headgate.rest import Connection, Handler, WebApplication
from headgate.web import process
from headgate.web.access import Access
from headgate.web.answers import HANDLERS, Mannered
from headgate.web.description import HEADERS
from headgate.web.peers.requests import READING, App, Message, Receive, Send
from headgate.web.routes import (
    about,
    actions,
    autohold,
    changes,
    configuration,
    control,
    history,
    hooks,
    images,
    linecomments,
    live,
    login,
    logs,
    machines,
    orders,
    pages,
    quarantine,
    review,
    speech,
    summaries,
    testresults,
)
from headgate.web.site import OPEN, Site, must_read
from headgate.web.viewers.audience import Documents

ALSO = frozenset({"info", "authorizations"})
"""Paths below /api that exist both at the root and for a tenant. An application rooted at a tenant serves the tenant's:
`info` then tells clients that there is only one tenant."""


def of_tenants(paths: Iterable[str]) -> frozenset[str]:
    """Return the first words of paths below a tenant that are not also paths of the root, and `ALSO`."""
    tenants, root = set[str](), set[str]()
    for path in paths:
        words = path.strip("/").split("/")
        if words[:2] == ["api", "tenant"] and len(words) > 3:
            tenants.add(words[3])
        elif words[0] == "api" and len(words) > 1:
            root.add(words[1])
    return frozenset((tenants - root) | ALSO)


class Rooted:
    """Serve one tenant's API and pages at the root of an application; all other paths stay where they are."""

    def __init__(self, app: App, tenant: str, calls: frozenset[str], pages: Iterable[str]) -> None:
        """Serve `tenant` at the root. `calls` holds the first words of its paths below `/api`, `pages` those of its
        pages."""
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
            location = quote(f"/t/{self._tenant}/").encode() + scope["raw_path"].lstrip(b"/") + query
            await send({"type": "http.response.start", "status": 307, "headers": [(b"location", location)]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, send)


_MODULES = (
    process, about, live, history, summaries, changes, configuration, machines, images, control, orders, autohold,
    actions, review, speech, quarantine, hooks, logs, testresults, linecomments, login, pages,
)  # fmt: skip
AWAY = b"headgate-away-since"
"""Response header while the store is unreachable: when that began, in milliseconds since the epoch."""
ROUTES = tuple(route for module in _MODULES for route in module.ROUTES)


async def _readable(site: Site, connection: Connection, handler: Handler) -> None:
    """Refuse a tenant's data to callers who may not read the tenant; the pages themselves hold no data and are open.

    Websockets pass, too: clients that stream a log send the token in the first message, and are checked then.
    """
    tenant = connection.path_params.get("tenant")
    if tenant is None or handler.opt.get(OPEN) or connection.scope["type"] == "websocket":
        return
    must_read(site, connection, tenant)


def create_app(site: Site, vitals: process.Vitals | None = None) -> App:
    """Return the application that serves the site's data and, if there are `vitals`, the health of the process."""
    # Tags and compression come last, so that they also apply to errors and to what the inner layers add.
    app = Mannered(_KeyedApplication(site.access, _routed(site, vitals)))
    if not site.settings.at_root:
        return app
    paths = [path for route in ROUTES for path in route.paths]
    # `/queues` belongs to the queue server, which may share the port.
    return Rooted(app, site.settings.at_root, of_tenants(paths), (name for name in pages.PAGES if name != "queues"))


class _KeyedApplication:
    """Hold a request with a token until the key that signed the token is fetched; other requests do not wait."""

    def __init__(self, access: Access, app: App) -> None:
        self._access, self._app = access, app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"").decode("latin-1")
            if given:
                # Fetched here, as verification itself is synchronous and must not wait for a provider.
                await login.expected(self._access, given.partition(" ")[2].strip())
        await self._app(scope, receive, send)


def _routed(site: Site, vitals: process.Vitals | None) -> App:
    served = [route for route in ROUTES if vitals is not None or route not in process.ROUTES]
    now_ms, guard, refused = site.context.now_ms, partial(_readable, site), actions.RefusedWrites(site).note
    own = (Documents(now_ms), changes.RecentCosts(site.history, now_ms), hooks.DeliveryBodies())
    shared = [site, site.access, vitals, *own]
    app = WebApplication(served, shared, guard=guard, headers=HEADERS, answers=HANDLERS, refused=refused)

    async def dated(scope: Message, receive: Receive, send: Send) -> None:
        """Add the time at which the store became unreachable: the response describes the state at that time."""

        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start" and (away := site.problems.away()):
                message["headers"].append((AWAY, str(away[0].since).encode()))
            await send(message)

        await app(scope, receive, send_dated)

    return dated

"""The ASGI application: REST under /api, live status and logs, pages."""

from __future__ import annotations

import logging

from litestar import Litestar, Response
from litestar.datastructures import State
from litestar.enums import ScopeType
from litestar.handlers.base import BaseRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin

from headgate import __version__
from headgate.ports.history import HistoryUnavailable
from headgate.web.access import Connection
from headgate.web.routes import (
    actions,
    approvals,
    autohold,
    configuration,
    control,
    keys,
    live,
    logs,
    orders,
    pages,
    past,
    quarantine,
    queues,
    reports,
    vitals,
)
from headgate.web.site import OPEN, HttpRequest, Site, site_of

log = logging.getLogger("headgate.web")

_MODULES = (
    vitals, live, past, configuration, control, orders, autohold, actions, approvals, quarantine, reports, keys,
    logs, queues, pages,
)  # fmt: skip
ROUTES = tuple(route for module in _MODULES for route in module.ROUTES)


def _no_history(request: HttpRequest, error: HistoryUnavailable) -> Response[dict[str, str]]:
    detail = f"the history cannot be read just now: {error}; the queues are not affected"
    return Response({"detail": detail}, status_code=503)


def _fault(request: HttpRequest, error: Exception) -> Response[dict[str, int | str]]:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return Response({"status_code": 500, "detail": "Internal Server Error"}, status_code=500)


def _no_body(request: HttpRequest, error: Exception) -> Response[dict[str, int | str]]:
    what = "nested too deep" if isinstance(error, RecursionError) else "not Unicode"
    return Response({"status_code": 400, "detail": f"what was sent is {what}"}, status_code=400)


def _readable(connection: Connection, handler: BaseRouteHandler) -> None:
    """A tenant that is not for everybody: only who may read it gets anything but the pages, which hold nothing.
    Whoever streams a log names the token in the first message."""
    tenant = connection.path_params.get("tenant")
    if tenant is None or handler.opt.get(OPEN) or connection.scope["type"] is ScopeType.WEBSOCKET:
        return
    site = site_of(connection.app.state)
    site.readable(tenant, site.access.bearer(connection))


def create_app(site: Site) -> Litestar:
    """The application; what it knows is the site's."""
    return Litestar(
        ROUTES,
        state=State({"site": site, "vitals": site.vitals, "access": site.access}),
        response_headers={"Access-Control-Allow-Origin": "*", "X-Content-Type-Options": "nosniff"},
        guards=[_readable],
        exception_handlers={
            HistoryUnavailable: _no_history,
            RecursionError: _no_body,
            UnicodeError: _no_body,
            500: _fault,
        },
        openapi_config=OpenAPIConfig(
            title="Headgate",
            version=__version__,
            description="Zuul's REST API, as far as Headgate has what it speaks of.",
            path="/openapi",
            use_handler_docstrings=True,
            render_plugins=[
                JsonRenderPlugin(path="/openapi.json"),
                YamlRenderPlugin(path=["/openapi.yaml", "/openapi.yml"]),
            ],
        ),
        logging_config=None,
    )

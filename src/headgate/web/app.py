"""The ASGI application: REST under /api, live status and logs, pages."""

from __future__ import annotations

from litestar import Litestar, Response
from litestar.datastructures import State
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin

from headgate import __version__
from headgate.ports.history import HistoryUnavailable
from headgate.web.routes import configuration, control, keys, live, logs, pages, past, vitals
from headgate.web.site import HttpRequest, Site

_MODULES = (vitals, live, past, configuration, control, keys, logs, pages)
ROUTES = tuple(route for module in _MODULES for route in module.ROUTES)


def _no_history(request: HttpRequest, error: HistoryUnavailable) -> Response[dict[str, str]]:
    detail = f"the history cannot be read just now: {error}; the queues are not affected"
    return Response({"detail": detail}, status_code=503)


def create_app(site: Site) -> Litestar:
    """The application; what it knows is the site's."""
    return Litestar(
        ROUTES,
        state=State({"site": site, "vitals": site.vitals}),
        response_headers={"Access-Control-Allow-Origin": "*", "X-Content-Type-Options": "nosniff"},
        exception_handlers={HistoryUnavailable: _no_history},
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

"""Serve the health and the metrics of this process."""

from __future__ import annotations

from headgate.rest import HttpRequest, Response, get
from headgate.web.access import Access
from headgate.web.vitals import ProcessHealth, Vitals


@get("/health/live")
async def live() -> dict[str, bool]:
    """Answer 200 while the process responds; if there is no answer, restart the process."""
    return {"alive": True}


@get("/health/ready", opt={"alike": (503,)})
async def ready(vitals: Vitals) -> Response[ProcessHealth]:
    """Answer 200 while every component of the process is a member, otherwise 503 with the missing ones."""
    health = vitals.health
    return Response(health, status_code=200 if health.ready else 503)


@get("/metrics", opt={"answers": ("text/plain",)})
async def metrics(vitals: Vitals, access: Access, request: HttpRequest) -> Response[bytes]:
    """Return Prometheus metrics, for callers with a token, or for everybody if `[web] metrics` says so."""
    access.must_read_figures(request)
    return Response(vitals.figures(), media_type="text/plain; version=0.0.4")


ROUTES = (live, ready, metrics)

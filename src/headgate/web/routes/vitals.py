"""Health and figures of this process."""

from __future__ import annotations

from headgate.rest import HttpRequest, Response, get
from headgate.web.access import Access
from headgate.web.vitals import ProcessHealth, Vitals


@get("/health/live")
async def live() -> dict[str, bool]:
    """Answer 200 for as long as the process answers: otherwise start it anew."""
    return {"alive": True}


@get("/health/ready", opt={"alike": (503,)})
async def ready(vitals: Vitals) -> Response[ProcessHealth]:
    """Answer 200 when every component of the process takes part, else 503 with what is missing."""
    health = vitals.health
    return Response(health, status_code=200 if health.ready else 503)


@get("/metrics", opt={"answers": ("text/plain",)})
async def metrics(vitals: Vitals, access: Access, request: HttpRequest) -> Response[bytes]:
    """Return figures, in Prometheus' text format, for who brings a token, or for everybody (`[web] metrics`)."""
    access.must_read_figures(request)
    return Response(vitals.figures(), media_type="text/plain; version=0.0.4")


ROUTES = (live, ready, metrics)

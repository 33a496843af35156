"""Serve the pages: each is an empty document, which its script fills with data from the API."""

from __future__ import annotations

from urllib.parse import quote

from headgate.rest import HttpRequest, NotFoundException, Redirect, Response, get
from headgate.web.answers import document, static_file
from headgate.web.site import OPEN, Site

PAGES = {
    "status": "Status",
    "builds": "Builds",
    "buildsets": "Buildsets",
    "build": "Build",
    "buildset": "Buildset",
    "changes": "Changes",
    "change": "Change",
    "projects": "Projects",
    "project": "Project",
    "jobs": "Jobs",
    "health": "Flaky jobs and resets",
    "reports": "Reports",
    "autoholds": "Autoholds",
    "job": "Job",
    "errors": "Configuration errors",
    "components": "Processes",
    "queues": "Message queues",
    "actions": "Manual actions",
    "statistics": "Statistics",
    "freeze": "Job graph",
    "nodes": "Machines",
    "requests": "Requests for machines",
    "providers": "Providers of machines",
    "images": "Images",
    "semaphores": "Semaphores",
    "events": "System events",
}
"""Name of the page in the URL, and of its script -> title."""
ELSEWHERE = {"config-errors": "errors"}
"""Name of a page in the URLs of Zuul's pages -> name here, so that people's bookmarks and runbooks keep working."""
_HEADERS = {"Cache-Control": "no-cache", "Vary": "Accept, Authorization, Cookie"}


@get("/", include_in_schema=False)
async def index(site: Site, request: HttpRequest) -> Response[str] | Redirect:
    """Redirect to the only tenant if there is one and the caller may read it; otherwise return the page that lists the
    tenants.
    """
    bearer, known = site.access.reader(request), site.tenants
    # A redirect would reveal the name of a private tenant.
    names = list(known) if all(site.access.may_read(bearer, one.tenant) for one in known.values()) else []
    return Redirect(f"/t/{names[0]}/status") if len(names) == 1 else page("tenants", "Tenants")


@get("/tenants", include_in_schema=False)
async def tenants() -> Response[str]:
    return page("tenants", "Tenants")


@get("/t/{tenant:str}", include_in_schema=False, opt={OPEN: True})
async def tenant_index(site: Site, tenant: str) -> Redirect:
    site.tenant(tenant)
    return Redirect(f"/t/{tenant}/status")


@get("/t/{tenant:str}/stream/{uuid:str}", include_in_schema=False, opt={OPEN: True})
async def stream(site: Site, tenant: str, uuid: str) -> Redirect:
    site.tenant(tenant)
    # Links with the address of Zuul's console pages lead to the page of the build.
    return Redirect(f"/t/{quote(tenant)}/build/{quote(uuid)}")


@get(
    ["/t/{tenant:str}/{name:str}", "/t/{tenant:str}/{name:str}/{rest:path}"], include_in_schema=False, opt={OPEN: True}
)
async def tenant_page(site: Site, tenant: str, name: str) -> Response[str] | Redirect:
    site.tenant(tenant)
    if name in ELSEWHERE:
        return Redirect(f"/t/{quote(tenant)}/{ELSEWHERE[name]}")
    if name not in PAGES:
        raise NotFoundException(f"there is no page {name!r}; there are {', '.join(PAGES)}")
    return page(name, PAGES[name])


def page(script: str, title: str, status: int = 200) -> Response[str]:
    return Response(document(script, title), status_code=status, media_type="text/html", headers=_HEADERS)


@get(["/static/{name:str}", "/static/{edition:str}/{name:str}"], include_in_schema=False)
async def static(request: HttpRequest, name: str, edition: str = "") -> Response[bytes | None]:
    """Serve one of the static files of the pages."""
    headers = request.headers
    return static_file(name, edition, headers.get("accept-encoding", ""), headers.get("if-none-match", ""))


@get("/", include_in_schema=False)
async def messages() -> Response[str]:
    """Return the page about queues, lag and dead letters."""
    return page("messages", "Message queues")


ROUTES = (index, tenants, tenant_index, stream, tenant_page, static)
MESSAGE_PAGES = (messages, static)

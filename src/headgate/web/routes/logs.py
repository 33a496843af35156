"""Serve logs of builds as files, and stream them while they are written."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator
from contextlib import suppress
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec

from headgate import rest
from headgate.web.access import Bearer
from headgate.web.buildlogs import NoLogs
from headgate.web.builds import MANIFEST
from headgate.web.logfiles import over
from headgate.web.routes.login import expected
from headgate.web.routes.pages import page
from headgate.web.shapes import LogFile
from headgate.web.site import OPEN, Site, must_read

VARY = {"Vary": "Accept, Authorization, Cookie"}
FIRST_MESSAGE_TIMEOUT_S = 10.0
REASON_MAX_BYTES = 123
"""Limit of the websocket protocol on the size of a close reason."""
DEPTH_MAX = 20
"""Limit on the depth of directories in the manifest; a deeper file has the rest of its path as its name."""


async def checked(site: Site, tenant: str, build: str) -> str:
    """Return the build's id if the build belongs to this tenant.  Raise 404."""
    # The id becomes part of a path, and permission to read was checked for this tenant only.
    if not build.isalnum() or not build.isascii() or not await site.owns(tenant, build):
        raise rest.NotFoundException(f"Build not found: tenant {tenant} has no build {build}")
    return build


def _stranger(site: Site, request: rest.HttpRequest, tenant: str) -> rest.Response[str] | None:
    """Return the page that repeats the request with the token of the logged-in person, as a browser that follows a link
    sends no token; None: the caller may read.  Raise 401, 403 for programs."""
    try:
        must_read(site, request, tenant)
    except rest.HTTPException as refused:
        if refused.status_code == 401 and "text/html" in request.headers.get("accept", ""):
            return page("log", "Log", status=401)
        raise
    return None


@rest.get("/t/{tenant:str}/logs/{build:str}", opt={OPEN: True, "answers": ("text/html",)})
async def log_index(site: Site, request: rest.HttpRequest, tenant: str, build: str) -> rest.Response[str]:
    """Return a page with links to the files of a build's logs."""
    if (asking := _stranger(site, request, tenant)) is not None:
        return asking
    files = await log_files.fn(site, tenant, build)
    runs = any(found.id == build and found.result is None for _, _, found in site.status.builds(tenant))
    # While a build runs, its logs are incomplete anyway, which deserves no warning.
    lost = "" if runs else await site.logs.missing(build)
    # Programs that read such a page append the name of a file to its address, so links must be relative.
    base = f"{_below(tenant, build)}/" if request.scope["raw_path"].endswith(b"/") else ""
    rows = "\n".join(
        f'<li><a href="{escape(one.url.removeprefix(base))}">{escape(one.path)}</a> {one.size_bytes:,} bytes</li>'
        for one in files
    )
    warning = f"<p>The logs are incomplete: {escape(lost)}</p>\n" if lost else ""
    return rest.Response(_INDEX.format(build=build, rows=rows, warning=warning), media_type="text/html", headers=VARY)


def _below(tenant: str, build: str) -> str:
    """Return the path of the address of a build's logs."""
    return f"/t/{quote(tenant)}/logs/{build}"


_INDEX = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Logs of {build}</title></head>
<body><h1>Logs of {build}</h1>
{warning}<ul>
{rows}
</ul></body></html>
"""


@rest.get(
    "/t/{tenant:str}/logs/{build:str}/{path:path}",
    opt={OPEN: True, "answers": ("*/*",), "alike": (206,), "bare": (304, 416)},
)
async def log_file(
    site: Site, request: rest.HttpRequest, tenant: str, build: str, path: str
) -> rest.StreamResponse | rest.Response[Any]:
    """Return one file of a build's logs, or a range of it, with its own content type; `zuul-manifest.json` lists the
    files. If a token is needed, a browser that follows a link gets a page that repeats the request with the token of
    the logged-in person.
    """
    if (asking := _stranger(site, request, tenant)) is not None:
        return asking
    if path.strip("/") == MANIFEST:
        return rest.Response(manifest(await log_files.fn(site, tenant, build)), headers=VARY)
    return await site.logs.file(await checked(site, tenant, build), path.lstrip("/"), request.headers)


@rest.get("/api/tenant/{tenant:str}/build/{build:str}/logs")
async def log_files(site: Site, tenant: str, build: str) -> list[LogFile]:
    """List the files of a build's logs."""
    return await site.logs.files(await checked(site, tenant, build), _below(tenant, build))


class LogRequest(msgspec.Struct, frozen=True):
    """Represent the client's first message."""

    uuid: str
    logfile: str = "console.log"
    offset: int = 0
    """Number of bytes to skip, as the client already has them; a negative number requests at most that many bytes from
    the end. Headgate only.
    """
    token: str | None = None
    csrf: str = ""
    """The token that Headgate's pages send for a logged-in person. Headgate only."""


@rest.websocket("/api/tenant/{tenant:str}/console-stream")
async def console(socket: rest.WebSocket, site: Site, tenant: str) -> None:
    """Send the log of the build that the client names, while it is written, then close the connection (1000)."""
    # Accepted before any check, as the token arrives in the first message:
    # browsers cannot send an Authorization header with websockets.
    await socket.accept()
    try:
        async with asyncio.timeout(FIRST_MESSAGE_TIMEOUT_S):
            wanted = msgspec.json.decode(await socket.receive_text(), type=LogRequest)
    except (TimeoutError, msgspec.MsgspecError, RecursionError):
        await socket.close(4000, 'send the build\'s id: {"uuid": ..., "logfile": "console.log"}')
        return
    except rest.WebSocketDisconnect:
        return
    try:
        if wanted.token:
            await expected(site.access, wanted.token)
        bearer = _follower(site, socket, tenant, wanted)
        site.readable(tenant, bearer)
        await checked(site, tenant, wanted.uuid)
        async for text in _texts(site, wanted):
            # A build may run for hours: a reader who logs out or loses a role in the meantime must not receive the
            # rest.
            if not site.access.still(bearer, site.tenant(tenant).tenant, site.context.now_ms()):
                raise site.access.refused(403, f"you may no longer read tenant {tenant}")
            await socket.send_text(text)
        await socket.close(1000, "No more data")
    except rest.HTTPException as refused:
        error = refused.extra.get("error", "") if isinstance(refused.extra, dict) else ""
        reason = f"{error}: {refused.detail}" if error else refused.detail
        await socket.close(4011 if refused.status_code == 404 else 4000, _cut(reason))
    except NoLogs as missing:
        await socket.close(4011, _cut(str(missing)))
    except rest.WebSocketDisconnect:
        return


def _cut(reason: str) -> str:
    """Return a close reason, cut to the size that a close frame can hold."""
    # The cut may split a character; the incomplete rest would make the close frame invalid UTF-8.
    return reason.encode()[:REASON_MAX_BYTES].decode(errors="ignore")


def _follower(site: Site, socket: rest.WebSocket, tenant: str, wanted: LogRequest) -> Bearer | None:
    """Return the reader of a log; None: anonymous.  An invalid token or a missing CSRF token is an error only if the
    tenant is private.  Raise 401, 403."""
    try:
        return site.access.of_token(wanted.token) if wanted.token else site.access.bearer(socket, wanted.csrf)
    except rest.HTTPException as refused:
        with suppress(rest.HTTPException):
            site.readable(tenant, None)
            return None
        raise refused


async def _texts(site: Site, wanted: LogRequest) -> AsyncIterator[str]:
    """Yield the log from the offset on as strings, without splitting characters."""
    # Pieces may end inside a character; its beginning waits for the next piece, so that the client counts bytes right.
    text = codecs.getincrementaldecoder("utf-8")("replace")
    async for chunk in site.logs.output(wanted.uuid, over(site.context, wanted.uuid), wanted.offset):
        if decoded := text.decode(chunk):
            yield decoded


def manifest(files: list[LogFile]) -> dict[str, Any]:  # JSON
    """Return the files as the tree that clients of Zuul's API read."""
    tree: list[dict[str, Any]] = []
    places: dict[tuple[str, ...], list[dict[str, Any]]] = {(): tree}
    for file in files:
        # Without the limit, a path of many segments would become as many nested lists, too deep to encode as JSON.
        *above, name = file.path.split("/", DEPTH_MAX)
        for depth in range(1, len(above) + 1):
            if tuple(above[:depth]) not in places:
                inside: list[dict[str, Any]] = []
                entry = {"name": above[depth - 1], "mimetype": "application/directory", "children": inside}
                places[tuple(above[: depth - 1])].append(entry)
                places[tuple(above[:depth])] = inside
        kind = "application/json" if name.endswith(".json") else "text/plain"
        places[tuple(above)].append({"name": name, "mimetype": kind})
    return {"tree": tree, "index_links": False}


ROUTES = (log_index, log_file, log_files, console)

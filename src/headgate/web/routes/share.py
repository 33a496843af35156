"""Show the state of the gate in other pages and programs: badges, and feeds for feed readers."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from msgspec.structs import replace

from headgate.ports.history import HistoryQuery, PastBuildset
from headgate.rest import HttpRequest, NotFoundException, Response, get
from headgate.web.routes.history import OF_SETS, question
from headgate.web.site import OPEN, Site, must_read

ENTRIES_MAX = 50
NO_CACHE = {"Cache-Control": "no-cache", "Vary": "Accept, Authorization, Cookie"}


def _ended(query: HistoryQuery) -> HistoryQuery:
    """Return the query restricted to final buildsets that have ended."""
    return replace(query, equal={**query.equal, "final": [True], "complete": [True]})


@get(
    ["/api/tenant/{tenant:str}/badge", "/tenant/{tenant:str}/badge"],
    opt={"query": OF_SETS, "answers": ("image/svg+xml",)},
)
async def badge(site: Site, request: HttpRequest, tenant: str) -> Response[str]:
    """Return an SVG image of the result of the latest buildset, with the name of its pipeline. `project`, `pipeline`
    and `branch` select the buildset.
    """
    site.tenant(tenant)
    query = question(site, tenant, request, OF_SETS)
    found = await site.history.buildsets(tenant, replace(_ended(query), limit=1)) if query else []
    if not found:
        raise NotFoundException("no buildset like this has ended")
    good = found[0].result == "SUCCESS"
    return Response(picture(found[0].pipeline, good=good), media_type="image/svg+xml", headers=NO_CACHE)


def picture(name: str, *, good: bool) -> str:
    """Return the badge; a letter counts as 6.5 pixels, and a long name is cut."""
    word, colour = ("passing", "#1a7f45") if good else ("failing", "#c22f2f")
    shown = name if len(name) <= 30 else f"{name[:29]}…"
    left = round(12 + 6.5 * len(shown))
    return _BADGE.format(
        name=escape(shown), word=word, colour=colour, whole=left + 64, left=left, middle=left / 2, right=left + 32
    )


_BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="20" role="img" aria-label="{name}: {word}">
<title>{name}: {word}</title><clipPath id="r"><rect width="{whole}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#4a5361"/>
<rect x="{left}" width="64" height="20" fill="{colour}"/></g>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{middle}" y="14">{name}</text><text x="{right}" y="14">{word}</text></g></svg>"""


@get(
    "/t/{tenant:str}/feed.atom",
    opt={"query": OF_SETS, "answers": ("application/atom+xml",), OPEN: True},
)
async def feed(site: Site, request: HttpRequest, tenant: str) -> Response[str]:
    """Return finished buildsets, latest first, as an Atom feed; filters work as for buildsets."""
    site.tenant(tenant)
    # The guard lets open routes pass, so the check is made here.
    must_read(site, request, tenant)
    query = question(site, tenant, request, OF_SETS)
    found = await site.history.buildsets(tenant, replace(_ended(query), limit=ENTRIES_MAX)) if query else []
    root = site.root or str(request.base_url).rstrip("/")
    base = f"{root}/t/{quote(tenant)}"
    here = f"{base}/feed.atom" + (f"?{request.url.query}" if request.url.query else "")
    updated = found[0].last_build_end_time or found[0].event_timestamp if found else None
    text = _FEED.format(
        title=escape(f"{tenant}: what ended"),
        here=escape(here, quote=True),
        page=escape(f"{base}/buildsets", quote=True),
        updated=_instant(updated),
        entries="".join(_entry(one, base) for one in found),
    )
    return Response(text, media_type="application/atom+xml; charset=utf-8", headers=NO_CACHE)


def _entry(one: PastBuildset, base: str) -> str:
    ref = one.refs[0]
    title = f"{one.result} {one.pipeline}: {ref.project.partition('/')[2]} {ref.change or ref.ref}"
    return _ENTRY.format(
        title=escape(_legal(title)),
        id=escape(one.uuid),
        link=escape(f"{base}/buildset/{quote(one.uuid)}", quote=True),
        updated=_instant(one.last_build_end_time or one.event_timestamp),
        author=escape(_legal(ref.author) or "Headgate"),
        text=escape(_legal(one.message or "")),
    )


def _instant(text: str | None) -> str:
    """Return a time of the API, which is UTC without a zone, as feeds have it."""
    return f"{text}Z" if text else "1970-01-01T00:00:00Z"


def _legal(text: str) -> str:
    """Return it without what XML cannot hold."""
    # Subjects and messages come from commits, and one control character makes a whole feed unreadable.
    return "".join(
        c for c in text if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff" and not "\ud800" <= c <= "\udfff")
    )


_FEED = """<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><title>{title}</title><id>{here}</id><updated>{updated}</updated>
<link rel="self" href="{here}"/><link href="{page}"/>
{entries}</feed>
"""
_ENTRY = """<entry><title>{title}</title><id>urn:uuid:{id}</id><link href="{link}"/><updated>{updated}</updated>
<author><name>{author}</name></author><content type="text">{text}</content></entry>
"""

ROUTES = (badge, feed)

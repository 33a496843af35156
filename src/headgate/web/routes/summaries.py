"""Summarise the history: flakiness and throughput over time, badges and feeds."""

from __future__ import annotations

from html import escape
from typing import get_args
from urllib.parse import quote

from msgspec.structs import replace

from headgate.ports.history import HistoryQuery, PastBuildset
from headgate.ports.statistics import SLOTS_MAX, Flakiness, Part, Span, ThroughputOverTime
from headgate.rest import HTTPException, HttpRequest, NotFoundException, Response, get
from headgate.web.description import QueryParameter
from headgate.web.routes.history import BOUNDS, DAYS, DAYS_MAX, FILTERS, OF_SETS, moment, number, question
from headgate.web.site import OPEN, Site, must_read

ENTRIES_MAX = 50
"""Limit on the buildsets in a feed."""
NO_CACHE = {"Cache-Control": "no-cache", "Vary": "Accept, Authorization, Cookie"}
HOUR_MS, DAY_MS, WEEK_MS = 3_600_000, 86_400_000, 7 * 86_400_000
SLOTS_MS = {"hour": HOUR_MS, "day": DAY_MS, "week": WEEK_MS}
MONDAY_MS = 4 * DAY_MS
"""The first Monday of 1970, from which weeks are counted."""
FIRST_YEAR_MS = 365 * DAY_MS
PARTS = tuple(part for part in get_args(Part) if part)
OF_TIME = (
    DAYS,
    QueryParameter("end_time", "End of the period in UTC, now by default."),
    QueryParameter("slot", "Length of each slot, a day by default.", {"enum": [*SLOTS_MS]}),
)
OF_FLAKINESS = (
    QueryParameter("job_name", "Name of one job, without `*`; all jobs by default."),
    *(one for one in FILTERS if one.name in PARTS and one.name != "job_name"),
    *OF_TIME,
    QueryParameter("by", "What to group the results by; nothing by default.", {"enum": [*PARTS]}),
)
OF_THROUGHPUT = (*(one for one in OF_SETS if one.name not in BOUNDS), *OF_TIME)


@get("/api/tenant/{tenant:str}/throughput", opt={"query": OF_THROUGHPUT})
async def throughput(site: Site, request: HttpRequest, tenant: str) -> ThroughputOverTime:
    """Return how quickly changes passed over time, and how much work that took. The period is the `days` before
    `end_time`, divided into at most 400 slots of an hour, a day or a week in UTC; a week begins on Monday. Filters such
    as `pipeline` and `project` work as for buildsets. A buildset counts in the slot in which it ended. Only the latest
    20,000 buildsets of the tenant count. Headgate only.
    """
    site.tenant(tenant)
    query, span = question(site, tenant, request, OF_THROUGHPUT), _span(site, request)
    if query is None:
        raise HTTPException("no buildset can match these filters", status_code=400)
    return await site.history.throughput_over_time(tenant, query, span)


@get("/api/tenant/{tenant:str}/job-flakiness", opt={"query": OF_FLAKINESS})
async def job_flakiness(site: Site, request: HttpRequest, tenant: str) -> Flakiness:
    """Return how flaky one job, or all jobs together, were over time. A job is flaky if it failed on a tree and later
    passed on the same tree, among the selected builds. The period is the `days` before `end_time`, divided into at most
    400 slots of an hour, a day or a week in UTC; a week begins on Monday. `project`, `pipeline`, `branch` and `nodeset`
    select builds; `by` groups them by one of these, or by `job_name`. Only the latest 20,000 buildsets of the tenant
    count. Headgate only.
    """
    site.tenant(tenant)
    query = question(site, tenant, request, OF_FLAKINESS)
    job, span = _job(request), _span(site, request)
    if query is None:
        raise HTTPException("no build can match these filters", status_code=400)
    return await site.history.flakiness(tenant, query, job, span)


def _job(request: HttpRequest) -> str:
    """Return the name of the selected job; empty: all jobs. Raise 400."""
    names = request.query.all("job_name")
    if len(names) > 1 or (names and (not names[0] or "*" in names[0])):
        raise HTTPException("job_name must be the name of one job, without `*`, or be left out", status_code=400)
    return names[0] if names else ""


def _span(site: Site, request: HttpRequest) -> Span:
    """Return the requested period, rounded up to complete slots. Raise 400."""
    length, part = _one_of(request, "slot", (*SLOTS_MS,), "day"), _one_of(request, "by", PARTS, "")
    days, now_ms = number(request, "days", 30), site.context.now_ms()
    if not 1 <= days <= DAYS_MAX:
        raise HTTPException(f"days must be between 1 and {DAYS_MAX}", status_code=400)
    end_ms = moment(request, "end_time")
    if end_ms is not None and end_ms < FIRST_YEAR_MS:
        raise HTTPException("end_time must be after 1970", status_code=400)
    slot_ms = SLOTS_MS[length]
    shift_ms = MONDAY_MS if length == "week" else 0
    # The end is exclusive: an end at midnight must not add the day that begins there.
    last_ms = min(now_ms, end_ms - 1) if end_ms is not None else now_ms
    # The slot that contains the end is complete, so that the same hour always belongs to the same slot.
    until_ms = (last_ms - shift_ms) // slot_ms * slot_ms + shift_ms + slot_ms
    count = -(-days * DAY_MS // slot_ms)
    if count > SLOTS_MAX:
        most = SLOTS_MAX * slot_ms // DAY_MS
        why = f"with slot={length}, days must be at most {most}, as there are at most {SLOTS_MAX} slots"
        raise HTTPException(why, status_code=400)
    return Span(until_ms - count * slot_ms, until_ms, slot_ms, part)  # type: ignore[arg-type]  # one of PARTS, or empty


def _one_of(request: HttpRequest, name: str, allowed: tuple[str, ...], default: str) -> str:
    """Return the value of a parameter. Raise 400."""
    values = request.query.all(name) or [default]
    if len(values) != 1 or values[0] not in (*allowed, default):
        raise HTTPException(f"{name} must be one of {', '.join(allowed)}, and not be repeated", status_code=400)
    return values[0]


def _ended(query: HistoryQuery) -> HistoryQuery:
    """Return the query restricted to final buildsets that have ended."""
    return replace(query, equal={**query.equal, "final": [True], "complete": [True]})


@get(
    ["/api/tenant/{tenant:str}/badge", "/tenant/{tenant:str}/badge"],
    opt={"query": OF_SETS, "answers": ("image/svg+xml",)},
)
async def badge(site: Site, request: HttpRequest, tenant: str) -> Response[str]:
    """Return an SVG image with the pipeline and the result of the latest finished buildset. `project`, `pipeline` and
    `branch` select the buildset.
    """
    site.tenant(tenant)
    query = question(site, tenant, request, OF_SETS)
    found = await site.history.buildsets(tenant, replace(_ended(query), limit=1)) if query else []
    if not found:
        raise NotFoundException("no finished buildset matches these filters")
    good = found[0].result == "SUCCESS"
    return Response(picture(found[0].pipeline, good=good), media_type="image/svg+xml", headers=NO_CACHE)


def picture(name: str, *, good: bool) -> str:
    """Return the badge as SVG; its width assumes 6.5 pixels for each letter, and a long name is cut."""
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
    # The guard skips routes marked as open, so permission is checked here.
    must_read(site, request, tenant)
    query = question(site, tenant, request, OF_SETS)
    found = await site.history.buildsets(tenant, replace(_ended(query), limit=ENTRIES_MAX)) if query else []
    root = site.settings.root or str(request.base_url).rstrip("/")
    base = f"{root}/t/{quote(tenant)}"
    here = f"{base}/feed.atom" + (f"?{request.url.query}" if request.url.query else "")
    updated = found[0].last_build_end_time or found[0].event_timestamp if found else None
    text = _FEED.format(
        title=escape(f"{tenant}: finished buildsets"),
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
    """Convert a time of the API, which is UTC without a zone, to the format of feeds."""
    return f"{text}Z" if text else "1970-01-01T00:00:00Z"


def _legal(text: str) -> str:
    """Return the text without the characters that XML does not allow."""
    # Subjects and messages come from commits, and one control character would make the entire feed unreadable.
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


ROUTES = (job_flakiness, throughput, badge, feed)

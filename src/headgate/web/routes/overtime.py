"""Show over time how flaky jobs are and how quickly changes pass."""

from __future__ import annotations

from typing import get_args

from headgate.ports.statistics import SLOTS_MAX, Flakiness, Part, Span, ThroughputOverTime
from headgate.rest import HTTPException, HttpRequest, get
from headgate.web.description import QueryParameter
from headgate.web.routes.history import BOUNDS, DAYS, DAYS_MAX, FILTERS, OF_SETS, moment, number, question
from headgate.web.site import Site

HOUR_MS, DAY_MS, WEEK_MS = 3_600_000, 86_400_000, 7 * 86_400_000
SLOTS_MS = {"hour": HOUR_MS, "day": DAY_MS, "week": WEEK_MS}
MONDAY_MS = 4 * DAY_MS
"""The first Monday of 1970; weeks are counted from it."""
FIRST_YEAR_MS = 365 * DAY_MS
PARTS = tuple(part for part in get_args(Part) if part)
OF_TIME = (
    DAYS,
    QueryParameter("end_time", "Until when; now."),
    QueryParameter("slot", "How long each slot is; day.", {"enum": [*SLOTS_MS]}),
)
OF_FLAKINESS = (
    QueryParameter("job_name", "One job, without `*`; all."),
    *(one for one in FILTERS if one.name in PARTS and one.name != "job_name"),
    *OF_TIME,
    QueryParameter("by", "What is told apart; nothing.", {"enum": [*PARTS]}),
)
OF_THROUGHPUT = (*(one for one in OF_SETS if one.name not in BOUNDS), *OF_TIME)


@get("/api/tenant/{tenant:str}/throughput", opt={"query": OF_THROUGHPUT})
async def throughput(site: Site, request: HttpRequest, tenant: str) -> ThroughputOverTime:
    """Return how quickly changes passed over time, and what this took. The period is the `days` (30) before `end_time`,
    in at most 400 slots of an hour, a day or a week in UTC; a week begins on Monday. Filters such as `pipeline` and
    `project` work as for buildsets. A buildset counts in the slot in which it ended. Only the latest 20,000 buildsets
    of the tenant count. Headgate only.
    """
    site.tenant(tenant)
    query, span = question(site, tenant, request, OF_THROUGHPUT), _span(site, request)
    if query is None:
        raise HTTPException("no buildset can match these filters", status_code=400)
    return await site.history.throughput_over_time(tenant, query, span)


@get("/api/tenant/{tenant:str}/job-flakiness", opt={"query": OF_FLAKINESS})
async def job_flakiness(site: Site, request: HttpRequest, tenant: str) -> Flakiness:
    """Return how flaky one job, or all jobs together, were over time. The period is the `days` (30) before `end_time`,
    in at most 400 slots of an hour, a day or a week in UTC; a week begins on Monday. `project`, `pipeline`, `branch`
    and `nodeset` select builds; `by` names one of these, or `job_name`, to group them by. A job is flaky on a tree
    where it failed and later passed, both among the selected builds. Only the latest 20,000 buildsets of the tenant
    count. Headgate only.
    """
    site.tenant(tenant)
    query = question(site, tenant, request, OF_FLAKINESS)
    job, span = _job(request), _span(site, request)
    if query is None:
        raise HTTPException("no build can match these filters", status_code=400)
    return await site.history.flakiness(tenant, query, job, span)


def _job(request: HttpRequest) -> str:
    """Return the name of the job; empty: all. Raise 400."""
    names = request.query.all("job_name")
    if len(names) > 1 or (names and (not names[0] or "*" in names[0])):
        raise HTTPException("job_name: name one job, without `*`, or none at all", status_code=400)
    return names[0] if names else ""


def _span(site: Site, request: HttpRequest) -> Span:
    """Return the time that is asked for, in whole slots. Raise 400."""
    length, part = _one_of(request, "slot", (*SLOTS_MS,), "day"), _one_of(request, "by", PARTS, "")
    days, now_ms = number(request, "days", 30), site.context.now_ms()
    if not 1 <= days <= DAYS_MAX:
        raise HTTPException(f"days is between 1 and {DAYS_MAX}", status_code=400)
    end_ms = moment(request, "end_time")
    if end_ms is not None and end_ms < FIRST_YEAR_MS:
        raise HTTPException("end_time: a time after 1970", status_code=400)
    slot_ms = SLOTS_MS[length]
    shift_ms = MONDAY_MS if length == "week" else 0
    # The end is exclusive: an end at midnight must not add the day that begins there.
    last_ms = min(now_ms, end_ms - 1) if end_ms is not None else now_ms
    # The slot that contains the end is included whole, so the same hour always belongs to the same slot.
    until_ms = (last_ms - shift_ms) // slot_ms * slot_ms + shift_ms + slot_ms
    count = -(-days * DAY_MS // slot_ms)
    if count > SLOTS_MAX:
        most = SLOTS_MAX * slot_ms // DAY_MS
        raise HTTPException(f"slot={length}: at most {SLOTS_MAX} slots, so days is at most {most}", status_code=400)
    return Span(until_ms - count * slot_ms, until_ms, slot_ms, part)  # type: ignore[arg-type]  # one of PARTS, or empty


def _one_of(request: HttpRequest, name: str, allowed: tuple[str, ...], default: str) -> str:
    """Return the value of a parameter. Raise 400."""
    values = request.query.all(name) or [default]
    if len(values) != 1 or values[0] not in (*allowed, default):
        raise HTTPException(f"{name} is one of {', '.join(allowed)}, given once", status_code=400)
    return values[0]


ROUTES = (job_flakiness, throughput)

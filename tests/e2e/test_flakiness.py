"""Test that pages draw how flaky jobs are and how quickly changes land over time, and say the same in words."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Locator, Page, Route, expect

from headgate.adapters.sql.history import SqlHistory
from headgate.map.records import Finished
from tests.unit.adapters_sql.test_attempts import build, ended
from tests.unit.adapters_sql.test_history import ENDED

from .headgate import Headgate
from .test_everybody import AXE, AXE_RUN, SIZES
from .test_pages import shoot

DAY_S, ENDING_S = 86_400, 300


def a_month(today_s: int) -> list[Finished]:
    """Return the builds of a month: each day n trees; on every third day, the first one failed before it passed."""
    found = []
    for day in range(30):
        noon_s = today_s - day * DAY_S
        for n in range(1 + day % 4):
            for again, result in enumerate(("FAILURE", "SUCCESS") if day % 3 == 0 and n == 0 else ("SUCCESS",)):
                name, at_s = f"{day}-{n}-{again}", noon_s + 10 * n + again
                change = replace(ENDED.change, project="git.example/code/api", branch="master" if n else "stable")
                one = build(f"b{name}", result, at_s - 5 * day - 1, at_s, nodeset="big" if n else "small")
                about: dict[str, Any] = {"tenant": "example", "tree": f"t{day}-{n}", "change": change}
                found.append(ended(f"s{name}", at_s, one, result=result, **about))
    return found


def keep(headgate: Headgate, every: list[Finished]) -> None:
    async def record_all() -> None:
        history = await asyncio.to_thread(SqlHistory, f"sqlite:///{headgate.root / 'state' / 'history.sqlite'}")
        for one in every:
            await history.record(one)
        await asyncio.to_thread(history.close)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, record_all()).result()


@pytest.mark.long
def test_the_page_of_a_job_shows_how_flaky_it_is_day_by_day(headgate: Headgate, page: Page) -> None:
    today_s = int(time.time()) // DAY_S * DAY_S
    if time.time() - today_s > DAY_S - ENDING_S:
        pytest.skip("the day may end while this runs, and the page then begins another bar")
    keep(headgate, a_month(today_s))
    page.goto(f"{headgate.url}/t/example/job/unit")
    chart = page.get_by_role("img", name=re.compile(r"Flaky states of the code by day"))
    expect(chart.locator("canvas")).to_be_visible()
    expect(chart).to_have_accessible_name(re.compile("10 of 73 states of the code"))
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
    today = datetime.fromtimestamp(today_s, UTC).strftime("%Y-%m-%d")
    status = page.get_by_role("status").filter(has_text=today)
    expect(status).to_have_text(f"{today}: 1 of 1 states of the code (100 %) flaky, 1 of 2 builds failed")
    page.get_by_text("The same as a table").click()
    rows = page.locator("details:not(.menu, .login) tbody tr")
    expect(rows).to_have_count(30)
    expect(rows.first.locator("td")).to_have_text([today, "1 of 1 states of the code (100 %)", "1 (50 %)", "2", ""])
    page.get_by_role("link", name="big", exact=True).click()
    expect(chart).to_have_accessible_name(re.compile("0 of 43 states of the code"))
    page.get_by_role("link", name="7 days").click()
    expect(page).to_have_url(re.compile("nodeset=big&days=7"))
    expect(chart).to_have_accessible_name(re.compile("of the last 7 days: 0 of 9 states of the code"))


@pytest.mark.long
def test_pipelines_and_projects_say_how_flaky_their_jobs_are(headgate: Headgate, page: Page) -> None:
    today_s = int(time.time()) // DAY_S * DAY_S
    if time.time() - today_s > DAY_S - ENDING_S:
        pytest.skip("the day may end while this runs, and the page then begins another bar")
    change = replace(ENDED.change, project="git.example/code/lib", branch="master")
    about: dict[str, Any] = {"tenant": "example", "pipeline": "check", "tree": "t", "change": change}
    one = build("bf", "FAILURE", today_s, today_s + 1, job="lint")
    others = build("bs", "SUCCESS", today_s, today_s + 2, job="lint"), build("bu", "SUCCESS", 1, today_s + 1)
    checked = [ended("sf", today_s + 3, one, **about), ended("ss", today_s + 4, *others, **about)]
    keep(headgate, a_month(today_s) + checked)
    for query, flaky in (
        ("", "11 of 75"), ("?pipeline=gate", "10 of 73"), ("?pipeline=check", "1 of 2"), ("?days=1", "2 of 3"),
        ("?project=code/lib", "1 of 2"), ("?project=code/api&days=365", "10 of 73"), ("?days=7", "4 of 18"),
    ):  # fmt: skip
        page.goto(f"{headgate.url}/t/example/statistics{query}")
        chart = page.get_by_role("img", name=re.compile("Flaky jobs on states of the code by (hour|day|week)"))
        expect(chart.locator("canvas")).to_be_visible()
        expect(chart).to_have_accessible_name(re.compile(f": {flaky} jobs on states of the code "))
    page.goto(f"{headgate.url}/t/example/statistics?project=code/lib&pipeline=gate")
    expect(page.get_by_text("No build ended in this period.")).to_be_visible()


def days_of(today_s: int) -> list[Finished]:
    """Return the builds of two days: today, two passed after 100 and 300 s, one of them on a second try; yesterday,
    one failed."""
    change = replace(ENDED.change, project="git.example/code/api", branch="master")
    now: dict[str, Any] = {"tenant": "example", "change": change}
    before_s = today_s - DAY_S
    reset = build("br", "CANCELED", today_s + 10, today_s + 70, final=False)
    fast, slow = (build(f"b{n}", "SUCCESS", today_s + 70, today_s + 70 + n) for n in (30, 210))
    return [
        ended("reset", today_s + 71, reset, final=False, enqueued_ms=today_s * 1_000, **now),
        ended("fast", today_s + 100, fast, enqueued_ms=today_s * 1_000, **now),
        ended("slow", today_s + 300, slow, enqueued_ms=today_s * 1_000, **now),
        ended("failed", before_s + 60, build("bf", "FAILURE", before_s, before_s + 50), result="FAILURE", **now),
    ]


def point_at_last(page: Page, chart: Locator) -> Locator:
    """Point at the last bar, and return its description."""
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
    return chart.locator("xpath=..").get_by_role("status")


@pytest.mark.long
def test_pipelines_and_projects_say_how_quickly_changes_landed(headgate: Headgate, page: Page) -> None:
    today_s = int(time.time()) // DAY_S * DAY_S
    if time.time() - today_s > DAY_S - ENDING_S:
        pytest.skip("the day may end while this runs, and the page then begins another bar")
    keep(headgate, days_of(today_s))
    today, before = (datetime.fromtimestamp(today_s - n * DAY_S, UTC).strftime("%Y-%m-%d") for n in (0, 1))
    texts = {
        "Time to land": f"{today}: 2 passed, median 1m 40s, 95th percentile 5m 00s",
        "Resets": f"{today}: 1 of 3 (33 %) were reset",
        "Build time lost by resets": f"{today}: 1m 00s of 5m 00s of builds (20 %) were lost",
        "Builds per passed buildset": f"{today}: 3 builds, 1.5 for each of 2 passed",
    }
    page.goto(f"{headgate.url}/t/example/statistics?pipeline=gate&project=code/api")
    for name, words in texts.items():
        chart = page.get_by_role("img", name=re.compile(f"^{name}, by day, of the last 30 days"))
        expect(chart.locator("canvas")).to_be_visible()
        chart.scroll_into_view_if_needed()
        expect(point_at_last(page, chart)).to_have_text(words)
    shoot(page, "throughput")
    page.get_by_text("The same as a table").first.click()
    rows = page.locator("details:not(.menu, .login)").first.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first.locator("td")).to_have_text(
        [today, "3", "2", "1m 40s", "5m 00s", "1 (33 %)", "1m 00s (20 %)", "1.5"]
    )
    expect(rows.last.locator("td")).to_have_text([before, "1", "", "", "", "", "", ""])
    expect(page.get_by_role("img", name="of the last 2 buildsets that passed in this period")).to_be_visible()
    page.goto(f"{headgate.url}/t/example/statistics?pipeline=check")
    expect(page.get_by_text("Nothing ended in this period.")).to_be_visible()
    page.goto(f"{headgate.url}/t/example/status")
    page.get_by_role("link", name="Statistics of gate").click()
    expect(page).to_have_url(re.compile(r"/statistics\?pipeline=gate$"))


@pytest.mark.long
def test_charts_mark_periods_that_were_not_counted(headgate: Headgate, page: Page) -> None:
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first, partly, last, end = (f"{midnight + timedelta(days=n):%Y-%m-%dT%H:%M:%S}" for n in (-2, -1, 0, 1))
    since = partly.replace("00:00:00", "08:00:00")
    about = {"start_time": first, "end_time": end, "slot_seconds": DAY_S, "complete_from": since}
    flaky = {"part": "", "builds": 2, "failed": 1, "trees": 1, "flaky": 1, "retried": 0}
    sums = {"buildsets": 2, "passed": 1, "failed": 0, "resets": 1, "builds": 2, "builds_per_passed": 2.0}
    times = {"seconds": 9.0, "seconds_lost": 4.0, "to_start_median_s": 1.0, "to_end_median_s": 7.0, "to_end_95_s": 8.0}

    def too_many(route: Route) -> None:
        of_flakiness = "job-flakiness" in route.request.url
        one = flaky if of_flakiness else sums | times
        slots = [{"start_time": start} | one for start in (partly, last)]
        route.fulfill(
            json=about | {"slots": slots} | ({"job_name": "unit"} if "job_name=" in route.request.url else {})
        )

    page.route(re.compile("/(job-flakiness|throughput)[?]"), too_many)
    for path, name in (("statistics", "Resets"), ("statistics", "Flaky jobs on"), ("job/unit", "Flaky states of")):
        page.goto(f"{headgate.url}/t/example/{path}")
        chart = page.get_by_role("img", name=re.compile(f"^{name}"))
        expect(chart.locator("canvas")).to_be_visible()
        expect(page.get_by_text(f"only those that ended since {since.replace('T', ' ')} UTC").first).to_be_visible()
        chart.scroll_into_view_if_needed()
        box = chart.locator(".u-over").bounding_box()
        assert box is not None
        words = chart.locator("xpath=..").get_by_role("status")
        for part, text in ((0.02, f"{first[:10]}: not counted"), (0.5, f"counted from {since.replace('T', ' ')} on")):
            page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] / 2)
            expect(words).to_contain_text(text)
        expect(point_at_last(page, chart)).not_to_contain_text("counted from")


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: `make tests/node/node_modules`")
@pytest.mark.parametrize("size", SIZES)
def test_charts_of_flakiness_are_accessible(headgate: Headgate, page: Page, size: str) -> None:
    keep(headgate, a_month(int(time.time()) // DAY_S * DAY_S))
    viewport, scheme = SIZES[size]
    page.set_viewport_size(viewport)  # type: ignore[arg-type]  # width and height
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # light or dark
    for of, days in (("job/unit", 30), ("job/unit", 365), ("statistics", 30)):
        page.goto(f"{headgate.url}/t/example/{of}?days={days}")
        expect(page.get_by_role("img", name=re.compile("^Flaky .*states")).locator("canvas")).to_be_visible()
        for folded in page.get_by_text("The same as a table").all():
            folded.click()
        page.evaluate(AXE.read_text())
        assert page.evaluate(AXE_RUN) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for unfolded in page.get_by_text("The same as a table").all():
            unfolded.click()
        shoot(page, f"flakiness-{of.partition('/')[0]}-{days}-{size}")

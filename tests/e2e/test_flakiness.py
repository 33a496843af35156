"""Pages draw how flaky one job or all jobs together are over time, and say the same in words."""

from __future__ import annotations

import asyncio
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page, expect

from headgate.adapters.sql.history import SqlHistory
from headgate.map.records import Finished
from tests.unit.adapters_sql.test_attempts import build, ended
from tests.unit.adapters_sql.test_history import ENDED

from .headgate import Headgate
from .test_everybody import ASKED, AXE, SIZES
from .test_pages import shoot

DAY_S, ENDING_S = 86_400, 300


def a_month(today_s: int) -> list[Finished]:
    """Return what ended in a month: each day n trees, of which every third day's first failed before it passed."""
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
    async def kept() -> None:
        history = await asyncio.to_thread(SqlHistory, f"sqlite:///{headgate.root / 'state' / 'history.sqlite'}")
        for one in every:
            await history.record(one)
        await asyncio.to_thread(history.close)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, kept()).result()


def test_a_job_says_how_flaky_it_is_day_by_day(headgate: Headgate, page: Page) -> None:
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
    said = page.get_by_role("status").filter(has_text=today)
    expect(said).to_have_text(f"{today}: 1 of 1 states of the code (100 %) flaky, 1 of 2 builds failed")
    page.get_by_text("The same as a table").click()
    rows = page.locator("details:not(.menu, .door) tbody tr")
    expect(rows).to_have_count(30)
    expect(rows.first.locator("td")).to_have_text([today, "1 of 1 states of the code (100 %)", "1 (50 %)", "2", ""])
    page.get_by_role("link", name="big", exact=True).click()
    expect(chart).to_have_accessible_name(re.compile("0 of 43 states of the code"))
    page.get_by_role("link", name="7 days").click()
    expect(page).to_have_url(re.compile("nodeset=big&days=7"))
    expect(chart).to_have_accessible_name(re.compile("of the last 7 days: 0 of 9 states of the code"))


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
    expect(page.get_by_text("No build has ended in this time.")).to_be_visible()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: `make tests/node/node_modules`")
@pytest.mark.parametrize("size", SIZES)
def test_everybody_can_read_it(headgate: Headgate, page: Page, size: str) -> None:
    keep(headgate, a_month(int(time.time()) // DAY_S * DAY_S))
    viewport, scheme = SIZES[size]
    page.set_viewport_size(viewport)  # type: ignore[arg-type]  # width and height
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # light or dark
    for of, days in (("job/unit", 30), ("job/unit", 365), ("statistics", 30)):
        page.goto(f"{headgate.url}/t/example/{of}?days={days}")
        expect(page.get_by_role("img", name=re.compile("^Flaky .*states")).locator("canvas")).to_be_visible()
        page.get_by_text("The same as a table").click()
        page.evaluate(AXE.read_text())
        assert page.evaluate(ASKED) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_text("The same as a table").click()
        shoot(page, f"flakiness-{of.partition('/')[0]}-{days}-{size}")

"""Test the pages with 180 changes in the queues: readable, quick, quiet, and usable without a mouse."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import CDPSession, Page, async_playwright, expect

from headgate.cli.status import board
from headgate.web.site import Site
from headgate.web.status import timed
from tests.e2e.browser import CHROMIUM, patient

from .crowd import NOW_MS, crowded
from .test_everybody import AXE, AXE_RUN

SHOTS = os.environ.get("HEADGATE_SCREENSHOTS", "")
Served = tuple[Site, str]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with crowded(tmp_path) as found:
        yield found


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**CHROMIUM)
        yield patient(await browser.new_page(viewport={"width": 1280, "height": 900}))
        await browser.close()


async def shoot(page: Page, name: str) -> None:
    if SHOTS:
        await page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


@pytest.mark.long
async def test_the_crowd_is_readable_and_can_be_filtered(served: Served, page: Page) -> None:
    _, url = served
    await page.goto(f"{url}/")
    await expect(page.locator(".item")).to_have_count(180)
    await shoot(page, "crowd-closed")
    if AXE.exists():  # items without jobs, and failures, are on no page of a small gate
        await page.evaluate(AXE.read_text())
        assert await page.evaluate(AXE_RUN) == []
    await page.locator(".item button").first.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(".item").first.locator(".job")).to_have_count(5)
    await shoot(page, "crowd-one-open")
    await page.keyboard.press("/")
    await page.keyboard.type("topic-17,")
    await expect(page.locator(".item")).to_have_count(2)
    await expect(page.locator(".small", has_text="2 of 180 items")).to_be_visible()
    await page.get_by_role("button", name="Unfold all").click()
    await shoot(page, "crowd-filtered")
    await page.emulate_media(color_scheme="dark")
    await page.get_by_role("searchbox").fill("")
    await expect(page.locator(".item")).to_have_count(180)
    await shoot(page, "crowd-dark")
    await page.set_viewport_size({"width": 420, "height": 900})
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await shoot(page, "crowd-narrow")


async def layouts(seen: CDPSession) -> int:
    """Count how often the page was laid out so far."""
    metrics = (await seen.send("Performance.getMetrics"))["metrics"]
    return int(next(one["value"] for one in metrics if one["name"] == "LayoutCount"))


@pytest.mark.long
async def test_an_idle_page_asks_for_nothing_and_is_laid_out_when_its_clocks_tick(served: Served, page: Page) -> None:
    site, url = served
    seen = await page.context.new_cdp_session(page)
    await seen.send("Performance.enable")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await page.goto(f"{url}/")
    await expect(page.locator("#link")).to_have_text("live")
    await page.get_by_role("button", name="Unfold all").click()
    await expect(page.locator(".bar.known").first).to_be_attached()
    before, drawn = len(requests), await layouts(seen)
    tag = (await site.shot("example")).tag
    await page.evaluate("new Promise((done) => setTimeout(done, 2200))")
    assert await layouts(seen) - drawn < 30, "bars move without: a phone has better things to do sixty times a second"
    assert requests[before:] == [] and (await site.shot("example")).tag == tag


@pytest.mark.long
async def test_lists_are_filtered_and_paged(served: Served, page: Page) -> None:
    _, url = served
    await page.goto(f"{url}/t/example/builds")
    await expect(page.locator("tbody tr")).to_have_count(50)
    await shoot(page, "builds-crowd")
    await page.get_by_role("button", name="Older").click()
    await expect(page.get_by_text("from 51")).to_be_visible()
    await page.get_by_label("result").fill("FAILURE")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("from 51")).to_have_count(0)
    await expect(page.locator("tbody tr")).to_have_count(50)
    assert "result=FAILURE" in page.url and "skip" not in page.url
    await page.get_by_role("button", name="Older").click()  # 24 of the past, 41 of buildsets that are under way
    await expect(page.locator("tbody tr")).to_have_count(15)
    await page.goto(f"{url}/t/example/buildsets?result=SUCCESS&skip=50")
    await expect(page.locator("tbody tr")).to_have_count(46)
    await shoot(page, "buildsets")
    await page.locator("tbody a").first.click()
    await expect(page.locator("h2", has_text="Report")).to_be_visible()
    assert await page.locator("td a", has_text="wheel").get_attribute("href") == "/t/example/logs/past63b0/dist/x.whl"
    await expect(page.locator("td", has_text="evil").locator("a", has_text="evil")).to_have_count(0)
    await shoot(page, "buildset")


@pytest.mark.long
async def test_every_page_says_something_and_no_script_fails(served: Served, page: Page) -> None:
    _, url = served
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    of_tenant = ("projects", "project/git.example/code/api", "jobs", "job/unit", "errors")
    for name in (*(f"t/example/{name}" for name in of_tenant), "api", "tenants"):
        await page.goto(f"{url}/{name}")
        await expect(page.locator("h1")).to_be_visible()
        await expect(page.locator("[role=alert]")).to_have_count(0)
        await shoot(page, f"page-{name.replace('/', '-')}")
    assert wrong == []


@pytest.mark.long
async def test_a_long_log_is_complete_and_can_be_searched(served: Served, page: Page) -> None:
    site, url = served
    logs = site.logs.root / "past1b1"
    logs.mkdir(parents=True)
    (logs / "job-output.txt").write_text("".join(f"2027-01-15 08:00:00.000 | line {n}\n" for n in range(40_000)))
    (logs / "report.xml").write_text("<x/>")
    await page.goto(f"{url}/t/example/build/past1b1")
    log = page.locator("#log")
    await expect(log).to_contain_text("line 39999")
    assert await log.locator(".row").count() < 400, "what is out of sight is not drawn"
    await expect(page.locator("#link")).to_have_text("complete")
    await page.get_by_label("Find in log").fill("LINE 390")
    await expect(page.locator("mark.here")).to_have_text("line 390")
    await expect(page.get_by_text("1 of 111")).to_be_visible()
    await expect(page.get_by_text("1 more log file")).to_be_visible()
    await shoot(page, "build-past")


@pytest.mark.long
async def test_the_terminal_shows_the_heads_and_counts_the_rest(served: Served) -> None:
    site, _ = served
    drawn = board(timed((await site.shot("example")).status, NOW_MS), 40)
    text = "\n".join(line.plain for line in drawn.lines(120))
    assert len(text.splitlines()) <= 40 and "more" in text and "gate  dependent, 60 items" in text
    assert "▶ lint" in text and "%" in text and "✘ build" in text

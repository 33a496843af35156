"""What others call things, and how many they have, on the pages of everybody else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import Page, Route, async_playwright, expect

from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.web.site import Site
from tests.e2e.browser import CHROMIUM, patient
from tests.e2e.crowd import crowded

EVIL = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
NODES, SEMAPHORES = 10_000, 1_000


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Site, str]]:
    async with crowded(tmp_path) as found:
        yield found


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**CHROMIUM)
        yield patient(await browser.new_page(viewport={"width": 1280, "height": 900}))
        await browser.close()


def holders(count: int) -> dict[str, Any]:
    return {
        "count": count,
        "this_tenant": [{"buildset_uuid": "b" * 32, "job_name": f"{EVIL}{n}"} for n in range(count)],
        "other_tenants": 0,
    }


def node(number: int) -> dict[str, Any]:
    return {
        "id": f"node-{number}", "uuid": f"u{number}", "type": [EVIL], "label": EVIL, "state": "in-use",
        "state_time": "2026-01-01T00:00:00", "comment": f"{EVIL} of app, build {'c' * 32}", "provider": EVIL,
        "public_ipv4": None, "private_ipv4": None, "interface_ip": EVIL, "why": EVIL,
    }  # fmt: skip


REQUEST = {
    "uuid": "r1", "state": "requested", "pipeline_name": EVIL, "buildset_uuid": "b" * 32, "job_name": EVIL,
    "labels": [EVIL], "request_time": "2026-01-01T00:00:00", "position": 1, "why": EVIL,
    "why_since": "2026-01-01T00:00:00", "tried": [EVIL] * 3,
}  # fmt: skip
PART = [{"name": EVIL, "canonical_name": EVIL}]
GRAPH = [{"name": f"{EVIL}{n}", "dependencies": [{"name": f"{EVIL}{n // 2}", "soft": True}]} for n in range(600)]
ORIGIN = {"step": 1, "job": EVIL, "project": EVIL, "branch": EVIL, "path": EVIL, "line": 1, "attaching": False}
ANSWERS: dict[str, Any] = {
    "semaphores": [
        {"name": f"{EVIL}{n:04}", "global": True, "max": 2, "holders": holders(n % 50)} for n in range(SEMAPHORES)
    ],
    "nodes": [node(n) for n in range(NODES)],
    "nodeset-requests": [REQUEST],
    "providers": [{"name": EVIL, "canonical_name": EVIL, "images": PART, "labels": PART, "flavors": PART}],
    "labels": [{"name": f"{EVIL}{n}"} for n in range(2_000)],
    "images": [{**PART[0], "project_canonical_name": EVIL, "branch": EVIL, "type": EVIL}],
    "flavors": [{**PART[0], "description": EVIL}],
    "system-events": [
        {"event_id": "1", "event_time": "2026-01-01T00:00:00", "event_type": EVIL, "description": EVIL}
    ],
    "freeze-jobs": GRAPH,
    "explain": {
        "job": EVIL, "inheritance": [ORIGIN], "errors": [EVIL],
        "attributes": [{"name": EVIL, "elements": False, "settings": [{"value": EVIL, "origin": ORIGIN}] * 2}],
    },
}  # fmt: skip
FREEZE = "freeze?project=code/api&branch=master&pipeline=gate&job="


async def test_names_are_text_and_long_lists_are_drawn_in_pages(served: tuple[Site, str], page: Page) -> None:
    _, url = served

    async def told(route: Route) -> None:
        address = route.request.url.partition("?")[0]
        name = "explain" if "/explain-job/" in address else address.rpartition("/")[2]
        if name in ANSWERS:
            await route.fulfill(json=ANSWERS[name])
        else:
            await route.continue_()

    await page.route("**/api/tenant/**", told)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name in ("semaphores", "nodes", "requests", "providers", "events", FREEZE):
        await page.goto(f"{url}/t/example/{name}")
        await expect(page.locator("main table").first).to_contain_text(EVIL)
        assert await page.locator("main img, main script").count() == 0
        assert await page.locator("main tbody tr").count() <= 1_200, "what is long comes in pages"
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if name in ("semaphores", "nodes"):
            await expect(page.locator("tbody tr")).to_have_count(100)
            await page.get_by_role("button", name="On").click()
            await expect(page.locator("tbody tr")).to_have_count(100)
            assert "skip=100" in page.url
            await page.locator("main input[type=search]").fill({"semaphores": "0999", "nodes": "node-9999"}[name])
            await expect(page.locator("tbody tr")).to_have_count(1)
    await page.locator("svg .node").first.click()
    await expect(page.locator("h2", has_text="comes from")).to_be_visible()
    assert await page.title() != "hacked" and not wrong, wrong


async def test_a_shared_semaphore_names_nothing_of_other_tenants(served: tuple[Site, str], page: Page) -> None:
    site, url = served
    known = site.tenants["example"]
    known.tenant = replace(known.tenant, semaphores={"shared": 5})  # type: ignore[misc]  # as the crowd has it
    own = SemaphoreHolder("gate", "gate0s", "deploy", tenant="example")
    others = tuple(SemaphoreHolder("gate", f"secret-buildset-{n}", "secret-job", tenant="private") for n in range(3))
    place = site.context.map.global_semaphores.semaphore("shared").record
    await site.context.store.commit([], [place.put(SemaphoreRecord((others[0], own, *others[1:])))])
    await site.context.mirror.reached(place.path)
    answer = await page.request.get(f"{url}/api/tenant/example/semaphores")
    (found,) = [one for one in await answer.json() if one["name"] == "shared"]
    assert found["max"] == 5 and found["holders"] == {
        "count": 4,
        "this_tenant": [{"buildset_uuid": "gate0s", "job_name": "deploy"}],
        "other_tenants": 3,
    }
    assert "secret" not in json.dumps(await answer.json())
    await page.goto(f"{url}/t/example/semaphores")
    await expect(page.locator("tbody tr", has_text="shared")).to_contain_text("3 in other tenants")


MARKUP = "&lt;img src=x onerror=alert(1)&gt;" * 3
BAD_CASE = f"<testcase name='fails &lt;b&gt;' time='1.5'><failure>{MARKUP}</failure></testcase>"
PASSED = "<testcase name='passes'/>"
REPORT = f"<testsuite name='api'>{BAD_CASE}{PASSED * 700}</testsuite>"
BOMB = "<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><testsuite name='&b;'/>"


async def test_reports_of_tests_are_text_and_bombs_are_named(served: tuple[Site, str], page: Page) -> None:
    site, url = served
    logs = site.log_root / "past1b1"
    logs.mkdir(parents=True)
    (logs / "job-output.txt").write_text("2027-01-15 08:00:00.000 | done\n")
    (logs / "junit.xml").write_text(REPORT)
    (logs / "TEST-bomb.xml").write_text(BOMB)
    (logs / "TEST-huge.xml").write_bytes(b"<testsuite>" + b" " * 5_000_001)
    (logs / "other.xml").write_text("<unread/>")
    await page.goto(f"{url}/t/example/build/past1b1")
    tests = page.locator("details.tests")
    await expect(tests.locator("summary")).to_have_text("701 tests · 1 did not pass · 1s")
    await expect(tests.locator("tbody tr").first).to_contain_text("fails <b>")
    await expect(tests.locator("tbody tr").first.locator("pre")).to_contain_text("<img src=x onerror=alert(1)>")
    await expect(tests.locator("tbody tr")).to_have_count(100)
    assert await tests.locator("img").count() == 0
    await expect(tests.locator(".bad", has_text="TEST-bomb.xml")).to_contain_text("declares a document type")
    await expect(tests.locator(".bad", has_text="TEST-huge.xml")).to_contain_text("more than is read")
    await expect(page.locator("#link")).to_have_text("complete")
    answer = await page.request.get(f"{url}/api/tenant/example/build/unknown/tests")
    assert answer.status == 404
    for address in ("/t/nobody/status", "/t/example/nothing", "/nothing", "/t/example/logs/past1b1"):
        told = await page.request.get(url + address, headers={"accept": "text/html"})
        assert told.status == (200 if "logs" in address else 404), address
        assert told.headers["content-type"].replace(" ", "") == "text/html;charset=utf-8", address

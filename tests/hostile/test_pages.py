"""Test foreign names, and large numbers of objects, on the pages of everybody else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import Page, Route, async_playwright, expect

from headgate.gate.state.returns import ReturnedArtifact
from headgate.map.records import SemaphoreHolder, SemaphoreRecord
from headgate.recipes.requestforms import Request
from headgate.web.site import Site
from tests.e2e.browser import CHROMIUM, patient
from tests.e2e.crowd import crowded, ended

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


@pytest.mark.long
async def test_names_are_text_and_long_lists_are_drawn_in_pages(served: tuple[Site, str], page: Page) -> None:
    _, url = served

    async def answer(route: Route) -> None:
        address = route.request.url.partition("?")[0]
        name = "explain" if "/explain-job/" in address else address.rpartition("/")[2]
        if name in ANSWERS:
            await route.fulfill(json=ANSWERS[name])
        else:
            await route.continue_()

    await page.route("**/api/tenant/**", answer)
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
            await page.get_by_role("button", name="Next").click()
            await expect(page.locator("tbody tr")).to_have_count(100)
            assert "skip=100" in page.url
            await page.locator("main input[type=search]").fill({"semaphores": "0999", "nodes": "node-9999"}[name])
            await expect(page.locator("tbody tr")).to_have_count(1)
    await page.locator("svg .node").first.click()
    await expect(page.locator("h2", has_text="comes from")).to_be_visible()
    assert await page.title() != "hacked" and not wrong, wrong


@pytest.mark.long
async def test_a_shared_semaphore_names_nothing_of_other_tenants(served: tuple[Site, str], page: Page) -> None:
    site, url = served
    known = site.tenants["example"]
    known.tenant = replace(known.tenant, semaphores={"shared": 5})  # type: ignore[misc]  # as the crowd has it
    cancelled = Request("c" * 32, state="running", wanted="cancel")
    await site.context.store.commit([], site.context.zone("").submit(cancelled, b"{}"))
    own = SemaphoreHolder("gate", "gate0s", "deploy", cancelled.id, tenant="example")
    others = tuple(SemaphoreHolder("gate", f"secret-buildset-{n}", "secret-job", tenant="private") for n in range(3))
    place = site.context.map.global_semaphores.semaphore("shared").record
    await site.context.store.commit([], [place.put(SemaphoreRecord((others[0], own, *others[1:])))])
    await site.context.mirror.reached(place.path)
    answer = await page.request.get(f"{url}/api/tenant/example/semaphores")
    (found,) = [one for one in await answer.json() if one["name"] == "shared"]
    assert found["max"] == 5 and found["holders"] == {
        "count": 4,
        "this_tenant": [{"buildset_uuid": "gate0s", "job_name": "deploy", "ending": True}],
        "other_tenants": 3,
    }
    assert "secret" not in json.dumps(await answer.json())
    await page.goto(f"{url}/t/example/semaphores")
    row = page.locator("tbody tr", has_text="shared")
    await expect(row).to_contain_text("3 in other tenants")
    await expect(row).to_contain_text("deploy is ending")


MARKUP = "&lt;img src=x onerror=alert(1)&gt;" * 3
BAD_CASE = f"<testcase name='fails &lt;b&gt;' time='1.5'><failure>{MARKUP}</failure></testcase>"
PASSED = "<testcase name='passes'/>"
REPORT = f"<testsuite name='api'>{BAD_CASE}{PASSED * 700}</testsuite>"
BOMB = "<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><testsuite name='&b;'/>"


@pytest.mark.long
async def test_reports_of_tests_are_text_and_bombs_are_named(served: tuple[Site, str], page: Page) -> None:
    site, url = served
    logs = site.logs.root / "past1b1"
    logs.mkdir(parents=True)
    (logs / "job-output.txt").write_text("2027-01-15 08:00:00.000 | done\n")
    (logs / "junit.xml").write_text(REPORT)
    (logs / "TEST-bomb.xml").write_text(BOMB)
    (logs / "TEST-huge.xml").write_bytes(b"<testsuite>" + b" " * 5_000_001)
    (logs / "other.xml").write_text("<unread/>")
    await page.goto(f"{url}/t/example/build/past1b1")
    tests = page.locator("details.tests")
    await expect(tests.locator("summary")).to_have_text("701 tests · 1 failed · 1s")
    await expect(tests.locator("tbody tr").first).to_contain_text("fails <b>")
    await expect(tests.locator("tbody tr").first.locator("pre")).to_contain_text("<img src=x onerror=alert(1)>")
    await expect(tests.locator("tbody tr")).to_have_count(100)
    assert await tests.locator("img").count() == 0
    await expect(tests.locator(".bad", has_text="TEST-bomb.xml")).to_contain_text("document type declarations")
    await expect(tests.locator(".bad", has_text="TEST-huge.xml")).to_contain_text("too large to read")
    await expect(page.locator("#link")).to_have_text("complete")
    answer = await page.request.get(f"{url}/api/tenant/example/build/unknown/tests")
    assert answer.status == 404
    for address in ("/t/nobody/status", "/t/example/nothing", "/nothing", "/t/example/logs/past1b1"):
        shown = await page.request.get(url + address, headers={"accept": "text/html"})
        assert shown.status == (200 if "logs" in address else 404), address
        assert shown.headers["content-type"].replace(" ", "") == "text/html;charset=utf-8", address


ACTS = """<h1>Report</h1><script>parent.document.title = "hacked"; document.body.append("ran")</script>
<img src=x onerror="top.document.title='hacked'"><meta http-equiv="refresh" content="0;url=/t/example/status">
<form action="/api/tenant/example/project/code/api/enqueue" method="post"><button>Send</button></form>"""
DRAWN = """<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="top.document.title='hacked'"/>"""
LEFT = (
    ReturnedArtifact("page", "report.html"),
    ReturnedArtifact("text", "notes.txt"),
    ReturnedArtifact("drawing", "plot.svg"),
    ReturnedArtifact("gone", "gone.html"),
    ReturnedArtifact("climbs", "../../../../api/tenants"),
    ReturnedArtifact("elsewhere", "http://elsewhere.invalid/report.html"),
    ReturnedArtifact("runs", "javascript:alert(1)"),
    ReturnedArtifact("results", "odd/names.xml", {"type": "junit"}),
    ReturnedArtifact("directory", "unit%20tests/", {"type": "unit_test_report"}),
    ReturnedArtifact("odd type", "notes.txt", {"type": ["junit"]}),
    ReturnedArtifact("no such file", "absent.xml", {"type": "junit"}),
)


async def left(site: Site) -> str:
    """Record a build that leaves artifacts, and return its id."""
    buildset = ended(501)
    (build, *_) = buildset.builds
    await site.history.record(replace(buildset, builds=(replace(build, artifacts=LEFT),)))
    logs = site.logs.root / build.uuid
    for path, text in {
        "job-output.txt": "2027-01-15 08:00:00.000 | done\n",
        "report.html": ACTS,
        "notes.txt": EVIL + "\n" + "x" * 1_000_000,
        "plot.svg": DRAWN,
        "odd/names.xml": "<testsuite><testcase name='one'/></testsuite>",
        "unit tests/a.xml": "<testsuite><testcase name='two'/></testsuite>",
        "unit tests/a.txt": "no report",
        "elsewhere/b.xml": "<unread/>",
    }.items():
        (logs / path).parent.mkdir(parents=True, exist_ok=True)
        (logs / path).write_text(text)
    return build.uuid


@pytest.mark.long
async def test_artifacts_are_shown_and_do_nothing(served: tuple[Site, str], page: Page) -> None:
    site, url = served
    uuid = await left(site)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await page.goto(f"{url}/t/example/build/{uuid}")
    names = page.locator(".preview summary")
    await expect(page.locator("#link")).to_have_text("complete")
    labels = [await names.nth(n).get_attribute("aria-label") for n in range(await names.count())]
    assert {f"Preview of {name}" for name in ("climbs", "elsewhere", "runs", "directory")}.isdisjoint(labels)
    assert not [one for one in requests if one.endswith(("report.html", "notes.txt"))], "they are asked for once wanted"
    for name in ("page", "text", "drawing", "gone"):
        await page.get_by_label(f"Preview of {name}", exact=True).click()
    frame = page.locator(".preview iframe")
    await expect(frame.content_frame.locator("h1")).to_have_text("Report")
    await expect(frame).to_have_attribute("sandbox", "")
    await frame.content_frame.get_by_role("button", name="Send").click()
    await expect(page.locator(".preview pre")).to_contain_text(EVIL)
    assert len(await page.locator(".preview pre").inner_text()) <= 262_144
    await expect(page.locator(".preview", has=page.locator("pre"))).to_contain_text("This is the beginning")
    await expect(page.locator(".preview img")).to_have_js_property("naturalWidth", 9)
    await expect(page.locator(".preview", has_text="no longer available")).to_be_visible()
    assert "ran" not in await frame.content_frame.locator("body").inner_text()
    assert await page.title() != "hacked" and page.url.endswith(f"/build/{uuid}")
    assert not [one for one in requests if "/status" in one or "/enqueue" in one or "elsewhere" in one], requests
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.long
async def test_reports_of_tests_are_found_at_the_addresses_of_artifacts(served: tuple[Site, str], page: Page) -> None:
    site, url = served
    uuid = await left(site)
    found = await (await page.request.get(f"{url}/api/tenant/example/build/{uuid}/tests")).json()
    assert (found["files"], found["passed"]) == (["odd/names.xml", "unit tests/a.xml"], 2)
    assert found["problems"] == []

"""Test that the pages are accessible, with axe and WCAG 2.2 AA: in dark and light mode, and on a phone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from headgate.testing.repositories import run_git
from headgate.web.routes.pages import PAGES
from tests.tiers import SOAK
from tests.waiting import wait_for

from .browser import patient
from .headgate import Headgate
from .test_pages import shoot

AXE = Path(__file__).parents[1] / "node" / "node_modules" / "axe-core" / "axe.min.js"
AXE_RUN = """async () => (await axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }))
  .violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)])"""
SIZES = {"wide": ({"width": 1280, "height": 900}, "light"), "phone": ({"width": 390, "height": 844}, "dark")}
TABS = 4
"""A page counts as loaded once it has asked for nothing for half a second: so many are waited for together."""

pytestmark = pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: `make tests/node/node_modules`")

JOBS = """
- job:
    name: broken
    run: jobs/broken
- job:
    name: after
    run: jobs/unit
    dependencies: [unit]
- project:
    name: code/api
    check:
      jobs: [unit, broken, after]
"""


def found_on(page: Page, name: str) -> Any:
    """Return what axe finds on a page once it is there."""
    expect(page.locator("main > *").first).to_be_attached()
    if name != "status":
        page.wait_for_load_state("networkidle")
    page.evaluate(AXE.read_text())
    return page.evaluate(AXE_RUN)


def test_axe_finds_nothing_on_any_page(headgate: Headgate, page: Page) -> None:
    """`make test` checks each page in one size, `make soak` in all."""
    repositories = headgate.repositories
    text = run_git("show", "HEAD:zuul.yaml", at=repositories.work("config"))
    broken = "#!/bin/sh\nprintf '\\033[1;31mred\\033[0m\\n'\nexit 3\n"
    repositories.write("config", {"zuul.yaml": text + "\n" + JOBS, "jobs/broken": broken})
    run_git("commit", "-q", "-m", "Break", at=repositories.work("config"))
    run_git("push", "-q", "origin", "HEAD:master", at=repositories.work("config"))
    wait_for("the job is known", lambda: any(j["name"] == "broken" for j in headgate.get("/api/tenant/example/jobs")))
    for topic in ("one", "two"):
        commit = repositories.propose("code/api", topic, {topic: "1\n"}, f"Try {topic}")
        wait_for("it has failed", lambda commit=commit: "failed" in repositories.note("code/api", commit))
    wait_for("it is history", lambda: len(headgate.get("/api/tenant/example/buildsets?complete=true")) == 2)
    repositories.propose("code/api", "held", {"HOLD": "1\n"}, "Take a while")
    wait_for("it runs", lambda: headgate.get("/api/tenant/example/builds?complete=false"))
    (failed, *_) = headgate.get("/api/tenant/example/builds?job_name=broken")
    (ended, *_) = headgate.get("/api/tenant/example/buildsets?complete=true")
    subjects = {"build": failed["uuid"], "buildset": ended["uuid"], "project": "code/api", "job": "broken"}
    subjects |= {"change": "?project=code/api&change=held"}
    subjects |= {"freeze": "?project=code/api&branch=master&pipeline=check&job=after"}
    wrong: dict[str, Any] = {}
    tabs = [page, *(patient(page.context.new_page()) for _ in range(TABS - 1))]
    for number, (size, (viewport, scheme)) in enumerate(SIZES.items()):
        for tab in tabs:
            tab.set_viewport_size(viewport)  # type: ignore[arg-type]  # width and height
            tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # light or dark
        chosen = [*PAGES] if SOAK else [*PAGES][number :: len(SIZES)]
        for first in range(0, len(chosen), TABS):
            shown = [*zip(tabs, chosen[first : first + TABS], strict=False)]
            for tab, name in shown:
                subject = f"/{subjects[name]}" if name in subjects else ""
                tab.goto(f"{headgate.url}/t/example/{name}{subject}".replace("/?", "?"))
            for tab, name in shown:
                if found := found_on(tab, name):
                    wrong[f"{name} {size}"] = found
                shoot(tab, f"{name}-{size}")
        page.goto(f"{headgate.url}/t/example/changes")
        page.get_by_role("link", name="Take a while").click()
        expect(page.locator(".answer")).to_have_text("The change cannot enter gate yet: it is not approved.")
    assert not wrong, wrong


@pytest.mark.long
def test_pages_show_whether_a_job_is_slow_or_flaky_and_when_builds_of_a_buildset_ran(
    headgate: Headgate, page: Page
) -> None:
    repositories = headgate.repositories
    for topic in ("one", "two", "three"):
        commit = repositories.propose("code/api", topic, {topic: "1\n"}, f"Try {topic}")
        wait_for("it has passed", lambda commit=commit: "Build succeeded" in repositories.note("code/api", commit))
    wait_for("they are history", lambda: len(headgate.get("/api/tenant/example/builds?complete=true")) == 3)
    page.goto(f"{headgate.url}/t/example/job/unit")
    slow = page.get_by_role("img", name="How long")
    expect(slow.locator("canvas")).to_be_visible()
    row = page.locator("tbody tr", has_text="code/api").first
    expect(row.locator("td").nth(1)).to_have_text("3")
    over = slow.locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.get_by_role("status").filter(has_text="SUCCESS")).to_have_text(
        re.compile(r"code/api master: SUCCESS, ")
    )
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page).to_have_url(re.compile("/build/"))
